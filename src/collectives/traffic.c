/* SPDX-License-Identifier: Apache-2.0 */
/* The traffic of each pattern of communication: how many bytes cross each level of links, and how far: see
 * traffic.h. */
#include "traffic.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "pattern.h"

typedef struct look {
  const hk_paths *paths;
  const uint32_t *nodes;
  const uint16_t *order; /* of the ranks; NULL: their own */
  int n;
  double *load;         /* [nedges] bytes over each edge */
  double hops, hops_us; /* of all messages so far, the sum of their latencies */
} look;

/* Adds `bytes` to the load of each link on the path from rank `from` to rank `to` (positions in the order). */
static void traffic_send(look *l, int from, int to, double bytes) {
  const uint32_t a = l->nodes[l->order ? l->order[from] : from], b = l->nodes[l->order ? l->order[to] : to];
  const hk_path *p = hk_path_between(l->paths, a, b);
  for (int i = 0; i < p->nhops; i++) l->load[l->paths->hops[p->first + (uint32_t)i]] += bytes;
  l->hops += 1;
  l->hops_us += p->us;
}

/* Microseconds until the fullest edge has carried its load; clears the load. */
static double traffic_carry(look *l) {
  const hk_topo *t = l->paths->topo;
  double us = 0;
  for (uint32_t e = 0; e < t->nedges; e++)
    if (t->edges[e].gbps > 0) us = fmax(us, l->load[e] / t->edges[e].gbps / 1000);
  memset(l->load, 0, (t->nedges + 1) * sizeof *l->load);
  return us;
}

static void traffic_keep(look *l, hk_traffic *out, double us_per_b) {
  if (l->hops > 0) out->alpha_us = fmax(out->alpha_us, l->hops_us / l->hops);
  out->us_per_b = fmax(out->us_per_b, us_per_b);
  l->hops = l->hops_us = 0;
}

/* Every rank sends to the rank `by` further. */
static void traffic_shift(look *l, int by, double bytes) {
  for (int i = 0; i < l->n; i++) traffic_send(l, i, (i + by) % l->n, bytes);
}

/* Every rank sends a byte in equal parts to all others. */
static void traffic_look_at_all(look *l, hk_traffic *out) {
  const double part = 1.0 / (l->n - 1);
  double in_turn = 0, own = 0;
  for (int by = 1; by < l->n; by++) {
    traffic_shift(l, by, part);
    in_turn += traffic_carry(l);
    for (int i = 0; i < l->n; i++) {
      const hk_path *p = hk_path_between(l->paths, l->nodes[i], l->nodes[(i + by) % l->n]);
      if (p->gbps > 0) own += part / l->n / (double)p->gbps / 1000;
    }
  }
  for (int by = 1; by < l->n; by++) traffic_shift(l, by, part);
  const double at_once = traffic_carry(l);
  traffic_keep(l, &out[HK_TRAFFIC_ALL], at_once);
  /* A rank does not wait until the others have finished a distance. Ranks that finish earlier drift apart, and programs
   * are between lockstep and no contention. */
  const double drifting = sqrt(fmax(at_once, own) * in_turn);
  out[HK_TRAFFIC_TURNS].alpha_us = out[HK_TRAFFIC_ALL].alpha_us;
  out[HK_TRAFFIC_TURNS].us_per_b = fmax(out[HK_TRAFFIC_TURNS].us_per_b, drifting);
  hk_traffic *both = &out[HK_TRAFFIC_BOTH];
  both->alpha_us = out[HK_TRAFFIC_ALL].alpha_us;
  both->us_per_b = fmax(both->us_per_b, (drifting + at_once) / 2);
  both->apart_us_per_b = fmax(both->apart_us_per_b, at_once);
}

/* Partners at distances 1, 2, 4, ...: each distance gets the part of a byte that recursive doubling (or PAT) moves at
 * it. */
static void traffic_flip_bit(look *l, int bit, double bytes) {
  const hk_cube cube = hk_cube_of(l->n);
  for (int i = 0; i < cube.p; i++) traffic_send(l, hk_cube_rank(&cube, i), hk_cube_rank(&cube, i ^ bit), bytes);
}
static void traffic_flip(look *l, int bit) { traffic_flip_bit(l, bit, 1.0 / hk_log2_floor((unsigned)l->n)); }
static void traffic_flip_twice(look *l, int bit) { traffic_flip_bit(l, bit, (double)bit / (hk_cube_of(l->n).p - 1)); }
static void traffic_leap(look *l, int by) {
  traffic_shift(l, by, (double)((l->n - by - 1) / (2 * by) + 1) / (l->n - 1));
}

static void traffic_look_at_steps(look *l, void (*step)(look *, int), int end, hk_traffic *out) {
  double in_turn = 0;
  for (int by = 1; by < end; by *= 2) {
    step(l, by);
    in_turn += traffic_carry(l);
  }
  for (int by = 1; by < end; by *= 2) step(l, by);
  out->apart_us_per_b = fmax(out->apart_us_per_b, traffic_carry(l));
  traffic_keep(l, out, in_turn);
}

/* The root sends a byte: to all at once; to one after another; along a binomial tree, equal bytes to each child or the
 * data of its subtree. */
