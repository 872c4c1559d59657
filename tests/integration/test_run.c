/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* How calls on host memory run and end (src/run/collective.c, members.c). There are two real ranks, and what rank 1
 * does is the test's: it fills the links of rank 1 while rank 0 is in a call. The clock is the test's, too: while rank
 * 0 is in a call, each look at it takes 25 ms. */
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "../../src/collectives/transfer.h"
#include "../../src/core/call.h"
#include "../../src/core/wiring.h"
#include "../../src/failure/mismatch.h"
#include "../../src/failure/publish.h"
#include "../../src/failure/watch.h"
#include "../../src/kernels/exec.h"
#include "../../src/run/run.h"
#include "../support/ranks.h"
#include "../support/scratch.h"
#include "../support/suite.h"

enum { OWN = 40000, LONG = 3 << 20, NO_REGION = 12345 };
static pthread_barrier_t met;
static ncclComm_t comms[2];
static char in[LONG], out[LONG];

/* ---- rank 1 ---- */

static hk_link *link_of_1(bool p2p) {
  hk_link_walk walk = {0};
  for (hk_wired_link *l; (l = hk_wire_next(comms[1], &walk));)
    if (hk_link_sends((hk_link_kind)l->link.kind) && (walk.channel == HK_CHANNEL_P2P) == p2p) return &l->link;
  abort();
}
static void publish(hk_link *l, size_t bytes, uint32_t signature) {
  memset(hk_link_send_buffer(l, bytes), 7, bytes);
  hk_link_fill(l, (uint32_t)bytes, signature, 0);
}
/* A reference to memory that is not there. */
static void publish_lost(hk_link *l, size_t bytes, uint32_t signature) {
  l->slots[(uint32_t)l->done & l->mask].ref = (hk_ref){.region = NO_REGION, .offset = 64};
  hk_link_fill(l, (uint32_t)bytes, signature, HK_SLOT_REF);
}
static hk_call broadcast_of(size_t bytes) {
  return (hk_call){.comm = comms[0], .count = bytes, .coll = HK_BROADCAST, .dtype = HK_I8, .root = 1};
}
/* Rank 1 begins a broadcast, and its board shows it; the signature of its slots. */
static uint32_t begin_1(size_t bytes) {
  hk_call call = broadcast_of(bytes);
  comms[1]->order.sequence++;
  hk_watch_publish(comms[1], &call, hk_call_signature(&call));
  return hk_signature_at(hk_call_signature(&call), comms[1]->order.sequence);
}

/* What it publishes at every eighth look of rank 0 at the clock: pieces of one message. */
static struct {
  hk_link *link;
  size_t left;
  int looks, pieces;
  uint32_t error; /* of their signature */
  bool unseen;    /* the board did not show the call while rank 0 waited */
} stream;

static void publish_piece(void) {
  const hk_exec *x = comms[0]->order.exec;
  const bool transfer = stream.link == link_of_1(true);
  if (!stream.left || ++stream.looks % 8 || (!transfer && !x)) return;
  size_t bytes = transfer ? stream.link->slot_bytes : x->launch->chunk;
  if (!hk_link_can_send(stream.link, bytes)) return;
  hk_activity a;
  hk_watch_report(comms[0], &a);
  stream.unseen |= a.phase != HK_PHASE_OPERATION || a.root != 1 || !comms[0]->order.current;
  if (bytes > stream.left) bytes = stream.left;
  stream.left -= bytes;
  stream.pieces++;
  publish(stream.link, bytes, stream.error ^ (transfer ? hk_transfer_signature(LONG) : x->signature));
}

/* ---- the clock ---- */

static _Atomic(uint64_t) ahead_ns;
static _Thread_local bool hurries;
int clock_gettime(clockid_t clock, struct timespec *t) {
  (void)syscall(SYS_clock_gettime, clock, t);
  if (clock != CLOCK_MONOTONIC) return 0;
  const bool looks = hurries;
  hurries = false; /* what follows looks at the clock, too */
  if (looks) atomic_fetch_add(&ahead_ns, 25000000);
  if (looks && stream.link) publish_piece();
  hurries = looks;
  const uint64_t ns = (uint64_t)t->tv_nsec + atomic_load(&ahead_ns);
  t->tv_sec += (time_t)(ns / 1000000000);
  t->tv_nsec = (long)(ns % 1000000000);
  return 0;
}

/* ---- rank 0 ---- */

