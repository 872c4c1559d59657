/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect RDMA: distances, settings and dma-bufs: see gdr.h. */
#include "gdr.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "../../base/log.h"
#include "../../base/param.h"
#include "../../topo/detect.h"
#include "../../topo/topo.h"

const char *hk_gdr_method_name(hk_gdr_method method) {
  static const char *const names[] = {"host memory", "dma-buf", "nvidia-peermem"};
  return names[method];
}

void hk_gdr_add_cause(char why[HK_GDR_WHY], const char *format, ...) {
  size_t used = strlen(why);
  va_list args;
  if (used && used + 2 < HK_GDR_WHY) used += (size_t)snprintf(why + used, HK_GDR_WHY - used, "; ");
  va_start(args, format);
  vsnprintf(why + used, HK_GDR_WHY - used, format, args);
  va_end(args);
}

void hk_gdr_look(const hk_settings *settings, hk_topo **t, hk_paths **paths, int rank) {
  static const hk_path_rules own_paths = {.no_pxn = true}; /* without paths through another GPU */
  if (hk_topo_detect_with_file(settings, t, 0) != HK_OK || hk_paths_new(paths, *t, &own_paths) != HK_OK)
    HK_INFO(HK_SUB_NET, "rank %d: the distance of network cards from its GPU is not known: %s", rank, hk_last_error());
}

/* Returns true if the port belongs to the card at this PCI address. */
static bool gdr_is_at_pci(const hk_topo *t, const hk_node *net, const char *pci) {
  uint64_t bus;
  if (!pci || !hk_bus_id_parse(pci, &bus)) return false;
  for (uint32_t i = net->first_edge; i < net->first_edge + net->nedges; i++) {
    const hk_node *n = &t->nodes[t->edges[i].to];
    if (n->kind == HK_NODE_NIC && n->id == bus) return true;
  }
  return false;
}

void hk_gdr_forget(hk_topo *t, hk_paths *paths) {
  hk_paths_free(paths);
  hk_topo_free(t);
}

hk_path_class hk_gdr_distance(const hk_paths *paths, int gpu, const char *card, const char *pci) {
  uint32_t from = UINT32_MAX, to = UINT32_MAX;
  for (uint32_t i = 0; paths && i < paths->topo->nnodes; i++) {
    const hk_node *n = &paths->topo->nodes[i];
    if (n->kind == HK_NODE_GPU && n->gpu.dev == gpu) from = i;
    if (n->kind == HK_NODE_NET && (strcmp(n->name, card) == 0 || gdr_is_at_pci(paths->topo, n, pci))) to = i;
  }
  if (from == UINT32_MAX || to == UINT32_MAX) return HK_PATH_DIS;
  return (hk_path_class)hk_path_between(paths, from, to)->cls;
}

bool hk_gdr_too_far(const hk_settings *settings, hk_path_class cls, char *why, size_t why_bytes) {
  const char *set = settings->NET_GDR_LEVEL;
  hk_path_class most = HK_PATH_PXB;
  int64_t old = settings->IB_CUDA_SUPPORT;
  if (set && *set) (void)hk_path_class_parse(set, &most); /* init has refused invalid values */
  *why = 0;
  if (old == 0)
    snprintf(why, why_bytes, "NCCL_IB_CUDA_SUPPORT is 0");
  else if (set && *set && most == HK_PATH_LOC)
    snprintf(why, why_bytes, "NCCL_NET_GDR_LEVEL is LOC");
  else if (!(old == 1 && !(set && *set)) && cls != HK_PATH_DIS && cls > most)
    snprintf(why, why_bytes, "too far: NCCL_NET_GDR_LEVEL is %s", hk_path_class_name(most));
  return *why != 0;
}

bool hk_gdr_is_split(const hk_paths *paths, int gpu, hk_path_class card) {
  uint32_t from = UINT32_MAX;
  if (card > HK_PATH_PXB) return false;
  for (uint32_t i = 0; paths && i < paths->topo->nnodes; i++)
    if (paths->topo->nodes[i].kind == HK_NODE_GPU && paths->topo->nodes[i].gpu.dev == gpu) from = i;
  for (uint32_t i = 0; from != UINT32_MAX && i < paths->topo->nnodes; i++)
    if (paths->topo->nodes[i].kind == HK_NODE_CPU && hk_path_between(paths, from, i)->cls == HK_PATH_C2C) return true;
  return false;
}

bool hk_gdr_needs_flush(const hk_settings *settings, const hk_device *gpu, bool split) {
  if (settings->GDR_FLUSH_DISABLE) return false;
  return split || settings->NET_FORCE_FLUSH || !gpu->limits.rdma_ordered;
}

int hk_gdr_dmabuf(const hk_settings *settings, hk_device *gpu, const void *p, size_t bytes, bool pci,
                  char why[HK_GDR_WHY]) {
  int fd = -1;
  if (!settings->DMABUF_ENABLE)
    hk_gdr_add_cause(why, "dma-buf: NCCL_DMABUF_ENABLE=0");
  else if (!gpu->limits.dmabuf || !gpu->ops->card)
    hk_gdr_add_cause(why, "dma-buf: the GPU's driver gives none (it needs the open kernel modules and Linux 5.12)");
  else if (gpu->ops->card->dmabuf(gpu, p, bytes, pci, &fd) != HK_OK) {
    hk_gdr_add_cause(why, "dma-buf: %.120s", hk_last_error());
    return -1;
  }
  return fd;
}