static void traffic_look_from_root(look *l, int root, hk_traffic *out) {
  for (int v = 1; v < l->n; v++) traffic_send(l, root, hk_shift(root, v, l->n), 1.0 / (l->n - 1));
  const double at_once = traffic_carry(l);
  traffic_keep(l, &out[HK_TRAFFIC_ROOT], at_once);
  out[HK_TRAFFIC_DEAL].apart_us_per_b = fmax(out[HK_TRAFFIC_DEAL].apart_us_per_b, at_once);
  double us = 0;
  for (int v = 1; v < l->n; v++) {
    traffic_send(l, root, hk_shift(root, v, l->n), 1.0 / (l->n - 1));
    us += traffic_carry(l);
  }
  traffic_keep(l, &out[HK_TRAFFIC_DEAL], us);
  for (int parts = 0; parts < 2; parts++) {
    for (int v = 0; v < l->n; v++)
      for (int k = 0; k < hk_binomial_children(v, l->n); k++)
        traffic_send(l, hk_shift(root, v, l->n), hk_shift(root, v + (1 << k), l->n),
                     parts ? (double)hk_binomial_subtree(v, k, l->n) / (l->n - 1) : 1.0 / hk_log2_ceil((unsigned)l->n));
    traffic_keep(l, &out[parts ? HK_TRAFFIC_SUBTREES : HK_TRAFFIC_BINOMIAL], traffic_carry(l));
  }
  us = 0;
  hk_traffic *handout = &out[HK_TRAFFIC_HANDOUT];
  for (int k = 0; k < hk_binomial_children(0, l->n); k++) {
    traffic_send(l, root, hk_shift(root, 1 << k, l->n), (double)hk_binomial_subtree(0, k, l->n) / (l->n - 1));
    us += traffic_carry(l);
  }
  traffic_keep(l, handout, us);
  /* A child gets its messages one after another and passes them on: channels get half of the possible phase shift. */
  handout->apart_us_per_b = fmax(handout->apart_us_per_b, sqrt(us * out[HK_TRAFFIC_SUBTREES].us_per_b));
}

/* Down two trees, up them, or both ways. */
static void traffic_add_trees(look *l, double up, double down) {
  for (int tree = 0; tree < 2; tree++)
    for (int i = 1; i < l->n; i++) {
      const int above = hk_two_tree_place(tree, i, 0, l->n).up;
      if (down > 0) traffic_send(l, above, i, down / 2);
      if (up > 0) traffic_send(l, i, above, up / 2);
    }
}

/* The ring orders: each alone, and all together. */
static void traffic_look_at_trees(look *l, const hk_channels *rings, double up, double down, hk_traffic *out) {
  double one = 0;
  for (int c = 0; c < rings->nchannels; c++) {
    l->order = rings->at[c].order;
    traffic_add_trees(l, up, down);
    one = fmax(one, traffic_carry(l));
  }
  for (int c = 0; c < rings->nchannels; c++) {
    l->order = rings->at[c].order;
    traffic_add_trees(l, up / rings->nchannels, down / rings->nchannels);
  }
  traffic_keep(l, out, traffic_carry(l));
  out->one_us_per_b = fmax(out->one_us_per_b, one);
}

static void traffic_look_at_rings(look *l, const hk_channels *rings, hk_traffic *out) {
  double one = 0;
  for (int c = 0; c < rings->nchannels; c++) {
    l->order = rings->at[c].order;
    traffic_shift(l, 1, 1);
    one = fmax(one, traffic_carry(l));
  }
  traffic_keep(l, &out[HK_TRAFFIC_RING], 0); /* all together: hk_level.ring_us_per_b */
  out[HK_TRAFFIC_RING].one_us_per_b = fmax(out[HK_TRAFFIC_RING].one_us_per_b, one);
  traffic_look_at_trees(l, rings, 0, 1, &out[HK_TRAFFIC_TREE]);
  traffic_look_at_trees(l, rings, 0.5, 0.5, &out[HK_TRAFFIC_UP_DOWN]);
}

hk_status hk_traffic_look(hk_traffic out[HK_TRAFFICS], const hk_paths *paths, const uint32_t *nodes, int n,
                          const hk_channels *rings) {
  look l = {.paths = paths, .nodes = nodes, .n = n, .load = calloc(paths->topo->nedges + 1, sizeof *l.load)};
  if (!l.load) return HK_FAIL_ERRNO("no memory for the traffic of %d ranks", n);
  if (n > 1) {
    traffic_look_at_all(&l, out);
    traffic_look_at_steps(&l, traffic_flip, hk_cube_of(n).p, &out[HK_TRAFFIC_FLIPS]);
    traffic_look_at_steps(&l, traffic_flip_twice, hk_cube_of(n).p, &out[HK_TRAFFIC_CUBE]);
    traffic_look_at_steps(&l, traffic_leap, n, &out[HK_TRAFFIC_SHIFTS]);
    traffic_look_from_root(&l, 0, out);
    if (rings && rings->nranks == n) traffic_look_at_rings(&l, rings, out);
  }
  free(l.load);
  return HK_OK;
}
