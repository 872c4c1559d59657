/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on the emulated GPUs: their memory, streams and data, and what collectives must give. */
#ifndef HK_TESTS_GPU_COMMS_H
#define HK_TESTS_GPU_COMMS_H
#include <hocket.h>
#include <stdbool.h>
#include <string.h>
#include "../../src/program/program.h"
#include "cudaemu.h"
#include "ranks.h"

enum { GPU_RANKS = 18 };
typedef struct gpu_ranks {
  int n, device[GPU_RANKS];
  ncclComm_t comm[GPU_RANKS];
  CUstream stream[GPU_RANKS];
  CUdeviceptr in[GPU_RANKS], out[GPU_RANKS];
  size_t room; /* bytes of each buffer */
} gpu_ranks;

/* A call of a collective. */
typedef struct gpu_call {
  hk_coll coll;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool in_place;
  size_t offset; /* bytes, of both buffers */
  size_t shift;  /* other values: what is left of the call before is wrong */
} gpu_call;

#define OK_NCCL(call) ck_assert_msg((call) == ncclSuccess, "%s: %s", #call, ncclGetLastError(NULL))

/* Before anything looks at the environment. */
static inline void gpu_environment(void) {
  setenv("CUDAEMU_DEVICES", "8", 0);
  setenv("CUDAEMU_THREADS", "64", 0);
  setenv("CUDAEMU_STRICT", "1", 0);
  setenv("CUDAEMU_WEAK", "1", 0);
  setenv("HOCKET_CUDA_IMAGE", emu_file("kernels.so"), 0);
  setenv("HOCKET_SLOT_BYTES", "8192", 0);
  setenv("HOCKET_SLOTS", "4", 0);
  setenv("NCCL_MAX_NCHANNELS", "4", 0);
}
static inline bool gpu_here(void) {
  if (access(emu_file("kernels.so"), R_OK) == 0) return true;
  printf("SKIP: GPUs on the emulated driver: its kernels were not compiled, which takes g++\n");
  return false;
}
static inline CUdeviceptr gpu_alloc(int device, size_t bytes) {
  CUdeviceptr p = 0;
  emu_use(device);
  OK(MemAlloc(&p, bytes));
  return p;
}

/* The n-th launch (or kernel: `which` is CUDAEMU_FAIL_LAUNCH or _KERNEL) of a process fails, after those of init: three
 * for each of its ranks' devices. */
static inline void gpu_fail_nth(const char *which, int n, int devices) {
  char text[16];
  snprintf(text, sizeof text, "%d", 3 * devices + n);
  setenv(which, text, 1);
}

/* Sets of ranks that are open, and what the process held of the driver before the first one. */
static int gpu_sets;
static long gpu_held_before[EMU_HELD];

/* `devices` of them take turns. */
static inline void gpu_open(gpu_ranks *g, int n, int devices, size_t room) {
  memset(g, 0, sizeof *g);
  g->n = n;
  g->room = room;
  emu_start(8);
  if (gpu_sets++ == 0) emu_count_held(gpu_held_before);
  for (int r = 0; r < n; r++) {
    g->device[r] = r % devices;
    g->in[r] = gpu_alloc(g->device[r], room);
    g->out[r] = gpu_alloc(g->device[r], room);
    g->stream[r] = emu_new_stream(r % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  }
}
static inline void gpu_init_all(gpu_ranks *g) { OK_NCCL(ncclCommInitAll(g->comm, g->n, g->device)); }
/* The communicator's failure; ncclSuccess if none comes within ten seconds. */
static inline ncclResult_t wait_for_error(ncclComm_t c) {
  ncclResult_t code = ncclSuccess;
  for (int i = 0; i < 10000 && code == ncclSuccess; i++) {
    OK_NCCL(ncclCommGetAsyncError(c, &code));
    usleep(1000);
  }
  return code;
}
/* After the last set nothing is held of the driver that was not held before the first one. */
static inline void gpu_close(gpu_ranks *g) {
  for (int r = 0; r < g->n; r++)
    if (g->comm[r]) ck_assert_int_eq(rank_left_work(g->comm[r]), 0);
  for (int r = 0; r < g->n; r++)
    if (g->comm[r]) OK_NCCL(ncclCommDestroy(g->comm[r]));
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(StreamDestroy(g->stream[r]));
    OK(MemFree(g->in[r]));
    OK(MemFree(g->out[r]));
  }
  if (--gpu_sets == 0) emu_check_held(gpu_held_before);
}
static inline void gpu_wait(const gpu_ranks *g) {
  for (int r = 0; r < g->n; r++) {
    emu_use(g->device[r]);
    OK(StreamSynchronize(g->stream[r]));
  }
}