static ncclResult_t broadcast(size_t bytes) {
  hurries = true;
  ncclResult_t rc = ncclBroadcast(in, out, bytes, ncclInt8, 1, comms[0], NULL);
  hurries = false;
  return rc;
}
static ncclResult_t receive(size_t bytes) {
  hurries = true;
  ncclResult_t rc = ncclRecv(out, bytes, ncclInt8, 1, comms[0], NULL);
  hurries = false;
  return rc;
}
/* A broadcast and some receives. */
static ncclResult_t group(bool coll, int receives, size_t bytes) {
  hurries = true;
  ncclResult_t rc = ncclGroupStart();
  if (coll && rc == ncclSuccess) rc = ncclBroadcast(in, out, bytes, ncclInt8, 1, comms[0], NULL);
  for (int i = 0; i < receives && rc == ncclSuccess; i++)
    rc = ncclRecv(out + i, coll ? 4 : bytes, ncclInt8, 1, comms[0], NULL);
  const ncclResult_t ended = ncclGroupEnd();
  hurries = false;
  return rc == ncclSuccess ? ended : rc;
}

static int has_come(size_t bytes) {
  int faults = 0;
  for (size_t i = 0; i < bytes; i++) faults += out[i] != 7;
  memset(out, 0, sizeof out);
  return RANK_IS(faults == 0);
}

/* ---- calls that end well ---- */

static int runs(void) {
  hk_activity a;
  publish(link_of_1(false), 5, begin_1(5));
  int faults = RANK_IS(broadcast(5) == ncclSuccess) + has_come(5);
  hk_watch_report(comms[0], &a);
  const hk_call call = broadcast_of(5);
  faults += RANK_IS(a.phase == HK_PHASE_IDLE && a.sequence == 3 && a.signature == hk_call_signature(&call));
  faults += RANK_IS(a.count == 5 && a.coll == HK_BROADCAST && a.root == 1 && a.dtype == HK_I8);
  const uint64_t direct = comms[0]->order.direct;
  publish(link_of_1(true), 3, hk_transfer_signature(3));
  faults += RANK_IS(receive(3) == ncclSuccess) + has_come(3);
  faults += RANK_IS(comms[0]->order.direct == direct + 1);
  hk_watch_report(comms[0], &a);
  faults += RANK_IS(a.phase == HK_PHASE_IDLE && a.sequence == 3);
  return faults;
}

/* Up to eight transfers alone run without members. */
static int runs_groups(void) {
  int faults = 0;
  for (int n = 1; n <= 10; n++)
    for (int coll = 0; coll < 2; coll++) {
      const uint64_t direct = comms[0]->order.direct, operations = comms[0]->order.sequence;
      if (coll) publish(link_of_1(false), 4, begin_1(4));
      for (int i = 0; i < n; i++) publish(link_of_1(true), 4, hk_transfer_signature(4));
      faults += RANK_IS(group(coll, n, 4) == ncclSuccess) + has_come(4);
      faults += RANK_IS(comms[0]->order.direct - direct == (!coll && n <= 8));
      faults += RANK_IS(comms[0]->order.sequence - operations == (uint64_t)coll);
    }
  return faults;
}

/* Each piece that comes begins the wait again, so that the watchdog (1 s) reports nothing of a message of many
 * seconds. */
static int progresses(ncclResult_t (*call)(void), bool p2p) {
  stream.link = link_of_1(p2p);
  stream.left = LONG;
  stream.pieces = 0;
  if (!p2p) (void)begin_1(LONG);
  const uint64_t begin = hk_now_ns();
  int faults = RANK_IS(call() == ncclSuccess);
  stream.link = NULL;
  faults += has_come(LONG) + RANK_IS(!stream.unseen) + RANK_IS(stream.pieces >= 6 && hk_now_ns() - begin > 1200000000u);
  return faults + RANK_IS(comms[0]->order.reported_ns == 0 && !comms[0]->order.inquiry);
}
static ncclResult_t long_broadcast(void) { return broadcast(LONG); }
static ncclResult_t long_receive(void) { return receive(LONG); }
/* After nine short ones. */
static ncclResult_t long_of_group(void) {
  for (int i = 0; i < 9; i++) publish(link_of_1(true), 4, hk_transfer_signature(4));
  hurries = true;
  (void)ncclGroupStart();
  for (int i = 0; i < 9; i++) (void)ncclRecv(in, 4, ncclInt8, 1, comms[0], NULL);
  (void)ncclRecv(out, LONG, ncclInt8, 1, comms[0], NULL);
  const ncclResult_t rc = ncclGroupEnd();
  hurries = false;
  return rc;
}
static int waits_again(void) {
  return progresses(long_broadcast, false) + progresses(long_receive, true) + progresses(long_of_group, true);
}

