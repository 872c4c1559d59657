/* SPDX-License-Identifier: Apache-2.0 */
/* Names and properties of collectives; programs in memory and as text (program.h). */
#include "program.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h> /* strncasecmp */
#include "cursor.h"
#include "program_internal.h"

/* clang-format off */
const char *hk_coll_name(hk_coll c) {
  static const char *const names[] = {
#define HK_COLL(id, name, ...) name,
#include "coll.def"
    [HK_SENDRECV] = "SendRecv"};
  return (size_t)c < HK_ARRAY_LENGTH(names) ? names[c] : "unknown collective";
}

hk_coll hk_coll_by_name(const char *name, size_t n) {
  hk_coll c = (hk_coll)0;
  while (c < HK_COLL_COUNT && (strlen(hk_coll_name(c)) != n || strncasecmp(hk_coll_name(c), name, n))) c++;
  return c;
}

double hk_coll_bus_factor(hk_coll c, int n) {
  switch (c) {
#define HK_COLL(id, name, reduces, root, whole, in, out, in_root, out_root, bus, ...) case HK_##id: return bus;
#include "coll.def"
    case HK_SENDRECV: return 1.0;
  }
  return 1.0;
}

int hk_coll_alias(hk_coll c, int rank, int n, int root, int block) {
  (void)n; /* a row of coll.def may not use it */
  switch (c) {
#define HK_COLL(id, name, reduces, root_, whole, in, out, in_root, out_root, bus, alias, ...)                          \
  case HK_##id: return alias;
#include "coll.def"
    case HK_SENDRECV: return -1;
  }
  return -1;
}

void hk_coll_source(hk_coll c, int rank, int n, int root, int block, int *from, int *part) {
  (void)n;
  *from = rank;
  *part = block;
  switch (c) {
#define HK_COLL(id, name, reduces, root_, whole, in, out, in_root, out_root, bus, alias, from_, part_, ...) \
    case HK_##id: *from = from_; *part = part_; return;
#include "coll.def"
    case HK_SENDRECV: return;
  }
}

/* A message's number becomes that of its part. */
static int program_part_of(const hk_program *p, int message, int block) {
  const int parts = p->partition == HK_PART_SPLIT ? 1 : (int)hk_program_parts(p);
  return message * parts + block % parts;
}

static int program_message_of(const hk_program *p, int block) {
  return p->partition == HK_PART_SPLIT ? block : block / (int)hk_program_parts(p);
}

int hk_program_alias(const hk_program *p, int rank, int block) {
  const int same = hk_coll_alias((hk_coll)p->coll, rank, p->nranks, p->root, program_message_of(p, block));
  return same < 0 ? same : program_part_of(p, same, block);
}

void hk_program_source(const hk_program *p, int rank, int block, int *from, int *part) {
  hk_coll_source((hk_coll)p->coll, rank, p->nranks, p->root, program_message_of(p, block), from, part);
  *part = program_part_of(p, *part, block);
}

hk_coll hk_coll_plain(hk_coll c) {
  switch (c) {
#define HK_COLL(id, name, reduces, root_, whole, in, out, in_root, out_root, bus, alias, from, part, plain) \
    case HK_##id: return HK_##plain;
#include "coll.def"
    case HK_SENDRECV: return c;
  }
  return c;
}
/* clang-format on */

/* Whole messages are numbered by rank, if a space has one of each rank. */
static void program_turn_operand(const hk_program *p, hk_operand *o, int by) {
  const unsigned blocks = hk_space_blocks(p, (hk_space)o->space), parts = hk_program_parts(p);
  if (o->space != HK_SCRATCH && blocks == p->nranks * parts) o->block = (o->block + (unsigned)by * parts) % blocks;
}

hk_status hk_program_turn(const hk_program *p, int by, hk_program **out) {
  hk_program *q = *out = malloc(p->bytes);
  if (!q) return HK_FAIL(HK_ERR_SYSTEM, "Out of memory for a program of %zu bytes", p->bytes);
  memcpy(q, p, p->bytes);
  if (by % p->nranks == 0) return HK_OK;
  q->rank = (p->rank + by) % p->nranks;
  q->root = (p->root + by) % p->nranks;
  hk_link_need *links = (hk_link_need *)((char *)q + q->links_at);
  for (uint32_t i = 0; i < q->nlinks; i++) links[i].peer = (unsigned)((links[i].peer + by) % q->nranks);
  if (q->partition == HK_PART_SPLIT) return HK_OK;
  hk_instr *instrs = (hk_instr *)((char *)q + q->instrs_at);
  for (uint32_t i = 0; i < q->ninstrs; i++)
    for (unsigned k = 0; instrs[i].op == HK_OP_MOVE && !(instrs[i].flags & HK_INSTR_TABLE) && k < HK_INLINE_OPERANDS;
         k++)
      program_turn_operand(q, &instrs[i].inline_operands[k], by);
  hk_operand *table = (hk_operand *)((char *)q + q->operands_at);
  for (uint32_t i = 0; i < q->noperands; i++) program_turn_operand(q, &table[i], by);
  return HK_OK;
}

