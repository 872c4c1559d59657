/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter_perf: rank r gets block r of the reduction of all vectors. */
#include "data.h"

static ncclResult_t run(const perf_call *c) {
  return ncclReduceScatter(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static void input(perf_data *d) { perf_emit_part(d, 0, d->n.send, 0); }

static void expect(perf_data *d) { perf_emit_result(d, 0, d->n.recv, (size_t)d->rank * d->n.recv); }

const perf_coll perf_collective = {
    .name = "ReduceScatter",
    .has_op = true,
    .sizes = perf_sizes_scatter,
    .alg_factor = perf_factor_ranks,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = input,
    .expect = expect,
};
