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
#include "cost.h"
#include "pattern.h"

enum { MAX_CHILDREN = 16 }; /* of 65536 ranks */

/* Fitted to sweeps of `hocket tune` on 2, 4 and 8 ranks, as parts of the cost of sending. In a broadcast most ranks
 * only receive, which is less work for a short message. For a long one an inner rank reads its part from a slot again
 * for every child, while a leaf of a flat tree receives it directly into its buffer. In a reduce over sockets, what one
 * child sent has left the caches when the others' data has arrived. */
#define ONLY_RECEIVING 0.66
#define PASSING_ON 1.45
/* A reduce through memory if ranks outnumber cores: an inner rank may run before its children have run. */
#define TURNED_AWAY 1.4
enum { LONG_BYTES = 1 << 20 }; /* above this only bytes count; in between both count */
/* gather, scatter: */
#define IN_A_ROW                                                                                                       \
  (2.0 / 7) /* the cost, as a part of a message, of a further block to the same child, which waits for no turn */
/* Writes, as multiples of the root's buffer: its own blocks once, and the half for its largest child a second time.
 * Over sockets that half passes the kernel twice, with a slot in between, and is no longer in the caches. */
#define ROOT_WRITES 1.5
#define ROOT_WRITES_SOCKETS 4.0

typedef struct place {
  int v, n, root, children;
} place;

static place binomial_place_of(const hk_build *w) {
  int v = hk_shift(w->rank, -w->root, w->nranks);
  return (place){.v = v, .n = w->nranks, .root = w->root, .children = hk_binomial_children(v, w->nranks)};
}
static int binomial_parent_of(const place *p) { return hk_shift(p->root, hk_binomial_parent(p->v), p->n); }
static int binomial_child_of(const place *p, int k) { return hk_shift(p->root, p->v + (1 << k), p->n); }

static void binomial_build_broadcast(hk_builder *b, const place *p) {
  hk_operand from = p->v ? hk_recv_from(b, binomial_parent_of(p), 0, 0) : hk_in(0, 0), to[MAX_CHILDREN + 1];
  unsigned count = 0;
  for (int k = p->children - 1; k >= 0; k--) to[count++] = hk_send_to(b, binomial_child_of(p, k), 0, 0);
  to[count++] = hk_out(0, 0);
  hk_build_move(b, 0, to, count, &from, 1);
}

static void binomial_build_reduce(hk_builder *b, const place *p) {
  hk_operand from[MAX_CHILDREN + 1] = {hk_in(0, 0)};
  unsigned count = 1;
  for (int k = 0; k < p->children; k++) from[count++] = hk_recv_from(b, binomial_child_of(p, k), 0, 0);
  hk_operand to = p->v ? hk_send_to(b, binomial_parent_of(p), 0, 0) : hk_out(0, 0);
  hk_build_move(b, p->v ? 0 : HK_INSTR_FINAL, &to, 1, from, count);
}

/* Every rank sends the blocks of its subtree in the order of ranks after the root: first its own, then child by
 * child. */
static void binomial_build_gather(hk_builder *b, const place *p) {
  unsigned mine = (unsigned)hk_shift(p->root, p->v, p->n);
  hk_build_copy(b, p->v ? hk_send_to(b, binomial_parent_of(p), mine, 0) : hk_out(mine, 0), hk_in(0, 0));
  for (int k = 0; k < p->children; k++) {
    int child = binomial_child_of(p, k);
    unsigned block = (unsigned)child;
    hk_build_repeat(b, (unsigned)hk_binomial_subtree(p->v, k, p->n));
    hk_build_copy(b, p->v ? hk_send_to(b, binomial_parent_of(p), block, 1) : hk_out(block, 1),
                  hk_recv_from(b, child, block, 1));
    hk_build_end_repeat(b);
  }
}

