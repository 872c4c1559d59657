/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised allreduce: the error is below its bound for whatever numbers, all ranks get the same bits, what has no
 * quantised form is refused, and ranks that do not ask for the same are told.
 * check: fast timeout=120 long=asan */
#include <float.h>
#include <hocket.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/kernels/host/kernels.h"
#include "../../src/program/quantised.h"
#include "../support/invariant_data.h"
#include "../support/suite.h"

enum { AWAY = HK_QUANTISED_BLOCK - 1, MOST = 300000 };

typedef enum kind { SMALL, WIDE, ZEROS, SUBNORMAL, LARGE, ODD, ONE_LARGE, KINDS } kind;

typedef struct job {
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t most;  /* the largest count */
  bool by_name; /* hocketAllReduceQuantised, not hocketCommSetQuantised */
} job;

static double largest(ncclDataType_t t) { return t == ncclFloat16 ? 65504 : (double)FLT_MAX; }
static double smallest(ncclDataType_t t) { return t == ncclFloat16 ? 0x1p-24 : 0x1p-149; }

/* float16 and bfloat16 with their subnormals, infinities and NaN, which test_store does not have. */
static void put(ncclDataType_t type, void *at, size_t i, double v) {
  const double mag = fabs(v);
  const float f = (float)v;
  uint32_t bits;
  if (type == ncclFloat32) {
    test_store(type, at, i, v);
    return;
  }
  memcpy(&bits, &f, 4);
  if (type == ncclBfloat16) {
    bits = isnan(v) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  } else {
    const int e = mag >= 0x1p-14 && isfinite(v) ? ilogb(mag) : -14;
    bits = isnan(v) ? 0x7e00 : mag >= 65520 ? 0x7c00 : (uint32_t)(rint(ldexp(mag, 10 - e)) + (e + 14) * 1024);
    bits |= signbit(v) ? 0x8000 : 0;
  }
  memcpy((char *)at + 2 * i, &(uint16_t){(uint16_t)bits}, 2);
}

static double get(ncclDataType_t type, const void *at, size_t i) {
  uint16_t bits;
  float f;
  if (type == ncclFloat32) return test_load(type, at, i);
  memcpy(&bits, (const char *)at + 2 * i, 2);
  memcpy(&f, &(uint32_t){(uint32_t)bits << 16}, 4);
  if (type == ncclBfloat16) return (double)f;
  const int e = bits >> 10 & 31, man = bits & 1023;
  const double mag = e == 31 ? (man ? (double)NAN : (double)INFINITY) : ldexp(man + (e ? 1024 : 0), (e ? e : 1) - 25);
  return bits >> 15 ? -mag : mag;
}

/* Rank's element i, before it is rounded to the type. */
static double value_of(const job *j, kind k, int rank, int n, size_t i) {
  const uint64_t h = invariant_hash((uint64_t)(rank + 1) << 40 | (uint64_t)k << 32 | i);
  const double unit = ((double)(h >> 11) * 0x1p-53 - 0.5) * 2;
  switch (k) {
    case SMALL: return unit;
    case WIDE: return ldexp(unit, (int)(h % 41) - 20 - (j->type == ncclFloat16 ? 6 : 0));
    case ZEROS: return 0;
    case SUBNORMAL: return unit * smallest(j->type) * 1000;
    case LARGE: return unit * largest(j->type) / n * 0.9;
    case ODD: return h % 50 == 0 ? NAN : h % 50 == 1 ? INFINITY : h % 50 == 2 ? -INFINITY : unit;
    case ONE_LARGE: return i % 97 == 41 ? largest(j->type) / n * 0.9 : unit * 1e-3;
    default: return 1;
  }
}

/* The inputs of all ranks as the type has them. */
static double *all_inputs(const job *j, kind k, int n, size_t count) {
  double *x = malloc((size_t)n * count * sizeof *x);
  for (int r = 0; r < n; r++)
    for (size_t i = 0; i < count; i++) {
      double cell;
      put(j->type, &cell, 0, value_of(j, k, r, n, i));
      x[(size_t)r * count + i] = get(j->type, &cell, 0);
    }
  return x;
}

/* The largest finite magnitude near element i. */
static double near_most(const double *x, size_t count, size_t i) {
  double most = 0;
  const size_t first = i < AWAY ? 0 : i - AWAY, last = i + AWAY < count ? i + AWAY : count - 1;
  for (size_t k = first; k <= last; k++)
    if (isfinite(x[k]) && fabs(x[k]) > most) most = fabs(x[k]);
  return most;
}

