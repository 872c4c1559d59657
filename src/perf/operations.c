/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that are measured: sizes, bandwidth factors, the call, the data that a rank sends and must have then.
 * Sizes and factors follow nccl-tests. If a buffer is divided into one block for each rank, the size of a block is
 * rounded down to 16 bytes, so sizes below 16 bytes a rank become 0. */
#include <hocket.h>
#include <string.h>
#include "data.h"

/* Libraries lack these: older ones, or all but Hocket. */
#pragma weak ncclAlltoAll
#pragma weak ncclGather
#pragma weak ncclScatter
#pragma weak ncclPutSignal
#pragma weak ncclWaitSignal
#pragma weak hocketAllGatherv
#pragma weak hocketReduceScatterv
#pragma weak hocketAlltoAllv

/* ---- sizes and factors ---- */

static size_t block_of(size_t count, size_t elem, size_t nranks) { return count / nranks & ~(16 / elem - 1); }

static void sizes_same(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  (void)elem, (void)nranks;
  *out = (perf_sizes){.send = count, .recv = count, .param = count};
}

static void sizes_gather(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  size_t block = block_of(count, elem, nranks);
  *out = (perf_sizes){.send = block, .recv = block * nranks, .param = block, .send_in_place = block};
}

static void sizes_scatter(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  size_t block = block_of(count, elem, nranks);
  *out = (perf_sizes){.send = block * nranks, .recv = block, .param = block, .recv_in_place = block};
}

static void sizes_alltoall(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  size_t block = block_of(count, elem, nranks);
  *out = (perf_sizes){.send = block * nranks, .recv = block * nranks, .param = block};
}

static double factor_one(int nranks) {
  (void)nranks;
  return 1;
}
static double factor_ranks(int nranks) { return nranks; }
static double factor_others(int nranks) { return nranks - 1; }
static double factor_ring(int nranks) { return (double)(nranks - 1) / nranks; }
/* Each element crosses the bus 2 (n - 1) times, over n links. */
static double factor_all_reduce(int nranks) { return 2 * factor_ring(nranks); }

/* ---- data that several operations share ---- */

static void own_block(perf_data *d) { perf_emit_block(d, 0, d->n.send, (unsigned)d->rank, 0); }
static void own_part(perf_data *d) { perf_emit_part(d, 0, d->n.send, 0); }

static void all_blocks(perf_data *d) {
  for (int r = 0; r < d->nranks; r++) perf_emit_block(d, (size_t)r * d->n.send, d->n.send, (unsigned)r, 0);
}

static void roots_block(perf_data *d) { perf_emit_block(d, 0, d->n.recv, (unsigned)d->root, 0); }

static void block_before(perf_data *d) {
  perf_emit_block(d, 0, d->n.recv, (unsigned)((d->rank + d->nranks - 1) % d->nranks), 0);
}

/* ---- blocks of different lengths ---- */

/* The start of block `block` of `total` elements; the last block is longest. */
static size_t ramp(size_t total, int nranks, size_t block) {
  size_t n = (size_t)nranks, parts = n * (n + 1) / 2, before = block * (block + 1) / 2;
  return total / parts * before + total % parts * before / parts;
}

static size_t ramp_count(size_t total, int nranks, size_t block) {
  return ramp(total, nranks, block + 1) - ramp(total, nranks, block);
}

/* Rank r's block p has the length of block p + shift of the ramp. */
static void ramp_counts(size_t total, int shift, int nranks, size_t *counts) {
  for (int p = 0; p < nranks; p++) counts[p] = ramp_count(total, nranks, (size_t)((p + shift) % nranks));
}

static size_t ramp_own_at(const perf_call *c) { return c->ramp->own * perf_type_size(c->type); }

