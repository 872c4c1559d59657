/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of scratch chunks into scratch memory (trace.h). An instruction of a program has the length of a block, so
 * one with scratch operands alone is not possible. Such a sum is made where it is used: each use gets its sources. */
#include <string.h>
#include "trace.h"

static bool sums_only_scratch(const hk_trace_record *r) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space != HK_SCRATCH) return false;
  return r->ndst == 1 && r->dst[0].space == HK_SCRATCH && r->nsrc > 0;
}

/* True if the record writes a scratch chunk that the sum adds. */
static bool sums_overwrites(const hk_trace_record *r, const hk_trace_record *sum) {
  for (int k = 0; k < r->ndst; k++)
    if (r->dst[k].space == HK_SCRATCH && hk_trace_reads(sum, r->dst[k].block) >= 0) return true;
  return false;
}

/* Goes through the uses of the sum at `at`. `apply`: gives them its sources; else returns whether that is possible. */
static bool sums_spread(hk_trace_rank *m, size_t at, bool apply) {
  const hk_trace_record sum = m->records[at];
  const uint16_t chunk = sum.dst[0].block;
  bool overwritten = false;
  for (size_t i = at + 1; i < m->nrecords; i++) {
    hk_trace_record *r = &m->records[i];
    const int k = hk_trace_reads(r, chunk);
    if (k >= 0) {
      if (overwritten || r->nsrc + sum.nsrc - 1 > HK_TRACE_SOURCES) return false;
      if (apply) {
        memmove(&r->src[k + sum.nsrc], &r->src[k + 1], (size_t)(r->nsrc - k - 1) * sizeof *r->src);
        memcpy(&r->src[k], sum.src, sum.nsrc * sizeof *r->src);
        r->nsrc = (uint8_t)(r->nsrc + sum.nsrc - 1);
      }
    }
    if (hk_trace_writes(r, chunk)) return true;
    overwritten = overwritten || sums_overwrites(r, &sum);
  }
  return true;
}

void hk_trace_spread_sums(hk_trace *x, int gpu) {
  hk_trace_rank *m = &x->ranks[gpu];
  for (size_t i = 0; i < m->nrecords; i++) {
    if (!sums_only_scratch(&m->records[i]) || !sums_spread(m, i, false)) continue;
    sums_spread(m, i, true);
    m->records[i].ndst = m->records[i].nsrc = 0; /* gone */
  }
}
