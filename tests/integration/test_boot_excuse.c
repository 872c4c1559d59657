/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that fails before it has met the others: they get its cause from the root at once, not after their deadline.
 * check: waits notsan long=asan */
#include "../../src/base/addr.h"
#include "../support/boot_ranks.h"

enum { RANKS = 4, FAILING = 2, SLOW_S = 30 /* less than HOCKET_BOOTSTRAP_TIMEOUT */ };

static struct board {
  ncclUniqueId ids[2];
  int nids;
  _Atomic(int) joining;
  hk_status status[RANKS];
  char text[RANKS][2048];
} * shared;

static void setup(void) { shared = shared_memory(sizeof *shared); }

static void join(rank_state *r) {
  atomic_fetch_add(&shared->joining, 1);
  shared->status[r->rank] = join_rank(r);
  snprintf(shared->text[r->rank], sizeof shared->text[0], "%s", hk_last_error());
  leave_rank(r);
}

static void give_up(void) {
  (void)HK_FAIL(HK_ERR_SYSTEM, "out of memory for a test");
  hk_bootstrap_report_abort(hk_settings_now(), shared->ids, shared->nids, FAILING, RANKS);
  ck_assert_str_eq(hk_last_error(), "out of memory for a test");
}

static void join_or_fail(rank_state *r) {
  if (r->rank == FAILING)
    give_up();
  else
    join(r);
}

/* With a job: by NCCL_COMM_ID. With an interface: the rank's NCCL_SOCKET_IFNAME. */
typedef struct part {
  int rank;
  const char *job, *interface;
} part;

static int process_rank(void *arg) {
  const part *p = arg;
  rank_state r = {.rank = p->rank, .nranks = RANKS, .nids = shared->nids, .ids = shared->ids};
  set_param("HOCKET_JOB", p->job);
  if (p->job && hk_bootstrap_env_id(hk_settings_now(), &shared->ids[0], p->rank) != HK_OK) return 1;
  set_param("NCCL_SOCKET_IFNAME", p->interface);
  p->interface ? join(&r) : join_or_fail(&r);
  if (p->job) _exit(0); /* a root that has failed stays for a while */
  return 0;
}

static pid_t start(int rank, const char *job) {
  part p = {.rank = rank, .job = job};
  return start_process(process_rank, &p);
}

static void check_text(int rank) {
  ck_assert_int_eq(shared->status[rank], HK_ERR_REMOTE);
  ck_assert_str_eq(shared->text[rank], "rank 2 of 4 failed: out of memory for a test");
}

static void check_texts(uint64_t begin) {
  for (int i = 0; i < RANKS; i++)
    if (i != FAILING) check_text(i);
  ck_assert_uint_lt(hk_now_ns() - begin, SLOW_S * 1000000000ull);
}

/* The rank fails before the others come, or afterwards; there is one root, or there are two. */
TEST_LOOP(between_processes, 4) {
  pid_t pids[RANKS];
  uint64_t begin = hk_now_ns();
  shared->nids = 1 + _i / 2;
  for (int i = 0; i < shared->nids; i++) hold_id(&shared->ids[i]);
  for (int k = 0; k < RANKS; k++) {
    int rank = (FAILING + _i % 2 + k) % RANKS;
    pids[rank] = start(rank, NULL);
    if (rank == FAILING) ck_assert_int_eq(end_process(pids[rank]), 0);
  }
  for (int i = 0; i < RANKS; i++)
    if (i != FAILING) ck_assert_int_eq(end_process(pids[i]), 0);
  check_texts(begin);
}

/* The root is in the process of all ranks, which leaves nothing. */
TEST(in_one_process) {
  int fds = open_fds();
  uint64_t begin = hk_now_ns();
  shared->nids = 1;
  ck_assert_int_eq(hk_bootstrap_new_id(&shared->ids[0]), HK_OK);
  free(run_threads(RANKS, shared->ids, 1, join_or_fail, NULL));
  check_texts(begin);
  ck_assert(settles_at(open_fds, fds));
}

/* A setting that is wrong on one host fails all ranks at once. */
TEST(no_such_interface) {
  part p = {.rank = FAILING, .interface = "=none0"};
  shared->nids = 1;
  hold_id(&shared->ids[0]);
  pid_t waits = start(0, NULL);
  ck_assert(await_count(&shared->joining, 1));
  ck_assert_int_eq(end_process(start_process(process_rank, &p)), 0);
  ck_assert_int_eq(end_process(waits), 0);
  ck_assert_int_eq(shared->status[FAILING], HK_ERR_USAGE);
  ck_assert_int_eq(shared->status[0], HK_ERR_REMOTE);
  ck_assert_ptr_ne(strstr(shared->text[0], "rank 2 of 4 failed: no network interface is left by NCCL_SOCKET_IFNAME"),
                   NULL);
}

/* No process holds the root: the failing rank does not wait for long. */
TEST(no_root) {
  uint64_t begin = hk_now_ns();
  pid_t root = hold_id(&shared->ids[0]);
  shared->nids = 1;
  kill(root, SIGKILL);
  end_process(root);
  give_up();
  ck_assert_uint_lt(hk_now_ns() - begin, SLOW_S * 1000000000ull);
}

int main(void) { return suite_main("excuse", .setup = setup, .timeout = 120); }