void hk_program_free(hk_program *p) { free(p); }

static void program_place(hk_program *p, uint32_t *at, size_t *used, const void *from, size_t bytes) {
  *at = (uint32_t)*used;
  if (bytes) memcpy((char *)p + *used, from, bytes);
  *used = hk_round_up(*used + bytes, 8);
}

/* Programs are compared and hashed as bytes. A compiler may leave anything in the bytes of a union that the member
 * written last does not have. */
static void program_clear_unused(hk_program *p) {
  hk_instr *i = (hk_instr *)((char *)p + p->instrs_at), *end = i + p->ninstrs;
  for (; i < end; i++) {
    const size_t used = i->op == HK_OP_REPEAT       ? sizeof i->repeat
                        : i->flags & HK_INSTR_TABLE ? sizeof i->table
                                                    : ((size_t)i->ndst + i->nsrc) * sizeof(hk_operand);
    if (used < sizeof i->inline_operands)
      memset((char *)i->inline_operands + used, 0, sizeof i->inline_operands - used);
  }
}

hk_status hk_program_assemble(const hk_program *head, const hk_lane *lanes, const hk_link_need *links,
                              const hk_instr *instrs, const hk_operand *operands, hk_program **out) {
  size_t used = hk_round_up(sizeof *head, 8);
  size_t bytes = used + hk_round_up(head->nlanes * sizeof *lanes, 8) + head->ninstrs * sizeof *instrs +
                 head->noperands * sizeof *operands + hk_round_up(head->nlinks * sizeof *links, 8);
  hk_program *p = bytes > UINT32_MAX ? NULL : calloc(1, bytes);
  *out = p;
  if (!p) return HK_FAIL(HK_ERR_SYSTEM, "Out of memory for a program of %zu bytes", bytes);
  *p = *head;
  p->bytes = bytes;
  program_place(p, &p->lanes_at, &used, lanes, head->nlanes * sizeof *lanes);
  program_place(p, &p->instrs_at, &used, instrs, head->ninstrs * sizeof *instrs);
  program_place(p, &p->operands_at, &used, operands, head->noperands * sizeof *operands);
  program_place(p, &p->links_at, &used, links, head->nlinks * sizeof *links);
  program_clear_unused(p);
  p->traits = hk_traits_of(p);
  return HK_OK;
}

void hk_program_draft_move(hk_program_draft *p, hk_instr *i, uint32_t first) {
  const uint32_t n = p->head.noperands - first;
  if (n > HK_INLINE_OPERANDS) {
    i->flags |= HK_INSTR_TABLE;
    i->table = first;
  } else if (n) {
    memcpy(i->inline_operands, p->operands + first, n * sizeof *p->operands);
    p->head.noperands = first;
  }
}

hk_status hk_program_draft_assemble(const hk_program_draft *p, hk_program **out) {
  return hk_program_assemble(&p->head, p->lanes, p->links, p->instrs, p->operands, out);
}

void hk_program_draft_free(hk_program_draft *p) {
  free(p->lanes);
  free(p->links);
  free(p->instrs);
  free(p->operands);
}

const char *const hk_link_words[HK_LINK_KINDS] = {
    [HK_LINK_SEND] = "send",
    [HK_LINK_RECV] = "recv",
    [HK_LINK_MCAST_SEND] = "mcast",
    [HK_LINK_MCAST_RECV] = "mcast-recv",
    [HK_LINK_SUM_SEND] = "sum",
    [HK_LINK_SUM_RECV] = "sum-recv",
    [HK_LINK_GATHER_SEND] = "gather",
    [HK_LINK_GATHER_RECV] = "gather-recv",
    [HK_LINK_SCATTER_SEND] = "scatter",
    [HK_LINK_SCATTER_RECV] = "scatter-recv",
};
const char *const hk_space_words[3] = {[HK_IN] = "in", [HK_OUT] = "out", [HK_SCRATCH] = "scratch"};

const char *hk_link_word(unsigned kind) {
  return kind < HK_ARRAY_LENGTH(hk_link_words) ? hk_link_words[kind] : "bad-link";
}

/* "send(5)[b2-1j]"; "send(5@1)[b2]" if the channel is not the lane's; a stepping operand names its links: "send(link
 * 3+j)[b0]". */
