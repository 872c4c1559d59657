/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the parts of detection in order and makes a topology from their results. */
#include "detect.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/sysfs.h"
#include "detect_scan.h"

static void detect_name_machine(const hk_detect_scan *s, char *name, size_t bytes) {
  const char *folder = strrchr(s->sys, '/');
  if (!s->live)
    snprintf(name, bytes, "%s", folder && folder[1] ? folder + 1 : s->sys);
  else if (!hk_sysfs_text("", name, bytes, "/proc/sys/kernel/hostname"))
    snprintf(name, bytes, "this host");
}

/* One remark for a property that many devices share. */
static hk_status detect_remark_common(hk_detect_scan *s) {
  const char *why = s->machine && s->ngpu > 0
                        ? ": this is a virtual machine, and its PCI tree is what the hypervisor shows; a topology "
                          "file (NCCL_TOPO_FILE) would say more"
                        : "";
  if (s->no_link_speed)
    HK_OR_RETURN(
        hk_topo_remark(s->t, "%d PCI device%s no link speed; one of the third generation or the GPU's own is assumed%s",
                       s->no_link_speed, s->no_link_speed > 1 ? "s show" : " shows", why));
  if (s->no_numa && hk_scan_cpu_count(s) > 1)
    HK_OR_RETURN(hk_topo_remark(s->t, "%d PCI device%s no NUMA node and count%s as the first CPU's%s", s->no_numa,
                                s->no_numa > 1 ? "s have" : " has", s->no_numa > 1 ? "" : "s",
                                s->no_link_speed ? "" : why));
  return HK_OK;
}

static hk_status detect_scan(hk_detect_scan *s) {
  HK_OR_RETURN(hk_scan_cpus(s));
  HK_OR_RETURN(hk_scan_pci(s));
  if (!(s->flags & HK_DETECT_NO_GPU)) HK_OR_RETURN(hk_scan_gpus(s));
  HK_OR_RETURN(hk_scan_nets(s));
  HK_OR_RETURN(hk_scan_gpu_place(s));
  HK_OR_RETURN(hk_scan_net_place(s));
  HK_OR_RETURN(detect_remark_common(s));
  return hk_topo_finish(s->t);
}

hk_status hk_topo_detect(hk_topo **out, unsigned flags, const char *sys) {
  hk_detect_scan s;
  hk_status rc;
  char name[64];
  memset(&s, 0, sizeof s);
  *out = NULL;
  s.sys = sys ? sys : "";
  s.flags = flags;
  s.live = !*s.sys;
  if (!s.live && !hk_sysfs_has(s.sys, "/sys"))
    return HK_FAIL(HK_ERR_ARGUMENT, "%s is no recorded machine: it has no folder sys", s.sys);
  detect_name_machine(&s, name, sizeof name);
  HK_TRY(hk_topo_new(&s.t, name), out);
  HK_TRY(detect_scan(&s), out);
  *out = s.t;
  s.t = NULL;
out:
  hk_scan_hwloc_end(&s);
  hk_topo_free(s.t);
  free(s.pci);
  free(s.gpu);
  free(s.net);
  return rc;
}
