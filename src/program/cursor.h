/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The walk of one lane through its program, in order of instructions, repeats and waves; and the bytes of a message
 * that an operand means at each step. Both executors, the simulator and the verifier use it, so they cannot disagree. C
 * and CUDA C include this header.
 *
 * Order: the instructions of a lane in turn; the body of a repeat `count` times, with iteration = 0, 1, ...; at the end
 * of the lane the next wave, until no block has bytes left. If a plan has n channels, the lane of channel c does waves
 * c, c + n, c + 2n, ... In an uneven collective a wave skips the instructions for which hk_cursor_skips is true.
 *
 *   hk_cursor c;
 *   if (hk_cursor_begin(&c, lane, channel, &sizes))
 *     do {
 *       const hk_instr *i = hk_cursor_move(&c, hk_program_instrs(p));
 *       ...
 *     } while (hk_cursor_next(&c, &sizes, channels));
 *
 * The program must be well-formed: a repeat lies whole in its lane and is not empty (the verifier checks it).
 */
#pragma once
#include "program.h"

/* Bytes from one block to the next for messages of `total` bytes, made of elements of `unit` bytes, that are divided
 * into `parts` blocks. Blocks of a split message from 1 KiB on are whole cache lines: vectors then begin aligned, and
 * the last block is shorter. */
HK_INLINE uint64_t hk_part_bytes(hk_partition partition, uint64_t parts, uint64_t total, uint64_t unit) {
  if (partition == HK_PART_WHOLE && parts == 1) return total;
  uint64_t block = (total / unit + parts - 1) / parts * unit;
  return block >= 1024 ? (block + 63) & ~(uint64_t)63 : block;
}
HK_INLINE uint64_t hk_block_bytes(const hk_program *p, uint64_t total, uint64_t unit) {
  return hk_part_bytes((hk_partition)p->partition, hk_program_parts(p), total, unit);
}

/* hk_sizes_of for a program. Uneven collective: block_bytes is the longest block's, and the caller sets `table`. */
HK_INLINE hk_sizes hk_sizes_for(const hk_program *p, uint64_t total, uint64_t block_bytes, uint64_t chunk) {
  return hk_sizes_of(p->traits.parts ? HK_PART_SPLIT : (hk_partition)p->partition, total, block_bytes, chunk);
}

/* The place of a lane in its program. Instructions are numbered as in hk_program_instrs. */
typedef struct hk_cursor {
  uint64_t offset;           /* of the wave in every block, in bytes */
  uint32_t pc;               /* the instruction */
  uint32_t first, end;       /* of the lane: its first instruction, and the one after its last */
  uint32_t body, body_end;   /* of the repeat under way, likewise; body_end is 0 outside a repeat */
  uint32_t iteration, count; /* of the repeat under way; iteration is 0 outside a repeat */
} hk_cursor;

/* Sets the cursor to the first wave of the lane on a channel. Returns 0 if there is none: the lane is empty, or lower
 * channels have all waves. Channel 0 has a wave even if the message is empty, because empty slots synchronise. */
HK_INLINE int hk_cursor_begin(hk_cursor *c, const hk_lane *lane, unsigned channel, const hk_sizes *s) {
  c->offset = channel * s->chunk;
  c->pc = c->first = lane->first;
  c->end = lane->first + lane->count;
  c->body = c->body_end = c->iteration = c->count = 0;
  return lane->count && (channel == 0 || c->offset < s->longest);
}

/* Enters the repeat `i`, which is the instruction at the cursor: the cursor moves to the first one of the body. */
HK_INLINE void hk_cursor_enter(hk_cursor *c, const hk_instr *i) {
  c->body = ++c->pc;
  c->body_end = c->pc + i->repeat.body;
  c->count = i->repeat.count;
}

/* The MOVE at the cursor, or the first one of the repeat at the cursor, which is entered. `instrs`: of the program. */
HK_INLINE const hk_instr *hk_cursor_move(hk_cursor *c, const hk_instr *instrs) {
  const hk_instr *i = &instrs[c->pc];
  if (i->op != HK_OP_REPEAT) return i;
  hk_cursor_enter(c, i);
  return i + 1;
}

/* From a MOVE to the instruction after it, which may be a repeat. Returns 0 after the last wave. */
HK_INLINE int hk_cursor_next(hk_cursor *c, const hk_sizes *s, unsigned channels) {
  c->pc++;
  if (c->pc == c->body_end) {
    if (++c->iteration < c->count) {
      c->pc = c->body;
      return 1;
    }
    c->body_end = c->iteration = 0;
  }
  if (c->pc < c->end) return 1;
  c->pc = c->first;
  c->offset += s->chunk * channels;
  return c->offset < s->longest;
}

/* A scan of instructions without running them: each MOVE once, with the number of times that a wave runs it. Set `end`
 * and, to begin later than at 0, `next`. */
typedef struct hk_scan {
  uint32_t next, end;
  uint32_t at;       /* the number of the MOVE that was returned last */
  uint32_t times;    /* how many times a wave runs it; its iterations are 0 to times - 1 */
  uint32_t body_end; /* of the last repeat */
} hk_scan;

/* The next MOVE, or NULL. `instrs`: of the program. */
HK_INLINE const hk_instr *hk_scan_next(hk_scan *s, const hk_instr *instrs) {
  if (s->next >= s->body_end) s->times = 1;
  while (s->next < s->end) {
    const hk_instr *i = &instrs[s->next++];
    if (i->op != HK_OP_REPEAT) {
      s->at = s->next - 1;
      return i;
    }
    s->times = i->repeat.count;
    s->body_end = s->next + i->repeat.body;
  }
  return 0;
}

