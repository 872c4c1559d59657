/* SPDX-License-Identifier: Apache-2.0 */
/* The API beyond data: many communicators in one thread, children, nonblocking communicators. */
#include <hocket.h>
#include <pthread.h>
#include "../support/ranks.h"
#include "../support/suite.h"

#define EXPECT(call, code, text)                                                                                       \
  do {                                                                                                                 \
    ncclResult_t got_ = (call);                                                                                        \
    if (got_ != (code) || !strstr(ncclGetLastError(NULL), text)) {                                                     \
      fprintf(stderr, "%s:%d: %s gave %d (%s), not %d (...%s...)\n", __FILE__, __LINE__, #call, got_,                  \
              ncclGetLastError(NULL), code, text);                                                                     \
      faults++;                                                                                                        \
    }                                                                                                                  \
  } while (0)

/* Configurations of older clients: fields beyond their version are ignored, whatever they hold. */
TEST(old_configs) {
  ncclUniqueId id;
  ncclComm_t c = NULL;
  static const struct {
    unsigned version;
    size_t size;
  } old[] = {{21403, 24}, {21700, 40}, {21800, 48}, {22605, 48},  {22700, 72},  {22809, 80},
             {22900, 88}, {23000, 96}, {23007, 96}, {23102, 112}, {23203, 120}, {23500, 160}};
  for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
    struct {
      ncclConfig_t config;
      char newer[64];
    } given;
    ncclConfig_t good = NCCL_CONFIG_INITIALIZER;
    memset(&given, 0x7b, sizeof given);
    memcpy(&given.config, &good, old[i].size < sizeof good ? old[i].size : sizeof good);
    given.config.size = old[i].size;
    given.config.version = old[i].version;
    ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
    ck_assert_int_eq(ncclCommInitRankConfig(&c, 1, id, 0, &given.config), ncclSuccess);
    ck_assert_int_eq(rank_works(c, 1), 0);
    ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
  }
}

TEST(use_after_free) {
  ncclComm_t c;
  int faults = 0;
  float b = 1;
  ck_assert_int_eq(ncclCommInitAll(&c, 1, NULL), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
  EXPECT(ncclAllReduce(&b, &b, 1, ncclFloat32, ncclSum, c, NULL), ncclInvalidArgument, "freed already");
  EXPECT(ncclCommDestroy(c), ncclInvalidArgument, "freed already");
  ck_assert_int_eq(faults, 0);
}

/* All ranks of several communicators in one thread. */
TEST(one_thread) {
  enum { N = 8, M = 3 };
  ncclComm_t c[M][N];
  float in[M][N][4], out[M][N][4], p2p[N][N], got[N][N];
  for (int m = 0; m < M; m++) ck_assert_int_eq(ncclCommInitAll(c[m], N, NULL), ncclSuccess);
  for (int round = 0; round < 20; round++) {
    ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < N; r++) {
      for (int m = 0; m < M; m++) {
        for (int i = 0; i < 4; i++) in[m][r][i] = (float)(r + m + i);
        ck_assert_int_eq(ncclAllReduce(in[m][r], out[m][r], 4, ncclFloat32, ncclSum, c[m][r], NULL), ncclSuccess);
      }
      for (int p = 0; p < N; p++) { /* self-sends included */
        p2p[r][p] = (float)(100 * r + p + round);
        got[r][p] = -1;
        ck_assert_int_eq(ncclSend(&p2p[r][p], 1, ncclFloat32, p, c[0][r], NULL), ncclSuccess);
        ck_assert_int_eq(ncclRecv(&got[r][p], 1, ncclFloat32, p, c[0][r], NULL), ncclSuccess);
      }
      ck_assert_int_eq(ncclAllReduce(out[0][r], in[0][r], 4, ncclFloat32, ncclMax, c[0][r], NULL), ncclSuccess);
    }
    ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
    for (int r = 0; r < N; r++) {
      for (int m = 0; m < M; m++)
        for (int i = 0; i < 4; i++) ck_assert_float_eq(out[m][r][i], (float)(N * (N - 1) / 2 + N * (m + i)));
      for (int i = 0; i < 4; i++) ck_assert_float_eq(in[0][r][i], out[0][r][i]);
      for (int p = 0; p < N; p++) ck_assert_float_eq(got[r][p], (float)(100 * p + r + round));
    }
  }
  for (int m = 0; m < M; m++)
    for (int r = 0; r < N; r++) ck_assert_int_eq(ncclCommDestroy(c[m][r]), ncclSuccess);
}

/* Several sends to one peer in a group keep their order; empty ones count. */
static int ordered_transfers(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  enum { K = 40 };
  static const size_t counts[] = {0, 1, 5, 5000, 0, 70000, 13};
  int faults = 0, to = (rank + 1) % n, from = (rank + n - 1) % n;
  int *in[K], *out[K];
  faults += RANK_CHECK(ncclGroupStart());
  for (int k = 0; k < K; k++) {
    size_t count = counts[k % 7];
    in[k] = malloc((count + 1) * sizeof(int));
    out[k] = calloc(count + 1, sizeof(int));
    for (size_t i = 0; i < count; i++) in[k][i] = rank * 1000000 + k * 10000 + (int)i;
    faults += RANK_CHECK(ncclSend(in[k], count, ncclInt32, to, c, NULL));
    faults += RANK_CHECK(ncclRecv(out[k], count, ncclInt32, from, c, NULL));
  }
  faults += RANK_CHECK(ncclGroupEnd());
  for (int k = 0; k < K; k++) {
    for (size_t i = 0; i < counts[k % 7] && !faults; i++)
      if (out[k][i] != from * 1000000 + k * 10000 + (int)i) faults++;
    free(in[k]);
    free(out[k]);
  }
  return faults;
}