static void program_dump_operand(const hk_program *p, const hk_operand *o, FILE *to) {
  if (o->space == HK_LINK) {
    const hk_link_need *l = o->link < p->nlinks ? &hk_program_links(p)[o->link] : NULL;
    fputs(l ? hk_link_word(l->kind) : "bad-link", to);
    if (o->flags & HK_OPERAND_STEP || !l)
      fprintf(to, "(link %u%s)", o->link, o->flags & HK_OPERAND_STEP ? "+j" : "");
    else if (l->channel != l->lane)
      fprintf(to, "(%u@%u)", l->peer, l->channel);
    else
      fprintf(to, "(%u)", l->peer);
  } else {
    fputs(o->space < HK_ARRAY_LENGTH(hk_space_words) ? hk_space_words[o->space] : "bad-space", to);
  }
  fprintf(to, "[b%u", o->block);
  if (o->stride) fprintf(to, "%+dj", o->stride);
  fputc(']', to);
}

static void program_dump_operands(const hk_program *p, const hk_operand *o, unsigned n, const char *separator,
                                  FILE *to) {
  if (n == 0) fputs("none", to);
  for (unsigned k = 0; k < n; k++) {
    if (k) fputs(separator, to);
    program_dump_operand(p, &o[k], to);
  }
}

void hk_program_dump_instr(const hk_program *p, uint32_t at, FILE *to) {
  const hk_instr *i = &hk_program_instrs(p)[at];
  if (i->op == HK_OP_REPEAT) {
    fprintf(to, "repeat the next %u, %u times", i->repeat.body, i->repeat.count);
    return;
  }
  uint32_t n = (uint32_t)i->ndst + i->nsrc;
  if (i->flags & HK_INSTR_TABLE ? i->table > p->noperands || n > p->noperands - i->table : n > HK_INLINE_OPERANDS) {
    fputs("bad operands", to);
    return;
  }
  const hk_operand *o = hk_instr_operands(p, i);
  program_dump_operands(p, o, i->ndst, ", ", to);
  fputs(" <- ", to);
  program_dump_operands(p, o + i->ndst, i->nsrc, " + ", to);
  if (i->flags & HK_INSTR_FINAL) fputs(", final", to);
  if (i->flags & HK_INSTR_COPY) fputs(", copy", to);
  if (i->flags & HK_INSTR_IN_SWITCH) fputs(", in switch", to);
}

static void program_dump_lane(const hk_program *p, unsigned lane, FILE *to) {
  const hk_lane *l = &hk_program_lanes(p)[lane];
  fprintf(to, "lane %u\n  links:", lane);
  for (uint32_t k = 0; k < p->nlinks; k++) {
    const hk_link_need *n = &hk_program_links(p)[k];
    if (n->lane != lane) continue;
    fprintf(to, " %u=%s(%u", k, hk_link_word(n->kind), n->peer);
    if (n->channel != lane) fprintf(to, "@%u", n->channel);
    fputc(')', to);
  }
  fputc('\n', to);
  uint32_t body_end = 0;
  for (uint32_t k = l->first; k < l->first + l->count; k++) {
    const hk_instr *i = &hk_program_instrs(p)[k];
    fprintf(to, "  %4u: %s", k, k < body_end ? "  " : "");
    hk_program_dump_instr(p, k, to);
    fputc('\n', to);
    if (i->op == HK_OP_REPEAT) body_end = k + 1 + i->repeat.body;
  }
}

void hk_program_dump(const hk_program *p, FILE *to) {
  fprintf(to, "%s %s, rank %u of %u", hk_coll_name((hk_coll)p->coll), p->algorithm, p->rank, p->nranks);
  if (hk_coll_has_root((hk_coll)p->coll)) fprintf(to, ", root %u", p->root);
  if (p->partition == HK_PART_SPLIT)
    fprintf(to, ", message split into %u", p->blocks);
  else
    fprintf(to, ", messages in %u out %u", p->in_blocks, p->out_blocks);
  fprintf(to, ", scratch %u, lanes %u, links %u, instructions %u\n", p->scratch_blocks, p->nlanes, p->nlinks,
          p->ninstrs);
  for (unsigned lane = 0; lane < p->nlanes; lane++) program_dump_lane(p, lane, to);
}

int hk_program_link_in_switch(const hk_program *p, unsigned link) {
  const uint8_t kind = hk_program_links(p)[link].kind;
  hk_scan s = {.end = p->ninstrs};
  if (kind == HK_LINK_MCAST_SEND || kind == HK_LINK_MCAST_RECV) return 1;
  for (const hk_instr *i; p->traits.in_switch && (i = hk_scan_next(&s, hk_program_instrs(p)));) {
    const hk_operand *o = hk_instr_operands(p, i);
    for (unsigned k = 0; i->flags & HK_INSTR_IN_SWITCH && k < (unsigned)i->ndst + i->nsrc; k++)
      if (o[k].space == HK_LINK && link >= o[k].link && link - o[k].link < (o[k].flags & HK_OPERAND_STEP ? s.times : 1))
        return 1;
  }
  return 0;
}
