/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's topology for the ranks' GPUs: which pairs have NVLink, and the cost of a byte between them.  rings.c
 * searches the same topology for channels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../decide/machine.h"
#include "../run/selection.h"
#include "../topo/detect.h"
#include "../topo/paths.h"
#include "../topo/topo.h"
#include "links.h"
#include "peers.h"
#include "process_group.h"

/* The first rank of a process reads the topology for all ranks of the process.  If it cannot be read, as in some
 * containers, that is no failure. */
static void topology_look(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu_process_group *w = hk_gpu_of(c)->group;
  hk_topo *t = NULL;
  pthread_mutex_lock(&w->lock);
  if (w->looked) goto out;
  w->looked = true;
  HK_TRY(hk_topo_detect_with_file(c->settings, &t, 0), out);
  HK_TRY(hk_cluster_of(&w->machine, t, 1), out); /* takes over t, or frees it */
  HK_TRY(hk_paths_new(&w->paths, w->machine->kinds[0], hk_selection_paths(c)), out);
out:
  if (rc != HK_OK) {
    HK_INFO(HK_SUB_GRAPH, "rank %d: GPUs are priced by guesses, without the machine's topology: %s", c->rank,
            hk_last_error());
    hk_gpu_topology_free(w);
  }
  pthread_mutex_unlock(&w->lock);
}

void hk_gpu_topology_free(hk_gpu_process_group *w) {
  hk_paths_free(w->paths);
  hk_cluster_free(w->machine);
  w->paths = NULL;
  w->machine = NULL;
}

void hk_gpu_topology_end(hk_gpu_topology *t) {
  free(t->nvlink);
  free(t->prices);
  free(t->nodes);
  free(t->distances);
}

/* Fills `placements` with the GPUs of this host's ranks, and `rank` with the rank of each. Returns their number; 0: not
 * all are known. */
static int topology_find_placements(ncclComm_t c, const struct hk_facts *facts, hk_placement *placements, int *rank) {
  const hk_topo *t = hk_gpu_of(c)->group->machine->kinds[0];
  int n = 0;
  for (int r = 0; r < c->nranks; r++) {
    if (!hk_wire_near(c, r)) continue;
    placements[n].node = hk_topo_find(t, HK_NODE_GPU, hk_gpu_fact_of(facts, r)->bus);
    if (placements[n].node == UINT32_MAX) {
      HK_INFO(HK_SUB_GRAPH, "rank %d: GPUs are priced by guesses: rank %d's is not among the %u that %s shows", c->rank,
              r, hk_topo_count(t, HK_NODE_GPU), t->name);
      return 0;
    }
    rank[n++] = r;
  }
  return n;
}

static uint64_t topology_mix_path(uint64_t h, const hk_paths *paths, uint32_t from, uint32_t to) {
  const hk_path *p = hk_path_between(paths, from, to);
  h = hk_hash_mix(hk_hash_mix(h, p->cls), (uint64_t)(1e3 * (double)p->us));
  for (uint32_t i = p->first; i < p->first + p->nhops; i++) {
    const uint32_t edge = paths->hops[i];
    h = hk_hash_mix(hk_hash_mix(h, edge), (uint64_t)(1e3 * (double)paths->topo->edges[edge].gbps));
  }
  return h;
}

/* A hash of all that prices read of the topology: the paths between the GPUs, and to the network ports, the nearest
 * first; rings use others, too. */
static uint64_t topology_hash(const hk_paths *paths, const hk_placement *placements, int n) {
  uint32_t nets[HK_NETS_MOST];
  uint64_t h = hk_hash_mix((uint64_t)n, hk_topo_count(paths->topo, HK_NODE_NET));
  for (int i = 0; i < n; i++) {
    const uint32_t own = placements[i].node, ports = hk_paths_nets(paths, own, nets, HK_NETS_MOST);
    for (uint32_t k = 0; k < ports; k++) h = topology_mix_path(hk_hash_mix(h, nets[k]), paths, own, nets[k]);
    for (int k = 0; k < n; k++) h = topology_mix_path(h, paths, own, placements[k].node);
  }
  return h ? h : 1;
}

