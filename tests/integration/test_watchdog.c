/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog of rank 0 (src/failure/watch.c): when it asks the ranks that it waits for, and what it makes of their
 * answers. The ranks are real, and what they do is written onto their boards; how long rank 0 has waited is the test's.
 * check: waits notsan */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/base/wait.h"
#include "../../src/boot/activity.h"
#include "../../src/boot/bootstrap.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/core/links.h"
#include "../../src/failure/failure.h"
#include "../../src/failure/publish.h"
#include "../../src/failure/watch.h"
#include "../../src/kernels/exec.h"
#include "../../src/run/run.h"
#include "../../src/transport/peer.h"
#include "../../src/transport/transport.h"
#include "../support/ranks.h"
#include "../support/scratch.h"
#include "../support/suite.h"

enum { RANKS = 3 };
#define MS(n) ((uint64_t)(n)*1000000u)
static pthread_barrier_t met, played;
static ncclComm_t comms[RANKS];
static const hk_call sum = {.count = 1000, .coll = HK_ALLREDUCE, .dtype = HK_F32, .redop = HK_SUM, .root = 0};
/* Rank 0 waits in a call without lanes, so for the peer of a receive. */
static hk_call waits_in = {.count = 9, .coll = HK_SENDRECV, .p2p = HK_P2P_RECV, .dtype = HK_I8, .root = 1};
static hk_launch launch;
static hk_exec nothing_runs = {.launch = &launch};

static void begin(int rank, const hk_call *call) {
  comms[rank]->order.sequence++;
  hk_watch_publish(comms[rank], call, hk_call_signature(call));
}
static void wait_for(int rank, int peer) {
  atomic_store(&comms[rank]->order.page->since_ns, hk_now_ns());
  atomic_store(&comms[rank]->order.page->waits, comms[rank]->order.sequence << 32 | (uint64_t)(peer + 1));
}
static void enter(void) {
  begin(0, &sum);
  launch.signature = hk_call_signature(&sum);
  comms[0]->order.current = &waits_in;
  comms[0]->order.exec = &nothing_runs;
}
static void leave(void) {
  comms[0]->order.current = NULL;
  comms[0]->order.exec = NULL;
  for (int r = 0; r < RANKS; r++) {
    atomic_store(&comms[r]->order.page->waits, 0);
    hk_watch_over(comms[r]);
  }
}
static bool asks(void) { return comms[0]->order.inquiry != NULL; }
/* The answers have come; the result of the look that takes them in. It must not ask again. */
static hk_status hear(uint64_t waited_ns) {
  const uint64_t until = hk_now_ns() + MS(8000);
  hk_status rc = HK_OK;
  while (asks() && rc == HK_OK && hk_now_ns() < until) rc = hk_watch(comms[0], waited_ns);
  return asks() && rc == HK_OK ? HK_ERR_INTERNAL : rc;
}

/* ---- when ---- */

static int asks_once(void) {
  ncclComm_t c = comms[0];
  int faults = 0;
  enter();
  begin(1, &sum);
  faults += RANK_IS(hk_watch(c, MS(199)) == HK_OK && !asks());
  c->order.exec = NULL;
  faults += RANK_IS(hk_watch(c, MS(200)) == HK_OK && !asks());
  c->order.exec = &nothing_runs;
  faults += RANK_IS(hk_watch(c, MS(200)) == HK_OK && asks() && hear(MS(201)) == HK_OK);
  faults += RANK_IS(hk_watch(c, MS(900)) == HK_OK && !asks()); /* not twice for an operation */
  hk_activity shown;
  hk_watch_report(c, &shown);
  faults += RANK_IS(shown.waits_for == 1 && shown.phase_ms >= 900 && shown.phase_ms < 60000);
  begin(0, &sum);
  faults += RANK_IS(hk_watch(c, MS(199)) == HK_OK && !asks());
  c->order.current = &sum; /* it waits for no rank that it knows */
  faults += RANK_IS(hk_watch(c, MS(300)) == HK_OK && !asks());
  hk_watch_report(c, &shown);
  faults += RANK_IS(shown.waits_for == -1 && shown.phase_ms >= 300 && shown.phase_ms < 60000);
  c->order.current = &waits_in;
  begin(0, &sum);
  faults += RANK_IS(hk_watch(c, MS(300)) == HK_OK && asks() && hear(MS(301)) == HK_OK);
  leave();
  return faults;
}

