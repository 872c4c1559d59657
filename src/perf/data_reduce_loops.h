/* SPDX-License-Identifier: Apache-2.0 */
/* The patterns of data_reduce.h. Loops run over whole chunks with only arithmetic inside, so that the compiler
 * vectorises them. Included by data_reduce.c and data_reduce_avx2.c, which name the one function that this file
 * exports. */
#include <math.h>
#include <string.h>
#include "data_reduce.h"

enum { FAR_STEPS = 16 }; /* max and min: how far the other roles stay from the extreme */

#define EACH(i) for (uint32_t i = 0; i < PERF_CHUNK; i++)

static bool is_float(ncclDataType_t t) { return t >= ncclFloat16; }

/* c->hash: one hash for each element; c->role: the role of the plan's rank there. */
static void deal_roles(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c) {
  uint32_t n = (uint32_t)p->n, rank = (uint32_t)p->rank;
  uint32_t *restrict hash = c->hash, *restrict role = c->role;
  EACH(i) {
    uint32_t h = perf_hash(key + i * 0x9e3779b9u);
    uint32_t r = rank + ((h >> 16) * n >> 16);
    hash[i] = h;
    role[i] = r >= n ? r - n : r;
  }
}

/* ------------------------------------------------------------ integers -- */

/* Two independent words from one hash. */
#define WORD_A(h) ((uint64_t)(h)*0x9e3779b97f4a7c15u ^ (uint64_t)(h) << 29)
#define WORD_B(h) ((uint64_t)(h)*0xd6e8feb86659fd93u >> 7)

/* 0 .. top from a random word. */
#define SCALED(word, top) ((uint64_t)((unsigned __int128)(word) * ((top) + 1) >> 64))

#define INTEGER_PATTERNS(U, S, NAME, TOP, SIGNED)                                                                      \
  static void part_##NAME(const perf_reduce_plan *p, perf_reduce_chunk *c) {                                           \
    U *restrict out = (U *)c->bits;                                                                                    \
    const uint32_t *restrict hash = c->hash, *restrict role = c->role;                                                 \
    const U flip = SIGNED ? (U)1 << (8 * sizeof(U) - 1) : 0, rank = (U)p->rank;                                        \
    const uint64_t unit = p->unit;                                                                                     \
    switch (p->op) {                                                                                                   \
      case ncclProd:                                                                                                   \
        EACH(i) out[i] = (U)(role[i] == 0 ? WORD_A(hash[i]) : role[i] == 1 ? (WORD_B(hash[i]) | 1) : 3);               \
        break;                                                                                                         \
      case ncclMax: /* unsigned order, which flipping the sign bit turns into the signed one */                        \
        EACH(i) {                                                                                                      \
          U top = (U)(WORD_A(hash[i]) | FAR_STEPS);                                                                    \
          U far = (U)(1 + ((hash[i] + role[i]) & (FAR_STEPS - 1)));                                                    \
          out[i] = (U)((role[i] ? (U)(top - far) : top) ^ flip);                                                       \
        }                                                                                                              \
        break;                                                                                                         \
      case ncclMin:                                                                                                    \
        EACH(i) {                                                                                                      \
          U low = (U)(WORD_A(hash[i]) & ~(uint64_t)FAR_STEPS);                                                         \
          U far = (U)(1 + ((hash[i] + role[i]) & (FAR_STEPS - 1)));                                                    \
          out[i] = (U)((role[i] ? (U)(low + far) : low) ^ flip);                                                       \
        }                                                                                                              \
        break;                                                                                                         \
      case ncclAvg:                                                                                                    \
        EACH(i) {                                                                                                      \
          U few = (U)SCALED(WORD_A(hash[i]), unit);                                                                    \
          U own = (U)SCALED(WORD_A(~hash[i]), unit ? unit : (uint64_t)TOP);                                            \
          U v = role[i] ? few : own;                                                                                   \
          out[i] = SIGNED && hash[i] & 1 ? (U)(0 - v) : v;                                                             \
        }                                                                                                              \
        break;                                                                                                         \
      default: EACH(i) out[i] = (U)(WORD_A(hash[i]) + rank * (U)WORD_B(hash[i]));                                      \
    }                                                                                                                  \
  }                                                                                                                    \
  static void result_##NAME(const perf_reduce_plan *p, perf_reduce_chunk *c) {                                         \
    U *restrict out = (U *)c->bits;                                                                                    \
    const uint32_t *restrict hash = c->hash;                                                                           \
    const U flip = SIGNED ? (U)1 << (8 * sizeof(U) - 1) : 0;                                                           \
    const uint64_t unit = p->unit, others = (uint64_t)p->n - 1;                                                        \
    switch (p->op) {                                                                                                   \
      case ncclProd: EACH(i) out[i] = (U)(WORD_A(hash[i]) * (others ? WORD_B(hash[i]) | 1 : 1) * p->power3); break;    \
      case ncclMax: EACH(i) out[i] = (U)((U)(WORD_A(hash[i]) | FAR_STEPS) ^ flip); break;                              \
      case ncclMin: EACH(i) out[i] = (U)((U)(WORD_A(hash[i]) & ~(uint64_t)FAR_STEPS) ^ flip); break;                   \
      case ncclAvg:                                                                                                    \
        EACH(i) {                                                                                                      \
          uint64_t few = SCALED(WORD_A(hash[i]), unit);                                                                \
          uint64_t own = SCALED(WORD_A(~hash[i]), unit ? unit : (uint64_t)TOP);                                        \
          U v = (U)((few * others + own) / (others + 1));                                                              \
          out[i] = SIGNED && hash[i] & 1 ? (U)(0 - v) : v;                                                             \
        }                                                                                                              \
        break;                                                                                                         \
      default: EACH(i) out[i] = (U)(WORD_A(hash[i]) * p->sum_scalars + WORD_B(hash[i]) * p->sum_weighted);             \
    }                                                                                                                  \
  }

