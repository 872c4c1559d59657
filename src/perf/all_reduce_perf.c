/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce_perf: every rank gets the reduction of all vectors. */
#include "data.h"

static ncclResult_t run(const perf_call *c) {
  return ncclAllReduce(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static void input(perf_data *d) { perf_emit_part(d, 0, d->n.send, 0); }

static void expect(perf_data *d) { perf_emit_result(d, 0, d->n.recv, 0); }

/* Each element crosses the bus 2 (n - 1) times, over n links. */
static double bus_factor(int nranks) { return 2 * perf_factor_ring(nranks); }

const perf_coll perf_collective = {
    .name = "AllReduce",
    .has_op = true,
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = bus_factor,
    .run = run,
    .input = input,
    .expect = expect,
};
