/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What a communicator counts (src/base/meter.h): classes of sizes, samples that stand for other calls, long waits, and
 * the time since the last operation. */
#include <nccl.h>
#include "../../src/base/meter.h"
#include "../../src/core/comm.h"
#include "../../src/program/program.h"
#include "../support/suite.h"

TEST(classes) {
  static const struct {
    uint64_t bytes;
    unsigned k;
  } rows[] = {{0, 0},           {1, 0},          {64, 0},   {65, 1},      {256, 1},           {257, 2},
              {1024, 2},        {1025, 3},       {4096, 3}, {1 << 20, 7}, {(1 << 20) + 1, 8}, {1u << 30, 12},
              {1ull << 31, 13}, {UINT64_MAX, 13}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) ck_assert_uint_eq(hk_meter_class(rows[i].bytes), rows[i].k);
}

/* Each call takes 100 ns: so the estimate is exact up to the newest sample, and samples become rare. */
TEST(samples) {
  hk_meter *m = hk_meter_new();
  hk_meter_cell *c = hk_meter_at(m, 3, 8);
  hk_meter_value v[HK_METER_VALUES];
  uint64_t now = 1000;
  int samples = 0;
  for (int i = 0; i < 1000; i++) {
    now += 100;
    if (!hk_meter_count(c, 8)) continue;
    samples++;
    ck_assert_int_gt(i, 0); /* the first call is no sample */
    hk_meter_sampled(m, c, 100, now);
  }
  ck_assert_int_ge(samples, 1000 / HK_METER_SAMPLE);
  ck_assert_int_le(samples, 1000 / HK_METER_SAMPLE + 7);
  ck_assert_int_eq(hk_meter_read(m, v), 1);
  ck_assert_uint_eq(v[0].kind, 3);
  ck_assert_uint_eq(v[0].size_class, 0);
  ck_assert_uint_eq(v[0].calls, 1000);
  ck_assert_uint_eq(v[0].bytes, 8000);
  ck_assert_uint_gt(v[0].ns, 100 * (1000 - HK_METER_SAMPLE));
  ck_assert_uint_le(v[0].ns, 100 * 1000);
  ck_assert_uint_eq(hk_meter_calls(m, 3), 1000);
  ck_assert_uint_eq(hk_meter_calls(m, 2), 0);
  hk_meter_free(m);
}

/* A long call counts once, and not for its neighbours. */
TEST(waits) {
  hk_meter *m = hk_meter_new();
  hk_meter_cell *c = hk_meter_at(m, 0, 1 << 20);
  hk_meter_value v[HK_METER_VALUES];
  for (int i = 1; i <= 64; i++) {
    const bool sample = hk_meter_count(c, 1 << 20);
    if (i == 50)
      hk_meter_timed(m, c, 1000000000, 5);
    else if (sample)
      hk_meter_sampled(m, c, 10, 6);
  }
  ck_assert_int_eq(hk_meter_read(m, v), 1);
  ck_assert_uint_eq(v[0].size_class, 7);
  ck_assert_uint_eq(v[0].ns, 1000000000 + 63 * 10);
  hk_meter_free(m);
}

/* Without times, the last operation was after the last question that saw fewer of them. */
TEST(idle) {
  hk_meter *m = hk_meter_new();
  ck_assert_uint_eq(hk_meter_idle_ns(m, 50), UINT64_MAX);
  hk_meter_cell *c = hk_meter_at(m, 1, 8);
  ck_assert(!hk_meter_count(c, 8));
  hk_meter_timed(m, c, 10, 100);
  ck_assert_uint_eq(hk_meter_idle_ns(m, 1100), 1000);
  ck_assert_uint_eq(hk_meter_idle_ns(m, 1200), 1100);
  (void)hk_meter_count(c, 8);
  ck_assert_uint_eq(hk_meter_idle_ns(m, 1300), 0);
  ck_assert_uint_eq(hk_meter_idle_ns(m, 1400), 100);
  hk_meter_timed(m, c, 10, 1390);
  ck_assert_uint_eq(hk_meter_idle_ns(m, 1400), 10);
  ck_assert_uint_eq(hk_meter_idle_ns(m, 1380), 0); /* another thread's clock reading is newer */
  hk_meter_free(m);
}

/* The library counts its calls: by collective and size, and sends and receives. */
TEST(calls) {
  float in[4096] = {1}, out[4096];
  hk_meter_value v[HK_METER_VALUES];
  ncclComm_t c;
  ck_assert_int_eq(ncclCommInitAll(&c, 1, (int[]){0}), ncclSuccess);
  for (int i = 0; i < 10; i++) ck_assert_int_eq(ncclAllReduce(in, out, 4, ncclFloat, ncclSum, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(in, out, 4096, ncclFloat, ncclSum, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclBroadcast(in, out, 100, ncclInt8, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclSend(in, 2, ncclFloat, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclRecv(out, 2, ncclFloat, 0, c, NULL), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  static const hk_meter_value want[] = {{HK_ALLREDUCE, 0, 10, 160, 1},
                                        {HK_ALLREDUCE, 4, 1, 16384, 0},
                                        {HK_BROADCAST, 1, 1, 100, 1},
                                        {HK_COLL_COUNT, 0, 1, 8, 0},
                                        {HK_COLL_COUNT + 1, 0, 1, 8, 0}};
  ck_assert_int_eq(hk_meter_read(c->order.meter, v), (int)HK_ARRAY_LENGTH(want));
  for (size_t i = 0; i < HK_ARRAY_LENGTH(want); i++) {
    ck_assert_uint_eq(v[i].kind, want[i].kind);
    ck_assert_uint_eq(v[i].size_class, want[i].size_class);
    ck_assert_uint_eq(v[i].calls, want[i].calls);
    ck_assert_uint_eq(v[i].bytes, want[i].bytes);
    ck_assert_int_eq(v[i].ns > 0, want[i].ns > 0); /* a group is timed, and the tenth call is past a sample */
  }
  ck_assert_int_eq(ncclCommDestroy(c), ncclSuccess);
}

int main(void) { return suite_main("meter"); }
