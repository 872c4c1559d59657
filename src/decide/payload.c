/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how a call's data travels, and what runs it (payload.h). */
#include "payload.h"
#include "outlines.h"
#include "select.h"

bool hk_payload_reads(const hk_machine *m, const hk_outline *o) {
  return m->reads && o->summary.refers && o->summary.first.rounds == 1;
}

void hk_decide_payload(const hk_machine *m, const hk_outline *o, const hk_request *r, size_t block, hk_decision *d) {
  hk_payload p = {.uncached = r->bytes >= HK_STREAM_MIN_BYTES};
  if (m->quantised) {
    p.why = "Data goes through slots, because links carry it in quantised form";
  } else if (p.uncached && o && o->summary.places && hk_payload_may_place(m) && !r->uneven) {
    p.mode = HK_PAYLOAD_PLACES;
    p.why = "Multicasts go to the outputs of their readers if all outputs are memory of ncclMemAlloc, because the "
            "message exceeds the caches";
  } else if (block >= HK_REF_MIN_BYTES) {
    p.mode = HK_PAYLOAD_REFERENCES;
    p.why = o && hk_payload_reads(m, o)
                ? "Ranks read one another's memory, so each byte is copied once"
                : "Data in memory that its reader can map or read is copied once; other data goes through slots";
  } else {
    p.why = "Blocks are short: they are copied through slots, so that no rank waits until a reader has its data";
  }
  d->payload = p;
}

void hk_decide_executor(const hk_machine *m, const hk_outline *o, const hk_request *r, size_t block, hk_decision *d) {
  const size_t blocks = o ? o->summary.blocks : 1;
  const bool steps = d->payload.mode == HK_PAYLOAD_COPIES && !m->quantised && !r->uneven && block <= d->chunk &&
                     block * blocks == r->bytes;
  d->executor = steps ? HK_EXECUTOR_STEPS : HK_EXECUTOR_LANES;
  d->executor_why =
      steps ? "One wave moves all blocks, so the plan keeps its instructions ready as steps, if its links are in memory"
            : "Its lanes run by turns, because blocks are long, of different lengths, or quantised";
}
