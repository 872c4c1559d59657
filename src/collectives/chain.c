/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Chain: broadcast from the root along root, root + 1, ..., and reduce along root + 1, ..., root - 1, root.  Waves
 * follow one another: with n ranks, S bytes and W waves n - 2 + W steps of S / W bytes.  S bytes sent, the least
 * possible, and two links a rank; latency grows with n.  With a layout the chain follows its order, host after host.
 * (The pipelined "chain" of Worringen 2003 and of Open MPI's tuned collectives.)
 */
#include "../program/builder.h"
#include "../program/layout.h"
#include "algorithm.h"
#include "pattern.h"

/* The rank `by` positions further on the chain. */
static int chain_rank_at(const hk_build *w, int by) {
  return hk_layout_at(w->layout, w->channel, hk_shift(hk_layout_place(w->layout, w->channel, w->rank), by, w->nranks));
}

static void chain_build_broadcast(hk_builder *b, const hk_build *w) {
  int next = chain_rank_at(w, 1), prev = chain_rank_at(w, -1);
  hk_build_lane(b);
  hk_build_from(b, w->rank == w->root ? hk_in(0, 0) : hk_recv_from(b, prev, 0, 0));
  hk_build_to(b, hk_out(0, 0));
  if (next != w->root) hk_build_to(b, hk_send_to(b, next, 0, 0));
  hk_build_instr(b, 0);
}

static void chain_build_reduce(hk_builder *b, const hk_build *w) {
  int next = chain_rank_at(w, 1), prev = chain_rank_at(w, -1);
  const bool last = w->rank == w->root;
  hk_build_lane(b);
  hk_build_to(b, last ? hk_out(0, 0) : hk_send_to(b, next, 0, 0));
  if (prev != w->root) hk_build_from(b, hk_recv_from(b, prev, 0, 0));
  hk_build_from(b, hk_in(0, 0));
  hk_build_instr(b, last ? HK_INSTR_FINAL : 0);
}

const hk_algorithm hk_algorithm_chain = {
    .name = "chain",
    .about = "from rank to rank in waves; fewest bytes, two links, latency grows with the ranks",
    .build = {[HK_BROADCAST] = chain_build_broadcast, [HK_REDUCE] = chain_build_reduce},
};
