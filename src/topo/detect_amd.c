/* SPDX-License-Identifier: Apache-2.0 */
/* AMD's GPUs. Their driver reports xGMI links in sysfs, so a recorded machine has them too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/sysfs.h"
#include "detect_scan.h"
#include "facts.h"

#define NODES "/sys/class/kfd/kfd/topology/nodes"
enum { XGMI = 11, NODE_LIMIT = 256 };

/* The number after "key " at the beginning of a line; -1 if there is none. */
static long long detect_amd_property(const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *p = text; p; p = strchr(p, '\n')) {
    if (*p == '\n') p++;
    if (strncmp(p, key, n) == 0 && p[n] == ' ') return strtoll(p + n, NULL, 10);
  }
  return -1;
}

/* The GPU of a node. NULL: the node is a CPU, or a GPU that PCI does not show. */
static hk_gpu_seen *detect_amd_gpu_of(hk_detect_scan *s, const char *node) {
  char text[4096];
  hk_sysfs_text(s->sys, text, sizeof text, NODES "/%s/properties", node);
  long long domain = detect_amd_property(text, "domain"), location = detect_amd_property(text, "location_id");
  if (location <= 0 || location > 0xffff) return NULL;
  uint64_t id = (uint64_t)(domain > 0 ? domain & 0xffff : 0) << 20 | (uint64_t)(location >> 8) << 12 |
                (uint64_t)(location >> 3 & 0x1f) << 4 | (uint64_t)(location & 7);
  return hk_scan_gpu_find(s, id);
}

static void detect_amd_add_link(hk_detect_scan *s, hk_gpu_seen *g, const char *node, const char *link) {
  char text[1024], other[16];
  hk_sysfs_text(s->sys, text, sizeof text, NODES "/%s/io_links/%s/properties", node, link);
  long long to = detect_amd_property(text, "node_to"), mbps = detect_amd_property(text, "max_bandwidth");
  if (detect_amd_property(text, "type") != XGMI || to < 0 || g->nfars == HK_GPU_FARS) return;
  snprintf(other, sizeof other, "%d", (int)(to < NODE_LIMIT ? to : NODE_LIMIT));
  const hk_gpu_seen *far = detect_amd_gpu_of(s, other);
  if (!far || far == g) return; /* xGMI to the CPU, as inside of an MI300A */
  /* The kernel reports the raw rate. Large copies reach the part of it that the table has for measured devices. */
  float gbps = mbps > 0 && mbps < 1000000 ? (float)mbps / 1000 * 0.75f : 36;
  g->far[g->nfars++] = (hk_gpu_link_end){.kind = HK_FAR_GPU, .id = s->pci[far->pci].id, .links = 1, .gbps = gbps};
}

void hk_scan_amd(hk_detect_scan *s) {
  char **nodes = hk_sysfs_list(s->sys, NODES), text[4096];
  for (char **node = nodes; node && *node; node++) {
    hk_gpu_seen *g = detect_amd_gpu_of(s, *node);
    if (!g) continue;
    hk_sysfs_text(s->sys, text, sizeof text, NODES "/%s/properties", *node);
    long long gfx = detect_amd_property(text, "gfx_target_version"); /* 90402: gfx942 */
    if (gfx >= 90000) g->sm = (int)(gfx / 10000 * 100 + gfx / 100 % 100 * 10 + gfx % 100);
    if (!g->name[0]) hk_sysfs_text(s->sys, g->name, sizeof g->name, NODES "/%s/name", *node);
    g->nfars = 0;
    char **links = hk_sysfs_list(s->sys, NODES "/%s/io_links", *node);
    for (char **link = links; link && *link; link++) detect_amd_add_link(s, g, *node, *link);
    free(links);
  }
  free(nodes);
}
