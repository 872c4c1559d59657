/* SPDX-License-Identifier: Apache-2.0 */
/* What detection has seen so far. The parts run in this order: CPUs, the list of PCI devices, GPUs, network ports. Then
 * the kept devices become nodes. */
#pragma once
#include "detect.h"
#include "topo.h"

#define HK_NO_NODE UINT32_MAX

typedef struct hk_pci_seen {
  uint64_t id;
  int parent; /* index in hk_detect_scan.pci, -1: a root */
  int numa;   /* -1: unknown */
  uint32_t class_code, vendor;
  hk_pci_info info;  /* complete once the device has been read */
  uint64_t function; /* of a virtual function: the physical one's id; else 0 */
  bool read, kept, made_up;
  int branches;  /* children that lead to a kept device */
  uint32_t node; /* HK_NO_NODE: none, or not yet */
} hk_pci_seen;

typedef enum hk_far_kind { HK_FAR_GPU, HK_FAR_SWITCH, HK_FAR_CPU } hk_far_kind;
enum { HK_GPU_FARS = 40, HK_GPU_LIMIT = 256 };
/* The other end of NVLinks. */
typedef struct hk_gpu_link_end {
  hk_far_kind kind;
  uint64_t id; /* a GPU's */
  int links;
  float gbps; /* of one; 0: as the GPU's generation has it */
} hk_gpu_link_end;
typedef struct hk_gpu_seen {
  int pci; /* index in hk_detect_scan.pci */
  int dev; /* CUDA's number; -1: CUDA hides it */
  int sm;
  float memory_gbps, c2c_gbps;
  bool gdr, dmabuf, mcast, mig;
  uint64_t fabric;
  char name[HK_NODE_NAME];
  int links; /* NVLinks that are up */
  int nfars; /* other ends of them */
  hk_gpu_link_end far[HK_GPU_FARS];
} hk_gpu_seen;

typedef struct hk_net_seen {
  char name[HK_NODE_NAME];
  int pci; /* index in hk_detect_scan.pci; -1: no device is visible */
  int port;
  float mbps;
  uint64_t guid;
  bool rdma, ethernet;
} hk_net_seen;

typedef struct hk_detect_scan {
  hk_topo *t;
  const char *sys;
  unsigned flags;
  bool live;    /* sys is this machine, so its drivers and libraries may be used */
  bool machine; /* this is a virtual machine */
  hk_pci_seen *pci;
  int npci, invented; /* npci: all; invented: those at the end, which sysfs does not show */
  hk_gpu_seen *gpu;
  int ngpu;
  hk_net_seen *net;
  int nnet;
  int no_link_speed, no_numa; /* no_link_speed: devices without a link speed; no_numa: devices without a NUMA node */
  struct hwloc_topology *hwloc;
  bool hwloc_devices; /* `hwloc` contains the devices, too */
} hk_detect_scan;

/* detect_cpu.c: the CPU nodes and the links between them. */
hk_status hk_scan_cpus(hk_detect_scan *s);
/* The CPU node of a NUMA number; the first one if it is unknown. */
uint32_t hk_scan_cpu_of(const hk_detect_scan *s, int numa);
int hk_scan_cpu_count(const hk_detect_scan *s);
/* "0-3,8" into a mask of HK_CPU_MASK_WORDS; false if it is no such list. */
bool hk_cpu_list_parse(const char *text, uint64_t *mask);

/* detect_hwloc.c. True if hwloc is available and gave the CPU nodes; *rc is then the outcome. */
bool hk_scan_hwloc_cpus(hk_detect_scan *s, hk_status *rc);
void hk_scan_hwloc_end(hk_detect_scan *s);
/* NUMA number of the CPU that a PCI device is attached to; -1: unknown. */
int hk_scan_hwloc_numa(hk_detect_scan *s, uint64_t bus_id);

/* detect_pci.c */
hk_status hk_scan_pci(hk_detect_scan *s);
int hk_scan_pci_find(const hk_detect_scan *s, uint64_t id); /* -1: not found */
/* Adds a device that sysfs does not show. */
hk_status hk_scan_pci_invent(hk_detect_scan *s, uint64_t id, uint32_t class_code, int *out);
/* Makes the node of a kept device, with its link to the parent and the bridges in between. */
hk_status hk_scan_pci_place(hk_detect_scan *s, int i, hk_node_kind kind, uint32_t *node);
void hk_scan_pci_keep(hk_detect_scan *s, int i);

/* detect_gpu.c, detect_cuda.c, detect_nvml.c */
hk_status hk_scan_gpus(hk_detect_scan *s);
hk_status hk_scan_gpu_place(hk_detect_scan *s);
hk_gpu_seen *hk_scan_gpu_find(hk_detect_scan *s, uint64_t id); /* by its bus id; NULL: not found */
/* Returns the existing one if there is one; NULL: no memory. */
hk_gpu_seen *hk_scan_gpu_add(hk_detect_scan *s, uint64_t id);
/* True if the driver answered; *n is the number of GPUs that it shows. */
bool hk_scan_cuda(hk_detect_scan *s, int *n);
hk_status hk_scan_nvml(hk_detect_scan *s, bool *there);

/* detect_amd.c */
void hk_scan_amd(hk_detect_scan *s);

/* detect_net.c */
hk_status hk_scan_nets(hk_detect_scan *s);
hk_status hk_scan_net_place(hk_detect_scan *s);
/* The PCI device in a path below /sys/devices; -1: none. */
int hk_scan_pci_of_path(const hk_detect_scan *s, const char *path);