/* Of a rank whose board is here nothing has to be asked. */
static int asks_not(void) {
  int faults = 0;
  enter();
  faults += RANK_IS(hk_watch(comms[0], MS(300)) == HK_OK && !asks());
  faults += RANK_IS(comms[0]->order.asked_in == comms[0]->order.sequence);
  leave();
  faults += RANK_IS(hk_watch(comms[0], MS(900)) == HK_OK && !asks()); /* in no call */
  return faults;
}

/* After the watchdog's time, and after twice the time of the last report. */
static int reports_again(void) {
  ncclComm_t c = comms[0];
  int faults = 0;
  enter();
  c->order.asked_in = c->order.sequence;
  faults += RANK_IS(hk_watch(c, MS(999)) == HK_OK && !asks());
  faults += RANK_IS(hk_watch(c, MS(1000)) == HK_OK && asks() && hear(MS(1001)) == HK_OK);
  faults += RANK_IS(hk_watch(c, MS(1999)) == HK_OK && !asks());
  faults += RANK_IS(hk_watch(c, MS(2000)) == HK_OK && asks() && hear(MS(2001)) == HK_OK);
  faults += RANK_IS(hk_watch(c, MS(3999)) == HK_OK && !asks());
  faults += RANK_IS(hk_watch(c, MS(1500)) == HK_OK && asks() && hear(MS(1501)) == HK_OK); /* another wait */
  faults += RANK_IS(hk_watch(c, MS(1500)) == HK_OK && !asks());
  leave();
  return faults;
}

/* ---- what ---- */

/* The log has all these words one after another. */
static int logged(const char *const words[3]) {
  const char *at = scratch_read("log");
  int faults = 0;
  for (int i = 0; i < 3 && words[i]; i++) {
    const char *found = strstr(at, words[i]);
    faults += RANK_IS(found != NULL);
    if (!found) fprintf(stderr, "no \"%s\" in: %s\n", words[i], at);
    if (found) at = found + strlen(words[i]);
  }
  return faults;
}

/* Rank 1 waits for rank 2, which is in no call. */
static int follows_the_chain(void) {
  enter();
  begin(1, &sum);
  wait_for(1, 2);
  int faults = RANK_IS(hk_watch(comms[0], MS(1000)) == HK_OK && hear(MS(1999)) == HK_OK);
  leave();
  return faults + logged((const char *const[3]){
                      "rank 0 of 3 has waited 1 s in Recv from(9 x int8, rank 1), operation 1",
                      " for rank 2; rank 2 runs outside of this communicator's calls, and has begun no operation of it "
                      "yet; rank 1 is in AllReduce(1000 x float",
                      "and waits for rank 2 itself (HOCKET_WATCHDOG_ABORT=1"});
}

/* With HOCKET_WATCHDOG_ABORT the first rank that holds the others up is to blame. */
static int ends_it(void) {
  enter();
  begin(1, &sum);
  wait_for(1, 2);
  int faults = RANK_IS(hk_watch(comms[0], MS(1000)) == HK_OK && hear(MS(1999)) == HK_ERR_REMOTE);
  faults += RANK_IS(hk_failure_resolve(comms[0], NULL) == HK_ERR_REMOTE && comms[0]->health.cause->rank == 2);
  faults += RANK_IS(strstr(ncclGetLastError(comms[0]), "has waited 1 s in") != NULL);
  leave();
  return faults;
}

/* Rank 1 is in another call as that operation, or was, some operations ago. */
static int disagree(void) {
  hk_call other = sum;
  other.count = 999;
  enter();
  begin(1, &other);
  begin(1, &sum);
  int faults = RANK_IS(hk_watch(comms[0], MS(300)) == HK_OK && hear(MS(301)) == HK_ERR_USAGE);
  faults += RANK_IS(hk_failure_resolve(comms[0], NULL) == HK_ERR_USAGE && !asks());
  faults += RANK_IS(strstr(ncclGetLastError(comms[0]), "disagree about operation 1: rank 1 called") != NULL);
  leave();
  return faults;
}

/* What was found counts for the operation in which it was asked. */
static int too_late(void) {
  hk_call other = sum;
  other.count = 999;
  enter();
  begin(1, &other);
  int faults = RANK_IS(hk_watch(comms[0], MS(300)) == HK_OK && asks());
  begin(0, &sum);
  comms[0]->order.asked_in = comms[0]->order.sequence;
  faults += RANK_IS(hear(MS(301)) == HK_OK && atomic_load(&comms[0]->health.failure) == 0);
  leave();
  return faults;
}

