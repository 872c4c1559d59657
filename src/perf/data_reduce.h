/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions with results known in closed form: one element costs the same for 2 ranks as for 1000.
 *
 * integers   part of rank r: a + r b (random a, b), so sum = n a + b n(n-1)/2, and premulsum with scalars s_r
 *            = a sum(s_r) + b sum(s_r r), all modulo the type's size.
 * otherwise  each element deals n roles to the ranks, rotated by a random amount:
 *   prod       role 0 a random number, the others small known factors
 *   max, min   role 0 the extreme, the others up to 16 steps away from it
 *   sum        floats: some roles positive and some negative integers times a power of two, so small that every partial
 *              sum in every order is exact in the type; the rest (ranks beyond 2^(mantissa bits + 1)) add 0
 *   avg        integers that do not overflow; floats as sum; if n is no power of two, the rounding of a division is
 *              allowed */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

enum { PERF_CHUNK = 4096 }; /* elements; a chunk's arrays stay in the second-level cache */

typedef struct perf_reduce_plan {
  ncclDataType_t type;
  int op, n, rank;
  bool rounds; /* the result is given by exact and slack */
  /* floats */
  int mantissa_bits, exponent_bias, shift; /* shift: from float's mantissa */
  uint32_t positive, negative;             /* how many roles have each sign */
  uint32_t top_positive, top_negative;     /* their largest integer */
  int low_exponent;
  uint32_t spread; /* exponents low .. low + spread; a power of two minus one */
  double part_scale, rounding, tiny;
  int64_t lowest, magnitudes; /* bits of the smallest normal number, and how many normal ones there are */
  uint32_t doubled;           /* prod: how many roles are 2, and how many 1/2 */
  /* integers */
  uint64_t sum_scalars, sum_weighted, power3, unit;
} perf_reduce_plan;

typedef struct perf_reduce_chunk {
  _Alignas(64) uint64_t bits[PERF_CHUNK]; /* elements of the type, packed */
  _Alignas(64) double exact[PERF_CHUNK], slack[PERF_CHUNK];
  _Alignas(64) uint32_t hash[PERF_CHUNK], role[PERF_CHUNK];
  _Alignas(64) float value[PERF_CHUNK];
} perf_reduce_chunk;

/* A full-avalanche mixer of 32 bits (the finaliser of MurmurHash3). */
static inline uint32_t perf_hash(uint32_t x) {
  x ^= x >> 16, x *= 0x85ebca6bu;
  x ^= x >> 13, x *= 0xc2b2ae35u;
  return x ^ x >> 16;
}
/* Uniform in 0 .. n - 1 from a hash. */
static inline uint32_t perf_below(uint32_t hash, uint32_t n) { return (uint32_t)((uint64_t)hash * n >> 32); }

/* The scalar of premulsum: 1 for even ranks, 2 for odd ones. */
static inline unsigned perf_scalar(int rank) { return rank % 2 ? 2 : 1; }

/* One whole chunk; the loops exist twice, see data_reduce_loops.h. */
typedef void perf_reduce_pattern(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c, bool result);
perf_reduce_pattern perf_reduce_pattern_plain, perf_reduce_pattern_avx2;

void perf_reduce_prepare(perf_reduce_plan *p, ncclDataType_t type, int op, int nranks, int rank);
/* Fills c->bits with a whole chunk of what the plan's rank contributes. */
void perf_reduce_part(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c);
/* Fills c->bits, or exact and slack where p->rounds, with the reduction. */
void perf_reduce_result(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c);
