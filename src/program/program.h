/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A collective is a program. A program is what ONE rank does in ONE collective: a few lanes (instruction streams that
 * run side by side), each a list of instructions of one shape, `destinations <- reduce(sources)`.
 *
 * Blocks and waves. A program describes one wave and does not know the message size. The user's buffers are divided
 * into blocks. The executor runs a lane again and again, wave 0, 1, 2, ..., and in wave w an operand of block b means
 * the bytes [w * chunk, (w + 1) * chunk) of block b, clipped at the block's end. A lane is done when no block has bytes
 * left.
 *
 *   - HK_PART_SPLIT (allreduce, broadcast, reduce): the message of `count` elements is divided into `blocks` equal
 *     blocks (the last ones shorter or empty). Input, output and link operands of one instruction name the same block.
 *   - HK_PART_WHOLE (the others): every block is a whole message of `count` elements; input has in_blocks of them,
 *     output out_blocks, one after another. Or each message is divided into the same number of parts, and a block is a
 *     part (hk_program_parts): block b is part b % parts of message b / parts. All operands of an instruction, except
 *     scratch, name the same part. In an uneven collective (hk_coll_uneven) each block has its own place and
 *     length, from a table of the call (cursor.h). An instruction moves the length of the block that its first operand
 *     in input or output names; without such an operand, of its link operands' block.
 *
 * Waits and signals are implied by operands: a source on a link waits for a filled slot and returns the credit
 * afterwards; a destination on a link waits for a credit and publishes the slot afterwards. An instruction waits for
 * all of its operands, then moves the data, then signals. An instruction without destinations consumes an empty slot
 * (waits for it); one without sources sends an empty slot. The two together are a barrier.
 *
 * A program is immutable and position-independent: one allocation, indices and no pointers.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"
#include "limits.h"
#include "operation.h"

typedef enum hk_space {
  HK_IN,      /* the user's input */
  HK_OUT,     /* the user's output */
  HK_SCRATCH, /* buffers of one chunk each, private to the lane, kept between waves */
  HK_LINK     /* a slot of a link's FIFO */
} hk_space;

enum { HK_OPERAND_STEP = 1 }; /* in a repeat, iteration j uses link + j: links of one kind, made one after another */

typedef struct hk_operand {
  uint64_t link : 19;  /* HK_LINK: index into the program's links */
  uint64_t space : 3;  /* hk_space */
  uint64_t flags : 3;  /* HK_OPERAND_* */
  uint64_t block : 19; /* logical block; HK_SCRATCH: which scratch buffer */
  int64_t stride : 20; /* in a repeat, iteration j means block + j * stride, modulo the space's number of blocks */
} hk_operand;

typedef enum hk_op {
  HK_OP_MOVE,  /* destinations <- reduce(sources), in the given order of sources, so that results are reproducible */
  HK_OP_REPEAT /* run the next `body` instructions `count` times; not nested */
} hk_op;

enum {
  HK_INSTR_FINAL = 1, /* the result holds all contributions: apply the operator's last step (the division of avg) */
  HK_INSTR_TABLE = 2, /* the operands are in the side table at `table`, not in `inline_operands` */
  HK_INSTR_COPY = 4,  /* links carry copies, never references: later instructions may overwrite the source at once */
  /* Its links lie in memory of a switch that reduces and copies (NVLS); both ends of a link have the flag. Several
   * sources must be this rank's input and one link from every other rank of its host. The switch makes their sum: it
   * reads the same slot of all ranks at once, in an unknown order. An executor without such a switch makes the sum
   * itself. With links of a sum (HK_LINK_SUM_SEND) the switch acts as the network: when a rank reads, it adds the slots
   * that all ranks have sent. */
  HK_INSTR_IN_SWITCH = 8
};
enum { HK_INLINE_OPERANDS = 3 };

/* The fixed order of a sum depends only on the number of ranks. Inputs are added in the order of ranks. An instruction
 * has at most this number of sources; its first source is the sum so far. The result is rounded to its type after each
 * instruction, so this number is a part of the order. */
enum { HK_FIXED_ORDER_SOURCES = 16 };

typedef struct hk_instr {
  uint8_t op;    /* hk_op */
  uint8_t flags; /* HK_INSTR_* */
  uint16_t ndst, nsrc;
  uint16_t reserved;
  union {
    hk_operand inline_operands[HK_INLINE_OPERANDS]; /* destinations, then sources */
    uint32_t table;                                 /* first operand's index in the side table */
    struct {
      uint32_t count, body;
    } repeat;
  };
} hk_instr;
HK_ASSERT(sizeof(hk_operand) == 8, "an operand is 8 bytes");
HK_ASSERT(sizeof(hk_instr) == 32, "an instruction is 32 bytes");

