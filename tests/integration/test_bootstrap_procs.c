/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap between processes: sockets, deaths, NCCL_COMM_ID, forked children, a cut network.
 * check: notsan */
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include "../../src/base/addr.h"
#include "../../src/boot/root.h"
#include "../support/boot_ranks.h"

enum { MAX_RANKS = 128 };

/* What all processes of a test share. */
typedef struct stage {
  int nprocs, per_proc, nids;
  ncclUniqueId ids[4];
  bool use_env_id;
  void (*body)(rank_state *);
  int proc; /* each process has its own copy */
} stage;

typedef struct board {
  _Atomic(int) joined, done, go, ids_made;
  ncclUniqueId ids[4];
  int status[MAX_RANKS];
  char text[MAX_RANKS][256];
} board;
static board *shared;

static int process_main(void *arg) {
  stage *s = arg;
  int n = s->nprocs * s->per_proc;
  rank_state *r = new_ranks(n, s->ids, s->nids, s->body, s);
  int first = s->proc * s->per_proc;
  if (s->use_env_id && hk_bootstrap_env_id(hk_settings_now(), &s->ids[0], first) != HK_OK) return 2;
  start_threads(r + first, s->per_proc);
  end_threads(r + first, s->per_proc);
  for (int i = first; i < first + s->per_proc; i++) shared->status[i] = r[i].status;
  free(r);
  return 0;
}

static void start_all(stage *s, pid_t *pids) {
  for (s->proc = 0; s->proc < s->nprocs; s->proc++) pids[s->proc] = start_process(process_main, s);
}

static void end_all(const stage *s, const pid_t *pids) {
  for (int i = 0; i < s->nprocs; i++) ck_assert_int_eq(end_process(pids[i]), 0);
  for (int i = 0; i < s->nprocs * s->per_proc; i++)
    ck_assert_msg(shared->status[i] == HK_OK, "rank %d: %d %s", i, shared->status[i], shared->text[i]);
}

static void fail_rank(rank_state *r, const char *what) {
  if (r->status == HK_OK) r->status = HK_ERR_INTERNAL;
  snprintf(shared->text[r->rank], sizeof shared->text[0], "%s: %s", what, hk_last_error());
}

static bool gathers(hk_bootstrap *b, int rank, int n, int words) {
  uint32_t *table = calloc((size_t)n, (size_t)words * 4);
  for (int i = 0; i < words; i++) table[rank * words + i] = (uint32_t)(rank * 1000003 + i);
  bool ok = hk_bootstrap_allgather(b, table, (size_t)words * 4) == HK_OK;
  for (int i = 0; ok && i < n * words; i++) ok = table[i] == (uint32_t)(i / words * 1000003 + i % words);
  free(table);
  return ok;
}

static void join_and_gather(rank_state *r) {
  if (join_rank(r) != HK_OK) {
    fail_rank(r, "join");
    goto out;
  }
  if (!gathers(r->b, r->rank, r->nranks, 100)) fail_rank(r, "allgather");
  /* More than a socket takes at once, and all ranks leave straight afterwards. */
  if (!gathers(r->b, r->rank, r->nranks, 4000000 / r->nranks)) fail_rank(r, "large allgather");
  if (hk_bootstrap_barrier(r->b) != HK_OK) fail_rank(r, "barrier");
  if (atomic_load(&r->nevents)) fail_rank(r, "an event");
out:
  leave_rank(r);
}

static int make_ids(void *arg) {
  const stage *s = arg;
  for (int i = 0; i < s->nids; i++)
    if (hk_bootstrap_new_id(&shared->ids[i]) != HK_OK) return 1;
  atomic_store(&shared->ids_made, 1);
  for (;;) pause();
}

/* The ids' maker is a process that is no rank itself.  (The test's own process stays without threads, so that forking
 * it is no question for sanitizers.) */
static void new_ids(stage *s) {
  start_process(make_ids, s);
  ck_assert(await_count(&shared->ids_made, 1));
  memcpy(s->ids, shared->ids, sizeof s->ids);
}

/* New ids and processes: every rank succeeds, and every process. */
static void run_stage(stage *s) {
  pid_t pids[MAX_RANKS];
  new_ids(s);
  start_all(s, pids);
  end_all(s, pids);
}

TEST_LOOP(process_ranks, 6) {
  static const int cases[][3] = {{1, 1, 1}, {2, 1, 1}, {33, 1, 1}, {3, 5, 1}, {8, 1, 3}, {3, 4, 4}};
  stage s = {.nprocs = cases[_i][0], .per_proc = cases[_i][1], .nids = cases[_i][2], .body = join_and_gather};
  run_stage(&s);
}

/* The root's process fails its root and is gone at once, as after a rank's error there: who has joined gets the
 * cause. */
static int fail_and_exit(void *arg) {
  (void)arg;
  if (hk_bootstrap_new_id(&shared->ids[0]) != HK_OK) return 1;
  atomic_store(&shared->ids_made, 1);
  for (;;) {
    hk_listener_lock();
    hk_root *r = hk_listener_current()->roots;
    if (r->joined == 1) {
      hk_root_fail(r, HK_ERR_USAGE, "the cause that all ranks get");
      _exit(0); /* with the lock: the listener's thread does nothing more */
    }
    hk_listener_unlock();
    usleep(100);
  }
}

