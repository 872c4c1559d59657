/* SPDX-License-Identifier: Apache-2.0 */
/* Public figures of machines' parts, from parts.def; docs/topology.md has the sources. Detection, XML and machine
 * strings use them for values that the machine itself does not give. So the same machine gets the same numbers however
 * it was described. */
#pragma once
#include "topo.h"

typedef enum hk_gpu_kind { HK_GPU_NVIDIA, HK_GPU_AMD } hk_gpu_kind;

typedef struct hk_gpu_part {
  const char *name; /* "h100" */
  uint8_t kind;     /* hk_gpu_kind */
  int sm;           /* as in hk_gpu_info */
  float memory_gbps;
  int links; /* NVLinks or xGMI links; 0: none */
  int pci_gen, pci_width;
  float c2c_gbps; /* to its CPU; 0: none */
} hk_gpu_part;

typedef struct hk_cpu_part {
  const char *name; /* "sapphirerapids" */
  const char *arch, *vendor;
  int family, model;
  int cores;         /* a socket */
  float memory_gbps; /* a socket */
  float link_gbps;   /* between sockets */
} hk_cpu_part;

extern const hk_gpu_part hk_gpu_parts[];
extern const unsigned hk_gpu_part_count;
extern const hk_cpu_part hk_cpu_parts[];
extern const unsigned hk_cpu_part_count;
const hk_gpu_part *hk_gpu_part_find(const char *name); /* NULL: unknown */
const hk_cpu_part *hk_cpu_part_find(const char *name);
/* Finds a GPU's part by its PCI device, else its name, else its sm; NULL: unknown. memory_gbps (may be NULL) gets the
 * figure of its variant. */
const hk_gpu_part *hk_gpu_part_like(const hk_node *gpu, float *memory_gbps);
/* The newest part of the table that is not newer than this CPU; NULL: none. */
const hk_cpu_part *hk_cpu_part_like(const hk_cpu_info *cpu);

/* NICs without a PCI function (a socket in a container) have bus ids from HK_NIC_VIRTUAL on. A link of
 * HK_NIC_VIRTUAL_GBPS attaches them to a CPU. */
#define HK_NIC_VIRTUAL ((uint64_t)0xfffffffe << 20)
#define HK_NIC_VIRTUAL_GBPS 100.0f

/* GB/s between two NUMA nodes of a host with such CPUs. */
float hk_cpu_link_gbps(const hk_cpu_info *cpu);
/* GB/s of a network port, without the packets' headers. */
float hk_port_gbps(float mbps);
/* PCI: GT/s a lane of a generation 1..6; 0 for others. */
float hk_pci_gts(int gen);
/* What crossing a link adds to the latency. An NVLink: between two GPUs, or a GPU and a CPU. */
float hk_link_us(hk_edge_kind kind);
#define HK_SWITCH_LINK_US 0.35f /* of an NVLink to an NVSwitch */
/* hk_topo_link with that latency. */
hk_status hk_topo_link_usual(hk_topo *t, uint32_t a, uint32_t b, hk_edge_kind kind, unsigned count, float gbps);
