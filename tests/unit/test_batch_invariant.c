/* SPDX-License-Identifier: Apache-2.0 */
/* HOCKET_BATCH_INVARIANT and hocketCommSetBatchInvariant: the bits of an element depend on the ranks' values of it,
 * not on the count, its place, the collective, the root, the channels or the way between the ranks.
 * check: fast timeout=120 long=asan */
#include <hocket.h>
#include "../support/invariant_data.h"
#include "../support/suite.h"

enum { BASE = 6000, MOST = 5000 };

typedef struct job {
  ncclDataType_t type;
  ncclRedOp_t op;
  int draws;
} job;

/* The same on all ranks. */
static size_t draw(uint64_t *state, size_t below) {
  *state += 0x9e3779b97f4a7c15u;
  return (size_t)(invariant_hash(*state) % below);
}

typedef struct drawn {
  int coll, root;
  size_t count, offset;
  bool in_place;
} drawn;

static drawn draw_call(uint64_t *state, int n) {
  drawn d = {.coll = (int)draw(state, 3), .root = (int)draw(state, (size_t)n)};
  size_t most = draw(state, 3) ? MOST : 40; /* some are short */
  d.count = 1 + draw(state, most / (d.coll == 2 ? (size_t)n : 1));
  d.offset = draw(state, BASE - MOST + 1);
  d.in_place = draw(state, 2);
  return d;
}

/* Runs the call on a slice of `base` and compares with what the whole gave. */
static int check_call(ncclComm_t c, int rank, int n, const job *j, const drawn *d, const char *base, const char *whole,
                      char *work) {
  size_t unit = test_type_bytes(j->type), blocks = d->coll == 2 ? (size_t)n : 1, bytes = d->count * unit;
  const char *in = base + d->offset * unit, *want = whole + d->offset * unit;
  char *out = work + (d->count % 7) * unit;
  if (d->in_place) {
    memcpy(out, in, blocks * bytes);
    in = out;
    if (d->coll == 2) out += (size_t)rank * bytes;
  }
  int faults = 0;
  switch (d->coll) {
    case 0: faults = RANK_CHECK(ncclAllReduce(in, out, d->count, j->type, j->op, c, NULL)); break;
    case 1: faults = RANK_CHECK(ncclReduce(in, out, d->count, j->type, j->op, d->root, c, NULL)); break;
    default: faults = RANK_CHECK(ncclReduceScatter(in, out, d->count, j->type, j->op, c, NULL)); break;
  }
  if (d->coll == 1 && rank != d->root) return faults;
  if (d->coll == 2) want += (size_t)rank * bytes;
  for (size_t i = 0; i < d->count && !faults; i++) {
    if (!memcmp(out + i * unit, want + i * unit, unit)) continue;
    fprintf(stderr,
            "rank %d of %d: call %d of %zu at %zu, root %d, type %d, op %d, %s place: element %zu is %g, not %g\n",
            rank, n, d->coll, d->count, d->offset, d->root, (int)j->type, (int)j->op, d->in_place ? "in" : "out of", i,
            test_load(j->type, out, i), test_load(j->type, want, i));
    faults++;
  }
  return faults;
}

static int check_sums(const job *j, int n, const char *whole) {
  int faults = 0;
  if (j->op != ncclSum) return 0;
  for (size_t i = 0; i < BASE && !faults; i++) {
    if (j->type == ncclFloat32) faults += ((const float *)(const void *)whole)[i] != invariant_sum_f32(n, i);
    if (j->type == ncclFloat64) faults += ((const double *)(const void *)whole)[i] != invariant_sum_f64(n, i);
    if (faults)
      fprintf(stderr, "element %zu of type %d is not summed up in the order of %d ranks\n", i, (int)j->type, n);
  }
  return faults;
}

