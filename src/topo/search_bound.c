/* SPDX-License-Identifier: Apache-2.0 */
/* The upper bound of all channels together: the least of the bandwidth out of each device, of the NETs, and across the
 * narrowest cut. */
#include <stdlib.h>
#include <string.h>
#include "search_internal.h"

enum { ROUNDS_MOST = 64 };

static void search_bound_mark_path(const hk_ground *g, const hk_path *path, bool *used) {
  for (uint32_t i = 0; i < path->nhops; i++) {
    uint32_t edge = g->p->hops[path->first + i];
    used[edge] = used[g->p->topo->edges[edge].back] = true;
  }
}

bool *hk_used_lanes(const hk_ground *g) {
  bool *used = calloc(g->nlanes, sizeof *used);
  if (!used) return NULL;
  for (int s = 0; s < g->nsites; s++) {
    for (int to = 0; to < g->nsites; to++) search_bound_mark_path(g, hk_site_path(g, s, to), used);
    for (int i = 0; i < g->nnets; i++) search_bound_mark_path(g, hk_path_between(g->p, g->site[s], g->net[i]), used);
  }
  return used;
}

/* The bandwidth out of a site over the first links of its paths to other sites. */
static hk_rate search_bound_out_of_site(const hk_ground *g, int site) {
  const hk_node *n = &g->p->topo->nodes[g->site[site]];
  hk_rate sum = 0;
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++) {
    bool used = false;
    for (int s = 0; s < g->nsites && !used; s++) {
      const hk_path *path = hk_site_path(g, site, s);
      used = path->nhops && g->p->hops[path->first] == e;
    }
    /* The last site of a ring that leaves to a NET needs no link to another site. */
    for (int i = 0; i < g->nnets && !used && g->what->pattern == HK_PATTERN_RING; i++) {
      const hk_path *path = hk_path_between(g->p, g->site[site], g->net[i]);
      used = path->nhops && g->p->hops[path->first] == e;
    }
    if (used) sum += g->capacity[e];
  }
  return sum;
}

/* --- Cuts --- */

typedef struct flow {
  const hk_ground *g;
  bool *used;
  hk_rate *left;
  uint32_t *queue, *via;
} flow;

/* The shortest path that has capacity left; false: there is none. */
static bool search_bound_find_way(flow *f, uint32_t from, uint32_t to) {
  const hk_topo *t = f->g->p->topo;
  uint32_t n = 1;
  memset(f->via, 0xff, t->nnodes * sizeof *f->via);
  f->queue[0] = from;
  for (uint32_t i = 0; i < n && f->via[to] == UINT32_MAX; i++) {
    const hk_node *at = &t->nodes[f->queue[i]];
    for (uint32_t e = at->first_edge; e < at->first_edge + at->nedges; e++) {
      uint32_t next = t->edges[e].to;
      if (!f->used[e] || f->left[e] <= 0 || next == from || f->via[next] != UINT32_MAX) continue;
      f->via[next] = e;
      f->queue[n++] = next;
    }
  }
  return f->via[to] != UINT32_MAX;
}

/* The maximum flow between two sites, by repeated augmenting; HK_NO_BOUND if that takes too long. */
static hk_rate search_bound_most_between(flow *f, uint32_t from, uint32_t to) {
  const hk_topo *t = f->g->p->topo;
  hk_rate sum = 0;
  memcpy(f->left, f->g->capacity, t->nedges * sizeof *f->left);
  for (int round = 0; round < ROUNDS_MOST; round++) {
    hk_rate least = INT64_MAX;
    if (!search_bound_find_way(f, from, to)) return sum;
    for (uint32_t at = to; at != from; at = t->edges[f->via[at]].from)
      if (f->left[f->via[at]] < least) least = f->left[f->via[at]];
    for (uint32_t at = to; at != from; at = t->edges[f->via[at]].from) {
      f->left[f->via[at]] -= least;
      f->left[t->edges[f->via[at]].back] += least;
    }
    sum += least;
  }
  return HK_NO_BOUND;
}

/* A ring returns to its beginning, so it crosses every cut between two sites in both directions; so does a tree. */
static hk_status search_bound_narrowest_cut(const hk_ground *g, hk_rate *bound) {
  const hk_topo *t = g->p->topo;
  hk_status rc = HK_OK;
  flow f = {.g = g, .used = hk_used_lanes(g)};
  f.left = malloc(t->nedges * sizeof *f.left);
  f.queue = malloc(t->nnodes * sizeof *f.queue);
  f.via = malloc(t->nnodes * sizeof *f.via);
  if (!f.used || !f.left || !f.queue || !f.via) rc = HK_FAIL_ERRNO("no memory for the cuts of %u links", t->nedges);
  for (int s = 1; s < g->nsites && rc == HK_OK; s++) {
    hk_rate most = search_bound_most_between(&f, g->site[0], g->site[s]);
    if (most < *bound) *bound = most;
  }
  free(f.used);
  free(f.left);
  free(f.queue);
  free(f.via);
  return rc;
}

hk_status hk_search_bound(const hk_ground *g, hk_rate *out) {
  hk_rate bound = HK_NO_BOUND, all = 0, nets = 0;
  for (int s = 0; s < g->nsites; s++) {
    int own = hk_own_hops(g, s);
    hk_rate away = g->nsites > 1 ? search_bound_out_of_site(g, s) : bound;
    if (own && g->capacity[hk_own_lane(g, s)] / own < bound) bound = g->capacity[hk_own_lane(g, s)] / own;
    if (away < bound) bound = away;
    if (g->nsites > 1) all += away;
  }
  /* Between the ends of a chain each site sends both up and down. */
  if (g->what->pattern == HK_PATTERN_TREE && g->nsites > 1 && all / (2 * (g->nsites - 1)) < bound)
    bound = all / (2 * (g->nsites - 1));
  for (int i = 0; i < g->nnets; i++) {
    const hk_node *n = &g->p->topo->nodes[g->net[i]];
    hk_rate most = 0;
    for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++) most += g->capacity[e];
    nets += most;
  }
  *out = g->nnets && nets < bound ? nets : bound;
  return g->what->cross_nic && g->nnets ? HK_OK : search_bound_narrowest_cut(g, out);
}
