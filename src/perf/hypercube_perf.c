/* SPDX-License-Identifier: Apache-2.0 */
/* hypercube_perf: an allgather of log2(n) exchanges, written with send and receive. */
#include "data.h"

/* Before step s a rank holds the 2^s blocks of its subcube; it swaps them with the rank across dimension s. */
static ncclResult_t run(const perf_call *c) {
  int width = 1 << c->step, peer = c->rank ^ width, own = c->rank & ~(width - 1);
  size_t block = c->count * perf_type_size(c->type);
  char *recv = c->recv, *mine = recv + (size_t)c->rank * block;
  if (c->step == 0 && mine != c->send && perf_mem_select()->copy(mine, c->send, block, c->stream))
    return ncclSystemError;
  if (c->nranks == 1) return ncclSuccess;
  NCCL(ncclGroupStart());
  NCCL(ncclSend(recv + (size_t)own * block, c->count * (size_t)width, c->type, peer, c->comm, c->stream));
  NCCL(ncclRecv(recv + (size_t)(own ^ width) * block, c->count * (size_t)width, c->type, peer, c->comm, c->stream));
  return ncclGroupEnd();
}

static int steps(int nranks) {
  int n = 0;
  while (1 << n < nranks) n++;
  return n ? n : 1;
}

static double alg_factor(int nranks) { return nranks - 1; }

const perf_coll perf_collective = {
    .name = "HyperCube",
    .no_op = "",
    .only_pow2 = true,
    .sizes = perf_sizes_gather,
    .alg_factor = alg_factor,
    .bus_factor = perf_factor_one,
    .steps = steps,
    .run = run,
    .input = perf_own_block,
    .expect = perf_all_blocks,
};
