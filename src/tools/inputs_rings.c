/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/param.h"
#include "../topo/search.h"
#include "../topo/topo.h"
#include "../topo/xml.h"
#include "inputs.h"

hk_status hk_inputs_find_rings(hk_inputs *w) {
  hk_status rc = HK_OK;
  const hk_settings *s = w->overrides.settings;
  const hk_topo *t = hk_cluster_host(w->cluster, w->placements[0].host);
  hk_paths *paths = NULL;
  uint32_t nodes[HK_SEARCH_RANKS];
  hk_search what = {.pattern = HK_PATTERN_RING,
                    .nodes = nodes,
                    .cross_nic = hk_cross_nic_on(&w->cluster->fabric, (hk_cross_nic)s->CROSS_NIC),
                    .min_channels = w->filter.min_channels,
                    .max_channels = w->filter.max_channels};
  for (int r = 0; r < w->nranks && w->placements[r].host == w->placements[0].host; r++) {
    if (r == HK_SEARCH_RANKS) return HK_OK;
    nodes[what.nranks++] = w->placements[r].node;
  }
  if (what.nranks < 2 || t->nodes[nodes[0]].kind != HK_NODE_GPU) return HK_OK;
  what.network = w->placements[w->nranks - 1].host != w->placements[0].host;
  if (s->GRAPH_FILE) HK_TRY(hk_channels_read_xml(&w->rings, s->GRAPH_FILE, HK_PATTERN_RING, t, &what), out);
  if (w->rings) return HK_OK;
  HK_TRY(hk_paths_new(&paths, t, &w->overrides.paths), out);
  rc = hk_search_channels(&w->rings, paths, &what);
out:
  hk_paths_free(paths);
  return rc;
}

void hk_inputs_free_rings(hk_inputs *w) { hk_channels_free(w->rings); }
