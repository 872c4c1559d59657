/* SPDX-License-Identifier: Apache-2.0 */
/* A program as JSON, for other tools. */
#include "program_internal.h"

static void json_write_operand(const hk_program *p, const hk_operand *o, FILE *to) {
  if (o->space == HK_LINK && o->link < p->nlinks)
    fprintf(to, "{\"space\":\"%s\",\"link\":%u,", hk_link_word(hk_program_links(p)[o->link].kind), o->link);
  else
    fprintf(to, "{\"space\":\"%s\",", o->space < HK_LINK ? hk_space_words[o->space] : "unknown");
  fprintf(to, "\"block\":%u", o->block);
  if (o->stride) fprintf(to, ",\"stride\":%d", o->stride);
  if (o->flags & HK_OPERAND_STEP) fputs(",\"step\":true", to);
  fputc('}', to);
}

static void json_write_operands(const hk_program *p, const char *name, const hk_operand *o, unsigned n, FILE *to) {
  fprintf(to, "\"%s\":[", name);
  for (unsigned k = 0; k < n; k++) {
    if (k) fputc(',', to);
    json_write_operand(p, &o[k], to);
  }
  fputc(']', to);
}

static void json_write_instr(const hk_program *p, const hk_instr *i, FILE *to) {
  if (i->op == HK_OP_REPEAT) {
    fprintf(to, "{\"repeat\":%u,\"body\":%u}", i->repeat.count, i->repeat.body);
    return;
  }
  const hk_operand *o = hk_instr_operands(p, i);
  fputc('{', to);
  json_write_operands(p, "to", o, i->ndst, to);
  fputc(',', to);
  json_write_operands(p, "from", o + i->ndst, i->nsrc, to);
  if (i->flags & HK_INSTR_FINAL) fputs(",\"final\":true", to);
  if (i->flags & HK_INSTR_COPY) fputs(",\"copy\":true", to);
  if (i->flags & HK_INSTR_IN_SWITCH) fputs(",\"in_switch\":true", to);
  fputc('}', to);
}

void hk_program_json(const hk_program *p, FILE *to) {
  fprintf(to, "{\"collective\":\"%s\",\"algorithm\":\"%s\",\"rank\":%u,\"ranks\":%u,\"root\":%u,\"split\":%s,",
          hk_coll_name((hk_coll)p->coll), p->algorithm, p->rank, p->nranks, p->root,
          p->partition == HK_PART_SPLIT ? "true" : "false");
  fprintf(to, "\"blocks\":{\"in\":%u,\"out\":%u,\"scratch\":%u},\n \"links\":[", p->in_blocks, p->out_blocks,
          p->scratch_blocks);
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *l = &hk_program_links(p)[k];
    fprintf(to, "%s{\"kind\":\"%s\",\"peer\":%u,\"lane\":%u,\"channel\":%u}", k ? ",\n  " : "", hk_link_word(l->kind),
            l->peer, l->lane, l->channel);
  }
  fputs("],\n \"lanes\":[", to);
  for (unsigned lane = 0; lane < p->nlanes; lane++) {
    const hk_lane *l = &hk_program_lanes(p)[lane];
    fputs(lane ? ",\n  [" : "[", to);
    for (uint32_t k = 0; k < l->count; k++) {
      if (k) fputs(",\n   ", to);
      json_write_instr(p, &hk_program_instrs(p)[l->first + k], to);
    }
    fputc(']', to);
  }
  fputs("]}\n", to);
}
