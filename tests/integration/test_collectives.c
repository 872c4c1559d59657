/* SPDX-License-Identifier: Apache-2.0 */
/* check: timeout=300 */
/* Every collective x type x operator x odd sizes and alignments x rank counts x transports, in place and not, against a
 * reference computed here. */
#include "../support/ranks.h"
#include "../support/suite.h"

typedef enum {
  ALLREDUCE,
  REDUCE,
  BROADCAST,
  ALLGATHER,
  REDUCESCATTER,
  ALLTOALL,
  GATHER,
  SCATTER,
  SENDRECV,
  KINDS
} kind;
static const char *const kind_names[KINDS] = {"allreduce", "reduce", "broadcast", "allgather", "reducescatter",
                                              "alltoall",  "gather", "scatter",   "sendrecv"};

typedef struct spec {
  kind what;
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t count;
  int root, offset; /* bytes that the buffers are shifted by, in elements */
  int in_place;
} spec;

static int reduces(kind k) { return k == ALLREDUCE || k == REDUCE || k == REDUCESCATTER; }
static size_t in_blocks(kind k, int n) { return k == REDUCESCATTER || k == ALLTOALL || k == SCATTER ? (size_t)n : 1; }
static size_t out_blocks(kind k, int n) { return k == ALLGATHER || k == ALLTOALL || k == GATHER ? (size_t)n : 1; }

/* What a block of rank's output is made of; the blocks of an input are numbered through. */
static test_block expected(const spec *s, int rank, int n, int block) {
  test_block b = {s->type, s->op, TEST_REDUCED, n, 0, s->count};
  if (s->what == REDUCESCATTER || s->what == ALLTOALL || s->what == SCATTER) b.first = (size_t)rank * s->count;
  if (s->what == BROADCAST || s->what == SCATTER) b.rank = s->root;
  if (s->what == ALLGATHER || s->what == GATHER || s->what == ALLTOALL) b.rank = block;
  if (s->what == SENDRECV) b.rank = (rank + n - 1) % n;
  return b;
}

static int call(const spec *s, ncclComm_t c, int rank, int n, const void *in, void *out) {
  int faults = 0;
  switch (s->what) {
    case ALLREDUCE: return RANK_CHECK(ncclAllReduce(in, out, s->count, s->type, s->op, c, NULL));
    case REDUCE: return RANK_CHECK(ncclReduce(in, out, s->count, s->type, s->op, s->root, c, NULL));
    case BROADCAST: return RANK_CHECK(ncclBroadcast(in, out, s->count, s->type, s->root, c, NULL));
    case ALLGATHER: return RANK_CHECK(ncclAllGather(in, out, s->count, s->type, c, NULL));
    case REDUCESCATTER: return RANK_CHECK(ncclReduceScatter(in, out, s->count, s->type, s->op, c, NULL));
    case ALLTOALL: return RANK_CHECK(ncclAlltoAll(in, out, s->count, s->type, c, NULL));
    case GATHER: return RANK_CHECK(ncclGather(in, out, s->count, s->type, s->root, c, NULL));
    case SCATTER: return RANK_CHECK(ncclScatter(in, out, s->count, s->type, s->root, c, NULL));
    case SENDRECV:
      faults += RANK_CHECK(ncclGroupStart());
      faults += RANK_CHECK(ncclSend(in, s->count, s->type, (rank + 1) % n, c, NULL));
      faults += RANK_CHECK(ncclRecv(out, s->count, s->type, (rank + n - 1) % n, c, NULL));
      return faults + RANK_CHECK(ncclGroupEnd());
    default: return 1;
  }
}

/* Where in and out lie in the one buffer of an in-place call. */
static void place(const spec *s, int rank, char *buffer, size_t bytes, char **in, char **out) {
  size_t own = (size_t)rank * s->count * bytes;
  *in = *out = buffer;
  if (s->what == ALLGATHER || (s->what == GATHER && rank == s->root)) *in = buffer + own;
  if (s->what == REDUCESCATTER || (s->what == SCATTER && rank == s->root)) *out = buffer + own;
}

enum { GUARD = 64 };

