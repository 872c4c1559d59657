/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how a call's data travels, and what runs it (payload.h). */
#include "payload.h"
#include "cost.h"
#include "outlines.h"
#include "select.h"

bool hk_payload_reads(const hk_machine *m, const hk_outline *o, size_t block) {
  return m->reads > 0 && block >= HK_REF_MIN_BYTES && o->summary.refers && o->summary.first.rounds == 1 &&
         hk_kernel_wins(m, o, block, false);
}

/* What may be read from private memory. `reads`: hk_payload_reads. A sum that exceeds the caches goes through slots: it
 * can then be stored past them, as no peer reads it from there. */
static uint8_t payload_by_kernel(const hk_machine *m, const hk_outline *o, size_t block, bool reads, bool uncached) {
  const unsigned sums = uncached ? 0 : HK_KERNEL_SUMS;
  if (!o || reads) return (uint8_t)(HK_KERNEL_MOVES | HK_KERNEL_PLACED | sums);
  return (uint8_t)((hk_kernel_wins(m, o, block, false) ? HK_KERNEL_MOVES : 0) |
                   (hk_kernel_wins(m, o, block, true) ? HK_KERNEL_PLACED : 0) | sums);
}

/* A rank does not know the other ranks' displacements of an uneven collective, nor, without an output, the root's
 * window. */
bool hk_decide_engines(const hk_machine *m, hk_coll coll) {
  return m->engines && !hk_coll_reduces(coll) && !hk_coll_uneven(coll) && !hk_coll_in_set(HK_COLLS_OUT_ROOT, coll);
}

void hk_decide_payload(const hk_machine *m, const hk_outline *o, const hk_request *r, size_t block, hk_decision *d) {
  const size_t each = hk_channel_block(m, block);
  const bool reads = o && hk_payload_reads(m, o, each);
  hk_payload p = {.uncached = r->bytes >= HK_STREAM_MIN_BYTES};
  if (!m->quantised && block >= HK_REF_MIN_BYTES) p.by_kernel = payload_by_kernel(m, o, each, reads, p.uncached);
  if (m->quantised) {
    p.why = "Data goes through slots, because links carry it in quantised form";
  } else if (p.uncached && o && o->summary.places && hk_payload_may_place(m) && !r->uneven) {
    p.mode = HK_PAYLOAD_PLACES;
    p.why = "Multicasts go to the outputs of their readers if all outputs are memory of ncclMemAlloc, because the "
            "message exceeds the caches";
  } else if (block >= HK_REF_MIN_BYTES) {
    p.mode = HK_PAYLOAD_REFERENCES;
    p.why = reads ? "Ranks read one another's memory, so each byte is copied once"
            : p.by_kernel & HK_KERNEL_MOVES
                ? "Data in memory that its reader can map or read is copied once; other data goes through slots"
                : "Data in memory that its reader can map is copied once; other data goes through slots, because its "
                  "sender and its reader copy at the same time";
  } else {
    p.why = "Blocks are short: they are copied through slots, so that no rank waits until a reader has its data";
  }
  d->payload = p;
}

void hk_decide_executor(const hk_machine *m, const hk_outline *o, const hk_request *r, size_t block, hk_decision *d) {
  const size_t blocks = o ? o->summary.blocks : 1;
  if (m->team.overlap) {
    const bool small = o && hk_gpu_is_small(m, o, block);
    d->executor = small ? HK_EXECUTOR_SMALL : HK_EXECUTOR_KERNEL;
    d->executor_why = small
                          ? "A kernel for small messages runs it, because each rank sends to all others once, in lines"
                          : "The kernel that interprets programs runs it";
    return;
  }
  const bool steps = d->payload.mode == HK_PAYLOAD_COPIES && !m->quantised && !r->uneven && block <= d->chunk &&
                     block * blocks == r->bytes;
  d->executor = steps ? HK_EXECUTOR_STEPS : HK_EXECUTOR_LANES;
  d->executor_why =
      steps ? "One wave moves all blocks, so the plan keeps its instructions ready as steps, if its links are in memory"
            : "Its lanes run by turns, because blocks are long, or of different lengths, or quantised";
}