/* Other hosts count as equal to this one. */
static hk_status topology_price(ncclComm_t c, hk_placement *placements, int n) {
  hk_cluster hosts = *hk_gpu_of(c)->group->machine;
  if (n < c->nranks && hk_topo_count(hosts.kinds[0], HK_NODE_NET) > 0) hosts.nhosts = 2;
  for (int i = n; i < hosts.nhosts * n; i++) placements[i] = (hk_placement){.host = 1, .node = placements[i - n].node};
  return hk_gpu_prices_of(hk_gpu_of(c)->topology->prices, &hosts, placements, hosts.nhosts * n,
                          c->selection->overrides);
}

static void topology_use_machine(ncclComm_t c, hk_placement *placements, const int *rank, int n) {
  const hk_gpu_process_group *w = hk_gpu_of(c)->group;
  hk_gpu_topology *t = hk_gpu_of(c)->topology;
  uint32_t mine = 0;
  if (n < 2) return;
  for (int i = 0; i < n; i++)
    if (rank[i] == c->rank) mine = placements[i].node;
  for (int i = 0; i < n; i++)
    hk_gpu_of(c)->topology->nvlink[rank[i]] = hk_path_between(w->paths, mine, placements[i].node)->cls == HK_PATH_NVL;
  if (c->rank == 0 && topology_price(c, placements, n) != HK_OK) /* its prices hold for all */
    HK_INFO(HK_SUB_GRAPH, "rank 0: GPUs are priced by guesses: %s", hk_last_error());
  t->nodes = malloc((size_t)n * sizeof *t->nodes);
  if (!t->nodes) return; /* then no rank knows the links */
  for (int i = 0; i < n; i++) t->nodes[i] = placements[i].node;
  t->nnodes = n;
  t->prices->links = topology_hash(w->paths, placements, n);
}

static bool topology_alone_on_host(ncclComm_t c) {
  for (int r = 0; r < c->nranks; r++)
    if (r != c->rank && hk_wire_near(c, r)) return false;
  return true;
}

/* The text of a rate. Ranks that share a GPU have no link and so no rate. */
static const char *topology_rate(double us_per_b, char text[24]) {
  if (us_per_b > 0)
    snprintf(text, 24, "%.1f GB/s", 1e-3 / us_per_b);
  else
    snprintf(text, 24, "a shared GPU's memory");
  return text;
}

bool hk_gpu_sends_direct(ncclComm_t c) {
  int64_t set = c->settings->NET_GDR_READ;
  bool nvlink = false;
  for (int r = 0; r < c->nranks; r++) nvlink = nvlink || hk_gpu_of(c)->topology->nvlink[r];
  return set >= 0 ? set != 0 : nvlink || hk_gpu_of(c)->device->limits.sm >= 80;
}

hk_status hk_gpu_topology_read(ncclComm_t c, const struct hk_facts *facts) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  const size_t n = (size_t)c->nranks;
  hk_placement *placements = calloc(2 * n, sizeof *placements); /* of this host, then of another */
  int *rank = calloc(n, sizeof *rank);
  hk_gpu_prices *prices = calloc(n, sizeof *prices);
  g->topology->nvlink = calloc(n, sizeof *g->topology->nvlink);
  g->topology->prices = calloc(1, sizeof *g->topology->prices);
  if (!placements || !rank || !prices || !g->topology->nvlink || !g->topology->prices)
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the topology of %d ranks", c->nranks), out);
  if (!topology_alone_on_host(c)) { /* else constants price the network: detection takes milliseconds */
    topology_look(c);
    if (g->group->machine)
      topology_use_machine(c, placements, rank, topology_find_placements(c, facts, placements, rank));
  }
  /* All ranks must decide alike, but containers may show each rank a different part of the machine. So all use rank 0's
   * prices. */
  prices[c->rank] = *g->topology->prices;
  HK_TRY(hk_gpu_exchange(c, prices, sizeof *prices), out);
  *g->topology->prices = prices[0];
  for (size_t r = 0; r < n; r++)
    if (!prices[r].links || prices[r].links != prices[0].links) g->topology->nnodes = 0;
  char next[24], all[24];
  if (g->topology->prices->known)
    HK_INFO(HK_SUB_GRAPH | HK_SUB_TUNING, "rank %d: GPUs by the topology: %.2f us, %s to the next, %s to all", c->rank,
            g->topology->prices->inside.alpha_us, topology_rate(g->topology->prices->inside.ring_us_per_b, next),
            topology_rate(g->topology->prices->inside.mesh_us_per_b, all));
out:
  free(placements);
  free(rank);
  free(prices);
  return rc;
}
