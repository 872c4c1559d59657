/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as the library sees it: detection merged with the topology file of the user or of the hypervisor. */
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "detect.h"
#include "xml.h"

/* The services of virtual machines write here what they know about the hardware. */
#define VIRTUAL_TOPOLOGY "/var/run/nvidia-topologyd/virtualTopology.xml"

const char *hk_topo_file(void) {
  const char *path = hk_param_str(HK_P_TOPO_FILE);
  if (path && *path) return path;
  return access(VIRTUAL_TOPOLOGY, R_OK) == 0 ? VIRTUAL_TOPOLOGY : NULL;
}

hk_status hk_topo_detect_with_file(hk_topo **out, unsigned flags) {
  hk_status rc = HK_OK;
  hk_topo *seen = NULL;
  const char *path = hk_topo_file();
  *out = NULL;
  HK_TRY(hk_topo_detect(&seen, flags, ""), out);
  if (path) {
    rc = hk_topo_read_xml_over(out, path, seen, NULL, NULL);
    /* A file that the user did not ask for must not make init fail. */
    if (rc != HK_OK && hk_param_str(HK_P_TOPO_FILE)) goto out;
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
