/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by the driver's copy engines, between GPUs and host memory and between GPUs: their speed, compared with the
 * bandwidth of the path, and whether the data arrives unchanged. Some machines offer peer access and corrupt data. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../../base/wait.h" /* hk_now_ns */
#include "../../device/cuda.h"
#include "../../topo/paths.h"
#include "../../topo/topo.h"
#include "doctor.h"

enum {
  GPUS = 16,
  BYTES = 32 << 20,        /* of a copy: more than caches hold */
  COPIES = 4,              /* of a measurement */
  ROUNDS = 2,              /* the fastest one counts */
  PATTERN_BYTES = 1 << 20, /* every page and every line of a page has another pattern */
  SLOW_PERCENT = 75        /* of the nominal rate */
};

typedef struct gpu {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUdeviceptr a, b; /* BYTES each */
  uint32_t node;    /* in the topology; UINT32_MAX: not there */
} gpu;

typedef struct rates {
  hk_doctor *d;
  int n;
  gpu gpu[GPUS];
  hk_paths *paths;
} rates;

static hk_status rates_open(rates *r, hk_doctor *d, int n) {
  r->d = d;
  HK_OR_RETURN(hk_paths_new(&r->paths, d->topo, NULL));
  for (r->n = 0; r->n < n && r->n < GPUS;) {
    gpu *g = &r->gpu[r->n];
    HK_CUDA_OR_RETURN(hk_cu.DeviceGet(&g->device, r->n), "cannot open GPU %d", r->n);
    HK_CUDA_OR_RETURN(hk_cu.DevicePrimaryCtxRetain(&g->context, g->device), "cannot open GPU %d", r->n);
    g->node = UINT32_MAX;
    for (uint32_t i = 0; i < d->topo->nnodes; i++)
      if (d->topo->nodes[i].kind == HK_NODE_GPU && d->topo->nodes[i].gpu.dev == r->n) g->node = i;
    r->n++;
    HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(g->context), "cannot enter a GPU");
    HK_CUDA_OR_RETURN(hk_cu.StreamCreateWithPriority(&g->stream, CU_STREAM_NON_BLOCKING, 0), "no stream on a GPU");
    HK_CUDA_OR_RETURN(hk_cu.MemAlloc(&g->a, BYTES), "no %d MiB on a GPU", BYTES >> 20);
    HK_CUDA_OR_RETURN(hk_cu.MemAlloc(&g->b, BYTES), "no %d MiB on a GPU", BYTES >> 20);
  }
  return HK_OK;
}

static void rates_close(rates *r) {
  for (int i = 0; i < r->n; i++) {
    gpu *g = &r->gpu[i];
    hk_cu.CtxSetCurrent(g->context);
    if (g->a) hk_cu.MemFree(g->a);
    if (g->b) hk_cu.MemFree(g->b);
    if (g->stream) hk_cu.StreamDestroy(g->stream);
    hk_cu.CtxSetCurrent(NULL);
    hk_cu.DevicePrimaryCtxRelease(g->device);
  }
  hk_paths_free(r->paths);
}

static hk_status rates_copy(const gpu *by, CUdeviceptr to, CUdeviceptr from, size_t bytes, int copies) {
  HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(by->context), "cannot enter a GPU");
  for (int i = 0; i < copies; i++)
    HK_CUDA_OR_RETURN(hk_cu.MemcpyAsync(to, from, bytes, by->stream), "cannot copy %zu bytes", bytes);
  HK_CUDA_OR_RETURN(hk_cu.StreamSynchronize(by->stream), "a copy failed");
  return HK_OK;
}

/* In GB/s. */
static hk_status rates_measure(const gpu *by, CUdeviceptr to, CUdeviceptr from, double *out) {
  *out = 0;
  HK_OR_RETURN(rates_copy(by, to, from, BYTES, 1)); /* warms up */
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t begin = hk_now_ns();
    HK_OR_RETURN(rates_copy(by, to, from, BYTES, COPIES));
    double rate = (double)BYTES * COPIES / (double)(hk_now_ns() - begin + 1);
    if (rate > *out) *out = rate;
  }
  return HK_OK;
}

