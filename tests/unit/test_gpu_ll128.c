/* SPDX-License-Identifier: Apache-2.0 */
/* LL128 in the GPU executor, on POSIX threads: lines of eight threads that are seen whole.  Sizes round the ends of
 * lines and pairs, odd alignments, messages that do not fit the lines, numbers that come round, abort. test_gpu_matrix
 * has types, operators and calls that do not match.
 * check: fast timeout=300 long=asan,tsan */
#define GPU_WARP 16
#include "../support/gpu_ranks.h"
#include "../support/suite.h"

/* One float, the ends of the first line (28, 30 with its pair's half vector), of a pair (60), of a warp's pairs. */
static const size_t counts[] = {1, 27, 28, 29, 31, 57, 60, 61, 119, 121, 600, 2500};

#ifdef __SANITIZE_THREAD__
enum { SIZE_STEP = 2 }; /* the ends of lines are no matter of threads */
#else
enum { SIZE_STEP = 1 };
#endif

TEST_LOOP(allreduce, 2) {
  static const char *names[] = {"ring", "tree"};
  const hk_algorithm *a = hk_algorithm_by_name(names[_i]);
  for (int n = 2; n <= 3; n++) {
    if (!usable(a, HK_ALLREDUCE, n)) continue;
    job *j = open_job(a, HK_ALLREDUCE, n, 1, 0);
    for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i += n == 3 ? 2 : SIZE_STEP) { /* three ranks: a long test */
      j->chunk = i % 3 == 2 ? SLOT_BYTES : 2048; /* more than the lines carry, which goes as with Simple; or not */
      set_call(j, counts[i], HK_F32, HK_SUM, HK_PROTO_LL128, i % 5 == 4 ? 4 : 0);
      fill_f32(j, counts[i]);
      run_all(j);
      ck_assert_uint_eq(j->state.error, 0);
      check_sum_f32(j, counts[i]);
    }
  }
}

/* Bytes, at every offset from 16. */
TEST_LOOP(copies, 3) {
  static const hk_coll colls[] = {HK_BROADCAST, HK_ALLGATHER, HK_ALLTOALL};
  static const char *names[] = {"chain", "ring", "pairwise"};
  const int n = 3;
  job *j = open_job(hk_algorithm_by_name(names[_i]), colls[_i], n, 1, 0);
  for (size_t offset = 0; offset < 16; offset += 3) {
    size_t count = 100 + 43 * offset;
    set_call(j, count, HK_U8, HK_SUM, HK_PROTO_LL128, offset);
    run_all(j);
    check_copied(j, count, n - 1, names[_i]);
  }
}

/* Slots with and without lines take turns; the flags' 32 bits come round, and old lines are not taken for new ones. */
TEST_LOOP(numbers_come_round, 2) {
  static const uint64_t begins[] = {0x3ffffffe, 0xfffffffe};
  static const uint32_t protos[] = {HK_PROTO_LL128, HK_PROTO_LL128,  HK_PROTO_LL,
                                    HK_PROTO_LL128, HK_PROTO_SIMPLE, HK_PROTO_LL128};
  job *j = open_job(hk_algorithm_by_name("ring"), HK_ALLREDUCE, 3, 1, begins[_i]);
  age_lines((uint32_t)begins[_i] + 6, 600 * sizeof(float) / 3);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(protos); i++) {
    size_t count = i ? 600 : 3; /* the first ones fill little of their slots */
    set_call(j, count, HK_F32, HK_SUM, protos[i], 0);
    fill_f32(j, count);
    run_all(j);
    check_sum_f32(j, count);
  }
}

TEST_LOOP(abort_ends_it_at_once, 2) { check_aborted(_i ? HK_REDUCE : HK_BROADCAST, HK_PROTO_LL128); }

int main(void) { return suite_main("gpu_ll128", .timeout = 200, .teardown = close_job); }
