/* SPDX-License-Identifier: Apache-2.0 */
/* check: fast timeout=300 */
/* Collectives whose blocks differ in length: random counts, zeros, one rank with everything; packed and with gaps, in
 * place and not, in groups and on streams, all types; counts that do not match; wrong arguments. */
#include <hocket.h>
#include <math.h>
#include <pthread.h>
#include "../support/ranks.h"
#include "../support/suite.h"

enum { MOST = 8, GAP = 3, CANARY = 0x55 };
/* ONE_PAIR: only ranks 0 and 1 have long blocks. So other ranks may run an alltoallv as steps, and those as lanes. */
typedef enum { RANDOM, SPARSE, ONE_HAS_ALL, ONE_PAIR, EQUAL, NONE, PATTERNS } pattern;

/* What a round calls. */
typedef struct spec {
  pattern counts;
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t most; /* elements of a block */
  uint64_t seed;
  int gaps, in_place;
} spec;

/* The blocks of a buffer. */
typedef struct blocks {
  size_t count[MOST], at[MOST], end;
} blocks;

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

/* Elements of block j of rank i (or, if all ranks have the same counts, of i = 0). */
static size_t count_of(const spec *s, int i, int j) {
  uint64_t h = mix(mix(s->seed + (uint64_t)i * 64) + (uint64_t)j);
  switch (s->counts) {
    case RANDOM: return h % (s->most + 1);
    case SPARSE: return h % 4 ? 0 : (h >> 8) % (s->most + 1);
    case ONE_HAS_ALL: return j == (int)(s->seed % 2) ? s->most : 0;
    case ONE_PAIR: return i < 2 && j < 2 ? s->most : h % 5;
    case EQUAL: return s->most;
    default: return 0;
  }
}

/* Gaps: blocks lie apart, in the reverse order of ranks. */
static void lay_out(blocks *b, int n, int gaps) {
  b->end = 0;
  for (int k = 0; k < n; k++) {
    int i = gaps ? n - 1 - k : k;
    b->at[i] = b->end;
    b->end += b->count[i] + (gaps ? GAP : 0);
  }
}

/* Block `block` of what rank `from` sends. */
static test_block sent(const spec *s, int from, int block, size_t count) {
  return (test_block){s->type, ncclMax, from, MOST, (uint64_t)block * 7919, count};
}

static void *buffer(const spec *s, const blocks *b) {
  size_t bytes = b->end * test_type_bytes(s->type) + 1;
  return memset(malloc(bytes), CANARY, bytes);
}

static int wrong(const spec *s, const char *what, int rank, int n, int block, size_t k, double got, double want) {
  fprintf(stderr,
          "%s pattern %d seed %llu most %zu type %d op %d gaps %d in place %d: rank %d of %d, block %d, element "
          "%zu is %g, not %g\n",
          what, s->counts, (unsigned long long)s->seed, s->most, s->type, s->op, s->gaps, s->in_place, rank, n, block,
          k, got, want);
  return 1;
}

static int check_block(const spec *s, const char *what, int rank, int n, int block, const test_block *b,
                       const char *at) {
  double got, want;
  size_t k = test_wrong(b, at, &got, &want);
  return k < b->count ? wrong(s, what, rank, n, block, k, got, want) : 0;
}

/* Nothing between the blocks was written. */
static int check_gaps(const spec *s, const char *what, const blocks *b, const char *out, int n) {
  size_t unit = test_type_bytes(s->type);
  for (int i = 0; s->gaps && i < n; i++)
    for (size_t k = (b->at[i] + b->count[i]) * unit; k < (b->at[i] + b->count[i] + GAP) * unit; k++)
      if (out[k] != CANARY) return wrong(s, what, -1, n, i, k, out[k], CANARY);
  return 0;
}

