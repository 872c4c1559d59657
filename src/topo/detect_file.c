/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as the library sees it: detection merged with the topology file of the user or of the hypervisor. */
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "detect.h"
#include "topo.h"
#include "xml.h"

/* The services of virtual machines write here what they know about the hardware. */
#define VIRTUAL_TOPOLOGY "/var/run/nvidia-topologyd/virtualTopology.xml"

unsigned hk_topo_detect_order(const hk_settings *settings) {
  return settings->IB_DEVICE_PCI_ORDER ? 0 : HK_DETECT_BY_NAME;
}

hk_status hk_topo_detect_with_file(const hk_settings *settings, hk_topo **out, unsigned flags) {
  hk_status rc = HK_OK;
  hk_topo *seen = NULL;
  const char *path = settings->TOPO_FILE;
  if (!path || !*path) path = access(VIRTUAL_TOPOLOGY, R_OK) == 0 ? VIRTUAL_TOPOLOGY : NULL;
  *out = NULL;
  HK_TRY(hk_topo_detect(&seen, flags | hk_topo_detect_order(settings), ""), out);
  if (path) {
    rc = hk_topo_read_xml_over(out, path, seen, NULL, NULL);
    /* A file that the user did not ask for must not make init fail. */
    if (rc != HK_OK && settings->TOPO_FILE) goto out;
    if (rc == HK_OK) HK_INFO(HK_SUB_GRAPH, "the topology file %s has priority over what is detected", path);
  }
  rc = HK_OK;
  if (!*out) {
    *out = seen;
    seen = NULL;
  }
out:
  hk_topo_free(seen);
  return rc;
}
