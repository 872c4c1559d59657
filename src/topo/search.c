/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Chooses the speed of channels. The candidates are the links' bandwidths divided by small numbers, because these
 * speeds use all of a link. For each speed there is an upper bound of the total bandwidth. The walk runs in falling
 * order of this bound, until no bound is above the best result.
 */
#include "search.h"
#include <stdlib.h>
#include <string.h>
#include "search_internal.h"

/* A few cores or multiprocessors move a channel. So a channel this fast is divided, if the limit of channels allows. */
static const hk_rate channel_most = 50 * INT64_C(1000000000);

enum { PARTS_MOST = 32, SPEEDS_MOST = 64, STEPS_PER_SPEED = 40000, STEPS_PER_LARGE = 300000 };

uint32_t hk_switch_edge(const hk_topo *t, uint32_t node) {
  const hk_node *n = &t->nodes[node];
  for (uint32_t e = n->first_edge; e < n->first_edge + n->nedges; e++)
    if (t->nodes[t->edges[e].to].kind == HK_NODE_NVS) return e;
  return UINT32_MAX;
}

/* --- Sites and NETs --- */

static hk_status search_check(const hk_paths *p, const hk_search *what) {
  if (what->nranks < 1 || what->nranks > HK_SEARCH_RANKS)
    return HK_FAIL(HK_ERR_ARGUMENT, "channels for %d ranks of one host are asked for; 1 to %d can be searched",
                   what->nranks, HK_SEARCH_RANKS);
  for (int i = 0; i < what->nranks; i++) {
    uint32_t node = what->nodes[i];
    int kind = node < p->topo->nnodes ? p->topo->nodes[node].kind : -1;
    if (kind != HK_NODE_GPU && kind != HK_NODE_CPU)
      return HK_FAIL(HK_ERR_ARGUMENT, "rank %d of the host is on node %u of topology %s, which is no GPU or CPU", i,
                     node, p->topo->name);
  }
  return HK_OK;
}

hk_cross_nic hk_cross_nic_on(const hk_fabric *f, hk_cross_nic asked) {
  return asked == HK_CROSS_NIC_BETTER && f->rail ? HK_CROSS_NIC_NO : asked;
}

static void search_find_sites(hk_ground *g) {
  for (int i = 0; i < g->what->nranks; i++) {
    int s = 0;
    while (s < g->nsites && g->site[s] != g->what->nodes[i]) s++;
    if (s == g->nsites) g->site[g->nsites++] = g->what->nodes[i];
    g->placements[s]++;
  }
}

static void search_find_nets(hk_ground *g) {
  const hk_topo *t = g->p->topo;
  uint32_t first = t->first_of[HK_NODE_NET], end = t->first_of[HK_NODE_NET + 1];
  for (uint32_t i = first; g->what->network && i < end && g->nnets < HK_NETS_MOST; i++)
    for (int s = 0; s < g->nsites; s++)
      if (hk_path_between(g->p, g->site[s], i)->cls < HK_PATH_NET) {
        g->net[g->nnets++] = i;
        break;
      }
}

/* Sorts sites by nearness to a NET. Equally near sites follow in rising or falling order, from a start that differs
 * between NETs. */
static void search_sort_sites(const hk_ground *g, int net, bool up, uint8_t *out) {
  int n = g->nsites, turn = net * n / g->nnets;
  for (int i = 0; i < n; i++) {
    int s = up ? (turn + i) % n : (turn + 2 * n - 1 - i) % n, at = i;
    const hk_path *path = hk_path_between(g->p, g->net[net], g->site[s]);
    while (at > 0 && hk_path_nearer(path, hk_path_between(g->p, g->net[net], g->site[out[at - 1]]))) {
      out[at] = out[at - 1];
      at--;
    }
    out[at] = (uint8_t)s;
  }
}

