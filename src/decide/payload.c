/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how a call's data travels, and what runs it (payload.h). */
#include "payload.h"
#include <math.h>
#include "../program/cursor.h"
#include "cost.h"
#include "outlines.h"
#include "select.h"

enum {
  READ_BYTES = 16 << 20, /* of a wave that is read by reference, see payload_chunk */
  LONG_COPY = 1 << 20    /* see LONGER */
};
/* From LONG_COPY on, a copy by the kernel takes so many times as long: one core has all the cache misses, which sender
 * and reader share if data goes through slots (docs/results/cpu.md). */
#define LONGER 1.25

bool hk_payload_may_place(const hk_machine *m) {
  return !m->team.overlap && m->team.nranks > 2 && m->team.nranks <= HK_PLACES_READERS + 1;
}

/* HK_CMA_MOVES, HK_CMA_PLACED or both: a call takes less time if private memory is copied by CMA than through slots.
 * The unit of all terms is a core's copy of a block. Through slots, the sender and the reader both copy each block, at
 * the same time. If some rank only sends, the reader's copy of the first wave follows the sender's. */
static uint8_t payload_by_cma(const hk_machine *m, const hk_outline *o, size_t block) {
  const hk_volume *most = &o->summary.most, *all = &o->summary.all;
  const double once = m->reads > 0 ? m->reads : HK_CMA_COPY, reads = block < LONG_COPY ? once : once * LONGER;
  const double share = hk_machine_crowd(m) / o->summary.nranks;
  const double wave = o->summary.one_way ? fmin(1, (double)hk_chunk(m, o, block) / (double)block) : 0;
  const double slots = fmax((double)most->written, share * (double)all->written);
  const double moved = fmax((double)most->moved, share * (double)all->moved);
  const uint64_t most_taken = most->taken[HK_ANYWHERE], of_all = all->taken[HK_ANYWHERE];
  const double taken = reads * (double)most_taken, all_taken = share * reads * (double)of_all;
  const double own = (double)(most->kept - most_taken), all_own = share * (double)(all->kept - of_all);
  return (uint8_t)((fmax(taken + own, all_taken + all_own) < slots + wave ? HK_CMA_MOVES : 0) |
                   (fmax(taken, all_taken) < moved + wave ? HK_CMA_PLACED : 0));
}

/* hk_payload.reads. `block`: bytes of a block on one channel. */
static bool payload_reads(const hk_machine *m, const hk_outline *o, size_t block) {
  return m->reads > 0 && block >= HK_REF_MIN_BYTES && o->summary.refers && o->summary.first.rounds == 1 &&
         payload_by_cma(m, o, block) & HK_CMA_MOVES;
}

/* A rank does not know the other ranks' displacements of an uneven collective, nor, without an output, the root's
 * window. */
bool hk_decide_engines(const hk_machine *m, hk_coll coll) {
  return m->engines && !hk_coll_reduces(coll) && !hk_coll_uneven(coll) && !hk_coll_in_set(HK_COLLS_OUT_ROOT, coll);
}

/* `o` may be NULL: a transfer. `block`: bytes of a block. */
static void payload_decide(const hk_machine *m, const hk_outline *o, const hk_request *r, size_t block,
                           hk_decision *d) {
  const size_t each = hk_channel_block(m, block);
  hk_payload p = {.reads = o && payload_reads(m, o, each), .uncached = hk_exceeds_caches(r->bytes)};
  if (!m->quantised && block >= HK_REF_MIN_BYTES)
    p.by_cma = o && !p.reads ? payload_by_cma(m, o, each) : HK_CMA_MOVES | HK_CMA_PLACED;
  /* a sum that exceeds the caches is stored past them, into the slot: so no peer reads it from there */
  if (!p.uncached) p.by_cma |= HK_CMA_SUMS;
  if (m->quantised) {
    p.why = "Data goes through slots, because links carry it in quantised form";
  } else if (p.uncached && o && o->summary.places && hk_payload_may_place(m) && !r->uneven) {
    p.mode = HK_PAYLOAD_PLACES;
    p.why = "Multicasts go to the outputs of their readers if all outputs are memory of ncclMemAlloc, because the "
            "message exceeds the caches";
  } else if (block >= HK_REF_MIN_BYTES) {
    p.mode = HK_PAYLOAD_REFERENCES;
    p.why = p.reads ? "Ranks read one another's memory, so each byte is copied once"
            : p.by_cma & HK_CMA_MOVES
                ? "Data in memory that its reader can map or read is copied once; other data goes through slots"
                : "Data in memory that its reader can map is copied once; other data goes through slots, because its "
                  "sender and its reader copy at the same time";
  } else {
    p.why = "Blocks are short: they are copied through slots, so that no rank waits until a reader has its data";
  }
  d->payload = p;
}

