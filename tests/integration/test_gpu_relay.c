/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on emulated GPUs, on pretended hosts whose rails are not connected, each with a card of its own: what they send
 * to ranks of other rails goes through another rank (PXN).  The far end's card reads and writes the GPU's memory.
 * check: timeout=300 notsan */
#include <pthread.h>
#include "../support/fake_rdma.h"
#include "../support/gpu.h"
#include "../support/suite.h"

enum { RANKS = 4 };
static fake_verbs_state *verbs;
/* Rank r is on host r / 2, and may open card r alone; its rail is r % 2. */
static _Thread_local int self = -1;

/* In place of libc's: the host's name is part of its id. */
int gethostname(char *name, size_t bytes) {
  snprintf(name, bytes, "host%d", self / 2);
  return 0;
}
static int is_closed(int device) { return self >= 0 && self != device ? EPERM : 0; }

static void begin(gpu_ranks *g) {
  setenv("CUDAEMU_RDMA_ORDER", "0", 1);
  setenv("CUDAEMU_DMABUF", "1", 0);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  gpu_open(g, RANKS, RANKS, 1 << 18);
  rdma_plenty = true;
  verbs = rdma_begin(RANKS);
  verbs->closed = is_closed;
  for (int i = 0; i < RANKS; i++) verbs->device[i].rail = i % 2;
  rdma_param("NCCL_IB_HCA", "=fake0:1:0,fake1:1:1,fake2:1:0,fake3:1:1");
  rdma_param("NCCL_CROSS_NIC", "0");
  rdma_param("NCCL_NET", "IB");
  verbs->late = 1;
  verbs->gpu = (char *)(uintptr_t)(g->in[0] & ~(CUdeviceptr)0xfffff);
  verbs->gpu_bytes = (uint64_t)1 << 32;
  void *driver = dlopen(emu_file("libcuda.so.1"), RTLD_NOW | RTLD_NOLOAD);
  void *fakes = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ck_assert(driver && fakes);
  *(void **)dlsym(driver, "cudaemu_rdma_flush") = dlsym(fakes, "fake_verbs_flush");
  *(void **)&verbs->of_host = dlsym(driver, "cudaemu_of_host");
}

typedef struct rank_of {
  pthread_t thread;
  gpu_ranks *g;
  ncclUniqueId id;
  int rank;
} rank_of;

static void *init_rank(void *p) {
  rank_of *t = p;
  self = t->rank;
  emu_use(t->g->device[t->rank]);
  OK_NCCL(ncclCommInitRank(&t->g->comm[t->rank], RANKS, t->id, t->rank));
  return NULL;
}
/* A communicator's end waits for the near ranks of its links: all ranks leave together. */
static void *end_rank(void *p) {
  rank_of *t = p;
  emu_use(t->g->device[t->rank]);
  OK_NCCL(ncclCommDestroy(t->g->comm[t->rank]));
  t->g->comm[t->rank] = NULL;
  return NULL;
}
static void on_all(gpu_ranks *g, void *(*what)(void *)) {
  rank_of t[RANKS];
  ncclUniqueId id;
  OK_NCCL(ncclGetUniqueId(&id));
  for (int r = 0; r < RANKS; r++) {
    t[r] = (rank_of){.g = g, .id = id, .rank = r};
    ck_assert_int_eq(pthread_create(&t[r].thread, NULL, what, &t[r]), 0);
  }
  for (int r = 0; r < RANKS; r++) pthread_join(t[r].thread, NULL);
}

/* Every rank sends to the one `by` after it. */
static void ring(gpu_ranks *g, int by) {
  enum { BYTES = 100000 };
  static char out[BYTES];
  for (int r = 0; r < RANKS; r++) {
    emu_use(g->device[r]);
    OK(MemsetD8Async(g->in[r], (unsigned char)(r + 10 * by), BYTES, g->stream[r]));
  }
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    cudaStream_t s = (cudaStream_t)(void *)g->stream[r];
    OK_NCCL(ncclSend((void *)(uintptr_t)g->in[r], BYTES, ncclInt8, (r + by) % RANKS, g->comm[r], s));
    OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[r], BYTES, ncclInt8, (r + RANKS - by) % RANKS, g->comm[r], s));
  }
  OK_NCCL(ncclGroupEnd());
  for (int r = 0; r < RANKS; r++) {
    emu_use(g->device[r]);
    OK(MemcpyAsync((CUdeviceptr)(uintptr_t)out, g->out[r], sizeof out, g->stream[r]));
    OK(StreamSynchronize(g->stream[r]));
    suite_all(i, sizeof out, out[i] == (r + RANKS - by) % RANKS + 10 * by);
  }
}

/* What rests is the far ends' memory. */
static void suspend_and_resume(const gpu_ranks *g) {
  for (int resumes = 0; resumes < 2; resumes++) {
    OK_NCCL(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
      OK_NCCL(resumes ? ncclCommResume(g->comm[r]) : ncclCommSuspend(g->comm[r], NCCL_SUSPEND_MEM));
    OK_NCCL(ncclGroupEnd());
  }
}

TEST_LOOP(carries, 2) {
  static const char *const algorithms[] = {NULL, "ring"};
  gpu_ranks g;
  if (algorithms[_i]) setenv("NCCL_ALGO", algorithms[_i], 1);
  begin(&g);
  on_all(&g, init_rank);
  for (int turn = 0; turn < 2; turn++) {
    gpu_call_all(&g);
    for (int by = 1; by < RANKS; by++) ring(&g, by);
    suspend_and_resume(&g);
  }
  ck_assert_uint_gt(verbs->to_gpu, 0);
  on_all(&g, end_rank);
  ck_assert_uint_eq(verbs->crossed, 0);
  gpu_close(&g);
  rdma_end(verbs);
}

int main(void) { return gpu_main("gpu_relay", .timeout = 100); }
