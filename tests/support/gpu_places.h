/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on the emulated GPUs that are processes, with one rank or more each, on one host or on pretended ones. */
#ifndef HK_TESTS_GPU_PLACES_H
#define HK_TESTS_GPU_PLACES_H
#include <signal.h>
#include <sys/wait.h>
#include "gpu_comms.h"
#include "suite.h"

/* A process and its ranks. */
typedef struct place {
  gpu_ranks g; /* of the whole communicator; only [first, first + each) are this process's */
  int process, first, each;
} place;

static inline void open_place(place *p, const ncclUniqueId *id, int devices) {
  gpu_ranks *g = &p->g;
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    emu_use(g->device[r] = r % devices);
    OK_NCCL(ncclCommInitRank(&g->comm[r], g->n, *id, r));
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) {
    g->in[r] = gpu_alloc(g->device[r], g->room);
    g->out[r] = gpu_alloc(g->device[r], g->room);
    g->stream[r] = emu_new_stream(CU_STREAM_NON_BLOCKING);
  }
}

/* Processes [0, n) of `each` ranks, all on devices that take turns, and on pretended hosts that do; `body` runs in
 * each with its ranks' comms open.  Gives how many ended otherwise than well. */
static inline int run_processes(int n, int each, int devices, int hosts, void (*body)(place *p)) {
  static const char *const names[] = {"north", "east", "south", "west"};
  int ends[2], bad = 0;
  pid_t pids[GPU_RANKS];
  ck_assert_int_eq(pipe(ends), 0);
  fflush(NULL);
  for (int i = 0; i < n; i++) {
    pids[i] = fork();
    if (pids[i]) continue;
    ncclUniqueId id;
    place p = {.process = i, .first = i * each, .each = each};
    p.g.n = n * each;
    p.g.room = 1 << 16;
    if (hosts > 1) setenv("NCCL_HOSTID", names[i % hosts], 1);
    emu_start(8);
    if (ranks_share_id(ends, i, n, &id)) _exit(2);
    open_place(&p, &id, devices);
    body(&p);
    for (int r = p.first; r < p.first + each; r++)
      if (p.g.comm[r]) OK_NCCL(ncclCommDestroy(p.g.comm[r]));
    _exit(0);
  }
  close(ends[0]);
  close(ends[1]);
  for (int i = 0; i < n; i++) {
    int status;
    waitpid(pids[i], &status, 0);
    bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  return bad;
}

/* This process's part of the world's data. */
static inline void each_call(place *p, gpu_call *c, int again) {
  gpu_fill_some(&p->g, c, p->first, p->each);
  for (int i = 0; i < again; i++) {
    OK_NCCL(ncclGroupStart());
    for (int r = p->first; r < p->first + p->each; r++) OK_NCCL(gpu_submit(&p->g, c, r));
    OK_NCCL(ncclGroupEnd());
  }
  gpu_check_some(&p->g, c, p->first, p->each);
}

/* All ranks of the communicator have come this far. */
static inline void meet_all(place *p) {
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 1, .type = ncclFloat32, .op = ncclSum};
  each_call(p, &c, 1);
}

/* Sends and receives `by` ranks round the ring of all. */
static inline void each_ring(place *p, int by) {
  enum { BYTES = 50000 };
  gpu_ranks *g = &p->g;
  for (int r = p->first; r < p->first + p->each; r++) {
    emu_use(g->device[r]);
    OK(MemsetD8Async(g->in[r], (unsigned char)(r + 10), BYTES, g->stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = p->first; r < p->first + p->each; r++) {
    cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
    OK_NCCL(ncclSend((void *)(uintptr_t)g->in[r], BYTES, ncclInt8, (r + by) % g->n, g->comm[r], s));
    OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[r], BYTES, ncclInt8, (r + g->n - by) % g->n, g->comm[r], s));
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = p->first; r < p->first + p->each; r++) {
    static char out[BYTES];
    emu_use(g->device[r]);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], sizeof out, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    suite_all(i, sizeof out, out[i] == (r + g->n - by) % g->n + 10);
  }
}
#endif
