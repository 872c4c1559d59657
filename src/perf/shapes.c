/* SPDX-License-Identifier: Apache-2.0 */
/* Buffer sizes, bandwidth factors and data that several collectives share. Sizes and factors follow nccl-tests. If a
 * buffer is divided into one block for each rank, the size of a block is rounded down to 16 bytes, so sizes below 16
 * bytes a rank become 0. */
#include "data.h"

static size_t block_of(size_t count, size_t elem, size_t nranks) { return count / nranks & ~(16 / elem - 1); }

void perf_sizes_same(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  (void)elem, (void)nranks;
  *out = (perf_sizes){.send = count, .recv = count, .param = count};
}

void perf_sizes_gather(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  size_t block = block_of(count, elem, nranks);
  *out = (perf_sizes){.send = block, .recv = block * nranks, .param = block, .send_in_place = block};
}

void perf_sizes_scatter(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  size_t block = block_of(count, elem, nranks);
  *out = (perf_sizes){.send = block * nranks, .recv = block, .param = block, .recv_in_place = block};
}

void perf_sizes_alltoall(size_t count, size_t elem, size_t nranks, perf_sizes *out) {
  size_t block = block_of(count, elem, nranks);
  *out = (perf_sizes){.send = block * nranks, .recv = block * nranks, .param = block};
}

size_t perf_ramp(size_t total, int nranks, size_t block) {
  size_t n = (size_t)nranks, parts = n * (n + 1) / 2, before = block * (block + 1) / 2;
  return total / parts * before + total % parts * before / parts;
}

size_t perf_ramp_count(size_t total, int nranks, size_t block) {
  return perf_ramp(total, nranks, block + 1) - perf_ramp(total, nranks, block);
}

void perf_ramp_check(bool known, int nranks) {
  if (!known) perf_fail(PERF_UNSUPPORTED, "this library has no such function: it is Hocket's own");
  if (nranks > PERF_RAMP_RANKS) perf_fail(PERF_UNSUPPORTED, "%d ranks: at most %d", nranks, PERF_RAMP_RANKS);
}

double perf_factor_one(int nranks) {
  (void)nranks;
  return 1;
}

double perf_factor_ranks(int nranks) { return nranks; }

double perf_factor_ring(int nranks) { return (double)(nranks - 1) / nranks; }

void perf_own_block(perf_data *d) { perf_emit_block(d, 0, d->n.send, (unsigned)d->rank, 0); }

void perf_all_blocks(perf_data *d) {
  for (int r = 0; r < d->nranks; r++) perf_emit_block(d, (size_t)r * d->n.send, d->n.send, (unsigned)r, 0);
}
