/* SPDX-License-Identifier: Apache-2.0 */
/* suspend [RANKS [ROUNDS [procs]]]: how long ncclCommSuspend and ncclCommResume take for ranks of one process, or with
 * "procs" for as many processes, each on a GPU of its own (8, 20 rounds).  On a machine without GPUs the emulated
 * driver runs it, whose time is mostly that of page faults:
 *   make build/gcc/bench/suspend && CUDAEMU_DEVICES=8 LD_LIBRARY_PATH=build/gcc/cudaemu \
 *     HOCKET_CUDA_IMAGE=build/gcc/cudaemu/kernels.so build/gcc/bench/suspend */
#include <dlfcn.h>
#include <nccl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../src/base/wait.h"

enum { MOST = 64, COUNT = 1 << 20 };
/* What the processes share. */
static struct shared {
  ncclUniqueId id;
  _Atomic(int) arrived;
  _Atomic(uint64_t) bytes;
  uint64_t begin[MOST], end[MOST];
} * all;
static int (*retain)(void **context, int device), (*set_current)(void *context), (*finish)(void);
static void *contexts[MOST], *memory[MOST];
static ncclComm_t comms[MOST];
static int ranks = 8, rounds = 20;
static int first, each; /* of this process */
#define OWN(r) for (int r = first; r < first + each; r++)

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
  OWN(r)
  need(ncclAllReduce(memory[r], memory[r], COUNT, ncclFloat32, ncclSum, comms[r], NULL) == ncclSuccess,
       "ncclAllReduce");
  need(ncclGroupEnd() == ncclSuccess, "an allreduce");
  OWN(r) { /* suspending would wait for it */
    use_device(r);
    need(finish() == 0, "an allreduce");
  }
}

/* Of all processes, each of which is one step at a time. */
static void meet(void) {
  static int met;
  const int processes = ranks / each;
  met++;
  atomic_fetch_add(&all->arrived, 1);
  while (atomic_load(&all->arrived) < met * processes) sched_yield();
}

/* From the first rank's call to the last one's return. */
static double change(bool suspend) {
  meet();
  all->begin[first] = hk_now_ns();
  need(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
  OWN(r)
  need((suspend ? ncclCommSuspend(comms[r], NCCL_SUSPEND_MEM) : ncclCommResume(comms[r])) == ncclSuccess, "a rank");
  need(ncclGroupEnd() == ncclSuccess, suspend ? "ncclCommSuspend" : "ncclCommResume");
  all->end[first] = hk_now_ns();
  meet();
  uint64_t begin = all->begin[0], end = all->end[0];
  for (int r = each; r < ranks; r += each) {
    if (all->begin[r] < begin) begin = all->begin[r];
    if (all->end[r] > end) end = all->end[r];
  }
  return (double)(end - begin) / 1e6;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void init(bool processes) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  need(cuda, "libcuda.so.1 cannot be loaded");
  int (*start)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  retain = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  set_current = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
  finish = (int (*)(void))dlsym(cuda, "cuCtxSynchronize");
  need(start && retain && set_current && finish && start(0) == 0, "the CUDA driver does not start");
  if (processes) {
    if (first == 0) need(ncclGetUniqueId(&all->id) == ncclSuccess, "ncclGetUniqueId");
    meet();
    use_device(first);
    need(ncclCommInitRank(&comms[first], ranks, all->id, first) == ncclSuccess, "ncclCommInitRank");
  } else {
    need(ncclCommInitAll(comms, ranks, NULL) == ncclSuccess, "ncclCommInitAll");
  }
  OWN(r) {
    use_device(r);
    need(ncclMemAlloc(&memory[r], COUNT * sizeof(float)) == ncclSuccess, "ncclMemAlloc");
  }
}

static void measure(void) {
  double *times[2] = {calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double))};
  uint64_t more;
  need(times[0] && times[1], "memory");
  all_reduce();
  OWN(r) {
    need(ncclCommMemStats(comms[r], ncclStatGpuMemSuspend, &more) == ncclSuccess, "ncclCommMemStats");
    atomic_fetch_add(&all->bytes, more);
  }
  for (int i = 0; i < rounds; i++) {
    times[0][i] = change(true);
    times[1][i] = change(false);
    all_reduce();
  }
  for (int k = 0; k < 2 && first == 0; k++) {
    qsort(times[k], (size_t)rounds, sizeof(double), by_size);
    printf("%d ranks, %.0f MB: %s least %.1f ms, median %.1f ms of %d rounds\n", ranks,
           (double)atomic_load(&all->bytes) / 1e6, k ? "resume" : "suspend", times[k][0], times[k][rounds / 2], rounds);
  }
  OWN(r) ncclCommDestroy(comms[r]);
  free(times[0]);
  free(times[1]);
}

int main(int argc, char **argv) {
  if (argc > 1) ranks = atoi(argv[1]);
  if (argc > 2) rounds = atoi(argv[2]);
  const bool processes = argc > 3 && strcmp(argv[3], "procs") == 0;
  need(ranks > 0 && ranks <= MOST && rounds > 0 && (argc < 4 || processes), "usage: suspend [RANKS [ROUNDS [procs]]]");
  all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  need(all != MAP_FAILED, "memory");
  each = processes ? 1 : ranks;
  for (int p = 1; processes && p < ranks && first == 0; p++) {
    pid_t pid = fork();
    need(pid >= 0, "fork");
    if (pid == 0) first = p;
  }
  init(processes);
  measure();
  int status, bad = 0;
  while (first == 0 && wait(&status) > 0) bad |= status;
  return bad != 0;
}
