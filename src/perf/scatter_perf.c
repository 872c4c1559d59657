/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_perf: rank r gets block r of the root's vector. */
#include "data.h"

#pragma weak ncclScatter

/* Libraries before 2.28 have no ncclScatter. */
static ncclResult_t by_pairs(const perf_call *c) {
  size_t block = c->count * perf_type_size(c->type);
  NCCL(ncclGroupStart());
  for (int p = 0; p < c->nranks && c->rank == c->root; p++)
    NCCL(ncclSend((const char *)c->send + (size_t)p * block, c->count, c->type, p, c->comm, c->stream));
  NCCL(ncclRecv(c->recv, c->count, c->type, c->root, c->comm, c->stream));
  return ncclGroupEnd();
}

static ncclResult_t run(const perf_call *c) {
  if (!ncclScatter) return by_pairs(c);
  return ncclScatter(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static void input(perf_data *d) {
  if (d->rank != d->root) return;
  for (int p = 0; p < d->nranks; p++)
    perf_emit_block(d, (size_t)p * d->n.recv, d->n.recv, (unsigned)d->root, (unsigned)p);
}

static void expect(perf_data *d) { perf_emit_block(d, 0, d->n.recv, (unsigned)d->root, (unsigned)d->rank); }

const perf_coll perf_collective = {
    .name = "Scatter",
    .has_root = true,
    .no_op = "none",
    .sizes = perf_sizes_scatter,
    .alg_factor = perf_factor_ranks,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = input,
    .expect = expect,
};
