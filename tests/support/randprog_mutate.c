/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "randprog.h"

/* The programs are the tester's own, so their arrays may be changed where they stand. */
typedef struct target {
  uint64_t *seed;
  hk_program *p;
  hk_instr *i; /* a MOVE, or a REPEAT where the change asks for one */
  hk_operand *operands;
  uint32_t at;
  unsigned lane;
} target;

static unsigned roll(target *t, unsigned n) { return random_below(t->seed, n); }
static hk_instr *instrs(hk_program *p) { return (hk_instr *)((char *)p + p->instrs_at); }
static hk_lane *lanes(hk_program *p) { return (hk_lane *)((char *)p + p->lanes_at); }

/* A random operand of one space among n; NULL where there is none. */
static hk_operand *pick(target *t, hk_operand *o, unsigned n, unsigned space) {
  unsigned found = 0;
  hk_operand *chosen = NULL;
  for (unsigned k = 0; k < n; k++)
    if (o[k].space == space && roll(t, ++found) == 0) chosen = &o[k];
  return chosen;
}
static hk_operand *pick_any(target *t, unsigned space) {
  return pick(t, t->operands, (unsigned)t->i->ndst + t->i->nsrc, space);
}

static bool other_block(target *t, unsigned space) {
  hk_operand *o = pick_any(t, space);
  unsigned n = hk_space_blocks(t->p, (hk_space)space);
  if (!o || n < 2) return false;
  o->block = (o->block + 1 + roll(t, n - 1)) % n;
  return true;
}
static bool other_input(target *t) { return other_block(t, HK_IN); }
static bool other_output(target *t) { return other_block(t, HK_OUT); }
static bool other_link_block(target *t) { return other_block(t, HK_LINK); }
static bool other_scratch(target *t) { return other_block(t, HK_SCRATCH); }

static bool other_link(target *t) {
  hk_operand *o = pick_any(t, HK_LINK);
  const hk_link_need *l = hk_program_links(t->p);
  if (!o || o->flags) return false;
  uint32_t k = roll(t, t->p->nlinks);
  if (k == o->link || l[k].kind != l[o->link].kind || l[k].lane != l[o->link].lane) return false;
  o->link = k;
  return true;
}

static bool other_peer(target *t) {
  hk_operand *o = pick_any(t, HK_LINK);
  if (!o || t->p->nranks < 3) return false;
  hk_link_need *l = (hk_link_need *)((char *)t->p + t->p->links_at) + o->link;
  if (l->kind == HK_LINK_MCAST_SEND) return false;
  l->peer = (l->peer + 1u) % (unsigned)t->p->nranks;
  return true;
}

static bool other_final(target *t) {
  if (!hk_coll_reduces((hk_coll)t->p->coll)) return false;
  t->i->flags ^= HK_INSTR_FINAL;
  return true;
}

static void take_out(target *t, unsigned operand) {
  unsigned n = (unsigned)t->i->ndst + t->i->nsrc;
  memmove(t->operands + operand, t->operands + operand + 1, (n - operand - 1) * sizeof *t->operands);
}
static bool drop_source(target *t) {
  if (t->i->nsrc < 2) return false;
  take_out(t, t->i->ndst + roll(t, t->i->nsrc));
  t->i->nsrc--;
  return true;
}
static bool drop_destination(target *t) {
  if (t->i->ndst < 2) return false;
  take_out(t, roll(t, t->i->ndst));
  t->i->ndst--;
  return true;
}
static bool source_twice(target *t) {
  if (t->i->nsrc < 2) return false;
  t->operands[t->i->ndst] = t->operands[t->i->ndst + 1 + roll(t, t->i->nsrc - 1u)];
  return true;
}

/* The repeat around the instruction, or NULL. */
static hk_instr *repeat_around(const target *t) {
  for (uint32_t k = lanes(t->p)[t->lane].first; k < t->at; k++) {
    hk_instr *i = &instrs(t->p)[k];
    if (i->op == HK_OP_REPEAT && k + i->repeat.body >= t->at) return i;
  }
  return NULL;
}

static bool drop_instr(target *t) {
  hk_program *p = t->p;
  hk_instr *around = repeat_around(t);
  uint32_t n = 1, at = t->at;
  if (around && --around->repeat.body == 0) n = 2, at--;
  memmove(instrs(p) + at, instrs(p) + at + n, (p->ninstrs - at - n) * sizeof *t->i);
  p->ninstrs -= n;
  lanes(p)[t->lane].count -= n;
  for (unsigned l = t->lane + 1; l < p->nlanes; l++) lanes(p)[l].first -= n;
  return true;
}

