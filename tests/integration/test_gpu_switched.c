/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot algorithms in a switch, on emulated GPUs with multicast objects: sumshot, whose sum each rank loads from the
 * switch, and oneshot, which stores lines of LL, or slots, for all ranks at once.
 * check: timeout=300 notsan long=asan */
#include "../../src/decide/gpu.h"
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/process_group.h"
#include "../../src/transport/cuda/multicast.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { SUMSHOT, LINES, SLOTS, WAYS };
static const struct {
  const char *algorithm, *protocol;
} ways[WAYS] = {{"SUMSHOT", "Simple"}, {"ONESHOT", "LL"}, {"ONESHOT", "Simple"}};
static void take(int way) {
  setenv("NCCL_ALGO", ways[way].algorithm, 1);
  setenv("NCCL_PROTO", ways[way].protocol, 1);
}

static void run_and_check(const gpu_ranks *g, const gpu_call *c) {
  gpu_fill(g, c);
  gpu_group(g, c);
  gpu_check(g, c);
}

/* From one element to many waves, on one channel and on more than have lines, aligned and not, in place and not. */
TEST_LOOP(sizes, 4 * WAYS) {
  static const size_t counts[] = {1, 7, 333, 4096, 30001};
  static const int ranks[] = {2, 3, 5, 8};
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_BROADCAST, HK_ALLGATHER};
  const int way = _i % WAYS, channels = _i / WAYS % 2 ? 6 : 1, n = ranks[_i / WAYS % 4];
  const size_t slot = channels > 1 ? 128 << 10 : 8192;
  char text[8];
  gpu_ranks g;
  take(way);
  snprintf(text, sizeof text, "%d", channels);
  setenv("NCCL_MIN_NCHANNELS", text, 1);
  setenv("NCCL_MAX_NCHANNELS", text, 1);
  setenv("HOCKET_SLOT_BYTES", channels > 1 ? "131072" : "8192", 1);
  gpu_open(&g, n, 8, 1 << 19);
  gpu_init_all(&g);
  for (int r = 0; r < n; r++) {
    const hk_gpu *gpu = hk_gpu_of(g.comm[r]);
    ck_assert(gpu->in_switch);
    ck_assert_uint_ge(
        gpu->group->multicast->slot_bytes,
        hk_gpu_switch_slot(slot, HK_GPU_SWITCH_SLOTS, HK_GPU_SWITCH_CHANNELS, n)); /* chunks count on it */
  }
  for (size_t i = 0; i < (way == SUMSHOT ? 1 : 3) * HK_ARRAY_LENGTH(counts); i++) {
    const size_t k = i % HK_ARRAY_LENGTH(counts);
    gpu_call c = {.coll = colls[i / HK_ARRAY_LENGTH(counts)],
                  .count = colls[i / HK_ARRAY_LENGTH(counts)] == HK_ALLGATHER ? counts[k] / (size_t)n + 1 : counts[k],
                  .type = k == 1   ? ncclBfloat16
                          : k == 2 ? ncclFloat16
                                   : ncclFloat32,
                  .op = k == 3 ? ncclAvg : ncclSum,
                  .root = n - 1,
                  .in_place = k % 2,
                  .offset = k == 2 ? 2 : 0};
    for (int again = 0; again < 6; again++) run_and_check(&g, &c); /* slots come round */
  }
  gpu_close(&g);
}

/* A switch copies everything, and adds up what it knows. */
TEST_LOOP(types_and_operators, WAYS) {
  gpu_ranks g;
  take(_i);
  gpu_open(&g, 3, 8, 1 << 14);
  gpu_init_all(&g);
  for (ncclDataType_t type = 0; type < ncclNumTypes; type++)
    for (ncclRedOp_t op = ncclSum; op < ncclNumOps; op++) {
      gpu_call c = {.coll = HK_ALLREDUCE, .count = 301, .type = type, .op = op};
      run_and_check(&g, &c);
    }
  gpu_close(&g);
}

