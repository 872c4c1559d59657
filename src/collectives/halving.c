/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rabenseifner's allreduce: reduce-scatter by recursive halving, then allgather by recursive doubling (Thakur,
 * Rabenseifner, Gropp 2005, section 4.5). p = the largest power of two <= n ranks, S bytes: 2 log2 p steps, 2 S (p - 1)
 * / p bytes sent, as few as with a ring. If n > p, the ranks outside the cube (pattern.h) give their input to their
 * neighbour and get the result back: 2 more steps of S bytes each.
 *
 * The message is divided into p blocks. One rank makes the sum of a block, so all ranks get the same bits. One lane
 * sends and one receives, so that up to eight blocks of a step follow each other without waiting; an empty slot from
 * the rank to itself says that as many have been received. Partial sums are in the output. In place this overwrites no
 * input too early: a block is sent before its sum returns, and from the same rank.
 */
#include "../program/builder.h"
#include "algorithm.h"
#include "pattern.h"

typedef struct place {
  hk_cube cube;
  int corner, client; /* client -1: none */
  unsigned blocks;
} place;

/* The sending lane awaits an empty slot that the receiving lane gives. Both use one channel. */
static void halving_give(hk_builder *b) {
  hk_build_to(b, hk_send_to(b, hk_builder_rank(b), 0, 0));
  hk_build_instr(b, 0);
}
static void halving_await(hk_builder *b) {
  hk_build_from(b, hk_recv_from(b, hk_builder_rank(b), 0, 0));
  hk_build_instr(b, 0);
}

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

/* Blocks that follow each other without waiting: as many as a link has slots. */
enum { GROUP = 8 };
static unsigned halving_group(unsigned blocks) { return blocks < GROUP ? blocks : GROUP; }

/* Sends blocks to a peer; after each group it waits until as many have been received, if `awaits`. */
static void halving_send(hk_builder *b, int peer, unsigned first, unsigned count, bool output, bool awaits) {
  const unsigned group = halving_group(count);
  hk_build_repeat(b, count / group);
  for (unsigned at = first; at < first + group; at++) {
    const hk_operand to = hk_send_to(b, peer, at, (int)group);
    hk_build_copy(b, to, output ? hk_out(at, (int)group) : hk_in(at, (int)group));
  }
  if (awaits) halving_await(b);
  hk_build_end_repeat(b);
}

static void halving_build_sends(hk_builder *b, const place *x) {
  bool output = x->client >= 0;
  hk_build_lane(b);
  hk_build_repeat(b, output ? x->blocks / halving_group(x->blocks) : 0);
  halving_await(b);
  hk_build_end_repeat(b);
  for (int have = x->cube.p / 2; have >= 1; have /= 2) {
    unsigned low = (unsigned)(x->corner & ~(2 * have - 1)), give = low + ((unsigned)~x->corner & (unsigned)have);
    halving_send(b, hk_cube_rank(&x->cube, x->corner ^ have), give, (unsigned)have, output, true);
    output = true;
  }
  for (int have = 1; have < x->cube.p; have *= 2)
    halving_send(b, hk_cube_rank(&x->cube, x->corner ^ have), (unsigned)(x->corner & ~(have - 1)), (unsigned)have, true,
                 true);
  if (x->client >= 0) halving_send(b, x->client, 0, x->blocks, true, false);
}

/* Receives blocks from a peer, adds them to those of input or output if it `adds`, and says so after each group. */
static void halving_receive(hk_builder *b, int peer, unsigned first, unsigned count, unsigned flags, hk_space kept,
                            bool adds) {
  const unsigned group = halving_group(count);
  hk_build_repeat(b, count / group);
  for (unsigned at = first; at < first + group; at++) {
    hk_build_from(b, hk_recv_from(b, peer, at, (int)group));
    if (adds) hk_build_from(b, kept == HK_OUT ? hk_out(at, (int)group) : hk_in(at, (int)group));
    hk_build_to(b, hk_out(at, (int)group));
    hk_build_instr(b, flags);
  }
  halving_give(b);
  hk_build_end_repeat(b);
}

static void halving_build_receives(hk_builder *b, const place *x) {
  hk_space kept = HK_IN;
  hk_build_lane(b);
  hk_build_channel(b, 0);
  if (x->client >= 0) {
    halving_receive(b, x->client, 0, x->blocks, 0, kept, true);
    kept = HK_OUT;
  }
  for (int have = x->cube.p / 2; have >= 1; have /= 2) {
    halving_receive(b, hk_cube_rank(&x->cube, x->corner ^ have), (unsigned)(x->corner & ~(have - 1)), (unsigned)have,
                    have == 1 ? HK_INSTR_FINAL : 0, kept, true);
    kept = HK_OUT;
  }
  for (int have = 1; have < x->cube.p; have *= 2)
    halving_receive(b, hk_cube_rank(&x->cube, x->corner ^ have), (unsigned)((x->corner ^ have) & ~(have - 1)),
                    (unsigned)have, 0, HK_OUT, false);
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
    .build = {[HK_ALLREDUCE] = halving_build},
};