static int alltoallv(const spec *s, ncclComm_t c, int rank, int n) {
  blocks in, out;
  size_t unit = test_type_bytes(s->type);
  int faults = 0;
  for (int i = 0; i < n; i++) in.count[i] = count_of(s, rank, i), out.count[i] = count_of(s, i, rank);
  lay_out(&in, n, 0);
  lay_out(&out, n, s->gaps);
  char *from = buffer(s, in.end > out.end ? &in : &out), *own = buffer(s, &out), *to = s->in_place ? from : own;
  for (int j = 0; j < n; j++) {
    test_block b = sent(s, rank, j, in.count[j]);
    test_fill(&b, from + in.at[j] * unit);
  }
  faults += RANK_CHECK(hocketAlltoAllv(from, in.count, NULL, to, out.count, out.at, s->type, c, NULL));
  for (int i = 0; i < n && !faults; i++) {
    test_block b = sent(s, i, rank, out.count[i]);
    faults += check_block(s, "alltoallv", rank, n, i, &b, to + out.at[i] * unit);
  }
  if (!s->in_place) faults += check_gaps(s, "alltoallv", &out, to, n);
  free(from);
  free(own);
  return faults;
}

static int allgatherv(const spec *s, ncclComm_t c, int rank, int n) {
  blocks b;
  size_t unit = test_type_bytes(s->type);
  int faults = 0;
  for (int i = 0; i < n; i++) b.count[i] = count_of(s, 0, i);
  lay_out(&b, n, s->gaps);
  char *own = buffer(s, &b), *to = buffer(s, &b);
  char *from = s->in_place ? to + b.at[rank] * unit : own;
  test_block mine = sent(s, rank, 0, b.count[rank]);
  test_fill(&mine, from);
  faults += RANK_CHECK(hocketAllGatherv(from, to, b.count, s->gaps ? b.at : NULL, s->type, c, NULL));
  for (int i = 0; i < n && !faults; i++) {
    test_block theirs = sent(s, i, 0, b.count[i]);
    faults += check_block(s, "allgatherv", rank, n, i, &theirs, to + b.at[i] * unit);
  }
  faults += check_gaps(s, "allgatherv", &b, to, n);
  free(own);
  free(to);
  return faults;
}

static int reduce_scatterv(const spec *s, ncclComm_t c, int rank, int n) {
  blocks b;
  size_t unit = test_type_bytes(s->type), first = 0;
  int faults = 0;
  for (int i = 0; i < n; i++) b.count[i] = count_of(s, 0, i);
  lay_out(&b, n, s->gaps);
  char *from = buffer(s, &b), *own = buffer(s, &b), *to = s->in_place ? from + b.at[rank] * unit : own;
  for (size_t i = 0, e = 0; i < (size_t)n; e += b.count[i++]) {
    if (i == (size_t)rank) first = e;
    test_fill(&(test_block){s->type, s->op, rank, n, e, b.count[i]}, from + b.at[i] * unit);
  }
  faults += RANK_CHECK(hocketReduceScatterv(from, to, b.count, s->gaps ? b.at : NULL, s->type, s->op, c, NULL));
  test_block sum = {s->type, s->op, TEST_REDUCED, n, first, b.count[rank]};
  if (!faults) faults += check_block(s, "reduce_scatterv", rank, n, rank, &sum, to);
  free(from);
  free(own);
  return faults;
}

static int all_three(const spec *s, ncclComm_t c, int rank, int n) {
  return alltoallv(s, c, rank, n) + allgatherv(s, c, rank, n) + reduce_scatterv(s, c, rank, n);
}

/* Sizes with one wave and with many. */
static int random_counts(ncclComm_t c, int rank, int n, void *arg) {
  static const size_t most[] = {1, 5, 300, 5000, 70000};
  size_t sizes = *(const int *)arg ? 5 : 4;
  int faults = 0;
  for (uint64_t k = 0; k < 12 * sizes && !faults; k++) {
    spec s = {.counts = (pattern)(k % PATTERNS),
              .type = k % 3 ? ncclFloat32 : ncclUint8,
              .op = ncclSum,
              .most = most[k % sizes],
              .seed = k,
              .gaps = k % 2 != 0,
              .in_place = k % 4 / 2 != 0};
    faults += all_three(&s, c, rank, n);
  }
  return faults;
}