/* A subtree's blocks arrive in the same order. The root serves the largest subtree first. */
static void binomial_build_scatter(hk_builder *b, const place *p) {
  unsigned mine = (unsigned)hk_shift(p->root, p->v, p->n);
  if (p->v) hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, binomial_parent_of(p), mine, 0));
  for (int i = 0; i < p->children; i++) {
    int k = p->v ? i : p->children - 1 - i, child = binomial_child_of(p, k);
    unsigned block = (unsigned)child;
    hk_build_repeat(b, (unsigned)hk_binomial_subtree(p->v, k, p->n));
    hk_build_copy(b, hk_send_to(b, child, block, 1),
                  p->v ? hk_recv_from(b, binomial_parent_of(p), block, 1) : hk_in(block, 1));
    hk_build_end_repeat(b);
  }
  if (!p->v) hk_build_copy(b, hk_out(0, 0), hk_in(mine, 0));
}

static void binomial_build(hk_builder *b, const hk_build *w) {
  place p = binomial_place_of(w);
  hk_build_lane(b);
  switch (w->coll) {
    case HK_BROADCAST: binomial_build_broadcast(b, &p); return;
    case HK_REDUCE: binomial_build_reduce(b, &p); return;
    case HK_GATHER: binomial_build_gather(b, &p); return;
    default: binomial_build_scatter(b, &p); return;
  }
}

static hk_shape binomial_shape(const hk_machine *m, hk_coll coll) {
  unsigned height = (unsigned)hk_log2_ceil((unsigned)m->nranks);
  return (hk_shape){.fan = coll == HK_REDUCE || coll == HK_GATHER ? 1 : height, .depth = height};
}

static double binomial_cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  hk_shape s = binomial_shape(m, coll);
  double n = m->nranks, height = s.depth, all = (double)bytes, block = all / n;
  double part = all < LONG_BYTES ? all / LONG_BYTES : 1;
  bool sockets = m->nhosts <= 1 && m->inside.ring_us_per_b > 0 && !m->overlap;
  hk_work w = {.rounds = height,
               .again = 1,
               .messages = height,
               .sent = all,
               .share = 2 / (height + 1),
               .one_way = true,
               .spread = HK_SPREAD_CUBE,
               .block = bytes};
  switch (coll) {
    case HK_BROADCAST:
      w.sent = height * all;
      w.share *= ONLY_RECEIVING + (PASSING_ON - ONLY_RECEIVING) * part;
      w.written = (height + 1) * all;
      break;
    case HK_REDUCE: /* all ranks together add n - 1 times */
      if (!m->overlap) w.share = (2 - 1 / n) / (height + 1);
      if (m->nhosts <= 1 && !sockets && !m->overlap && m->nranks > m->cores_per_host) w.messages *= TURNED_AWAY;
      if (sockets) w.share *= 1 + (PASSING_ON - 1) * part;
      w.written = all;
      w.reduced = height * all;
      break;
    default: /* the root's blocks, and the blocks that its largest child passes on */
      w.messages = height + IN_A_ROW * n;
      if (m->nhosts <= 1 && m->inside.ring_us_per_b == 0)
        w.messages = n - 1; /* through memory all blocks cost the same */
      w.sent = all - block;
      w.written = (sockets ? ROOT_WRITES_SOCKETS : ROOT_WRITES) * all;
      w.share = (height / 2 + 1) / n;
      w.block = (size_t)block;
      s.depth = 1;
      break;
  }
  if (coll == HK_BROADCAST || coll == HK_REDUCE) {
    w.gpu.traffic = HK_TRAFFIC_BINOMIAL;
    w.gpu.turns = 1;
    w.gpu.lane = all;
    if (coll == HK_REDUCE && m->overlap) w.received = height * all; /* the work of receiving is part of adding */
    w.gpu.out_one = hk_log2_ceil((unsigned)m->nhosts) * all;
  } else { /* the root's messages: one block after the other */
    w.gpu.traffic = coll == HK_GATHER ? HK_TRAFFIC_SUBTREES : HK_TRAFFIC_HANDOUT;
    w.gpu.turns = n;
    w.gpu.out_one = (n - m->ranks_per_host) * block;
  }
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_binomial = {
    .name = "binomial",
    .about = "binomial tree; log2 n steps, for short messages",
    .colls = 1u << HK_BROADCAST | 1u << HK_REDUCE | 1u << HK_GATHER | 1u << HK_SCATTER,
    .cost = binomial_cost,
    .shape = binomial_shape,
    .build = binomial_build,
};