static void hear_the_cause(rank_state *r) {
  if (join_rank(r) != HK_OK && strstr(hk_last_error(), "the cause that all ranks get"))
    r->status = HK_OK;
  else
    fail_rank(r, "join");
}

static int join_as_second(void *arg) {
  rank_state *r = new_ranks(2, ((stage *)arg)->ids, 1, hear_the_cause, arg);
  hear_the_cause(&r[1]);
  if (r[1].status != HK_OK) fprintf(stderr, "%s\n", shared->text[1]);
  leave_rank(&r[1]);
  return r[1].status != HK_OK;
}

TEST(root_process_ends) {
  stage s = {.nprocs = 2, .nids = 1};
  pid_t root = start_process(fail_and_exit, NULL);
  ck_assert(await_count(&shared->ids_made, 1));
  memcpy(s.ids, shared->ids, sizeof s.ids);
  ck_assert_int_eq(end_process(start_process(join_as_second, &s)), 0);
  ck_assert_int_eq(end_process(root), 0);
}

/* ---- deaths ---- */

enum { VICTIM = 3 };

static void survive(rank_state *r) {
  if (join_rank(r) != HK_OK) {
    fail_rank(r, "join");
    goto out;
  }
  atomic_fetch_add(&shared->joined, 1);
  /* Computes outside the library. */
  if (!await_count(&r->nevents, 1)) fail_rank(r, "no event");
  if (!was_reported(r, HK_EVENT_DEAD, VICTIM)) fail_rank(r, "got no event about the victim");
  if (hk_bootstrap_barrier(r->b) != HK_ERR_REMOTE) fail_rank(r, "a barrier with the dead");
  atomic_fetch_add(&shared->done, 1);
  await_count(&shared->go, 1);
  if (atomic_load(&r->nevents) != 1) fail_rank(r, "more events than deaths");
out:
  leave_rank(r);
}

/* Several at once, whole processes of several ranks: every survivor hears of every dead rank. */
static void survive_many(rank_state *r) {
  const stage *s = r->arg;
  if (join_rank(r) != HK_OK) {
    fail_rank(r, "join");
    goto out;
  }
  atomic_fetch_add(&shared->joined, 1);
  int dead = (s->nprocs / 2) * s->per_proc;
  if (!await_count(&r->nevents, dead)) fail_rank(r, "too few events");
  for (int i = 0; i < r->nranks; i++)
    if (was_reported(r, -1, i) != (i / s->per_proc % 2 == 1)) fail_rank(r, "a wrong event");
  atomic_fetch_add(&shared->done, 1);
  await_count(&shared->go, 1);
out:
  leave_rank(r);
}

TEST_LOOP(half_of_the_processes_die, 2) {
  static const int cases[][2] = {{6, 4}, {16, 1}};
  stage s = {.nprocs = cases[_i][0], .per_proc = cases[_i][1], .nids = 1, .body = survive_many};
  pid_t pids[MAX_RANKS];
  int n = s.nprocs * s.per_proc, dead = (s.nprocs / 2) * s.per_proc;
  new_ids(&s);
  start_all(&s, pids);
  ck_assert(await_count(&shared->joined, n));
  uint64_t begin = hk_now_ns();
  for (int i = 1; i < s.nprocs; i += 2) kill(pids[i], SIGKILL);
  for (int i = 1; i < s.nprocs; i += 2) end_process(pids[i]);
  ck_assert(await_count(&shared->done, n - dead));
  ck_assert_uint_lt(hk_now_ns() - begin, 2000000000u);
  atomic_store(&shared->go, 1);
  for (int i = 0; i < s.nprocs; i += 2) ck_assert_int_eq(end_process(pids[i]), 0);
  for (int i = 0; i < n; i++)
    ck_assert_msg(i / s.per_proc % 2 || shared->status[i] == HK_OK, "rank %d: %s", i, shared->text[i]);
}

/* A process that the victim forked holds copies of all it had, and lives on: the death must show all the same. */
static void fork_then_survive(rank_state *r) {
  if (r->rank != VICTIM) {
    survive(r);
    return;
  }
  if (join_rank(r) != HK_OK) {
    fail_rank(r, "join");
    return;
  }
  if (!fork()) {
    await_count(&shared->go, 1);
    _exit(0);
  }
  atomic_fetch_add(&shared->joined, 1);
  await_count(&shared->go, 1);
}

TEST(a_forked_child_hides_no_death) {
  stage s = {.nprocs = 5, .per_proc = 1, .nids = 1, .body = fork_then_survive};
  pid_t pids[MAX_RANKS];
  new_ids(&s);
  start_all(&s, pids);
  ck_assert(await_count(&shared->joined, 5));
  kill(pids[VICTIM], SIGKILL);
  end_process(pids[VICTIM]);
  ck_assert(await_count(&shared->done, 4));
  atomic_store(&shared->go, 1);
  for (int i = 0; i < 5; i++) {
    if (i == VICTIM) continue;
    ck_assert_int_eq(end_process(pids[i]), 0);
    ck_assert_msg(shared->status[i] == HK_OK, "rank %d: %s", i, shared->text[i]);
  }
}

