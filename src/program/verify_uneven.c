/* SPDX-License-Identifier: Apache-2.0 */
/* Uneven collectives: an instruction moves the length of the block that it names, for any lengths. So no two lengths
 * count as equal here. With options.lengths the run gives each length a random number of waves: a skipped instruction
 * must not break the order of the others. */
#include "verify_internal.h"

static uint32_t verify_uneven_length_of(const hk_program *p, unsigned rank, unsigned block) {
  return hk_coll_reduces((hk_coll)p->coll) ? block : (uint32_t)rank << 16 | block;
}

static uint32_t verify_uneven_length_of_output(const hk_program *p, unsigned block) {
  int from, part;
  hk_coll_source((hk_coll)p->coll, p->rank, p->nranks, p->root, (int)block, &from, &part);
  return verify_uneven_length_of(p, (unsigned)from, (unsigned)part);
}

static uint32_t verify_uneven_length_of_operand(const hk_thread *t, const hk_operand *o) {
  const hk_program *p = t->program;
  unsigned block = hk_cursor_block(&t->at, p, o);
  if (o->space == HK_OUT) return verify_uneven_length_of_output(p, block);
  if (o->space == HK_IN) return verify_uneven_length_of(p, p->rank, block);
  if (o->space != HK_LINK || hk_coll_pairs((hk_coll)p->coll)) return HK_NO_LENGTH;
  return p->out_blocks > p->in_blocks ? verify_uneven_length_of_output(p, block)
                                      : verify_uneven_length_of(p, p->rank, block);
}

uint32_t hk_length_of_move(const hk_thread *t, const hk_instr *i, const hk_operand *o) {
  return i->ndst && i->nsrc ? verify_uneven_length_of_operand(t, hk_uneven_operand(i, o)) : HK_NO_LENGTH;
}

hk_status hk_length_check_operands(hk_verifier *v, const hk_thread *t, const hk_instr *i, const hk_operand *o) {
  uint32_t length = hk_length_of_move(t, i, o);
  if (length == HK_NO_LENGTH)
    return hk_fault_here(v, t, "it names no block of input or output, so its rank does not know how much it moves");
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++)
    if ((o[k].space == HK_IN || o[k].space == HK_OUT) && verify_uneven_length_of_operand(t, &o[k]) != length)
      return hk_fault_here(v, t, "two of its operands are blocks that may differ in length");
  return HK_OK;
}

hk_status hk_length_check_value(hk_verifier *v, const hk_thread *t, uint32_t length, hk_value x) {
  char text[HK_VALUE_TEXT];
  if (verify_uneven_length_of(t->program, hk_value_index(x), hk_value_block(x)) == length) return HK_OK;
  return hk_fault_here(v, t, "a source holds %s, whose length may be another than that of the block that it names",
                       hk_value_text(v, x, text));
}

bool hk_length_reaches(const hk_verifier *v, uint32_t length, uint64_t wave) {
  if (wave == 0 || !v->uneven || !v->options.lengths) return true;
  uint64_t h = (v->options.lengths ^ (uint64_t)length * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
  return wave < (h >> 33) % (v->options.waves + 1);
}

bool hk_length_reaches_output(const hk_verifier *v, const hk_program *p, unsigned block, uint64_t wave) {
  return !v->uneven || hk_length_reaches(v, verify_uneven_length_of_output(p, block), wave);
}