/* Where the call's input and output of rank r begin. */
static inline CUdeviceptr gpu_out(const gpu_ranks *g, const gpu_call *c, int r) {
  size_t bytes = c->count * test_type_bytes(c->type);
  hk_coll coll = hk_coll_plain(c->coll);
  if (c->in_place && (coll == HK_REDUCE_SCATTER || coll == HK_SCATTER))
    return g->out[r] + c->offset + (size_t)r * bytes;
  return g->out[r] + c->offset;
}
static inline CUdeviceptr gpu_in(const gpu_ranks *g, const gpu_call *c, int r) {
  size_t bytes = c->count * test_type_bytes(c->type);
  if (!c->in_place) return g->in[r] + c->offset;
  hk_coll coll = hk_coll_plain(c->coll);
  if (coll == HK_ALLGATHER || coll == HK_GATHER) return g->out[r] + c->offset + (size_t)r * bytes;
  return g->out[r] + c->offset;
}

/* Of ranks [first, first + n): where others are in other processes. */
static inline void gpu_fill_some(const gpu_ranks *g, const gpu_call *c, int first, int ranks) {
  size_t unit = test_type_bytes(c->type);
  size_t n = c->count * (size_t)hk_coll_in_blocks(c->coll, g->n);
  char *host = malloc(n * unit + 1);
  for (int r = first; r < first + ranks; r++) {
    if (!hk_coll_has_input(c->coll, r, c->root)) continue;
    for (size_t i = 0; i < n; i++) test_store(c->type, host, i, test_value(r, g->n, c->shift + i, c->op));
    emu_use(g->device[r]);
    OK(MemcpyAsync(gpu_in(g, c, r), (CUdeviceptr)(uintptr_t)host, n * unit, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
  }
  free(host);
}

static inline void gpu_fill(const gpu_ranks *g, const gpu_call *c) { gpu_fill_some(g, c, 0, g->n); }

static inline ncclResult_t gpu_submit(const gpu_ranks *g, const gpu_call *c, int r) {
  const void *in = (const void *)(uintptr_t)gpu_in(g, c, r);
  void *out = (void *)(uintptr_t)gpu_out(g, c, r);
  cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
  size_t n[GPU_RANKS]; /* of an uneven collective */
  for (int i = 0; i < g->n; i++) n[i] = c->count;
  switch (c->coll) {
    case HK_ALLREDUCE: return ncclAllReduce(in, out, c->count, c->type, c->op, g->comm[r], s);
    case HK_BROADCAST: return ncclBroadcast(in, out, c->count, c->type, c->root, g->comm[r], s);
    case HK_REDUCE: return ncclReduce(in, out, c->count, c->type, c->op, c->root, g->comm[r], s);
    case HK_ALLGATHER: return ncclAllGather(in, out, c->count, c->type, g->comm[r], s);
    case HK_REDUCE_SCATTER: return ncclReduceScatter(in, out, c->count, c->type, c->op, g->comm[r], s);
    case HK_ALLTOALL: return ncclAlltoAll(in, out, c->count, c->type, g->comm[r], s);
    case HK_GATHER: return ncclGather(in, out, c->count, c->type, c->root, g->comm[r], s);
    case HK_SCATTER: return ncclScatter(in, out, c->count, c->type, c->root, g->comm[r], s);
    case HK_ALLGATHERV: return hocketAllGatherv(in, out, n, NULL, c->type, g->comm[r], s);
    case HK_REDUCE_SCATTERV: return hocketReduceScatterv(in, out, n, NULL, c->type, c->op, g->comm[r], s);
    case HK_ALLTOALLV: return hocketAlltoAllv(in, n, NULL, out, n, NULL, c->type, g->comm[r], s);
    default: return ncclInternalError;
  }
}
static inline void gpu_group(const gpu_ranks *g, const gpu_call *c) {
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < g->n; r++) OK_NCCL(gpu_submit(g, c, r));
  OK_NCCL(ncclGroupEnd());
}

/* Element i of rank r's output. */
static inline double gpu_wanted(const gpu_ranks *g, const gpu_call *c, int r, size_t i, double *tolerance) {
  size_t block = i / c->count, at = c->shift + i % c->count, all = c->shift + i;
  *tolerance = 0;
  switch (hk_coll_plain(c->coll)) {
    case HK_ALLREDUCE:
    case HK_REDUCE: return test_reduced(c->type, g->n, all, c->op, tolerance);
    case HK_REDUCE_SCATTER: return test_reduced(c->type, g->n, (size_t)r * c->count + all, c->op, tolerance);
    case HK_BROADCAST: return test_value(c->root, g->n, all, c->op);
    case HK_ALLTOALL: return test_value((int)block, g->n, (size_t)r * c->count + at, c->op);
    case HK_SCATTER: return test_value(c->root, g->n, (size_t)r * c->count + at, c->op);
    default: return test_value((int)block, g->n, at, c->op);
  }
}
static inline void gpu_check_some(const gpu_ranks *g, const gpu_call *c, int first, int ranks) {
  size_t unit = test_type_bytes(c->type), n = c->count * (size_t)hk_coll_out_blocks(c->coll, g->n);
  char *host = malloc(n * unit + 1);
  for (int r = first; r < first + ranks; r++) {
    if (!hk_coll_has_output(c->coll, r, c->root)) continue;
    emu_use(g->device[r]);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)host, gpu_out(g, c, r), n * unit, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    for (size_t i = 0; i < n; i++) {
      double tolerance, want = gpu_wanted(g, c, r, i, &tolerance), got = test_load(c->type, host, i);
      double off = got > want ? got - want : want - got, size = want < 0 ? -want : want;
      if (off <= tolerance * size) continue; /* an assertion that holds costs a system call */
      ck_abort_msg("%s, %zu of type %d, op %d: rank %d of %d, element %zu is %g, not %g", hk_coll_name(c->coll),
                   c->count, c->type, c->op, r, g->n, i, got, want);
    }
  }
  free(host);
}
static inline void gpu_check(const gpu_ranks *g, const gpu_call *c) { gpu_check_some(g, c, 0, g->n); }

/* Messages that fit a slot's header, an entry of a network's rings, a slot, and not. */
static inline void gpu_call_all(gpu_ranks *g) {
  static const hk_coll colls[] = {HK_ALLREDUCE, HK_BROADCAST, HK_ALLTOALL};
  for (size_t i = 0; i < sizeof colls / sizeof *colls; i++) {
    for (size_t count = 7; count < 10000; count *= 36) {
      gpu_call c = {.coll = colls[i], .count = count, .type = ncclFloat32, .op = ncclSum, .root = 1};
      gpu_fill(g, &c);
      for (int k = 0; k < 2; k++) gpu_group(g, &c);
      gpu_check(g, &c);
    }
  }
}

/* Bytes of memory of devices [0, n) that something has, by the driver's count. */
static inline size_t gpu_in_use(int n) {
  size_t sum = 0;
  for (int d = 0; d < n; d++) {
    size_t left = 0, all = 0;
    emu_use(d);
    OK(MemGetInfo(&left, &all));
    sum += all - left;
  }
  return sum;
}

static inline uint64_t gpu_held(ncclComm_t c, ncclCommMemStat_t what) {
  uint64_t value = 0;
  OK_NCCL(ncclCommMemStats(c, what, &value));
  return value;
}
#endif
