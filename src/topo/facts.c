/* SPDX-License-Identifier: Apache-2.0 */
/* Figures that are equal for all machines: parts by name, and bandwidth and latency of each kind of link. */
#include "facts.h"
#include <string.h>
#include <strings.h>

const hk_gpu_part hk_gpu_parts[] = {
#define HK_GPU_PART(name, kind, ...) {name, HK_GPU_##kind, __VA_ARGS__},
#define HK_GPU_DEVICE(...)
#define HK_CPU_PART(...)
#include "parts.def"
#undef HK_GPU_PART
#undef HK_GPU_DEVICE
#undef HK_CPU_PART
};
const unsigned hk_gpu_part_count = HK_ARRAY_LENGTH(hk_gpu_parts);

static const struct {
  uint16_t vendor, device;
  const char *part;
  float memory_gbps; /* 0: the part's */
} gpu_devices[] = {
#define HK_GPU_PART(...)
#define HK_GPU_DEVICE(...) {__VA_ARGS__},
#define HK_CPU_PART(...)
#include "parts.def"
#undef HK_GPU_PART
#undef HK_GPU_DEVICE
#undef HK_CPU_PART
};

const hk_cpu_part hk_cpu_parts[] = {
#define HK_GPU_PART(...)
#define HK_GPU_DEVICE(...)
#define HK_CPU_PART(...) {__VA_ARGS__},
#include "parts.def"
#undef HK_GPU_PART
#undef HK_GPU_DEVICE
#undef HK_CPU_PART
};
const unsigned hk_cpu_part_count = HK_ARRAY_LENGTH(hk_cpu_parts);

const hk_gpu_part *hk_gpu_part_find(const char *name) {
  for (unsigned i = 0; i < hk_gpu_part_count; i++)
    if (!strcasecmp(hk_gpu_parts[i].name, name)) return &hk_gpu_parts[i];
  return NULL;
}
const hk_cpu_part *hk_cpu_part_find(const char *name) {
  for (unsigned i = 0; i < hk_cpu_part_count; i++)
    if (!strcasecmp(hk_cpu_parts[i].name, name)) return &hk_cpu_parts[i];
  return NULL;
}

const hk_gpu_part *hk_gpu_part_like(const hk_node *gpu, float *memory_gbps) {
  const hk_gpu_part *p = NULL;
  float own = 0;
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(gpu_devices) && !p; i++)
    if (gpu_devices[i].vendor == gpu->pci.vendor && gpu_devices[i].device == gpu->pci.device)
      p = hk_gpu_part_find(gpu_devices[i].part), own = gpu_devices[i].memory_gbps;
  if (!p) p = hk_gpu_part_find(gpu->name);
  for (unsigned i = 0; i < hk_gpu_part_count && !p && gpu->gpu.sm > 0; i++)
    if (hk_gpu_parts[i].sm == gpu->gpu.sm) p = &hk_gpu_parts[i];
  if (memory_gbps && p) *memory_gbps = own > 0 ? own : p->memory_gbps;
  return p;
}

/* A model that is not in the table is like the newest older one. */
const hk_cpu_part *hk_cpu_part_like(const hk_cpu_info *cpu) {
  const hk_cpu_part *best = NULL;
  for (unsigned i = 0; i < hk_cpu_part_count; i++) {
    const hk_cpu_part *p = &hk_cpu_parts[i];
    if (strcmp(p->arch, cpu->arch) || strcmp(p->vendor, cpu->vendor)) continue;
    if (p->family > cpu->family || (p->family == cpu->family && p->model > cpu->model)) continue;
    if (!best || p->family > best->family || (p->family == best->family && p->model > best->model)) best = p;
  }
  return best;
}

float hk_cpu_link_gbps(const hk_cpu_info *cpu) {
  const hk_cpu_part *best = hk_cpu_part_like(cpu);
  if (best) return best->link_gbps;
  return strcmp(cpu->arch, "ppc64") ? 10 : 32;
}

float hk_port_gbps(float mbps) { return mbps / 8000 * 0.975f; }

float hk_pci_gts(int gen) {
  static const float gts[] = {0, 2.5f, 5, 8, 16, 32, 64};
  return gen >= 1 && gen < (int)HK_ARRAY_LENGTH(gts) ? gts[gen] : 0;
}

/* On a small system wires are the smaller part of a message's time. These values are the extra time of a store or read
 * of a few bytes that crosses the link. */
float hk_link_us(hk_edge_kind kind) {
  switch (kind) {
    case HK_EDGE_PCI: return 0.25f;
    case HK_EDGE_NVLINK: return 0.6f;
    case HK_EDGE_C2C: return 0.3f;
    case HK_EDGE_SYS: return 0.15f;
    case HK_EDGE_PORT: return 0.1f;
  }
  return 0;
}

hk_status hk_topo_link_usual(hk_topo *t, uint32_t a, uint32_t b, hk_edge_kind kind, unsigned count, float gbps) {
  const bool switched = t->nodes[a].kind == HK_NODE_NVS || t->nodes[b].kind == HK_NODE_NVS;
  return hk_topo_link(t, a, b, kind, count, gbps, switched ? HK_SWITCH_LINK_US : hk_link_us(kind));
}
