/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on GPUs, on the driver that runs on the CPU: collectives, sends and receives, streams, wrong arguments.
 * check: timeout=300 notsan */
#include "../../src/base/param.h"
#include "../support/gpu.h"
#include "../support/suite.h"

/* All collectives by ranks of a group, 1 to 8 of them, on as many devices or fewer. */
TEST_LOOP(collectives, 6) {
  static const int shapes[][2] = {{1, 1}, {2, 2}, {3, 1}, {4, 4}, {5, 2}, {8, 8}};
  static const size_t counts[] = {1, 77, 2500};
  gpu_ranks *g = gpu_begin(shapes[_i][0], shapes[_i][1], 1 << 18);
  for (hk_coll coll = HK_ALLREDUCE; coll < HK_COLL_COUNT; coll++) {
    for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
      gpu_call c = {.coll = coll,
                    .count = counts[k],
                    .type = k == 1 ? ncclBfloat16 : ncclFloat32,
                    .op = ncclSum,
                    .root = g->n - 1,
                    .in_place = k != 1,
                    .offset = k == 1 ? 6 : 0};
      gpu_try(g, &c);
    }
  }
}

/* ---- streams ---- */

static int fill_and_run(gpu_ranks *g, unsigned value) {
  enum { COUNT = 5000 };
  int faults = 0;
  uint32_t *host = malloc(COUNT * 4);
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(MemsetD8Async(g->in[r], (unsigned char)(value + (unsigned)r), COUNT * 4, g->stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++)
    OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)g->out[r], COUNT, ncclUint32, ncclSum,
                          g->comm[r], (cudaStream_t)(void *)g->stream[r]));
  OK_NCCL(ncclGroupEnd());
  for (int r = 0; r < g->n; r++) {
    uint32_t want = 0;
    for (int p = 0; p < g->n; p++) want += 0x01010101u * ((value + (unsigned)p) & 255);
    emu_use(g->device[r]);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)host, g->out[r], COUNT * 4, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    for (int i = 0; i < COUNT; i++) faults += host[i] != want;
  }
  free(host);
  return faults;
}

/* Each kind for all ranks in turn: the communicators' work stays in order, and ranks of one device do not wait for ever
 * one after the other in the one legacy stream. */
TEST(streams) {
  CUstream own[GPU_RANKS], others[GPU_RANKS];
  gpu_ranks *g = gpu_begin(4, 2, 1 << 16);
  memcpy(own, g->stream, sizeof own);
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    others[r] = emu_new_stream(CU_STREAM_NON_BLOCKING);
  }
  for (unsigned turn = 0; turn < 10; turn++) {
    for (int r = 0; r < g->n; r++)
      g->stream[r] = turn % 5 == 0   ? NULL
                     : turn % 5 == 1 ? own[r]
                     : turn % 5 == 2 ? CU_STREAM_PER_THREAD
                     : turn % 5 == 3 ? others[r]
                                     : (r % 2 ? own[r] : NULL);
    ck_assert_int_eq(fill_and_run(g, turn * 17), 0);
  }
  memcpy(g->stream, own, sizeof own);
  for (int r = 0; r < g->n; r++) OK(StreamDestroy(others[r]));
}

/* The user's own work goes by streams that CUDA orders with the call's and nothing else does: by another blocking one
 * if the call is in the legacy stream, else by that.  No rank waits for anything, on a device that is slow to
 * begin. */