static int all_types(ncclComm_t c, int rank, int n, void *arg) {
  int faults = 0;
  (void)arg;
  for (int t = 0; t < ncclNumTypes && !faults; t++)
    for (int o = 0; o < ncclNumOps && !faults; o++) {
      spec s = {RANDOM, (ncclDataType_t)t, (ncclRedOp_t)o, 1500, (uint64_t)(t * 8 + o), t % 2, o % 2};
      faults += o ? reduce_scatterv(&s, c, rank, n) : all_three(&s, c, rank, n);
    }
  return faults;
}

/* In a group with another collective, then on a stream; the arrays change as soon as the calls have returned. */
static int grouped(ncclComm_t c, int rank, int n, void *arg) {
  enum { EACH = 20000 };
  size_t counts[MOST], none[MOST] = {0};
  int faults = 0, *in = malloc(sizeof *in * EACH * MOST), *out = malloc(sizeof *out * EACH * MOST), one = 1, sum = 0;
  hocketStream_t stream;
  (void)arg;
  faults += RANK_CHECK(hocketStreamCreate(&stream));
  for (int way = 0; way < 2 && !faults; way++) {
    cudaStream_t s = way ? hocketStreamAsCuda(stream) : NULL;
    size_t first = 0;
    for (int i = 0; i < n; i++) counts[i] = (size_t)(EACH / (i + 1));
    for (size_t k = 0; k < counts[rank]; k++) in[k] = rank * EACH + (int)k;
    memset(out, 0, sizeof *out * EACH * MOST);
    if (!way) faults += RANK_CHECK(ncclGroupStart());
    faults += RANK_CHECK(hocketAllGatherv(in, out, counts, NULL, ncclInt32, c, s));
    faults += RANK_CHECK(ncclAllReduce(&one, &sum, 1, ncclInt32, ncclSum, c, s));
    faults += RANK_CHECK(hocketAlltoAllv(NULL, none, NULL, NULL, none, NULL, ncclInt32, c, s));
    for (int i = 0; i < n; i++) counts[i] = 7777777;
    faults += way ? RANK_CHECK(hocketStreamSynchronize(stream)) : RANK_CHECK(ncclGroupEnd());
    faults += sum != n;
    for (int i = 0; i < n; i++)
      for (int k = 0; k < EACH / (i + 1); k++, first++) faults += out[first] != i * EACH + k;
  }
  faults += RANK_CHECK(hocketStreamDestroy(stream));
  free(in);
  free(out);
  return faults;
}

/* Batch-invariant: the bits of a sum do not depend on how the elements are shared out. */
static int invariant(ncclComm_t c, int rank, int n, void *arg) {
  enum { TOTAL = 30000 };
  float *in = malloc(TOTAL * sizeof *in), *out = malloc(TOTAL * sizeof *out), *all[2];
  size_t counts[MOST];
  int faults = 0;
  (void)arg;
  faults += RANK_CHECK(hocketCommSetBatchInvariant(c, 1));
  for (size_t k = 0; k < TOTAL; k++) in[k] = (float)(mix((uint64_t)rank * TOTAL + k) % 100003) / 7.0f;
  for (int way = 0; way < 2; way++) {
    size_t left = TOTAL;
    for (int i = 0; i < n; i++) left -= counts[i] = i == n - 1 ? left : way ? left / 2 : left / (size_t)(n - i);
    all[way] = malloc(TOTAL * sizeof(float));
    faults += RANK_CHECK(hocketReduceScatterv(in, out, counts, NULL, ncclFloat32, ncclSum, c, NULL));
    faults += RANK_CHECK(hocketAllGatherv(out, all[way], counts, NULL, ncclFloat32, c, NULL));
  }
  faults += memcmp(all[0], all[1], TOTAL * sizeof(float)) != 0;
  free(all[0]);
  free(all[1]);
  free(in);
  free(out);
  return faults;
}

static int expect(ncclResult_t got, ncclResult_t want, const char *word) {
  const char *text = ncclGetLastError(NULL);
  if (got == want && (!word || strstr(text, word))) return 0;
  fprintf(stderr, "result %d, not %d; the error has no \"%s\": %s\n", got, want, word ? word : "", text);
  return 1;
}