/* The block that operand o names, and the link that it uses. */
HK_INLINE unsigned hk_cursor_block(const hk_cursor *c, const hk_program *p, const hk_operand *o) {
  return hk_operand_block(p, o, c->iteration);
}
HK_INLINE unsigned hk_cursor_link(const hk_cursor *c, const hk_operand *o) { return hk_operand_link(o, c->iteration); }

/* The entry of an operand's block, in input or output, in the table of an uneven collective. A link's operand has that
 * of the side with a block for each rank. */
HK_INLINE unsigned hk_cursor_entry(const hk_cursor *c, const hk_program *p, const hk_operand *o) {
  int out = o->space == HK_LINK ? p->out_blocks > p->in_blocks : o->space == HK_OUT;
  return (out ? p->in_blocks : 0) + hk_cursor_block(c, p, o);
}
HK_INLINE const hk_extent *hk_cursor_extent(const hk_cursor *c, const hk_program *p, const hk_operand *o,
                                            const hk_sizes *s) {
  return &s->table[hk_cursor_entry(c, p, o)];
}

/* The operand whose block determines the length that an instruction of an uneven collective moves. */
HK_INLINE const hk_operand *hk_uneven_operand(const hk_instr *i, const hk_operand *o) {
  const hk_operand *link = o, *end = o + i->ndst + i->nsrc;
  for (; o < end; o++) {
    if (o->space == HK_IN || o->space == HK_OUT) return o;
    if (o->space == HK_LINK) link = o;
  }
  return link;
}

/* The length of the whole block; MOVE i with operands o moves a part of it. */
HK_INLINE uint64_t hk_cursor_length(const hk_cursor *c, const hk_program *p, const hk_instr *i, const hk_operand *o,
                                    const hk_sizes *s) {
  if (p->partition != HK_PART_SPLIT && !p->traits.parts)
    return s->table ? hk_cursor_extent(c, p, hk_uneven_operand(i, o), s)->bytes : s->block_bytes;
  /* All operands except scratch name the same block of a message. */
  const hk_operand *last = o + i->ndst + i->nsrc - 1;
  while (o < last && o->space == HK_SCRATCH) o++;
  uint64_t block = hk_cursor_block(c, p, o);
  uint64_t at = (p->traits.parts ? block % p->traits.parts : block) * s->block_bytes;
  uint64_t left = at < s->total ? s->total - at : 0;
  return left < s->block_bytes ? left : s->block_bytes;
}

/* Bytes that the MOVE i with operands o moves: the part of its block that this wave covers, clipped at the ends of the
 * block and of the message. 0 if it only sends or consumes empty slots. */
HK_INLINE uint64_t hk_cursor_bytes(const hk_cursor *c, const hk_program *p, const hk_instr *i, const hk_operand *o,
                                   const hk_sizes *s) {
  if (!i->ndst || !i->nsrc) return 0;
  uint64_t block = hk_cursor_length(c, p, i, o, s);
  uint64_t left = c->offset < block ? block - c->offset : 0;
  return left < s->chunk ? left : s->chunk;
}

/* True if an uneven collective skips the MOVE i in waves that have no bytes of its block. So ranks that know only their
 * own blocks agree on the slots of each link. Two kinds of empty slots take part in wave 0: those of the program, which
 * synchronise, and those between two ranks that have a length of their own (hk_coll_pairs), by which the receiver sees
 * that the sender agrees. */
HK_INLINE int hk_cursor_skips_empty(const hk_cursor *c, const hk_program *p, const hk_instr *i) {
  return c->offset > 0 || (i->ndst && i->nsrc && !hk_coll_pairs((hk_coll)p->coll));
}
/* True if the MOVE i of `bytes` is skipped. */
HK_INLINE int hk_cursor_skips(const hk_cursor *c, const hk_program *p, const hk_instr *i, const hk_sizes *s,
                              uint64_t bytes) {
  return bytes == 0 && s->table && hk_cursor_skips_empty(c, p, i);
}

/* If each pair of ranks has its own length (hk_coll_pairs), slots' signatures are XORed with this mark of the length,
 * so that two ranks that disagree find it at the first slot. hk_length_of_mark computes the length from a mark. */
HK_INLINE uint32_t hk_length_mark(uint64_t bytes) { return (uint32_t)(bytes ^ bytes >> 32) * 0x85ebca6bu; }
HK_INLINE uint32_t hk_length_of_mark(uint32_t mark) { return mark * 0xa5cb9243u; }

/* The offset of operand o's bytes in the user's input or output, or in the lane's scratch (not for HK_LINK). */
HK_INLINE uint64_t hk_cursor_at(const hk_cursor *c, const hk_program *p, const hk_operand *o, const hk_sizes *s) {
  uint64_t block = hk_cursor_block(c, p, o);
  if (o->space == HK_SCRATCH) return block * hk_scratch_stride(s->chunk);
  if (__builtin_expect(s->table != 0, 0)) return hk_cursor_extent(c, p, o, s)->at + c->offset;
  const uint64_t parts = p->traits.parts;
  if (__builtin_expect(parts != 0, 0)) return block / parts * s->total + block % parts * s->block_bytes + c->offset;
  return block * s->block_bytes + c->offset;
}
