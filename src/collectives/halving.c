/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rabenseifner's allreduce: reduce-scatter by recursive halving, then allgather by recursive doubling (Thakur,
 * Rabenseifner, Gropp 2005, section 4.5). p = the largest power of two <= n ranks, S bytes: 2 log2 p steps, 2 S (p - 1)
 * / p bytes sent, as few as with a ring. If n > p, the ranks outside the cube (pattern.h) give their input to their
 * neighbour and get the result back: 2 more steps of S bytes each.
 *
 * The message is divided into p blocks. One rank makes the sum of a block, so all ranks get the same bits. A step sends
 * and receives its blocks by turns, so that two slots are enough. Partial sums are in the output. In place this
 * overwrites no input too early: a block is sent before its sum returns, and from the same rank.
 */
#include "algorithm.h"
#include "pattern.h"

/* A rank outside the cube. */
static void halving_build_client(hk_builder *b, int server, unsigned blocks) {
  hk_build_repeat(b, blocks);
  hk_build_copy(b, hk_send_to(b, server, 0, 1), hk_in(0, 1));
  hk_build_end_repeat(b);
  hk_build_repeat(b, blocks);
  hk_build_copy(b, hk_out(0, 1), hk_recv_from(b, server, 0, 1));
  hk_build_end_repeat(b);
}

static void halving_build_halving(hk_builder *b, const hk_cube *cube, int corner, bool sum_in_output) {
  unsigned low = 0;
  for (int have = cube->p / 2; have >= 1; have /= 2) {
    int peer = hk_cube_rank(cube, corner ^ have);
    unsigned keep = low + (unsigned)(corner & have), give = keep ^ (unsigned)have;
    hk_operand given = sum_in_output ? hk_out(give, 1) : hk_in(give, 1);
    hk_operand kept = sum_in_output ? hk_out(keep, 1) : hk_in(keep, 1);
    hk_build_repeat(b, (unsigned)have);
    hk_build_copy(b, hk_send_to(b, peer, give, 1), given);
    hk_build_move(b, have == 1 ? HK_INSTR_FINAL : 0, (hk_operand[]){hk_out(keep, 1)}, 1,
                  (hk_operand[]){hk_recv_from(b, peer, keep, 1), kept}, 2);
    hk_build_end_repeat(b);
    low = keep;
    sum_in_output = true;
  }
}

static void halving_build_doubling(hk_builder *b, const hk_cube *cube, int corner) {
  for (int have = 1; have < cube->p; have *= 2) {
    int peer = hk_cube_rank(cube, corner ^ have);
    unsigned mine = (unsigned)(corner & ~(have - 1)), theirs = mine ^ (unsigned)have;
    hk_build_repeat(b, (unsigned)have);
    hk_build_copy(b, hk_send_to(b, peer, mine, 1), hk_out(mine, 1));
    hk_build_copy(b, hk_out(theirs, 1), hk_recv_from(b, peer, theirs, 1));
    hk_build_end_repeat(b);
  }
}

static void halving_build(hk_builder *b, const hk_build *w) {
  hk_cube cube = hk_cube_of(w->nranks);
  int corner = hk_cube_corner(&cube, w->rank), client = hk_cube_client(&cube, corner);
  unsigned blocks = (unsigned)cube.p;
  hk_build_split(b, blocks);
  hk_build_lane(b);
  if (corner < 0) {
    halving_build_client(b, w->rank + 1, blocks);
    return;
  }
  if (client >= 0) {
    hk_build_repeat(b, blocks);
    hk_build_move(b, 0, (hk_operand[]){hk_out(0, 1)}, 1, (hk_operand[]){hk_recv_from(b, client, 0, 1), hk_in(0, 1)}, 2);
    hk_build_end_repeat(b);
  }
  halving_build_halving(b, &cube, corner, client >= 0);
  halving_build_doubling(b, &cube, corner);
  if (client >= 0) {
    hk_build_repeat(b, blocks);
    hk_build_copy(b, hk_send_to(b, client, 0, 1), hk_out(0, 1));
    hk_build_end_repeat(b);
  }
}

const hk_algorithm hk_algorithm_halving = {
    .name = "halving",
    .about = "Rabenseifner's: recursive halving, then doubling; 2 log2 n steps, fewest bytes",
    .colls = 1u << HK_ALLREDUCE,
    .build = halving_build,
};
