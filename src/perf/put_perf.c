/* SPDX-License-Identifier: Apache-2.0 */
/* put_perf: every rank puts to the next one and waits for the signal of the one before. */
#include "data.h"

/* Older libraries lack these. */
#pragma weak ncclPutSignal
#pragma weak ncclWaitSignal

static ncclResult_t run(const perf_call *c) {
  int next = (c->rank + 1) % c->nranks;
  ncclWaitSignalDesc_t before = {.opCnt = 1, .peer = (c->rank + c->nranks - 1) % c->nranks};
  if (!ncclPutSignal || !ncclWaitSignal) perf_fail(PERF_UNSUPPORTED, "this library has no one-sided operations");
  NCCL(ncclPutSignal(c->send, c->count, c->type, next, c->window, c->window_at, 0, 0, 0, c->comm, c->stream));
  return ncclWaitSignal(1, &before, c->comm, c->stream);
}

static void expect(perf_data *d) {
  perf_emit_block(d, 0, d->n.recv, (unsigned)((d->rank + d->nranks - 1) % d->nranks), 0);
}

const perf_coll perf_collective = {
    .name = "PutSignal",
    .windows = true,
    .unchecked_in_place = true,
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_one,
    .run = run,
    .input = perf_own_block,
    .expect = expect,
};
