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
#include "../program/builder.h"
#include "../program/layout.h"
#include "algorithm.h"
#include "pattern.h"

enum { TREES = 2 };

static void tree_build_up(hk_builder *b, unsigned tree, const hk_tree_place *place) {
  for (int i = 0; i < place->ndown; i++) hk_build_from(b, hk_recv_from(b, place->down[i], tree, 0));
  hk_build_from(b, hk_in(tree, 0));
  hk_build_to(b, hk_send_to(b, place->up, tree, 0));
  hk_build_instr(b, 0);
}

static void tree_build_down(hk_builder *b, unsigned tree, const hk_tree_place *place) {
  hk_build_from(b, hk_recv_from(b, place->up, tree, 0));
  hk_build_to(b, hk_out(tree, 0));
  for (int i = 0; i < place->ndown; i++) hk_build_to(b, hk_send_to(b, place->down[i], tree, 0));
  hk_build_instr(b, 0);
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
  hk_build_channel(b, tree);
  if (w->coll != HK_BROADCAST) hk_build_from(b, hk_recv_from(b, top, tree, 0));
  hk_build_from(b, hk_in(tree, 0));
  hk_build_to(b, hk_out(tree, 0));
  if (w->coll == HK_ALLREDUCE) hk_build_channel(b, TREES + tree);
  if (w->coll != HK_REDUCE) hk_build_to(b, hk_send_to(b, top, tree, 0));
  hk_build_instr(b, w->coll == HK_BROADCAST ? 0 : HK_INSTR_FINAL);
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

const hk_algorithm hk_algorithm_tree = {
    .name = "tree",
    .about = "two binary trees, half of the message over each, in waves; few steps, few links",
    .build = {[HK_ALLREDUCE] = tree_build, [HK_BROADCAST] = tree_build, [HK_REDUCE] = tree_build},
};
