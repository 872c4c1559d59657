/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Detects this machine through hwloc, the CUDA driver, NVML, verbs and sysfs; missing ones are skipped. Nothing is
 * required: in a container that hides everything the result is one CPU, with a remark about each thing that could not
 * be seen.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_settings; /* base/param.h */
struct hk_topo;

enum {
  HK_DETECT_NO_HWLOC = 1, /* sysfs only */
  HK_DETECT_NO_GPU = 2,
  /* Use this machine's GPU drivers for a recorded machine, too: for tests with drivers of their own. */
  HK_DETECT_DRIVERS = 8,
  HK_DETECT_BY_NAME = 16 /* RDMA devices in the order of their names: NCCL_IB_DEVICE_PCI_ORDER=0 */
};
/* `sys` is the root of the file system to read: "" for this machine, a folder for a recorded one. */
hk_status hk_topo_detect(struct hk_topo **out, unsigned flags, const char *sys);
/* HK_DETECT_BY_NAME, if the settings ask for it. */
unsigned hk_topo_detect_order(const struct hk_settings *settings);

/* This machine as the library sees it: detection merged with NCCL_TOPO_FILE, or else with the file that services of a
 * virtual machine write for NCCL. */
hk_status hk_topo_detect_with_file(const struct hk_settings *settings, struct hk_topo **out, unsigned flags);

/* A GPU as NVML sees it now; false: NVML is not there, or does not know the GPU. */
typedef struct hk_nvml_gpu {
  char driver[32];     /* version; empty: not known */
  int links, links_up; /* NVLinks */
  bool ecc_known;
  uint64_t corrected, uncorrected; /* memory errors since the driver started */
} hk_nvml_gpu;
bool hk_nvml_look(const char *bus_id, hk_nvml_gpu *out);
