/* SPDX-License-Identifier: Apache-2.0 */
/* gather_perf: the root gets the blocks of all ranks, in rank order. */
#include "data.h"

#pragma weak ncclGather

/* Libraries before 2.28 have no ncclGather. */
static ncclResult_t by_pairs(const perf_call *c) {
  size_t block = c->count * perf_type_size(c->type);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(c->send, c->count, c->type, c->root, c->comm, c->stream));
  for (int p = 0; p < c->nranks && c->rank == c->root; p++)
    NCCL(ncclRecv((char *)c->recv + (size_t)p * block, c->count, c->type, p, c->comm, c->stream));
  return ncclGroupEnd();
}

static ncclResult_t run(const perf_call *c) {
  if (!ncclGather) return by_pairs(c);
  return ncclGather(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

/* The other ranks' result buffers must not change. */
static void expect(perf_data *d) {
  if (d->rank == d->root) {
    perf_all_blocks(d);
    return;
  }
  size_t block = d->n.send, before = d->in_place ? (size_t)d->rank * block : 0;
  perf_emit_zero(d, 0, before);
  if (d->in_place) perf_emit_block(d, before, block, (unsigned)d->rank, 0), before += block;
  perf_emit_zero(d, before, d->n.recv - before);
}

const perf_coll perf_collective = {
    .name = "Gather",
    .has_root = true,
    .no_op = "none",
    .sizes = perf_sizes_gather,
    .alg_factor = perf_factor_ranks,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = perf_own_block,
    .expect = expect,
};
