/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs' links over the network: little of it until a large message comes, and more then, also between graphs
 * that were captured before; if there is no more; if the two ranks' calls do not match.
 * check: timeout=300 long=tsan */
#include "../../src/gpu/gpu.h"
#include "../../src/gpu/memory.h"
#include "../support/fake_rdma.h"
#include "../support/gpu.h"
#include "../support/suite.h"

static fake_verbs_state *verbs;
static gpu_ranks all;

/* Large payloads in the GPUs' memory, in the host's, over sockets. */
typedef enum way { GPUS, HOST, SOCKETS, WAYS } way;

static gpu_ranks *begin(int ranks, int by, size_t capacity) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("CUDAEMU_DMABUF", "1", 1);
  gpu_open(&all, ranks, ranks < 8 ? ranks : 8, capacity);
  verbs = rdma_begin(2);
  rdma_plenty = true;
  rdma_param("NCCL_NET_GDR_LEVEL", by == GPUS ? "" : "LOC");
  rdma_param("NCCL_NET", by == SOCKETS ? "Socket" : "IB");
  return &all;
}
static void end(void) {
  gpu_close(&all);
  rdma_end(verbs);
}

static void run(gpu_ranks *g, hk_coll coll, size_t count) {
  gpu_call c = {.coll = coll, .count = count, .type = ncclFloat32, .op = ncclSum, .shift = count};
  gpu_fill(g, &c);
  for (int k = 0; k < 2; k++) gpu_group(g, &c);
  gpu_check(g, &c);
}

/* Of the GPUs, pinned, and registered with cards. */
static size_t memory_of(const gpu_ranks *g) {
  size_t sum = gpu_in_use(8);
  for (int r = 0; r < g->n; r++)
    for (int which = 0; which < HK_GPU_PINNED; which++)
      for (const hk_gpu_chunk *k = hk_gpu_of(g->comm[r])->memory->pinned[which]; k; k = k->next) sum += k->used;
  pthread_mutex_lock(&verbs->lock);
  sum += verbs->locked;
  pthread_mutex_unlock(&verbs->lock);
  return sum;
}

TEST_LOOP(small_messages_need_little, WAYS + 1) {
  enum { N = 4, PAIRS = N * (N - 1) };
  gpu_ranks *g = begin(N, _i % WAYS, (size_t)N << 15);
  if (_i >= WAYS) rdma_param("HOCKET_SLOT_BYTES", "524288"); /* however large slots are */
  gpu_init_all(g);
  const size_t before = memory_of(g);
  run(g, HK_ALLTOALL, 256);
  const size_t small = memory_of(g) - before;
  ck_assert_msg(small / PAIRS < 256 << 10, "%zu bytes a peer", small / PAIRS);
  ck_assert_uint_gt(small / PAIRS, 64 << 10); /* the links themselves */
  if (_i >= WAYS) {
    return;
  }
  run(g, HK_ALLTOALL, 5000);
  ck_assert_uint_gt((memory_of(g) - before) / PAIRS, 2 << 20);
  run(g, HK_ALLTOALL, 256);
}

/* Both sizes in one group, and in turn: what is under way stays where it is. */
TEST_LOOP(grows_in_turn, WAYS) {
  gpu_ranks *g = begin(3, _i, 3 << 20);
  gpu_init_all(g);
  OK_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; r++)
    for (size_t k = 0; k < 4; k++) {
      const size_t count = k % 2 ? 30000 : 100, at = k * 130000;
      OK_NCCL(ncclSend((void *)(uintptr_t)(g->in[r] + at), count, ncclFloat32, (r + 1) % 3, g->comm[r],
                       (cudaStream_t)(void *)g->stream[r]));
      OK_NCCL(ncclRecv((void *)(uintptr_t)(g->out[r] + at), count, ncclFloat32, (r + 2) % 3, g->comm[r],
                       (cudaStream_t)(void *)g->stream[r]));
    }
  OK_NCCL(ncclGroupEnd());
  gpu_wait(g);
  static const size_t counts[] = {7, 1016, 1017, 7, 9000, 100000, 12};
  for (hk_coll coll = HK_ALLREDUCE; coll <= HK_ALLGATHER; coll++)
    for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) run(g, coll, counts[k]);
}

/* Kernels are under way that need the proxies, on a driver that waits for kernels when it allocates. */
static void allocate_beside_kernels(gpu_ranks *g) {
  gpu_init_all(g);
  gpu_call c = {.coll = HK_ALLREDUCE, .count = 300, .type = ncclFloat32, .op = ncclSum};
  gpu_fill(g, &c);
  for (int k = 0; k < 50; k++) {
    c.count = k == 40 ? 20000 : 300;
    gpu_group(g, &c);
  }
  gpu_check(g, &c);
  run(g, HK_ALLREDUCE, 20000);
}

