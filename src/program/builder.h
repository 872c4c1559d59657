/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a program by appending. A builder keeps its first error (out of memory, more of something than the format
 * holds, which is HK_ERR_USAGE, a repeat left open). Every later call then does nothing, and hk_builder_finish reports
 * the error. So algorithms need no error paths. */
#pragma once
#include <stdbool.h>
#include "program.h"

typedef struct hk_builder hk_builder;
struct hk_layout; /* layout.h */

typedef struct hk_build {
  hk_coll coll;
  int rank, nranks, root;         /* root is 0 if the collective has none */
  const struct hk_layout *layout; /* may be NULL */
  int channel; /* the channel whose ring order the program follows; 0 if there is one order for all */
} hk_build;

hk_status hk_builder_new(hk_builder **out, const hk_build *what);
/* HK_PART_SPLIT collectives: the number of blocks of the message (default 1). HK_PART_WHOLE ones need no call. */
void hk_build_split(hk_builder *b, unsigned blocks);
/* HK_PART_WHOLE collectives: the parts of each message (default 1), which are then the blocks. */
void hk_build_parts(hk_builder *b, unsigned parts);
void hk_build_scratch(hk_builder *b, unsigned blocks);
/* The channels below `span` belong to the program, even if this rank uses fewer: copies of the lanes use the channels
 * from k * span on, which must be the same on all ranks. */
void hk_build_span(hk_builder *b, unsigned span);
/* From here on, the data of links goes through a switch that reduces and copies (HK_INSTR_IN_SWITCH), or not. */
void hk_build_in_switch(hk_builder *b, bool on);
bool hk_builder_in_switch(const hk_builder *b);
int hk_builder_rank(const hk_builder *b);
/* Starts the next lane; the calls below append to it. */
void hk_build_lane(hk_builder *b);
/* The channel of the links that the current lane makes from here on; by default the lane's number. */
void hk_build_channel(hk_builder *b, unsigned channel);
/* The link of the current lane to or from `peer`, made at its first use. Returns its index, for use with a stride. */
unsigned hk_build_link(hk_builder *b, hk_link_kind kind, int peer);

/* Operands.  stride counts blocks per iteration of the enclosing repeat. */
static inline hk_operand hk_in(unsigned block, int stride) {
  return (hk_operand){.space = HK_IN, .block = block, .stride = stride};
}
static inline hk_operand hk_out(unsigned block, int stride) {
  return (hk_operand){.space = HK_OUT, .block = block, .stride = stride};
}
static inline hk_operand hk_scratch(unsigned which, int stride) {
  return (hk_operand){.space = HK_SCRATCH, .block = which, .stride = stride};
}
/* The link of the current lane to or from `peer`. Of a sum, gather or scatter in the network: the group's next rank for
 * its input, the one before for its result. */
hk_operand hk_link_operand(hk_builder *b, hk_link_kind kind, int peer, unsigned block, int stride);
static inline hk_operand hk_send_to(hk_builder *b, int peer, unsigned block, int stride) {
  return hk_link_operand(b, HK_LINK_SEND, peer, block, stride);
}
static inline hk_operand hk_recv_from(hk_builder *b, int peer, unsigned block, int stride) {
  return hk_link_operand(b, HK_LINK_RECV, peer, block, stride);
}
static inline hk_operand hk_mcast(hk_builder *b, unsigned block, int stride) {
  return hk_link_operand(b, HK_LINK_MCAST_SEND, hk_builder_rank(b), block, stride);
}
static inline hk_operand hk_mcast_from(hk_builder *b, int peer, unsigned block, int stride) {
  return hk_link_operand(b, HK_LINK_MCAST_RECV, peer, block, stride);
}

void hk_build_move(hk_builder *b, unsigned flags, const hk_operand *dst, unsigned ndst, const hk_operand *src,
                   unsigned nsrc);
/* The same in pieces: calls append a destination or a source of the next instruction, which hk_build_instr ends. */
void hk_build_to(hk_builder *b, hk_operand o);
void hk_build_from(hk_builder *b, hk_operand o);
void hk_build_instr(hk_builder *b, unsigned flags);
/* One destination, one source. */
void hk_build_copy(hk_builder *b, hk_operand dst, hk_operand src);
/* Two destinations; or two sources. */
void hk_build_fork(hk_builder *b, hk_operand dst, hk_operand also, hk_operand src);
void hk_build_add(hk_builder *b, unsigned flags, hk_operand dst, hk_operand src, hk_operand also);
/* A repeat with count 0 drops its body; with count 1 it disappears. */
void hk_build_repeat(hk_builder *b, unsigned count);
void hk_build_end_repeat(hk_builder *b);

/* Returns the program and frees the builder, also on error. */
hk_status hk_builder_finish(hk_builder *b, const char *algorithm, hk_program **out);