/* Needs d->payload and d->chunk. */
static void payload_decide_executor(const hk_machine *m, const hk_outline *o, const hk_request *r, size_t block,
                                    hk_decision *d) {
  const size_t blocks = o ? o->summary.blocks : 1;
  if (m->team.overlap) {
    const bool small = o && hk_gpu_is_small(m, o, block);
    d->executor = small ? HK_EXECUTOR_SMALL : HK_EXECUTOR_KERNEL;
    d->executor_why = small
                          ? "A kernel for small messages runs it, because each rank sends to all others once, in lines"
                          : "The kernel that interprets programs runs it";
    return;
  }
  const bool steps = d->payload.mode == HK_PAYLOAD_COPIES && !m->quantised && block <= d->chunk &&
                     (r->uneven || block * blocks == r->bytes);
  d->executor = steps ? HK_EXECUTOR_STEPS : HK_EXECUTOR_LANES;
  d->executor_why =
      steps ? "One wave moves all blocks, so the plan keeps its instructions ready as steps, if its links are in memory"
            : "Its lanes run by turns, because blocks are long, or quantised, or the last one is shorter";
}

/* References take no room in slots, so their waves may be longer. Longer waves are better: a rank can be ahead of its
 * peers only by as many waves as a link has slots, and after each wave it waits for the slower of two ranks. */
static size_t payload_chunk(const hk_machine *m, const hk_outline *o, size_t block, bool reads) {
  return reads ? hk_chunk_within(m, o, block, READ_BYTES) : hk_chunk(m, o, block);
}

hk_status hk_choose_chunk(const hk_machine *m, const struct hk_algorithm *a, hk_coll coll, size_t block, size_t *out) {
  const hk_outline *o;
  HK_OR_RETURN(hk_outlines_get(m->outlines, a, coll, &o));
  block = hk_channel_block(m, block);
  *out = o ? payload_chunk(m, o, block, payload_reads(m, o, block)) : m->slot_bytes;
  return HK_OK;
}

/* Bytes of a block, as hk_block_bytes computes them from a program. */
static size_t payload_block_of(const hk_machine *m, const hk_outline *o, const hk_request *r) {
  const hk_partition partition = hk_coll_partition(r->coll);
  const size_t messages = partition == HK_PART_WHOLE ? (size_t)m->team.nranks : 1;
  const size_t parts = o ? o->summary.blocks / messages : 1;
  return hk_part_bytes(partition, parts ? parts : 1, r->bytes / messages, r->unit);
}

hk_status hk_decide_execution(hk_machine *m, const hk_request *r, hk_decision *d) {
  const hk_outline *o;
  HK_OR_RETURN(hk_outlines_get(m->outlines, d->algorithm, r->coll, &o));
  const size_t block = payload_block_of(m, o, r);
  m->long_waves = hk_exceeds_caches(r->bytes);
  payload_decide(m, o, r, block, d);
  /* If each pair has its own length, no rank knows the longest: then waves of references are as long as they may be. */
  const size_t longest = hk_coll_pairs(r->coll) && d->payload.reads ? (size_t)READ_BYTES : hk_channel_block(m, block);
  d->chunk = o ? payload_chunk(m, o, longest, d->payload.reads) : m->slot_bytes;
  payload_decide_executor(m, o, r, block, d);
  return HK_OK;
}

void hk_decide_transfer(const hk_machine *m, size_t bytes, hk_decision *d) {
  const hk_request r = {.coll = HK_SENDRECV, .bytes = bytes, .unit = 1};
  payload_decide(m, NULL, &r, bytes, d);
  payload_decide_executor(m, NULL, &r, bytes, d);
}