static int run_job(ncclComm_t c, int rank, int n, void *arg) {
  const job *j = arg;
  size_t unit = test_type_bytes(j->type), capacity = (BASE + 8) * unit;
  char *base = malloc(capacity), *whole = malloc(capacity), *work = malloc(capacity);
  uint64_t state = (uint64_t)n * 1000 + (uint64_t)j->type;
  invariant_fill(j->type, rank, base, BASE);
  int faults = RANK_CHECK(hocketCommSetBatchInvariant(c, 1));
  faults += RANK_CHECK(ncclAllReduce(base, whole, BASE, j->type, j->op, c, NULL));
  if (!faults) faults = check_sums(j, n, whole);
  for (int k = 0; k < j->draws && !faults; k++) {
    drawn d = draw_call(&state, n);
    faults = check_call(c, rank, n, j, &d, base, whole, work);
  }
  free(base);
  free(whole);
  free(work);
  return faults;
}

static const ncclDataType_t types[] = {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat64};

/* All types and some operators on all numbers of ranks, with 1 to 4 channels, and over sockets. */
TEST_LOOP(bits_do_not_depend_on_the_place, 5) {
  static const ncclRedOp_t ops[] = {ncclSum, ncclAvg, ncclMax};
  char channels[16];
  snprintf(channels, sizeof channels, "%d", _i + 1);
  setenv("NCCL_MIN_NCHANNELS", channels, 1);
  if (_i == 4) setenv("NCCL_SHM_DISABLE", "1", 1), setenv("NCCL_P2P_DISABLE", "1", 1), unsetenv("NCCL_MIN_NCHANNELS");
  for (int n = 2; n <= SUITE_FEW(8); n++)
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
      job j = {.type = types[t], .op = ops[((size_t)n + t) % 3 ? 0 : 1 + (size_t)n % 2], .draws = SUITE_FEW(12)};
      ck_assert_int_eq(ranks_as_threads(n, run_job, &j), 0);
    }
}

/* Each algorithm that can be asked for, and some that are not batch-invariant: something else runs then. */
TEST_LOOP(whatever_is_asked_for, 6) {
  static const char *const algos[] = {"oneshot", "twoshot", "flat",
                                      "direct",  "ring",    "allreduce:tree;reduce:chain;pat"};
  job j = {.type = ncclFloat32, .op = ncclSum, .draws = SUITE_FEW(25)};
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("NCCL_ALGO", algos[_i], 1);
  ck_assert_int_eq(ranks_as_threads(SUITE_FEW(5), run_job, &j), 0);
}

/* ---- without the setting ---- */

/* How many of the first 1000 sums differ where 1000 more are added up with them. */
static int count_differences(ncclComm_t c, int rank, int n, void *arg) {
  float one[1000], two[2000];
  int *differences = arg, faults = 0;
  (void)n;
  float *mine = malloc(2000 * sizeof *mine);
  invariant_fill(ncclFloat32, rank, mine, 2000);
  faults += RANK_CHECK(ncclAllReduce(mine, one, 1000, ncclFloat32, ncclSum, c, NULL));
  faults += RANK_CHECK(ncclAllReduce(mine, two, 2000, ncclFloat32, ncclSum, c, NULL));
  if (rank == 0)
    for (size_t i = 0; i < 1000; i++) *differences += one[i] != two[i];
  free(mine);
  return faults;
}

TEST_LOOP(without_it_they_do, 8) {
  static const char *const algos[] = {"ring", "tree", "doubling", "halving", "oneshot", "twoshot", "direct", "flat"};
  int differences = 0;
  setenv("NCCL_ALGO", algos[_i], 1);
  unsetenv("HOCKET_BATCH_INVARIANT");
  ck_assert_int_eq(ranks_as_threads(4, count_differences, &differences), 0);
  printf("%s: %d of 1000 floats change with the count\n", algos[_i], differences);
  ck_assert(_i < 2 ? differences > 20 : differences == 0);
}

/* The variable does what the call does. */
TEST(by_the_environment) {
  int differences = 0;
  setenv("NCCL_ALGO", "ring", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  setenv("HOCKET_BATCH_INVARIANT", "1", 1);
  ck_assert_int_eq(ranks_as_threads(4, count_differences, &differences), 0);
  ck_assert_int_eq(differences, 0);
}

/* ---- the call ---- */

#define WANT(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, ncclGetLastError(NULL));             \
      faults++;                                                                                                        \
    }                                                                                                                  \
  } while (0)