/* Each rank's own scalar. */
TEST_LOOP(premultiplied, WAYS) {
  enum { COUNT = 100 };
  gpu_ranks g;
  ncclRedOp_t op[3];
  int values[COUNT], out[COUNT];
  take(_i);
  gpu_open(&g, 3, 8, 4096);
  gpu_init_all(&g);
  for (int i = 0; i < COUNT; i++) values[i] = i - 50;
  for (int r = 0; r < 3; r++) {
    int factor = r + 2;
    OK_NCCL(ncclRedOpCreatePreMulSum(&op[r], &factor, ncclInt32, ncclScalarHostImmediate, g.comm[r]));
    emu_use(r);
    OK(MemcpyAsync(g.in[r], (CUdeviceptr)(uintptr_t)values, sizeof values, g.stream[r]));
    OK(StreamSynchronize(g.stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; r++)
    OK_NCCL(ncclAllReduce((void *)(uintptr_t)g.in[r], (void *)(uintptr_t)g.out[r], COUNT, ncclInt32, op[r], g.comm[r],
                          (cudaStream_t)(void *)g.stream[r]));
  OK_NCCL(ncclGroupEnd());
  gpu_wait(&g);
  for (int r = 0; r < 3; r++) {
    emu_read(out, g.out[r], sizeof out);
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(out[i], 9 * values[i]);
  }
  gpu_close(&g);
}

/* Many calls without a wait between them: a sender runs into the credits of all its readers. */
TEST_LOOP(in_a_row, WAYS) {
  gpu_ranks g;
  take(_i);
  gpu_open(&g, 4, 8, 1 << 14);
  gpu_init_all(&g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 500, .type = ncclInt32, .op = ncclSum};
  gpu_fill(&g, &c);
  for (int i = 0; i < 50; i++) gpu_group(&g, &c);
  gpu_check(&g, &c);
  gpu_close(&g);
}

/* A captured call, replayed with other data. */
TEST_LOOP(replayed, WAYS) {
  gpu_ranks g;
  CUgraph graph[2];
  CUgraphExec exec[2];
  take(_i);
  gpu_open(&g, 2, 8, 1 << 16);
  gpu_init_all(&g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 900, .type = ncclInt32, .op = ncclMax};
  run_and_check(&g, &c); /* links are there */
  for (int r = 0; r < 2; r++) OK(StreamBeginCapture(g.stream[r], CU_STREAM_CAPTURE_MODE_RELAXED));
  gpu_group(&g, &c);
  for (int r = 0; r < 2; r++) {
    OK(StreamEndCapture(g.stream[r], &graph[r]));
    OK(GraphInstantiateWithFlags(&exec[r], graph[r], 0));
  }
  for (int i = 0; i < 6; i++) {
    gpu_fill(&g, &c);
    for (int r = 0; r < 2; r++) {
      emu_use(r);
      OK(GraphLaunch(exec[r], g.stream[r]));
    }
    gpu_check(&g, &c);
  }
  for (int r = 0; r < 2; r++) {
    OK(GraphExecDestroy(exec[r]));
    OK(GraphDestroy(graph[r]));
  }
  gpu_close(&g);
}

/* Counters go on where they were; lines begin with zeros again. */
TEST_LOOP(suspended, WAYS) {
  gpu_ranks g;
  take(_i);
  gpu_open(&g, 3, 8, 1 << 14);
  gpu_init_all(&g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 700, .type = ncclFloat32, .op = ncclSum};
  for (int i = 0; i < 3; i++) {
    for (int again = 0; again < 3; again++) run_and_check(&g, &c);
    for (int on = 0; on < 2; on++) {
      OK_NCCL(ncclGroupStart());
      for (int r = 0; r < 3; r++)
        OK_NCCL(on ? ncclCommResume(g.comm[r]) : ncclCommSuspend(g.comm[r], NCCL_SUSPEND_MEM));
      OK_NCCL(ncclGroupEnd());
    }
  }
  run_and_check(&g, &c);
  gpu_close(&g);
}

/* ---- processes ---- */

static void several(gpu_place *p) {
  for (int r = p->first; r < p->first + p->each; r++) ck_assert(hk_gpu_of(p->g.comm[r])->in_switch);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 1500, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 8);
}
TEST_LOOP(processes, WAYS) {
  take(_i);
  ck_assert_int_eq(run_processes(3, 1, 8, 1, several), 0);
}

/* Ranks that make different calls get an error: the words' tags differ. */
static void differ(gpu_place *p) {
  ncclResult_t code = ncclSuccess;
  int r = p->first;
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
  OK_NCCL(ncclAllReduce((void *)(uintptr_t)p->g.in[r], (void *)(uintptr_t)p->g.out[r], r ? 100 : 101, ncclFloat32,
                        ncclSum, p->g.comm[r], (cudaStream_t)(void *)p->g.stream[r]));
  while (code == ncclSuccess) {
    OK_NCCL(ncclCommGetAsyncError(p->g.comm[r], &code));
    usleep(1000);
  }
  OK_NCCL(ncclCommAbort(p->g.comm[r]));
  p->g.comm[r] = NULL;
}
TEST_LOOP(mismatched, WAYS) {
  take(_i);
  ck_assert_int_eq(run_processes(2, 1, 8, 1, differ), 0);
}

int main(void) {
  setenv("CUDAEMU_MULTICAST", "1", 1);
  gpu_environment();
  if (!gpu_here()) return 77;
  return suite_main("gpu_switched", .timeout = 100);
}
