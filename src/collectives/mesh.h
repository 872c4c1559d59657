/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of programs in which every rank communicates with every other one. */
#pragma once
#include "../program/builder.h"
#include "algorithm.h"
#include "pattern.h"

/* The most streams that one instruction reads or writes: with more, a processor's prefetchers and TLB become
 * inefficient. */
enum { HK_MESH_FAN = HK_FIXED_ORDER_SOURCES };
/* The most ranks whose sum a switch makes, in one instruction. */
enum { HK_MESH_SWITCH = 128 };
/* NULL: a switch inside the host can add up what `ranks` ranks send; otherwise why not. */
const char *hk_mesh_switch_cannot(const hk_team *team, int ranks);

/* For use in a repeat of nranks - 1: iteration j sends to rank + 1 + j, or receives from rank - 1 - j, so that in each
 * iteration all ranks together form a permutation.  Makes the links; the block is `block` + j * stride. */
hk_operand hk_mesh_walk(hk_builder *b, const hk_build *w, hk_link_kind kind, unsigned block, int stride);
/* Sends block p of the input to each other rank p. */
void hk_mesh_deal(hk_builder *b, const hk_build *w);
/* Receives block p of the output from each other rank p, over links of `kind`. */
void hk_mesh_collect(hk_builder *b, const hk_build *w, hk_link_kind kind);

/* Ends the instruction: its destinations <- reduce(the contributions of all ranks to `block`), FINAL, in the order of
 * ranks, so that all ranks that do it get the same bits. `in` is this rank's contribution; the others' arrive over
 * links of `kind`. Needs hk_mesh_scratch scratch blocks. */
void hk_mesh_reduce(hk_builder *b, const hk_build *w, hk_link_kind kind, unsigned block, hk_operand in);
/* 0 if a switch reduces (hk_build_in_switch). */
static inline unsigned hk_mesh_scratch(const hk_builder *b, const hk_build *w) {
  return w->nranks > HK_MESH_FAN && !hk_builder_in_switch(b) ? 1 : 0;
}

/* ---- programs of several algorithms ----
 * `kind`: how a rank gets what others send to all. HK_LINK_RECV: each has a link to each other rank;
 * HK_LINK_MCAST_RECV: all read the memory to which a rank writes. In a switch: hk_build_in_switch. */

/* Every rank sends its input to all, and each adds up. */
void hk_mesh_one_shot(hk_builder *b, const hk_build *w, hk_link_kind kind);
/* Rank p gets block p of all ranks, adds up, and sends the sum to all. */
void hk_mesh_two_shot(hk_builder *b, const hk_build *w, hk_link_kind kind);
void hk_mesh_reduce_scatter(hk_builder *b, const hk_build *w); /* the first half of that */
void hk_mesh_allgather(hk_builder *b, const hk_build *w, hk_link_kind kind);
void hk_mesh_broadcast(hk_builder *b, const hk_build *w, hk_link_kind kind);