static int run_spec(const spec *s, ncclComm_t c, int rank, int n) {
  size_t bytes = test_type_bytes(s->type), nin = in_blocks(s->what, n) * s->count,
         nout = out_blocks(s->what, n) * s->count;
  size_t most = (nin > nout ? nin : nout) * bytes, shift = GUARD + (size_t)s->offset * bytes;
  char *a = malloc(most + 2 * GUARD + 64), *b = malloc(most + 2 * GUARD + 64);
  memset(a, 0x55, most + 2 * GUARD + 64);
  memset(b, 0x55, most + 2 * GUARD + 64);
  char *in = a + shift, *out = b + shift;
  if (s->in_place) place(s, rank, a + shift, bytes, &in, &out);
  test_fill(&(test_block){s->type, s->op, rank, n, 0, nin}, in);
  int faults = call(s, c, rank, n, in, out);
  int has_result = s->what == REDUCE || s->what == GATHER ? rank == s->root : 1;
  for (int block = 0; has_result && !faults && block < (int)out_blocks(s->what, n); block++) {
    test_block own = expected(s, rank, n, block);
    double got, want;
    size_t e = test_wrong(&own, out + (size_t)block * s->count * bytes, &got, &want);
    if (e == s->count) continue;
    fprintf(stderr,
            "%s type %d op %d count %zu root %d offset %d in place %d: rank %d of %d, block %d, element %zu: %g, not "
            "%g\n",
            kind_names[s->what], s->type, s->op, s->count, s->root, s->offset, s->in_place, rank, n, block, e, got,
            want);
    faults++;
  }
  for (size_t i = 0; !s->in_place && has_result && i < GUARD; i++) {
    if (out[-1 - (long)i] != 0x55 || out[nout * bytes + i] != 0x55) {
      fprintf(stderr, "%s count %zu: rank %d wrote outside of its output\n", kind_names[s->what], s->count, rank);
      faults++;
      break;
    }
  }
  free(a);
  free(b);
  return faults;
}

#ifdef __SANITIZE_THREAD__
enum { TYPE_STEP = 4 }; /* types are the same steps of the same threads: some of them show a race as well as all */
#elif defined __SANITIZE_ADDRESS__
enum { TYPE_STEP = 2 }; /* all sizes of elements are among these; test_reduce has the others */
#else
enum { TYPE_STEP = 1 };
#endif

/* All types and operators at a few odd sizes. */
static int all_types(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  static const size_t counts[] = {1, 7, 33, 1027};
  int faults = 0;
  ncclRedOp_t premul[ncclNumTypes];
  for (int t = 0; t < ncclNumTypes; t++) {
    double two = 0;
    test_store((ncclDataType_t)t, &two, 0, 2);
    faults += RANK_CHECK(ncclRedOpCreatePreMulSum(&premul[t], &two, (ncclDataType_t)t, ncclScalarHostImmediate, c));
  }
  for (int k = 0; k < KINDS && !faults; k++) {
    for (int t = 0; t < ncclNumTypes && !faults; t += TYPE_STEP) {
      for (int o = 0; o < (reduces((kind)k) ? 6 : 1) && !faults; o++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts && !faults; i++) {
          spec s = {(kind)k,
                    (ncclDataType_t)t,
                    o == 5 ? premul[t] : (ncclRedOp_t)o,
                    counts[i],
                    (int)(i + (size_t)t) % n,
                    (int)(i % 3),
                    (int)i % 2 && k != SENDRECV};
          faults += run_spec(&s, c, rank, n);
        }
      }
    }
  }
  return faults;
}

/* All sizes around the edges of slots, inline payloads and waves. */
static int all_sizes(ncclComm_t c, int rank, int n, void *arg) {
  size_t most = *(const size_t *)arg;
  static const size_t counts[] = {1,    2,    3,    11,    12,    13,    16,    17,     64,     255,   1023,
                                  4095, 4096, 4097, 16384, 32768, 32769, 65537, 131072, 200003, 300000};
  int faults = 0;
  for (int k = 0; k < KINDS && !faults; k++) {
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= most && !faults; i++) {
      for (int place = 0; place < 2 && !faults; place++) {
        if (place && k == SENDRECV) continue;
        spec s = {(kind)k, ncclFloat32, ncclSum, counts[i], (int)i % n, place, place};
        faults += run_spec(&s, c, rank, n);
      }
    }
  }
  return faults;
}

/* In place, again and again, from one element to 1 MiB a rank: what arrives early must not be sent on. */
static int in_place(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  static const size_t bytes[] = {4, 400, 8192, 65536, 262144, 1 << 20};
  int faults = 0;
  for (int k = 0; k < SENDRECV && !faults; k++)
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes && !faults; i++)
      for (int again = 0; again < 3 && !faults; again++) {
        size_t blocks = in_blocks((kind)k, n) > out_blocks((kind)k, n) ? in_blocks((kind)k, n) : out_blocks((kind)k, n);
        size_t count = bytes[i] / 4 / blocks;
        spec s = {(kind)k, ncclInt32, ncclSum, count ? count : 1, again % n, 0, 1};
        faults += run_spec(&s, c, rank, n);
      }
  return faults;
}