/* Nothing is changed by a wrong argument: the communicator goes on. */
static int wrong_arguments(ncclComm_t c, int rank, int n, void *arg) {
  size_t counts[MOST] = {0}, at[MOST] = {0}, big[MOST] = {0};
  int x = 0, y = 0, faults = 0;
  (void)arg;
  big[0] = (size_t)1 << 61;
  at[n - 1] = (size_t)-1;
  counts[rank] = 1;
#define BAD(call, word) faults += expect(call, ncclInvalidArgument, word)
  BAD(hocketAllGatherv(&x, &y, NULL, NULL, ncclInt32, c, NULL), "counts is NULL");
  BAD(hocketReduceScatterv(&x, &y, NULL, NULL, ncclInt32, ncclSum, c, NULL), "sendcounts is NULL");
  BAD(hocketAlltoAllv(&x, counts, NULL, &y, NULL, NULL, ncclInt32, c, NULL), "recvcounts is NULL");
  BAD(hocketAlltoAllv(&x, counts, NULL, &y, at, NULL, ncclInt32, c, NULL), "recv");
  BAD(hocketAlltoAllv(&x, counts, NULL, &y, big, NULL, ncclInt32, c, NULL), "more than memory");
  BAD(hocketAllGatherv(&x, &y, counts, at, ncclInt32, c, NULL), "more than memory");
  BAD(hocketAllGatherv(NULL, &y, counts, NULL, ncclInt32, c, NULL), "sendbuff is NULL");
  BAD(hocketAllGatherv(&x, &y, counts, NULL, (ncclDataType_t)99, c, NULL), "data type");
  BAD(hocketReduceScatterv(&x, &y, counts, NULL, ncclInt32, (ncclRedOp_t)77, c, NULL), "operator");
  counts[rank] = 0;
  faults += RANK_CHECK(hocketAllGatherv(NULL, NULL, counts, NULL, ncclInt32, c, NULL));
  spec s = {RANDOM, ncclInt32, ncclSum, 100, 5, 0, 0};
  return faults + all_three(&s, c, rank, n);
}

/* Rank 0 sends rank 1 less than it expects, in the first message or in a later one; or more. Rank 1 finds it; the
 * others, which may have all that is theirs, learn it in this call or in the next one. */
static int pair_differs(ncclComm_t c, int rank, int n, void *arg) {
  static const size_t sent[] = {8, 900000, 0, 40}, expected[] = {9, 900001, 40, 0};
  int way = *(const int *)arg;
  size_t in[MOST] = {0}, out[MOST] = {0}, capacity = 2000000;
  int *from = calloc(capacity, sizeof *from), *to = calloc(capacity, sizeof *to);
  char both[96];
  for (int i = 0; i < n; i++) in[i] = out[i] = i == rank ? 0 : 5;
  if (rank == 0) in[1] = sent[way];
  if (rank == 1) out[0] = expected[way];
  snprintf(both, sizeof both, "rank 0 sends rank 1 %zu elements of int32, but rank 1 expects %zu", sent[way],
           expected[way]);
  ncclResult_t rc = hocketAlltoAllv(from, in, NULL, to, out, NULL, ncclInt32, c, NULL);
  if (rc == ncclSuccess && rank != 1) rc = ncclAllReduce(from, to, 100, ncclInt32, ncclSum, c, NULL);
  int faults = expect(rc, ncclInvalidUsage, both);
  free(from);
  free(to);
  return faults;
}

/* The same number of elements in all, shared out in another way on rank 1. */
enum { BLOCKS_OF_REDUCE_SCATTER, BLOCKS_OF_ALLGATHER, NO_BLOCK_IS_SENT, WAYS_TO_DIFFER };
static int counts_differ(ncclComm_t c, int rank, int n, void *arg) {
  const int way = *(const int *)arg;
  size_t counts[MOST] = {0};
  int *from = calloc(4000, sizeof *from), *to = calloc(4000, sizeof *to);
  for (int i = 0; i < n; i++) counts[i] = way == NO_BLOCK_IS_SENT ? 0 : 100;
  if (way == NO_BLOCK_IS_SENT)
    counts[rank != 1] = 300; /* each waits for the block of a rank that has none by its own counts */
  else if (rank == 1)
    counts[0]++, counts[n - 1]--;
  ncclResult_t rc = way == BLOCKS_OF_REDUCE_SCATTER
                        ? hocketReduceScatterv(from, to, counts, NULL, ncclInt32, ncclSum, c, NULL)
                        : hocketAllGatherv(from, to, counts, NULL, ncclInt32, c, NULL);
  int faults = expect(rc, ncclInvalidUsage, "rank 1 called");
  free(from);
  free(to);
  return faults;
}

