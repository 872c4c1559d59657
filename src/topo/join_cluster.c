/* SPDX-License-Identifier: Apache-2.0 */
/* Joins channels for a described cluster: makes the facts that its ranks would exchange at init. */
#include <stdlib.h>
#include <string.h>
#include "join.h"
#include "paths.h"
#include "topo.h"

/* Cache of the latest host of each kind: hosts of one kind usually have their ranks on the same nodes. */
typedef struct looked {
  hk_paths *paths;
  hk_channels *channels;
  uint32_t nodes[HK_SEARCH_RANKS];
  int n;
} looked;

static hk_status join_cluster_look_at(looked *l, const hk_topo *t, const hk_search *what, const hk_path_rules *rules) {
  if (l->channels && l->n == what->nranks && !memcmp(l->nodes, what->nodes, (size_t)l->n * sizeof *l->nodes))
    return HK_OK;
  hk_channels_free(l->channels);
  l->channels = NULL;
  if (!l->paths) HK_OR_RETURN(hk_paths_new(&l->paths, t, rules));
  HK_OR_RETURN(hk_search_channels(&l->channels, l->paths, what));
  l->n = what->nranks;
  memcpy(l->nodes, what->nodes, (size_t)l->n * sizeof *l->nodes);
  return HK_OK;
}

static hk_status join_cluster_fill_host(looked *l, const hk_topo *t, const hk_placement *placements, int n,
                                        const hk_search *asked, const hk_path_rules *rules, hk_join_fact *facts) {
  uint32_t nodes[HK_SEARCH_RANKS];
  hk_search what = *asked;
  const hk_channels *channels[HK_PATTERNS] = {NULL};
  if (n <= HK_SEARCH_RANKS) { /* with more ranks, the order of ranks is kept */
    for (int i = 0; i < n; i++) nodes[i] = placements[i].node;
    what.nodes = nodes;
    what.nranks = n;
    HK_OR_RETURN(join_cluster_look_at(l, t, &what, rules));
    channels[what.pattern] = l->channels;
  }
  for (int i = 0; i < n; i++) hk_join_fill(&facts[i], (uint64_t)placements[i].host, t, channels, i);
  return HK_OK;
}

hk_status hk_join_cluster(hk_joined **out, const hk_cluster *c, const hk_placement *placements, int nranks,
                          const hk_search *what, const hk_path_rules *rules) {
  hk_status rc = HK_OK;
  hk_search asked = *what;
  looked *kinds = calloc((size_t)c->nkinds, sizeof *kinds);
  hk_join_fact *facts = calloc((size_t)(nranks > 0 ? nranks : 1), sizeof *facts);
  *out = NULL;
  if (!kinds || !facts) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to join the channels of %d ranks", nranks), out);
  asked.network = nranks > 0 && placements[nranks - 1].host != placements[0].host;
  for (int first = 0, next; first < nranks; first = next) {
    int host = placements[first].host;
    for (next = first; next < nranks && placements[next].host == host; next++) {}
    HK_TRY(join_cluster_fill_host(&kinds[hk_cluster_kind(c, host)], hk_cluster_host(c, host), placements + first,
                                  next - first, &asked, rules, facts + first),
           out);
  }
  HK_TRY(hk_join(out, what->pattern, facts, nranks), out);
out:
  for (int k = 0; kinds && k < c->nkinds; k++) {
    hk_channels_free(kinds[k].channels);
    hk_paths_free(kinds[k].paths);
  }
  free(kinds);
  free(facts);
  return rc;
}
