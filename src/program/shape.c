/* SPDX-License-Identifier: Apache-2.0 */
/* Whether programs of different ranks do the same (hk_program_shape). */
#include <stdbool.h>
#include "../base/hash.h"
#include "program.h"

/* The effect of a move, without the numbers of blocks; loosely: without what a sum adds. */
static uint64_t shape_of_move(const hk_program *p, const hk_instr *in, bool loosely) {
  const hk_operand *o = hk_instr_operands(p, in);
  const unsigned nsrc = loosely && in->nsrc > 1 ? 0 : in->nsrc;
  uint64_t h = hk_hash_mix(in->flags & (HK_INSTR_COPY | HK_INSTR_IN_SWITCH), (uint64_t)in->ndst << 32 | nsrc);
  for (unsigned k = 0; k < in->ndst + nsrc; k++) {
    const hk_link_need *l = o[k].space == HK_LINK ? &hk_program_links(p)[o[k].link] : NULL;
    h = hk_hash_mix(h, (uint64_t)o[k].space << 32 | (uint64_t)o[k].flags << 16 | (l ? o[k].link : 0));
    if (l && loosely) h = hk_hash_mix(h, (uint64_t)l->kind << 8 | l->channel); /* links may have another order */
  }
  return h;
}

/* The hash of a sequence as a polynomial, so that sequences can be joined and repeated without being expanded. If block
 * numbers wrap round, one host may split a repeat into two pieces, or separate its last iteration, where another host
 * has one repeat. */
typedef struct shape_sequence {
  uint64_t hash, power;
} shape_sequence;
static shape_sequence shape_then(shape_sequence a, shape_sequence b) {
  return (shape_sequence){.hash = a.hash * b.power + b.hash, .power = a.power * b.power};
}
static shape_sequence shape_repeated(shape_sequence one, uint32_t times) {
  shape_sequence all = {.hash = 0, .power = 1};
  for (; times; times >>= 1) {
    if (times & 1) all = shape_then(all, one);
    one = shape_then(one, one);
  }
  return all;
}

static uint64_t shape_of_lane(const hk_program *p, const hk_lane *lane, bool loosely) {
  const hk_instr *in = hk_program_instrs(p) + lane->first, *end = in + lane->count;
  shape_sequence all = {.hash = 0, .power = 1};
  while (in < end) {
    bool repeat = in->op == HK_OP_REPEAT;
    uint32_t count = repeat ? in->repeat.count : 1, n = repeat ? in->repeat.body : 1;
    shape_sequence body = {.hash = 0, .power = 1};
    for (in += repeat; n; n--, in++)
      body = shape_then(body, (shape_sequence){.hash = shape_of_move(p, in, loosely), .power = 0x9e3779b97f4a7c15u});
    all = shape_then(all, shape_repeated(body, count));
  }
  return hk_hash_mix(all.hash, all.power);
}

uint64_t hk_program_shape(const hk_program *p) {
  uint64_t h = hk_hash_mix(p->nlanes, p->nlinks);
  const hk_lane *lanes = hk_program_lanes(p);
  const hk_link_need *links = hk_program_links(p);
  for (unsigned i = 0; i < p->nlanes; i++) h = hk_hash_mix(h, shape_of_lane(p, &lanes[i], false));
  for (uint32_t i = 0; i < p->nlinks; i++)
    h = hk_hash_mix(h, (uint64_t)links[i].kind << 16 | (uint64_t)links[i].lane << 8 | links[i].channel);
  return h;
}

int hk_program_is_shifted(const hk_program *first, const hk_program *p, int by) {
  const hk_link_need *a = hk_program_links(first), *b = hk_program_links(p);
  if (first->nlinks != p->nlinks) return 0;
  for (uint32_t i = 0; i < p->nlinks; i++) {
    /* multicasts reach all ranks, and groups are of certain ranks: there is no peer to shift */
    const bool pair = a[i].kind == HK_LINK_SEND || a[i].kind == HK_LINK_RECV;
    if (!pair || (a[i].peer + by) % p->nranks != b[i].peer) return 0;
  }
  return hk_program_shape(first) == hk_program_shape(p);
}

/* A hash of the links in any order, with the numbers of all ranks raised by `by`, or flipped. */
static uint64_t shape_of_links(const hk_program *p, int by, int flips) {
  const hk_link_need *l = hk_program_links(p);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < p->nlinks; i++) {
    const uint64_t way = (uint64_t)l[i].kind << 16 | (uint64_t)l[i].lane << 8 | l[i].channel;
    sum += hk_hash_mix(way, flips ? l[i].peer ^ (uint64_t)by : (uint64_t)((l[i].peer + by) % p->nranks));
  }
  return sum;
}

int hk_program_is_alike(const hk_program *first, const hk_program *p, int by, int flips) {
  const hk_link_need *l = hk_program_links(first);
  if (!flips && hk_program_is_shifted(first, p, by)) return 1;
  if (first->nlanes != p->nlanes || first->nlinks != p->nlinks || first->traits.moves != p->traits.moves) return 0;
  for (uint32_t i = 0; i < p->nlinks; i++)
    if (hk_link_in_group((hk_link_kind)l[i].kind)) return 0; /* of certain ranks */
  for (unsigned i = 0; i < p->nlanes; i++)
    if (shape_of_lane(first, &hk_program_lanes(first)[i], true) != shape_of_lane(p, &hk_program_lanes(p)[i], true))
      return 0;
  return shape_of_links(first, by, flips) == shape_of_links(p, 0, flips);
}
