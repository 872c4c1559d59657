/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Double binary tree (Sanders, Speck, Traeff 2009; see pattern.h). Half of the message goes over each of two trees, in
 * waves; no rank has children in both. Waves go up for reduce, down for broadcast, both for allreduce: its root sends
 * each sum down as soon as it has made it. n ranks, S bytes; h = ceil(log2 n) is the height above the leaves:
 *
 *   broadcast, reduce   h + W steps for W waves, S bytes sent by the busiest rank
 *   allreduce           2 h + W steps, 2 S bytes
 *
 * The way up and the way down are lanes of their own, so that the next wave goes up while the last one goes down. All
 * ranks get the root's bits.
 */
#include <math.h>
#include "../program/layout.h"
#include "cost.h"
#include "pattern.h"

enum { TREES = 2 };

static void tree_build_up(hk_builder *b, unsigned tree, const hk_tree_place *place) {
  hk_operand from[3];
  unsigned k = 0;
  for (int i = 0; i < place->ndown; i++) from[k++] = hk_recv_from(b, place->down[i], tree, 0);
  from[k++] = hk_in(tree, 0);
  hk_operand to = hk_send_to(b, place->up, tree, 0);
  hk_build_move(b, 0, &to, 1, from, k);
}

static void tree_build_down(hk_builder *b, unsigned tree, const hk_tree_place *place) {
  hk_operand to[3] = {hk_out(tree, 0)}, from = hk_recv_from(b, place->up, tree, 0);
  unsigned k = 1;
  for (int i = 0; i < place->ndown; i++) to[k++] = hk_send_to(b, place->down[i], tree, 0);
  hk_build_move(b, 0, to, k, &from, 1);
}

static int tree_rank_at(const hk_build *w, int place) { return hk_layout_at(w->layout, w->channel, place); }
static int tree_place_of(const hk_build *w, int rank) { return hk_layout_place(w->layout, w->channel, rank); }

/* An allreduce's root is the first rank of the ring order. Each ring order has a different one, so the channels use all
 * of a host's NICs. */
static int tree_root_of(const hk_build *w) { return w->coll == HK_ALLREDUCE ? tree_rank_at(w, 0) : w->root; }

/* The trees are built on ring positions, so that neighbours in them are mostly on one host. */
static hk_tree_place tree_place(const hk_build *w, unsigned tree) {
  hk_tree_place p =
      hk_two_tree_place((int)tree, tree_place_of(w, w->rank), tree_place_of(w, tree_root_of(w)), w->nranks);
  p.up = tree_rank_at(w, p.up);
  for (int i = 0; i < p.ndown; i++) p.down[i] = tree_rank_at(w, p.down[i]);
  return p;
}

/* The root of both trees. It has one lane for each tree, which receives from the upward channel and sends to the
 * downward one. */
static void tree_build_root(hk_builder *b, const hk_build *w, unsigned tree) {
  int top = tree_rank_at(w, hk_two_tree_top((int)tree, tree_place_of(w, tree_root_of(w)), w->nranks));
  hk_operand from[2], to[2] = {hk_out(tree, 0)};
  unsigned nfrom = 0, nto = 1;
  hk_build_channel(b, tree);
  if (w->coll != HK_BROADCAST) from[nfrom++] = hk_recv_from(b, top, tree, 0);
  from[nfrom++] = hk_in(tree, 0);
  if (w->coll == HK_ALLREDUCE) hk_build_channel(b, TREES + tree);
  if (w->coll != HK_REDUCE) to[nto++] = hk_send_to(b, top, tree, 0);
  hk_build_move(b, w->coll == HK_BROADCAST ? 0 : HK_INSTR_FINAL, to, nto, from, nfrom);
}

static void tree_build(hk_builder *b, const hk_build *w) {
  hk_build_split(b, TREES);
  for (unsigned tree = 0; tree < TREES; tree++) {
    if (w->rank == tree_root_of(w)) {
      hk_build_lane(b);
      tree_build_root(b, w, tree);
      continue;
    }
    hk_tree_place place = tree_place(w, tree);
    if (w->coll != HK_BROADCAST) {
      hk_build_lane(b);
      hk_build_channel(b, tree);
      tree_build_up(b, tree, &place);
    }
    if (w->coll != HK_REDUCE) {
      hk_build_lane(b);
      hk_build_channel(b, w->coll == HK_ALLREDUCE ? TREES + tree : tree);
      tree_build_down(b, tree, &place);
    }
  }
}

static hk_shape tree_shape(const hk_machine *m, hk_coll coll) {
  unsigned height = (unsigned)hk_log2_ceil((unsigned)m->nranks);
  return (hk_shape){.fan = coll == HK_ALLREDUCE ? 4 : 2, .depth = coll == HK_ALLREDUCE ? 2 * height : height};
}

static double tree_cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double half = (double)bytes / 2;
  bool up = coll != HK_BROADCAST, down = coll != HK_REDUCE;
  hk_shape s = tree_shape(m, coll);
  hk_work w = {.rounds = s.depth, .again = 1, .one_way = !(up && down), .spread = HK_SPREAD_RING, .block = bytes / 2};
  w.far_rounds = m->nhosts > 1 ? s.depth * log2(m->nhosts) / log2(m->nranks) : 0;
  /* The busiest rank has two children in one tree and is a leaf in the other. */
  w.messages = 4 * up + 4 * down;
  w.sent = 2 * half * up + 2 * half * down;
  w.written = 2 * half * up + 4 * half * down;
  w.reduced = 2 * half * up;
  /* A path to the root changes hosts once for each level of hosts, and at either end if a host's ranks are not a
   * subtree. */
  int ways = up + down, height = (int)s.depth / ways, far = hk_log2_ceil((unsigned)m->nhosts) + 2;
  w.gpu.far_chain = m->nhosts > 1 ? ways * (far < height ? far : height) : 0;
  w.gpu.traffic = up && down ? HK_TRAFFIC_UP_DOWN : HK_TRAFFIC_TREE;
  w.gpu.turns = 1;
  w.gpu.scattered = 0.5; /* half of the ranks are leaves, next to their parents */
  w.gpu.lane = half;
  /* One inner rank sends one and a half messages. Several channels have different inner ranks of a host, but some of
   * these share a NIC, and all channels have one root. Fitted to the simulated trees. */
  w.gpu.out_one = (double)bytes * (up && down ? 0.65 + 1.0 / m->channels : 0.9 + 0.6 / m->channels);
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_tree = {
    .name = "tree",
    .about = "two binary trees, half of the message over each, in waves; few steps, few links",
    .colls = 1u << HK_ALLREDUCE | 1u << HK_BROADCAST | 1u << HK_REDUCE,
    .cost = tree_cost,
    .shape = tree_shape,
    .build = tree_build,
};
