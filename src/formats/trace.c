/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes and places of a trace (trace.h). */
#include "trace.h"
#include <stdlib.h>

int hk_trace_lane(const hk_trace *x, int block) {
  while (x->blocks[block].lane != block) block = x->blocks[block].lane;
  return block;
}

void hk_trace_tie(hk_trace *x, int a, int b) {
  a = hk_trace_lane(x, a), b = hk_trace_lane(x, b);
  x->blocks[a > b ? a : b].lane = a < b ? a : b;
}

int hk_trace_reads(const hk_trace_record *r, uint16_t chunk) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space == HK_SCRATCH && r->src[k].block == chunk) return k;
  return -1;
}

bool hk_trace_writes(const hk_trace_record *r, uint16_t chunk) {
  for (int k = 0; k < r->ndst; k++)
    if (r->dst[k].space == HK_SCRATCH && r->dst[k].block == chunk) return true;
  return false;
}

int hk_trace_alias(const hk_trace *x, int gpu, int in) {
  const int parts = x->parts;
  if (hk_coll_partition(x->coll) == HK_PART_SPLIT) return in;
  const int whole = hk_coll_alias(x->coll, gpu, x->nranks, 0, in / parts);
  return whole < 0 ? whole : whole * parts + in % parts;
}

void hk_trace_free(hk_trace *x) {
  for (int r = 0; x->ranks && r < x->nranks; r++) free(x->ranks[r].records);
  free(x->ranks);
  free(x->links);
  free(x->blocks);
}
