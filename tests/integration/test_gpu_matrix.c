/* SPDX-License-Identifier: Apache-2.0 */
/* Types, operators, collectives and protocols on emulated GPUs, as a matrix that is quick enough for the interpreter of
 * the kernels' PTX: the suite gpu_ptx runs it so, whole and broken (tests/gpu/ptx_mutations.py).  The values of a call
 * are others than those of the call before, and what is not ordered shows.  MATRIX=links: with more
 * links than a warp has threads; MATRIX=all: also more counts and algorithms.
 * check: timeout=120 notsan noasan */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include "../support/gpu.h"
#include "../support/suite.h"

static const char *const protocols[] = {"Simple", "LL", "LL128"};
enum { PROTOCOLS = 3, RANKS = 3 };
static bool all; /* the large matrix */

static void try(const gpu_ranks *g, gpu_call *c) {
  c->shift += 7919;
  gpu_try(g, c);
}
/* On one GPU, or each on its own: with NVLinks between all, so that LL128 goes there, too.  The interpreter of programs
 * runs all of it, but in begin_small. */
static void begin(gpu_ranks *g, const char *protocol, bool apart, size_t capacity) {
  static const bool mesh[MACHINE_GPUS][MACHINE_GPUS] = {{0, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}};
  char path[] = "/tmp/hocket-matrix-XXXXXX";
  const int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  close(fd);
  gpu_machine_write(path, mesh);
  setenv("NCCL_PROTO", protocol, 1);
  setenv("HOCKET_GPU_SMALL", "0", 0);
  gpu_open(g, RANKS, apart ? RANKS : 1, capacity);
  gpu_init_all(g);
  unlink(path);
}
static void begin_small(gpu_ranks *g, bool apart, size_t capacity) {
  setenv("HOCKET_GPU_SMALL", "1", 1);
  setenv("NCCL_ALGO", "flat", 1);
  begin(g, "LL", apart, capacity);
}
/* With a switch that adds up, or copies: by nvls, and by the one-shot algorithms. */
static const struct {
  const char *algorithm, *protocol;
} in_switch[] = {{"NVLS", "Simple"}, {"SUMSHOT", "Simple"}, {"ONESHOT", "LL"}, {"ONESHOT", "Simple"}};
enum { IN_SWITCH = 4 };
static void begin_switch(gpu_ranks *g, int way, size_t capacity) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  setenv("NCCL_ALGO", in_switch[way].algorithm, 1);
  setenv("NCCL_PROTO", in_switch[way].protocol, 1);
  gpu_open(g, RANKS, RANKS, capacity);
  gpu_init_all(g);
}

/* ---- what the arithmetic gives ---- */

static void try_types(const gpu_ranks *g, ncclDataType_t first, ncclDataType_t end) {
  gpu_call c = {.coll = HK_ALLREDUCE};
  for (c.type = first; c.type < end; c.type++)
    for (c.op = ncclSum; c.op < ncclNumOps; c.op++) {
      const size_t few = 16 + 744 / test_type_bytes(c.type); /* each rank's third has all kinds of LL128 lines */
      c.count = few;
      c.offset = 0;
      c.in_place = c.op == ncclMax;
      try(g, &c);
      if (!all && c.op != (ncclRedOp_t)(c.type % ncclNumOps)) continue;
      c.offset = test_type_bytes(c.type); /* no vector is aligned */
      c.count = all ? 1203 : few;
      try(g, &c);
    }
}
/* Values on both sides of zero: as bits of another type they are something else. */
static int signed_value(int rank, size_t i) { return (int)((size_t)rank * 17 + i * 7) % 41 - 20; }
static void try_signs(const gpu_ranks *g) {
  static const ncclDataType_t types[] = {ncclInt8, ncclInt32, ncclInt64};
  static const ncclRedOp_t ops[] = {ncclSum, ncclMax, ncclMin};
  enum { COUNT = 400 };
  char host[8 * COUNT];
  for (size_t k = 0; k < HK_ARRAY_LENGTH(types) * HK_ARRAY_LENGTH(ops); k++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = COUNT, .type = types[k % 3], .op = ops[k / 3], .offset = k % 2 * 8};
    const size_t bytes = COUNT * test_type_bytes(c.type);
    for (int r = 0; r < g->n; r++) {
      for (size_t i = 0; i < COUNT; i++) test_store(c.type, host, i, signed_value(r, i));
      emu_use(g->device[r]);
      OK(MemcpyAsync(gpu_in(g, &c, r), (CUdeviceptr)(uintptr_t)host, bytes, g->stream[r]));
      OK(StreamSynchronize(g->stream[r]));
    }
    gpu_group(g, &c);
    gpu_wait(g);
    emu_read(host, gpu_out(g, &c, g->n - 1), bytes);
    for (size_t i = 0; i < COUNT; i++) {
      int want = signed_value(0, i);
      for (int r = 1; r < g->n; r++) {
        const int x = signed_value(r, i);
        want = c.op == ncclSum ? want + x : (c.op == ncclMax) == (x > want) ? x : want;
      }
      ck_assert_msg(test_load(c.type, host, i) == want, "type %d, op %d, element %zu", c.type, c.op, i);
    }
  }
}
/* All on one GPU; what a GPU alone sees shows between GPUs, and one type is enough for that. */
START_TEST(types) {
  gpu_ranks g;
  const bool apart = _i >= PROTOCOLS, some = apart && !all;
  begin(&g, protocols[_i % PROTOCOLS], apart, 1 << 14);
  try_types(&g, some ? ncclFloat32 : ncclInt8, some ? ncclFloat32 + 1 : ncclNumTypes);
  if (!apart) try_signs(&g);
  gpu_close(&g);
}
END_TEST

