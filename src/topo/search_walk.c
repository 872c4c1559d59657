/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Searches for as many channels of one speed as fit at the same time. Each channel takes its speed from every link
 * that it crosses. If no next hop has enough bandwidth left, the walk takes back its newest hop. If a channel has no
 * path at all, the walk takes back the newest hop of the channel before. So with enough steps it finds the best
 * result; with fewer it returns the best that it saw.
 */
#include <stdlib.h>
#include <string.h>
#include "search_internal.h"

enum { STEPS_A_BEGINNING = 1000 };

typedef struct walker {
  const hk_ground *g;
  hk_rate speed, *left; /* left: of each lane */
  bool pairs, cross, exact;
  int n, most, best;
  uint32_t *steps, stop, budget;
  uint64_t here[2];                             /* sites on the channel under way */
  int last;                                     /* the site kept for its end, or -1 */
  uint16_t in[HK_NETS_MOST], out[HK_NETS_MOST]; /* channels on each NET */
  hk_walk_channel at[HK_CHANNEL_LIMIT], *result;
} walker;

/* Each of these returns true when the walk is over: all channels found, or all steps used. */
static bool search_walk_next_channel(walker *w);

static bool search_walk_is_here(const walker *w, int site) { return w->here[site >> 6] >> (site & 63) & 1; }
static void search_walk_flip_here(walker *w, int site) { w->here[site >> 6] ^= UINT64_C(1) << (site & 63); }

static hk_rate search_walk_width(walker *w, const hk_path *path) {
  hk_rate least = INT64_MAX;
  (*w->steps)++;
  if (path->cls >= HK_PATH_NET) return 0;
  for (uint32_t i = 0; i < path->nhops; i++) {
    hk_rate left = w->left[w->g->p->hops[path->first + i]];
    if (left < least) least = left;
  }
  return least;
}

static void search_walk_give(walker *w, const hk_path *path, hk_rate speed) {
  for (uint32_t i = 0; i < path->nhops; i++) w->left[w->g->p->hops[path->first + i]] += speed;
}

static bool search_walk_take(walker *w, const hk_path *path) {
  if (search_walk_width(w, path) < w->speed) return false;
  search_walk_give(w, path, -w->speed);
  return true;
}

/* Takes a hop of the channel: trees use both directions. */
static bool search_walk_take_hop(walker *w, int from, int to) {
  if (!search_walk_take(w, hk_site_path(w->g, from, to))) return false;
  if (w->g->what->pattern != HK_PATTERN_TREE || search_walk_take(w, hk_site_path(w->g, to, from))) return true;
  search_walk_give(w, hk_site_path(w->g, from, to), w->speed);
  return false;
}

static void search_walk_give_hop(walker *w, int from, int to) {
  search_walk_give(w, hk_site_path(w->g, from, to), w->speed);
  if (w->g->what->pattern == HK_PATTERN_TREE) search_walk_give(w, hk_site_path(w->g, to, from), w->speed);
}

static void search_walk_turn_own(walker *w, hk_rate speed) {
  for (int i = 0; i < w->g->nsites; i++) w->left[hk_own_lane(w->g, i)] += speed * hk_own_hops(w->g, i);
}

/* Takes the devices' own memory; gives it back if it does not fit. */
static bool search_walk_take_own(walker *w) {
  search_walk_turn_own(w, -w->speed);
  for (int i = 0; i < w->g->nsites; i++)
    if (w->left[hk_own_lane(w->g, i)] < 0) {
      search_walk_turn_own(w, w->speed);
      return false;
    }
  return true;
}

static bool search_walk_out_of_steps(const walker *w) { return *w->steps >= w->stop; }
/* True if this start of the first channel has used its share of steps: another start may be better. */
static bool search_walk_over_budget(const walker *w) { return *w->steps >= w->budget; }

static void search_walk_reverse(const walker *w, const hk_walk_channel *from, hk_walk_channel *to) {
  int n = w->g->nsites, closed = from->net_in < 0;
  for (int i = 0; i < n; i++) to->site[i] = from->site[(n - 1 + closed - i) % n];
  to->net_in = from->net_out;
  to->net_out = from->net_in;
}

/* Part i of n + 1 of a ring's paths: the path in from a NET, the hops, the path out. NULL: the part does not exist. */
static const hk_path *search_walk_part_of(const walker *w, const hk_walk_channel *c, int i) {
  const hk_ground *g = w->g;
  int n = g->nsites;
  if (i < n - 1) return hk_site_path(g, c->site[i], c->site[i + 1]);
  if (c->net_in < 0) return i < n ? hk_site_path(g, c->site[n - 1], c->site[0]) : NULL;
  if (i < n) return hk_path_between(g->p, g->net[c->net_in], g->site[c->site[0]]);
  return hk_path_between(g->p, g->site[c->site[n - 1]], g->net[c->net_out]);
}

