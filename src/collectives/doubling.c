/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Recursive doubling (Thakur, Rabenseifner, Gropp 2005, sections 4.1, 4.3 and 4.5): in step k rank r exchanges with the
 * rank whose number differs in bit k. n ranks, S bytes (the larger buffer), q = floor(log2 n):
 *
 *   allreduce       q steps of S bytes; if n is no power of two, the ranks outside the cube (pattern.h) give their
 *                   input to their neighbour and get the result back: q + 2 steps
 *   allgather       n a power of two: q steps, S (n - 1) / n bytes; step k doubles what every rank has
 *   reduce_scatter  n a power of two: q steps of recursive halving, S (n - 1) / n bytes
 *
 * Allreduce gives all ranks the same bits: before step k the 2^k ranks that differ in the lower bits only have equal
 * sums, and both of the two groups that exchange add the lower group's sum first. An input enters its first sum in the
 * form in which it was sent, from the scratch buffer.
 *
 * The other two send blocks in pairs before they receive as many. So a system call carries two of them through a
 * socket, and a rank waits half as often; two slots are enough for it.
 */
#include "../program/builder.h"
#include "algorithm.h"
#include "pattern.h"

static void doubling_build_allreduce(hk_builder *b, const hk_build *w) {
  hk_cube cube = hk_cube_of(w->nranks);
  int corner = hk_cube_corner(&cube, w->rank);
  hk_build_lane(b);
  if (corner < 0) {
    hk_build_copy(b, hk_send_to(b, w->rank + 1, 0, 0), hk_in(0, 0));
    hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, w->rank + 1, 0, 0));
    return;
  }
  hk_build_scratch(b, 1);
  const hk_operand sum = hk_scratch(0, 0);
  int client = hk_cube_client(&cube, corner);
  if (client >= 0) hk_build_from(b, hk_recv_from(b, client, 0, 0));
  hk_build_from(b, hk_in(0, 0));
  for (int bit = 1; bit < cube.p; bit <<= 1) {
    int peer = hk_cube_rank(&cube, corner ^ bit);
    hk_build_to(b, sum);
    hk_build_to(b, hk_send_to(b, peer, 0, 0));
    hk_build_instr(b, HK_INSTR_COPY);
    const bool lower = !(corner & bit);
    const hk_operand other = hk_recv_from(b, peer, 0, 0);
    hk_build_from(b, lower ? sum : other);
    hk_build_from(b, lower ? other : sum);
  }
  hk_build_to(b, hk_out(0, 0));
  if (client >= 0) hk_build_to(b, hk_send_to(b, client, 0, 0));
  hk_build_instr(b, HK_INSTR_FINAL);
}

static void doubling_build_allgather(hk_builder *b, const hk_build *w) {
  unsigned r = (unsigned)w->rank;
  hk_build_lane(b);
  hk_build_fork(b, hk_out(r, 0), hk_send_to(b, w->rank ^ 1, r, 0), hk_in(0, 0));
  hk_build_copy(b, hk_out(r ^ 1, 0), hk_recv_from(b, w->rank ^ 1, r ^ 1, 0));
  for (unsigned have = 2; have < (unsigned)w->nranks; have *= 2) {
    int peer = w->rank ^ (int)have;
    unsigned mine = r & ~(have - 1), theirs = mine ^ have;
    hk_build_repeat(b, have / 2);
    for (unsigned j = 0; j < 2; j++) hk_build_copy(b, hk_send_to(b, peer, mine + j, 2), hk_out(mine + j, 2));
    for (unsigned j = 0; j < 2; j++) hk_build_copy(b, hk_out(theirs + j, 2), hk_recv_from(b, peer, theirs + j, 2));
    hk_build_end_repeat(b);
  }
}

static void doubling_build_reduce_scatter(hk_builder *b, const hk_build *w) {
  unsigned r = (unsigned)w->rank, half = (unsigned)w->nranks / 2;
  unsigned low = 0;  /* the first of the blocks that this rank still has to add up */
  unsigned base = 0; /* the scratch buffer with this block, after the first step */
  if (half > 1) hk_build_scratch(b, half);
  hk_build_lane(b);
  for (unsigned have = half; have >= 1; have /= 2) {
    bool first = have == half, last = have == 1;
    int peer = w->rank ^ (int)have;
    unsigned keep = r & have, give = keep ^ have;
    const int g = have > 1 ? 2 : 1; /* blocks that a rank sends before it receives */
    hk_build_repeat(b, have / (unsigned)g);
    for (unsigned j = give; j < give + (unsigned)g; j++)
      hk_build_copy(b, hk_send_to(b, peer, low + j, g), first ? hk_in(low + j, g) : hk_scratch(base + j, g));
    for (unsigned j = keep; j < keep + (unsigned)g; j++) {
      hk_operand kept = first ? hk_in(low + j, g) : hk_scratch(base + j, g);
      hk_operand to = last ? hk_out(0, 0) : first ? hk_scratch(j - keep, g) : kept;
      hk_build_add(b, last ? HK_INSTR_FINAL : 0, to, hk_recv_from(b, peer, low + j, g), kept);
    }
    hk_build_end_repeat(b);
    low += keep;
    base = first ? 0 : base + keep;
  }
}

static const char *doubling_cannot(const hk_team *team, hk_coll coll) {
  return coll == HK_ALLREDUCE || hk_is_power_of_2(team->nranks) ? NULL : "needs a power of two of ranks";
}

const hk_algorithm hk_algorithm_doubling = {
    .name = "doubling",
    .about = "exchange with the rank that differs in one bit, bit after bit; log2 n steps",
    .cannot = doubling_cannot,
    .build = {[HK_ALLREDUCE] = doubling_build_allreduce,
              [HK_ALLGATHER] = doubling_build_allgather,
              [HK_ALLGATHERV] = doubling_build_allgather,
              [HK_REDUCE_SCATTER] = doubling_build_reduce_scatter,
              [HK_REDUCE_SCATTERV] = doubling_build_reduce_scatter},
};