/* A link need. Two links with equal (kind pair, peers, channel) on the two ranks are the two ends of one connection. A
 * program has at most one link of a kind to a peer on a channel. If lane i of one rank communicates with lane i of the
 * other, the channel is the lane's number. A root that turns a tree's upward stream into the downward one communicates
 * with both lanes. */
typedef struct __attribute__((packed, aligned(2))) hk_link_need {
  uint32_t peer : 20;
  uint32_t kind : 4; /* hk_link_kind */
  uint32_t lane : 8; /* the lane that uses the link */
  uint8_t channel;   /* below the transports' HK_CHANNELS */
  uint8_t reserved;
} hk_link_need;
HK_ASSERT(sizeof(hk_link_need) == 6, "programs of many ranks are mostly links");

typedef struct hk_lane {
  uint32_t first, count; /* instructions */
} hk_lane;

/* What a program does, found when it is finished (summary.c). */
typedef struct hk_traits {
  uint16_t max_operands; /* of an instruction */
  uint16_t span;         /* one more than the highest channel of its links; equal on all ranks */
  /* Blocks that the rank reads and writes in one wave if links are in memory; by_reference: if data that can be sent by
   * reference is not written into slots. */
  uint32_t moves, moves_by_reference;
  /* The rest are 0 or 1. */
  uint8_t in_switch;  /* a switch makes a sum or a copy (HK_INSTR_IN_SWITCH) */
  uint8_t multicasts; /* it has multicast links; on GPUs they are in a switch */
  uint8_t in_groups;  /* it has links of a group (hk_link_in_group) */
  uint8_t in_rounds;  /* it has links that move rounds (hk_link_in_rounds) */
  /* It has exactly two instructions: { links } <- input, as a copy; output <- the sum of the input and of links. */
  uint8_t one_shot;
  /* It sends a multicast and receives others, and each wave moves one slot of each of these, unchanged, to an output.
   * Then successive slots of such a link belong to successive waves of one output block. */
  uint8_t places;
  /* It adds nothing, and sends only data from the user's buffers, over links with one reader. So if ranks read each
   * other's memory, links can carry references to all of it, and slots need no room for data. */
  uint8_t refers;
  uint8_t unused;       /* programs are compared as bytes, so there are no gaps */
  uint16_t parts;       /* HK_PART_WHOLE: blocks of a message, if there are several; else 0 */
  uint16_t switch_span; /* one more than the highest channel of its links in a switch, multicasts too; 0: it has none */
} hk_traits;
HK_ASSERT(sizeof(hk_traits) == 24, "without gaps");

typedef struct hk_program {
  char algorithm[24];
  uint16_t coll, partition;
  uint16_t nlanes, unused;
  int32_t rank, nranks, root;
  uint32_t in_blocks, out_blocks, scratch_blocks; /* equal on all ranks, even if a rank has no input or output */
  uint32_t blocks;                                /* max(in_blocks, out_blocks) */
  uint32_t nlinks, ninstrs, noperands;
  size_t bytes; /* of the whole allocation */
  /* Byte offsets from the struct: see the accessors. */
  uint32_t lanes_at, links_at, instrs_at, operands_at;
  hk_traits traits;
} hk_program;
HK_ASSERT(offsetof(hk_program, traits) + sizeof(hk_traits) == sizeof(hk_program), "without a gap at the end");

/* The blocks into which a message is divided. */
HK_INLINE unsigned hk_program_parts(const hk_program *p) {
  return p->partition == HK_PART_SPLIT ? p->blocks : p->traits.parts ? p->traits.parts : 1;
}
/* hk_coll_alias and hk_coll_source for a program's blocks. */
int hk_program_alias(const hk_program *p, int rank, int block);
void hk_program_source(const hk_program *p, int rank, int block, int *from, int *part);

HK_INLINE const hk_lane *hk_program_lanes(const hk_program *p) {
  return (const hk_lane *)((const char *)p + p->lanes_at);
}
HK_INLINE const hk_link_need *hk_program_links(const hk_program *p) {
  return (const hk_link_need *)((const char *)p + p->links_at);
}
HK_INLINE const hk_instr *hk_program_instrs(const hk_program *p) {
  return (const hk_instr *)((const char *)p + p->instrs_at);
}
/* The operands of a MOVE: ndst destinations, then nsrc sources. */
HK_INLINE const hk_operand *hk_instr_operands(const hk_program *p, const hk_instr *i) {
  if (i->flags & HK_INSTR_TABLE) return (const hk_operand *)((const char *)p + p->operands_at) + i->table;
  return i->inline_operands;
}

