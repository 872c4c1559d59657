/* SPDX-License-Identifier: Apache-2.0 */
/* Children that use their parent's memory (splitShare, shrinkShare) on emulated GPUs: what they cost, that they run at
 * the same time, and that each may end first, by whatever end.
 * check: timeout=200 notsan */
#include "../../src/base/param.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/memory.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { COUNT = 9000, ROOM = 1 << 16 };
static const gpu_call sums = {.coll = HK_ALLREDUCE, .count = COUNT, .type = ncclFloat32, .op = ncclSum};

static ncclConfig_t lending(int split, int shrink) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = split;
  config.shrinkShare = shrink;
  return config;
}

static void init(gpu_ranks *g, ncclConfig_t config) { gpu_init_config(g, &config); }

/* Of all ranks, in their order.  `kid` has buffers and streams of its own. */
static void split(const gpu_ranks *g, gpu_ranks *kid) {
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++) OK_NCCL(ncclCommSplit(g->comm[r], 0, r, &kid->comm[r], NULL));
  OK_NCCL(ncclGroupEnd());
}

static void destroy(gpu_ranks *g) {
  for (int r = 0; r < g->n; r++) {
    OK_NCCL(ncclCommDestroy(g->comm[r]));
    g->comm[r] = NULL;
  }
}

static void sum(gpu_ranks *g) {
  gpu_fill(g, &sums);
  gpu_group(g, &sums);
  gpu_wait(g);
  gpu_check(g, &sums);
}

/* A parent of n ranks and a child of all of them, each after its first call. */
static void open_both(gpu_ranks *g, gpu_ranks *kid, int n, ncclConfig_t config) {
  gpu_open(g, n, n, ROOM);
  gpu_open(kid, n, n, ROOM);
  init(g, config);
  split(g, kid);
  sum(g);
  sum(kid);
}

/* What a child takes when it is made, with and without sharing; at the end all is given back, whoever ends first. */
TEST_LOOP(costs, 3) {
  enum { N = 8 };
  static const struct { bool lends, parent_first; } cases[] = {{false, false}, {true, false}, {true, true}};
  gpu_ranks g, kid, grandkid;
  gpu_open(&g, N, N, ROOM);
  gpu_open(&kid, N, N, ROOM);
  gpu_open(&grandkid, N, N, ROOM);
  const size_t empty = gpu_in_use(N);
  init(&g, lending(cases[_i].lends, 0));
  const size_t before = gpu_in_use(N);
  split(&g, &kid);
  split(&kid, &grandkid); /* the setting is inherited */
  const size_t cost = gpu_in_use(N) - before;
  if (cases[_i].lends)
    ck_assert_uint_eq(cost, 0);
  else
    ck_assert_uint_ge(cost, (size_t)2 * N * HK_DEVICE_GRANULE);
  for (int r = 0; r < N; r++)
    if (cases[_i].lends) ck_assert_uint_lt(gpu_held(kid.comm[r], ncclStatGpuMemTotal), HK_DEVICE_GRANULE / 4);
  for (int i = 0; i < 2; i++) {
    sum(&g);
    sum(&kid);
    sum(&grandkid);
  }
  destroy(cases[_i].parent_first ? &g : &kid);
  sum(&grandkid);
  destroy(cases[_i].parent_first ? &kid : &grandkid);
  sum(cases[_i].parent_first ? &grandkid : &g);
  destroy(cases[_i].parent_first ? &grandkid : &g);
  ck_assert_uint_eq(gpu_in_use(N), empty);
  gpu_close(&g);
  gpu_close(&kid);
  gpu_close(&grandkid);
}

/* Pieces are not given out again, but their granules go back: children that come and go take no more and more. */
TEST(come_and_go) {
  enum { N = 2, KEPT = 3, TURNS = 100 };
  gpu_ranks g, kid;
  gpu_open(&g, N, N, ROOM);
  gpu_open(&kid, N, N, ROOM);
  setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", 1);
  setenv("NCCL_MAX_NCHANNELS", "2", 1); /* the limit below counts the links of two channels */
  hk_param_reload();
  init(&g, lending(0, 0)); /* the variable is stronger */
  const size_t before = gpu_in_use(N);
  size_t most = 0;
  for (int i = 0; i < TURNS; i++) {
    split(&g, &kid);
    if (i % 20 == 0) sum(&kid);
    if (gpu_in_use(N) - before > most) most = gpu_in_use(N) - before;
    destroy(&kid);
  }
  ck_assert(hk_gpu_of(g.comm[0])->memory->pooled.pool);
  ck_assert_uint_le(most, (size_t)N * 4 * HK_DEVICE_GRANULE); /* its own links, and at most one more granule */
  ck_assert_uint_le(gpu_in_use(N) - before, (size_t)N * HK_DEVICE_GRANULE);
  sum(&g);
  gpu_close(&g);
  gpu_close(&kid);
}