static bool repeat_less(target *t) {
  hk_instr *around = repeat_around(t);
  if (!around) return false;
  around->repeat.count--;
  return true;
}

/* ---- changes that may be harmless ---- */

static bool swap_neighbours(target *t) {
  const hk_lane *l = &lanes(t->p)[t->lane];
  if (t->at + 1 == l->first + l->count || t->i[1].op != HK_OP_MOVE) return false;
  target next = *t;
  next.at++;
  if (repeat_around(t) != repeat_around(&next)) return false;
  hk_instr swap = t->i[0];
  t->i[0] = t->i[1];
  t->i[1] = swap;
  return true;
}
static bool to_reference(target *t) {
  if (!(t->i->flags & HK_INSTR_COPY)) return false;
  t->i->flags &= (uint8_t)~HK_INSTR_COPY;
  return true;
}
/* All of a scratch buffer's uses in a lane go to an output block instead. */
static bool scratch_to_output(target *t) {
  hk_operand *o = pick_any(t, HK_SCRATCH);
  hk_coll coll = (hk_coll)t->p->coll;
  if (!o || o->stride || !hk_coll_has_output(coll, t->p->rank, t->p->root)) return false;
  unsigned which = o->block, block = roll(t, t->p->out_blocks);
  const hk_lane *l = &lanes(t->p)[t->lane];
  for (uint32_t k = l->first; k < l->first + l->count; k++) {
    hk_instr *i = &instrs(t->p)[k];
    if (i->op != HK_OP_MOVE) continue;
    hk_operand *p = (hk_operand *)hk_instr_operands(t->p, i);
    for (unsigned n = (unsigned)i->ndst + i->nsrc; n; n--, p++)
      if (p->space == HK_SCRATCH && p->block == which && !p->stride) *p = (hk_operand){.space = HK_OUT, .block = block};
  }
  return true;
}
/* An output block is sent from, and then written, once more than needed: by reference, if nothing forbids it. */
static bool input_for_output(target *t) {
  hk_operand *o = pick(t, t->operands + t->i->ndst, t->i->nsrc, HK_OUT);
  if (!o || !hk_coll_has_input((hk_coll)t->p->coll, t->p->rank, t->p->root)) return false;
  o->space = HK_IN;
  if (o->block >= t->p->in_blocks) o->block = 0;
  return true;
}

typedef struct change {
  const char *words;
  bool (*make)(target *t);
} change;
static const change breaks[] = {{"an instruction dropped", drop_instr},
                                {"a source dropped", drop_source},
                                {"a destination dropped", drop_destination},
                                {"a source twice, another not at all", source_twice},
                                {"final where it was not, or not where it was", other_final},
                                {"another input block", other_input},
                                {"another output block", other_output},
                                {"another block on a link", other_link_block},
                                {"another scratch buffer", other_scratch},
                                {"another link", other_link},
                                {"another peer", other_peer},
                                {"a repeat once less", repeat_less}};
static const change shakes[] = {{"neighbours swapped", swap_neighbours},
                                {"a copy turned into a reference", to_reference},
                                {"scratch moved to the output", scratch_to_output},
                                {"the input read instead of the output", input_for_output}};

static const char *apply(randprog *r, uint64_t seed, const change *changes, unsigned n) {
  target t = {.seed = &seed};
  for (unsigned tries = 0; tries < 1000; tries++) {
    t.p = r->programs[roll(&t, (unsigned)r->nranks)];
    t.lane = roll(&t, t.p->nlanes);
    const hk_lane *l = &lanes(t.p)[t.lane];
    if (!l->count) continue;
    t.at = l->first + roll(&t, l->count);
    t.i = &instrs(t.p)[t.at];
    if (t.i->op != HK_OP_MOVE) continue;
    t.operands = (hk_operand *)hk_instr_operands(t.p, t.i);
    const change *c = &changes[roll(&t, n)];
    if (c->make(&t)) return c->words;
  }
  return NULL;
}

const char *randprog_break(randprog *p, uint64_t seed) { return apply(p, seed, breaks, HK_ARRAY_LENGTH(breaks)); }
const char *randprog_shake(randprog *p, uint64_t seed) { return apply(p, seed, shakes, HK_ARRAY_LENGTH(shakes)); }
