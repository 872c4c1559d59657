/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: which exist (by sysfs, the CUDA driver or NVML, whichever is available), and how NVLinks join them. */
#include <stdio.h>
#include <string.h>
#include "../base/array.h"
#include "../base/log.h"
#include "../base/sysfs.h"
#include "detect_scan.h"
#include "facts.h"

enum { NVIDIA = 0x10de, AMD = 0x1002 };

static bool detect_gpu_is_gpu(const hk_pci_seen *p) {
  uint32_t kind = p->class_code >> 8;
  if (p->function) return false;                                    /* a virtual function that a hypervisor passes on */
  if (p->vendor == NVIDIA) return kind == 0x0300 || kind == 0x0302; /* display; compute */
  return p->vendor == AMD && (kind == 0x0302 || kind == 0x0380 || kind == 0x1200);
}

hk_gpu_seen *hk_scan_gpu_find(hk_detect_scan *s, uint64_t id) {
  for (int i = 0; i < s->ngpu; i++)
    if (s->pci[s->gpu[i].pci].id == id) return &s->gpu[i];
  return NULL;
}

hk_gpu_seen *hk_scan_gpu_add(hk_detect_scan *s, uint64_t id) {
  int at = hk_scan_pci_find(s, id);
  hk_gpu_seen *known = hk_scan_gpu_find(s, id);
  if (known) return known;
  if (s->ngpu >= HK_GPU_LIMIT || (at < 0 && hk_scan_pci_invent(s, id, 0x030200, &at) != HK_OK)) return NULL;
  if (!HK_RESERVE_NEXT(s->gpu, s->ngpu)) return NULL;
  s->gpu[s->ngpu] = (hk_gpu_seen){.pci = at, .dev = -1};
  return &s->gpu[s->ngpu++];
}

/* GPUs that the driver hides from this process (CUDA_VISIBLE_DEVICES) take no part. */
static hk_status detect_gpu_drop_invisible(hk_detect_scan *s) {
  int kept = 0;
  for (int i = 0; i < s->ngpu; i++)
    if (s->gpu[i].dev >= 0) s->gpu[kept++] = s->gpu[i];
  int dropped = s->ngpu - kept;
  s->ngpu = kept;
  if (!dropped) return HK_OK;
  return hk_topo_remark(s->t,
                        "%d more GPU%s not visible to CUDA here (CUDA_VISIBLE_DEVICES, or not given to this container)",
                        dropped, dropped > 1 ? "s are" : " is");
}

/* The driver's own record of the installed GPUs. Containers usually do not hide it. */
static bool detect_gpu_driver_is_here(const hk_detect_scan *s) {
  return hk_sysfs_has(s->sys, "/proc/driver/nvidia/version") || hk_sysfs_has(s->sys, "/dev/nvidiactl");
}

