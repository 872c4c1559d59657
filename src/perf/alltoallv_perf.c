/* SPDX-License-Identifier: Apache-2.0 */
/* alltoallv_perf: alltoall with blocks of different lengths: each rank's blocks grow evenly, starting at a different
 * peer. */
#include <hocket.h>
#include "data.h"

#pragma weak hocketAlltoAllv

static size_t place(int rank, int nranks, int peer) { return (size_t)((rank + peer) % nranks); }

/* Equal for sends and receives, because the counts are symmetric. */
static void counts_of(size_t total, int rank, int nranks, size_t *counts) {
  for (int p = 0; p < nranks; p++) counts[p] = perf_ramp_count(total, nranks, place(rank, nranks, p));
}

static ncclResult_t run(const perf_call *c) {
  size_t counts[PERF_RAMP_RANKS];
  perf_ramp_check(hocketAlltoAllv != NULL, c->nranks);
  counts_of(c->count, c->rank, c->nranks, counts);
  return hocketAlltoAllv(c->send, counts, NULL, c->recv, counts, NULL, c->type, c->comm, c->stream);
}

static void emit(perf_data *d, bool result) {
  size_t counts[PERF_RAMP_RANKS], at = 0;
  counts_of(d->n.param, d->rank, d->nranks, counts);
  for (int p = 0; p < d->nranks; at += counts[p++])
    perf_emit_block(d, at, counts[p], (unsigned)(result ? p : d->rank), (unsigned)(result ? d->rank : p));
}
static void input(perf_data *d) { emit(d, false); }
static void expect(perf_data *d) { emit(d, true); }

const perf_coll perf_collective = {
    .name = "AlltoAllv",
    .no_op = "none",
    .unchecked_in_place = true,
    .sizes = perf_sizes_same,
    .alg_factor = perf_factor_one,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = input,
    .expect = expect,
};