static void search_walk_give_ring(walker *w, const hk_walk_channel *c, int parts) {
  for (int i = 0; i < parts; i++)
    if (search_walk_part_of(w, c, i)) search_walk_give(w, search_walk_part_of(w, c, i), w->speed);
  search_walk_turn_own(w, w->speed);
}

/* Adds the newest ring in the other direction, if it fits. */
static bool search_walk_take_reverse(walker *w) {
  hk_walk_channel *c = &w->at[w->n + 1];
  if (!w->pairs || w->n + 1 >= w->most || !search_walk_take_own(w)) return false;
  search_walk_reverse(w, &w->at[w->n], c);
  for (int i = 0; i <= w->g->nsites; i++)
    if (search_walk_part_of(w, c, i) && !search_walk_take(w, search_walk_part_of(w, c, i))) {
      search_walk_give_ring(w, c, i);
      return false;
    }
  return true;
}

static bool search_walk_channel_found(walker *w) {
  uint64_t here[2] = {w->here[0], w->here[1]};
  int last = w->last;
  bool pair = search_walk_take_reverse(w);
  w->n += 1 + pair;
  if (!w->exact || search_walk_next_channel(w)) return true;
  w->n -= 1 + pair;
  memcpy(w->here, here, sizeof here);
  w->last = last;
  if (pair) search_walk_give_ring(w, &w->at[w->n + 1], w->g->nsites + 1);
  return false;
}

/* Adds the hops from the last site so far to the site that is kept for the end, or back to the first. */
static bool search_walk_close_channel(walker *w) {
  hk_walk_channel *c = &w->at[w->n];
  int n = w->g->nsites, from, to;
  if (w->last >= 0 && n > 1) {
    from = c->site[n - 2];
    to = c->site[n - 1] = (uint8_t)w->last;
  } else {
    from = c->site[n - 1];
    to = c->site[0];
    if (w->g->what->network || w->g->what->pattern == HK_PATTERN_TREE || n == 1) return search_walk_channel_found(w);
  }
  if (!search_walk_take_hop(w, from, to)) return search_walk_out_of_steps(w);
  if (search_walk_channel_found(w)) return true;
  search_walk_give_hop(w, from, to);
  return search_walk_out_of_steps(w);
}

/* The best next site that is not in `tried`: by class, then by capacity left, then by number after this one; -1:
 * none. */
static int search_walk_choose_next(walker *w, int from, const uint64_t *tried) {
  const hk_ground *g = w->g;
  int best = -1, best_class = 0;
  hk_rate most = 0;
  for (int i = 1; i < g->nsites; i++) {
    int to = (from + i) % g->nsites;
    const hk_path *path = hk_site_path(g, from, to);
    if (search_walk_is_here(w, to) || to == w->last || (tried[to >> 6] >> (to & 63) & 1)) continue;
    if (best >= 0 && path->cls > best_class) continue;
    hk_rate left = search_walk_width(w, path);
    if (left < w->speed) continue;
    if (best >= 0 && path->cls == best_class && left <= most) continue;
    best = to;
    best_class = path->cls;
    most = left;
  }
  return best;
}

static bool search_walk_go_on(walker *w, int depth) {
  hk_walk_channel *c = &w->at[w->n];
  uint64_t tried[2] = {0, 0};
  int from = c->site[depth - 1];
  if (depth == w->g->nsites - (w->last >= 0 && w->g->nsites > 1)) return search_walk_close_channel(w);
  for (int to; !search_walk_out_of_steps(w) && (to = search_walk_choose_next(w, from, tried)) >= 0;) {
    tried[to >> 6] |= UINT64_C(1) << (to & 63);
    if (!search_walk_take_hop(w, from, to)) continue;
    c->site[depth] = (uint8_t)to;
    search_walk_flip_here(w, to);
    if (search_walk_go_on(w, depth + 1)) return true;
    search_walk_flip_here(w, to);
    search_walk_give_hop(w, from, to);
    if (!w->exact || search_walk_over_budget(w)) return false;
  }
  return search_walk_out_of_steps(w);
}

static bool search_walk_begin(walker *w, int first, int last) {
  hk_walk_channel *c = &w->at[w->n];
  w->here[0] = w->here[1] = 0;
  w->last = last;
  c->site[0] = (uint8_t)first;
  search_walk_flip_here(w, first);
  return search_walk_go_on(w, 1);
}

/* --- Where channels begin and end --- */

static bool search_walk_leave_by(walker *w, int first, int net) {
  const hk_ground *g = w->g;
  hk_walk_channel *c = &w->at[w->n];
  c->net_out = (int16_t)net;
  w->out[net]++;
  for (int i = 0; i < g->nsites && !search_walk_over_budget(w); i++) {
    bool tree = g->what->pattern == HK_PATTERN_TREE;
    int last = tree ? first : g->near_out[net * g->nsites + i];
    if (!tree && last == first && g->nsites > 1) continue;
    const hk_path *path = hk_path_between(g->p, g->site[last], g->net[net]);
    if (search_walk_take(w, path)) {
      if (search_walk_begin(w, first, tree || g->nsites == 1 ? -1 : last)) return true;
      search_walk_give(w, path, w->speed);
    }
    if (tree || search_walk_out_of_steps(w)) break;
  }
  w->out[net]--;
  return search_walk_out_of_steps(w);
}