/* Only rank 0 has a block, so it waits for nobody: the others call when it is done. */
static int empty_blocks(ncclComm_t c, int rank, int n, void *done) {
  enum { COUNT = 100 };
  const size_t counts[MOST] = {COUNT};
  int in[COUNT] = {0}, out[COUNT] = {0}, faults = 0;
  in[0] = 7;
  if (rank > 0) pthread_barrier_wait(done);
  faults += RANK_CHECK(hocketAllGatherv(in, out, counts, NULL, ncclInt32, c, NULL));
  if (rank == 0) pthread_barrier_wait(done);
  return faults + (n != 2 || out[0] != 7);
}

/* ---- tests ---- */

static const char *const transports[] = {"direct", "staged", "net"};
static const int sizes[] = {1, 2, 3, 5, 8};

TEST_LOOP(by_threads, 15) {
  int large = sizes[_i % 5] <= 3;
  ranks_reach_by(transports[_i / 5]);
  ck_assert_int_eq(ranks_as_threads(sizes[_i % 5], random_counts, &large), 0);
}

TEST_LOOP(by_processes, 3) {
  int large = 1;
  ranks_reach_by(transports[_i]);
  ck_assert_int_eq(ranks_as_processes(3, random_counts, &large), 0);
}

/* Every algorithm that can. */
TEST_LOOP(by_algorithm, 5) {
  static const char *const algorithms[] = {"direct", "ring", "doubling", "pat", "oneshot"};
  int large = 0;
  setenv("NCCL_ALGO", algorithms[_i], 1);
  ck_assert_int_eq(ranks_as_threads(4, random_counts, &large), 0);
}

/* Blocks that are short elsewhere need several waves. */
TEST(small_slots) {
  int large = 0;
  setenv("NCCL_BUFFSIZE", "16384", 1);
  ck_assert_int_eq(ranks_as_threads(3, random_counts, &large), 0);
}

TEST_LOOP(types, 3) {
  ranks_reach_by(transports[_i]);
  ck_assert_int_eq(ranks_as_threads(3, all_types, NULL), 0);
}

TEST_LOOP(groups_and_streams, 3) {
  ranks_reach_by(transports[_i]);
  ck_assert_int_eq(ranks_as_threads(3, grouped, NULL), 0);
}

TEST_LOOP(no_message_for_an_empty_block, 3) {
  pthread_barrier_t done;
  pthread_barrier_init(&done, NULL, 2);
  ranks_reach_by(transports[_i]);
  ck_assert_int_eq(ranks_as_threads(2, empty_blocks, &done), 0);
  pthread_barrier_destroy(&done);
}

TEST(batch_invariant) { ck_assert_int_eq(ranks_as_threads(5, invariant, NULL), 0); }

TEST(arguments) { ck_assert_int_eq(ranks_as_threads(2, wrong_arguments, NULL), 0); }

TEST_LOOP(mismatched_pairs, 12) {
  int way = _i % 4;
  ranks_reach_by(transports[_i / 4]);
  ck_assert_int_eq(ranks_as_threads(3, pair_differs, &way), 0);
}

TEST_LOOP(mismatched_counts, 3 * WAYS_TO_DIFFER) {
  int way = _i % WAYS_TO_DIFFER;
  setenv("HOCKET_WATCHDOG", "1", 1);
  ranks_reach_by(transports[_i / WAYS_TO_DIFFER]);
  ck_assert_int_eq(ranks_as_threads(3, counts_differ, &way), 0);
}

int main(void) { return suite_main("vcoll", .timeout = 120); }
