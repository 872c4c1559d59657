/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of a set of channels: each link's bandwidth is divided by the number of times that they cross it. */
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "search_internal.h"

typedef struct tally {
  const hk_ground *g;
  uint32_t *intra, *inter; /* [nlanes] crossings inside the host, and on the way to NETs */
  int intra_class, inter_class;
  float us;
  bool broken; /* there is a hop without a path */
} tally;

static void search_rate_count_path(tally *t, uint32_t *lanes, const hk_path *path, int *worst) {
  if (path->cls > *worst) *worst = path->cls;
  if (path->cls == HK_PATH_DIS) t->broken = true;
  for (uint32_t i = 0; i < path->nhops; i++) lanes[t->g->p->hops[path->first + i]]++;
}

static void search_rate_count_hop(tally *t, int from, int to) {
  const hk_path *path = hk_site_path(t->g, from, to);
  search_rate_count_path(t, t->intra, path, &t->intra_class);
  if (path->us > t->us) t->us = path->us;
}

static void search_rate_count_nets(tally *t, const hk_walk_channel *c, int first, int last) {
  const hk_ground *g = t->g;
  if (c->net_in < 0) return;
  search_rate_count_path(t, t->inter, hk_path_between(g->p, g->net[c->net_in], g->site[first]), &t->inter_class);
  search_rate_count_path(t, t->inter, hk_path_between(g->p, g->site[last], g->net[c->net_out]), &t->inter_class);
}

/* All ranks send their share to the switch and get the result from it. The owner also gets the sum and sends it
 * back. Both directions carry the same, so one is counted. */
static void search_rate_count_star(tally *t, const hk_walk_channel *c) {
  const hk_topo *topo = t->g->p->topo;
  for (int i = 0; i < t->g->nsites; i++) {
    uint32_t edge = hk_switch_edge(topo, t->g->site[c->site[i]]);
    t->intra[edge] += i ? 1 : 2;
    if (topo->edges[edge].us * 2 > t->us) t->us = topo->edges[edge].us * 2;
  }
  t->intra_class = HK_PATH_NVL;
  search_rate_count_nets(t, c, c->site[0], c->site[0]);
}

static void search_rate_count_channel(tally *t, const hk_walk_channel *c) {
  const hk_ground *g = t->g;
  int n = g->nsites, pattern = g->what->pattern;
  if (pattern == HK_PATTERN_STAR) {
    search_rate_count_star(t, c);
    return;
  }
  for (int i = 0; i < n; i++) t->intra[hk_own_lane(g, i)] += (uint32_t)hk_own_hops(g, i);
  for (int i = 0; i + 1 < n; i++) {
    search_rate_count_hop(t, c->site[i], c->site[i + 1]);
    if (pattern == HK_PATTERN_TREE) search_rate_count_hop(t, c->site[i + 1], c->site[i]);
  }
  if (pattern == HK_PATTERN_RING && !g->what->network) search_rate_count_hop(t, c->site[n - 1], c->site[0]);
  search_rate_count_nets(t, c, c->site[0], pattern == HK_PATTERN_TREE ? c->site[0] : c->site[n - 1]);
}

static void search_rate_divide(const tally *t, hk_rating *out) {
  const hk_ground *g = t->g;
  *out = (hk_rating){.both = INT64_MAX, .intra = INT64_MAX, .inter = INT64_MAX, .intra_class = t->intra_class};
  out->inter_class = g->what->network && !g->nnets ? HK_PATH_NET : t->inter_class;
  for (uint32_t i = 0; i < g->nlanes; i++) {
    hk_rate crossings = (hk_rate)t->intra[i] + t->inter[i];
    if (crossings && g->capacity[i] / crossings < out->both) out->both = g->capacity[i] / crossings;
  }
  /* A rank that is alone crosses nothing: it copies to itself. */
  if (out->both == INT64_MAX) out->both = g->capacity[hk_own_lane(g, 0)];
  if (t->broken) out->both = 0;
  for (uint32_t i = 0; i < g->nlanes; i++) {
    hk_rate intra = t->intra[i], inter = t->inter[i];
    if (intra && (g->capacity[i] - inter * out->both) / intra < out->intra)
      out->intra = (g->capacity[i] - inter * out->both) / intra;
    if (inter && (g->capacity[i] - intra * out->both) / inter < out->inter)
      out->inter = (g->capacity[i] - intra * out->both) / inter;
  }
  if (out->intra == INT64_MAX) out->intra = out->inter == INT64_MAX ? out->both : g->capacity[hk_own_lane(g, 0)];
  if (out->inter == INT64_MAX) out->inter = 0;
  if (t->broken) out->intra = 0;
}

