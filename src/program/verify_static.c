/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for each program alone, and the few facts on which all programs must agree. */
#include "verify_internal.h"

typedef struct place_in_program {
  hk_verifier *v;
  const hk_program *p;
  int lane, instr;
  bool in_body;
  uint32_t count, body_end; /* of the enclosing repeat, if in_body */
} place_in_program;

#define REJECT(at, ...) hk_fault((at)->v, (at)->p->rank, (at)->lane, (at)->instr, __VA_ARGS__)

static hk_status verify_static_check_header(hk_verifier *v, int r) {
  const hk_program *p = v->programs[r], *first = v->programs[0];
  hk_coll coll = (hk_coll)first->coll;
  if (p->coll != first->coll || p->nranks != v->nranks || p->root != first->root || p->partition != first->partition)
    return hk_fault(v, r, -1, -1,
                    "its program is %s over %d ranks with root %d, rank 0's is %s over %d ranks with root %d",
                    hk_coll_name((hk_coll)p->coll), p->nranks, p->root, hk_coll_name(coll), v->nranks, first->root);
  if (p->rank != r) return hk_fault(v, r, -1, -1, "its program was built for rank %d", p->rank);
  if (coll >= HK_COLL_COUNT || p->root >= v->nranks || p->partition != hk_coll_partition(coll))
    return hk_fault(v, r, -1, -1, "its program is not of any collective: %u, root %d, partition %u", p->coll, p->root,
                    p->partition);
  bool split = p->partition == HK_PART_SPLIT;
  const unsigned parts = hk_coll_uneven(coll) ? 1 : hk_program_parts(first);
  const unsigned in = split ? first->blocks : (unsigned)hk_coll_in_blocks(coll, v->nranks) * parts;
  const unsigned out = split ? first->blocks : (unsigned)hk_coll_out_blocks(coll, v->nranks) * parts;
  if (p->in_blocks != in || p->out_blocks != out || p->blocks != (in > out ? in : out) || !p->blocks)
    return hk_fault(v, r, -1, -1, "its program has blocks %u in, %u out, %u in all; there must be %u, %u, %u",
                    p->in_blocks, p->out_blocks, p->blocks, in, out, in > out ? in : out);
  return HK_OK;
}

static hk_status verify_static_check_links(hk_verifier *v, int r) {
  const hk_program *p = v->programs[r];
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t k = 0; k < p->nlinks; k++) {
    bool own = l[k].peer == r;
    if (l[k].kind >= HK_LINK_KINDS || l[k].peer >= v->nranks || l[k].lane >= p->nlanes ||
        (l[k].kind == HK_LINK_MCAST_SEND && !own) || (l[k].kind >= HK_LINK_MCAST_RECV && own))
      return hk_fault(v, r, l[k].lane, -1, "link %u is impossible: kind %u, peer %u of %d, lane %u of %u", k, l[k].kind,
                      l[k].peer, v->nranks, l[k].lane, p->nlanes);
  }
  return HK_OK;
}

static hk_status verify_static_check_link_operand(const place_in_program *at, const hk_operand *o, bool is_source) {
  const hk_program *p = at->p;
  uint32_t n = o->flags & HK_OPERAND_STEP && at->in_body ? at->count : 1;
  if (o->link >= p->nlinks || n > p->nlinks - o->link)
    return REJECT(at, "link %u does not exist: there are %u", o->link + n - 1, p->nlinks);
  const hk_link_need *l = &hk_program_links(p)[o->link];
  for (uint32_t j = 0; j < n; j++) {
    if (l[j].lane != at->lane) return REJECT(at, "link %u belongs to lane %u", o->link + j, l[j].lane);
    if (l[j].kind != l->kind) return REJECT(at, "the links %u to %u are not all of one kind", o->link, o->link + n - 1);
  }
  if (hk_link_sends((hk_link_kind)l->kind) == is_source)
    return REJECT(
        at,
        is_source ? "link %u to rank %u is a source but sends" : "link %u from rank %u is a destination but receives",
        o->link, l->peer);
  return HK_OK;
}

