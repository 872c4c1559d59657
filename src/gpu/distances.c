/* SPDX-License-Identifier: Apache-2.0 */
/* How far GPUs are from each other, for NCCL_P2P_LEVEL. */
#include <stdio.h>
#include <stdlib.h>
#include "../base/log.h"
#include "../core/comm.h"
#include "../run/selection.h"
#include "../topo/paths.h"
#include "../topo/topo.h"
#include "gpu.h"
#include "peers.h"
#include "process_group.h"

/* NCCL_P2P_LEVEL and NCCL_P2P_DISABLE. Distances are computed only if a level is set. Otherwise the driver says which
 * GPUs can be reached, and reach.c tests it. */
hk_status hk_gpu_distances(ncclComm_t c, const struct hk_facts *facts) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_paths *paths = NULL;
  /* The plain paths, without the restriction by the level. */
  static const hk_path_rules plain = {.p2p_level = HK_PATH_SYS};
  if (!hk_selection_paths(c)->p2p_level || !g->group->machine) return HK_OK;
  const hk_topo *t = g->group->machine->kinds[0];
  HK_TRY(hk_paths_new(&paths, t, &plain), out);
  g->topology->distances = calloc((size_t)c->nranks, 1); /* HK_PATH_LOC */
  if (!g->topology->distances) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the distances of %d ranks", c->nranks), out);
  uint32_t mine = hk_topo_find(t, HK_NODE_GPU, hk_gpu_fact_of(facts, c->rank)->bus);
  for (int r = 0; r < c->nranks; r++) {
    const hk_gpu_fact *f = hk_gpu_fact_of(facts, r);
    if (!hk_wire_near(c, r) || f->id == hk_gpu_fact_of(facts, c->rank)->id) continue;
    uint32_t theirs = hk_topo_find(t, HK_NODE_GPU, f->bus);
    if (mine != UINT32_MAX && theirs != UINT32_MAX)
      g->topology->distances[r] = (unsigned char)hk_path_between(paths, mine, theirs)->cls;
    else
      HK_INFO(HK_SUB_INIT | HK_SUB_GRAPH,
              "NCCL_P2P_LEVEL: the path from rank %d's GPU to rank %d's is not known, and counts as near", c->rank, r);
  }
out:
  hk_paths_free(paths);
  return rc;
}

bool hk_gpu_too_far(ncclComm_t c, int peer, char *why, size_t why_bytes) {
  const hk_path_rules *rules = hk_selection_paths(c);
  const unsigned char *distances = hk_gpu_of(c)->topology->distances;
  if (rules->no_p2p)
    snprintf(why, why_bytes, "NCCL_P2P_DISABLE is 1, or NCCL_P2P_LEVEL is LOC");
  else if (distances && distances[peer] > rules->p2p_level)
    snprintf(why, why_bytes, "NCCL_P2P_LEVEL is %s, and the path to its GPU is %s",
             hk_path_class_name(rules->p2p_level), hk_path_class_name((hk_path_class)distances[peer]));
  else
    return false;
  return true;
}