static hk_status detect_gpu_missing_remarks(hk_detect_scan *s, bool cuda, bool nvml) {
  bool nvidia = false;
  int hidden = 0;
  for (int i = 0; i < s->ngpu; i++) {
    const bool made_up = s->pci[s->gpu[i].pci].made_up; /* by CUDA or AMD's driver */
    nvidia = nvidia || s->pci[s->gpu[i].pci].vendor == NVIDIA || (made_up && cuda);
    hidden += made_up;
  }
  if (s->live && !cuda && (nvidia || detect_gpu_driver_is_here(s)))
    HK_OR_RETURN(hk_topo_remark(
        s->t, "NVIDIA GPUs are there, but the CUDA driver (libcuda.so.1) cannot be used: their order and "
              "properties are not known; in a container, run it with its GPUs (--gpus all)"));
  if (nvidia && !nvml && s->live)
    HK_INFO_ONCE(
        HK_SUB_INIT | HK_SUB_GRAPH,
        "NVLinks cannot be seen without NVML (libnvidia-ml.so.1): GPUs count as joined by PCI alone, so that LL128 "
        "is not used between them and prices are too high. A container needs "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility, or NCCL_TOPO_FILE");
  if (nvidia && !nvml)
    HK_OR_RETURN(hk_topo_remark(s->t, "NVLinks cannot be seen: NVML (libnvidia-ml.so.1) %s",
                                s->live ? "cannot be used" : "is not used for a recorded machine"));
  if (hidden)
    HK_OR_RETURN(hk_topo_remark(
        s->t, "%d GPU%s shown by the driver but not by sysfs: the place in the PCI tree of %s is not known", hidden,
        hidden > 1 ? "s are" : " is", hidden > 1 ? "them" : "it"));
  return HK_OK;
}

hk_status hk_scan_gpus(hk_detect_scan *s) {
  int n = s->npci, cuda_count = 0;
  bool nvml = false;
  for (int i = 0; i < n; i++)
    if (detect_gpu_is_gpu(&s->pci[i]) && !hk_scan_gpu_add(s, s->pci[i].id))
      return HK_FAIL_ERRNO("no memory for the list of GPUs");
  bool ask = s->live || (s->flags & HK_DETECT_DRIVERS);
  bool cuda = ask && hk_scan_cuda(s, &cuda_count);
  if (cuda && cuda_count > 0) HK_OR_RETURN(detect_gpu_drop_invisible(s));
  if (ask) HK_OR_RETURN(hk_scan_nvml(s, &nvml));
  hk_scan_amd(s);
  HK_OR_RETURN(detect_gpu_missing_remarks(s, cuda, nvml));
  /* Without the driver the order is that of bus ids, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. */
  for (int i = 0; i < s->ngpu; i++) {
    if (s->gpu[i].dev < 0) s->gpu[i].dev = i;
    hk_scan_pci_keep(s, s->gpu[i].pci);
  }
  return HK_OK;
}

/* Both ends of a link between two GPUs report it: only the report of the lower node counts. */
static hk_status detect_gpu_place_links(hk_detect_scan *s, const hk_gpu_seen *g, uint32_t *nvs) {
  uint32_t me = s->pci[g->pci].node;
  float each = hk_nvlink_gbps(g->sm);
  if (each <= 0) each = hk_nvlink_gbps(70);
  for (int i = 0; i < g->nfars; i++) {
    const hk_gpu_link_end *far = &g->far[i];
    uint32_t other;
    if (far->kind == HK_FAR_SWITCH) {
      if (*nvs == HK_NO_NODE) HK_OR_RETURN(hk_topo_add(s->t, HK_NODE_NVS, 0, nvs));
      other = *nvs;
    } else if (far->kind == HK_FAR_CPU) {
      other = hk_scan_cpu_of(s, s->t->nodes[me].numa);
    } else {
      const hk_gpu_seen *peer = hk_scan_gpu_find(s, far->id);
      other = peer ? s->pci[peer->pci].node : HK_NO_NODE;
      if (other == HK_NO_NODE || other <= me) continue;
    }
    const float gbps = (far->gbps > 0 ? far->gbps : each) * (float)far->links;
    HK_OR_RETURN(hk_topo_link_usual(s->t, me, other, HK_EDGE_NVLINK, (unsigned)far->links, gbps));
  }
  return HK_OK;
}

static hk_status detect_gpu_remark_links_down(hk_detect_scan *s) {
  int most = 0;
  for (int i = 0; i < s->ngpu; i++) {
    int links = 0;
    for (int k = 0; k < s->gpu[i].nfars; k++) links += s->gpu[i].far[k].links;
    if (links > most) most = links;
    s->gpu[i].links = links;
  }
  for (int i = 0; i < s->ngpu; i++)
    if (s->gpu[i].links < most) {
      hk_status rc = hk_topo_remark(s->t, "GPU %d has %d links to others up, others here have %d%s", s->gpu[i].dev,
                                    s->gpu[i].links, most,
                                    s->pci[s->gpu[i].pci].vendor == AMD ? "" : ": see nvidia-smi nvlink --status");
      if (rc != HK_OK) return rc;
    }
  return HK_OK;
}

hk_status hk_scan_gpu_place(hk_detect_scan *s) {
  uint32_t node, nvs = HK_NO_NODE;
  for (int i = 0; i < s->ngpu; i++) {
    hk_gpu_seen *g = &s->gpu[i];
    HK_OR_RETURN(hk_scan_pci_place(s, g->pci, HK_NODE_GPU, &node));
    hk_node *n = &s->t->nodes[node];
    snprintf(n->name, sizeof n->name, "%s", g->name);
    n->gpu = (hk_gpu_info){.dev = g->dev,
                           .sm = g->sm,
                           .memory_gbps = g->memory_gbps,
                           .gdr = g->gdr,
                           .mcast = g->mcast,
                           .fabric = g->fabric};
    if (!(g->memory_gbps > 0)) hk_gpu_part_like(n, &n->gpu.memory_gbps);
    uint32_t cpu = hk_scan_cpu_of(s, n->numa);
    if (g->c2c_gbps > 0) HK_OR_RETURN(hk_topo_link_usual(s->t, node, cpu, HK_EDGE_C2C, 1, g->c2c_gbps));
  }
  for (int i = 0; i < s->ngpu; i++) HK_OR_RETURN(detect_gpu_place_links(s, &s->gpu[i], &nvs));
  return detect_gpu_remark_links_down(s);
}