/* A member that dies instead of joining the child. */
static void child_without_one(rank_state *r) {
  if (join_rank(r) != HK_OK) {
    fail_rank(r, "join");
    goto out;
  }
  hk_bootstrap_barrier(r->b);
  if (r->rank == VICTIM) {
    await_count(&shared->joined, r->nranks - 1);
    kill(getpid(), SIGKILL);
  }
  int members[MAX_RANKS];
  for (int i = 0; i < r->nranks; i++) members[i] = i;
  hk_bootstrap_options o = options_of(r);
  hk_bootstrap *b;
  atomic_fetch_add(&shared->joined, 1);
  if (hk_bootstrap_join_child(&b, r->b, members, 7, &o) != HK_ERR_REMOTE) fail_rank(r, "child");
out:
  leave_rank(r);
}

TEST(member_dies_while_a_child_joins) {
  stage s = {.nprocs = 5, .per_proc = 1, .nids = 1, .body = child_without_one};
  pid_t pids[MAX_RANKS];
  new_ids(&s);
  uint64_t begin = hk_now_ns();
  start_all(&s, pids);
  for (int i = 0; i < 5; i++) {
    end_process(pids[i]);
    ck_assert_msg(shared->status[i] == HK_OK, "rank %d: %s", i, shared->text[i]);
  }
  ck_assert_uint_lt(hk_now_ns() - begin, 10000000000u);
}

/* ---- NCCL_COMM_ID ---- */

static unsigned free_port(int family) {
  hk_addr a = {.v4 = {.sin_family = AF_INET}};
  int fd;
  if (family == AF_INET6) a = (hk_addr){.v6 = {.sin6_family = AF_INET6}};
  ck_assert_int_eq(hk_listen(hk_settings_now(), &a, 1, &fd), HK_OK);
  close(fd);
  return hk_addr_port(&a);
}

static void several_in_a_row(rank_state *r) {
  stage *s = r->arg;
  uint64_t before = 0;
  for (int i = 0; i < 5; i++) {
    if (i) r->status = hk_bootstrap_env_id(hk_settings_now(), &s->ids[0], r->rank);
    if (r->status != HK_OK || join_rank(r) != HK_OK) fail_rank(r, "join");
    if (r->status != HK_OK) goto out;
    if (!gathers(r->b, r->rank, r->nranks, 10)) fail_rank(r, "gather");
    if (hk_bootstrap_comm_id(r->b) == before) fail_rank(r, "two communicators with one number");
    before = hk_bootstrap_comm_id(r->b);
    leave_rank(r);
  }
out:
  leave_rank(r);
}

TEST_LOOP(comm_id_from_the_environment, 3) {
  char text[64];
  struct addrinfo *known;
  if (_i == 2 && getaddrinfo("localhost", NULL, NULL, &known) != 0) {
    printf("SKIP: a host's name in NCCL_COMM_ID: this machine does not know even localhost\n");
    return;
  }
  if (_i == 2) freeaddrinfo(known);
  if (_i == 0) snprintf(text, sizeof text, "127.0.0.1:%u", free_port(AF_INET));
  if (_i == 1) snprintf(text, sizeof text, "[::1]:%u", free_port(AF_INET6));
  if (_i == 2) snprintf(text, sizeof text, "localhost:%u", free_port(AF_INET));
  set_param("NCCL_COMM_ID", text);
  stage s = {.nprocs = 3, .per_proc = 1, .nids = 1, .use_env_id = true, .body = several_in_a_row};
  pid_t pids[3];
  for (s.proc = 2; s.proc >= 0; s.proc--) { /* rank 0 comes last */
    if (s.proc == 0) poll(NULL, 0, 100);
    pids[s.proc] = start_process(process_main, &s);
  }
  end_all(&s, pids);
}

#ifndef __SANITIZE_ADDRESS__ /* ten seconds of patience, and nothing in it that the others do not run */
static void join_and_leave(rank_state *r) {
  if (join_rank(r) != HK_OK) fail_rank(r, "join");
  leave_rank(r);
}

TEST(no_process_at_the_root) {
  stage s = {.nprocs = 2, .per_proc = 1, .nids = 1, .body = join_and_leave};
  pid_t maker = start_process(make_ids, &s);
  ck_assert(await_count(&shared->ids_made, 1));
  memcpy(s.ids, shared->ids, sizeof s.ids);
  kill(maker, SIGKILL);
  end_process(maker);
  pid_t pids[2];
  start_all(&s, pids);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(end_process(pids[i]), 0);
    ck_assert_int_eq(shared->status[i], HK_ERR_REMOTE);
    ck_assert_ptr_ne(strstr(shared->text[i], "must still run"), NULL);
  }
}
#endif

static void setup(void) { shared = shared_memory(sizeof *shared); }

int main(void) { return suite_main("bootstrap between processes", .setup = setup, .timeout = 120); }
