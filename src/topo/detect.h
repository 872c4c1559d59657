/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Detects this machine through hwloc, the CUDA driver, NVML, verbs and sysfs, as far as each is available. Nothing is
 * required: in a container that hides everything the result is one CPU, with a remark about each thing that could not
 * be seen.
 */
#ifndef HK_TOPO_DETECT_H
#define HK_TOPO_DETECT_H
#include "topo.h"

enum {
  HK_DETECT_NO_HWLOC = 1, /* sysfs only */
  HK_DETECT_NO_GPU = 2,
  HK_DETECT_NO_NET = 4,
  HK_DETECT_DRIVERS =
      8 /* use this machine's GPU drivers for a recorded machine too: for tests with drivers of their own */
};
/* `sys` is the root of the file system to look at: "" for the machine itself, a folder for a recorded one. */
hk_status hk_topo_detect(hk_topo **out, unsigned flags, const char *sys);

/* This machine as the library sees it: detection merged with NCCL_TOPO_FILE, or with the file that the services of a
 * virtual machine write where NCCL looks for it too. */
hk_status hk_topo_detect_with_file(hk_topo **out, unsigned flags);
/* That file; NULL: none. */
const char *hk_topo_file(void);
#endif