static hk_status search_prepare(hk_ground *g, const hk_paths *p, const hk_search *what) {
  const hk_topo *t = p->topo;
  *g = (hk_ground){.p = p, .what = what};
  hk_status rc = search_check(p, what);
  if (rc != HK_OK) return rc;
  search_find_sites(g);
  search_find_nets(g);
  g->limit = what->max_channels > 0 && what->max_channels < HK_CHANNEL_LIMIT ? what->max_channels : HK_CHANNEL_LIMIT;
  g->nlanes = t->nedges + t->nnodes;
  g->capacity = calloc(g->nlanes, sizeof *g->capacity);
  g->near_in = malloc((size_t)(g->nnets * g->nsites));
  g->near_out = malloc((size_t)(g->nnets * g->nsites));
  if (!g->capacity || !g->near_in || !g->near_out)
    return HK_FAIL_ERRNO("no memory to search channels in topology %s", t->name);
  for (uint32_t i = 0; i < t->nedges; i++) g->capacity[i] = hk_rate_of(t->edges[i].gbps);
  for (uint32_t i = 0; i < p->n; i++)
    g->capacity[t->nedges + p->ends[i]] = hk_rate_of(p->at[(size_t)i * p->n + i].gbps);
  for (int i = 0; i < g->nnets; i++) {
    search_sort_sites(g, i, true, g->near_in + i * g->nsites);
    search_sort_sites(g, i, false, g->near_out + i * g->nsites);
  }
  return HK_OK;
}

static void search_clear(hk_ground *g) {
  free(g->capacity);
  free(g->near_in);
  free(g->near_out);
}

/* --- Candidate speeds --- */

typedef struct speeds {
  int n;
  struct {
    hk_rate speed, promise; /* speed of one channel; upper bound of the total score */
    int most;               /* channels */
  } at[SPEEDS_MOST];
} speeds;

/* Each channel costs cores and buffers and makes the parts of messages smaller, so it must gain two percent. */
static hk_rate search_score(hk_rate total, int channels) { return total / (100 + 2 * channels) * 100; }

static void search_add_speed(speeds *list, const hk_ground *g, hk_rate bound, hk_rate speed) {
  if (speed <= 0 || speed > bound) return;
  hk_rate most = bound / speed < g->limit ? bound / speed : g->limit;
  hk_rate promise = search_score(most * speed, (int)most);
  int at = list->n;
  for (int i = 0; i < list->n; i++)
    if (list->at[i].speed == speed) return;
  while (at > 0 && (promise > list->at[at - 1].promise ||
                    (promise == list->at[at - 1].promise && speed > list->at[at - 1].speed)))
    at--;
  if (at == SPEEDS_MOST) return;
  int moved = (list->n < SPEEDS_MOST ? list->n : SPEEDS_MOST - 1) - at;
  memmove(&list->at[at + 1], &list->at[at], (size_t)moved * sizeof list->at[0]);
  list->at[at].speed = speed;
  list->at[at].promise = promise;
  list->at[at].most = (int)most;
  if (list->n < SPEEDS_MOST) list->n++;
}

static void search_add_parts(speeds *list, const hk_ground *g, hk_rate bound, hk_rate capacity) {
  hk_rate most = channel_most > bound / g->limit ? channel_most : bound / g->limit;
  for (int k = 1; k <= PARTS_MOST; k++)
    if (capacity / k <= most) search_add_speed(list, g, bound, capacity / k);
}

static hk_status search_find_speeds(const hk_ground *g, hk_rate bound, speeds *list) {
  bool *used = hk_used_lanes(g);
  list->n = 0;
  if (!used) return HK_FAIL_ERRNO("no memory for the speeds of %u links", g->nlanes);
  search_add_parts(list, g, bound, bound);
  hk_rate seen[SPEEDS_MOST];
  int nseen = 0;
  for (uint32_t i = 0; i < g->nlanes; i++) {
    bool fresh = used[i];
    for (int k = 0; k < nseen && fresh; k++) fresh = seen[k] != g->capacity[i];
    if (!fresh || nseen == SPEEDS_MOST) continue;
    seen[nseen++] = g->capacity[i];
    search_add_parts(list, g, bound, g->capacity[i]);
  }
  free(used);
  return HK_OK;
}

/* --- The search --- */

typedef struct best {
  hk_rate score;
  /* classes of the worst hops, to NETs (times 16) and inside; the lower value wins among equal scores */
  int n, classes;
  bool sure; /* no better channels exist */
  hk_walk_channel at[HK_CHANNEL_LIMIT], next[HK_CHANNEL_LIMIT];
} best;

