/* SPDX-License-Identifier: Apache-2.0 */
/* Small messages that are sent to all ranks at once, on the driver that runs on the CPU: which calls have the kernel of
 * their own, its results compared with the interpreter's, graphs, and ranks that mix both.
 * check: notsan long=asan */
#include "../../src/device/cuda.h"
#include "../../src/gpu/code.h"
#include "../../src/gpu/gpu.h"
#include "../support/gpu.h"
#include "../support/suite.h"

/* ---- launches of the kernel of small messages, and others ---- */

static __typeof__(hk_cu.LaunchKernelEx) launch;
static const void *small;
static _Atomic(unsigned) smalls, others;
static CUresult count_launch(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  if ((const void *)f == small)
    smalls++;
  else
    others++;
  return launch(config, f, params, extra);
}
static void open_counted(gpu_ranks *g, int n, int devices, size_t capacity) {
  setenv("NCCL_PROTO", "LL", 1);
  setenv("NCCL_ALGO", "flat", 1);
  gpu_open(g, n, devices, capacity);
  gpu_init_all(g);
}
/* All devices have one copy of the kernels, if the ranks are on one: so counting is for those. */
static void count_on(const gpu_ranks *g) {
  small = hk_gpu_of(g->comm[0])->code->small;
  if (!launch) launch = hk_cu.LaunchKernelEx;
  hk_cu.LaunchKernelEx = count_launch;
  smalls = others = 0;
}
static void expect(unsigned of_small, unsigned of_others) {
  ck_assert_msg(smalls == of_small && others == of_others,
                "%u launches of the small kernel and %u others, not %u and %u", smalls, others, of_small, of_others);
  smalls = others = 0;
}

static void group(gpu_ranks *g, gpu_call *c) {
  c->shift += 7919;
  gpu_try(g, c);
}

/* Two to eight ranks; a message of one element, of several blocks, of several passes of a block; in place, at odd
 * places. */
TEST_RANGE(all_numbers_of_ranks, 2, 9) {
  static const size_t counts[] = {1, 3, 500, 4096, 8000};
  gpu_ranks g;
  open_counted(&g, _i, _i, 1 << 16);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++)
    for (int in_place = 0; in_place < 2; in_place++) {
      gpu_call c = {.coll = HK_ALLREDUCE, .count = counts[k], .type = k % 2 ? ncclBfloat16 : ncclFloat32};
      c.in_place = in_place;
      c.offset = k == 2 ? test_type_bytes(c.type) : 0;
      c.op = in_place ? ncclAvg : ncclSum;
      for (int i = 0; i < 2; i++) group(&g, &c);
    }
  gpu_close(&g);
}

/* Which calls take it: on one GPU a group of ranks is one launch, of either kernel. */
TEST_LOOP(which_calls, 2) {
  enum { N = 4 };
  gpu_ranks g;
  setenv("NCCL_MAX_NCHANNELS", "2", 1);
  if (_i) setenv("HOCKET_GPU_SMALL", "0", 1);
  open_counted(&g, N, 1, 1 << 18);
  count_on(&g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32};
  group(&g, &c);
  expect(!_i, _i);
  c.count = 50000; /* waves */
  group(&g, &c);
  expect(0, 1);
  c.count = 100;
  c.coll = HK_BROADCAST;
  setenv("NCCL_ALGO", "^nvls", 1);
  group(&g, &c);
  expect(0, 1);
  c.coll = HK_ALLREDUCE;
  ncclRedOp_t scaled[N];
  const float two = 2;
  float *on_device = (float *)(uintptr_t)gpu_alloc(0, 4);
  OK(MemcpyAsync((CUdeviceptr)(uintptr_t)on_device, (CUdeviceptr)(uintptr_t)&two, 4, g.stream[0]));
  OK(StreamSynchronize(g.stream[0]));
  for (int where = 0; where < 2; where++) {
    void *scalar = where ? (void *)on_device : (void *)(uintptr_t)&two;
    const ncclScalarResidence_t residence = where ? ncclScalarDevice : ncclScalarHostImmediate;
    gpu_fill(&g, &c);
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      OK_NCCL(ncclRedOpCreatePreMulSum(&scaled[r], scalar, ncclFloat32, residence, g.comm[r]));
      gpu_call mine = c;
      mine.op = scaled[r];
      OK_NCCL(gpu_submit(&g, &mine, r));
    }
    OK_NCCL(ncclGroupEnd());
    gpu_wait(&g);
    expect(where == 0 && !_i, where == 1 || _i);
    float got[100];
    emu_read(got, gpu_out(&g, &c, 1), sizeof got);
    for (size_t i = 0; i < 100; i++) {
      double off = 0, want = 2 * gpu_wanted(&g, &c, 1, i, &off);
      ck_assert_msg(got[i] - want <= off * want && want - got[i] <= off * want, "%zu: %g, not %g", i, (double)got[i],
                    want);
    }
    for (int r = 0; r < N; r++) OK_NCCL(ncclRedOpDestroy(scaled[r], g.comm[r]));
  }
  OK(MemFree((CUdeviceptr)(uintptr_t)on_device));
  gpu_close(&g);
}

/* Rank 0 makes two calls in a group, which the interpreter runs in one launch; the others make them one by one. */
TEST(ranks_mix) {
  enum { N = 3 };
  gpu_ranks g;
  open_counted(&g, N, N, 1 << 14);
  gpu_call c[2] = {{.coll = HK_ALLREDUCE, .count = 700, .type = ncclFloat32, .op = ncclSum},
                   {.coll = HK_ALLREDUCE, .count = 700, .type = ncclFloat32, .op = ncclSum}};
  for (int turn = 0; turn < 6; turn++) {
    c[0].shift += 31;
    c[1] = c[0];
    c[1].in_place = true; /* of the sum */
    gpu_fill(&g, &c[0]);
    for (int r = 0; r < N; r++) {
      emu_use(g.device[r]);
      if (r == turn % N) OK_NCCL(ncclGroupStart());
      for (int k = 0; k < 2; k++) OK_NCCL(gpu_submit(&g, &c[k], r));
      if (r == turn % N) OK_NCCL(ncclGroupEnd());
    }
    gpu_wait(&g);
    for (int r = 0; r < N; r++) {
      float got[700];
      emu_read(got, gpu_out(&g, &c[0], r), sizeof got);
      for (size_t i = 0; i < 700; i++) {
        double off = 0, want = N * gpu_wanted(&g, &c[0], r, i, &off);
        if ((double)got[i] != want)
          ck_abort_msg("turn %d, rank %d, element %zu: %g, not %g", turn, r, i, (double)got[i], want);
      }
    }
  }
  gpu_close(&g);
}

/* The numbers of slots are in memory, so a graph may be replayed, and calls may come between. */
TEST(replays) {
  enum { N = 2 };
  gpu_ranks g;
  gpu_graph x;
  open_counted(&g, N, N, 1 << 14);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 300, .type = ncclInt32, .op = ncclSum};
  group(&g, &c);
  gpu_capture(&g, &c, &x);
  for (int turn = 0; turn < 12; turn++) {
    gpu_replay(&g, &x);
    if (turn % 3 == 0) group(&g, &c);
  }
  gpu_graph_free(&g, &x);
  gpu_close(&g);
}

int main(void) { return gpu_main("gpu_oneshot", .timeout = 60); }
