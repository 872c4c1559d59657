/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the search. search.c chooses the speed of channels, search_walk.c searches for them,
 * search_bound.c gives the upper bound, search_rate.c rates a set of channels and makes the result. */
#pragma once
#include "paths.h"
#include "search.h"
#include "topo.h"

/* Bandwidths are integers (B/s), so that sums are exact and equal on all ranks. */
typedef int64_t hk_rate;
/* Limited to 50000 GB/s, so that no sum over all links overflows. */
static inline hk_rate hk_rate_of(float gbps) { return (hk_rate)((gbps < 5e4f ? (double)gbps : 5e4) * 1e9 + 0.5); }
static inline float hk_rate_gbps(hk_rate r) { return (float)((double)r / 1e9); }

/* One channel as the walk sees it: an order of sites, with the NETs as indices into hk_ground.net (-1: none). */
typedef struct hk_walk_channel {
  uint8_t site[HK_SEARCH_RANKS];
  int16_t net_in, net_out;
} hk_walk_channel;

/* The input of a search. A site is a device with one or more ranks; a lane is an edge, or a device's own memory. */
typedef struct hk_ground {
  const hk_paths *p;
  const hk_search *what;
  int nsites, nnets;
  uint32_t site[HK_SEARCH_RANKS];  /* nodes, in the order of their first ranks */
  int placements[HK_SEARCH_RANKS]; /* ranks there */
  uint32_t net[HK_NETS_MOST];
  uint32_t nlanes;   /* edges, then one for each node */
  hk_rate *capacity; /* [nlanes] */
  /* [nnets * nsites] sites by nearness to a NET. Equally near sites are distributed: near_in in rising order, near_out
   * in falling order. */
  uint8_t *near_in, *near_out;
  int limit; /* of channels */
} hk_ground;

static inline const hk_path *hk_site_path(const hk_ground *g, int from, int to) {
  return hk_path_between(g->p, g->site[from], g->site[to]);
}
static inline uint32_t hk_own_lane(const hk_ground *g, int site) { return g->p->topo->nedges + g->site[site]; }
/* How often a channel crosses the memory of a device with several ranks. */
static inline int hk_own_hops(const hk_ground *g, int site) {
  int m = g->placements[site] - 1;
  if (g->what->pattern == HK_PATTERN_TREE) return 2 * m;
  return m + (m > 0 && g->nsites == 1 && !g->what->network);
}

typedef struct hk_walk_rules {
  hk_rate speed; /* of each channel */
  int most;      /* channels */
  bool pairs;    /* each ring also in the other direction, if it fits */
  bool cross;    /* the NETs by which a channel leaves and enters may differ */
} hk_walk_rules;
/* Finds as many channels as fit; adds to *steps and stops at `stop`. */
hk_status hk_walk(const hk_ground *g, const hk_walk_rules *rules, uint32_t *steps, uint32_t stop, hk_walk_channel *out,
                  int *found);
/* The edge from a GPU to its NVSwitches, or UINT32_MAX. */
uint32_t hk_switch_edge(const hk_topo *t, uint32_t node);

/* An upper bound for all channels together; 0: a site has no path to others; HK_NO_BOUND: nothing is shared. */
#define HK_NO_BOUND (INT64_MAX / 2)
hk_status hk_search_bound(const hk_ground *g, hk_rate *out);
/* [nlanes] true for edges that paths between sites or to NETs use. The caller frees it; NULL without memory. */
bool *hk_used_lanes(const hk_ground *g);

typedef struct hk_rating {
  /* Rates of one channel. both: if all parts are scaled alike; intra, inter: inside and to the NETs, if the other part
   * stays at `both`. */
  hk_rate both, intra, inter;
  int intra_class, inter_class; /* the worst */
} hk_rating;
hk_status hk_rate_channels(const hk_ground *g, const hk_walk_channel *at, int n, hk_rating *out);
hk_status hk_make_channels(const hk_ground *g, const hk_walk_channel *at, int n, uint32_t steps, hk_channels **out);
