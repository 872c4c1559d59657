/* SPDX-License-Identifier: Apache-2.0 */
/* all_gatherv_perf: allgather with blocks of different lengths, which grow evenly from rank to rank. */
#include <hocket.h>
#include "data.h"

#pragma weak hocketAllGatherv

static ncclResult_t run(const perf_call *c) {
  size_t counts[PERF_RAMP_RANKS], own = perf_ramp(c->count, c->nranks, (size_t)c->rank) * perf_type_size(c->type);
  perf_ramp_check(hocketAllGatherv != NULL, c->nranks);
  for (int p = 0; p < c->nranks; p++) counts[p] = perf_ramp_count(c->count, c->nranks, (size_t)p);
  return hocketAllGatherv((const char *)c->send + own, c->recv, counts, NULL, c->type, c->comm, c->stream);
}

static void emit(perf_data *d, int p) {
  size_t total = d->n.param;
  perf_emit_block(d, perf_ramp(total, d->nranks, (size_t)p), perf_ramp_count(total, d->nranks, (size_t)p), (unsigned)p,
                  0);
}
static void input(perf_data *d) { emit(d, d->rank); }
static void expect(perf_data *d) {
  for (int p = 0; p < d->nranks; p++) emit(d, p);
}

const perf_coll perf_collective = {
    .name = "AllGatherv",
    .no_op = "none",
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = input,
    .expect = expect,
};