/* Calls of parent and child are under way at the same time, in opposite orders on the two ranks: with shared links
 * they would wait for each other for ever. */
TEST(at_once) {
  enum { N = 2 };
  gpu_ranks g, kid;
  open_both(&g, &kid, N, lending(1, 0));
  gpu_fill(&g, &sums);
  gpu_fill(&kid, &sums);
  for (int i = 0; i < 10; i++) {
    OK_NCCL(gpu_submit(&g, &sums, 0));
    OK_NCCL(gpu_submit(&kid, &sums, 0));
    OK_NCCL(gpu_submit(&kid, &sums, 1));
    OK_NCCL(gpu_submit(&g, &sums, 1));
  }
  gpu_wait(&g);
  gpu_wait(&kid);
  gpu_check(&g, &sums);
  gpu_check(&kid, &sums);
  gpu_close(&kid);
  gpu_close(&g);
}

/* Either is suspended while the other one works. */
TEST(suspended) {
  enum { N = 4 };
  gpu_ranks g, kid;
  open_both(&g, &kid, N, lending(1, 1));
  for (int i = 0; i < 2; i++) {
    gpu_ranks *one = i ? &g : &kid, *other = i ? &kid : &g;
    const size_t active = gpu_in_use(N);
    const uint64_t may = gpu_held(one->comm[0], ncclStatGpuMemSuspend);
    gpu_suspend_all(one, true);
    ck_assert_uint_eq(active - gpu_in_use(N), N * may);
    ck_assert_uint_lt(gpu_held(one->comm[0], ncclStatGpuMemPersist), may / 10);
    sum(other);
    gpu_suspend_all(one, false);
    ck_assert_uint_eq(gpu_in_use(N), active);
    sum(one);
    sum(other);
  }
  gpu_suspend_all(&g, true); /* and ends so */
  destroy(&g);
  sum(&kid);
  gpu_close(&g);
  gpu_close(&kid);
}

/* A child is aborted while it waits for a rank that makes no call; a shrunk one takes its place. */
TEST(aborted) {
  enum { N = 4 };
  int last = N - 1;
  gpu_ranks g, kid, rest;
  gpu_open(&g, N, N, ROOM);
  gpu_open(&kid, N, N, ROOM);
  gpu_open(&rest, N - 1, N - 1, ROOM);
  init(&g, lending(1, 1));
  split(&g, &kid);
  sum(&kid);
  gpu_fill(&kid, &sums);
  for (int r = 0; r < last; r++) OK_NCCL(gpu_submit(&kid, &sums, r));
  sum(&g);
  for (int r = 0; r < N; r++) {
    OK_NCCL(ncclCommAbort(kid.comm[r]));
    kid.comm[r] = NULL;
  }
  sum(&g);
  const size_t before = gpu_in_use(N);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < last; r++) OK_NCCL(ncclCommShrink(g.comm[r], &last, 1, &rest.comm[r], NULL, 0));
  OK_NCCL(ncclGroupEnd());
  ck_assert_uint_eq(gpu_in_use(N), before);
  sum(&rest);
  sum(&g);
  gpu_close(&g);
  sum(&rest);
  gpu_close(&rest);
  gpu_close(&kid);
}

/* A failed parent lends nothing. */
TEST(of_the_dead) {
  enum { N = 3 };
  int last = N - 1;
  gpu_ranks g, rest;
  gpu_open(&g, N, N, ROOM);
  gpu_open(&rest, N - 1, N - 1, ROOM);
  init(&g, lending(1, 1));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < last; r++) OK_NCCL(ncclCommShrink(g.comm[r], &last, 1, &rest.comm[r], NULL, NCCL_SHRINK_ABORT));
  OK_NCCL(ncclGroupEnd());
  ck_assert(hk_gpu_of(rest.comm[0])->memory->pooled.pool != hk_gpu_of(g.comm[0])->memory->pooled.pool);
  for (int r = 0; r < N; r++) OK_NCCL(ncclCommAbort(g.comm[r]));
  memset(g.comm, 0, sizeof g.comm);
  sum(&rest);
  gpu_close(&rest);
  gpu_close(&g);
}

