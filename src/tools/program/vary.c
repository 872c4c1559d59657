/* SPDX-License-Identifier: Apache-2.0 */
/* Builds variations of programs (vary.h). */
#include "vary.h"
#include <stdlib.h>
#include "../../program/builder.h"
#include "../../program/cursor.h"
#include "../../program/limits.h"
#include "../proof.h"

enum { MOST_OPERANDS = UINT16_MAX };

/* One lane of one copy of a program. */
typedef struct vary_lane {
  hk_builder *b;
  const hk_variation *v;
  const hk_program *from;
  unsigned base, total; /* in each message: the variation's first block, and the blocks of all variations */
  unsigned copy;
  bool unroll; /* strides have no meaning for the new numbers of blocks, so repeats are written out */
  unsigned *links;
  hk_operand *operands;
} vary_lane;

static unsigned vary_width(const hk_variation *v) { return v->copies * v->pieces; }

static int vary_rank(const hk_variation *v, int r) { return v->place ? v->place[r] : r; }

/* Blocks of a message, and messages of a rank's larger buffer. */
static unsigned vary_parts(const hk_program *p) { return hk_program_parts(p); }

/* A message of a collective that is not split is that of a rank, if the buffer has one of each. */
static unsigned vary_block(const vary_lane *x, const hk_operand *o, unsigned j, unsigned piece) {
  const hk_program *p = x->from;
  const unsigned parts = vary_parts(p), block = hk_operand_block(p, o, j), width = vary_width(x->v);
  unsigned message = block / parts;
  if (o->space == HK_SCRATCH) return block * x->v->pieces + piece;
  if (p->partition == HK_PART_WHOLE && hk_space_blocks(p, (hk_space)o->space) > parts)
    message = (unsigned)vary_rank(x->v, (int)message);
  return message * x->total + x->base + block % parts * width + x->copy * x->v->pieces + piece;
}

static void vary_move(const vary_lane *x, const hk_instr *i, unsigned j) {
  const hk_operand *o = hk_instr_operands(x->from, i);
  const unsigned n = (unsigned)i->ndst + i->nsrc;
  hk_build_in_switch(x->b, (i->flags & HK_INSTR_IN_SWITCH) != 0);
  for (unsigned piece = 0; piece < x->v->pieces; piece++) {
    for (unsigned k = 0; k < n; k++) {
      hk_operand *to = &x->operands[k];
      *to = o[k];
      to->block = vary_block(x, &o[k], j, piece);
      to->stride = x->unroll ? 0 : o[k].stride * (int)vary_width(x->v);
      if (x->unroll) to->flags &= ~(unsigned)HK_OPERAND_STEP;
      if (o[k].space == HK_LINK) to->link = x->links[x->unroll ? hk_operand_link(&o[k], j) : o[k].link];
    }
    hk_build_move(x->b, i->flags, x->operands, i->ndst, x->operands + i->ndst, i->nsrc);
  }
}

static void vary_instrs(const vary_lane *x, const hk_lane *lane) {
  const hk_instr *all = hk_program_instrs(x->from);
  for (uint32_t at = lane->first; at < lane->first + lane->count; at++) {
    if (all[at].op != HK_OP_REPEAT) {
      vary_move(x, &all[at], 0);
      continue;
    }
    const uint32_t first = at + 1, end = first + all[at].repeat.body, count = all[at].repeat.count;
    if (!x->unroll) hk_build_repeat(x->b, count);
    for (uint32_t j = 0; j < (x->unroll ? count : 1); j++)
      for (uint32_t k = first; k < end; k++) vary_move(x, &all[k], j);
    if (!x->unroll) hk_build_end_repeat(x->b);
    at = end - 1;
  }
}

static void vary_add_lane(vary_lane *x, unsigned lane, unsigned first_channel) {
  const hk_link_need *l = hk_program_links(x->from);
  hk_build_lane(x->b);
  for (uint32_t k = 0; k < x->from->nlinks; k++) {
    if (l[k].lane != lane) continue;
    hk_build_channel(x->b, first_channel + l[k].channel);
    x->links[k] = hk_build_link(x->b, (hk_link_kind)l[k].kind, vary_rank(x->v, l[k].peer));
  }
  vary_instrs(x, &hk_program_lanes(x->from)[lane]);
}

