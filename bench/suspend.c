/* SPDX-License-Identifier: Apache-2.0 */
/* suspend [RANKS [ROUNDS]]: how long ncclCommSuspend and ncclCommResume take for ranks that are threads of one process,
 * each on a GPU of its own (8, 20 rounds).  On a machine without GPUs the emulated driver runs it, whose time is mostly
 * that of page faults:
 *   make build/gcc/bench/suspend && CUDAEMU_DEVICES=8 LD_LIBRARY_PATH=build/gcc/cudaemu \
 *     HOCKET_CUDA_IMAGE=build/gcc/cudaemu/kernels.so build/gcc/bench/suspend */
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include "../src/base/wait.h"

enum { MOST = 64, COUNT = 1 << 20 };
static int (*retain)(void **context, int device), (*set_current)(void *context), (*finish)(void);
static void *contexts[MOST], *memory[MOST];
static ncclComm_t comms[MOST];
static int ranks = 8, rounds = 20;

static void need(bool it, const char *what) {
  if (it) return;
  fprintf(stderr, "suspend: %s: %s\n", what, ncclGetLastError(NULL));
  exit(1);
}

static void use_device(int d) {
  if (!contexts[d]) need(retain(&contexts[d], d) == 0, "a GPU's context");
  need(set_current(contexts[d]) == 0, "a GPU's context");
}

static void all_reduce(void) {
  need(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
  for (int r = 0; r < ranks; r++)
    need(ncclAllReduce(memory[r], memory[r], COUNT, ncclFloat32, ncclSum, comms[r], NULL) == ncclSuccess,
         "ncclAllReduce");
  need(ncclGroupEnd() == ncclSuccess, "an allreduce");
  for (int r = 0; r < ranks; r++) { /* suspending would wait for it */
    use_device(r);
    need(finish() == 0, "an allreduce");
  }
}

static double change(bool suspend) {
  uint64_t begin = hk_now_ns();
  need(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
  for (int r = 0; r < ranks; r++)
    need((suspend ? ncclCommSuspend(comms[r], NCCL_SUSPEND_MEM) : ncclCommResume(comms[r])) == ncclSuccess, "a rank");
  need(ncclGroupEnd() == ncclSuccess, suspend ? "ncclCommSuspend" : "ncclCommResume");
  return (double)(hk_now_ns() - begin) / 1e6;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  if (argc > 1) ranks = atoi(argv[1]);
  if (argc > 2) rounds = atoi(argv[2]);
  need(ranks > 0 && ranks <= MOST && rounds > 0, "usage: suspend [RANKS [ROUNDS]]");
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  need(cuda, "libcuda.so.1 cannot be loaded");
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  retain = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  set_current = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
  finish = (int (*)(void))dlsym(cuda, "cuCtxSynchronize");
  need(init && retain && set_current && finish && init(0) == 0, "the CUDA driver does not start");
  need(ncclCommInitAll(comms, ranks, NULL) == ncclSuccess, "ncclCommInitAll");
  for (int r = 0; r < ranks; r++) {
    use_device(r);
    need(ncclMemAlloc(&memory[r], COUNT * sizeof(float)) == ncclSuccess, "ncclMemAlloc");
  }
  double *times[2] = {calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double))};
  uint64_t bytes = 0, more;
  need(times[0] && times[1], "memory");
  all_reduce();
  for (int r = 0; r < ranks; r++, bytes += more)
    need(ncclCommMemStats(comms[r], ncclStatGpuMemSuspend, &more) == ncclSuccess, "ncclCommMemStats");
  for (int i = 0; i < rounds; i++) {
    times[0][i] = change(true);
    times[1][i] = change(false);
    all_reduce();
  }
  for (int k = 0; k < 2; k++) {
    qsort(times[k], (size_t)rounds, sizeof(double), by_size);
    printf("%d ranks, %.0f MB: %s least %.1f ms, median %.1f ms of %d rounds\n", ranks, (double)bytes / 1e6,
           k ? "resume" : "suspend", times[k][0], times[k][rounds / 2], rounds);
  }
  for (int r = 0; r < ranks; r++) ncclCommDestroy(comms[r]);
  free(times[0]);
  free(times[1]);
  return 0;
}
