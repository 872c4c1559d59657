/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine's topology says of the ranks' GPUs: which pairs have NVLink, and what bytes between them cost. */
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../topo/detect.h"
#include "gpu.h"

static const hk_gpu_fact *fact_of(const hk_gpu_fact *facts, size_t stride, int rank) {
  return (const hk_gpu_fact *)(const void *)((const char *)facts + (size_t)rank * stride);
}

/* `rank` of each seat. */
static hk_status look_at(ncclComm_t c, const hk_cluster *machine, const hk_seat *seats, const int *rank, int n) {
  hk_status rc = HK_OK;
  hk_paths *paths = NULL;
  const hk_overrides *o = &c->selection.overrides;
  uint32_t mine = 0;
  HK_TRY(hk_paths_new(&paths, machine->kinds[0], &o->paths), out);
  for (int i = 0; i < n; i++)
    if (rank[i] == c->rank) mine = seats[i].node;
  for (int i = 0; i < n; i++) c->gpu->nvlink[rank[i]] = hk_path_between(paths, mine, seats[i].node)->cls == HK_PATH_NVL;
  HK_TRY(hk_gpu_prices_of(&c->gpu->prices, machine, seats, n, o), out);
out:
  hk_paths_free(paths);
  return rc;
}

/* The ranks of this host.  A machine that cannot be seen, as in some containers, is no failure. */
static void look(ncclComm_t c, const hk_gpu_fact *facts, size_t stride, hk_seat *seats, int *rank) {
  hk_status rc = HK_OK;
  hk_topo *t = NULL;
  hk_cluster *machine = NULL;
  int n = 0;
  HK_TRY(hk_topo_detect_with_file(&t, HK_DETECT_NO_NET), out);
  for (int r = 0; r < c->nranks; r++) {
    if (c->peers[r].host != c->peers[c->rank].host) continue;
    seats[n].node = hk_topo_find(t, HK_NODE_GPU, fact_of(facts, stride, r)->bus);
    if (seats[n].node != UINT32_MAX) {
      rank[n++] = r;
      continue;
    }
    HK_INFO(HK_SUB_GRAPH, "rank %d: GPUs are priced by guesses: rank %d's is not among the %u that %s shows", c->rank,
            r, hk_topo_count(t, HK_NODE_GPU), t->name);
    goto out;
  }
  if (n < 2) goto out;
  rc = hk_cluster_of(&machine, t, 1);
  t = NULL; /* the cluster's, or gone */
  if (rc == HK_OK) rc = look_at(c, machine, seats, rank, n);
out:
  if (rc != HK_OK)
    HK_INFO(HK_SUB_GRAPH, "rank %d: GPUs are priced by guesses, without the machine's topology: %s", c->rank,
            hk_last_error());
  hk_cluster_free(machine);
  hk_topo_free(t);
}

hk_status hk_gpu_topology(ncclComm_t c, const hk_gpu_fact *facts, size_t stride) {
  hk_status rc = HK_OK;
  hk_gpu *g = c->gpu;
  const size_t n = (size_t)c->nranks;
  hk_seat *seats = calloc(n, sizeof *seats);
  int *rank = calloc(n, sizeof *rank);
  hk_gpu_prices *prices = calloc(n, sizeof *prices);
  g->nvlink = calloc(n, sizeof *g->nvlink);
  if (!seats || !rank || !prices || !g->nvlink) {
    rc = HK_FAIL_ERRNO("no memory for the topology of %d ranks", c->nranks);
    goto out;
  }
  if (n > 1) look(c, facts, stride, seats, rank);
  /* All must decide alike, and containers may show each rank a part of its own: rank 0's count for all. */
  prices[c->rank] = g->prices;
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, prices, sizeof *prices), out);
  g->prices = prices[0];
  if (g->prices.known)
    HK_INFO(HK_SUB_GRAPH | HK_SUB_TUNING,
            "rank %d: GPUs by the topology: %.2f us, %.1f GB/s to the next, %.1f GB/s to all", c->rank,
            g->prices.inside.alpha_us, 1e-3 / g->prices.inside.ring_us_per_b, 1e-3 / g->prices.inside.mesh_us_per_b);
out:
  free(seats);
  free(rank);
  free(prices);
  return rc;
}