TEST(stream_order) {
  enum { TURNS = 12, BYTES = 8000 };
  static uint32_t got[TURNS * BYTES / 4];
  setenv("CUDAEMU_SLOW_US", "300", 1);
  gpu_ranks *g = gpu_begin(2, 1, TURNS * BYTES);
  CUstream own[] = {g->stream[0], g->stream[1]}, a = emu_new_stream(CU_STREAM_DEFAULT),
           b = emu_new_stream(CU_STREAM_DEFAULT);
  CUstream kinds[][2] = {{NULL, a}, {a, CU_STREAM_PER_THREAD}, {CU_STREAM_PER_THREAD, NULL}, {NULL, NULL}, {a, own[1]}};
  CUdeviceptr out[] = {gpu_alloc(0, BYTES), gpu_alloc(0, BYTES)};
  for (unsigned turn = 0; turn < TURNS; turn++) {
    CUstream *q = kinds[turn % HK_ARRAY_LENGTH(kinds)], users[2], all[] = {a, b, NULL, CU_STREAM_PER_THREAD, own[1]};
    const bool apart = q[1] == own[1]; /* it is ordered with none of the others */
    for (size_t i = 0; apart && i < HK_ARRAY_LENGTH(all); i++) OK(StreamSynchronize(all[i]));
    for (int r = 0; r < 2; r++) {
      users[r] = q[r] == own[1] ? own[1] : q[r] ? NULL : b;
      OK(MemsetD8Async(g->in[r], (unsigned char)(turn * 7 + (unsigned)r), BYTES, users[r]));
    }
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; r++)
      OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)out[r], BYTES / 4, ncclUint32, ncclSum,
                            g->comm[r], (cudaStream_t)(void *)q[r]));
    OK_NCCL(ncclGroupEnd());
    for (int r = 0; r < 2; r++) OK(MemcpyAsync(g->out[r] + turn * BYTES, out[r], BYTES, users[r]));
    if (apart) OK(StreamSynchronize(own[1]));
  }
  for (int r = 0; r < 2; r++) {
    emu_read(got, g->out[r], sizeof got);
    for (unsigned i = 0; i < TURNS * BYTES / 4; i++)
      if (got[i] != 0x01010101u * (i / (BYTES / 4) * 14 + 1)) ck_abort_msg("rank %d, word %u: %x", r, i, got[i]);
    OK(MemFree(out[r]));
  }
  OK(StreamDestroy(a));
  OK(StreamDestroy(b));
}

/* Each replay has what the one before has left: an error in any shows in the last. */
TEST(replayed_often) {
  enum { TIMES = 2000, COUNT = 40 };
  uint32_t got[COUNT], want = 1;
  setenv("NCCL_MAX_NCHANNELS", "1", 1);
  gpu_ranks *g = gpu_begin(3, 1, 4 * COUNT);
  CUstream q = g->stream[0];
  for (int i = 0; i < COUNT; i++) got[i] = 1;
  for (int r = 0; r < 3; r++) OK(MemcpyAsync(g->out[r], (CUdeviceptr)(uintptr_t)got, sizeof got, q));
  OK(StreamSynchronize(q));
  OK(StreamBeginCapture(q, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; r++)
    OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->out[r], (void *)(uintptr_t)g->out[r], COUNT, ncclUint32, ncclSum,
                          g->comm[r], (cudaStream_t)(void *)q));
  OK_NCCL(ncclGroupEnd());
  const CUgraphExec exec = gpu_end_capture(q);
  for (int i = 0; i < TIMES; i++) {
    OK(GraphLaunch(exec, q));
    want *= 3; /* never 0 */
  }
  OK(GraphExecDestroy(exec));
  OK(StreamSynchronize(q));
  for (int r = 0; r < 3; r++) {
    emu_read(got, g->out[r], sizeof got);
    suite_all(i, COUNT, got[i] == want);
  }
}

/* ---- wrong arguments ---- */

TEST(wrong_pointers) {
  float host[16];
  gpu_ranks *g = gpu_begin(2, 2, 4096);
  void *mine = (void *)(uintptr_t)g->in[0], *other = (void *)(uintptr_t)g->out[1];
  ck_assert_int_eq(ncclAllReduce(host, mine, 16, ncclFloat, ncclSum, g->comm[0], NULL), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(g->comm[0]), "is host memory"));
  ck_assert_int_eq(ncclAllReduce(mine, other, 16, ncclFloat, ncclSum, g->comm[0], NULL), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(g->comm[0]), "memory of GPU 1"));
  ck_assert_int_eq(ncclAllReduce(mine, mine, 1025, ncclFloat, ncclSum, g->comm[0], NULL), ncclInvalidArgument);
  ck_assert_int_eq(ncclSend(mine, 4, ncclInt8, 0, g->comm[0], NULL), ncclInvalidUsage);
  ck_assert_int_eq(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, g->comm[0], NULL), ncclSuccess);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum}; /* they still work */
  gpu_try(g, &c);
  int device;
  OK_NCCL(ncclCommCuDevice(g->comm[1], &device));
  ck_assert_int_eq(device, 1);
  static const int list[] = {0, 8};
  ncclComm_t none[2];
  ck_assert_int_eq(ncclCommInitAll(none, 2, list), ncclInvalidArgument);
}