/* ---- the end ---- */

/* What came and was not received is reported when the communicator ends: how many messages, and their bytes. */
static int reports_unread(void) {
  char text[300];
  hk_wire_report_undelivered(comms[0]);
  int faults = RANK_IS(!strstr(scratch_read("log"), "destroys it"));
  size_t bytes = 0;
  for (unsigned n = 1; n <= 16; n++) { /* as many as fit */
    bytes += 10 + n;
    publish(link_of_1(true), 10 + n, 1);
    if (n > 2 && n < 15) continue;
    hk_wire_report_undelivered(comms[0]);
    snprintf(text, sizeof text,
             ": rank 0 of 2 destroys it with %zu bytes (%u messages or pieces) that rank 1 sent and no ncclRecv here "
             "took: give each ncclSend its ncclRecv\n",
             bytes, n);
    faults += RANK_IS(strstr(scratch_read("log"), text) != NULL);
  }
  faults += RANK_IS(!strstr(scratch_read("log"), "in a collective operation"));
  publish(link_of_1(false), 7, 1);
  publish(link_of_1(false), 8, 1);
  hk_wire_report_undelivered(comms[0]);
  faults +=
      RANK_IS(strstr(scratch_read("log"), ": rank 0 of 2 destroys it with 15 bytes (2 messages) that rank 1 sent in "
                                          "a collective operation and that none here took: the last of 2 "
                                          "operations, or one before it, was called differently") != NULL);
  return faults;
}

/* The peer of a link that has failed, or to which none could be opened. */
static int finds_broken_links(void) {
  hk_link_walk walk = {0};
  hk_wired_link *l = hk_wire_next(comms[0], &walk);
  int faults = RANK_IS(hk_wire_broken(comms[0]) == -1);
  atomic_store(&l->link.state, HK_LINK_FAILED);
  faults += RANK_IS(hk_wire_broken(comms[0]) == l->link.peer);
  atomic_store(&l->link.state, HK_LINK_READY);
  for (int r = 0; r < 2; r++) {
    comms[0]->wiring->lost = r + 1;
    faults += RANK_IS(hk_wire_broken(comms[0]) == r);
  }
  comms[0]->wiring->lost = 0;
  return faults;
}

/* ---- calls that fail ---- */

static int wrong_bytes(void) {
  publish(link_of_1(false), 8, begin_1(4));
  return RANK_IS(broadcast(4) == ncclInternalError);
}
static int wrong_call(void) {
  publish(link_of_1(false), 4, begin_1(4) + 1);
  return RANK_IS(broadcast(4) == ncclInvalidUsage);
}
static int wrong_call_of_group(void) {
  publish(link_of_1(false), 4, begin_1(4) + 1);
  return RANK_IS(group(true, 2, 4) == ncclInvalidUsage);
}
static int wrong_size(void) {
  publish(link_of_1(true), 8, hk_transfer_signature(8));
  return RANK_IS(receive(4) == ncclInvalidUsage);
}
/* The second of two transfers is reported, not the first one. */
static int wrong_size_of_two(void) {
  publish(link_of_1(true), 4, hk_transfer_signature(4));
  publish(link_of_1(true), 8, hk_transfer_signature(8));
  return RANK_IS(group(false, 2, 4) == ncclInvalidUsage);
}
static int wrong_size_of_group(void) {
  publish(link_of_1(false), 4, begin_1(4));
  publish(link_of_1(true), 8, hk_transfer_signature(8));
  return RANK_IS(group(true, 1, 4) == ncclInvalidUsage);
}
static int lost_slot(void) {
  publish_lost(link_of_1(false), 4, begin_1(4));
  return RANK_IS(broadcast(4) == ncclRemoteError);
}
static int lost_message(void) {
  publish_lost(link_of_1(true), 4, hk_transfer_signature(4));
  return RANK_IS(receive(4) == ncclRemoteError);
}
static int lost_message_of_group(void) {
  publish(link_of_1(false), 4, begin_1(4));
  publish_lost(link_of_1(true), 4, hk_transfer_signature(4));
  return RANK_IS(group(true, 3, 4) == ncclRemoteError);
}
/* What is wrong comes while rank 0 waits, and its board shows the call. */
static int wrong_later(ncclResult_t (*call)(void), bool p2p) {
  stream.link = link_of_1(p2p);
  stream.left = 4;
  stream.error = 1;
  if (!p2p) (void)begin_1(4);
  const ncclResult_t rc = call();
  stream.link = NULL;
  return RANK_IS(rc == ncclInvalidUsage);
}
static ncclResult_t short_broadcast(void) { return broadcast(4); }
static ncclResult_t short_receive(void) { return receive(4); }
static ncclResult_t nine_receives(void) { return group(false, 9, 4); }
static int wrong_call_later(void) { return wrong_later(short_broadcast, false); }
static int wrong_size_later(void) { return wrong_later(short_receive, true); }
static int wrong_size_of_many(void) { return wrong_later(nine_receives, true); }