static const hk_path *rates_path(const rates *r, uint32_t from, uint32_t to) {
  return from == UINT32_MAX || to == UINT32_MAX ? NULL : hk_path_between(r->paths, from, to);
}
static bool rates_slow(double gbps, const hk_path *p) { return p && gbps * 100 < (double)p->gbps * SLOW_PERCENT; }

/* --- Host memory --- */

/* Memory is allocated on the node of the thread that touches it first. So the thread runs on the node's cores for a
 * while. */
static void rates_run_on(const hk_node *cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < HK_CPU_MASK_WORDS * 64 && i < CPU_SETSIZE; i++)
    if (cpu->cpu.mask[i / 64] >> (i % 64) & 1) CPU_SET(i, &set);
  if (CPU_COUNT(&set)) sched_setaffinity(0, sizeof set, &set); /* if that is not allowed, memory of any node is used */
}

static hk_status rates_pinned(const rates *r, const gpu *g, uint32_t cpu, double *to, double *from) {
  hk_status rc = HK_OK;
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  rates_run_on(&r->d->topo->nodes[cpu]);
  void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool pinned = false;
  if (memory == MAP_FAILED) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for copies of %d MiB", BYTES >> 20), out);
  memset(memory, 1, BYTES);
  HK_CUDA_TRY(hk_cu.CtxSetCurrent(g->context), out, "cannot enter a GPU");
  HK_CUDA_TRY(hk_cu.MemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_PORTABLE), out,
              "cannot pin %d MiB of host memory (ulimit -l may be too small)", BYTES >> 20);
  pinned = true;
  HK_TRY(rates_measure(g, g->a, (CUdeviceptr)(uintptr_t)memory, to), out);
  rc = rates_measure(g, (CUdeviceptr)(uintptr_t)memory, g->a, from);
out:
  if (pinned) hk_cu.MemHostUnregister(memory);
  if (memory != MAP_FAILED) munmap(memory, BYTES);
  sched_setaffinity(0, sizeof before, &before);
  return rc;
}

static hk_status rates_gpu(rates *r, int i) {
  const hk_topo *t = r->d->topo;
  const gpu *g = &r->gpu[i];
  double own, best = 0, back = 0;
  uint32_t nearest = 0;
  HK_OR_RETURN(rates_measure(g, g->b, g->a, &own));
  for (uint32_t k = t->first_of[HK_NODE_CPU]; k < t->first_of[HK_NODE_CPU + 1]; k++) {
    const hk_path *p = rates_path(r, k, g->node);
    double to, from;
    HK_OR_RETURN(rates_pinned(r, g, k, &to, &from));
    if (rates_slow(to, p) || rates_slow(from, p))
      hk_doctor_say(r->d, HK_DOC_NOTE, "hocket doctor links numa",
                    "GPU %d and node %d's memory: %.1f GB/s there, %.1f GB/s back; the path (%s) can carry %.1f", i,
                    (int)t->nodes[k].id, to, from, hk_path_class_name((hk_path_class)p->cls), (double)p->gbps);
    if (to + from > best + back) best = to, back = from, nearest = k;
  }
  hk_doctor_say(r->d, HK_DOC_OK, NULL,
                "GPU %d: %.1f GB/s from node %d's pinned memory, %.1f GB/s back; %.1f GB/s within its own", i, best,
                (int)t->nodes[nearest].id, back, own);
  return HK_OK;
}

static hk_status rates_gpus(rates *r) {
  for (int i = 0; i < r->n; i++) HK_OR_RETURN(rates_gpu(r, i));
  return HK_OK;
}

/* --- Between GPUs --- */

/* Sends a pattern that only this pair uses, and compares what arrives at the other side. */
static hk_status rates_compare(const rates *r, int from, int to, bool *same) {
  hk_status rc;
  const gpu *x = &r->gpu[from], *y = &r->gpu[to];
  unsigned char *sent = malloc(2 * PATTERN_BYTES), *back;
  if (!sent) return HK_FAIL_ERRNO("no memory to compare copies");
  back = sent + PATTERN_BYTES;
  for (size_t i = 0; i < PATTERN_BYTES; i++)
    sent[i] = (unsigned char)((i * 131 + i / 4096) ^ (size_t)(from * GPUS + to));
  HK_TRY(rates_copy(x, x->a, (CUdeviceptr)(uintptr_t)sent, PATTERN_BYTES, 1), out);
  HK_TRY(rates_copy(x, y->b, x->a, PATTERN_BYTES, 1), out);
  HK_TRY(rates_copy(y, (CUdeviceptr)(uintptr_t)back, y->b, PATTERN_BYTES, 1), out);
  *same = !memcmp(sent, back, PATTERN_BYTES);
out:
  free(sent);
  return rc;
}