TEST_LOOP(grows_beside_kernels, WAYS) {
  setenv("CUDAEMU_SYNC_ALLOC", "1", 1);
  gpu_ranks *g = begin(2, _i, 1 << 18);
  allocate_beside_kernels(g);
}

/* Links that have all of their memory from the beginning: little may be locked, or slots are short. */
TEST_LOOP(opens_beside_kernels, 2 * WAYS) {
  struct rlimit limit;
  const bool scarce = _i >= WAYS;
  setenv("CUDAEMU_SYNC_ALLOC", "1", 1);
  gpu_ranks *g = begin(2, _i % WAYS, 1 << 18);
  rdma_plenty = !scarce;
  ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (scarce && limit.rlim_cur > 4 << 20) limit.rlim_cur = 4 << 20;
  if (scarce) ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (!scarce) rdma_param("HOCKET_SLOT_BYTES", "8192");
  allocate_beside_kernels(g);
}

/* ---- graphs ---- */

/* Captured before the links grow, while they grow, and after. */
TEST_LOOP(graphs, WAYS) {
  static const size_t counts[] = {300, 40000, 200};
  gpu_graph x[HK_ARRAY_LENGTH(counts)];
  gpu_ranks *g = begin(2, _i, 1 << 18);
  gpu_init_all(g);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
    const gpu_call c = {.coll = HK_ALLREDUCE, .count = counts[k], .type = ncclInt32, .op = ncclSum};
    gpu_capture(g, &c, &x[k]);
    for (size_t i = 0; i <= k; i++) gpu_replay(g, &x[i]);
    run(g, HK_ALLREDUCE, 100);
  }
  for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
    gpu_replay(g, &x[k]);
    gpu_graph_free(g, &x[k]);
  }
}

/* ---- failures ---- */

/* The GPUs' memory is used up when the links grow: then it is the host's. */
TEST(full_gpu) {
  CUdeviceptr rest[2][64];
  int n[2] = {0, 0};
  setenv("NCCL_ALGO", "ring", 1); /* all calls use the same links */
  gpu_ranks *g = begin(2, GPUS, 1 << 18);
  gpu_init_all(g);
  run(g, HK_ALLREDUCE, 100);
  for (int r = 0; r < 2; r++) {
    emu_use(g->device[r]);
    for (size_t bytes = (size_t)1 << 40; bytes >= 4096; bytes /= 2)
      while (n[r] < 64 && cu.MemAlloc(&rest[r][n[r]], bytes) == CUDA_SUCCESS) n[r]++;
  }
  run(g, HK_ALLREDUCE, 20000);
  pthread_mutex_lock(&verbs->lock);
  ck_assert_uint_eq(verbs->from_gpu + verbs->to_gpu, 0);
  pthread_mutex_unlock(&verbs->lock);
  run(g, HK_ALLREDUCE, 50);
  for (int r = 0; r < 2; r++)
    for (int i = 0; i < n[r]; i++) OK(MemFree(rest[r][i]));
}

/* One rank's call has large messages, the other one's has small ones: it grows so that its kernel sees that. */
TEST_LOOP(mismatch, 2 * WAYS) {
  const bool warm = _i >= WAYS;
  gpu_ranks *g = begin(2, _i % WAYS, 1 << 18);
  gpu_init_all(g);
  if (warm) run(g, HK_ALLTOALL, 100);
  for (int r = 0; r < 2; r++) {
    cudaStream_t q = (cudaStream_t)(void *)g->stream[r];
    if (r == 0) OK_NCCL(ncclSend((void *)(uintptr_t)g->in[r], 20000, ncclFloat32, 1, g->comm[r], q));
    if (r == 1) OK_NCCL(ncclRecv((void *)(uintptr_t)g->out[r], 10, ncclFloat32, 0, g->comm[r], q));
  }
  for (int r = 1; r >= 0; r--)
    ck_assert_int_eq(wait_for_error(g->comm[r]), ncclInvalidUsage); /* the receiver sees it */
  gpu_wait(g);
}

int main(void) {
  setenv("HOCKET_SLOT_BYTES", "131072", 1);
  setenv("HOCKET_SLOTS", "8", 1);
  gpu_environment();
  return gpu_here() ? suite_main("gpu_slots", .timeout = 200, .teardown = end) : 77;
}
