/* SPDX-License-Identifier: Apache-2.0 */
/* sendrecv_perf: every rank sends to the next one and receives from the one before. */
#include "data.h"

static ncclResult_t run(const perf_call *c) {
  int next = (c->rank + 1) % c->nranks, before = (c->rank + c->nranks - 1) % c->nranks;
  NCCL(ncclGroupStart());
  NCCL(ncclSend(c->send, c->count, c->type, next, c->comm, c->stream));
  NCCL(ncclRecv(c->recv, c->count, c->type, before, c->comm, c->stream));
  return ncclGroupEnd();
}

static void expect(perf_data *d) {
  perf_emit_block(d, 0, d->n.recv, (unsigned)((d->rank + d->nranks - 1) % d->nranks), 0);
}

const perf_coll perf_collective = {
    .name = "SendRecv",
    .unchecked_in_place = true,
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_one,
    .run = run,
    .input = perf_own_block,
    .expect = expect,
};
