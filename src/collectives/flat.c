/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-shot allreduce over plain links: every rank sends its whole input to every other one. n ranks, S bytes: one step,
 * but (n - 1) S bytes sent and as many added, so this is for the smallest messages. (Each rank's part is the "flat" or
 * "linear" algorithm of Open MPI's tuned collectives.)
 *
 * All ranks add in the order of ranks and get the same bits. The sends are copies: in place, the next instruction
 * overwrites what was sent.
 */
#include "cost.h"
#include "mesh.h"

static void flat_build(hk_builder *b, const hk_build *w) {
  hk_build_scratch(b, hk_mesh_scratch(w->nranks));
  hk_build_lane(b);
  hk_mesh_send_all(b, w, HK_INSTR_COPY, 0, hk_in(0, 0), NULL);
  hk_mesh_reduce(b, w, (hk_operand[]){hk_out(0, 0)}, 1, HK_LINK_RECV, 0, hk_in(0, 0));
}

static hk_shape flat_shape(const hk_machine *m, hk_coll coll) {
  (void)coll;
  return (hk_shape){.fan = (unsigned)m->nranks - 1, .depth = 1, .scratch = hk_mesh_scratch(m->nranks)};
}

static double flat_cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double others = m->nranks - 1, all = (double)bytes;
  hk_work w = {.rounds = 1,
               .again = 1,
               .messages = 2 * others,
               .sent = others * all,
               .written = (others + 1) * all,
               .reduced = others * all,
               .block = bytes};
  w.gpu.one_shot = true;
  w.gpu.traffic = HK_TRAFFIC_ALL;
  w.gpu.turns = 2 * hk_mesh_instrs(m->nranks);
  w.gpu.lane = w.gpu.turns * all;
  w.gpu.unsent = w.gpu.lane / 2;
  w.gpu.after = w.gpu.lane / 2; /* adding begins when all data has arrived */
  hk_shape s = flat_shape(m, coll);
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_flat = {
    .name = "flat",
    .about = "every rank sends its whole input to every other one; one step, most bytes",
    .colls = 1u << HK_ALLREDUCE,
    .fixed_order = 1u << HK_ALLREDUCE,
    .cost = flat_cost,
    .shape = flat_shape,
    .build = flat_build,
};