typedef struct tally {
  int pairs, peers, wrong;
  double least, most; /* GB/s */
} tally;

static hk_status rates_pair(rates *r, int from, int to, tally *t) {
  const gpu *x = &r->gpu[from], *y = &r->gpu[to];
  const hk_path *p = rates_path(r, x->node, y->node);
  const char *path = p ? hk_path_class_name((hk_path_class)p->cls) : "unknown";
  double gbps;
  bool same = false;
  int can = 0;
  t->pairs++;
  HK_CUDA_OR_RETURN(hk_cu.DeviceCanAccessPeer(&can, x->device, y->device), "cannot query peer access");
  if (!can) return HK_OK;
  t->peers++;
  HK_CUDA_OR_RETURN(hk_cu.CtxSetCurrent(x->context), "cannot enter GPU %d", from);
  CUresult code = hk_cu.CtxEnablePeerAccess(y->context, 0);
  if (code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    HK_CUDA_OR_RETURN(code, "GPU %d should reach GPU %d, but cannot", from, to);
  HK_OR_RETURN(rates_measure(x, y->b, x->a, &gbps));
  HK_OR_RETURN(rates_compare(r, from, to, &same));
  t->wrong += !same;
  if (!same)
    hk_doctor_say(r->d, HK_DOC_PROBLEM, "NCCL_P2P_DISABLE=1; then turn ACS and the IOMMU off in the firmware",
                  "GPU %d writes other data into GPU %d's memory than was sent (path %s)", from, to, path);
  if (rates_slow(gbps, p))
    hk_doctor_say(r->d, HK_DOC_NOTE, p->cls <= HK_PATH_NVB ? "nvidia-smi nvlink -s" : "hocket doctor links acs iommu",
                  "GPU %d to GPU %d: %.1f GB/s; the path (%s) can carry %.1f", from, to, gbps, path, (double)p->gbps);
  if (t->peers == 1 || gbps < t->least) t->least = gbps;
  if (gbps > t->most) t->most = gbps;
  return HK_OK;
}

static hk_status rates_pairs(rates *r) {
  tally t = {0};
  for (int from = 0; from < r->n; from++)
    for (int to = 0; to < r->n; to++)
      if (from != to) HK_OR_RETURN(rates_pair(r, from, to, &t));
  if (t.peers < t.pairs)
    hk_doctor_say(r->d, HK_DOC_NOTE, "hocket topo; nvidia-smi topo -p2p w",
                  "%d of %d pairs of GPUs have no peer access: their traffic goes through host memory",
                  t.pairs - t.peers, t.pairs);
  if (t.peers > t.wrong)
    hk_doctor_say(r->d, HK_DOC_OK, NULL,
                  "%d pairs of GPUs write to each other's memory, and 1 MiB arrived unchanged; %.1f to %.1f GB/s",
                  t.peers - t.wrong, t.least, t.most);
  return HK_OK;
}

/* --- The checks --- */

static void rates_check(hk_doctor *d, int least, const char *what, hk_status (*measure)(rates *r)) {
  rates r = {0};
  int n = 0;
  if (!d->live || !d->topo || !hk_cuda_here(&n) || n < least) return;
  hk_status rc = rates_open(&r, d, n);
  if (rc == HK_OK) rc = measure(&r);
  if (rc != HK_OK)
    hk_doctor_say(d, HK_DOC_PROBLEM, "nvidia-smi; dmesg | grep -i nvidia", "copies %s GPUs cannot be tried: %.400s",
                  what, hk_last_error());
  rates_close(&r);
}

void hk_doctor_copies(hk_doctor *d) { rates_check(d, 1, "to", rates_gpus); }
void hk_doctor_p2p(hk_doctor *d) { rates_check(d, 2, "between", rates_pairs); }