/* Whose program the rank runs in a variation. */
static int vary_source(const hk_variation *v, int nranks, int rank) {
  for (int r = 0; r < nranks; r++)
    if (vary_rank(v, r) == rank) return r;
  return rank;
}

typedef struct vary_size {
  unsigned parts, channels, scratch;
} vary_size;

static hk_status vary_measure(const hk_variation *parts, int nparts, vary_size *out) {
  const hk_program *first = parts[0].programs[0];
  uint64_t blocks = 0, scratch = 0, channels = 0;
  for (int i = 0; i < nparts; i++) {
    uint64_t own = 0, span = 1;
    for (int r = 0; r < first->nranks; r++) {
      const hk_program *p = parts[i].programs[r];
      if (p->scratch_blocks > own) own = p->scratch_blocks;
      if (p->traits.span > span) span = p->traits.span;
    }
    own *= parts[i].pieces;
    blocks += (uint64_t)vary_parts(parts[i].programs[0]) * vary_width(&parts[i]);
    channels += span * parts[i].copies;
    if (own > scratch) scratch = own;
  }
  const uint64_t messages = first->partition == HK_PART_WHOLE ? first->nranks : 1;
  if (blocks * messages > INT16_MAX || scratch > INT16_MAX || channels > HK_CHANNELS)
    return HK_FAIL(HK_ERR_ARGUMENT, "a program of %llu blocks and %llu channels is too large",
                   (unsigned long long)(blocks * messages), (unsigned long long)channels);
  *out = (vary_size){(unsigned)blocks, (unsigned)channels, (unsigned)scratch};
  return HK_OK;
}

static void vary_add(vary_lane *x, unsigned *channel) {
  unsigned span = 1;
  for (int r = 0; r < x->from->nranks; r++)
    if (x->v->programs[r]->traits.span > span) span = x->v->programs[r]->traits.span;
  for (x->copy = 0; x->copy < x->v->copies; x->copy++, *channel += span)
    for (unsigned lane = 0; lane < x->from->nlanes; lane++) vary_add_lane(x, lane, *channel);
}

static hk_status vary_build(hk_program **out, const char *name, const hk_variation *parts, int nparts, int rank,
                            const vary_size *size) {
  hk_status rc = HK_OK;
  const hk_program *first = parts[0].programs[0];
  const hk_build what = {
      .coll = (hk_coll)first->coll, .rank = rank, .nranks = first->nranks, .root = first->root, .layout = NULL};
  vary_lane x = {.total = size->parts};
  unsigned channel = 0;
  HK_OR_RETURN(hk_builder_new(&x.b, &what));
  if (first->partition == HK_PART_SPLIT)
    hk_build_split(x.b, size->parts);
  else
    hk_build_parts(x.b, size->parts);
  hk_build_scratch(x.b, size->scratch);
  hk_build_span(x.b, size->channels);
  x.operands = malloc(MOST_OPERANDS * sizeof *x.operands);
  if (!x.operands) rc = HK_FAIL_ERRNO("no memory for a program of %d ranks", first->nranks);
  for (int i = 0; i < nparts && rc == HK_OK; i++) {
    x.v = &parts[i];
    x.from = parts[i].programs[vary_source(&parts[i], first->nranks, rank)];
    x.unroll = nparts > 1 || (parts[i].place && first->partition == HK_PART_WHOLE);
    x.links = calloc(x.from->nlinks + 1, sizeof *x.links);
    if (!x.links) rc = HK_FAIL_ERRNO("no memory for a program of %d ranks", first->nranks);
    if (rc == HK_OK) vary_add(&x, &channel);
    free(x.links);
    x.base += vary_parts(x.from) * vary_width(x.v);
  }
  free(x.operands);
  const hk_status built = hk_builder_finish(x.b, name, out);
  return rc == HK_OK ? built : rc;
}

hk_status hk_vary(hk_program ***out, const char *name, const hk_variation *parts, int nparts) {
  hk_status rc = HK_OK;
  const int nranks = parts[0].programs[0]->nranks;
  vary_size size = {.parts = 1};
  *out = NULL;
  HK_OR_RETURN(vary_measure(parts, nparts, &size));
  hk_program **p = calloc((size_t)nranks, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for the programs of %d ranks", nranks);
  for (int r = 0; r < nranks; r++) HK_TRY(vary_build(&p[r], name, parts, nparts, r, &size), out);
  *out = p;
  return HK_OK;
out:
  hk_proof_free(p, nranks);
  return rc;
}