/* Of this rank's own: a wave does not fit a slot of the link. */
static int too_small(void) {
  hk_link_walk walk = {0};
  for (hk_wired_link *l; (l = hk_wire_next(comms[0], &walk));)
    if (hk_link_sends((hk_link_kind)l->link.kind)) l->link.slot_bytes = 100;
  hurries = true;
  const ncclResult_t rc = ncclBroadcast(in, out, OWN, ncclInt8, 0, comms[0], NULL);
  hurries = false;
  return RANK_IS(rc == ncclInternalError);
}

#define BROADCAST "Broadcast(4 x int8, root 1)"
#define RECV "Recv from(4 x int8, rank 1)"
#define ADVICE                                                                                                         \
  "make the same call with the same count (or counts), type, operator and root on all ranks, in the same order"
#define OTHER                                                                                                          \
  "rank 0, in " BROADCAST " (operation 3), found a message of rank 1 with 4 bytes that belongs to another operation, " \
  "where these ranks made different calls: " ADVICE
#define SIZE(piece)                                                                                                    \
  "rank 1 sends a message of another size (a piece of " piece " bytes came) than the 4 bytes that rank 0 receives "    \
  "in " RECV ": make count and type of the ncclSend and the ncclRecv equal"
#define LOST "rank 1 sent a reference over a link of one process"
static const struct {
  const char *name;
  int (*act)(void);
  int32_t kind; /* of the failure */
  int guilty;
  const char *in, *says; /* what ended, NULL: the cause has it; the cause, NULL: there is no failure */
} scenes[] = {
    {"runs", runs, 0, 0, NULL, NULL},
    {"runs_groups", runs_groups, 0, 0, NULL, NULL},
    {"waits_again", waits_again, 0, 0, NULL, NULL},
    {"reports_unread", reports_unread, 0, 0, NULL, NULL},
    {"finds_broken_links", finds_broken_links, 0, 0, NULL, NULL},
    {"wrong_bytes", wrong_bytes, HK_EVENT_VERDICT, 1, BROADCAST,
     "rank 0 in " BROADCAST ": rank 1 sent 8 bytes where 4 were expected"},
    {"wrong_call", wrong_call, HK_EVENT_VERDICT, 1, BROADCAST, OTHER},
    {"wrong_call_of_group", wrong_call_of_group, HK_EVENT_VERDICT, 1, BROADCAST, OTHER},
    {"wrong_size", wrong_size, HK_EVENT_VERDICT, 1, RECV, SIZE("8")},
    {"wrong_size_of_two", wrong_size_of_two, HK_EVENT_VERDICT, 1, RECV, SIZE("8")},
    {"wrong_size_of_group", wrong_size_of_group, HK_EVENT_VERDICT, 1, RECV, SIZE("8")},
    {"wrong_call_later", wrong_call_later, HK_EVENT_VERDICT, 1, BROADCAST, OTHER},
    {"wrong_size_later", wrong_size_later, HK_EVENT_VERDICT, 1, RECV, SIZE("4")},
    {"wrong_size_of_many", wrong_size_of_many, HK_EVENT_VERDICT, 1, RECV, SIZE("4")},
    {"lost_slot", lost_slot, HK_EVENT_SUSPECT, 1, BROADCAST, LOST},
    {"lost_message", lost_message, HK_EVENT_SUSPECT, 1, RECV, LOST},
    {"lost_message_of_group", lost_message_of_group, HK_EVENT_SUSPECT, 1, RECV, LOST},
    {"too_small", too_small, HK_EVENT_ERROR, 0, NULL,
     "rank 0, in Broadcast(40000 x int8, root 0): 40000 bytes for rank 0 do not fit a slot of 100, and no reference "
     "can be sent"},
};