INTEGER_PATTERNS(uint8_t, int8_t, i8, INT8_MAX, 1)
INTEGER_PATTERNS(uint8_t, int8_t, u8, INT8_MAX, 0)
INTEGER_PATTERNS(uint32_t, int32_t, i32, INT32_MAX, 1)
INTEGER_PATTERNS(uint32_t, int32_t, u32, INT32_MAX, 0)
INTEGER_PATTERNS(uint64_t, int64_t, i64, INT64_MAX, 1)
INTEGER_PATTERNS(uint64_t, int64_t, u64, INT64_MAX, 0)

/* ------------------------------------------------------------ floats -- */

/* 2^e for e in float's normal range, without a table so that the loop vectorises. */
static inline float power_of_two(int e) {
  uint32_t bits = (uint32_t)(e + 127) << 23;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* The integers of one element of a sum: what role 0, the other positive roles and the negative roles send. */
enum { SALT_OWN = 0x5bd1e995, SALT_PLUS = 0x2545f491, SALT_MINUS = 0x1e3779b9 };

static inline int32_t sum_term(uint32_t hash, uint32_t salt, uint32_t top) {
  return (int32_t)(1 + perf_below(perf_hash(hash ^ salt), top));
}

/* What one role sends. Masks are used and not branches, so that loops over it vectorise. */
static inline int32_t sum_part(const perf_reduce_plan *p, uint32_t hash, uint32_t role) {
  const uint32_t minus = 0u - (role >= p->positive), unused = 0u - (role >= p->positive + p->negative);
  const uint32_t own = 0u - (role == 0);
  uint32_t salt = (own & SALT_OWN) | (~own & ~minus & SALT_PLUS) | (minus & SALT_MINUS);
  uint32_t top = (~minus & p->top_positive) | (minus & p->top_negative);
  uint32_t v = (uint32_t)sum_term(hash, salt, top);
  return (int32_t)(((v ^ minus) - minus) & ~unused);
}

static inline int32_t sum_positive(const perf_reduce_plan *p, uint32_t hash) {
  return sum_term(hash, SALT_OWN, p->top_positive) +
         (int32_t)(p->positive - 1) * sum_term(hash, SALT_PLUS, p->top_positive);
}

static inline int32_t sum_negative(const perf_reduce_plan *p, uint32_t hash) {
  return (int32_t)p->negative * sum_term(hash, SALT_MINUS, p->top_negative);
}

static inline float sum_scale(const perf_reduce_plan *p, uint32_t hash) {
  return power_of_two(p->low_exponent + (int)(hash & p->spread));
}

/* Doubles: all integers times this one, which fills the mantissa and keeps every sum exact (2^30 (2^22 + 1) < 2^53). */
static const double double_unit = 4194305.0;

/* The plan is copied first: otherwise the stores could alias it, and the loop would not vectorise. */
static void part_sum(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  const float scale = (float)p->part_scale;
  EACH(i) c->value[i] = (float)sum_part(&plan, c->hash[i], c->role[i]) * sum_scale(&plan, c->hash[i]) * scale;
}

static void result_sum(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  EACH(i) {
    uint32_t h = c->hash[i];
    c->value[i] = (float)(sum_positive(&plan, h) - sum_negative(&plan, h)) * sum_scale(&plan, h);
  }
}

static void part_sum_double(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  const double scale = p->part_scale * double_unit;
  EACH(i) c->exact[i] = sum_part(&plan, c->hash[i], c->role[i]) * scale * (double)sum_scale(&plan, c->hash[i]);
  memcpy(c->bits, c->exact, sizeof c->bits);
}

static void result_sum_double(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  EACH(i) {
    uint32_t h = c->hash[i];
    c->exact[i] = (sum_positive(&plan, h) - sum_negative(&plan, h)) * double_unit * (double)sum_scale(&plan, h);
  }
  memcpy(c->bits, c->exact, sizeof c->bits);
}

static void result_avg(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  const double unit = (p->type == ncclFloat64 ? double_unit : 1) / p->n;
  EACH(i) {
    uint32_t h = c->hash[i];
    double up = sum_positive(&plan, h), down = sum_negative(&plan, h), scale = unit * (double)sum_scale(&plan, h);
    c->exact[i] = (up - down) * scale;
    c->slack[i] = (up + down) * scale * plan.rounding + plan.tiny;
  }
}

/* One factor as the bits of a double: role 0 has a random mantissa of the type's width, in [1, 2). */
static inline uint64_t factor(const perf_reduce_plan *p, uint32_t hash, uint32_t role) {
  uint64_t random = (uint64_t)perf_hash(hash ^ SALT_OWN) << 32 | perf_hash(hash ^ SALT_PLUS);
  uint64_t mantissa = random >> (64 - p->mantissa_bits) << (52 - p->mantissa_bits);
  uint64_t exponent = role - 1 < p->doubled ? 1024 : role - 1 < 2 * p->doubled ? 1022 : 1023;
  return (role ? 0 : mantissa) | (role ? exponent : 1023) << 52 | (uint64_t)(role & 1) << 63;
}

static void factors_to_values(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  if (p->type == ncclFloat64) return;
  memcpy(c->exact, c->bits, sizeof c->bits);
  EACH(i) c->value[i] = (float)c->exact[i];
}

static void part_prod(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  EACH(i) c->bits[i] = factor(&plan, c->hash[i], c->role[i]);
  factors_to_values(p, c);
}

static void result_prod(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const perf_reduce_plan plan = *p;
  const uint64_t sign = (uint64_t)(p->n / 2 % 2) << 63;
  EACH(i) c->bits[i] = factor(&plan, c->hash[i], 0) | sign;
  factors_to_values(p, c);
}

/* max and min take the k-th normal number in ascending order, the negative ones first, as bits: numbers of one sign are
 * in the order of their bits. */
#define NTH_NUMBER(k, magnitudes, lowest, sign)                                                                        \
  ((k) >= (magnitudes) ? (lowest) + ((k) - (magnitudes)) : (sign) | ((lowest) + ((magnitudes)-1 - (k))))

static void extremes_double(const perf_reduce_plan *p, perf_reduce_chunk *c, bool result) {
  const int64_t magnitudes = p->magnitudes, lowest = p->lowest;
  const int64_t base = p->op == ncclMax ? FAR_STEPS : 0, step = p->op == ncclMax ? -1 : 1;
  EACH(i) {
    uint32_t h = c->hash[i];
    uint64_t random = (uint64_t)perf_hash(h ^ SALT_OWN) << 32 | perf_hash(h ^ SALT_PLUS);
    int64_t k = (int64_t)((unsigned __int128)random * (2 * (uint64_t)magnitudes - FAR_STEPS) >> 64);
    int64_t far = result || !c->role[i] ? 0 : 1 + ((h + c->role[i]) & (FAR_STEPS - 1));
    k += base + step * far;
    c->bits[i] = (uint64_t)NTH_NUMBER(k, magnitudes, lowest, INT64_MIN);
  }
}

static void extremes(const perf_reduce_plan *p, perf_reduce_chunk *c, bool result) {
  const int width = p->type == ncclFloat32 ? 31 : p->type >= ncclFloat8e4m3 ? 7 : 15;
  const uint32_t magnitudes = (uint32_t)p->magnitudes, lowest = (uint32_t)p->lowest, sign = 1u << width;
  const uint32_t base = p->op == ncclMax ? FAR_STEPS : 0, step = p->op == ncclMax ? ~0u : 1, used = result ? 0 : ~0u;
  uint32_t *restrict words = c->role, *restrict bits = (uint32_t *)c->bits;
  EACH(i) {
    uint32_t h = c->hash[i], role = words[i] & used, far = 1 + ((h + role) & (FAR_STEPS - 1));
    uint32_t k = perf_below(perf_hash(h ^ SALT_OWN), 2 * magnitudes - FAR_STEPS) + base + step * (role ? far : 0);
    words[i] = NTH_NUMBER(k, magnitudes, lowest, sign);
  }
  if (width == 31)
    EACH(i) bits[i] = words[i];
  else if (width == 15)
    EACH(i)((uint16_t *)bits)[i] = (uint16_t)words[i];
  else
    EACH(i)((uint8_t *)bits)[i] = (uint8_t)words[i];
}

/* Exact: values are normal numbers of the type, or 0. */
static void pack(const perf_reduce_plan *p, perf_reduce_chunk *c) {
  const uint32_t shift = (uint32_t)p->shift, rebias = (uint32_t)(127 - p->exponent_bias) << 23;
  uint32_t *restrict words = c->hash; /* no longer needed */
  memcpy(words, c->value, sizeof c->value);
  if (p->type == ncclFloat32) {
    memcpy(c->bits, words, sizeof c->value);
  } else if (p->type == ncclFloat16 || p->type == ncclBfloat16) {
    uint16_t *restrict out = (uint16_t *)c->bits;
    EACH(i) {
      uint32_t m = words[i] & 0x7fffffffu, v = m ? (m - rebias) >> shift : 0;
      out[i] = (uint16_t)(v | words[i] >> 31 << 15);
    }
  } else {
    uint8_t *restrict out = (uint8_t *)c->bits;
    EACH(i) {
      uint32_t m = words[i] & 0x7fffffffu, v = m ? (m - rebias) >> shift : 0;
      out[i] = (uint8_t)(v | words[i] >> 31 << 7);
    }
  }
}

static void float_pattern(const perf_reduce_plan *p, perf_reduce_chunk *c, bool result) {
  bool wide = p->type == ncclFloat64;
  if (p->op == ncclMax || p->op == ncclMin) {
    (wide ? extremes_double : extremes)(p, c, result);
    return;
  }
  if (p->op == ncclProd)
    (result ? result_prod : part_prod)(p, c);
  else if (p->op == ncclAvg && result)
    result_avg(p, c);
  else if (wide)
    (result ? result_sum_double : part_sum_double)(p, c);
  else
    (result ? result_sum : part_sum)(p, c);
  if (!wide && !(result && p->rounds)) pack(p, c);
}

typedef void integer_pattern(const perf_reduce_plan *p, perf_reduce_chunk *c);
static integer_pattern *const integer_patterns[][2] = {
    [ncclInt8] = {part_i8, result_i8},     [ncclUint8] = {part_u8, result_u8},   [ncclInt32] = {part_i32, result_i32},
    [ncclUint32] = {part_u32, result_u32}, [ncclInt64] = {part_i64, result_i64}, [ncclUint64] = {part_u64, result_u64},
};

void PERF_REDUCE_PATTERN(const perf_reduce_plan *p, uint32_t key, perf_reduce_chunk *c, bool result) {
  deal_roles(p, key, c);
  if (is_float(p->type))
    float_pattern(p, c, result);
  else
    integer_patterns[p->type][result](p, c);
}
