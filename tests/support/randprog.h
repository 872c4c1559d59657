/* SPDX-License-Identifier: Apache-2.0 */
/* Random valid programs, as unlike a textbook's as they come: every block is reduced up one random tree and sent down
 * another, in random lanes, with random grouping of sources and destinations, accumulators in scratch or in the
 * output, detours over third ranks, multicast, empty slots, copies or references, and repeats where a few instructions
 * happen to form one.
 *
 * They are valid by construction: the generator simulates the ranks with FIFOs of `slots` slots and writes down a step
 * only when it can be taken, so its own order is a schedule that finishes.  What comes out must be proved by the
 * verifier, and must run right on an executor: give it buffers of `programs[0]->in_blocks` and `out_blocks`. */
#ifndef HK_TESTS_RANDPROG_H
#define HK_TESTS_RANDPROG_H
#include "../../src/program/program.h"

typedef struct randprog {
  hk_program **programs;
  int nranks, root;
  hk_coll coll;
  unsigned slots;    /* the FIFOs need at least these */
  int has_multicast; /* some link is a multicast */
} randprog;

/* One seed, one set of programs.  nranks 0: from 1 to 8, by the seed; coll < 0: any.  Aborts when memory is out. */
void randprog_make(randprog *out, uint64_t seed, int nranks, int coll);
void randprog_free(randprog *p);

/* Makes one change that no right set of programs survives (out of place).  Gives it in words, a static string. */
const char *randprog_break(randprog *p, uint64_t seed);
/* Makes one change of which the verifier must find out whether it matters: neighbours swapped, a copy turned into a
 * reference, an accumulator moved. */
const char *randprog_shake(randprog *p, uint64_t seed);

static inline uint64_t random_next(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static inline unsigned random_below(uint64_t *state, unsigned n) { return (unsigned)(random_next(state) >> 33) % n; }
#endif