static hk_status verify_static_check_operand(const place_in_program *at, const hk_operand *o, bool is_source) {
  static const char *const words[] = {"in", "out", "scratch", "link"};
  const hk_program *p = at->p;
  if (o->space > HK_LINK) return REJECT(at, "operand space %u does not exist", o->space);
  unsigned blocks = hk_space_blocks(p, (hk_space)o->space);
  if (o->block >= blocks) return REJECT(at, "%s[b%u] does not exist: there are %u", words[o->space], o->block, blocks);
  if (o->stride && !at->in_body) return REJECT(at, "%s[b%u] has a stride outside a repeat", words[o->space], o->block);
  if (o->space == HK_LINK) return verify_static_check_link_operand(at, o, is_source);
  hk_coll coll = (hk_coll)p->coll;
  if (o->space == HK_IN) {
    if (!is_source) return REJECT(at, "in[b%u] is written: the input is only read", o->block);
    if (!hk_coll_has_input(coll, p->rank, p->root))
      return REJECT(at, "in[b%u] is read, but only the root has an input", o->block);
  }
  if (o->space == HK_OUT && !hk_coll_has_output(coll, p->rank, p->root))
    return REJECT(at, "out[b%u] is used, but only the root has an output", o->block);
  return HK_OK;
}

/* If messages are divided, all user and link operands of an instruction name one block of them, in every iteration:
 * blocks are linear in the iteration and share a modulus, so iterations 0 and 1 decide for all. */
static hk_status verify_static_check_one_block(const place_in_program *at, const hk_operand *o, unsigned n) {
  const hk_operand *named = NULL;
  const unsigned parts = hk_program_parts(at->p);
  for (unsigned k = 0; k < n; k++) {
    if (o[k].space == HK_SCRATCH) continue;
    if (!named) named = &o[k];
    for (unsigned j = 0; j < (at->in_body ? 2u : 1u); j++) {
      unsigned a = hk_operand_block(at->p, named, j) % parts, b = hk_operand_block(at->p, &o[k], j) % parts;
      if (a != b) return REJECT(at, "its operands name block %u and block %u: one instruction moves one block", a, b);
    }
  }
  if (!named) return REJECT(at, "only scratch operands: no block says how long the data is");
  return HK_OK;
}

static hk_status verify_static_check_sources(const place_in_program *at, const hk_instr *i, const hk_operand *src) {
  unsigned fresh = 0;
  for (unsigned k = 0; k < i->nsrc; k++) {
    fresh += src[k].space == HK_IN;
    if (i->ndst == 0 && src[k].space != HK_LINK)
      return REJECT(at, "it has no destination, so it can only take empty slots");
  }
  if (fresh > 1) return REJECT(at, "two sources are fresh input: the operator's first step can be applied to one only");
  if (i->nsrc > 1 && i->ndst && !at->v->reduces)
    return REJECT(at, "it has %u sources, but %s does not reduce", i->nsrc, hk_coll_name((hk_coll)at->p->coll));
  if (i->flags & HK_INSTR_FINAL && !at->v->reduces)
    return REJECT(at, "it is final, but %s does not reduce", hk_coll_name((hk_coll)at->p->coll));
  return HK_OK;
}

static bool verify_static_same_place(const hk_operand *a, const hk_operand *b) {
  return a->space == b->space && a->block == b->block && a->stride == b->stride && a->space != HK_LINK;
}

static hk_status verify_static_check_destinations(const place_in_program *at, const hk_instr *i,
                                                  const hk_operand *dst) {
  unsigned places = 0;
  for (unsigned k = 0; k < i->ndst; k++) {
    if (i->nsrc == 0 && dst[k].space != HK_LINK) return REJECT(at, "it has no source, so it can only send empty slots");
    places += dst[k].space != HK_LINK;
  }
  if (places < 2) return HK_OK;
  for (unsigned k = 0; k < i->ndst; k++)
    for (unsigned j = 0; j < k; j++)
      if (verify_static_same_place(&dst[k], &dst[j])) return REJECT(at, "one destination is there twice");
  return HK_OK;
}

/* Checks what a switch supports: the sum of this rank's input and one slot from each other rank of its host, all of one
 * channel. */
static hk_status verify_static_check_in_switch(const place_in_program *at, const hk_instr *i, const hk_operand *o) {
  const hk_link_need *links = hk_program_links(at->p), *first = NULL;
  const hk_operand *src = o + i->ndst;
  unsigned n = (unsigned)i->ndst + i->nsrc, uses = 0;
  for (unsigned k = 0; k < n; k++) uses += o[k].space == HK_LINK;
  if (!uses) return REJECT(at, "it is in the switch, but uses no link");
  if (i->nsrc < 2 || !i->ndst) return HK_OK;
  at->v->switch_adds = true;
  const int near = hk_ranks_near(at->v, at->p->rank);
  if (i->nsrc != near)
    return REJECT(at, "it adds %u sources in the switch, which adds those of all %d ranks", i->nsrc, near);
  for (unsigned k = 0; k < i->nsrc; k++) {
    if (src[k].space == HK_IN) continue;
    const hk_link_need *l = src[k].space == HK_LINK ? &links[src[k].link] : NULL;
    if (!l || l->kind != HK_LINK_RECV || !hk_is_near(at->v, at->p->rank, l->peer))
      return REJECT(at, "source %u is neither input nor a link from one rank: the switch cannot add it", k);
    if (src[k].flags & HK_OPERAND_STEP)
      return REJECT(at, "source %u goes from link to link: the switch reads the same ones always", k);
    if (!first) first = l;
    if (l->channel != first->channel)
      return REJECT(at, "its sources come on channels %u and %u: the switch reads one slot of one channel",
                    first->channel, l->channel);
  }
  /* at most one input (verify_static_check_sources) and no link twice (verify_run.c), so each rank occurs once */
  return HK_OK;
}

