/* SPDX-License-Identifier: Apache-2.0 */
/* What a program does, without running it (hk_traits). */
#include <stdbool.h>
#include "cursor.h"
#include "program_internal.h"

/* The kind of the operand's link; -1 if it is on no link, or if the program's text names one that does not exist. */
static int summary_kind(const hk_program *p, const hk_operand *o) {
  return o->space == HK_LINK && o->link < p->nlinks ? hk_program_links(p)[o->link].kind : -1;
}

static void summary_links(const hk_program *p, hk_traits *t) {
  t->span = 1;
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    if (l->channel >= t->span) t->span = (uint16_t)(l->channel + 1);
    t->multicasts |= l->kind == HK_LINK_MCAST_SEND || l->kind == HK_LINK_MCAST_RECV;
    t->in_groups |= hk_link_in_group((hk_link_kind)l->kind);
    t->in_rounds |= hk_link_in_rounds((hk_link_kind)l->kind);
  }
}

/* Blocks that one execution of the instruction reads and writes. */
static unsigned summary_moves(const hk_instr *i, const hk_operand *o, bool by_reference) {
  unsigned moves = 0, kept = 0; /* kept: operands that hold the value until the operation ends */
  if (!i->ndst || !i->nsrc) return 0;
  for (unsigned k = 0; k < i->ndst; k++) kept += o[k].space == HK_OUT;
  if (i->nsrc == 1) kept += o[i->ndst].space == HK_IN || o[i->ndst].space == HK_OUT;
  if (i->flags & HK_INSTR_COPY) kept = 0;
  for (unsigned k = 0; k < i->ndst; k++) moves += o[k].space != HK_LINK || !by_reference || !kept;
  return moves ? moves + i->nsrc : 0; /* if all is sent by reference, the value is not read */
}

/* The slots of multicasts that the instruction, run `times` times, moves unchanged to outputs; -1: it uses such a slot
 * in another way. */
static int64_t summary_landing(const hk_program *p, const hk_instr *i, const hk_operand *o, uint32_t times) {
  int64_t landing = 0;
  for (unsigned k = i->ndst; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (summary_kind(p, &o[k]) != HK_LINK_MCAST_RECV) continue;
    if (i->ndst != 1 || !hk_instr_lands(i, o) || (times > 1 && !(o[k].flags & HK_OPERAND_STEP))) return -1;
    landing += times;
  }
  return landing;
}

/* The number of landing slots equals that of receiving links, and the verifier has proved that every link has a
 * receive: so each link has one. */
static bool summary_places(const hk_program *p, int64_t landing) {
  uint32_t sends = 0, receives = 0;
  for (uint32_t k = 0; k < p->nlinks; k++) {
    sends += hk_program_links(p)[k].kind == HK_LINK_MCAST_SEND;
    receives += hk_program_links(p)[k].kind == HK_LINK_MCAST_RECV;
  }
  return sends && receives && landing == receives;
}

static bool summary_one_shot(const hk_program *p) {
  if (p->nlanes != 1 || p->ninstrs != 2 || p->blocks != 1 || !hk_coll_reduces((hk_coll)p->coll)) return false;
  const hk_instr *send = hk_program_instrs(p), *sum = send + 1;
  if (send->op != HK_OP_MOVE || (send->flags & ~HK_INSTR_TABLE) != HK_INSTR_COPY || send->nsrc != 1) return false;
  if (sum->op != HK_OP_MOVE || (sum->flags & ~HK_INSTR_TABLE) != HK_INSTR_FINAL || sum->ndst != 1) return false;
  const hk_operand *to = hk_instr_operands(p, send), *at = hk_instr_operands(p, sum);
  unsigned inputs = 0;
  for (unsigned k = 0; k < send->ndst; k++)
    if (summary_kind(p, &to[k]) != HK_LINK_SEND) return false;
  for (unsigned k = 1; k <= sum->nsrc; k++) {
    if (at[k].space != HK_IN && summary_kind(p, &at[k]) != HK_LINK_RECV) return false;
    inputs += at[k].space == HK_IN;
  }
  return to[send->ndst].space == HK_IN && at[0].space == HK_OUT && inputs == 1;
}

hk_traits hk_traits_of(const hk_program *p) {
  hk_traits t = {.max_operands = 1};
  hk_scan s = {.end = p->ninstrs};
  int64_t landing = 0;
  summary_links(p, &t);
  for (const hk_instr *i; (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    const unsigned operands = (unsigned)i->ndst + i->nsrc;
    if (operands > t.max_operands) t.max_operands = (uint16_t)operands;
    t.in_switch |= (i->flags & HK_INSTR_IN_SWITCH) != 0;
    t.moves += s.times * summary_moves(i, o, false);
    t.moves_by_reference += s.times * summary_moves(i, o, true);
    const int64_t more = summary_landing(p, i, o, s.times);
    landing = landing < 0 || more < 0 ? -1 : landing + more;
  }
  t.one_shot = summary_one_shot(p);
  t.places = summary_places(p, landing);
  return t;
}