START_TEST(types_in_switch) {
  gpu_ranks g;
  begin_switch(&g, _i, 1 << 14);
  try_types(&g, _i && !all ? ncclFloat16 : ncclInt8, _i && !all ? ncclFloat16 + 1 : ncclNumTypes);
  try_signs(&g);
  gpu_close(&g);
}
END_TEST

START_TEST(types_small) {
  gpu_ranks g;
  begin_small(&g, _i, 1 << 14);
  try_types(&g, _i && !all ? ncclFloat32 : ncclInt8, _i && !all ? ncclFloat32 + 1 : ncclNumTypes);
  if (!_i) try_signs(&g);
  gpu_close(&g);
}
END_TEST

/* ---- what goes where ---- */

START_TEST(collectives) {
  static const size_t counts[] = {77, 1300, 1, 9001};
  gpu_ranks g;
  begin(&g, protocols[_i % PROTOCOLS], _i >= PROTOCOLS, 1 << 18);
  for (size_t k = 0; k < (all ? 4 : 2); k++)
    for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
      if (coll == HK_ALLTOALLV && _i % PROTOCOLS) continue; /* it has the protocol Simple alone */
      gpu_call c = {.coll = coll,
                    .count = counts[k],
                    .type = k % 2 ? ncclFloat32 : ncclBfloat16,
                    .root = (int)k % g.n,
                    .in_place = k % 2,
                    .offset = k % 2 ? 0 : 6};
      try(&g, &c);
      if (all) try(&g, &c);
    }
  gpu_close(&g);
}
END_TEST

/* Sends and receives of each pair, another size each; the large ones wait for slots. The last time all are on one GPU
 * with Simple, and rank 2 sends references: its kernel ends when it has all of them back. */
START_TEST(transfers) {
  enum { ROOM = 1 << 18, PLACE = ROOM / 3 & ~15 };
  static char in[RANKS][ROOM], out[ROOM];
  gpu_ranks g;
  setenv("HOCKET_SLOT_BYTES", "4096", 1);
  setenv("HOCKET_SLOTS", "2", 1);
  const bool lent = _i == PROTOCOLS;
  begin(&g, protocols[_i % PROTOCOLS], _i != 1 && !lent, ROOM);
  for (int r = 0; r < RANKS; r++) {
    emu_use(g.device[r]);
    for (size_t i = 0; i < ROOM; i++) in[r][i] = (char)(i * 7 + (size_t)r * 31 + i / 253);
    OK(MemcpyAsync(g.in[r], (CUdeviceptr)(uintptr_t)in[r], ROOM, g.stream[r]));
    OK(StreamSynchronize(g.stream[r]));
  }
#define SIZE(from, to) ((size_t)((from) * (lent ? 33009 : 8009) + (to)*70))
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < RANKS; r++)
    for (int p = 0; p < RANKS; p++) {
      cudaStream_t s = (cudaStream_t)(void *)g.stream[r];
      const size_t odd = p == 2 ? 4 : 0;
      char *from = (char *)(uintptr_t)g.in[r] + p * PLACE + odd, *to = (char *)(uintptr_t)g.out[r] + p * PLACE;
      OK_NCCL(ncclSend(from, SIZE(r, p), ncclInt8, p, g.comm[r], s));
      OK_NCCL(ncclRecv(to, SIZE(p, r), ncclInt8, p, g.comm[r], s));
    }
  OK_NCCL(ncclGroupEnd());
  gpu_wait(&g);
  for (int r = 0; r < RANKS; r++) {
    emu_read(out, g.out[r], ROOM);
    for (int p = 0; p < RANKS; p++) ck_assert_mem_eq(out + p * PLACE, in[p] + r * PLACE + (r == 2 ? 4 : 0), SIZE(p, r));
  }
  gpu_close(&g);
}
END_TEST

