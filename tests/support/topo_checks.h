/* SPDX-License-Identifier: Apache-2.0 */
/* What holds of paths and channels on every machine. */
#ifndef HK_TEST_TOPO_CHECKS_H
#define HK_TEST_TOPO_CHECKS_H
#include "../../src/topo/paths.h"
#include "../../src/topo/search.h"
#include "../../src/topo/topo.h"
#include "suite.h"

/* Hops join, the way back is the mirror image, sums are right. */
static inline void check_paths(const hk_paths *p) {
  const hk_topo *t = p->topo;
  for (uint32_t a = 0; a < p->n; a++)
    for (uint32_t b = 0; b < p->n; b++) {
      const hk_path *path = &p->at[a * p->n + b], *back = &p->at[b * p->n + a];
      uint32_t at = p->ends[a];
      float narrowest = path->gbps, us = 0;
      ck_assert_int_eq(path->cls, back->cls);
      ck_assert_int_eq(path->nhops, back->nhops);
      ck_assert((a == b) == (path->cls == HK_PATH_LOC));
      for (uint32_t i = 0; i < path->nhops; i++) {
        const hk_edge *e = &t->edges[p->hops[path->first + i]];
        ck_assert_uint_eq(e->from, at);
        ck_assert_uint_eq(p->hops[back->first + path->nhops - 1 - i], e->back);
        ck_assert(e->gbps >= narrowest);
        at = e->to;
        us += e->us;
      }
      if (path->cls != HK_PATH_DIS) ck_assert_uint_eq(at, p->ends[b]);
      ck_assert_float_eq_tol(path->us, us, 1e-4f);
    }
}

static inline void load(const hk_paths *p, double *use, uint32_t from, uint32_t to, double gbps) {
  const hk_path *path = hk_path_between(p, from, to);
  for (uint32_t i = 0; i < path->nhops; i++) use[p->hops[path->first + i]] += gbps;
}

/* All channels at once, at the speed that is claimed, fill no link beyond what it carries. */
static inline void check_loads(const hk_channels *c, const hk_paths *p, const hk_search *what) {
  const hk_topo *t = p->topo;
  const uint32_t *nodes = what->nodes;
  double *use = calloc(t->nedges + 1, sizeof *use), gbps = (double)c->intra_gbps;
  if (c->nchannels && c->at[0].net_in != UINT32_MAX && c->inter_gbps < c->intra_gbps) gbps = (double)c->inter_gbps;
  for (int i = 0; i < c->nchannels && c->pattern != HK_PATTERN_STAR; i++) {
    const hk_channel_order *at = &c->at[i];
    int n = c->nranks;
    for (int k = 0; k + 1 < n; k++) {
      load(p, use, nodes[at->order[k]], nodes[at->order[k + 1]], gbps);
      if (c->pattern == HK_PATTERN_TREE) load(p, use, nodes[at->order[k + 1]], nodes[at->order[k]], gbps);
    }
    uint32_t head = nodes[at->order[0]], tail = nodes[at->order[n - 1]];
    if (c->pattern == HK_PATTERN_RING && !what->network) load(p, use, tail, head, gbps);
    if (at->net_in == UINT32_MAX) continue;
    load(p, use, at->net_in, head, gbps);
    load(p, use, c->pattern == HK_PATTERN_RING ? tail : head, at->net_out, gbps);
  }
  for (uint32_t i = 0; i < t->nedges; i++)
    ck_assert_msg(use[i] <= (double)t->edges[i].gbps * 1.0001, "%s: edge %u carries %.2f of %.2f GB/s", t->name, i,
                  use[i], (double)t->edges[i].gbps);
  free(use);
}

static inline bool near_net(const hk_paths *p, const hk_search *what) {
  uint32_t net;
  for (int i = 0; i < what->nranks; i++)
    if (hk_paths_nets(p, what->nodes[i], &net, 1)) return true;
  return false;
}

/* What holds whatever the machine. */
static inline void check_channels(const hk_channels *c, const hk_paths *p, const hk_search *what) {
  ck_assert_int_eq(c->nranks, what->nranks);
  ck_assert_int_eq(c->pattern, what->pattern);
  ck_assert_uint_le(c->steps, HK_SEARCH_STEPS + 100);
  ck_assert_uint_eq(c->hash, hk_channels_hash(c));
  if (what->pattern != HK_PATTERN_STAR) ck_assert_int_ge(c->nchannels, 1);
  for (int i = 0; i < c->nchannels; i++) {
    bool seen[HK_SEARCH_RANKS] = {false};
    for (int r = 0; r < c->nranks; r++) {
      ck_assert_uint_lt(c->at[i].order[r], c->nranks);
      ck_assert(!seen[c->at[i].order[r]]);
      seen[c->at[i].order[r]] = true;
    }
    bool net = what->network && near_net(p, what);
    ck_assert((c->at[i].net_in != UINT32_MAX) == net && (c->at[i].net_out != UINT32_MAX) == net);
    if (!what->cross_nic) ck_assert_uint_eq(c->at[i].net_in, c->at[i].net_out);
  }
  check_loads(c, p, what);
}
#endif
