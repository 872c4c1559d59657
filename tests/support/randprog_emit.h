/* SPDX-License-Identifier: Apache-2.0 */
/* The generator's other half: lists of steps become programs, with repeats where steps form one. */
#ifndef HK_TESTS_RANDPROG_EMIT_H
#define HK_TESTS_RANDPROG_EMIT_H
#include "../../src/program/program.h"

enum {
  RAND_RANKS = 8,
  RAND_LANES = 3,
  RAND_CHANNELS = 4, /* two lanes talk to both lanes of a peer; three, each to the same one */
  RAND_SCRATCH = 128,
  RAND_OPERANDS = 12
};

typedef struct rand_operand {
  int space, kind, peer, channel, block; /* kind, peer and channel of links */
} rand_operand;
typedef struct rand_step {
  unsigned flags;
  int ndst, nsrc;
  rand_operand dst[RAND_OPERANDS], src[RAND_OPERANDS];
} rand_step;

typedef struct rand_emit rand_emit;
rand_emit *rand_emit_new(int nranks, int lanes);
void rand_emit_step(rand_emit *e, int rank, int lane, const rand_step *step);
/* Gives all ranks' programs and frees e.  split 0: a collective of whole messages. */
hk_program **rand_emit_finish(rand_emit *e, hk_coll coll, int root, unsigned split, unsigned scratch, uint64_t seed);
#endif