/* In no call, and without one that its board shows. */
static int is_idle(ncclComm_t c) {
  const hk_comm_order *o = &c->order;
  int faults = RANK_IS(!o->current && !o->exec && !atomic_load(&c->health.inside) && !atomic_load(&c->health.calling));
  return faults + RANK_IS(atomic_load(&o->page->over) == o->sequence && !(atomic_load(&o->page->transfer) & 7));
}

static int check_failure(ncclComm_t c, int scene) {
  const hk_health *h = &c->health;
  char text[1024];
  if (!scenes[scene].says) return RANK_IS(!atomic_load(&h->failure));
  snprintf(text, sizeof text, "rank 0 of 2%s%s: %s", scenes[scene].in ? ", in " : "",
           scenes[scene].in ? scenes[scene].in : "", scenes[scene].says);
  int faults = RANK_IS(h->cause->kind == scenes[scene].kind && h->cause->rank == scenes[scene].guilty);
  faults += RANK_IS(!strcmp(ncclGetLastError(c), scenes[scene].says));
  return faults + RANK_IS(!strcmp(ncclGetLastError(NULL), text));
}

static int play(ncclComm_t c, int rank, int n, void *arg) {
  const int scene = *(int *)arg;
  (void)n;
  comms[rank] = c;
  int faults = RANK_CHECK(ncclBroadcast(in, out, OWN, ncclInt8, 0, c, NULL));
  faults += RANK_CHECK(ncclBroadcast(in, out, 4, ncclInt8, 1, c, NULL));
  faults += RANK_CHECK(rank == 1 ? ncclSend(in, 4, ncclInt8, 0, c, NULL) : ncclRecv(out, 4, ncclInt8, 1, c, NULL));
  pthread_barrier_wait(&met);
  if (rank == 0) {
    faults += scenes[scene].act() + is_idle(c);
    hk_watch_over(comms[1]);
    faults += check_failure(c, scene);
  }
  pthread_barrier_wait(&met);
  return faults;
}

TEST_LOOP(calls, HK_ARRAY_LENGTH(scenes)) {
  int scene = _i;
  setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_ALGO", "oneshot", 1); /* rank 1's messages go over one link */
  setenv("HOCKET_SLOTS", "16", 1);
  setenv("HOCKET_WATCHDOG", "1", 1);
  setenv("HOCKET_WATCHDOG_ABORT", "0", 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_param_reload();
  hk_log_reset();
  pthread_barrier_init(&met, NULL, 2);
  ck_assert_msg(ranks_as_threads(2, play, &scene) == 0, "%s", scenes[scene].name);
}

/* Over a network, also of a connection that the receiver has not taken yet. */
static int sends_in_vain(ncclComm_t c, int rank, int n, void *arg) {
  (void)n, (void)arg;
  int faults = rank == 0 ? RANK_CHECK(ncclSend(in, 4, ncclInt8, 1, c, NULL)) : 0;
  pthread_barrier_wait(&met);
  return faults;
}
TEST(unread_over_net) {
  ranks_reach_by("net");
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_param_reload();
  hk_log_reset();
  pthread_barrier_init(&met, NULL, 2);
  ck_assert_int_eq(ranks_as_threads(2, sends_in_vain, NULL), 0);
  ck_assert_ptr_nonnull(
      strstr(scratch_read("log"), "rank 1 of 2 destroys it with 4 bytes (1 messages or pieces) that rank 0 sent"));
}

/* Each is the root of its own call, so none waits for a message. Over a network ranks compare a plan's first call. */
static int is_its_own_root(ncclComm_t c, int rank, int n, void *arg) {
  (void)n, (void)arg;
  return RANK_IS(ncclBroadcast(in, out, 4, ncclInt8, rank, c, NULL) == ncclInvalidUsage);
}
TEST(two_roots_over_net) {
  ranks_reach_by("net");
  ck_assert_int_eq(ranks_as_threads(2, is_its_own_root, NULL), 0);
}

int main(void) { return suite_main("run", .timeout = 60, .setup = scratch_make, .teardown = scratch_remove); }
