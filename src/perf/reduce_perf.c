/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_perf: the root gets the reduction of all vectors. */
#include "data.h"

static ncclResult_t run(const perf_call *c) {
  return ncclReduce(c->send, c->recv, c->count, c->type, c->op, c->root, c->comm, c->stream);
}

static void input(perf_data *d) { perf_emit_part(d, 0, d->n.send, 0); }

/* The other ranks' result buffers must not change. */
static void expect(perf_data *d) {
  if (d->rank == d->root)
    perf_emit_result(d, 0, d->n.recv, 0);
  else if (d->in_place)
    perf_emit_part(d, 0, d->n.recv, 0);
  else
    perf_emit_zero(d, 0, d->n.recv);
}

const perf_coll perf_collective = {
    .name = "Reduce",
    .has_op = true,
    .has_root = true,
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_one,
    .run = run,
    .input = input,
    .expect = expect,
};
