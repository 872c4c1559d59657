/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of a communicator on a machine: placements, rings, prices, settings. */
#include "inputs.h"
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../decide/outlines.h"
#include "../decide/select.h"
#include "../program/layout.h"
#include "../run/tuner.h"
#include "../sim/sim.h"
#include "../topo/search.h"
#include "../topo/topo.h"
#include "../topo/xml.h"
#include "machine.h"
#include "tools.h"

/* Ring orders of the first host; none if the search does not support the machine (too many ranks). */
static hk_status inputs_find_rings(hk_inputs *w) {
  hk_status rc = HK_OK;
  const hk_topo *t = hk_cluster_host(w->cluster, w->placements[0].host);
  hk_paths *paths = NULL;
  uint32_t nodes[HK_SEARCH_RANKS];
  hk_search what = {.pattern = HK_PATTERN_RING,
                    .nodes = nodes,
                    .cross_nic = hk_cross_nic_on(&w->cluster->fabric, (hk_cross_nic)w->overrides.cross_nic),
                    .min_channels = w->filter.min_channels,
                    .max_channels = w->filter.max_channels};
  for (int r = 0; r < w->nranks && w->placements[r].host == w->placements[0].host; r++) {
    if (r == HK_SEARCH_RANKS) return HK_OK;
    nodes[what.nranks++] = w->placements[r].node;
  }
  if (what.nranks < 2 || t->nodes[nodes[0]].kind != HK_NODE_GPU) return HK_OK;
  what.network = w->placements[w->nranks - 1].host != w->placements[0].host;
  if (w->overrides.graph_file)
    HK_TRY(hk_channels_read_xml(&w->rings, w->overrides.graph_file, HK_PATTERN_RING, t, &what), out);
  if (w->rings) return HK_OK;
  HK_TRY(hk_paths_new(&paths, t, &w->overrides.paths), out);
  rc = hk_search_channels(&w->rings, paths, &what);
out:
  hk_paths_free(paths);
  return rc;
}

/* The words for one host, to which "nodes=N of" can be prepended; NULL: hosts of several kinds. */
static const char *inputs_one_host(const hk_cluster *c, const char *words, const char *file) {
  const char *of = words && !strncmp(words, "nodes=", 6) ? strstr(words, " of ") : NULL;
  return c->nkinds > 1 ? NULL : of ? of + 4 : words ? words : file;
}

static int inputs_take_placements(hk_inputs *w, int nranks, const char *host) {
  int hosts = w->cluster->nhosts, per_host = (nranks + hosts - 1) / hosts;
  hk_status rc = hk_cluster_placements(w->cluster, per_host, &w->placements, &w->nranks);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (nranks > w->nranks)
    return hk_tool_wrong("%d ranks, but %s has %d GPUs: name a machine with more hosts, as --machine 'nodes=%d of %s'",
                         nranks, w->cluster->name, w->nranks, (nranks * hosts + w->nranks - 1) / w->nranks,
                         host ? host : "dgx-h100");
  if (nranks) w->nranks = nranks;
  if (w->nranks <= HK_RANKS_MOST) return HK_EXIT_OK;
  return hk_tool_wrong("%s has %d ranks; %d is the most that a communicator can have", w->cluster->name, w->nranks,
                       HK_RANKS_MOST);
}

/* Applies the settings that only ranks on CPUs have, as init does. */
static void inputs_heed_host_settings(hk_inputs *w) {
  hk_machine *m = &w->machine;
  if (m->cores_per_host == 0) return;
  if (!w->overrides.settings->SHM_DISABLE || m->team.nranks == 1) return;
  hk_machine_set_constants(m, false, &w->overrides.constants);
  m->team.multicast = false;
}

hk_status hk_tool_overrides(hk_overrides *o) {
  HK_OR_RETURN(hk_overrides_read(o, hk_tool_settings(), 0, 0));
  return hk_overrides_load(o, NULL, false);
}

int hk_inputs_open(hk_inputs *w, const char *words, const char *file, int nranks) {
  *w = (hk_inputs){0};
  int code = hk_tool_machine(&w->cluster, words, file);
  if (code == HK_EXIT_OK) code = inputs_take_placements(w, nranks, inputs_one_host(w->cluster, words, file));
  if (code != HK_EXIT_OK) return code;
  hk_status rc = HK_OK;
  HK_TRY(hk_tool_overrides(&w->overrides), out);
  w->filter = w->overrides.filter;
  HK_TRY(inputs_find_rings(w), out);
  HK_TRY(hk_machine_of(&w->machine, w->cluster, w->placements, w->nranks, w->rings, &w->overrides), out);
  inputs_heed_host_settings(w);
  HK_TRY(hk_layout_of(&w->layout, w->cluster, w->placements, w->nranks, w->rings), out);
  HK_TRY(hk_outlines_of(&w->machine.outlines, w->cluster, w->placements, &w->machine, w->layout, &w->overrides.paths),
         out);
  HK_TRY(hk_tuner_load(w->overrides.settings, &w->tuner), out);
  const char *plugin = w->overrides.settings->TUNER_PLUGIN;
  if (plugin && !w->tuner && strcmp(plugin, "none") != 0)
    hk_tool_wrong("NCCL_TUNER_PLUGIN=%s cannot be used, going on without (NCCL_DEBUG=WARN says why)", plugin);
  if (w->tuner && !hk_tuner_begin(w->tuner, &w->machine, 0)) {
    hk_tuner_free(w->tuner); /* as at init: a failed tuner is not used */
    w->tuner = NULL;
  }
out:
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

int hk_inputs_simulator(hk_simulator **out, const hk_inputs *w) {
  const int per_host = (w->nranks + w->cluster->nhosts - 1) / w->cluster->nhosts;
  const hk_status rc = hk_simulator_new_of(out, w->cluster, per_host, w->nranks);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

hk_status hk_inputs_choose(const hk_inputs *w, hk_coll coll, size_t bytes, hk_decision *out) {
  HK_OR_RETURN(hk_select(&w->machine, &w->filter, coll, bytes, out));
  return w->tuner && !out->note ? hk_tuner_ask(w->tuner, &w->machine, &w->filter, coll, bytes, out) : HK_OK;
}

void hk_inputs_close(hk_inputs *w) {
  hk_tuner_free(w->tuner);
  hk_overrides_clear(&w->overrides);
  hk_outlines_free(w->machine.outlines);
  hk_layout_free(w->layout);
  hk_channels_free(w->rings);
  free(w->placements);
  hk_cluster_free(w->cluster);
}
