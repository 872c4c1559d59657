/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Hierarchical allreduce, trees across: as hier.c, but between equal local ranks of all hosts each half of a part goes
 * up one of two binary trees and down again (tree.c, pattern.h). H hosts of L ranks (P: the fewest of a host), S bytes:
 *
 *   inside   2 steps, S (P - 1) / P + S (L - 1) / P bytes sent
 *   between  2 ceil(log2 H) steps and one for each wave, 2 S bytes leave the busiest host
 *
 * For many hosts, for which a ring's 2 (H - 1) steps cost more than its fewer bytes save. One instruction combines a
 * tree's link with the links inside the host: a rank adds the data from below, its own block and its host's, and sends
 * the sum up. Data from above goes down and to the host in one instruction.
 */
#include "hosts.h"

/* Channels: two of each, one for each tree. */
enum { TREES = 2, DEAL = 0, UP = 2, DOWN = 4, COLLECT = 6 };

/* In a switch, what is dealt and what is collected are links of different kinds. */
static unsigned hiertree_collect(const hk_home *p, unsigned tree) { return (p->in_switch ? DEAL : COLLECT) + tree; }

static void hiertree_exchange(hk_builder *b, const hk_home *p, bool deal, int parts, unsigned tree) {
  hk_build_lane(b);
  hk_build_channel(b, deal ? DEAL + tree : hiertree_collect(p, tree));
  for (int j = 1; j < p->per; j++) {
    const int i = hk_home_turn(p, deal, j);
    if (i < parts) hk_home_exchange(b, p, deal, i, (unsigned)(TREES * i) + tree, 0);
  }
}

/* The block of this rank's part that goes over the tree. */
static unsigned hiertree_block(const hk_home *p, unsigned tree) { return (unsigned)(TREES * p->i) + tree; }
static int hiertree_rail(const hk_home *p, int host) { return hk_layout_rank(p->w->layout, host, p->i); }

/* Host 0 is the root of both trees. */
static void hiertree_build_root(hk_builder *b, const hk_home *p, unsigned tree) {
  const unsigned block = hiertree_block(p, tree);
  hk_build_lane(b);
  if (p->hosts > 1) {
    int top = hiertree_rail(p, hk_two_tree_top((int)tree, 0, p->hosts));
    hk_build_channel(b, UP + tree);
    hk_build_from(b, hk_recv_from(b, top, block, 0));
    hk_build_channel(b, DOWN + tree);
    hk_build_to(b, hk_send_to(b, top, block, 0));
  }
  hk_home_add(b, p, DEAL + tree, block, 0);
  hk_home_give(b, p, hiertree_collect(p, tree), HK_INSTR_FINAL, block, 0);
}

static void hiertree_build_up(hk_builder *b, const hk_home *p, unsigned tree, const hk_tree_place *place) {
  const unsigned block = hiertree_block(p, tree);
  hk_build_lane(b);
  hk_build_channel(b, UP + tree);
  for (int k = 0; k < place->ndown; k++) hk_build_from(b, hk_recv_from(b, hiertree_rail(p, place->down[k]), block, 0));
  hk_build_to(b, hk_send_to(b, hiertree_rail(p, place->up), block, 0));
  hk_home_add(b, p, DEAL + tree, block, 0);
  hk_build_instr(b, 0);
}

static void hiertree_build_down(hk_builder *b, const hk_home *p, unsigned tree, const hk_tree_place *place) {
  const unsigned block = hiertree_block(p, tree);
  hk_build_lane(b);
  hk_build_channel(b, DOWN + tree);
  hk_build_from(b, hk_recv_from(b, hiertree_rail(p, place->up), block, 0));
  for (int k = 0; k < place->ndown; k++) hk_build_to(b, hk_send_to(b, hiertree_rail(p, place->down[k]), block, 0));
  hk_home_give(b, p, hiertree_collect(p, tree), 0, block, 0);
}

void hk_build_hiertree(hk_builder *b, const hk_build *w, bool in_switch) {
  hk_home p = hk_home_of(w);
  int parts = hk_home_least(&p);
  p.in_switch = in_switch;
  if (in_switch) hk_build_scratch(b, 1);
  hk_build_span(b, in_switch ? 0 : COLLECT + TREES);
  hk_build_split(b, (unsigned)(TREES * parts));
  for (unsigned tree = 0; tree < TREES; tree++) {
    hiertree_exchange(b, &p, true, parts, tree);
    if (p.i < parts && p.h == 0) {
      hiertree_build_root(b, &p, tree);
    } else if (p.i < parts) {
      hk_tree_place place = hk_two_tree_place((int)tree, p.h, 0, p.hosts);
      hiertree_build_up(b, &p, tree, &place);
      hiertree_build_down(b, &p, tree, &place);
    }
    hiertree_exchange(b, &p, false, parts, tree);
  }
}

static void hiertree_build(hk_builder *b, const hk_build *w) { hk_build_hiertree(b, w, false); }

const hk_algorithm hk_algorithm_hiertree = {
    .name = "hiertree",
    .about = "sums inside the host, two binary trees between hosts for each local rank, copies inside; for many hosts",
    .cannot = hk_hier_cannot,
    .build = {[HK_ALLREDUCE] = hiertree_build},
};
