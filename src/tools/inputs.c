/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of a communicator on a machine: placements, rings, prices, settings. */
#include "inputs.h"
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../decide/outlines.h"
#include "../program/layout.h"
#include "../run/tuner.h"
#include "../topo/topo.h"
#include "machine.h"
#include "tools.h"

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
  HK_TRY(hk_inputs_find_rings(w), out);
  HK_TRY(hk_machine_of(&w->machine, w->cluster, w->placements, w->nranks, w->rings, &w->overrides), out);
  inputs_heed_host_settings(w);
  HK_TRY(hk_layout_of(&w->layout, w->cluster, w->placements, w->nranks, w->rings), out);
  HK_TRY(hk_outlines_of(&w->machine.outlines, w->cluster, w->placements, &w->machine, w->layout, w->rings,
                        &w->overrides.paths),
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

void hk_inputs_close(hk_inputs *w) {
  hk_tuner_free(w->tuner);
  hk_overrides_clear(&w->overrides);
  hk_outlines_free(w->machine.outlines);
  hk_layout_free(w->layout);
  hk_inputs_free_rings(w);
  free(w->placements);
  hk_cluster_free(w->cluster);
}
