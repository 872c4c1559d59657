/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Direct: all ranks are connected with each other, and every block goes directly to its destination. n ranks, S bytes
 * (the larger buffer), blocks of S / n:
 *
 *   allreduce       two-shot: all send block p to rank p, which adds up and sends the sum to all: 2 steps,
 *                   2 S (n - 1) / n bytes sent (as with a ring), n - 1 links each way, twice
 *   reduce_scatter  1 step, S (n - 1) / n bytes sent
 *   allgather       1 step, S (n - 1) / n bytes sent
 *   broadcast       1 step, (n - 1) S bytes sent by the root
 *   reduce          1 step, S bytes sent; the root adds (n - 1) S
 *   gather, scatter 1 step, S / n bytes a message, n - 1 messages at the root
 *
 * (The "linear" algorithms of MPI libraries; the exchanges are those of Thakur, Rabenseifner, Gropp 2005, sections 4.1
 * and 4.3.) Sums are made in the order of ranks, and the sum of a block by one rank, so all get the same bits. Sending,
 * adding and collecting are lanes of their own, so that sends run ahead while they have free slots.
 */
#include "mesh.h"

static void direct_build_scatter(hk_builder *b, const hk_build *w) {
  const unsigned mine = (unsigned)w->rank;
  hk_build_lane(b);
  if (w->rank == w->root) hk_mesh_deal(b, w);
  hk_build_copy(b, hk_out(0, 0), w->rank == w->root ? hk_in(mine, 0) : hk_recv_from(b, w->root, mine, 0));
}

static void direct_build_root_receives(hk_builder *b, const hk_build *w) {
  unsigned block = w->coll == HK_GATHER ? (unsigned)w->rank : 0;
  if (w->coll == HK_REDUCE && w->rank == w->root) hk_build_scratch(b, hk_mesh_scratch(b, w));
  hk_build_lane(b);
  if (w->rank != w->root) {
    hk_build_copy(b, hk_send_to(b, w->root, block, 0), hk_in(0, 0));
  } else if (w->coll == HK_REDUCE) {
    hk_build_to(b, hk_out(0, 0));
    hk_mesh_reduce(b, w, HK_LINK_RECV, 0, hk_in(0, 0));
  } else {
    hk_build_copy(b, hk_out(block, 0), hk_in(0, 0));
    hk_mesh_collect(b, w, HK_LINK_RECV);
  }
}

static void direct_build_allreduce(hk_builder *b, const hk_build *w) { hk_mesh_two_shot(b, w, HK_LINK_RECV); }
static void direct_build_allgather(hk_builder *b, const hk_build *w) { hk_mesh_allgather(b, w, HK_LINK_RECV); }
static void direct_build_broadcast(hk_builder *b, const hk_build *w) { hk_mesh_broadcast(b, w, HK_LINK_RECV); }

const hk_algorithm hk_algorithm_direct = {
    .name = "direct",
    .about = "every block directly to its destination; one step or two, links to all ranks",
    .fixed_order = 1u << HK_ALLREDUCE | 1u << HK_REDUCE_SCATTER | 1u << HK_REDUCE,
    .build = {[HK_ALLREDUCE] = direct_build_allreduce,
              [HK_ALLGATHER] = direct_build_allgather,
              [HK_ALLGATHERV] = direct_build_allgather,
              [HK_REDUCE_SCATTER] = hk_mesh_reduce_scatter,
              [HK_REDUCE_SCATTERV] = hk_mesh_reduce_scatter,
              [HK_BROADCAST] = direct_build_broadcast,
              [HK_REDUCE] = direct_build_root_receives,
              [HK_GATHER] = direct_build_root_receives,
              [HK_SCATTER] = direct_build_scatter},
};