TEST(transfers) {
  ck_assert_int_eq(ranks_as_processes(2, ordered_transfers, NULL), 0);
  ck_assert_int_eq(ranks_as_threads(3, ordered_transfers, NULL), 0);
}

static int split(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int faults = 0, got;
  ncclComm_t half = NULL, none = (ncclComm_t)(void *)&got, again = NULL;
  faults += RANK_CHECK(ncclCommSplit(c, rank % 2, -rank, &half, NULL)); /* keys turn the order round */
  int size = rank % 2 ? n / 2 : (n + 1) / 2;
  faults += RANK_CHECK(ncclCommCount(half, &got));
  if (got != size) faults++;
  faults += RANK_CHECK(ncclCommUserRank(half, &got));
  if (got != size - 1 - rank / 2) faults++;
  faults += rank_works(half, size);
  faults += RANK_CHECK(ncclCommSplit(c, rank == 0 ? NCCL_SPLIT_NOCOLOR : 3, 0, &none, NULL));
  if (rank == 0 ? none != NULL : none == NULL) faults++;
  if (none) faults += rank_works(none, n - 1);
  faults += RANK_CHECK(ncclCommSplit(half, 0, 0, &again, NULL));
  faults += rank_works(again, size);
  faults += rank_works(c, n);
  if (none) faults += RANK_CHECK(ncclCommDestroy(none));
  faults += RANK_CHECK(ncclCommDestroy(half));
  faults += rank_works(again, size); /* a child outlives its parent */
  return faults + RANK_CHECK(ncclCommDestroy(again));
}

static int shrink(ncclComm_t c, int rank, int n, void *arg) {
  int flags = *(int *)arg, faults = 0, out[2] = {1, n - 1}, got;
  ncclComm_t smaller = NULL;
  if (rank == 1 || rank == n - 1) return 0;
  faults += RANK_CHECK(ncclCommShrink(c, out, 2, &smaller, NULL, flags));
  if (faults) return faults;
  faults += RANK_CHECK(ncclCommCount(smaller, &got));
  if (got != n - 2) faults++;
  faults += rank_works(smaller, n - 2);
  return faults + RANK_CHECK(ncclCommDestroy(smaller));
}

TEST(children) {
  int plain = NCCL_SHRINK_DEFAULT, ending = NCCL_SHRINK_ABORT;
  ck_assert_int_eq(ranks_as_processes(4, split, NULL), 0);
  ck_assert_int_eq(ranks_as_processes(4, shrink, &plain), 0);
  ck_assert_int_eq(ranks_as_threads(5, split, NULL), 0);
  ck_assert_int_eq(ranks_as_threads(5, shrink, &plain), 0);
  ck_assert_int_eq(ranks_as_threads(5, shrink, &ending), 0);
}

static ncclResult_t settle(ncclComm_t c) {
  ncclResult_t state = ncclInProgress;
  while (ncclCommGetAsyncError(c, &state) == ncclSuccess && state == ncclInProgress) usleep(100);
  return state;
}

TEST(nonblocking) {
  enum { N = 4 };
  ncclComm_t c[N], child[N];
  ncclUniqueId id;
  float b[N];
  int faults = 0;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  for (int r = 0; r < N; r++) { /* one after the other, in one thread: a blocking init would never return */
    ck_assert_int_eq(ncclCommInitRankConfig(&c[r], N, id, r, &config), ncclInProgress);
    if (r == 0) EXPECT(ncclAllReduce(b, b, 1, ncclFloat32, ncclSum, c[0], NULL), ncclInvalidUsage, "not finished");
  }
  for (int r = 0; r < N; r++) ck_assert_int_eq(settle(c[r]), ncclSuccess);
  for (int r = 0; r < N; r++)
    ck_assert_int_eq(ncclCommSplit(c[r], r < 3 ? 0 : NCCL_SPLIT_NOCOLOR, r, &child[r], NULL), ncclInProgress);
  for (int r = 0; r < 3; r++) ck_assert_int_eq(settle(child[r]), ncclSuccess);
  ck_assert_ptr_null(child[3]);
  ck_assert_int_eq(ranks_work(child, 3), 0);
  for (int r = 0; r < 3; r++) ck_assert_int_eq(ncclCommDestroy(child[r]), ncclSuccess);
  for (int r = 0; r < N; r++) ck_assert_int_eq(ncclCommDestroy(c[r]), ncclSuccess);
  ck_assert_int_eq(faults, 0);
}

int main(void) { return suite_main("api", .timeout = 60); }