/* ---- what is ordered ---- */

/* Each call has what the one before has left, so an error in any shows in the last; slots come round. */
static void repeat(const gpu_ranks *g, size_t count, int times) {
  uint32_t *got = malloc(4 * count), want = 1;
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    for (size_t i = 0; i < count; i++) got[i] = (uint32_t)i;
    OK(MemcpyAsync(g->out[r], (CUdeviceptr)(uintptr_t)got, 4 * count, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
  }
  for (int k = 0; k < times; k++) {
    want *= (uint32_t)g->n;
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < g->n; r++)
      OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->out[r], (void *)(uintptr_t)g->out[r], count, ncclUint32, ncclSum,
                            g->comm[r], (cudaStream_t)(void *)g->stream[r]));
    OK_NCCL(ncclGroupEnd());
  }
  gpu_wait(g);
  for (int r = 0; r < g->n; r++) {
    emu_read(got, g->out[r], 4 * count);
    suite_all(i, count, got[i] == want * (uint32_t)i);
  }
  free(got);
}
/* Calls of one group are one launch, in which a block runs one after the other. */
static void chain(const gpu_ranks *g, size_t count, int times) {
  uint32_t *got = malloc(4 * count);
  for (size_t i = 0; i < count; i++) got[i] = (uint32_t)i;
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(MemcpyAsync(g->in[r], (CUdeviceptr)(uintptr_t)got, 4 * count, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int k = 0; k < times; k++)
    for (int r = 0; r < g->n; r++)
      OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)(g->out[r] + 4 * count * (size_t)k), count,
                            ncclUint32, ncclSum, g->comm[r], (cudaStream_t)(void *)g->stream[r]));
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  for (int k = 0; k < times * g->n; k++) {
    emu_read(got, g->out[k % g->n] + 4 * count * (size_t)(k / g->n), 4 * count);
    suite_all(i, count, got[i] == (uint32_t)g->n * (uint32_t)i);
  }
  free(got);
}
START_TEST(repeated) {
  static const char *const algos[] = {"", "Ring", "Tree"};
  gpu_ranks g;
  if (_i >= 2 * PROTOCOLS) setenv("NCCL_ALGO", algos[_i / (2 * PROTOCOLS)], 1);
  begin(&g, protocols[_i % PROTOCOLS], _i / PROTOCOLS % 2, 1 << 16);
  repeat(&g, 40, all ? 40 : 12);
  repeat(&g, 2000, all ? 40 : 8);
  chain(&g, 2000, 6);
  gpu_close(&g);
}
END_TEST
/* Without the barriers of instructions. */
START_TEST(repeated_small) {
  gpu_ranks g;
  begin_small(&g, _i, 1 << 16);
  repeat(&g, 1, 12);
  repeat(&g, 40, all ? 40 : 12);
  repeat(&g, 4000, 4); /* more lines than threads, and channels */
  gpu_close(&g);
}
END_TEST
/* A lane with more links than a warp has threads: other warps keep the counters of some. */
START_TEST(many_links) {
  setenv("NCCL_ALGO", "flat", 1);
  setenv("NCCL_MAX_NCHANNELS", "1", 1);
  setenv("NCCL_PROTO", "LL", 1);
  gpu_ranks *g = gpu_begin(GPU_RANKS, 8, 1 << 12);
  repeat(g, 5, 3);
  gpu_close(g);
}
END_TEST
START_TEST(repeated_in_switch) {
  gpu_ranks g;
  begin_switch(&g, _i, 1 << 16);
  repeat(&g, 40, all ? 40 : 12);
  repeat(&g, 9000, 4);
  gpu_close(&g);
}
END_TEST

/* Large messages go by reference, without a copy into slots; the next call writes what the last one let others read. */
START_TEST(references) {
  static const hk_coll colls[] = {HK_BROADCAST, HK_ALLGATHER, HK_ALLREDUCE};
  gpu_ranks g;
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  begin(&g, "Simple", false, 1 << 19);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(colls); k++) {
    gpu_call c = {.coll = colls[k], .count = 40000, .type = ncclInt32, .root = 1};
    try(&g, &c);
  }
  repeat(&g, 40000, 3);
  gpu_close(&g);
}
END_TEST

/* ---- what ends it ---- */

