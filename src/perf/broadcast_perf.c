/* SPDX-License-Identifier: Apache-2.0 */
/* broadcast_perf: every rank gets the root's vector. */
#include "data.h"

static ncclResult_t run(const perf_call *c) {
  return ncclBroadcast(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static void input(perf_data *d) {
  if (d->rank == d->root) perf_emit_block(d, 0, d->n.send, (unsigned)d->root, 0);
}

static void expect(perf_data *d) { perf_emit_block(d, 0, d->n.recv, (unsigned)d->root, 0); }

const perf_coll perf_collective = {
    .name = "Broadcast",
    .has_root = true,
    .no_op = "none",
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_one,
    .run = run,
    .input = input,
    .expect = expect,
};