/* Between processes: the others open what the pieces lie in. */
static void in_processes(gpu_place *p) {
  gpu_place kid = *p;
  gpu_call c = sums;
  each_call(p, &c, 1);
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++)
    OK_NCCL(ncclCommSplit(p->g.comm[r], 0, p->g.n - r, &kid.g.comm[r], NULL));
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) {
    ck_assert_ptr_nonnull(hk_gpu_of(kid.g.comm[r])->memory->pooled.pool);
    ck_assert_uint_lt(gpu_held(kid.g.comm[r], ncclStatGpuMemTotal), HK_DEVICE_GRANULE / 4);
  }
  for (int r = p->first; r < p->first + p->each; r++) {
    ncclComm_t of = kid.g.comm[r]; /* the child's ranks are in the opposite order */
    int rank;
    OK_NCCL(ncclCommUserRank(of, &rank));
    ck_assert_int_eq(rank, p->g.n - 1 - r);
  }
  each_call(&kid, &c, 2); /* a sum is the same in any order */
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) OK_NCCL(ncclCommSuspend(kid.g.comm[r], NCCL_SUSPEND_MEM));
  OK_NCCL(ncclGroupEnd());
  each_call(p, &c, 1);
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) OK_NCCL(ncclCommResume(kid.g.comm[r]));
  OK_NCCL(ncclGroupEnd());
  each_call(&kid, &c, 1);
  for (int r = p->first; r < p->first + p->each; r++) {
    OK_NCCL(ncclCommDestroy(p->g.comm[r]));
    p->g.comm[r] = NULL;
  }
  each_call(&kid, &c, 1);
  for (int r = p->first; r < p->first + p->each; r++) OK_NCCL(ncclCommDestroy(kid.g.comm[r]));
}

TEST_LOOP(processes, 2) {
  setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", 1);
  ck_assert_int_eq(run_processes(4, _i + 1, 8, 1, in_processes), 0);
}

/* Pieces begin at multiples of 256 bytes, one after another, and fill a granule to its end. */
TEST(pieces) {
  enum { ALIGN = 256, PIECES = 5 };
  gpu_ranks g, kid;
  hk_gpu_slice slice[PIECES] = {{0}};
  hk_memory m[PIECES];
  open_both(&g, &kid, 1, lending(1, 0));
  hk_gpu *gpu = hk_gpu_of(kid.comm[0]);
  const size_t before = gpu_in_use(1);
  size_t sizes[PIECES] = {HK_DEVICE_GRANULE, 1, ALIGN + 1, 0, 1}; /* the first takes a granule of its own */
  for (int i = 0; i < PIECES; i++) {
    const hk_memory *whole = i ? hk_gpu_pool_whole(&slice[1]) : NULL;
    if (i == 3) sizes[i] = (size_t)((char *)whole->base + whole->bytes - ((char *)m[2].base + m[2].bytes));
    const size_t pooled = gpu->memory->pooled.bytes;
    OK_NCCL((ncclResult_t)hk_gpu_pool_get(&gpu->memory->pooled, sizes[i], &slice[i], &m[i]));
    ck_assert_uint_eq((uintptr_t)m[i].base % ALIGN, 0);
    ck_assert_uint_eq(m[i].bytes, (sizes[i] + ALIGN - 1) / ALIGN * ALIGN);
    ck_assert_uint_eq(gpu->memory->pooled.bytes - pooled, m[i].bytes);
    if (i > 1 && i < 4) ck_assert_ptr_eq(m[i].base, (char *)m[i - 1].base + m[i - 1].bytes);
    ck_assert_uint_eq(hk_gpu_pool_whole(&slice[i]) == hk_gpu_pool_whole(&slice[1]), i >= 1 && i <= 3);
  }
  ck_assert_uint_eq(gpu_in_use(1) - before, (size_t)3 * HK_DEVICE_GRANULE);
  for (int i = 0; i < PIECES; i++) {
    hk_gpu_pool_put(&slice[i]);
    ck_assert_ptr_null(hk_gpu_pool_whole(&slice[i]));
  }
  ck_assert_uint_eq(gpu_in_use(1), before);
  gpu_close(&kid);
  gpu_close(&g);
}

int main(void) { return gpu_main("gpu_lend", .timeout = 190); }
