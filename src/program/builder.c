/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a program from calls that append lanes, links and instructions (builder.h). */
#include "builder.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "cursor.h"
#include "program_internal.h" /* hk_program_assemble */

/* Every limit below is the width of a field of the program format. */
enum { MAX_U8 = 255, MAX_U16 = 65535, MAX_LANES = 255, LINK_KINDS = HK_LINK_KINDS };

struct hk_builder {
  hk_build what;
  hk_status error; /* the first error; HK_OK if there is none */
  unsigned split, parts, scratch, span;
  bool in_switch;

  hk_lane *lanes;
  hk_link_need *links;
  hk_instr *instrs;
  hk_operand *operands;
  size_t nlanes, nlinks, ninstrs, noperands;
  size_t lanes_capacity, links_capacity, instrs_capacity, operands_capacity;
  hk_operand *to, *from; /* of the next instruction (hk_build_to, hk_build_from) */
  size_t nto, nfrom, to_capacity, from_capacity;

  /* Link index + 1 by kind, peer, channel and lane: open addressing in `table_room` entries, a power of two. */
  uint32_t *table;
  size_t table_used, table_capacity;
  unsigned channel; /* of the links made from here on */

  bool in_repeat;
  uint32_t repeat_count;
  size_t repeat_at;                  /* the REPEAT instruction, if the count is 2 or more */
  size_t links_before, table_before; /* counts to restore if the body is dropped */
};

static size_t builder_operand_count(const hk_instr *i) { return (size_t)i->ndst + i->nsrc; }

