/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather_perf: every rank gets the blocks of all ranks, in rank order. */
#include "data.h"

static ncclResult_t run(const perf_call *c) {
  return ncclAllGather(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

const perf_coll perf_collective = {
    .name = "AllGather",
    .no_op = "none",
    .sizes = perf_sizes_gather,
    .alg_factor = perf_factor_ranks,
    .bus_factor = perf_factor_ring,
    .run = run,
    .input = perf_own_block,
    .expect = perf_all_blocks,
};