static hk_status verify_static_check_move(const place_in_program *at, const hk_instr *i) {
  uint32_t n = (uint32_t)i->ndst + i->nsrc;
  if (n == 0) return REJECT(at, "it has no operands");
  bool table = i->flags & HK_INSTR_TABLE;
  if (table ? (uint64_t)i->table + n > at->p->noperands : n > HK_INLINE_OPERANDS)
    return REJECT(at, "its %u operands do not fit", n);
  if (i->flags & ~(unsigned)(HK_INSTR_FINAL | HK_INSTR_TABLE | HK_INSTR_COPY | HK_INSTR_IN_SWITCH))
    return REJECT(at, "unknown flags %#x", i->flags);
  const hk_operand *o = hk_instr_operands(at->p, i);
  for (uint32_t k = 0; k < n; k++) HK_OR_RETURN(verify_static_check_operand(at, &o[k], k >= i->ndst));
  HK_OR_RETURN(verify_static_check_sources(at, i, o + i->ndst));
  HK_OR_RETURN(verify_static_check_destinations(at, i, o));
  if (i->flags & HK_INSTR_IN_SWITCH) HK_OR_RETURN(verify_static_check_in_switch(at, i, o));
  if (at->v->split) HK_OR_RETURN(verify_static_check_one_block(at, o, n));
  return HK_OK;
}

/* Far above the length of any algorithm's lane, and small enough to run. */
enum { MAX_LANE_LENGTH = 1 << 24 };

static hk_status verify_static_check_repeat(place_in_program *at, const hk_instr *i, uint32_t lane_end) {
  uint32_t k = (uint32_t)at->instr;
  if (at->in_body) return REJECT(at, "a repeat inside a repeat");
  if (!i->repeat.count || !i->repeat.body || i->repeat.body > lane_end - k - 1)
    return REJECT(at, "a repeat of %u instructions, %u times, with %u left in the lane", i->repeat.body,
                  i->repeat.count, lane_end - k - 1);
  uint64_t length = (uint64_t)i->repeat.count * i->repeat.body;
  if (length > MAX_LANE_LENGTH)
    return REJECT(at, "it runs %llu instructions, more than %d", (unsigned long long)length, MAX_LANE_LENGTH);
  at->body_end = k + 1 + i->repeat.body;
  at->count = i->repeat.count;
  return HK_OK;
}

static hk_status verify_static_check_lane(hk_verifier *v, const hk_program *p, int lane) {
  const hk_lane *l = &hk_program_lanes(p)[lane];
  place_in_program at = {.v = v, .p = p, .lane = lane, .instr = -1};
  uint32_t start = lane ? l[-1].first + l[-1].count : 0;
  if (l->first != start || l->count > p->ninstrs - start || (lane == p->nlanes - 1 && l->count != p->ninstrs - start))
    return REJECT(&at, "its instructions, %u from %u on, do not follow the former lane's and end with the program's %u",
                  l->count, l->first, p->ninstrs);
  for (uint32_t k = l->first; k < l->first + l->count; k++) {
    const hk_instr *i = &hk_program_instrs(p)[k];
    at.instr = (int)k;
    at.in_body = k < at.body_end;
    hk_status rc = i->op == HK_OP_MOVE     ? verify_static_check_move(&at, i)
                   : i->op == HK_OP_REPEAT ? verify_static_check_repeat(&at, i, l->first + l->count)
                                           : REJECT(&at, "opcode %u does not exist", i->op);
    if (rc) return rc;
  }
  return HK_OK;
}

hk_status hk_verify_static(hk_verifier *v) {
  for (int r = 0; r < v->nranks; r++) {
    HK_OR_RETURN(verify_static_check_header(v, r));
    HK_OR_RETURN(verify_static_check_links(v, r));
    for (int lane = 0; lane < v->programs[r]->nlanes; lane++)
      HK_OR_RETURN(verify_static_check_lane(v, v->programs[r], lane));
  }
  return HK_OK;
}
