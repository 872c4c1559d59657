/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Pairwise alltoall: in step j rank r sends to r + j and receives from r - j, so that in each step every rank sends one
 * message and receives one (Thakur, Rabenseifner, Gropp 2005, section 4.4). n ranks, S bytes a buffer: n - 1 steps that
 * need not wait for one another, S (n - 1) / n bytes sent, the least possible. Sends and receives are lanes of their
 * own.
 */
#include "cost.h"
#include "mesh.h"

static void pairwise_build(hk_builder *b, const hk_build *w) {
  unsigned mine = (unsigned)w->rank, others = (unsigned)w->nranks - 1;
  unsigned after = (unsigned)hk_shift(w->rank, 1, w->nranks), before = (unsigned)hk_shift(w->rank, -1, w->nranks);
  hk_build_lane(b);
  hk_build_repeat(b, others);
  hk_build_copy(b, hk_mesh_walk(b, w, HK_LINK_SEND, mine, 0), hk_in(after, 1));
  hk_build_end_repeat(b);
  hk_build_copy(b, hk_out(mine, 0), hk_in(mine, 0));

  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_build_repeat(b, others);
  hk_build_copy(b, hk_out(before, -1), hk_mesh_walk(b, w, HK_LINK_RECV, before, -1));
  hk_build_end_repeat(b);
}

static hk_shape pairwise_shape(const hk_machine *m, hk_coll coll) {
  (void)coll;
  return (hk_shape){.fan = (unsigned)m->nranks - 1, .depth = 1, .refers = true};
}

static double pairwise_cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double others = m->nranks - 1, block = (double)bytes / m->nranks;
  hk_work w = {.rounds = 1,
               .again = HK_AHEAD,
               .messages = 2 * others,
               .sent = others * block,
               .written = (2 * others + 1) * block,
               .block = bytes / (size_t)m->nranks};
  w.gpu.traffic = HK_TRAFFIC_TURNS;
  w.gpu.turns = others;
  w.gpu.all_turns = others + 1;
  w.gpu.lane = others * block;
  w.gpu.lanes = w.gpu.lane + block;
  hk_shape s = pairwise_shape(m, coll);
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_pairwise = {
    .name = "pairwise",
    .about = "step j: send to rank + j, receive from rank - j; fewest bytes",
    .colls = 1u << HK_ALLTOALL | 1u << HK_ALLTOALLV,
    .cost = pairwise_cost,
    .shape = pairwise_shape,
    .build = pairwise_build,
};