static hk_status search_consider(const hk_ground *g, best *b, int n) {
  hk_rating rating;
  if (!n) return HK_OK;
  HK_OR_RETURN(hk_rate_channels(g, b->next, n, &rating));
  hk_rate now = search_score(rating.both * n, n), same = b->score / 1000;
  int classes = rating.inter_class * 16 + rating.intra_class;
  if (!b->n || now > b->score + same || (now >= b->score - same && classes < b->classes)) {
    b->score = now;
    b->n = n;
    b->classes = classes;
    memcpy(b->at, b->next, (size_t)n * sizeof *b->at);
  }
  return HK_OK;
}

/* A channel in the order of ranks: used if nothing better is found. */
static void search_natural(const hk_ground *g, hk_walk_channel *c) {
  for (int i = 0; i < g->nsites; i++) c->site[i] = (uint8_t)i;
  c->net_in = c->net_out = g->nnets ? 0 : -1;
  if (!g->nnets) return;
  for (int i = 1; i < g->nnets; i++)
    if (hk_path_nearer(hk_path_between(g->p, g->site[0], g->net[i]),
                       hk_path_between(g->p, g->site[0], g->net[c->net_in])))
      c->net_in = c->net_out = (int16_t)i;
}

/* Without a network: first rings in pairs of opposite directions, then single rings. With a network: first the same NET
 * in and out, then, if allowed, different NETs and pairs. */
static hk_status search_try_speed(const hk_ground *g, best *b, hk_rate speed, int most, uint32_t *steps) {
  bool pairs = g->what->pattern == HK_PATTERN_RING && !g->what->network && g->nsites > 2 && most > 1;
  bool cross = g->what->pattern == HK_PATTERN_RING && g->what->cross_nic && g->nnets > 1;
  for (int way = 0, n = 0; way <= (pairs || cross) && n < most; way++) {
    uint32_t stop = *steps + (g->nsites <= HK_SEARCH_EXACT ? STEPS_PER_SPEED : STEPS_PER_LARGE);
    hk_walk_rules rules = {.speed = speed, .most = most, .pairs = way ? cross : pairs, .cross = cross && way};
    HK_OR_RETURN(hk_walk(g, &rules, steps, stop < HK_SEARCH_STEPS ? stop : HK_SEARCH_STEPS, b->next, &n));
    HK_OR_RETURN(search_consider(g, b, n));
  }
  return HK_OK;
}

static hk_status search_try_speeds(const hk_ground *g, best *b, uint32_t stop, uint32_t *steps) {
  speeds list;
  hk_rate bound;
  HK_OR_RETURN(hk_search_bound(g, &bound));
  if (bound == HK_NO_BOUND) return HK_OK; /* nothing is shared */
  HK_OR_RETURN(search_find_speeds(g, bound, &list));
  for (int i = 0; i < list.n && *steps < stop && list.at[i].promise > b->score + b->score / 1000; i++)
    HK_OR_RETURN(search_try_speed(g, b, list.at[i].speed, list.at[i].most, steps));
  b->sure = list.n && list.at[0].promise <= b->score + b->score / 1000;
  return HK_OK;
}

/* Takes rings that close inside the host and opens them near a NET. The last rank's path to the NET often is its path
 * to the first rank, so nothing is lost. */
static hk_status search_open_rings(const hk_ground *g, best *b, const hk_ground *closed, uint32_t end,
                                   uint32_t *steps) {
  hk_status rc;
  best *rings = calloc(1, sizeof *rings);
  if (!rings) return HK_FAIL_ERRNO("no memory to search channels");
  HK_TRY(search_try_speeds(closed, rings, end, steps), out);
  for (int i = 0; i < rings->n; i++) {
    int net = i % g->nnets, first = 0;
    while (rings->at[i].site[first] != g->near_in[net * g->nsites]) first++;
    for (int s = 0; s < g->nsites; s++) b->next[i].site[s] = rings->at[i].site[(first + s) % g->nsites];
    b->next[i].net_in = b->next[i].net_out = (int16_t)net;
  }
  HK_TRY(search_consider(g, b, rings->n), out);
out:
  free(rings);
  return rc;
}