/* Makes room for `more` items in a growing array. */
#define RESERVE(b, field, more)                                                                                        \
  (HK_RESERVE((b)->field, (b)->field##_capacity, (b)->n##field + (more)) ||                                            \
   builder_no_room(b, (b)->n##field, sizeof *(b)->field))
static bool builder_no_room(hk_builder *b, size_t n, size_t bytes) {
  b->error = HK_FAIL(HK_ERR_SYSTEM, "Out of memory for a program of over %zu x %zu bytes", n, bytes);
  return false;
}

hk_status hk_builder_new(hk_builder **out, const hk_build *what) {
  *out = NULL;
  if (what->nranks > HK_RANKS_MOST)
    return HK_FAIL(HK_ERR_ARGUMENT, "A program can be for %d ranks at most, not for %d", HK_RANKS_MOST, what->nranks);
  if (what->coll > HK_SENDRECV || what->nranks < 1 || what->rank < 0 || what->rank >= what->nranks || what->root < 0 ||
      what->root >= what->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "No program can be built for collective %d, rank %d of %d, root %d",
                   (int)what->coll, what->rank, what->nranks, what->root);
  hk_builder *b = calloc(1, sizeof *b);
  if (!b) return HK_FAIL(HK_ERR_SYSTEM, "Out of memory for a program builder");
  b->what = *what;
  b->split = b->parts = 1;
  *out = b;
  return HK_OK;
}

static void builder_free(hk_builder *b) {
  free(b->lanes);
  free(b->links);
  free(b->instrs);
  free(b->operands);
  free(b->to);
  free(b->from);
  free(b->table);
  free(b);
}

void hk_build_split(hk_builder *b, unsigned blocks) {
  if (b->error) return;
  if (hk_coll_partition(b->what.coll) != HK_PART_SPLIT || blocks < 1 || blocks > HK_BLOCKS_MOST)
    b->error = HK_FAIL(blocks > HK_BLOCKS_MOST ? HK_ERR_USAGE : HK_ERR_INTERNAL, "%s cannot be split into %u blocks",
                       hk_coll_name(b->what.coll), blocks);
  else
    b->split = blocks;
}

void hk_build_parts(hk_builder *b, unsigned parts) {
  if (b->error) return;
  if (hk_coll_partition(b->what.coll) != HK_PART_WHOLE || parts < 1 || parts > MAX_U16 ||
      parts > HK_BLOCKS_MOST / (unsigned)b->what.nranks)
    b->error = HK_FAIL(parts > 1 ? HK_ERR_USAGE : HK_ERR_INTERNAL, "A message of %s cannot be divided into %u parts",
                       hk_coll_name(b->what.coll), parts);
  else
    b->parts = parts;
}

void hk_build_scratch(hk_builder *b, unsigned blocks) {
  if (b->error) return;
  if (blocks > HK_BLOCKS_MOST)
    b->error = HK_FAIL(HK_ERR_USAGE, "A program cannot have %u scratch buffers", blocks);
  else
    b->scratch = blocks;
}

void hk_build_in_switch(hk_builder *b, bool on) { b->in_switch = on; }
bool hk_builder_in_switch(const hk_builder *b) { return b->in_switch; }
int hk_builder_rank(const hk_builder *b) { return b->what.rank; }

void hk_build_span(hk_builder *b, unsigned span) { b->span = span; }

void hk_build_lane(hk_builder *b) {
  if (b->error) return;
  if (b->in_repeat || b->nlanes == MAX_LANES) {
    b->error = HK_FAIL(
        HK_ERR_INTERNAL,
        b->in_repeat ? "A repeat is open at the start of lane %zu" : "A program cannot have more than %zu lanes",
        b->nlanes);
    return;
  }
  if (!RESERVE(b, lanes, 1)) return;
  b->lanes[b->nlanes++] = (hk_lane){.first = (uint32_t)b->ninstrs};
  b->channel = (unsigned)b->nlanes - 1;
}

void hk_build_channel(hk_builder *b, unsigned channel) {
  if (b->error) return;
  if (channel > MAX_U8) {
    b->error = HK_FAIL(HK_ERR_INTERNAL, "A link cannot be on channel %u", channel);
    return;
  }
  b->channel = channel;
}

/* The link's entry in the table, or the free one that it would get. An entry whose link was dropped with a body equals
 * no link, or the link that has its index now. */
static uint32_t *builder_entry(const hk_builder *b, const hk_link_need *link) {
  const size_t mask = b->table_capacity - 1;
  size_t at = ((size_t)link->peer << 16 | (size_t)link->kind << 8 | (size_t)link->channel) * 0x9e3779b97f4a7c15u >> 32;
  for (;; at++) {
    uint32_t *entry = &b->table[at & mask];
    if (!*entry) return entry;
    const hk_link_need *l = &b->links[*entry - 1];
    if (*entry <= b->nlinks && l->peer == link->peer && l->kind == link->kind && l->channel == link->channel &&
        l->lane == link->lane)
      return entry;
  }
}

/* Keeps half of the table free. */
static bool builder_table_has_room(hk_builder *b) {
  if (2 * (b->table_used + 1) <= b->table_capacity) return true;
  const size_t capacity = b->table_capacity ? 2 * b->table_capacity : 64;
  uint32_t *table = calloc(capacity, sizeof *table);
  if (!table) return builder_no_room(b, capacity, sizeof *table);
  free(b->table);
  b->table = table;
  b->table_capacity = capacity;
  b->table_used = b->nlinks;
  for (size_t k = 0; k < b->nlinks; k++) *builder_entry(b, &b->links[k]) = (uint32_t)k + 1;
  return true;
}

unsigned hk_build_link(hk_builder *b, hk_link_kind kind, int peer) {
  if (b->error) return 0;
  if (!b->nlanes || (unsigned)kind >= LINK_KINDS || peer < 0 || peer >= b->what.nranks) {
    b->error = HK_FAIL(HK_ERR_INTERNAL, "A link of kind %d to rank %d cannot be made: %d ranks, %zu lanes", (int)kind,
                       peer, b->what.nranks, b->nlanes);
    return 0;
  }
  const hk_link_need link = {
      .peer = (uint32_t)peer, .kind = kind, .lane = (uint8_t)(b->nlanes - 1), .channel = (uint8_t)b->channel};
  if (!builder_table_has_room(b)) return 0;
  uint32_t *entry = builder_entry(b, &link);
  if (*entry) return *entry - 1;
  if (b->nlinks == HK_LINKS_MOST) {
    b->error = HK_FAIL(HK_ERR_USAGE, "A program cannot have more than %d links", HK_LINKS_MOST);
    return 0;
  }
  if (!RESERVE(b, links, 1)) return 0;
  b->links[b->nlinks++] = link;
  b->table_used++;
  *entry = (uint32_t)b->nlinks;
  return (unsigned)(b->nlinks - 1);
}

hk_operand hk_link_operand(hk_builder *b, hk_link_kind kind, int peer, unsigned block, int stride) {
  return (hk_operand){.space = HK_LINK, .link = hk_build_link(b, kind, peer), .block = block, .stride = stride};
}

/* Appends an instruction to the current lane; NULL on error. */
static hk_instr *builder_append(hk_builder *b) {
  if (!b->nlanes) {
    b->error = HK_FAIL(HK_ERR_INTERNAL, "An instruction was built before the first lane");
    return NULL;
  }
  if (!RESERVE(b, instrs, 1)) return NULL;
  hk_instr *i = &b->instrs[b->ninstrs++];
  memset(i, 0, sizeof *i);
  return i;
}

void hk_build_move(hk_builder *b, unsigned flags, const hk_operand *dst, unsigned ndst, const hk_operand *src,
                   unsigned nsrc) {
  if (b->error || (b->in_repeat && b->repeat_count == 0)) return;
  if (ndst > MAX_U16 || nsrc > MAX_U16 - ndst || ndst + nsrc == 0) {
    b->error = HK_FAIL(ndst + nsrc ? HK_ERR_USAGE : HK_ERR_INTERNAL,
                       "An instruction cannot have %u destinations and %u sources", ndst, nsrc);
    return;
  }
  hk_instr *i = builder_append(b);
  if (!i) return;
  i->op = HK_OP_MOVE;
  i->flags = (uint8_t)(flags & (HK_INSTR_FINAL | HK_INSTR_COPY));
  i->ndst = (uint16_t)ndst;
  i->nsrc = (uint16_t)nsrc;
  hk_operand *to = i->inline_operands;
  if (ndst + nsrc > HK_INLINE_OPERANDS) {
    if (!RESERVE(b, operands, ndst + nsrc)) return;
    i->flags |= HK_INSTR_TABLE;
    i->table = (uint32_t)b->noperands;
    to = b->operands + b->noperands;
    b->noperands += ndst + nsrc;
  }
  if (ndst) memcpy(to, dst, ndst * sizeof *to);
  if (nsrc) memcpy(to + ndst, src, nsrc * sizeof *to);
  for (unsigned k = 0; k < ndst + nsrc; k++)
    if (b->in_switch && to[k].space == HK_LINK) i->flags |= HK_INSTR_IN_SWITCH;
}

void hk_build_to(hk_builder *b, hk_operand o) {
  if (!b->error && RESERVE(b, to, 1)) b->to[b->nto++] = o;
}

void hk_build_from(hk_builder *b, hk_operand o) {
  if (!b->error && RESERVE(b, from, 1)) b->from[b->nfrom++] = o;
}

void hk_build_instr(hk_builder *b, unsigned flags) {
  hk_build_move(b, flags, b->to, (unsigned)b->nto, b->from, (unsigned)b->nfrom);
  b->nto = b->nfrom = 0;
}

void hk_build_copy(hk_builder *b, hk_operand dst, hk_operand src) { hk_build_move(b, 0, &dst, 1, &src, 1); }

void hk_build_fork(hk_builder *b, hk_operand dst, hk_operand also, hk_operand src) {
  hk_build_move(b, 0, (hk_operand[]){dst, also}, 2, &src, 1);
}

void hk_build_add(hk_builder *b, unsigned flags, hk_operand dst, hk_operand src, hk_operand also) {
  hk_build_move(b, flags, &dst, 1, (hk_operand[]){src, also}, 2);
}

void hk_build_repeat(hk_builder *b, unsigned count) {
  if (b->error) return;
  if (b->in_repeat) {
    b->error = HK_FAIL(HK_ERR_INTERNAL, "Repeats cannot be nested");
    return;
  }
  b->repeat_at = b->ninstrs;
  b->links_before = b->nlinks;
  b->table_before = b->noperands;
  if (count > 1) {
    hk_instr *i = builder_append(b);
    if (!i) return;
    i->op = HK_OP_REPEAT;
    i->repeat.count = count;
  }
  b->repeat_count = count;
  b->in_repeat = true;
}

static hk_operand *builder_operands_of(hk_builder *b, hk_instr *i) {
  return i->flags & HK_INSTR_TABLE ? b->operands + i->table : i->inline_operands;
}

/* The body of a repeat of one: there is only iteration 0. */
static void builder_flatten(hk_builder *b) {
  for (size_t k = b->repeat_at; k < b->ninstrs; k++) {
    hk_operand *o = builder_operands_of(b, &b->instrs[k]);
    for (size_t n = builder_operand_count(&b->instrs[k]); n; n--, o++) {
      o->stride = 0;
      o->flags &= ~(unsigned)HK_OPERAND_STEP;
    }
  }
}

void hk_build_end_repeat(hk_builder *b) {
  if (b->error) return;
  if (!b->in_repeat) {
    b->error = HK_FAIL(HK_ERR_INTERNAL, "A repeat ends that was not begun");
    return;
  }
  b->in_repeat = false;
  if (b->repeat_count == 0) {
    b->nlinks = b->links_before; /* links made for the body only */
    b->noperands = b->table_before;
  } else if (b->repeat_count == 1) {
    builder_flatten(b);
  } else if (b->ninstrs == b->repeat_at + 1) {
    b->ninstrs = b->repeat_at; /* nothing to repeat */
  } else {
    b->instrs[b->repeat_at].repeat.body = (uint32_t)(b->ninstrs - b->repeat_at - 1);
  }
}

/* The links that instruction `at`, run `count` times, uses with operand o: consecutive ones if it steps. */
static bool builder_mark_links(hk_builder *b, const hk_operand *o, size_t at, uint32_t count, uint32_t *used) {
  uint32_t n = o->flags & HK_OPERAND_STEP ? count : 1;
  for (uint32_t j = 0; j < n; j++) {
    size_t l = (size_t)o->link + j;
    if (l >= b->nlinks || b->links[l].kind != b->links[o->link].kind || b->links[l].lane != b->links[o->link].lane) {
      b->error =
          HK_FAIL(HK_ERR_INTERNAL,
                  "Instruction %zu of %s steps over %u links from link %u, which are not all of one kind and lane: "
                  "make them one after another",
                  at, hk_coll_name(b->what.coll), n, o->link);
      return false;
    }
    used[l] = 1;
  }
  return true;
}

/* Drops the links that no instruction uses (made for a dropped body, for example) and renumbers the others. Stepping
 * operands mark whole ranges, so ranges stay consecutive. */
static void builder_drop_unused_links(hk_builder *b) {
  uint32_t *number = calloc(b->nlinks + 1, sizeof *number);
  if (!number) {
    b->error = HK_FAIL(HK_ERR_SYSTEM, "Out of memory for %zu links", b->nlinks);
    return;
  }
  hk_scan s = {.end = (uint32_t)b->ninstrs};
  while (hk_scan_next(&s, b->instrs)) {
    hk_instr *i = &b->instrs[s.at];
    const hk_operand *o = builder_operands_of(b, i);
    for (size_t n = builder_operand_count(i); n; n--, o++)
      if (o->space == HK_LINK && !builder_mark_links(b, o, s.at, s.times, number)) goto out;
  }
  uint32_t kept = 0;
  for (size_t l = 0; l < b->nlinks; l++) {
    if (!number[l]) continue;
    b->links[kept] = b->links[l];
    number[l] = kept++;
  }
  for (size_t k = 0; k < b->ninstrs; k++) {
    hk_operand *o = builder_operands_of(b, &b->instrs[k]);
    if (b->instrs[k].op == HK_OP_REPEAT) continue;
    for (size_t n = builder_operand_count(&b->instrs[k]); n; n--, o++)
      if (o->space == HK_LINK) o->link = number[o->link];
  }
  b->nlinks = kept;
out:
  free(number);
}

static hk_status builder_lay_out(const hk_builder *b, const char *algorithm, hk_program **out) {
  const hk_build *w = &b->what;
  hk_program head = {.coll = (uint16_t)w->coll,
                     .partition = (uint16_t)hk_coll_partition(w->coll),
                     .rank = w->rank,
                     .nranks = w->nranks,
                     .root = w->root,
                     .in_blocks = b->split,
                     .out_blocks = b->split,
                     .scratch_blocks = b->scratch,
                     .nlanes = (uint16_t)b->nlanes,
                     .nlinks = (uint32_t)b->nlinks,
                     .ninstrs = (uint32_t)b->ninstrs,
                     .noperands = (uint32_t)b->noperands};
  if (head.partition == HK_PART_WHOLE) {
    head.in_blocks = (unsigned)hk_coll_in_blocks(w->coll, w->nranks) * b->parts;
    head.out_blocks = (unsigned)hk_coll_out_blocks(w->coll, w->nranks) * b->parts;
  }
  head.blocks = head.in_blocks > head.out_blocks ? head.in_blocks : head.out_blocks;
  snprintf(head.algorithm, sizeof head.algorithm, "%s", algorithm);
  return hk_program_assemble(&head, b->lanes, b->links, b->instrs, b->operands, out);
}

hk_status hk_builder_finish(hk_builder *b, const char *algorithm, hk_program **out) {
  *out = NULL;
  if (!b->error && b->in_repeat) b->error = HK_FAIL(HK_ERR_INTERNAL, "A repeat was left open in %s", algorithm);
  if (!b->error && b->nto + b->nfrom > 0)
    b->error = HK_FAIL(HK_ERR_INTERNAL, "An instruction was left open in %s", algorithm);
  for (size_t k = 0; k < b->nlanes; k++) {
    size_t end = k + 1 < b->nlanes ? b->lanes[k + 1].first : b->ninstrs;
    b->lanes[k].count = (uint32_t)(end - b->lanes[k].first);
  }
  if (!b->error) builder_drop_unused_links(b);
  if (!b->error) b->error = builder_lay_out(b, algorithm, out);
  if (!b->error && (*out)->traits.span < b->span) (*out)->traits.span = (uint16_t)b->span;
  hk_status rc = b->error;
  builder_free(b);
  return rc;
}
