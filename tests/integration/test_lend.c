/* SPDX-License-Identifier: Apache-2.0 */
/* Children that use their parent's service thread (splitShare, shrinkShare), on host memory: each communicator may end
 * first, by whatever end.  GPUs: test_gpu_lend. */
#include "../../src/core/comm.h"
#include "../support/boot_ranks.h"
#include "../support/ranks.h"
#include "../support/suite.h"

#define OK(call) ck_assert_int_eq(rank_check_at((call), #call, __FILE__, __LINE__), 0)
enum { N = 3 };

/* All ranks of a child have their parent's thread, or none has. */
static bool lent(ncclComm_t *c, ncclComm_t *kid, int n) {
  int same = 0;
  for (int r = 0; r < n; r++) same += kid[r]->service == c[r]->service;
  ck_assert(same == 0 || same == n);
  return same == n;
}

static void init(ncclComm_t *c, int split, int shrink) {
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = split;
  config.shrinkShare = shrink;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclCommInitRankConfig(&c[r], N, id, r, &config));
  OK(ncclGroupEnd());
}

static void split(ncclComm_t *c, ncclComm_t *kid) {
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclCommSplit(c[r], 0, r, &kid[r], NULL));
  OK(ncclGroupEnd());
}

static void destroy(ncclComm_t *c, int n) {
  for (int r = 0; r < n; r++) OK(ncclCommDestroy(c[r]));
}

TEST_LOOP(one_thread, 4) {
  static const struct { int lends, parent_first, sockets; } cases[] = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}};
  ncclComm_t c[N], kid[N], grandkid[N];
  if (cases[_i].sockets) setenv("NCCL_SHM_DISABLE", "1", 1);
  init(c, cases[_i].lends, 0);
  split(c, kid);
  split(kid, grandkid); /* the setting is inherited */
  ck_assert_int_eq(lent(c, kid, N), cases[_i].lends);
  ck_assert_int_eq(lent(kid, grandkid, N), cases[_i].lends);
  ck_assert_int_eq(ranks_work(c, N), 0);
  ck_assert_int_eq(ranks_work(kid, N), 0);
  ck_assert_int_eq(ranks_work(grandkid, N), 0);
  destroy(cases[_i].parent_first ? c : grandkid, N);
  ck_assert_int_eq(ranks_work(kid, N), 0);
  destroy(kid, N);
  ck_assert_int_eq(ranks_work(cases[_i].parent_first ? grandkid : c, N), 0);
  destroy(cases[_i].parent_first ? grandkid : c, N);
}

/* A child's end by an abort reaches its other ranks over the thread that the parent goes on with. */
TEST(aborted) {
  int last = N - 1;
  ncclComm_t c[N], kid[N], rest[N];
  ncclResult_t state = ncclSuccess;
  init(c, 1, 1);
  split(c, kid);
  OK(ncclCommAbort(kid[0]));
  while (ncclCommGetAsyncError(kid[1], &state) == ncclSuccess && state == ncclSuccess) usleep(200);
  ck_assert_int_eq(state, ncclRemoteError);
  for (int r = 1; r < N; r++) OK(ncclCommAbort(kid[r]));
  ck_assert_int_eq(ranks_work(c, N), 0);
  OK(ncclGroupStart());
  for (int r = 0; r < last; r++) OK(ncclCommShrink(c[r], &last, 1, &rest[r], NULL, 0));
  OK(ncclGroupEnd());
  ck_assert(lent(c, rest, last));
  for (int r = 0; r < N; r++) OK(ncclCommAbort(c[r]));
  ck_assert_int_eq(ranks_work(rest, last), 0);
  destroy(rest, last);
}

/* The parent is gone, and the child notices a dead rank. */
static int one_process(int rank, const ncclUniqueId *id, _Atomic(int) *done) {
  int faults = 0;
  float b = 1;
  ncclComm_t c, kid;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 1;
  faults += RANK_CHECK(ncclCommInitRankConfig(&c, N, *id, rank, &config));
  faults += RANK_CHECK(ncclCommSplit(c, 0, rank, &kid, NULL));
  faults += RANK_IS(kid->service == c->service);
  faults += RANK_CHECK(ncclAllReduce(&b, &b, 1, ncclFloat32, ncclSum, kid, NULL));
  faults += RANK_CHECK(ncclCommDestroy(c));
  atomic_fetch_add(done, 1);
  if (rank == N - 1) _exit(faults + !await_count(done, N));
  faults += RANK_IS(ncclAllReduce(&b, &b, 1, ncclFloat32, ncclSum, kid, NULL) == ncclRemoteError);
  faults += RANK_CHECK(ncclCommAbort(kid));
  return faults;
}

TEST(killed) {
  int ends[2], status;
  pid_t pids[N];
  _Atomic(int) *done = shared_memory(sizeof *done);
  ck_assert_int_eq(pipe(ends), 0);
  fflush(NULL);
  for (int r = 0; r < N; r++) {
    pids[r] = fork();
    if (pids[r]) continue;
    ncclUniqueId id;
    _exit(ranks_share_id(ends, r, N, &id) ? 9 : one_process(r, &id, done));
  }
  close(ends[0]);
  close(ends[1]);
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    ck_assert_int_eq(status, 0);
  }
}

int main(void) { return suite_main("lend", .timeout = 60); }