/* The link of this kind, peer and channel, searched from link `near` on; UINT32_MAX: none. */
HK_INLINE uint32_t hk_link_find(const hk_program *p, hk_link_kind kind, int peer, unsigned channel, uint32_t near) {
  const hk_link_need *l = hk_program_links(p);
  for (uint32_t n = 0, i = near < p->nlinks ? near : 0; n < p->nlinks; n++, i = i + 1 < p->nlinks ? i + 1 : 0)
    if (l[i].peer == peer && l[i].kind == kind && l[i].channel == channel) return i;
  return UINT32_MAX;
}

/* True if the instruction's received data may be written to its destination before the instruction's turn, as soon as
 * it is sent. That holds if it moves one slot unchanged to one output; it may also forward it to other slots. The
 * verifier proves that no instruction still needs the destination. (The executor excludes a reduction's last step.) */
HK_INLINE int hk_instr_lands(const hk_instr *i, const hk_operand *o) {
  unsigned outputs = 0;
  if (i->nsrc != 1 || o[i->ndst].space != HK_LINK) return 0;
  for (unsigned k = 0; k < i->ndst; k++) {
    if (o[k].space == HK_SCRATCH) return 0;
    outputs += o[k].space == HK_OUT;
  }
  return outputs == 1;
}

/* True if the link's data goes through a switch: all instructions that use it have the flag. */
int hk_program_link_in_switch(const hk_program *p, unsigned link);

/* How many blocks a space has, for the modulo of strided operands. */
HK_INLINE unsigned hk_space_blocks(const hk_program *p, hk_space s) {
  if (p->partition == HK_PART_SPLIT && s != HK_SCRATCH) return p->blocks;
  switch (s) {
    case HK_IN: return p->in_blocks;
    case HK_OUT: return p->out_blocks;
    case HK_SCRATCH: return p->scratch_blocks;
    case HK_LINK: return p->blocks;
  }
  return 0;
}

/* The block that operand o names in iteration j of its repeat (j = 0 outside). */
HK_INLINE unsigned hk_operand_block(const hk_program *p, const hk_operand *o, unsigned j) {
  if (o->stride == 0 || j == 0) return o->block;
  const unsigned n = hk_space_blocks(p, (hk_space)o->space);
  const unsigned step = o->stride < 0 ? n - (unsigned)-o->stride % n : (unsigned)o->stride;
  /* On a GPU a 64-bit division takes a hundred instructions. */
  if (n < 65536) return (o->block + j % n * (step % n)) % n;
  return (unsigned)((o->block + (uint64_t)(j % n) * (step % n)) % n);
}
HK_INLINE unsigned hk_operand_link(const hk_operand *o, unsigned j) {
  return o->link + ((o->flags & HK_OPERAND_STEP) ? j : 0);
}

/* A hash of what the program does, without the numbers of blocks and peers. */
uint64_t hk_program_shape(const hk_program *p);
/* True if p does what `first` does, with the numbers of all ranks raised by `by` >= 0, modulo the number of ranks. */
int hk_program_is_shifted(const hk_program *first, const hk_program *p, int by);
/* The same, but sums may have their sources in another order, and divided in another way among several instructions.
 * `flips`: the bits `by` of all ranks' numbers are changed. */
int hk_program_is_alike(const hk_program *first, const hk_program *p, int by, int flips);
/* A copy with the numbers of all ranks raised by `by` >= 0, modulo the number of ranks: what rank `p->rank + by` does
 * if the root is `p->root + by`. HK_ERR_SYSTEM: no memory. */
hk_status hk_program_turn(const hk_program *p, int by, hk_program **out);
void hk_program_free(hk_program *p);
/* The program as text, one instruction a line, for people and for golden tests. */
void hk_program_dump(const hk_program *p, FILE *to);
/* Reads what hk_program_dump writes. Instruction numbers and the totals at the end of the first line are for people and
 * ignored. HK_ERR_ARGUMENT names the line. The result is well-formed, but may be wrong: see verify.h. */
hk_status hk_program_parse(const char *text, hk_program **out);
/* The same for a text that begins at line number `line` of a file. */
hk_status hk_program_parse_at(const char *text, int line, hk_program **out);
void hk_program_json(const hk_program *p, FILE *to);
void hk_program_dump_instr(const hk_program *p, uint32_t at, FILE *to); /* one instruction, without a newline */
