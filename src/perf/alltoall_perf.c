/* SPDX-License-Identifier: Apache-2.0 */
/* alltoall_perf: block p of rank r becomes block r of rank p. */
#include "data.h"

#pragma weak ncclAlltoAll

/* Libraries before 2.28 have no ncclAlltoAll. */
static ncclResult_t by_pairs(const perf_call *c) {
  size_t block = c->count * perf_type_size(c->type);
  NCCL(ncclGroupStart());
  for (int p = 0; p < c->nranks; p++) {
    NCCL(ncclSend((const char *)c->send + (size_t)p * block, c->count, c->type, p, c->comm, c->stream));
    NCCL(ncclRecv((char *)c->recv + (size_t)p * block, c->count, c->type, p, c->comm, c->stream));
  }
  return ncclGroupEnd();
}

static ncclResult_t run(const perf_call *c) {
  if (!ncclAlltoAll) return by_pairs(c);
  return ncclAlltoAll(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static void input(perf_data *d) {
  for (int p = 0; p < d->nranks; p++)
    perf_emit_block(d, (size_t)p * d->n.param, d->n.param, (unsigned)d->rank, (unsigned)p);
}

static void expect(perf_data *d) {
  for (int p = 0; p < d->nranks; p++)
    perf_emit_block(d, (size_t)p * d->n.param, d->n.param, (unsigned)p, (unsigned)d->rank);
}

const perf_coll perf_collective = {
    .name = "AlltoAll",
    .no_op = "none",
    .unchecked_in_place = true,
    .sizes = perf_sizes_alltoall,
    .alg_factor = perf_factor_ranks,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = input,
    .expect = expect,
};