/* Counts the elements that are wrong; *rounded: of those that are right, how many are not exact. */
static int check_result(const job *j, kind k, int n, size_t count, const void *got, size_t *rounded) {
  double *x = all_inputs(j, k, n, count);
  const double share = j->op == ncclAvg ? 1.0 / n : 1, least = j->type == ncclFloat16 ? 6e-8 : 1.2e-38;
  const size_t step = count > 5000 ? 37 : 1; /* not all neighbours of all elements */
  int faults = 0;
  for (size_t i = 0; i < count && faults < 3; i += step) {
    double sum = 0, most = 0, magnitude = 0;
    for (int r = 0; r < n; r++) {
      const double *mine = x + (size_t)r * count;
      sum += mine[i];
      magnitude += isfinite(mine[i]) ? fabs(mine[i]) : 0;
      most += near_most(mine, count, i);
    }
    const double is = get(j->type, got, i), want = sum * share;
    const double limit = share * (most * HK_QUANTISED_ERROR + (n + 1) * least + magnitude * n * 0x1p-23);
    const bool fine = isnan(want) ? isnan(is) : isinf(want) ? is == want : fabs(is - want) <= limit;
    *rounded += fine && isfinite(want) && fabs(is - want) > 1e-5 * fabs(want);
    if (fine) continue;
    fprintf(stderr, "type %d, op %d, kind %d, %d ranks: element %zu of %zu is %g, not %g within %g\n", (int)j->type,
            (int)j->op, (int)k, n, i, count, is, want, limit);
    faults++;
  }
  free(x);
  return faults;
}

static uint64_t hash_of(const void *data, size_t bytes) {
  const unsigned char *p = data;
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
  return h;
}

static int check_equal(ncclComm_t c, int n, const void *data, size_t bytes) {
  uint64_t mine = hash_of(data, bytes), all[64];
  int faults = RANK_CHECK(ncclAllGather(&mine, all, 1, ncclUint64, c, NULL));
  for (int r = 0; r < n && !faults; r++) faults += RANK_IS(all[r] == mine);
  return faults;
}

static int run_call(ncclComm_t c, int rank, int n, const job *j, kind k, size_t count, bool in_place) {
  const size_t unit = test_type_bytes(j->type), bytes = count * unit;
  char *in = malloc(bytes + unit), *other = malloc(bytes + unit), *out = in_place ? in : other;
  size_t rounded = 0;
  for (size_t i = 0; i < count; i++) put(j->type, in, i, value_of(j, k, rank, n, i));
  memset(other, 0x5a, bytes + unit);
  memset(in + bytes, 0x5a, unit);
  int faults = j->by_name ? RANK_CHECK(hocketAllReduceQuantised(in, out, count, j->type, j->op, c, NULL))
                          : RANK_CHECK(ncclAllReduce(in, out, count, j->type, j->op, c, NULL));
  if (!faults) faults += check_equal(c, n, out, bytes);
  if (!faults && rank == 0) faults += check_result(j, k, n, count, out, &rounded);
  if (!faults && rank == 0 && k == SMALL && count >= 1000 && j->type == ncclFloat32)
    faults += RANK_IS(rounded > 10); /* it is not an ordinary sum */
  for (size_t i = 0; i < unit && !faults; i++) faults += RANK_IS(out[bytes + i] == 0x5a);
  free(in);
  free(other);
  return faults;
}

static int run_job(ncclComm_t c, int rank, int n, void *arg) {
  static const size_t counts[] = {1, 2, 31, 32, 33, 64, 97, 1000, 4111, 20000, MOST};
  const job *j = arg;
  int faults = 0;
  if (!j->by_name) faults += RANK_CHECK(hocketCommSetQuantised(c, 1));
  for (size_t i = 0; i < sizeof counts / sizeof *counts && !faults; i++)
    for (int k = 0; k < KINDS && !faults && counts[i] <= j->most; k++)
      faults += run_call(c, rank, n, j, (kind)k, counts[i], (i + (size_t)k) % 2);
  return faults;
}

static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16};
static const int worlds[] = {2, 3, 4, 8};
enum { TYPES = sizeof types / sizeof *types, WORLDS = sizeof worlds / sizeof *worlds };

static void through_sockets(void) {
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
}

TEST_LOOP(errors_are_below_the_bound, TYPES *WORLDS * 2) {
  job j = {.type = types[_i % TYPES], .op = _i / TYPES % 2 ? ncclAvg : ncclSum, .by_name = _i % 2};
  const int n = worlds[_i / TYPES % WORLDS];
  if (_i >= TYPES * WORLDS) through_sockets();
  j.most = SUITE_FEW(4) < 4 ? 1000 : n == 3 || n == 4 ? MOST : 20000;
  ck_assert_int_eq(ranks_as_threads(SUITE_FEW(n), run_job, &j), 0);
}

TEST(in_processes) {
  job j = {.type = ncclFloat32, .op = ncclSum, .most = 20000};
  ck_assert_int_eq(ranks_as_processes(3, run_job, &j), 0);
}

