/* SPDX-License-Identifier: Apache-2.0 */
/* Timed copies by the driver's copy engines. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../../base/wait.h" /* hk_now_ns */
#include "../../device/cuda.h"
#include "bandwidth.h"

enum { ROUNDS = 3 };

typedef struct gpu {
  CUcontext context;
  CUstream stream;
  CUdeviceptr a, b; /* b->bytes each */
} gpu;

/* One direction, or two at the same time on streams of two devices. */
typedef struct way {
  CUcontext context;
  CUstream stream;
  CUdeviceptr to, from;
} way;

/* GB/s of all directions together: the fastest of some rounds. */
static hk_status measure_timed(const hk_bw *b, const way *ways, int n, double *out) {
  double best = 0;
  for (int round = 0; round <= ROUNDS; round++) { /* the first one warms up */
    int copies = round ? b->copies : 1;
    uint64_t begin = hk_now_ns();
    for (int i = 0; i < copies; i++)
      for (int k = 0; k < n; k++) {
        HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(ways[k].context), "cannot enter a GPU");
        HK_CUDA_OR_RETURN(hk_cu.MemcpyAsync(ways[k].to, ways[k].from, b->bytes, ways[k].stream),
                          "cannot copy %zu bytes", b->bytes);
      }
    for (int k = 0; k < n; k++) {
      HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(ways[k].context), "cannot enter a GPU");
      HK_CUDA_OR_RETURN(hk_cu.StreamSynchronize(ways[k].stream), "a copy failed");
    }
    double ns = (double)(hk_now_ns() - begin), rate = (double)b->bytes * copies * n / (ns > 0 ? ns : 1);
    if (round && rate > best) best = rate;
  }
  *out = best;
  return HK_OK;
}

/* ---- host memory ---- */

/* Memory is allocated on the node of the thread that touches it first. So the thread runs on the node's cores for a
 * while. */
static void measure_run_on(const hk_topo *t, int node, cpu_set_t *before) {
  cpu_set_t set;
  uint32_t at = t ? hk_topo_find(t, HK_NODE_CPU, (uint64_t)node) : UINT32_MAX;
  sched_getaffinity(0, sizeof *before, before);
  if (at == UINT32_MAX) return;
  CPU_ZERO(&set);
  for (int i = 0; i < HK_CPU_MASK_WORDS * 64 && i < CPU_SETSIZE; i++)
    if (t->nodes[at].cpu.mask[i / 64] >> (i % 64) & 1) CPU_SET(i, &set);
  if (CPU_COUNT(&set)) sched_setaffinity(0, sizeof set, &set); /* if that is not allowed, memory of any node is used */
}

static hk_status measure_memory(const hk_bw *b, hk_bw_host *h, const gpu *g, void *memory, hk_bw_memory kind) {
  CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory;
  HK_OR_RETURN(measure_timed(b, &(way){g->context, g->stream, g->a, at}, 1, &h->to[kind]));
  return measure_timed(b, &(way){g->context, g->stream, at, g->a}, 1, &h->from[kind]);
}

static hk_status measure_host(const hk_bw *b, hk_bw_host *h, const gpu *g) {
  hk_status rc = HK_OK;
  cpu_set_t before;
  measure_run_on(b->topo, h->node, &before);
  void *memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool pinned = false;
  if (memory == MAP_FAILED) {
    rc = HK_FAIL(HK_ERR_SYSTEM, "no memory for copies of %zu bytes: ask for fewer with --bytes", b->bytes);
    goto out;
  }
  memset(memory, 1, b->bytes);
  HK_TRY(measure_memory(b, h, g, memory, HK_BW_PAGEABLE), out);
  HK_CUDA_TRY(hk_cu.MemHostRegister(memory, b->bytes, CU_MEMHOSTREGISTER_PORTABLE), out,
              "cannot pin %zu bytes of host memory (ulimit -l may be too small)", b->bytes);
  pinned = true;
  rc = measure_memory(b, h, g, memory, HK_BW_PINNED);
out:
  if (pinned) hk_cu.MemHostUnregister(memory);
  if (memory != MAP_FAILED) munmap(memory, b->bytes);
  sched_setaffinity(0, sizeof before, &before);
  return rc;
}

/* ---- between GPUs ---- */

static way measure_copy_way(const gpu *from, const gpu *to) {
  return (way){from->context, from->stream, to->b, from->a};
}

/* Sends a pattern that only this pair uses, and compares what arrives at the other side. */
static hk_status measure_check_data(const hk_bw *b, hk_bw_pair *p, const gpu *g) {
  hk_status rc = HK_OK;
  const gpu *from = &g[p->from], *to = &g[p->to];
  size_t bytes = b->bytes < (1 << 20) ? b->bytes : 1 << 20;
  unsigned char *back = malloc(bytes), *sent = malloc(bytes);
  if (!back || !sent) {
    rc = HK_FAIL(HK_ERR_SYSTEM, "no memory");
    goto out;
  }
  for (size_t i = 0; i < bytes; i++) sent[i] = (unsigned char)((i * 131 + i / 4096) ^ (size_t)(p->from * 16 + p->to));
  HK_CUDA_TRY(hk_cu.CtxSetCurrent(from->context), out, "cannot enter GPU %d", p->from);
  HK_CUDA_TRY(hk_cu.MemcpyAsync(from->a, (CUdeviceptr)(uintptr_t)sent, bytes, from->stream), out,
              "cannot copy to GPU %d", p->from);
  HK_CUDA_TRY(hk_cu.MemcpyAsync(to->b, from->a, bytes, from->stream), out, "cannot copy from GPU %d to %d", p->from,
              p->to);
  HK_CUDA_TRY(hk_cu.StreamSynchronize(from->stream), out, "a copy from GPU %d to %d failed", p->from, p->to);
  HK_CUDA_TRY(hk_cu.CtxSetCurrent(to->context), out, "cannot enter GPU %d", p->to);
  HK_CUDA_TRY(hk_cu.MemcpyAsync((CUdeviceptr)(uintptr_t)back, to->b, bytes, to->stream), out, "cannot copy from GPU %d",
              p->to);
  HK_CUDA_TRY(hk_cu.StreamSynchronize(to->stream), out, "a copy from GPU %d failed", p->to);
  p->wrong = memcmp(sent, back, bytes) != 0;
out:
  free(back);
  free(sent);
  return rc;
}

