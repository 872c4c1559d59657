/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Binomial tree (pattern.h), for short messages: ceil(log2 n) steps (Thakur, Rabenseifner, Gropp 2005, sections 4.2 and
 * 4.6). n ranks, S bytes (gather, scatter: the root's buffer), q = ceil(log2 n):
 *
 *   broadcast        q steps; the root sends q S bytes
 *   reduce           q steps, S bytes sent; the root adds q S. Sums are made in the order of ranks after the root.
 *   gather, scatter  q steps, S (n - 1) / n bytes at the root, over q links; inner ranks pass on what is not theirs
 *
 * The program of a rank is one instruction (broadcast, reduce), or one and a repeat for each child.
 */
#include "../program/builder.h"
#include "algorithm.h"
#include "pattern.h"

typedef struct place {
  int v, n, root, children;
} place;

/* Begins the rank's only lane. */
static place binomial_begin(hk_builder *b, const hk_build *w) {
  const int v = hk_shift(w->rank, -w->root, w->nranks);
  hk_build_lane(b);
  return (place){.v = v, .n = w->nranks, .root = w->root, .children = hk_binomial_children(v, w->nranks)};
}
static int binomial_parent_of(place p) { return hk_shift(p.root, hk_binomial_parent(p.v), p.n); }
static int binomial_child_of(place p, int k) { return hk_shift(p.root, p.v + (1 << k), p.n); }

static void binomial_build_broadcast(hk_builder *b, const hk_build *w) {
  const place p = binomial_begin(b, w);
  hk_build_from(b, p.v ? hk_recv_from(b, binomial_parent_of(p), 0, 0) : hk_in(0, 0));
  for (int k = p.children - 1; k >= 0; k--) hk_build_to(b, hk_send_to(b, binomial_child_of(p, k), 0, 0));
  hk_build_to(b, hk_out(0, 0));
  hk_build_instr(b, 0);
}

static void binomial_build_reduce(hk_builder *b, const hk_build *w) {
  const place p = binomial_begin(b, w);
  hk_build_from(b, hk_in(0, 0));
  for (int k = 0; k < p.children; k++) hk_build_from(b, hk_recv_from(b, binomial_child_of(p, k), 0, 0));
  hk_build_to(b, p.v ? hk_send_to(b, binomial_parent_of(p), 0, 0) : hk_out(0, 0));
  hk_build_instr(b, p.v ? 0 : HK_INSTR_FINAL);
}

/* Every rank sends the blocks of its subtree in the order of ranks after the root: first its own, then child by
 * child. */
static void binomial_build_gather(hk_builder *b, const hk_build *w) {
  const place p = binomial_begin(b, w);
  unsigned mine = (unsigned)hk_shift(p.root, p.v, p.n);
  hk_build_copy(b, p.v ? hk_send_to(b, binomial_parent_of(p), mine, 0) : hk_out(mine, 0), hk_in(0, 0));
  for (int k = 0; k < p.children; k++) {
    int child = binomial_child_of(p, k);
    unsigned block = (unsigned)child;
    hk_build_repeat(b, (unsigned)hk_binomial_subtree(p.v, k, p.n));
    hk_build_copy(b, p.v ? hk_send_to(b, binomial_parent_of(p), block, 1) : hk_out(block, 1),
                  hk_recv_from(b, child, block, 1));
    hk_build_end_repeat(b);
  }
}

/* A subtree's blocks arrive in the same order. The root serves the largest subtree first. */
static void binomial_build_scatter(hk_builder *b, const hk_build *w) {
  const place p = binomial_begin(b, w);
  unsigned mine = (unsigned)hk_shift(p.root, p.v, p.n);
  if (p.v) hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, binomial_parent_of(p), mine, 0));
  for (int i = 0; i < p.children; i++) {
    int k = p.v ? i : p.children - 1 - i, child = binomial_child_of(p, k);
    unsigned block = (unsigned)child;
    hk_build_repeat(b, (unsigned)hk_binomial_subtree(p.v, k, p.n));
    hk_build_copy(b, hk_send_to(b, child, block, 1),
                  p.v ? hk_recv_from(b, binomial_parent_of(p), block, 1) : hk_in(block, 1));
    hk_build_end_repeat(b);
  }
  if (!p.v) hk_build_copy(b, hk_out(0, 0), hk_in(mine, 0));
}

const hk_algorithm hk_algorithm_binomial = {
    .name = "binomial",
    .about = "binomial tree; log2 n steps, for short messages",
    .build = {[HK_BROADCAST] = binomial_build_broadcast,
              [HK_REDUCE] = binomial_build_reduce,
              [HK_GATHER] = binomial_build_gather,
              [HK_SCATTER] = binomial_build_scatter},
};