/* More ranks than one instruction adds up, so that partial sums are in scratch. */
TEST(many_ranks) {
  job j = {.type = ncclFloat32, .op = ncclAvg, .most = 4111, .by_name = true};
  ck_assert_int_eq(ranks_as_threads(SUITE_FEW(19), run_job, &j), 0);
}

/* Each algorithm that is asked for; if its links may not carry quantised values, something else runs. */
TEST(whatever_is_asked_for) {
  job j = {.type = ncclFloat32, .op = ncclSum, .most = 1000, .by_name = true};
  for (int a = 0; hk_algorithms[a]; a++)
    for (int n = 2; n <= SUITE_FEW(5); n++) {
      setenv("NCCL_ALGO", hk_algorithms[a]->name, 1);
      ck_assert_int_eq(ranks_as_threads(n, run_job, &j), 0);
    }
}

/* Every vector level gives the same bits. */
static int one_hash(ncclComm_t c, int rank, int n, void *arg) {
  uint64_t *hash = arg;
  job j = {.type = ncclBfloat16, .op = ncclSum};
  uint16_t data[3000];
  for (size_t i = 0; i < 3000; i++) put(j.type, data, i, value_of(&j, WIDE, rank, n, i));
  int faults = RANK_CHECK(hocketAllReduceQuantised(data, data, 3000, j.type, j.op, c, NULL));
  if (rank == 0) *hash = hash_of(data, sizeof data);
  return faults;
}

TEST(levels_agree) {
  static const char *const levels[] = {"sse2", "neon", "scalar", "avx2", "avx512"};
  uint64_t hash, first = 0;
  for (size_t k = 0; k < sizeof levels / sizeof *levels; k++) {
    if (!hk_simd_select(levels[k])) continue;
    ck_assert_int_eq(ranks_as_threads(3, one_hash, &hash), 0);
    if (!first) first = hash;
    ck_assert_uint_eq(hash, first);
  }
}

/* ---- groups and streams ---- */

static int grouped(ncclComm_t c, int rank, int n, void *arg) {
  enum { COUNT = 5000 };
  const job a = {.type = ncclFloat32, .op = ncclSum}, b = {.type = ncclFloat16, .op = ncclAvg};
  float *x = malloc(COUNT * sizeof *x), *exact = malloc(COUNT * sizeof *exact);
  uint16_t *y = malloc(COUNT * sizeof *y);
  hocketStream_t s = NULL;
  int faults = RANK_CHECK(hocketStreamCreate(&s));
  size_t rounded = 0;
  (void)arg;
  for (int k = 0; k < 6 && !faults; k++) {
    cudaStream_t on = k % 2 ? hocketStreamAsCuda(s) : NULL;
    for (size_t i = 0; i < COUNT; i++) {
      put(a.type, x, i, value_of(&a, SMALL, rank, n, i));
      put(b.type, y, i, value_of(&b, WIDE, rank, n, i));
      exact[i] = (float)(rank + 1);
    }
    faults += RANK_CHECK(ncclGroupStart());
    faults += RANK_CHECK(hocketAllReduceQuantised(x, x, COUNT, a.type, a.op, c, on));
    faults += RANK_CHECK(ncclAllReduce(exact, exact, COUNT, ncclFloat32, ncclSum, c, on));
    faults += RANK_CHECK(hocketAllReduceQuantised(y, y, COUNT, b.type, b.op, c, on));
    faults += RANK_CHECK(ncclGroupEnd());
    if (on) faults += RANK_CHECK(hocketStreamSynchronize(s));
    if (faults) break;
    faults += check_equal(c, n, x, COUNT * sizeof *x) + check_equal(c, n, y, COUNT * sizeof *y);
    faults += check_result(&a, SMALL, n, COUNT, x, &rounded) + check_result(&b, WIDE, n, COUNT, y, &rounded);
    for (size_t i = 0; i < COUNT && !faults; i++) faults += RANK_IS(exact[i] == (float)(n * (n + 1) / 2));
  }
  faults += RANK_CHECK(hocketStreamDestroy(s));
  free(x);
  free(y);
  free(exact);
  return faults;
}

TEST_LOOP(groups_and_streams, 2) {
  if (_i) through_sockets();
  ck_assert_int_eq(ranks_as_threads(3, grouped, NULL), 0);
}

/* ---- what is refused ---- */

