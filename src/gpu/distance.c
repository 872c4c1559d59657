/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_P2P_LEVEL and NCCL_P2P_DISABLE for pairs of GPUs.  Distances are looked up only if a level is set: else the
 * driver says which GPUs can be reached, and reach.c tries whether that is true. */
#include <stdlib.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../runtime/selection.h"
#include "../topo/paths.h"
#include "gpu.h"

static const hk_gpu_fact *fact_of(const hk_gpu_fact *facts, size_t stride, int rank) {
  return (const hk_gpu_fact *)(const void *)((const char *)facts + (size_t)rank * stride);
}

hk_status hk_gpu_distances(ncclComm_t c, const hk_gpu_fact *facts, size_t stride) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_paths *paths = NULL;
  /* The paths themselves, without the rule that the level makes. */
  static const hk_path_rules plain = {.p2p_level = HK_PATH_SYS};
  if (!c->selection->overrides.paths.p2p_level || !g->world->machine) return HK_OK;
  const hk_topo *t = g->world->machine->kinds[0];
  HK_TRY(hk_paths_new(&paths, t, &plain), out);
  g->distances = calloc((size_t)c->nranks, 1); /* HK_PATH_LOC */
  if (!g->distances) {
    rc = HK_FAIL_ERRNO("no memory for the distances of %d ranks", c->nranks);
    goto out;
  }
  uint32_t mine = hk_topo_find(t, HK_NODE_GPU, fact_of(facts, stride, c->rank)->bus);
  for (int r = 0; r < c->nranks; r++) {
    const hk_gpu_fact *f = fact_of(facts, stride, r);
    if (c->peers[r].host != c->peers[c->rank].host || f->id == fact_of(facts, stride, c->rank)->id) continue;
    uint32_t theirs = hk_topo_find(t, HK_NODE_GPU, f->bus);
    if (mine != UINT32_MAX && theirs != UINT32_MAX)
      g->distances[r] = (unsigned char)hk_path_between(paths, mine, theirs)->cls;
    else
      HK_INFO(HK_SUB_INIT | HK_SUB_GRAPH,
              "NCCL_P2P_LEVEL: the path from rank %d's GPU to rank %d's is not known, and counts as near", c->rank, r);
  }
out:
  hk_paths_free(paths);
  return rc;
}

bool hk_gpu_too_far(ncclComm_t c, int peer, char *why, size_t why_bytes) {
  const hk_path_rules *rules = &c->selection->overrides.paths;
  const unsigned char *distances = hk_gpu_of(c)->distances;
  if (hk_param_int(HK_P_P2P_DISABLE))
    snprintf(why, why_bytes, "NCCL_P2P_DISABLE is 1");
  else if (rules->no_p2p)
    snprintf(why, why_bytes, "NCCL_P2P_LEVEL is LOC");
  else if (distances && distances[peer] > rules->p2p_level)
    snprintf(why, why_bytes, "NCCL_P2P_LEVEL is %s, and the path to its GPU is %s",
             hk_path_class_name(rules->p2p_level), hk_path_class_name((hk_path_class)distances[peer]));
  else
    return false;
  return true;
}