/* The NET after `previous`, by the number of channels that use it, then by number. -1 begins, and -1 is the end. */
static int search_walk_next_net(const walker *w, const uint16_t *used, int previous) {
  int best = -1;
  for (int i = 0; i < w->g->nnets; i++) {
    if (previous >= 0 && (used[i] < used[previous] || (used[i] == used[previous] && i <= previous))) continue;
    if (best < 0 || used[i] < used[best]) best = i;
  }
  return best;
}

/* If any NET may follow, the NET by which the channel enters is tried last, because it was tried alone before. */
static bool search_walk_leave(walker *w, int first, int net_in) {
  if (!w->cross) return search_walk_leave_by(w, first, net_in);
  for (int net = search_walk_next_net(w, w->out, -1); net >= 0; net = search_walk_next_net(w, w->out, net)) {
    if (net == net_in) continue;
    if (w->n == 0) w->budget = *w->steps + STEPS_A_BEGINNING;
    if (search_walk_leave_by(w, first, net)) return true;
  }
  if (w->n == 0) w->budget = *w->steps + STEPS_A_BEGINNING;
  return search_walk_leave_by(w, first, net_in);
}

static bool search_walk_enter_by(walker *w, int net) {
  const hk_ground *g = w->g;
  hk_walk_channel *c = &w->at[w->n];
  c->net_in = (int16_t)net;
  w->in[net]++;
  for (int i = 0; i < g->nsites && !search_walk_out_of_steps(w) && !(w->n && search_walk_over_budget(w)); i++) {
    int first = g->near_in[net * g->nsites + i];
    const hk_path *path = hk_path_between(g->p, g->net[net], g->site[first]);
    if (!search_walk_take(w, path)) continue;
    if (search_walk_leave(w, first, net)) return true;
    search_walk_give(w, path, w->speed);
  }
  w->in[net]--;
  return search_walk_out_of_steps(w);
}

static bool search_walk_next_root(walker *w) {
  const hk_ground *g = w->g;
  hk_walk_channel *c = &w->at[w->n];
  if (g->what->network && g->nnets) {
    for (int net = search_walk_next_net(w, w->in, -1); net >= 0; net = search_walk_next_net(w, w->in, net))
      if (search_walk_enter_by(w, net)) return true;
    return false;
  }
  c->net_in = c->net_out = -1;
  if (g->what->pattern == HK_PATTERN_RING && !g->what->network) return search_walk_begin(w, 0, -1);
  for (int i = 0; i < g->nsites; i++)
    if (search_walk_begin(w, (w->n + i) % g->nsites, -1)) return true;
  return false;
}

static bool search_walk_next_channel(walker *w) {
  if (w->n > w->best) {
    w->best = w->n;
    memcpy(w->result, w->at, (size_t)w->n * sizeof *w->at);
  }
  if (w->n >= w->most || search_walk_out_of_steps(w)) return true;
  if (!search_walk_take_own(w)) return false;
  if (search_walk_next_root(w)) return true;
  search_walk_turn_own(w, w->speed);
  return false;
}

hk_status hk_walk(const hk_ground *g, const hk_walk_rules *rules, uint32_t *steps, uint32_t stop, hk_walk_channel *out,
                  int *found) {
  hk_status rc = HK_OK;
  walker *w = calloc(1, sizeof *w);
  hk_rate *left = malloc(g->nlanes * sizeof *left);
  *found = 0;
  if (!w || !left) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to search channels among %d devices", g->nsites), out);
  memcpy(left, g->capacity, g->nlanes * sizeof *left);
  w->g = g;
  w->speed = rules->speed;
  w->left = left;
  w->cross = rules->cross;
  w->pairs = rules->pairs;
  w->exact = g->nsites <= HK_SEARCH_EXACT;
  w->most = rules->most < HK_CHANNEL_LIMIT ? rules->most : HK_CHANNEL_LIMIT;
  w->steps = steps;
  w->stop = stop;
  w->budget = UINT32_MAX;
  w->result = out;
  int had;
  do { /* if nothing is taken back, each call finds one channel (or a pair); otherwise the first call finds all */
    had = w->n;
    search_walk_next_channel(w);
  } while (!w->exact && w->n > had && w->n < w->most && !search_walk_out_of_steps(w));
  if (!w->exact && w->n > w->best) {
    w->best = w->n;
    memcpy(out, w->at, (size_t)w->n * sizeof *out);
  }
  *found = w->best;
out:
  free(left);
  free(w);
  return rc;
}