/* Buffers that share memory in any other way are refused, on all ranks alike, and the communicator goes on. */
static int overlaps(ncclComm_t c, int rank, int n, void *arg) {
  (void)arg;
  enum { COUNT = 64 };
  int32_t *buffer = calloc(3 * COUNT * (size_t)n, sizeof *buffer), *middle = buffer + COUNT * n;
  int faults = 0;
  for (int k = 0; k < SENDRECV; k++) {
    for (int by = -1; by <= 1; by++) {
      const spec s = {.what = (kind)k, .type = ncclInt32, .op = ncclSum, .count = COUNT, .root = 1};
      const bool both = !((k == REDUCE || k == GATHER || k == BROADCAST || k == SCATTER) && rank != s.root);
      char *in, *out;
      place(&s, rank, (char *)middle, sizeof *middle, &in, &out);
      if (by == 0 || !both) continue; /* the others of a collective with a root have one buffer */
      ncclResult_t rc = k == ALLREDUCE       ? ncclAllReduce(in, out + 4 * by, COUNT, s.type, s.op, c, NULL)
                        : k == REDUCE        ? ncclReduce(in, out + 4 * by, COUNT, s.type, s.op, 1, c, NULL)
                        : k == BROADCAST     ? ncclBroadcast(in, out + 4 * by, COUNT, s.type, 1, c, NULL)
                        : k == ALLGATHER     ? ncclAllGather(in, out + 4 * by, COUNT, s.type, c, NULL)
                        : k == REDUCESCATTER ? ncclReduceScatter(in, out + 4 * by, COUNT, s.type, s.op, c, NULL)
                        : k == ALLTOALL      ? ncclAlltoAll(in, out + 4 * by, COUNT, s.type, c, NULL)
                        : k == GATHER        ? ncclGather(in, out + 4 * by, COUNT, s.type, 1, c, NULL)
                                             : ncclScatter(in, out + 4 * by, COUNT, s.type, 1, c, NULL);
      if (rc != ncclInvalidArgument || !strstr(ncclGetLastError(c), "overlap")) {
        fprintf(stderr, "%s, output %d elements off: %d, %s\n", kind_names[k], by, rc, ncclGetLastError(c));
        faults++;
      }
    }
  }
  free(buffer);
  const spec after = {ALLTOALL, ncclInt32, ncclSum, 1000, 0, 0, 1};
  return faults + run_spec(&after, c, rank, n);
}

static const char *const transports[] = {"direct", "staged", "net"};
#ifdef __SANITIZE_THREAD__
static const int sizes[] = {2, 5}; /* one rank has no peer to race with; the others do what 5 do */
#elif defined __SANITIZE_ADDRESS__
static const int sizes[] = {1, 2, 5, 8};
#else
static const int sizes[] = {1, 2, 3, 4, 5, 8};
#endif
enum { SIZES = sizeof sizes / sizeof *sizes };

#ifdef __SANITIZE_THREAD__
enum {
  MOST_FEW = 33000,
  MOST_MANY = 17000,
  MOST_APART = 17000
}; /* a second wave is enough to race in; elements are dear */
#elif defined __SANITIZE_ADDRESS__
enum { MOST_FEW = 70000, MOST_MANY = 33000, MOST_APART = 33000 }; /* a second wave ends where a tenth does */
#else
enum { MOST_FEW = 300000, MOST_MANY = 70000, MOST_APART = 140000 };
#endif

/* What is added does not depend on the way that it came: all ways for two ranks, and one for each other number. */
TEST_LOOP(types_threads, 3 + SIZES) {
  const int n = _i < 3 ? 2 : sizes[_i - 3];
  if (_i >= 3 && n == 2) return;
  ranks_reach_by(transports[_i % 3]);
  ck_assert_int_eq(ranks_as_threads(n, all_types, NULL), 0);
}

TEST_LOOP(sizes_threads, 3 * SIZES) {
  ranks_reach_by(transports[_i / SIZES]);
  size_t most = sizes[_i % SIZES] > 3 ? MOST_MANY : MOST_FEW;
  ck_assert_int_eq(ranks_as_threads(sizes[_i % SIZES], all_sizes, &most), 0);
}

TEST_LOOP(sizes_processes, 9) {
  ranks_reach_by(transports[_i / 3]);
  size_t most = MOST_APART;
  ck_assert_int_eq(ranks_as_processes(2 + 3 * (_i % 3) / 2, all_sizes, &most), 0);
}

#ifdef __SANITIZE_THREAD__
static const int matrix[] = {3}; /* more ranks run the same steps in more threads */
#elif defined __SANITIZE_ADDRESS__
static const int matrix[] = {4};
#else
static const int matrix[] = {2, 3, 4, 6, 8, 16};
#endif
TEST_LOOP(in_place_threads, (int)(sizeof matrix / sizeof *matrix)) {
  ck_assert_int_eq(ranks_as_threads(matrix[_i], in_place, NULL), 0);
}

TEST_LOOP(in_place_processes, 3) {
  ranks_reach_by(transports[_i]);
  ck_assert_int_eq(ranks_as_processes(3, in_place, NULL), 0);
}

TEST(overlaps_refused) { ck_assert_int_eq(ranks_as_threads(3, overlaps, NULL), 0); }

TEST_LOOP(mixed, 3) {
  size_t most = MOST_MANY;
  ranks_reach_by(transports[_i]);
  ck_assert_int_eq(ranks_mixed(2, 3, all_sizes, &most), 0);
}

int main(void) { return suite_main("collectives", .timeout = 120); }