/* Until so many kernels have waited for so long that they have looked at the abort flag, more than once. */
static void await_looks(unsigned kernels) {
  enum { PASSES = 4000 }; /* a look comes after 256 polls, which take a warp of LL128 some passes each */
  unsigned long (*passes)(void);
  *(void **)&passes = dlsym(dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD), "cudaemu_passes");
  ck_assert(passes != NULL);
  for (const unsigned long begin = passes(); passes() - begin < (unsigned long)kernels * PASSES;) usleep(1000);
}
/* A rank is missing; one of the others is aborted while its kernel waits. */
static void abort_one(gpu_ranks *g) {
  pthread_t id;
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32};
  gpu_fill(g, &c);
  for (int r = 0; r < 2; r++) OK_NCCL(gpu_submit(g, &c, r));
  await_looks(2);
  ck_assert_int_eq(pthread_create(&id, NULL, gpu_abort, g->comm[0]), 0);
  for (int r = 0; r < 2; r++) {
    emu_use(g->device[r]);
    OK(StreamSynchronize(g->stream[r]));
  }
  pthread_join(id, NULL);
  g->comm[0] = NULL;
  for (int r = 1; r < RANKS; r++) ck_assert_int_eq(wait_for_error(g->comm[r]), ncclRemoteError);
  gpu_close(g);
}
START_TEST(aborted) {
  gpu_ranks g;
  begin(&g, protocols[_i], true, 1 << 14);
  abort_one(&g);
}
END_TEST
START_TEST(aborted_small) {
  gpu_ranks g;
  begin_small(&g, true, 1 << 14);
  abort_one(&g);
}
END_TEST

static void mismatch(gpu_ranks *g) {
  for (int r = 0; r < RANKS; r++) {
    gpu_call c = {.coll = HK_ALLREDUCE, .count = 100 + (size_t)(r == 2), .type = ncclFloat32};
    OK_NCCL(gpu_submit(g, &c, r));
  }
  for (int r = 0; r < RANKS; r++) ck_assert_int_eq(wait_for_error(g->comm[r]), ncclInvalidUsage);
  gpu_wait(g);
  gpu_close(g);
}
START_TEST(mismatched) {
  gpu_ranks g;
  begin(&g, protocols[_i], true, 1 << 14);
  mismatch(&g);
}
END_TEST
START_TEST(mismatched_small) {
  gpu_ranks g;
  begin_small(&g, true, 1 << 14);
  mismatch(&g);
}
END_TEST

/* After a failure the rest is not tried: broken kernels would make each test hang. */
static struct progress { int begun, done; } * progress;
static void test_begins(void) {
  if (progress->begun != progress->done) ck_abort_msg("not tried: another one failed");
  progress->begun++;
}
static void test_ends(void) { progress->done++; }

static TCase *add_case(Suite *s, const char *name) {
  TCase *t = tcase_create(name);
  tcase_set_timeout(t, 100);
  tcase_add_checked_fixture(t, test_begins, test_ends);
  suite_add_tcase(s, t);
  return t;
}
int main(void) {
  const char *size = getenv("MATRIX");
  all = size && strcmp(size, "all") == 0;
  gpu_environment();
  if (!gpu_here()) return 77;
  progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (progress == MAP_FAILED) return 1;
  Suite *s = suite_create("gpu_matrix");
  TCase *order = add_case(s, "order"), *types_of = add_case(s, "types"), *nvls = add_case(s, "switch");
  TCase *small = add_case(s, "small");
  TCase *places = add_case(s, "places"), *ends = add_case(s, "ends");
  tcase_add_loop_test(order, repeated, 0, all ? 6 * PROTOCOLS : 4 * PROTOCOLS);
  tcase_add_test(order, references);
  tcase_add_loop_test(types_of, types, 0, 2 * PROTOCOLS);
  if (size) tcase_add_test(add_case(s, "links"), many_links); /* eight seconds */
  tcase_add_loop_test(small, repeated_small, 0, 2);
  tcase_add_loop_test(small, types_small, 0, 2);
  tcase_add_test(small, aborted_small);
  tcase_add_test(small, mismatched_small);
  tcase_add_loop_test(nvls, types_in_switch, 0, IN_SWITCH);
  tcase_add_loop_test(nvls, repeated_in_switch, 0, IN_SWITCH);
  tcase_add_loop_test(places, collectives, 0, 2 * PROTOCOLS);
  tcase_add_loop_test(places, transfers, 0, PROTOCOLS + 1);
  tcase_add_loop_test(ends, aborted, 0, PROTOCOLS);
  tcase_add_loop_test(ends, mismatched, 0, PROTOCOLS);
  return suite_run(s);
}