static hk_status measure_enable_peers(const hk_bw *b, const gpu *g) {
  for (int i = 0; i < b->npairs; i++) {
    const hk_bw_pair *p = &b->pair[i];
    if (!p->peer) continue;
    HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(g[p->from].context), "cannot enter GPU %d", p->from);
    CUresult code = hk_cu.CtxEnablePeerAccess(g[p->to].context, 0);
    if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      HK_CUDA_OR_RETURN(code, "GPU %d should reach GPU %d, but cannot", p->from, p->to);
  }
  return HK_OK;
}

/* Measures without peer access first, because it stays enabled once it is enabled. */
static hk_status measure_pairs(hk_bw *b, const gpu *g) {
  for (int i = 0; i < b->npairs; i++) {
    hk_bw_pair *p = &b->pair[i];
    way there = measure_copy_way(&g[p->from], &g[p->to]);
    HK_OR_RETURN(measure_timed(b, &there, 1, p->from == p->to ? &p->direct : &p->staged));
  }
  HK_OR_RETURN(measure_enable_peers(b, g));
  for (int i = 0; i < b->npairs; i++) {
    hk_bw_pair *p = &b->pair[i];
    if (!p->peer) continue;
    way ways[2] = {measure_copy_way(&g[p->from], &g[p->to]), measure_copy_way(&g[p->to], &g[p->from])};
    HK_OR_RETURN(measure_timed(b, ways, 1, &p->direct));
    HK_OR_RETURN(measure_timed(b, ways, 2, &p->both));
    HK_OR_RETURN(measure_check_data(b, p, g));
  }
  return HK_OK;
}

static hk_status measure_open_gpu(const hk_bw *b, int i, gpu *g) {
  CUdevice device;
  HK_CUDA_OR_RETURN(hk_cu.DeviceGet(&device, i), "cannot open GPU %d", i);
  HK_CUDA_OR_RETURN(hk_cu.DevicePrimaryCtxRetain(&g->context, device), "cannot open GPU %d", i);
  HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(g->context), "cannot enter GPU %d", i);
  HK_CUDA_OR_RETURN(hk_cu.StreamCreateWithPriority(&g->stream, CU_STREAM_NON_BLOCKING, 0), "no stream on GPU %d", i);
  HK_CUDA_OR_RETURN(hk_cu.MemAlloc(&g->a, b->bytes), "no %zu bytes on GPU %d: ask for fewer with --bytes", b->bytes, i);
  HK_CUDA_OR_RETURN(hk_cu.MemAlloc(&g->b, b->bytes), "no %zu bytes on GPU %d: ask for fewer with --bytes", b->bytes, i);
  return HK_OK;
}
static void measure_close_gpu(int i, gpu *g) {
  CUdevice device;
  if (!g->context || hk_cu.DeviceGet(&device, i) != CUDA_SUCCESS) return;
  hk_cu.CtxSetCurrent(g->context);
  if (g->a) hk_cu.MemFree(g->a);
  if (g->b) hk_cu.MemFree(g->b);
  if (g->stream) hk_cu.StreamDestroy(g->stream);
  hk_cu.CtxSetCurrent(NULL);
  hk_cu.DevicePrimaryCtxRelease(device);
}

hk_status hk_bw_measure(hk_bw *b) {
  hk_status rc = HK_OK;
  gpu g[HK_BW_GPUS] = {{0}};
  for (int i = 0; i < b->ngpus; i++) HK_TRY(measure_open_gpu(b, i, &g[i]), out);
  for (int i = 0; i < b->nhosts; i++) HK_TRY(measure_host(b, &b->host[i], &g[b->host[i].gpu]), out);
  rc = measure_pairs(b, g);
out:
  for (int i = 0; i < b->ngpus; i++) measure_close_gpu(i, &g[i]);
  return rc;
}

hk_status hk_bw_try_pairs(hk_bw *b) {
  hk_status rc = HK_OK;
  gpu g[HK_BW_GPUS] = {{0}};
  for (int i = 0; i < b->ngpus; i++) HK_TRY(measure_open_gpu(b, i, &g[i]), out);
  HK_TRY(measure_enable_peers(b, g), out);
  for (int i = 0; i < b->npairs; i++)
    if (b->pair[i].peer) HK_TRY(measure_check_data(b, &b->pair[i], g), out);
out:
  for (int i = 0; i < b->ngpus; i++) measure_close_gpu(i, &g[i]);
  return rc;
}