/* Repeats the channels to get more of them, if the user wants more or one channel is too fast. */
static hk_status search_repeat(const hk_ground *g, best *b) {
  hk_rating rating;
  hk_status rc = hk_rate_channels(g, b->at, b->n, &rating);
  if (rc != HK_OK) return rc;
  hk_rate parts = g->what->nranks > 1 ? (rating.both + channel_most - 1) / channel_most : 1;
  hk_rate channels = b->n * (parts > 1 ? parts : 1);
  if (channels < g->what->min_channels) channels = g->what->min_channels;
  if (channels > g->limit) channels = g->limit;
  for (int had = b->n; b->n < channels; b->n++) b->at[b->n] = b->at[b->n % had];
  return HK_OK;
}

/* --- Stars --- */

static bool search_can_star(const hk_ground *g) {
  for (int s = 0; s < g->nsites; s++) {
    const hk_node *n = &g->p->topo->nodes[g->site[s]];
    if (n->kind != HK_NODE_GPU || !n->gpu.mcast || g->placements[s] != 1) return false;
    if (hk_switch_edge(g->p->topo, g->site[s]) == UINT32_MAX) return false;
  }
  return g->nsites > 1;
}

/* Makes one channel for each site that owns a part: all sites, or with a network the sites nearest to the NETs. */
static int search_make_stars(const hk_ground *g, hk_walk_channel *out) {
  bool owner[HK_SEARCH_RANKS] = {false};
  int n = 0, most = g->nnets ? g->nnets : g->nsites;
  for (int i = 0; i < most && n < g->limit; i++) {
    int head = i;
    for (int k = 0; g->nnets && k < g->nsites; k++) {
      head = g->near_in[i * g->nsites + k];
      if (!owner[head]) break;
    }
    owner[head] = true;
    out[n].net_in = out[n].net_out = (int16_t)(g->nnets ? i : -1);
    for (int s = 0; s < g->nsites; s++) out[n].site[s] = (uint8_t)((head + s) % g->nsites);
    n++;
  }
  return n;
}

/* Searches until `end` steps are used. */
static hk_status search(const hk_ground *g, best *b, uint32_t end, uint32_t *steps) {
  hk_status rc;
  hk_search inside = *g->what;
  hk_ground closed = {0};
  HK_TRY(search_try_speeds(g, b, *steps + (end - *steps) / 4 * 3, steps), out);
  if (g->what->pattern == HK_PATTERN_RING && g->nnets && g->nsites > 2 && !b->sure) {
    inside.network = false;
    HK_TRY(search_prepare(&closed, g->p, &inside), out);
    HK_TRY(search_open_rings(g, b, &closed, end, steps), out);
  }
  search_natural(g, &b->next[0]);
  HK_TRY(search_consider(g, b, 1), out);
out:
  search_clear(&closed);
  return rc;
}

/* Searches first with the same NIC in and out; then with different ones, if the user asks for it or the machine could
 * gain by it. */
static hk_status search_ways(hk_ground *g, best *b, const hk_search *what, uint32_t *steps) {
  hk_status rc = HK_OK;
  hk_search one = *what;
  if (what->cross_nic == HK_CROSS_NIC_BETTER) {
    one.cross_nic = HK_CROSS_NIC_NO;
    g->what = &one;
    HK_TRY(search(g, b, HK_SEARCH_STEPS / 2, steps), out);
    if (what->pattern != HK_PATTERN_RING || g->nnets < 2) goto out;
    one.cross_nic = HK_CROSS_NIC_YES;
  }
  rc = search(g, b, HK_SEARCH_STEPS, steps);
out:
  g->what = what;
  return rc;
}

hk_status hk_search_channels(hk_channels **out, const hk_paths *p, const hk_search *what) {
  hk_status rc;
  hk_ground g = {0};
  uint32_t steps = 0;
  best *b = calloc(1, sizeof *b);
  *out = NULL;
  if (!b) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to search channels"), out);
  HK_TRY(search_prepare(&g, p, what), out);
  if (what->pattern == HK_PATTERN_STAR)
    b->n = search_can_star(&g) ? search_make_stars(&g, b->at) : 0;
  else
    HK_TRY(search_ways(&g, b, what, &steps), out);
  if (b->n) HK_TRY(search_repeat(&g, b), out);
  HK_TRY(hk_make_channels(&g, b->at, b->n, steps, out), out);
out:
  search_clear(&g);
  free(b);
  return rc;
}
