/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-shot allreduce through a switch that reduces (NVLS): every rank copies its input into memory that the switch
 * reaches, and loads the sum of all from there. n ranks, S bytes: one step. n S bytes leave a rank, because the switch
 * fetches them for every rank; S bytes arrive. Two instructions and two links for any number of ranks. With the other
 * one-shot algorithms n S bytes arrive at a rank (twice as many with LL), which adds them. But here a fence, a signal
 * and a load through the switch follow each other.
 *
 * The order of the sum is the switch's. Each rank loads its own, so ranks get the same bits only if the order does not
 * depend on who loads, which is not documented: nvls and all others have one rank make a sum for all.
 */
#include "mesh.h"

static void sumshot_build(hk_builder *b, const hk_build *w) {
  const int after = hk_shift(w->rank, 1, w->nranks), before = hk_shift(w->rank, -1, w->nranks);
  hk_build_in_switch(b, true);
  hk_build_lane(b);
  /* A copy: in place the sum overwrites the input. */
  hk_build_to(b, hk_link_operand(b, HK_LINK_SUM_SEND, after, 0, 0));
  hk_build_from(b, hk_in(0, 0));
  hk_build_instr(b, HK_INSTR_COPY);
  hk_build_to(b, hk_out(0, 0));
  hk_build_from(b, hk_link_operand(b, HK_LINK_SUM_RECV, before, 0, 0));
  hk_build_instr(b, HK_INSTR_FINAL);
}

static const char *sumshot_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  const char *why = hk_mesh_switch_cannot(team, team->nranks);
  if (why) return why;
  return team->nhosts > 1 ? "is for ranks on one switch" : NULL;
}

const hk_algorithm hk_algorithm_sumshot = {
    .name = "sumshot",
    .about = "every rank copies its input to memory of the switch and loads the sum of all; one step; needs NVLS",
    .protocols = 1u << HK_PROTO_SIMPLE, /* a switch reduces data, not lines with flags in them */
    .cannot = sumshot_cannot,
    .build = {[HK_ALLREDUCE] = sumshot_build},
};