static hk_status search_rate_tally_all(tally *t, const hk_ground *g, const hk_walk_channel *at, int n) {
  *t = (tally){.g = g, .intra = calloc(g->nlanes, sizeof *t->intra), .inter = calloc(g->nlanes, sizeof *t->inter)};
  if (!t->intra || !t->inter) return HK_FAIL_ERRNO("no memory to rate %d channels", n);
  for (int i = 0; i < n; i++) search_rate_count_channel(t, &at[i]);
  return HK_OK;
}

static void search_rate_tally_clear(tally *t) {
  free(t->intra);
  free(t->inter);
}

hk_status hk_rate_channels(const hk_ground *g, const hk_walk_channel *at, int n, hk_rating *out) {
  tally t;
  hk_status rc = search_rate_tally_all(&t, g, at, n);
  if (rc == HK_OK) search_rate_divide(&t, out);
  search_rate_tally_clear(&t);
  return rc;
}

/* --- The result --- */

/* Replaces sites by the ranks on them. */
static void search_rate_expand(const hk_ground *g, const hk_walk_channel *c, uint16_t *order) {
  const hk_search *what = g->what;
  int n = 0;
  for (int s = 0; s < g->nsites; s++)
    for (int i = 0; i < what->nranks; i++)
      if (what->nodes[i] == g->site[c->site[s]]) order[n++] = (uint16_t)i;
}

hk_status hk_make_channels(const hk_ground *g, const hk_walk_channel *at, int n, uint32_t steps, hk_channels **result) {
  hk_status rc;
  tally t = {.g = g};
  hk_rating rating;
  hk_channels *out;
  HK_TRY(hk_channels_new(&out, g->what->pattern, g->what->nranks, n), out);
  out->steps = steps;
  for (int i = 0; i < n; i++) {
    search_rate_expand(g, &at[i], out->at[i].order);
    if (at[i].net_in >= 0) out->at[i].net_in = g->net[at[i].net_in];
    if (at[i].net_out >= 0) out->at[i].net_out = g->net[at[i].net_out];
  }
  HK_TRY(search_rate_tally_all(&t, g, at, n), out);
  if (n) {
    search_rate_divide(&t, &rating);
    out->intra_cls = (uint8_t)rating.intra_class;
    out->inter_cls = (uint8_t)rating.inter_class;
    out->intra_gbps = hk_rate_gbps(rating.intra);
    out->inter_gbps = hk_rate_gbps(rating.inter);
    out->us = t.us;
  }
  out->hash = hk_channels_hash(out);
out:
  search_rate_tally_clear(&t);
  if (rc != HK_OK) {
    hk_channels_free(out);
    out = NULL;
  }
  *result = out;
  return rc;
}

hk_status hk_channels_new(hk_channels **out, hk_pattern pattern, int nranks, int nchannels) {
  const size_t n = (size_t)nchannels + 1; /* no channels are no error */
  hk_channels *c = calloc(1, sizeof *c);
  if (c) c->at = calloc(n, sizeof *c->at);
  if (c && c->at) c->at[0].order = calloc(n * (size_t)nranks, sizeof *c->at[0].order);
  *out = c;
  if (!c || !c->at || !c->at[0].order) {
    hk_status rc = HK_FAIL_ERRNO("no memory for %d channels of %d ranks", nchannels, nranks);
    hk_channels_free(c);
    *out = NULL;
    return rc;
  }
  c->pattern = (uint8_t)pattern;
  c->nranks = nranks;
  c->nchannels = nchannels;
  for (int i = 0; i < nchannels; i++)
    c->at[i] = (hk_channel_order){c->at[0].order + (size_t)i * (size_t)nranks, UINT32_MAX, UINT32_MAX};
  return HK_OK;
}

void hk_channels_free(hk_channels *c) {
  if (!c) return;
  if (c->at) free(c->at[0].order); /* one block for all */
  free(c->at);
  free(c);
}

uint64_t hk_channels_hash(const hk_channels *c) {
  uint64_t h = hk_hash_mix(c->pattern, (uint64_t)c->nranks << 32 | (uint32_t)c->nchannels);
  h = hk_hash_mix(h, (uint64_t)c->intra_cls << 8 | c->inter_cls);
  h = hk_hash_mix_float(hk_hash_mix_float(hk_hash_mix_float(h, c->intra_gbps), c->inter_gbps), c->us);
  for (int i = 0; i < c->nchannels; i++) {
    for (int r = 0; r < c->nranks; r++) h = hk_hash_mix(h, c->at[i].order[r]);
    h = hk_hash_mix(h, (uint64_t)c->at[i].net_in << 32 | c->at[i].net_out);
  }
  return h ? h : 1;
}
