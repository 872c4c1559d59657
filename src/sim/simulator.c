/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a cluster: placements, paths, rings, the machine of the cost model. */
#include "simulator.h"
#include <stdlib.h>
#include "../collectives/algorithm.h"
#include "../decide/outlines.h"
#include "../program/layout.h"
#include "../topo/paths.h"
#include "../topo/search.h"
#include "../topo/topo.h"

void hk_simulator_free(hk_simulator *x) {
  if (!x) return;
  for (int k = 0; x->paths && k < x->c->nkinds; k++) hk_paths_free(x->paths[k]);
  for (int k = 0; x->rings && k < x->c->nkinds; k++) hk_channels_free(x->rings[k]);
  hk_outlines_free(x->machine.outlines);
  hk_layout_free(x->layout);
  free(x->paths);
  free(x->rings);
  free(x->placements);
  free(x);
}

/* The channels of one kind of host, if its ranks are on GPUs. */
static hk_status simulator_search_rings(hk_simulator *x, int kind, int first, int n) {
  hk_status rc = HK_OK;
  uint32_t *nodes = malloc((size_t)n * sizeof *nodes);
  if (!nodes) return HK_FAIL_ERRNO("no memory for a host's %d ranks", n);
  for (int i = 0; i < n; i++) nodes[i] = x->placements[first + i].node;
  hk_search what = {.pattern = HK_PATTERN_RING, .nodes = nodes, .nranks = n, .network = x->c->nhosts > 1};
  if (n > 1 && n <= HK_SEARCH_RANKS && x->c->kinds[kind]->nodes[nodes[0]].kind == HK_NODE_GPU)
    rc = hk_search_channels(&x->rings[kind], x->paths[kind], &what);
  free(nodes);
  return rc;
}

static hk_status simulator_look_at_kinds(hk_simulator *x) {
  for (int first = 0, next; first < x->nranks; first = next) {
    int host = x->placements[first].host, kind = hk_cluster_kind(x->c, host);
    for (next = first; next < x->nranks && x->placements[next].host == host; next++) {}
    if (x->paths[kind]) continue;
    HK_OR_RETURN(hk_paths_new(&x->paths[kind], x->c->kinds[kind], NULL));
    HK_OR_RETURN(simulator_search_rings(x, kind, first, next - first));
  }
  return HK_OK;
}

hk_status hk_simulator_new(hk_simulator **out, const hk_cluster *c, int ranks_per_host) {
  return hk_simulator_new_of(out, c, ranks_per_host, 0);
}

hk_status hk_simulator_new_of(hk_simulator **out, const hk_cluster *c, int ranks_per_host, int nranks) {
  hk_status rc = HK_OK;
  hk_simulator *x = *out = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for the simulator");
  x->c = c;
  HK_TRY(hk_cluster_placements(c, ranks_per_host, &x->placements, &x->nranks), out);
  if (nranks && nranks < x->nranks) x->nranks = nranks;
  if (x->nranks > HK_RANKS_MOST) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "%s has %d ranks; programs are for at most %d", c->name, x->nranks, HK_RANKS_MOST);
    goto out;
  }
  x->paths = calloc((size_t)c->nkinds, sizeof *x->paths);
  x->rings = calloc((size_t)c->nkinds, sizeof *x->rings);
  if (!x->paths || !x->rings) {
    rc = HK_FAIL_ERRNO("no memory for %d kinds of hosts", c->nkinds);
    goto out;
  }
  HK_TRY(simulator_look_at_kinds(x), out);
  const hk_channels *rings = x->rings[hk_cluster_kind(c, 0)];
  HK_TRY(hk_machine_of(&x->machine, c, x->placements, x->nranks, rings, NULL), out);
  HK_TRY(hk_layout_of(&x->layout, c, x->placements, x->nranks, rings), out);
  HK_TRY(hk_outlines_of(&x->machine.outlines, c, x->placements, &x->machine, x->layout, rings, NULL), out);
out:
  if (rc != HK_OK) {
    hk_simulator_free(x);
    *out = NULL;
  }
  return rc;
}

int hk_simulator_ranks(const hk_simulator *x) { return x->nranks; }

void hk_simulator_forget(hk_simulator *x, const hk_algorithm *a) { hk_outlines_forget(x->machine.outlines, a); }

const char *hk_simulator_cannot(const hk_simulator *x, const hk_algorithm *a, hk_coll coll) {
  if (!hk_algorithm_has(a, coll)) return "does not do this collective";
  return hk_algorithm_cannot(a, &x->machine.team, coll);
}
