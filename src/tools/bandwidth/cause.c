/* SPDX-License-Identifier: Apache-2.0 */
/* The nominal rate of a copy, and why the measured one may be lower. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../../device/cuda.h"
#include "../doctor/doctor.h"
#include "../machine.h"
#include "bandwidth.h"

static uint32_t cause_node_of_gpu(const hk_topo *t, int dev) {
  for (uint32_t i = 0; t && i < t->nnodes; i++)
    if (t->nodes[i].kind == HK_NODE_GPU && t->nodes[i].gpu.dev == dev) return i;
  return UINT32_MAX;
}

hk_status hk_bw_expect(hk_bw *b) {
  hk_status rc = HK_OK;
  hk_paths *direct = NULL, *hosted = NULL;
  CUdevice device[HK_BW_GPUS];
  HK_TRY(hk_paths_new(&direct, b->topo, NULL), out);
  HK_TRY(hk_paths_new(&hosted, b->topo, &(hk_path_rules){.no_p2p = true}), out);
  for (int i = 0; i < b->ngpus; i++) {
    HK_CUDA_TRY(hk_cu.DeviceGet(&device[i], i), out, "cannot open GPU %d", i);
    if (hk_cu.DeviceGetName(b->gpu_name[i], sizeof b->gpu_name[i], device[i]) != CUDA_SUCCESS) b->gpu_name[i][0] = 0;
  }
  for (int i = 0; i < b->nhosts; i++) {
    hk_bw_host *h = &b->host[i];
    uint32_t gpu = cause_node_of_gpu(b->topo, h->gpu), cpu = hk_topo_find(b->topo, HK_NODE_CPU, (uint64_t)h->node);
    if (gpu == UINT32_MAX || cpu == UINT32_MAX) continue;
    const hk_path *p = hk_path_between(direct, cpu, gpu);
    h->nominal = (double)p->gbps;
    snprintf(h->path, sizeof h->path, "%s", hk_path_class_name((hk_path_class)p->cls));
  }
  for (int i = 0; i < b->npairs; i++) {
    hk_bw_pair *p = &b->pair[i];
    int can = 0;
    if (p->from != p->to) {
      HK_CUDA_TRY(hk_cu.DeviceCanAccessPeer(&can, device[p->from], device[p->to]), out, "cannot query peer access");
    }
    p->peer = can != 0;
    uint32_t from = cause_node_of_gpu(b->topo, p->from), to = cause_node_of_gpu(b->topo, p->to);
    if (from == UINT32_MAX || to == UINT32_MAX) continue;
    const hk_path *way = hk_path_between(direct, from, to);
    snprintf(p->path, sizeof p->path, "%s", hk_path_class_name((hk_path_class)way->cls));
    p->nominal = p->from == p->to ? (double)b->topo->nodes[from].gpu.memory_gbps / 2 : (double)way->gbps;
    if (p->from != p->to) p->by_host = (double)hk_path_between(hosted, from, to)->gbps;
  }
out:
  hk_paths_free(direct);
  hk_paths_free(hosted);
  return rc;
}

/* ---- causes ---- */

static bool cause_short_of(const hk_bw *b, double rate, double nominal) {
  return rate >= 0 && nominal > 0 && rate * 100 < nominal * b->floor;
}

/* Appends a cause to those that are known. */
static void __attribute__((format(printf, 2, 3))) cause_add(char *cause, const char *format, ...) {
  size_t n = strlen(cause);
  va_list args;
  if (n && n + 3 < HK_BW_CAUSE) n += (size_t)snprintf(cause + n, HK_BW_CAUSE - n, "; ");
  va_start(args, format);
  vsnprintf(cause + n, HK_BW_CAUSE - n, format, args);
  va_end(args);
}

/* A link with fewer lanes than both ends have. (A low speed may only mean that the link is idle.) */
static void cause_blame_width(const hk_bw *b, int gpu, char *cause) {
  uint32_t at = cause_node_of_gpu(b->topo, gpu);
  char text[HK_LABEL];
  if (at == UINT32_MAX) return;
  const hk_pci_info *p = &b->topo->nodes[at].pci;
  if (p->max_width > p->width && p->width > 0)
    cause_add(cause, "GPU %d's PCIe link runs at %s: reseat it, or look at the slot's lanes in the BIOS", gpu,
              hk_pci_label(p, text));
}

/* Adds the doctor's findings about the bridges and the IOMMU. */
static void cause_blame_pci(const hk_bw *b, char *cause) {
  hk_doctor d = {.root = "", .live = true, .topo = b->topo};
  hk_doctor_acs(&d);
  hk_doctor_iommu(&d);
  for (int i = 0; i < d.n; i++)
    if (d.at[i].state != HK_DOC_OK) cause_add(cause, "%.150s", d.at[i].text);
  free(d.at);
}

static void cause_judge_host(const hk_bw *b, hk_bw_host *h, double best_of_gpu) {
  h->slow = cause_short_of(b, h->to[HK_BW_PINNED], h->nominal) || cause_short_of(b, h->from[HK_BW_PINNED], h->nominal);
  if (!h->slow) return;
  cause_blame_width(b, h->gpu, h->cause);
  if (strcmp(h->path, "SYS") == 0 && h->to[HK_BW_PINNED] < best_of_gpu * 0.9)
    cause_add(h->cause, "the memory is on the wrong socket: keep the process and its buffers on the GPU's NUMA node");
  if (!h->cause[0])
    cause_add(h->cause, "nothing found: other traffic, a virtual machine, or memory that is slower than the link");
}

static void cause_judge_pair(const hk_bw *b, hk_bw_pair *p) {
  if (p->wrong) cause_add(p->cause, "P2P DELIVERS WRONG DATA: set NCCL_P2P_DISABLE=1, and turn ACS and the IOMMU off");
  p->slow = cause_short_of(b, p->direct, p->nominal);
  if (p->from == p->to || (!p->slow && !p->wrong)) {
    if (p->slow) cause_add(p->cause, "nothing found: other work on the GPU, or copies too small (--bytes)");
    return;
  }
  if (strcmp(p->path, "NVL") == 0 || strcmp(p->path, "NVB") == 0) {
    if (!p->wrong) cause_add(p->cause, "NVLinks may be down: see nvidia-smi nvlink -s");
    return;
  }
  cause_blame_width(b, p->from, p->cause);
  cause_blame_width(b, p->to, p->cause);
  cause_blame_pci(b, p->cause);
  if (!p->cause[0] && strcmp(p->path, "SYS") == 0) cause_add(p->cause, "the path crosses the link between CPUs");
  if (!p->cause[0]) cause_add(p->cause, "nothing found: other traffic, or a virtual machine that hides its bridges");
}

int hk_bw_judge(hk_bw *b) {
  int bad = 0;
  for (int i = 0; i < b->nhosts; i++) {
    double best = 0;
    for (int k = 0; k < b->nhosts; k++)
      if (b->host[k].gpu == b->host[i].gpu && b->host[k].to[HK_BW_PINNED] > best) best = b->host[k].to[HK_BW_PINNED];
    cause_judge_host(b, &b->host[i], best);
    bad += b->host[i].slow;
  }
  for (int i = 0; i < b->npairs; i++) {
    cause_judge_pair(b, &b->pair[i]);
    bad += b->pair[i].slow || b->pair[i].wrong;
  }
  return bad;
}
