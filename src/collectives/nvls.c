/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Two-shot allreduce through a switch that adds up (NVLS: multimem loads and stores).  The program is twoshot's: rank p gets
 * block p, adds up, and writes the sum where all others read it.  But what rank p gets from all others is one stream, which the
 * switch has summed up on its way.  n ranks, S bytes: two steps; S (n + 1) / n bytes sent by a rank and S received, where
 * a ring sends and receives 2 S (n - 1) / n (Klenk, Jiang, Thorson, Dennison 2020: "An in-network architecture for
 * accelerating shared-memory multiprocessor collectives").
 */
#include "cost.h"
#include "gpu.h"
#include "mesh.h"

static const char *cannot(const hk_machine *m, hk_coll coll) {
  (void)coll;
  if (!m->in_switch) return "needs a switch that adds up (NVSwitch since Hopper)";
  return m->nhosts > 1 ? "is for ranks behind one switch" : NULL;
}

static hk_shape shape(const hk_machine *m, hk_coll coll) {
  (void)coll;
  return (hk_shape){.fan = (unsigned)m->nranks, .depth = 1, .scratch = hk_mesh_scratch(m->nranks)};
}

static double cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double n = m->nranks, all = (double)bytes, block = all / n;
  hk_work w = {.rounds = 2,
               .again = 2 * HK_AHEAD,
               .messages = 4,
               .sent = (n + 1) * block / HK_GPU_IN_SWITCH,
               .received = (n + 1) * block / HK_GPU_IN_SWITCH,
               .written = (n + 1) * block,
               .block = bytes / (size_t)m->nranks};
  w.gpu.turns = n - 1;
  w.gpu.all_turns = 2 * n - 1;
  w.gpu.lane = (n - 1) * block;
  w.gpu.lanes = (2 * n - 1) * block;
  hk_shape s = shape(m, coll);
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_nvls = {
    .name = "nvls",
    .about = "as twoshot, with the sums made by the switch; fewest bytes a rank; needs NVLS",
    .colls = 1u << HK_ALLREDUCE,
    .in_switch = true,
    .cannot = cannot,
    .cost = cost,
    .shape = shape,
    .build = hk_build_twoshot,
};