/* Scalars of operators, on the host and on the device, where they are read when the call runs. */
TEST(scalars) {
  gpu_ranks *g = gpu_begin(2, 1, 4096);
  float factor[2] = {2, 3}, out[8];
  CUdeviceptr at = gpu_alloc(0, 4);
  for (int place = 0; place < 2; place++) {
    ncclRedOp_t op[2];
    for (int r = 0; r < 2; r++)
      OK_NCCL(ncclRedOpCreatePreMulSum(&op[r], place ? (void *)(uintptr_t)at : (void *)&factor[r], ncclFloat32,
                                       place ? ncclScalarDevice : ncclScalarHostImmediate, g->comm[r]));
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, five = 5;
    for (int r = 0; r < 2; r++) {
      OK(MemcpyAsync(g->in[r], (CUdeviceptr)(uintptr_t)values, sizeof values, g->stream[r]));
      OK(StreamSynchronize(g->stream[r]));
    }
    OK(MemcpyAsync(at, (CUdeviceptr)(uintptr_t)&five, 4, g->stream[0]));
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; r++)
      OK_NCCL(ncclAllReduce((void *)(uintptr_t)g->in[r], (void *)(uintptr_t)g->out[r], 8, ncclFloat32, op[r],
                            g->comm[r], (cudaStream_t)(void *)g->stream[r]));
    OK_NCCL(ncclGroupEnd());
    for (int r = 0; r < 2; r++) OK_NCCL(ncclRedOpDestroy(op[r], g->comm[r]));
    gpu_wait(g);
    emu_read(out, g->out[1], sizeof out);
    for (int i = 0; i < 8; i++) ck_assert_float_eq(out[i], (place ? 10 : 5) * values[i]);
  }
  OK(MemFree(at));
}

/* ncclMemAlloc gives memory of the current GPU, which may be registered. */
TEST(allocated_memory) {
  void *p[2], *handle[2];
  gpu_ranks *g = gpu_begin(2, 2, 4096);
  gpu_ranks with = *g;
  for (int r = 0; r < 2; r++) {
    emu_use(r);
    OK_NCCL(ncclMemAlloc(&p[r], 3 << 20));
    OK_NCCL(ncclCommRegister(g->comm[r], p[r], 3 << 20, &handle[r]));
    with.out[r] = (CUdeviceptr)(uintptr_t)p[r];
  }
  gpu_call c = {
      .coll = HK_ALLREDUCE, .count = 5000, .type = ncclFloat16, .op = ncclMax, .in_place = true, .offset = 1 << 20};
  gpu_try(&with, &c);
  for (int r = 0; r < 2; r++) {
    OK_NCCL(ncclCommDeregister(g->comm[r], handle[r]));
    OK_NCCL(ncclMemFree(p[r]));
    ck_assert_int_eq(ncclMemFree(p[r]), ncclInvalidArgument);
  }
}

/* One group with calls of communicators on host memory and on GPUs, in turn: each kind gets its own calls, in their
 * order.  If one kind's fail, the others' still are over. */
TEST(host_and_gpus_in_a_group) {
  enum { COUNT = 100, N = 2 };
  gpu_ranks g;
  ncclComm_t host[N];
  float in[N][COUNT], sum[N][COUNT] = {{0}}, most[N][COUNT] = {{0}};
  setenv("HOCKET_DEVICE", "host", 1);
  hk_param_reload();
  OK_NCCL(ncclCommInitAll(host, N, NULL));
  gpu_open(&g, N, N, 1 << 14);
  hk_param_reload();
  gpu_init_all(&g);
  for (int r = 0; r < N; r++)
    for (int i = 0; i < COUNT; i++) in[r][i] = (float)(i + r);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 1000, .type = ncclFloat32, .op = ncclSum};
  gpu_call d = {.coll = HK_ALLGATHER, .count = 500, .type = ncclFloat32, .offset = 8192};
  gpu_fill(&g, &c);
  gpu_fill(&g, &d);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    OK_NCCL(ncclAllReduce(in[r], sum[r], COUNT, ncclFloat32, ncclSum, host[r], NULL));
    OK_NCCL(gpu_submit(&g, &c, r));
    OK_NCCL(ncclAllReduce(in[r], most[r], COUNT, ncclFloat32, ncclMax, host[r], NULL));
    OK_NCCL(gpu_submit(&g, &d, r));
  }
  OK_NCCL(ncclGroupEnd());
  gpu_check(&g, &c);
  gpu_check(&g, &d);
  for (int r = 0; r < N; r++) suite_all(i, COUNT, sum[r][i] == (float)(2 * i + 1) && most[r][i] == (float)(i + 1));
  for (int r = 0; r < N; r++) OK_NCCL(ncclCommDestroy(host[r]));
  gpu_close(&g);
}

int main(void) { return gpu_main("gpu_comm", .timeout = 100); }
