/* SPDX-License-Identifier: Apache-2.0 */
/**
 * PAT, parallel trees with the farthest ranks first: allgather and reduce-scatter in ceil(log2 n) steps for any n, over
 * links to the ranks at distances 1, 2, 4, ... only (Jeaugey 2025: "PAT: a new algorithm for all-gather and
 * reduce-scatter operations at scale"; it is Bruck's 1997 algorithm with its steps in reverse order, so that single
 * blocks go over long distances and many blocks over short ones). n ranks, S bytes (the larger buffer): S (n - 1) / n
 * bytes sent, the least possible.
 *
 * Allgather. At rank x + o, block x has offset o. A block starts at offset 0. In step k = q-1, ..., 1, 0 the offsets
 * reached so far, which are multiples of 2^(k+1), send it on to o + 2^k, if that is below n. All blocks do so at once;
 * rank r sends the blocks r - o.
 *
 * Reduce-scatter is the reverse: in step k = 0, 1, ... offset o + 2^k sends its partial sum of block x to offset o,
 * which adds it to its own. Partial sums are in scratch, n / 2 blocks, because only even offsets add. A rank sends at
 * most two blocks before it receives as many, so two slots are enough.
 */
#include "../program/builder.h"
#include "algorithm.h"
#include "pattern.h"

/* The number of offsets o = 0, 2^(k+1), 2 2^(k+1), ... with o + 2^k < n. */
static int pat_pairs(int k, int n) { return (n - (1 << k) - 1) / (2 << k) + 1; }

/* The exchanges of a step with `count` offsets, in pairs: a rank sends two blocks before it receives two, so it waits
 * half as often. `exchange` builds the sends or the receives of one offset. */
typedef void pat_exchange(hk_builder *b, const hk_build *w, int k, int offset, int stride, bool sends);
static void pat_build_step(hk_builder *b, const hk_build *w, int k, int count, pat_exchange *exchange) {
  const int by = 2 << k, pairs = count / 2;
  hk_build_repeat(b, (unsigned)pairs);
  for (int sends = 1; sends >= 0; sends--)
    for (int j = 0; j < 2; j++) exchange(b, w, k, j * by, 2 * by, sends);
  hk_build_end_repeat(b);
  for (int sends = count % 2; sends >= 0 && count % 2; sends--) exchange(b, w, k, 2 * pairs * by, 0, sends);
}

/* Block r - offset. */
static unsigned pat_block(const hk_build *w, int rank, int offset) {
  return (unsigned)hk_shift(rank, -offset, w->nranks);
}

static void pat_gather(hk_builder *b, const hk_build *w, int k, int offset, int stride, bool sends) {
  const int n = w->nranks, to = hk_shift(w->rank, 1 << k, n), from = hk_shift(w->rank, -(1 << k), n);
  const unsigned block = pat_block(w, sends ? w->rank : from, offset);
  if (sends)
    hk_build_copy(b, hk_send_to(b, to, block, -stride), hk_out(block, -stride));
  else
    hk_build_copy(b, hk_out(block, -stride), hk_recv_from(b, from, block, -stride));
}

static void pat_build_allgather(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank, k = hk_log2_ceil((unsigned)n) - 1;
  hk_build_lane(b);
  hk_build_fork(b, hk_out((unsigned)r, 0), hk_send_to(b, hk_shift(r, 1 << k, n), (unsigned)r, 0), hk_in(0, 0));
  pat_gather(b, w, k, 0, 0, false);
  while (--k >= 0) pat_build_step(b, w, k, pat_pairs(k, n), pat_gather);
}

/* The scratch buffer of an even offset. */
static hk_operand pat_partial(int offset, int stride) { return hk_scratch((unsigned)offset / 2, stride / 2); }

/* One exchange of step k (with stride, a repeat of them): sends offset `offset` + 2^k, or adds to `offset`. */
static void pat_scatter(hk_builder *b, const hk_build *w, int k, int offset, int stride, bool sends) {
  const int n = w->nranks, away = offset + (1 << k);
  const unsigned give = pat_block(w, w->rank, away), keep = pat_block(w, w->rank, offset);
  /* Odd offsets add nothing, nor does the last one: their part is the unchanged input. */
  const bool sum = k > 0 && away < n - 1, last = (2 << k) >= n;
  if (sends) {
    hk_build_copy(b, hk_send_to(b, hk_shift(w->rank, -(1 << k), n), give, -stride),
                  sum ? pat_partial(away, stride) : hk_in(give, -stride));
    return;
  }
  const hk_operand kept = k > 0 ? pat_partial(offset, stride) : hk_in(keep, -stride);
  const hk_operand total = last ? hk_out(0, 0) : pat_partial(offset, stride);
  hk_build_add(b, last ? HK_INSTR_FINAL : 0, total, hk_recv_from(b, hk_shift(w->rank, 1 << k, n), keep, -stride), kept);
}

static void pat_build_reduce_scatter(hk_builder *b, const hk_build *w) {
  int n = w->nranks;
  if (n > 2) hk_build_scratch(b, (unsigned)n / 2);
  hk_build_lane(b);
  for (int k = 0; 1 << k < n; k++) {
    int count = pat_pairs(k, n), last_offset = (count - 1) * (2 << k);
    bool apart = k > 0 && last_offset + (1 << k) == n - 1; /* the last offset of all has no sum to send */
    pat_build_step(b, w, k, count - apart, pat_scatter);
    for (int sends = apart; sends >= 0 && apart; sends--) pat_scatter(b, w, k, last_offset, 0, sends);
  }
}

const hk_algorithm hk_algorithm_pat = {
    .name = "pat",
    .about = "parallel trees, farthest first; log2 n steps for any n, log2 n links, fewest bytes",
    .build = {[HK_ALLGATHER] = pat_build_allgather,
              [HK_ALLGATHERV] = pat_build_allgather,
              [HK_REDUCE_SCATTER] = pat_build_reduce_scatter,
              [HK_REDUCE_SCATTERV] = pat_build_reduce_scatter},
};
