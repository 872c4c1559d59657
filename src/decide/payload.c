/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how a call's data travels (payload.h). */
#include "payload.h"
#include "outlines.h"

bool hk_payload_reads(const hk_machine *m, const hk_outline *o) {
  return m->reads && o->summary.refers && o->summary.first.rounds == 1;
}

hk_payload hk_payload_of(const hk_machine *m, const hk_outline *o, size_t bytes, bool uneven) {
  hk_payload p = {.uncached = bytes >= HK_STREAM_MIN_BYTES};
  const size_t block = o && o->summary.blocks ? bytes / o->summary.blocks : bytes;
  if (m->quantised) {
    p.why = "Data goes through slots, because links carry it in quantised form";
  } else if (p.uncached && o && o->summary.places && hk_payload_may_place(m) && !uneven) {
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
  return p;
}