static int whole_sum(ncclComm_t c, int rank, int n, bool in_order) {
  float *data = malloc(BASE * sizeof *data);
  int differ = 0, faults = 0;
  invariant_fill(ncclFloat32, rank, data, BASE);
  faults += RANK_CHECK(ncclAllReduce(data, data, BASE, ncclFloat32, ncclSum, c, NULL));
  for (size_t i = 0; i < BASE; i++) differ += data[i] != invariant_sum_f32(n, i);
  WANT(in_order ? differ == 0 : differ > 0);
  free(data);
  return faults;
}

/* Switched on and off between operations; children take it over. */
static int switches(ncclComm_t c, int rank, int n, void *arg) {
  ncclComm_t child = NULL;
  int faults = 0;
  (void)arg;
  faults += whole_sum(c, rank, n, false);
  faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 1));
  faults += whole_sum(c, rank, n, true);
  faults += RANK_CHECK(ncclCommSplit(c, 0, rank, &child, NULL));
  faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 0));
  faults += whole_sum(c, rank, n, false);
  if (child) {
    faults += whole_sum(child, rank, n, true);
    faults += RANK_CHECK(ncclCommDestroy(child));
  }
  WANT(hocketCommSetBatchInvariant(c, 2) == ncclInvalidArgument);
  WANT(hocketCommSetBatchInvariant(NULL, 1) == ncclInvalidArgument);
  return faults;
}

TEST(switched_between_operations) {
  setenv("NCCL_ALGO", "ring", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  ck_assert_int_eq(ranks_as_threads(4, switches, NULL), 0);
}

static int after_a_stream(ncclComm_t c, int rank, int n, void *arg) {
  hocketStream_t s = NULL;
  float *data = malloc(BASE * sizeof *data);
  int faults = RANK_CHECK(hocketStreamCreate(&s));
  (void)arg;
  for (int k = 0; k < 20 && !faults; k++) {
    invariant_fill(ncclFloat32, rank, data, BASE);
    faults += RANK_CHECK(ncclAllReduce(data, data, BASE, ncclFloat32, ncclSum, c, hocketStreamAsCuda(s)));
    faults += RANK_CHECK(hocketCommSetBatchInvariant(c, k % 2));
    faults += whole_sum(c, rank, n, k % 2);
  }
  faults += RANK_CHECK(hocketStreamDestroy(s));
  free(data);
  return faults;
}

TEST(enqueued_before) {
  setenv("NCCL_ALGO", "ring", 1);
  setenv("NCCL_DEBUG", "NONE", 1);
  ck_assert_int_eq(ranks_as_threads(3, after_a_stream, NULL), 0);
}

/* Ranks that differ get an error that says so. */
static int disagree(ncclComm_t c, int rank, int n, void *arg) {
  float x = 1;
  int faults = 0;
  (void)n, (void)arg;
  if (rank == 1) faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 1));
  ncclResult_t rc = ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL);
  WANT(rc == ncclInvalidUsage || rc == ncclRemoteError);
  WANT(strstr(ncclGetLastError(c), ", batch-invariant)"));
  return faults;
}
static int disagreeing_parents(ncclComm_t c, int rank, int n, void *arg) {
  ncclComm_t child = NULL;
  int faults = 0;
  (void)n, (void)arg;
  if (rank == 1) faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 1));
  WANT(ncclCommSplit(c, 0, rank, &child, NULL) == ncclInvalidUsage && !child);
  WANT(strstr(ncclGetLastError(NULL), "different values of HOCKET_BATCH_INVARIANT"));
  return faults;
}

TEST_LOOP(disagreement_is_reported, 2) {
  setenv("NCCL_DEBUG", "NONE", 1);
  ck_assert_int_eq(ranks_as_threads(2, _i ? disagreeing_parents : disagree, NULL), 0);
}

int main(void) {
  setenv("HOCKET_TUNE_FILE", "none", 1);
  return suite_main("batch invariant", .timeout = 120);
}
