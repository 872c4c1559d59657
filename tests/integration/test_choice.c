/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime does with selection: estimates without running, channels that the configuration asks for. */
#include <check.h>
#include <hocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../support/ranks.h"
#include "../support/suite.h"

#define WANT(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, ncclGetLastError(NULL));             \
      faults++;                                                                                                        \
    }                                                                                                                  \
  } while (0)

static float estimate(ncclComm_t c, float *data, size_t count, int calls) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int faults = RANK_CHECK(ncclGroupStart());
  for (int i = 0; i < calls; i++) faults += RANK_CHECK(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, c, NULL));
  faults += RANK_CHECK(ncclGroupSimulateEnd(&info));
  return faults ? -1 : info.estimatedTime;
}

static int estimates(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int faults = 0;
  enum { COUNT = 1 << 18 };
  float *data = malloc(COUNT * sizeof *data);
  for (int i = 0; i < COUNT; i++) data[i] = (float)rank;
  float small = estimate(c, data, 2, 1), large = estimate(c, data, COUNT, 1), twice = estimate(c, data, COUNT, 2);
  WANT(small > 0 && large > 10 * small);
  WANT(twice > 1.9f * large && twice < 2.1f * large);
  for (int i = 0; i < COUNT; i++) WANT(data[i] == (float)rank); /* nothing ran */
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int peer = (rank + 1) % n, from = (rank + n - 1) % n;
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclSend(data, COUNT, ncclFloat32, peer, c, NULL));
  faults += RANK_CHECK(ncclRecv(data, COUNT, ncclFloat32, from, c, NULL));
  faults += RANK_CHECK(ncclGroupSimulateEnd(&info));
  WANT(info.estimatedTime > small);
  /* An empty group, and no place for the result. */
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclGroupSimulateEnd(&info));
  WANT(info.estimatedTime == 0);
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclGroupSimulateEnd(NULL));
  /* It still works for real. */
  faults += RANK_CHECK(ncclAllReduce(data, data, COUNT, ncclFloat32, ncclSum, c, NULL));
  WANT(data[COUNT - 1] == (float)(n * (n - 1) / 2));
  free(data);
  return faults;
}

START_TEST(simulates_groups) { ck_assert_int_eq(ranks_as_threads(4, estimates, NULL), 0); }
END_TEST

static int refusals(ncclComm_t c, int rank, int n, void *arg) {
  (void)rank, (void)n, (void)arg;
  int faults = 0;
  float x = 1;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "no group is open"));
  info.magic = 7;
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidArgument &&
       strstr(ncclGetLastError(NULL), "NCCL_SIM_INFO_INITIALIZER"));
  info = (ncclSimInfo_t)NCCL_SIM_INFO_INITIALIZER;
  faults += RANK_CHECK(ncclGroupStart());
  WANT(ncclAllReduce(&x, &x, 1, (ncclDataType_t)99, ncclSum, c, NULL) == ncclInvalidArgument);
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidArgument);
  WANT(info.estimatedTime == NCCL_UNDEF_FLOAT);
  faults += RANK_CHECK(ncclGroupStart());
  faults += RANK_CHECK(ncclGroupStart());
  WANT(ncclGroupSimulateEnd(&info) == ncclInvalidUsage && strstr(ncclGetLastError(NULL), "inside another"));
  WANT(ncclGroupEnd() == ncclInvalidUsage);
  WANT(x == 1);
  return faults;
}

START_TEST(refuses) { ck_assert_int_eq(ranks_as_threads(2, refusals, NULL), 0); }
END_TEST

/* The same sizes again and again: the plans are found again. */
static int alternates(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  int faults = 0;
  static const size_t counts[] = {1, 3000, 1 << 17, 17};
  float *data = calloc(1 << 17, sizeof *data);
  for (int round = 0; round < 50 && !faults; round++) {
    size_t count = counts[round % 4];
    for (size_t i = 0; i < count; i++) data[i] = (float)(rank + round);
    faults += RANK_CHECK(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, c, NULL));
    float want = (float)(n * (n - 1) / 2 + n * round);
    WANT(data[0] == want && data[count - 1] == want);
  }
  free(data);
  return faults;
}

START_TEST(alternating_sizes) { ck_assert_int_eq(ranks_as_threads(3, alternates, NULL), 0); }
END_TEST

START_TEST(several_channels) {
  setenv("NCCL_MIN_NCHANNELS", _i % 2 ? "4" : "2", 1);
  if (_i > 1) setenv("NCCL_ALGO", _i == 2 ? "ring" : "tree,direct", 1);
  ck_assert_int_eq(ranks_as_threads(4, alternates, NULL), 0);
}
END_TEST

START_TEST(wrong_settings_end_the_init) {
  setenv("NCCL_ALGO", "rnig", 1);
  ncclComm_t c = NULL;
  ncclUniqueId id;
  ck_assert_int_eq(ncclGetUniqueId(&id), ncclSuccess);
  ck_assert_int_eq(ncclCommInitRank(&c, 1, id, 0), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "\"rnig\" is no algorithm"));
  ck_assert_ptr_null(c);
}
END_TEST

int main(void) {
  TCase *t = tcase_create("choice");
  setenv("HOCKET_TUNE_FILE", "none", 1);
  tcase_set_timeout(t, 60);
  tcase_add_test(t, simulates_groups);
  tcase_add_test(t, refuses);
  tcase_add_test(t, alternating_sizes);
  tcase_add_loop_test(t, several_channels, 0, 4);
  tcase_add_test(t, wrong_settings_end_the_init);
  return suite_run_one("choice", t);
}
