/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatterv_perf: reduce-scatter with blocks of different lengths, which grow evenly from rank to rank. */
#include <hocket.h>
#include "data.h"

#pragma weak hocketReduceScatterv

static ncclResult_t run(const perf_call *c) {
  size_t counts[PERF_RAMP_RANKS], own = perf_ramp(c->count, c->nranks, (size_t)c->rank) * perf_type_size(c->type);
  perf_ramp_check(hocketReduceScatterv != NULL, c->nranks);
  for (int p = 0; p < c->nranks; p++) counts[p] = perf_ramp_count(c->count, c->nranks, (size_t)p);
  return hocketReduceScatterv(c->send, (char *)c->recv + own, counts, NULL, c->type, c->op, c->comm, c->stream);
}

static void input(perf_data *d) { perf_emit_part(d, 0, d->n.param, 0); }
static void expect(perf_data *d) {
  size_t at = perf_ramp(d->n.param, d->nranks, (size_t)d->rank);
  perf_emit_result(d, at, perf_ramp_count(d->n.param, d->nranks, (size_t)d->rank), at);
}

const perf_coll perf_collective = {
    .name = "ReduceScatterv",
    .has_op = true,
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = input,
    .expect = expect,
};
