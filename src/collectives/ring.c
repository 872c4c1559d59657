/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ring: rank r receives from r - 1 and sends to r + 1, or follows the layout's order, in which a host's ranks are
 * consecutive so that each host is entered and left once. n ranks, S bytes (the larger buffer), blocks of S / n.
 *
 *   allreduce       n - 1 steps of reduce-scatter, then n - 1 of allgather: 2 (n - 1) steps, 2 S (n - 1) / n bytes sent
 *   reduce_scatter  n - 1 steps, S (n - 1) / n bytes
 *   allgather       n - 1 steps, S (n - 1) / n bytes
 *
 * The bytes are the least possible (Patarasuk, Yuan 2009: "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations") and every rank needs only two links; the number of steps grows with n. Block b is summed up along the
 * ring from rank b on (reduce_scatter: from b + 1 on) by one rank after another, so all ranks get the same bits.
 */
#include "../program/builder.h"
#include "../program/layout.h"
#include "algorithm.h"
#include "pattern.h"

/* A rank's neighbours and position on the ring. */
typedef struct ring_position {
  int n, place, next, prev;
} ring_position;

static ring_position ring_position_of(const hk_build *w) {
  int n = w->nranks, p = hk_layout_place(w->layout, w->channel, w->rank);
  return (ring_position){.n = n,
                         .place = p,
                         .next = hk_layout_at(w->layout, w->channel, hk_shift(p, 1, n)),
                         .prev = hk_layout_at(w->layout, w->channel, hk_shift(p, -1, n))};
}

/* The block of the rank `by` positions further. */
static unsigned ring_block_at(const hk_build *w, const ring_position *s, int by) {
  return (unsigned)hk_layout_at(w->layout, w->channel, hk_shift(s->place, by, s->n));
}

/* The steps of all three: they pass on what the previous rank sends, with the own block added to it, or as it is. */
static void ring_add_own(hk_builder *b, const ring_position *s, unsigned block, int stride) {
  hk_build_add(b, 0, hk_send_to(b, s->next, block, stride), hk_recv_from(b, s->prev, block, stride),
               hk_in(block, stride));
}

static void ring_pass_on(hk_builder *b, const ring_position *s, unsigned block, int stride) {
  hk_build_fork(b, hk_out(block, stride), hk_send_to(b, s->next, block, stride),
                hk_recv_from(b, s->prev, block, stride));
}

/* Blocks of this split message belong to positions, not to ranks. */
static void ring_build_allreduce(hk_builder *b, const hk_build *w) {
  ring_position s = ring_position_of(w);
  const int n = s.n, r = s.place;
  unsigned mine = (unsigned)r, before = (unsigned)hk_shift(r, -1, n), after = (unsigned)hk_shift(r, 1, n);
  unsigned second = (unsigned)hk_shift(r, 2, n);
  hk_build_split(b, (unsigned)n);
  hk_build_lane(b);
  hk_build_copy(b, hk_send_to(b, s.next, mine, 0), hk_in(mine, 0));
  hk_build_repeat(b, (unsigned)n - 2);
  ring_add_own(b, &s, before, -1);
  hk_build_end_repeat(b);
  hk_build_move(b, HK_INSTR_FINAL, (hk_operand[]){hk_out(after, 0), hk_send_to(b, s.next, after, 0)}, 2,
                (hk_operand[]){hk_recv_from(b, s.prev, after, 0), hk_in(after, 0)}, 2);
  hk_build_repeat(b, (unsigned)n - 2);
  ring_pass_on(b, &s, mine, -1);
  hk_build_end_repeat(b);
  hk_build_copy(b, hk_out(second, 0), hk_recv_from(b, s.prev, second, 0));
}

/* Runs n - 2 steps, for the blocks of the ranks from position -`first` on backwards. Positions that are a period of the
 * layout apart have blocks that differ by the period. */
static void ring_repeat(hk_builder *b, const hk_build *w, const ring_position *s, int first,
                        void (*step)(hk_builder *, const ring_position *, unsigned block, int stride)) {
  const int steps = s->n - 2, period = hk_layout_period(w->layout), rounds = steps / period;
  hk_build_repeat(b, (unsigned)rounds);
  for (int j = 0; rounds && j < period; j++) step(b, s, ring_block_at(w, s, -first - j), -period);
  hk_build_end_repeat(b);
  for (int j = rounds * period; j < steps; j++) step(b, s, ring_block_at(w, s, -first - j), 0);
}

static void ring_build_allgather(hk_builder *b, const hk_build *w) {
  ring_position s = ring_position_of(w);
  unsigned mine = (unsigned)w->rank, last = ring_block_at(w, &s, 1);
  hk_build_lane(b);
  hk_build_fork(b, hk_out(mine, 0), hk_send_to(b, s.next, mine, 0), hk_in(0, 0));
  ring_repeat(b, w, &s, 1, ring_pass_on);
  hk_build_copy(b, hk_out(last, 0), hk_recv_from(b, s.prev, last, 0));
}

static void ring_build_reduce_scatter(hk_builder *b, const hk_build *w) {
  ring_position s = ring_position_of(w);
  unsigned mine = (unsigned)w->rank, first = ring_block_at(w, &s, -1);
  hk_build_lane(b);
  hk_build_copy(b, hk_send_to(b, s.next, first, 0), hk_in(first, 0));
  ring_repeat(b, w, &s, 2, ring_add_own);
  hk_build_add(b, HK_INSTR_FINAL, hk_out(0, 0), hk_recv_from(b, s.prev, mine, 0), hk_in(mine, 0));
}

const hk_algorithm hk_algorithm_ring = {
    .name = "ring",
    .about = "each rank receives from the one before and sends to the one after; fewest bytes, two links, many steps",
    .build = {[HK_ALLREDUCE] = ring_build_allreduce,
              [HK_ALLGATHER] = ring_build_allgather,
              [HK_ALLGATHERV] = ring_build_allgather,
              [HK_REDUCE_SCATTER] = ring_build_reduce_scatter,
              [HK_REDUCE_SCATTERV] = ring_build_reduce_scatter},
};
