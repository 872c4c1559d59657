/* SPDX-License-Identifier: Apache-2.0 */
/* Replays of captured graphs: their order with other calls and with each other, and replays that hang.
 * check: notsan */
#include <stdatomic.h>
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/order.h"
#include "../../src/gpu/run.h"
#include "../../src/kernels/cuda/work.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { COUNT = 500, PART = 4096 };

/* Rank r of the group sums up part `from` of its memory into part `to`. */
static void sum_up(const gpu_ranks *g, int from, int to, CUstream q) {
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++) {
    char *at = (char *)(uintptr_t)g->out[r];
    OK_NCCL(ncclAllReduce(at + (size_t)from * PART, at + (size_t)to * PART, COUNT, ncclUint32, ncclSum, g->comm[r],
                          (cudaStream_t)(void *)q));
  }
  OK_NCCL(ncclGroupEnd());
}
static _Atomic(bool) open_gate, at_gate;
static void gate(void *arg) {
  (void)arg;
  atomic_store(&at_gate, true);
  while (!atomic_load(&open_gate)) usleep(100);
}
/* In pieces, of which only the last one writes to part `to`; with a gate, it waits there. */
static CUgraphExec capture(const gpu_ranks *g, int from, int to, CUstream q, bool gated) {
  OK(StreamBeginCapture(q, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 2; i++) sum_up(g, 3, 3, q);
  if (gated) OK(LaunchHostFunc(q, gate, NULL));
  sum_up(g, from, to, q);
  return gpu_end_capture(q);
}

/* The first is held back in its stream, or between the pieces of its graph; the second comes by another stream and
 * reads what the first one writes at its end. */
enum { REPLAY_THEN_CALL, CALL_THEN_REPLAY, TWO_GRAPHS, NOT_ORDERED };
TEST_RANGE(order, REPLAY_THEN_CALL, NOT_ORDERED + 1) {
  uint32_t got[COUNT];
  if (_i == NOT_ORDERED) setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
  gpu_ranks *g = gpu_begin(2, 1, 4 * PART);
  CUstream a = emu_new_stream(CU_STREAM_NON_BLOCKING), b = emu_new_stream(CU_STREAM_NON_BLOCKING);
  for (int r = 0; r < 2; r++) {
    OK(MemsetD8Async(g->out[r], 0, 4 * PART, a));
    OK(MemsetD8Async(g->out[r], 1, PART, a));
  }
  OK(StreamSynchronize(a));
  sum_up(g, 3, 3, b); /* plans are there */
  CUgraphExec first = capture(g, 0, 1, a, true), second = capture(g, 1, 2, b, false);
  OK(StreamSynchronize(b));
  if (_i == CALL_THEN_REPLAY) {
    OK(LaunchHostFunc(a, gate, NULL));
    sum_up(g, 0, 1, a);
  } else {
    OK(GraphLaunch(first, a));
  }
  /* Work that is not ordered must not use the links at the same time: the graph's first pieces end before. */
  while (_i == NOT_ORDERED && !atomic_load(&at_gate)) usleep(100);
  if (_i == REPLAY_THEN_CALL || _i == NOT_ORDERED)
    sum_up(g, 1, 2, b);
  else
    OK(GraphLaunch(second, b));
  /* If the second did not wait, it would be over soon. */
  for (int i = 0; (i < 200 || _i == NOT_ORDERED) && cu.StreamQuery(b) != CUDA_SUCCESS; i++) usleep(1000);
  atomic_store(&open_gate, true);
  OK(StreamSynchronize(a));
  OK(StreamSynchronize(b));
  for (int r = 0; r < 2; r++) {
    emu_read(got, g->out[r] + (size_t)2 * PART, sizeof got);
    suite_all(i, COUNT, got[i] == (_i == NOT_ORDERED ? 0 : 0x04040404u));
  }
  OK(GraphExecDestroy(first));
  OK(GraphExecDestroy(second));
  OK(StreamDestroy(a));
  OK(StreamDestroy(b));
}

/* One process with a stream for each rank, and several groups in one capture: all calls of the graph are before the
 * one node that ends it, and a later call waits for that. */
TEST(forked) {
  CUevent fork, join;
  CUstream q[2];
  gpu_ranks *g = gpu_begin(2, 1, 4096);
  OK(EventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  OK(EventCreate(&join, CU_EVENT_DISABLE_TIMING));
  gpu_unorder_streams(g);
  memcpy(q, g->stream, sizeof q);
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclUint32, .op = ncclSum, .in_place = true};
  gpu_fill(g, &c);
  OK(StreamBeginCapture(q[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(EventRecord(fork, q[0]));
  OK(StreamWaitEvent(q[1], fork, 0));
  for (int i = 0; i < 3; i++) {
    gpu_group(g, &c);
    g->stream[0] = q[i % 2 == 0]; /* the group is launched in the stream of its first rank */
    g->stream[1] = q[i % 2];
  }
  OK(EventRecord(join, q[1]));
  OK(StreamWaitEvent(q[0], join, 0));
  const CUgraphExec exec = gpu_end_capture(q[0]);
  OK(GraphLaunch(exec, q[0]));
  gpu_group(g, &c);
  gpu_wait(g);
  uint32_t got[100];
  for (int r = 0; r < 2; r++) {
    emu_read(got, g->out[r], sizeof got);
    for (size_t i = 0; i < 100; i++) { /* the sum, and then three times its double */
      double tolerance;
      ck_assert_uint_eq(got[i], 8 * (uint32_t)gpu_wanted(g, &c, r, i, &tolerance));
    }
  }
  OK(GraphExecDestroy(exec));
  OK(EventDestroy(fork));
  OK(EventDestroy(join));
}

/* A graph of which one rank's replay never comes: no call is made, but the watchdog sees it, and only if no kernel has
 * ended meanwhile.  Over the network the proxy asks, and no thread of the user's has to. */
TEST_LOOP(hangs, 2) {
  gpu_graph x;
  ncclResult_t rc = ncclSuccess;
  setenv("HOCKET_WATCHDOG", "1", 1);
  setenv("HOCKET_WATCHDOG_ABORT", "1", 1);
  setenv("NCCL_P2P_DISABLE", _i ? "1" : "0", 1);
  setenv("NCCL_SHM_DISABLE", _i ? "1" : "0", 1);
  gpu_ranks *g = gpu_begin(2, 2, 8192);
  const gpu_call c = {.coll = HK_ALLREDUCE, .count = 100, .type = ncclFloat32, .op = ncclSum};
  gpu_unorder_streams(g);
  gpu_capture(g, &c, &x);
  for (int i = 0; i < 3; i++) gpu_replay(g, &x);
  emu_use(0);
  OK(GraphLaunch(x.exec[0], g->stream[0]));
  if (!_i) { /* a kernel has begun since the last look: this is no hang, however long ago the last call was */
    hk_gpu *gpu = hk_gpu_of(g->comm[0]);
    while (!__atomic_load_n(&((hk_gpu_state *)gpu->state.host)->begun, __ATOMIC_RELAXED)) usleep(1000);
    gpu->health->launches = gpu->order->launches;
    gpu->health->seen_ns = 1;
    ck_assert_int_eq(hk_gpu_watch(g->comm[0]), HK_OK);
    ck_assert_uint_gt(gpu->health->seen_ns, 1);
  }
  for (; _i && !atomic_load(&g->comm[0]->health.failure);) usleep(1000);
  for (; rc == ncclSuccess || rc == ncclInProgress; usleep(1000)) OK_NCCL(ncclCommGetAsyncError(g->comm[0], &rc));
  ck_assert_int_eq(rc, ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(g->comm[0]), "or a replay of a graph"));
  gpu_wait(g);
  gpu_graph_free(g, &x);
}

int main(void) { return gpu_main("gpu_replay", .timeout = 60); }
