/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of the patterns, and the choice between the loops' two compilations. */
#define PERF_REDUCE_PATTERN perf_reduce_pattern_plain
#include "data_reduce_loops.h"

static void data_reduce_prepare_float(perf_reduce_plan *p) {
  static const struct {
    int mantissa, bias, low, spread;
    int64_t lowest,
        /* normal finite magnitudes, as bits; of doubles the middle half, because 63 bits must hold the count */
        highest;
  } formats[ncclNumTypes] = {
      [ncclFloat16] = {10, 15, -8, 7, 0x0400, 0x7bff},
      [ncclBfloat16] = {7, 127, -16, 31, 0x0080, 0x7f7f},
      [ncclFloat8e4m3] = {3, 7, -2, 3, 0x08, 0x7e},
      [ncclFloat8e5m2] = {2, 15, -2, 7, 0x04, 0x7b},
      [ncclFloat32] = {23, 127, -16, 31, 0x00800000, 0x7f7fffff},
      [ncclFloat64] = {52, 1023, -16, 31, 0x2000000000000000, 0x5fffffffffffffff},
  };
  p->mantissa_bits = formats[p->type].mantissa;
  p->exponent_bias = formats[p->type].bias;
  p->shift = 23 - p->mantissa_bits;
  p->lowest = formats[p->type].lowest;
  p->magnitudes = formats[p->type].highest - formats[p->type].lowest + 1;
  p->low_exponent = formats[p->type].low;
  p->spread = (uint32_t)formats[p->type].spread;
  /* The largest integer below which all are exact; doubles use 2^30 and a factor, see double_unit. */
  uint32_t limit = p->type == ncclFloat64 ? 1u << 30 : 1u << (p->mantissa_bits + 1);
  uint32_t n = (uint32_t)p->n;
  p->positive = (n + 1) / 2 < limit ? (n + 1) / 2 : limit;
  p->negative = n / 2 < limit ? n / 2 : limit;
  p->top_positive = limit / p->positive;
  p->top_negative = p->negative ? limit / p->negative : 1;
  /* premulsum: odd ranks send half, and the scalar 2 restores the whole. */
  p->part_scale = p->op == 5 && p->rank % 2 ? 0.5 : 1;
  if (p->op == ncclAvg) {
    p->low_exponent = 0, p->spread = 3; /* neither the sums nor the quotients leave the normal numbers */
    p->rounds = true;
    bool exact = (p->n & (p->n - 1)) == 0;
    p->rounding = exact ? 0 : ldexp(0.5 * (p->n + 4), -p->mantissa_bits);
    p->tiny = exact ? 0 : ldexp(p->n + 1, 1 - p->exponent_bias - p->mantissa_bits);
  }
  uint32_t most = p->exponent_bias < 20 ? 3 : 8; /* partial products must stay normal numbers */
  p->doubled = (n - 1) / 2 < most ? (n - 1) / 2 : most;
}

static void data_reduce_prepare_integer(perf_reduce_plan *p) {
  uint64_t n = (uint64_t)p->n;
  int bits = p->type <= ncclUint8 ? 8 : p->type <= ncclUint32 ? 32 : 64;
  for (uint64_t r = 0; r < n; r++) {
    uint64_t s = p->op == 5 ? perf_scalar((int)r) : 1;
    p->sum_scalars += s, p->sum_weighted += s * r;
  }
  p->power3 = 1;
  for (uint64_t i = 2; i < n; i++) p->power3 *= 3;
  p->unit = (((uint64_t)1 << (bits - 1)) - 1) / n; /* avg: n times this does not overflow */
}

void perf_reduce_prepare(perf_reduce_plan *p, ncclDataType_t type, int op, int nranks, int rank) {
  memset(p, 0, sizeof *p);
  p->type = type, p->op = op, p->n = nranks, p->rank = rank;
  if (is_float(type))
    data_reduce_prepare_float(p);
  else
    data_reduce_prepare_integer(p);
}

#if defined(__x86_64__)
static perf_reduce_pattern *data_reduce_loops(void) {
  return __builtin_cpu_supports("avx2") ? perf_reduce_pattern_avx2 : perf_reduce_pattern_plain;
}
#else
static perf_reduce_pattern *data_reduce_loops(void) { return perf_reduce_pattern_plain; }
#endif

void perf_reduce_part(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c) {
  data_reduce_loops()(p, key, c, false);
}

void perf_reduce_result(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c) {
  data_reduce_loops()(p, key, c, true);
}
