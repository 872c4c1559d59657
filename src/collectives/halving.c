/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rabenseifner's allreduce: reduce-scatter by recursive halving, then allgather by recursive doubling (Thakur,
 * Rabenseifner, Gropp 2005, section 4.5). p = the largest power of two <= n ranks, S bytes: 2 log2 p steps, 2 S (p - 1)
 * / p bytes sent, as few as with a ring. If n > p, the ranks outside the cube (pattern.h) give their input to their
 * neighbour and get the result back: 2 more steps of S bytes each.
 *
 * The message is divided into p blocks. One rank makes the sum of a block, so all ranks get the same bits. One lane
 * sends and one receives, so that the blocks of a step follow each other without waiting; a slot from the rank to
 * itself says that a step has been received (token.h). Partial sums are in the output. In place this overwrites no
 * input too early: a block is sent before its sum returns, and from the same rank.
 */
#include "algorithm.h"
#include "pattern.h"
#include "token.h"

typedef struct place {
  hk_cube cube;
  int corner, client; /* client -1: none */
  unsigned blocks;
} place;

/* A rank outside the cube. */
static void halving_build_client(hk_builder *b, int server, unsigned blocks) {
  hk_build_lane(b);
  hk_build_repeat(b, blocks);
  hk_build_copy(b, hk_send_to(b, server, 0, 1), hk_in(0, 1));
  hk_build_end_repeat(b);
  hk_build_repeat(b, blocks);
  hk_build_copy(b, hk_out(0, 1), hk_recv_from(b, server, 0, 1));
  hk_build_end_repeat(b);
}

static void halving_send(hk_builder *b, int peer, unsigned first, unsigned count, bool output) {
  hk_build_repeat(b, count);
  hk_build_copy(b, hk_send_to(b, peer, first, 1), output ? hk_out(first, 1) : hk_in(first, 1));
  hk_build_end_repeat(b);
}

static void halving_build_sends(hk_builder *b, const place *x) {
  bool output = x->client >= 0;
  hk_build_lane(b);
  if (output) hk_token_await(b);
  for (int have = x->cube.p / 2; have >= 1; have /= 2) {
    unsigned low = (unsigned)(x->corner & ~(2 * have - 1)), give = low + ((unsigned)~x->corner & (unsigned)have);
    halving_send(b, hk_cube_rank(&x->cube, x->corner ^ have), give, (unsigned)have, output);
    hk_token_await(b);
    output = true;
  }
  for (int have = 1; have < x->cube.p; have *= 2) {
    halving_send(b, hk_cube_rank(&x->cube, x->corner ^ have), (unsigned)(x->corner & ~(have - 1)), (unsigned)have,
                 true);
    if (x->client >= 0 || 2 * have < x->cube.p) hk_token_await(b);
  }
  if (x->client >= 0) halving_send(b, x->client, 0, x->blocks, true);
}

static void halving_build_receives(hk_builder *b, const place *x) {
  bool output = x->client >= 0;
  hk_build_lane(b);
  hk_build_channel(b, 0);
  if (output) {
    hk_build_repeat(b, x->blocks);
    hk_build_move(b, 0, (hk_operand[]){hk_out(0, 1)}, 1, (hk_operand[]){hk_recv_from(b, x->client, 0, 1), hk_in(0, 1)},
                  2);
    hk_build_end_repeat(b);
    hk_token_give(b);
  }
  for (int have = x->cube.p / 2; have >= 1; have /= 2) {
    const int peer = hk_cube_rank(&x->cube, x->corner ^ have);
    const unsigned keep = (unsigned)(x->corner & ~(have - 1));
    hk_build_repeat(b, (unsigned)have);
    hk_build_move(b, have == 1 ? HK_INSTR_FINAL : 0, (hk_operand[]){hk_out(keep, 1)}, 1,
                  (hk_operand[]){hk_recv_from(b, peer, keep, 1), output ? hk_out(keep, 1) : hk_in(keep, 1)}, 2);
    hk_build_end_repeat(b);
    hk_token_give(b);
    output = true;
  }
  for (int have = 1; have < x->cube.p; have *= 2) {
    const int peer = hk_cube_rank(&x->cube, x->corner ^ have);
    const unsigned theirs = (unsigned)((x->corner ^ have) & ~(have - 1));
    hk_build_repeat(b, (unsigned)have);
    hk_build_copy(b, hk_out(theirs, 1), hk_recv_from(b, peer, theirs, 1));
    hk_build_end_repeat(b);
    if (x->client >= 0 || 2 * have < x->cube.p) hk_token_give(b);
  }
}

static void halving_build(hk_builder *b, const hk_build *w) {
  place x = {.cube = hk_cube_of(w->nranks)};
  x.corner = hk_cube_corner(&x.cube, w->rank);
  x.client = hk_cube_client(&x.cube, x.corner);
  x.blocks = (unsigned)x.cube.p;
  hk_build_split(b, x.blocks);
  if (x.corner < 0) {
    halving_build_client(b, w->rank + 1, x.blocks);
    return;
  }
  halving_build_sends(b, &x);
  halving_build_receives(b, &x);
}

const hk_algorithm hk_algorithm_halving = {
    .name = "halving",
    .about = "Rabenseifner's: recursive halving, then doubling; 2 log2 n steps, fewest bytes",
    .colls = 1u << HK_ALLREDUCE,
    .build = halving_build,
};