/* The report of a launch names the ranks that have begun more or fewer operations. */
static int out_of_step(void) {
  static const hk_long_launch launched = {
      .waited_ns = MS(7000), .captured = true, .peers = "1, 2", .links = "; it sends to rank 1"};
  static const struct {
    int begins; /* the rank that begins an operation before the report; -1: none */
    const char *words[3];
  } steps[] = {
      {-1,
       {"rank 0 of 3: its last call on GPU ",
        "(a send or receive; or a replay of a graph that it is in) has not ended for 7 s; it waits for data over the "
        "network from rank 1, 2; it sends to rank 1: have all ranks made it"}},
      {2, {"from rank 1, 2; rank 2 is in AllReduce(1000 x float, sum), operation 2; it sends to rank 1: have all"}},
      {0,
       {"AllReduce(1000 x float, sum); or a replay",
        "from rank 1, 2; rank 1 is in AllReduce(1000 x float, sum), operation 1; it sends to rank 1: have all"}},
      {0, {"; rank 1 is in AllReduce(", "operation 1; rank 2 is in", "operation 2; it sends"}},
  };
  int faults = 0;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(steps); i++) {
    if (i == 1)
      for (int r = 0; r < RANKS; r++) begin(r, &sum);
    if (steps[i].begins >= 0) begin(steps[i].begins, &sum);
    faults += RANK_IS(hk_watch_launch(comms[0], &launched) == HK_OK) + logged(steps[i].words);
  }
  leave();
  return faults;
}

/* A communicator that ends waits for its question, and its board says so. */
static int ends_while_it_asks(void) {
  enter();
  int faults = RANK_IS(hk_watch(comms[0], MS(300)) == HK_OK && asks());
  hk_watch_end(comms[0]);
  faults += RANK_IS(!asks());
  faults += RANK_IS(atomic_load(&comms[0]->order.page->phase) == HK_PHASE_DESTROY);
  leave();
  return faults;
}

/* An answer that comes when this rank is in no execution any more says nothing of its call. */
static int answer_comes_late(void) {
  hk_call other = sum;
  other.count = 999;
  enter();
  begin(1, &other);
  int faults = RANK_IS(hk_watch(comms[0], MS(300)) == HK_OK && asks());
  comms[0]->order.exec = NULL;
  faults += RANK_IS(hear(MS(301)) == HK_OK && atomic_load(&comms[0]->health.failure) == 0);
  leave();
  return faults;
}

/* Rank 1 has destroyed its communicator. What it sent before may be on its way: so it is blamed at the second look of
 * a wait, over a network after the time in which a silent host counts as dead. */
static int is_left(void) {
  ncclComm_t c = comms[0];
  const bool far = hk_wire_proxied(c, 1);
  const uint64_t until = hk_now_ns() + MS(8000);
  while (!hk_bootstrap_left(c->bootstrap, 1) && hk_now_ns() < until) sched_yield();
  enter();
  waits_in.root = 2; /* another one */
  int faults = RANK_IS(hk_watch(c, MS(10)) == HK_OK && hk_watch(c, MS(11)) == HK_OK && !c->order.left_seen_ns);
  waits_in.root = 1;
  faults += RANK_IS(hk_watch(c, MS(10)) == HK_OK && c->order.left_seen_ns);
  faults += RANK_IS(hk_watch(c, 0) == HK_OK); /* the first look of another wait */
  if (far) {
    faults += RANK_IS(hk_watch(c, MS(20)) == HK_OK);
    c->order.left_seen_ns -= ((uint64_t)hk_param_int(HK_P_PEER_TIMEOUT) - 1) * MS(1000);
    faults +=
        RANK_IS(hk_watch(c, hk_now_ns()) == HK_OK); /* a wait as old as the clock: that of a new machine is young */
    c->order.left_seen_ns -= 2 * MS(1000);
  }
  faults += RANK_IS(hk_watch(c, hk_now_ns()) == HK_ERR_REMOTE && hk_failure_resolve(c, NULL) == HK_ERR_REMOTE);
  faults += RANK_IS(c->health.cause->rank == 1 && c->health.cause->kind == HK_EVENT_VERDICT);
  faults += RANK_IS(strstr(ncclGetLastError(c), "rank 1 has left the communicator (ncclCommDestroy) while rank 0 of 3 "
                                                "waits for it in Recv from(9 x int8, rank 1), operation 1") != NULL);
  c->order.current = NULL;
  c->order.exec = NULL;
  hk_watch_over(c);
  return faults;
}