static int refused(ncclComm_t c, int rank, int n, void *arg) {
  static const ncclDataType_t others[] = {ncclInt8, ncclInt32, ncclFloat64, ncclFloat8e4m3};
  static const ncclRedOp_t ops[] = {ncclProd, ncclMax, ncclMin};
  double cell = 0;
  float x = 1;
  int faults = 0;
  (void)arg;
  for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
    faults += RANK_IS(hocketAllReduceQuantised(&cell, &cell, 1, others[k], ncclSum, c, NULL) == ncclInvalidArgument);
    faults += RANK_IS(strstr(ncclGetLastError(c), "has no quantised form") != NULL);
  }
  for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
    faults += RANK_IS(hocketAllReduceQuantised(&x, &x, 1, ncclFloat32, ops[k], c, NULL) == ncclInvalidArgument);
  faults += RANK_IS(hocketCommSetQuantised(c, 2) == ncclInvalidArgument);
  faults += RANK_IS(hocketCommSetQuantised(NULL, 1) == ncclInvalidArgument);
  faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 1));
  faults += RANK_IS(hocketAllReduceQuantised(&x, &x, 1, ncclFloat32, ncclSum, c, NULL) == ncclInvalidUsage);
  faults += RANK_IS(hocketCommSetQuantised(c, 1) == ncclInvalidUsage);
  faults += RANK_IS(strstr(ncclGetLastError(c), "cannot be batch-invariant") != NULL);
  faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 0));
  /* still usable, and exact */
  x = (float)rank + 0.1f;
  faults += RANK_CHECK(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclMax, c, NULL));
  faults += RANK_IS(x == (float)(n - 1) + 0.1f);
  return faults;
}

TEST(others_are_refused) {
  setenv("NCCL_DEBUG", "NONE", 1);
  ck_assert_int_eq(ranks_as_threads(2, refused, NULL), 0);
}

static int disagree(ncclComm_t c, int rank, int n, void *arg) {
  const size_t *count = arg;
  float *x = calloc(*count, sizeof *x);
  (void)n;
  const ncclResult_t rc = rank == 1 ? hocketAllReduceQuantised(x, x, *count, ncclFloat32, ncclSum, c, NULL)
                                    : ncclAllReduce(x, x, *count, ncclFloat32, ncclSum, c, NULL);
  int faults = RANK_IS(rc == ncclInvalidUsage || rc == ncclRemoteError);
  faults += RANK_IS(strstr(ncclGetLastError(c), ", quantised)") != NULL);
  free(x);
  return faults;
}

TEST_LOOP(disagreement_is_reported, 4) {
  size_t count = _i % 2 ? 100000 : 1;
  setenv("NCCL_DEBUG", "NONE", 1);
  if (_i >= 2) through_sockets();
  ck_assert_int_eq(ranks_as_threads(3, disagree, &count), 0);
}

/* ---- for all calls of a communicator ---- */

/* Elements of the sum that are not exact. */
static size_t inexact(ncclComm_t c, int rank, ncclRedOp_t op, int *faults) {
  enum { COUNT = 1000 };
  float x[COUNT];
  size_t differ = 0;
  for (size_t i = 0; i < COUNT; i++) x[i] = (float)(i * (size_t)(rank + 1));
  *faults += RANK_CHECK(ncclAllReduce(x, x, COUNT, ncclFloat32, op, c, NULL));
  for (size_t i = 0; i < COUNT; i++) differ += x[i] != (float)(i * (op == ncclMax ? 2 : 3));
  return differ;
}

static int settings(ncclComm_t c, int rank, int n, void *arg) {
  const int *by_variable = arg;
  ncclComm_t child = NULL;
  int64_t whole = 1 + ((int64_t)1 << 50);
  int faults = 0;
  (void)n;
  faults += RANK_IS((inexact(c, rank, ncclSum, &faults) > 100) == *by_variable);
  faults += RANK_CHECK(hocketCommSetQuantised(c, 1));
  faults += RANK_IS(inexact(c, rank, ncclSum, &faults) > 100);
  faults += RANK_IS(inexact(c, rank, ncclMax, &faults) == 0);
  faults += RANK_CHECK(ncclAllReduce(&whole, &whole, 1, ncclInt64, ncclSum, c, NULL));
  faults += RANK_IS(whole == 2 + ((int64_t)1 << 51));
  faults += RANK_CHECK(ncclCommSplit(c, 0, rank, &child, NULL));
  faults += RANK_CHECK(hocketCommSetQuantised(c, 0));
  faults += RANK_IS(inexact(c, rank, ncclSum, &faults) == 0);
  if (child) faults += RANK_IS((inexact(child, rank, ncclSum, &faults) > 100) == *by_variable);
  if (child) faults += RANK_CHECK(ncclCommDestroy(child));
  return faults;
}

TEST_LOOP(for_a_communicator, 2) {
  if (_i) setenv("HOCKET_QUANTISED", "1", 1);
  ck_assert_int_eq(ranks_as_threads(2, settings, &_i), 0);
}

int main(void) {
  setenv("HOCKET_TUNE_FILE", "none", 1);
  return suite_main("quantised", .timeout = 120);
}