/* The counts of the call's blocks. `known`: the library has the function. */
static const size_t *ramp_of(const perf_call *c, bool known, int shift) {
  if (!known) perf_fail(PERF_UNSUPPORTED, "this library has no such function: it is Hocket's own");
  if (c->nranks > PERF_RAMP_RANKS) perf_fail(PERF_UNSUPPORTED, "%d ranks: at most %d", c->nranks, PERF_RAMP_RANKS);
  if (c->ramp->total != c->count) {
    ramp_counts(c->count, shift, c->nranks, c->ramp->counts);
    c->ramp->own = ramp(c->count, c->nranks, (size_t)c->rank);
    c->ramp->total = c->count;
  }
  return c->ramp->counts;
}

static void ramp_block(perf_data *d, int p) {
  perf_emit_block(d, ramp(d->n.param, d->nranks, (size_t)p), ramp_count(d->n.param, d->nranks, (size_t)p), (unsigned)p,
                  0);
}

/* ---- reductions ---- */

static ncclResult_t all_reduce(const perf_call *c) {
  return ncclAllReduce(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}
static void all_reduce_expect(perf_data *d) { perf_emit_result(d, 0, d->n.recv, 0); }

static ncclResult_t reduce(const perf_call *c) {
  return ncclReduce(c->send, c->recv, c->count, c->type, c->op, c->root, c->comm, c->stream);
}
/* The other ranks' result buffers must not change. */
static void reduce_expect(perf_data *d) {
  if (d->rank == d->root)
    perf_emit_result(d, 0, d->n.recv, 0);
  else if (d->in_place)
    perf_emit_part(d, 0, d->n.recv, 0);
  else
    perf_emit_zero(d, 0, d->n.recv);
}

static ncclResult_t reduce_scatter(const perf_call *c) {
  return ncclReduceScatter(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}
static void reduce_scatter_expect(perf_data *d) { perf_emit_result(d, 0, d->n.recv, (size_t)d->rank * d->n.recv); }

static ncclResult_t reduce_scatterv(const perf_call *c) {
  const size_t *counts = ramp_of(c, hocketReduceScatterv != NULL, 0);
  char *recv = (char *)c->recv + ramp_own_at(c);
  return hocketReduceScatterv(c->send, recv, counts, NULL, c->type, c->op, c->comm, c->stream);
}
static void reduce_scatterv_expect(perf_data *d) {
  size_t at = ramp(d->n.param, d->nranks, (size_t)d->rank);
  perf_emit_result(d, at, ramp_count(d->n.param, d->nranks, (size_t)d->rank), at);
}

/* ---- moves ---- */

/* Sends block p to rank p if `to` is p or EACH, block 0 if it is p alone; receives likewise. For libraries before 2.28,
 * which have no ncclAlltoAll, ncclGather and ncclScatter. */
enum { EACH = -1, NONE = -2 };
static ncclResult_t by_pairs(const perf_call *c, int to, int from) {
  size_t block = c->count * perf_type_size(c->type);
  const char *send = c->send;
  char *recv = c->recv;
  NCCL(ncclGroupStart());
  for (int p = 0; p < c->nranks; p++) {
    size_t at = (size_t)p * block;
    if (to == p || to == EACH) NCCL(ncclSend(send + (to == EACH ? at : 0), c->count, c->type, p, c->comm, c->stream));
    if (from == p || from == EACH)
      NCCL(ncclRecv(recv + (from == EACH ? at : 0), c->count, c->type, p, c->comm, c->stream));
  }
  return ncclGroupEnd();
}

static ncclResult_t all_gather(const perf_call *c) {
  return ncclAllGather(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static ncclResult_t all_gatherv(const perf_call *c) {
  const size_t *counts = ramp_of(c, hocketAllGatherv != NULL, 0);
  return hocketAllGatherv((const char *)c->send + ramp_own_at(c), c->recv, counts, NULL, c->type, c->comm, c->stream);
}
static void all_gatherv_input(perf_data *d) { ramp_block(d, d->rank); }
static void all_gatherv_expect(perf_data *d) {
  for (int p = 0; p < d->nranks; p++) ramp_block(d, p);
}

static ncclResult_t alltoall(const perf_call *c) {
  if (!ncclAlltoAll) return by_pairs(c, EACH, EACH);
  return ncclAlltoAll(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}
static void alltoall_input(perf_data *d) {
  for (int p = 0; p < d->nranks; p++)
    perf_emit_block(d, (size_t)p * d->n.param, d->n.param, (unsigned)d->rank, (unsigned)p);
}
static void alltoall_expect(perf_data *d) {
  for (int p = 0; p < d->nranks; p++)
    perf_emit_block(d, (size_t)p * d->n.param, d->n.param, (unsigned)p, (unsigned)d->rank);
}

/* Each rank's blocks grow, starting at a different peer. The counts are equal for sends and receives, because they are
 * symmetric. */
static ncclResult_t alltoallv(const perf_call *c) {
  const size_t *counts = ramp_of(c, hocketAlltoAllv != NULL, c->rank);
  return hocketAlltoAllv(c->send, counts, NULL, c->recv, counts, NULL, c->type, c->comm, c->stream);
}
static void alltoallv_data(perf_data *d, bool result) {
  size_t counts[PERF_RAMP_RANKS], at = 0;
  ramp_counts(d->n.param, d->rank, d->nranks, counts);
  for (int p = 0; p < d->nranks; at += counts[p++])
    perf_emit_block(d, at, counts[p], (unsigned)(result ? p : d->rank), (unsigned)(result ? d->rank : p));
}
static void alltoallv_input(perf_data *d) { alltoallv_data(d, false); }
static void alltoallv_expect(perf_data *d) { alltoallv_data(d, true); }

static ncclResult_t broadcast(const perf_call *c) {
  return ncclBroadcast(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}
static void broadcast_input(perf_data *d) {
  if (d->rank == d->root) roots_block(d);
}

static ncclResult_t gather(const perf_call *c) {
  if (!ncclGather) return by_pairs(c, c->root, c->rank == c->root ? EACH : NONE);
  return ncclGather(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}
/* The other ranks' result buffers must not change. */
static void gather_expect(perf_data *d) {
  if (d->rank == d->root) {
    all_blocks(d);
    return;
  }
  size_t block = d->n.send, before = d->in_place ? (size_t)d->rank * block : 0;
  perf_emit_zero(d, 0, before);
  if (d->in_place) perf_emit_block(d, before, block, (unsigned)d->rank, 0), before += block;
  perf_emit_zero(d, before, d->n.recv - before);
}

static ncclResult_t scatter(const perf_call *c) {
  if (!ncclScatter) return by_pairs(c, c->rank == c->root ? EACH : NONE, c->root);
  return ncclScatter(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}
static void scatter_input(perf_data *d) {
  if (d->rank != d->root) return;
  for (int p = 0; p < d->nranks; p++)
    perf_emit_block(d, (size_t)p * d->n.recv, d->n.recv, (unsigned)d->root, (unsigned)p);
}
static void scatter_expect(perf_data *d) { perf_emit_block(d, 0, d->n.recv, (unsigned)d->root, (unsigned)d->rank); }

/* Before step s a rank holds the 2^s blocks of its subcube; it swaps them with the rank across dimension s. */
static ncclResult_t hypercube(const perf_call *c) {
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
static int hypercube_steps(int nranks) {
  int n = 0;
  while (1 << n < nranks) n++;
  return n ? n : 1;
}

static ncclResult_t sendrecv(const perf_call *c) {
  int next = (c->rank + 1) % c->nranks, before = (c->rank + c->nranks - 1) % c->nranks;
  NCCL(ncclGroupStart());
  NCCL(ncclSend(c->send, c->count, c->type, next, c->comm, c->stream));
  NCCL(ncclRecv(c->recv, c->count, c->type, before, c->comm, c->stream));
  return ncclGroupEnd();
}

static ncclResult_t put(const perf_call *c) {
  int next = (c->rank + 1) % c->nranks;
  ncclWaitSignalDesc_t before = {.opCnt = 1, .peer = (c->rank + c->nranks - 1) % c->nranks};
  if (!ncclPutSignal || !ncclWaitSignal) perf_fail(PERF_UNSUPPORTED, "this library has no one-sided operations");
  NCCL(ncclPutSignal(c->send, c->count, c->type, next, c->window, c->window_at, 0, 0, 0, c->comm, c->stream));
  return ncclWaitSignal(1, &before, c->comm, c->stream);
}

/* ---- the table; the Makefile reads the first column ---- */

#define OPERATION(program_, name_, sizes_, alg_, bus_, run_, input_, expect_, ...)                                     \
  {.program = #program_ "_perf",                                                                                       \
   .name = name_,                                                                                                      \
   .sizes = sizes_,                                                                                                    \
   .alg_factor = alg_,                                                                                                 \
   .bus_factor = bus_,                                                                                                 \
   .run = run_,                                                                                                        \
   .input = input_,                                                                                                    \
   .expect = expect_,                                                                                                  \
   __VA_ARGS__},
static const perf_coll operations[] = {
    /* clang-format off */
    OPERATION(all_reduce, "AllReduce", sizes_same, factor_one, factor_all_reduce, all_reduce, own_part,
              all_reduce_expect, .has_op = true)
    OPERATION(all_gather, "AllGather", sizes_gather, factor_ranks, factor_ring, all_gather, own_block, all_blocks,
              .no_op = "none")
    OPERATION(reduce_scatter, "ReduceScatter", sizes_scatter, factor_ranks, factor_ring, reduce_scatter, own_part,
              reduce_scatter_expect, .has_op = true)
    OPERATION(broadcast, "Broadcast", sizes_same, factor_one, factor_one, broadcast, broadcast_input, roots_block,
              .has_root = true, .no_op = "none")
    OPERATION(reduce, "Reduce", sizes_same, factor_one, factor_one, reduce, own_part, reduce_expect,
              .has_op = true, .has_root = true)
    OPERATION(sendrecv, "SendRecv", sizes_same, factor_one, factor_one, sendrecv, own_block, block_before,
              .unchecked_in_place = true)
    OPERATION(put, "PutSignal", sizes_same, factor_one, factor_one, put, own_block, block_before,
              .windows = true, .unchecked_in_place = true)
    OPERATION(alltoall, "AlltoAll", sizes_alltoall, factor_ranks, factor_ring, alltoall, alltoall_input,
              alltoall_expect, .no_op = "none", .unchecked_in_place = true)
    OPERATION(gather, "Gather", sizes_gather, factor_ranks, factor_ring, gather, own_block, gather_expect,
              .has_root = true, .no_op = "none")
    OPERATION(scatter, "Scatter", sizes_scatter, factor_ranks, factor_ring, scatter, scatter_input, scatter_expect,
              .has_root = true, .no_op = "none")
    OPERATION(hypercube, "HyperCube", sizes_gather, factor_others, factor_one, hypercube, own_block, all_blocks,
              .no_op = "", .only_pow2 = true, .steps = hypercube_steps)
    OPERATION(all_gatherv, "AllGatherv", sizes_same, factor_one, factor_ring, all_gatherv, all_gatherv_input,
              all_gatherv_expect, .no_op = "none")
    OPERATION(reduce_scatterv, "ReduceScatterv", sizes_same, factor_one, factor_ring, reduce_scatterv, own_part,
              reduce_scatterv_expect, .has_op = true)
    OPERATION(alltoallv, "AlltoAllv", sizes_same, factor_one, factor_ring, alltoallv, alltoallv_input,
              alltoallv_expect, .no_op = "none", .unchecked_in_place = true)
    /* clang-format on */
};

const perf_coll *perf_coll_find(const char *program) {
  for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
    if (!strcmp(program, operations[i].program)) return &operations[i];
  return NULL;
}

void perf_coll_list(FILE *f) {
  for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
    fprintf(f, "%s%s", i ? " " : "", operations[i].program);
}