static const struct {
  int (*act)(void);
  const char *how, *watchdog;
  bool ends;
} scenes[] = {{asks_once, "net", "0", false},
              {asks_not, "shm", "0", false},
              {reports_again, "net", "1", false},
              {reports_again, "shm", "1", false},
              {follows_the_chain, "net", "1", false},
              {follows_the_chain, "shm", "1", false},
              {ends_it, "net", "1", true},
              {disagree, "net", "0", false},
              {too_late, "net", "0", false},
              {out_of_step, "net", "0", false},
              {out_of_step, "shm", "0", false},
              {ends_while_it_asks, "net", "0", false},
              {answer_comes_late, "net", "0", false},
              {is_left, "net", "0", false},
              {is_left, "shm", "0", false}};

static int play(ncclComm_t c, int rank, int n, void *arg) {
  int faults = 0;
  (void)n;
  comms[rank] = c;
  pthread_barrier_wait(&met);
  if (rank == 1 && scenes[*(int *)arg].act == is_left) return 0;
  if (rank == 0) faults = scenes[*(int *)arg].act();
  pthread_barrier_wait(&played);
  return faults;
}

TEST_LOOP(watches, HK_ARRAY_LENGTH(scenes)) {
  ranks_reach_by(scenes[_i].how);
  setenv("HOCKET_PEER_TIMEOUT", "3", 1); /* is_left goes back by more: a machine that has just booted has as much */
  setenv("HOCKET_WATCHDOG", scenes[_i].watchdog, 1);
  setenv("HOCKET_WATCHDOG_ABORT", scenes[_i].ends ? "1" : "0", 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_param_reload();
  hk_log_reset();
  pthread_barrier_init(&met, NULL, RANKS);
  pthread_barrier_init(&played, NULL, RANKS - (scenes[_i].act == is_left));
  ck_assert_int_eq(ranks_as_threads(RANKS, play, &_i), 0);
}

/* A process that runs and is slow to answer is not stopped if its board is here: what the board says counts. */
static int slow_to_answer(ncclComm_t c, int rank, int n, void *arg) {
  pthread_barrier_t *both = arg;
  int faults = 0;
  (void)n;
  comms[rank] = c;
  if (rank == 1) {
    begin(1, &sum);
    pthread_mutex_lock(&c->health.lock); /* its answer waits for this */
  }
  pthread_barrier_wait(both);
  if (rank == 0) {
    const bool board = hk_wire_status_page(c, 1) != NULL;
    const hk_peer peer = c->peers[1];
    hk_activity a;
    hk_presence p = hk_watch_ask(c, 1, MS(50), &a);
    faults += RANK_IS(p == (board ? HK_PRESENCE_ANSWERS : HK_PRESENCE_STOPPED));
    if (board) faults += RANK_IS(a.phase == HK_PHASE_OPERATION && a.sequence == 1 && a.coll == HK_ALLREDUCE);
    if (board) faults += RANK_IS(a.count == 1000 && a.waits_for == -1);
    c->peers[1].host++; /* a process of another host is not looked at */
    faults += RANK_IS(hk_watch_ask(c, 1, MS(50), &a) == HK_PRESENCE_STOPPED);
    c->peers[1] = peer;
    c->peers[1].pid_space++; /* nor one of another container */
    faults += RANK_IS(hk_watch_ask(c, 1, MS(50), &a) == HK_PRESENCE_STOPPED);
    c->peers[1] = peer;
    c->peers[1].pid = 0; /* there is none */
    faults += RANK_IS(hk_watch_ask(c, 1, MS(50), &a) == HK_PRESENCE_STOPPED);
    c->peers[1] = peer;
  }
  pthread_barrier_wait(both);
  if (rank == 1) pthread_mutex_unlock(&c->health.lock);
  hk_watch_over(c);
  return faults;
}

TEST_LOOP(slow_processes, 2) {
  pthread_barrierattr_t shared;
  pthread_barrier_t *both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(both, &shared, 2);
  ranks_reach_by(_i ? "shm" : "net");
  setenv("HOCKET_WATCHDOG", "0", 1);
  hk_param_reload();
  ck_assert_int_eq(ranks_as_processes(2, slow_to_answer, both), 0);
}

int main(void) { return suite_main("watchdog", .setup = scratch_make, .teardown = scratch_remove, .timeout = 60); }
