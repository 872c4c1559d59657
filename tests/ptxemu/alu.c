/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic, logic and comparisons: a function for each operation and type, chosen when an instruction is decoded. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "half.h"
#include "ptx.h"

/* What is stored of a float: a device has one NaN. */
static inline float f32_out(float x) { return x != x ? ptx_f32(0x7fffffff) : x; }
static inline double f64_out(double x) { return x != x ? ptx_f64(0x7fffffffffffffffull) : x; }

/* name, type of the row's elements, type of the values, type that cuts the result to its width */
#define OP1(name, R, V, U, expr)                                                                                       \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    R *d = ROW(R, i->d);                                                                                               \
    const R *pa = ROW(R, i->a);                                                                                        \
    EACH_LANE(const V a = (V)pa[l]; d[l] = (R)(U)(expr););                                                             \
  }
#define OP2(name, R, V, U, expr)                                                                                       \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    R *d = ROW(R, i->d);                                                                                               \
    const R *pa = ROW(R, i->a), *pb = ROW(R, i->b);                                                                    \
    EACH_LANE(const V a = (V)pa[l], b = (V)pb[l]; d[l] = (R)(U)(expr););                                               \
  }
#define OP3(name, R, V, U, expr)                                                                                       \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    R *d = ROW(R, i->d);                                                                                               \
    const R *pa = ROW(R, i->a), *pb = ROW(R, i->b), *pc = ROW(R, i->c);                                                \
    EACH_LANE(const V a = (V)pa[l], b = (V)pb[l], c = (V)pc[l]; d[l] = (R)(U)(expr););                                 \
  }
#define INTS(OP, name, expr)                                                                                           \
  OP(name##_u16, uint32_t, uint16_t, uint16_t, expr)                                                                   \
  OP(name##_s16, uint32_t, int16_t, uint16_t, expr)                                                                    \
  OP(name##_u32, uint32_t, uint32_t, uint32_t, expr)                                                                   \
  OP(name##_s32, uint32_t, int32_t, uint32_t, expr)                                                                    \
  OP(name##_u64, uint64_t, uint64_t, uint64_t, expr)                                                                   \
  OP(name##_s64, uint64_t, int64_t, uint64_t, expr)
/* Of bits: signs play no part. */
#define BITS(OP, name, expr)                                                                                           \
  OP(name##_u16, uint32_t, uint16_t, uint16_t, expr)                                                                   \
  OP(name##_u32, uint32_t, uint32_t, uint32_t, expr)                                                                   \
  OP(name##_u64, uint64_t, uint64_t, uint64_t, expr)
#define FLOATS(OP, name, expr32, expr64)                                                                               \
  OP(name##_f32, float, float, float, f32_out(expr32))                                                                 \
  OP(name##_f64, double, double, double, f64_out(expr64))

BITS(OP2, add, a + b)
BITS(OP2, sub, a - b)
BITS(OP2, mul, (uint64_t)a *b)
BITS(OP3, mad, (uint64_t)a *b + c)
BITS(OP2, and, a &b)
BITS(OP2, or, a | b)
BITS(OP2, xor, a ^ b)
BITS(OP1, not, ~a)
BITS(OP1, cnot, a == 0)
BITS(OP1, neg, 0 - a)
INTS(OP2, min, a < b ? a : b)
INTS(OP2, max, a > b ? a : b)
OP1(abs_s16, uint32_t, int16_t, uint16_t, a < 0 ? -a : a)
OP1(abs_s32, uint32_t, int32_t, uint32_t, a < 0 ? 0 - (uint32_t)a : (uint32_t)a)
OP1(abs_s64, uint64_t, int64_t, uint64_t, a < 0 ? 0 - (uint64_t)a : (uint64_t)a)
/* By zero a device gives all ones; the smallest by -1 wraps. */
BITS(OP2, div, b == 0 ? (uint64_t)-1 : (uint64_t)(a / b))
BITS(OP2, rem, b == 0 ? a : a % b)
#define SIGNED(name, R, V, U)                                                                                          \
  OP2(div_##name, R, V, U, b == 0 ? -1 : b == -1 ? (V)(0 - (U)a) : a / b)                                              \
  OP2(rem_##name, R, V, U, b == 0 ? a : b == -1 ? 0 : a % b)
SIGNED(s16, uint32_t, int16_t, uint16_t)
SIGNED(s32, uint32_t, int32_t, uint32_t)
SIGNED(s64, uint64_t, int64_t, uint64_t)
OP2(mulhi_u16, uint32_t, uint16_t, uint16_t, (uint32_t)a *b >> 16)
OP2(mulhi_s16, uint32_t, int16_t, uint16_t, (int32_t)a *b >> 16)
OP2(mulhi_u32, uint32_t, uint32_t, uint32_t, (uint64_t)a *b >> 32)
OP2(mulhi_s32, uint32_t, int32_t, uint32_t, (int64_t)a *b >> 32)
OP2(mulhi_u64, uint64_t, uint64_t, uint64_t, (unsigned __int128)a *b >> 64)
OP2(mulhi_s64, uint64_t, int64_t, uint64_t, (__int128)a *b >> 64)
OP3(madhi_u32, uint32_t, uint32_t, uint32_t, ((uint64_t)a * b >> 32) + c)
OP3(madhi_s32, uint32_t, int32_t, uint32_t, (uint64_t)((int64_t)a *b >> 32) + (uint32_t)c)
OP3(madhi_u64, uint64_t, uint64_t, uint64_t, ((unsigned __int128)a * b >> 64) + c)
OP3(madhi_s64, uint64_t, int64_t, uint64_t, (unsigned __int128)((__int128)a *b >> 64) + (uint64_t)c)
#define WIDE(suffix, V, W, D)                                                                                          \
  static void mulwide_##suffix(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                        \
    D *d = ROW(D, i->d);                                                                                               \
    const uint32_t *pa = ROW(uint32_t, i->a), *pb = ROW(uint32_t, i->b);                                               \
    EACH_LANE(const W x = (W)(V)pa[l] * (W)(V)pb[l]; d[l] = (D)x;);                                                    \
  }                                                                                                                    \
  static void madwide_##suffix(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                        \
    D *d = ROW(D, i->d);                                                                                               \
    const uint32_t *pa = ROW(uint32_t, i->a), *pb = ROW(uint32_t, i->b);                                               \
    const D *pc = ROW(D, i->c);                                                                                        \
    EACH_LANE(const W x = (W)(V)pa[l] * (W)(V)pb[l]; d[l] = (D)x + pc[l];);                                            \
  }
WIDE(u16, uint16_t, uint32_t, uint32_t)
WIDE(s16, int16_t, int32_t, uint32_t)
WIDE(u32, uint32_t, uint64_t, uint64_t)
WIDE(s32, int32_t, int64_t, uint64_t)

/* ---- shifts, fields ---- */

#define SHIFT(name, R, V, U, expr)                                                                                     \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    R *d = ROW(R, i->d);                                                                                               \
    const R *pa = ROW(R, i->a);                                                                                        \
    const uint32_t *pb = ROW(uint32_t, i->b);                                                                          \
    EACH_LANE(const V a = (V)pa[l]; const uint32_t n = pb[l], bits = 8 * sizeof(V); d[l] = (R)(U)(expr););             \
  }
SHIFT(shl_u16, uint32_t, uint16_t, uint16_t, n < bits ? (uint32_t)a << n : 0)
SHIFT(shl_u32, uint32_t, uint32_t, uint32_t, n < bits ? a << n : 0)
SHIFT(shl_u64, uint64_t, uint64_t, uint64_t, n < bits ? a << n : 0)
SHIFT(shr_u16, uint32_t, uint16_t, uint16_t, n < bits ? a >> n : 0)
SHIFT(shr_u32, uint32_t, uint32_t, uint32_t, n < bits ? a >> n : 0)
SHIFT(shr_u64, uint64_t, uint64_t, uint64_t, n < bits ? a >> n : 0)
SHIFT(shr_s16, uint32_t, int16_t, uint16_t, a >> (n < bits ? n : bits - 1))
SHIFT(shr_s32, uint32_t, int32_t, uint32_t, a >> (n < bits ? n : bits - 1))
SHIFT(shr_s64, uint64_t, int64_t, uint64_t, a >> (n < bits ? n : bits - 1))

/* fill: what comes from above the value's own bits */
#define FIELD(suffix, R, V, fill)                                                                                      \
  static void bfe_##suffix(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                            \
    R *d = ROW(R, i->d);                                                                                               \
    const R *pa = ROW(R, i->a);                                                                                        \
    const uint32_t *pb = ROW(uint32_t, i->b), *pc = ROW(uint32_t, i->c);                                               \
    const unsigned bits = 8 * sizeof(R);                                                                               \
    EACH_LANE(const unsigned at = pb[l] & 255, n = pc[l] & 255; const V a = (V)pa[l];                                  \
              V x = at < bits ? a >> at : fill; if (n == 0) x = 0;                                                     \
              else if (n < bits && at + n <= bits) x = (V)((R)x << (bits - n)) >> (bits - n); d[l] = (R)x;);           \
  }
FIELD(u32, uint32_t, uint32_t, 0)
FIELD(s32, uint32_t, int32_t, a < 0 ? -1 : 0)
FIELD(u64, uint64_t, uint64_t, 0)
FIELD(s64, uint64_t, int64_t, a < 0 ? -1 : 0)
#define INSERT(suffix, R)                                                                                              \
  static void bfi_##suffix(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                            \
    R *d = ROW(R, i->d);                                                                                               \
    const R *pa = ROW(R, i->a), *pb = ROW(R, i->b);                                                                    \
    const uint32_t *pc = ROW(uint32_t, i->c), *pn = ROW(uint32_t, i->v[0]);                                            \
    const unsigned bits = 8 * sizeof(R);                                                                               \
    EACH_LANE(const unsigned at = pc[l] & 255, n = pn[l] & 255;                                                        \
              const R ones = n >= bits ? (R) ~(R)0 : (R)(((R)1 << n) - 1), mask = at < bits ? (R)(ones << at) : 0;     \
              d[l] = at < bits ? (pb[l] & ~mask) | (R)(pa[l] << at & mask) : pb[l];);                                  \
  }
INSERT(u32, uint32_t)
INSERT(u64, uint64_t)

static uint64_t reversed(uint64_t x, unsigned bits) {
  uint64_t y = 0;
  for (unsigned k = 0; k < bits; k++) y |= (x >> k & 1) << (bits - 1 - k);
  return y;
}
OP1(brev_u32, uint32_t, uint32_t, uint32_t, reversed(a, 32))
OP1(brev_u64, uint64_t, uint64_t, uint64_t, reversed(a, 64))
#define COUNT(name, R, expr)                                                                                           \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    uint32_t *d = ROW(uint32_t, i->d);                                                                                 \
    const R *pa = ROW(R, i->a);                                                                                        \
    EACH_LANE(const R a = pa[l]; d[l] = (uint32_t)(expr););                                                            \
  }
COUNT(popc_u32, uint32_t, __builtin_popcount(a))
COUNT(popc_u64, uint64_t, __builtin_popcountll(a))
COUNT(clz_u32, uint32_t, a ? __builtin_clz(a) : 32)
COUNT(clz_u64, uint64_t, a ? __builtin_clzll(a) : 64)
COUNT(bfind_u32, uint32_t, a ? 31 - __builtin_clz(a) : -1)
COUNT(bfind_u64, uint64_t, a ? 63 - __builtin_clzll(a) : -1)

static uint32_t permuted(uint32_t a, uint32_t b, uint32_t how) {
  const uint64_t both = a | (uint64_t)b << 32;
  uint32_t x = 0;
  for (unsigned k = 0; k < 4; k++) {
    const unsigned which = how >> 4 * k & 15;
    uint32_t byte = (uint32_t)(both >> 8 * (which & 7)) & 0xff;
    if (which & 8) byte = byte & 0x80 ? 0xff : 0;
    x |= byte << 8 * k;
  }
  return x;
}
OP3(prmt_u32, uint32_t, uint32_t, uint32_t, permuted(a, b, c))
OP3(shf_l_wrap, uint32_t, uint32_t, uint32_t, c % 32 ? b << c % 32 | a >> (32 - c % 32) : b)
OP3(shf_r_wrap, uint32_t, uint32_t, uint32_t, c % 32 ? a >> c % 32 | b << (32 - c % 32) : a)
OP3(shf_l_clamp, uint32_t, uint32_t, uint32_t, c == 0 ? b : c >= 32 ? a : b << c | a >> (32 - c))
OP3(shf_r_clamp, uint32_t, uint32_t, uint32_t, c == 0 ? a : c >= 32 ? b : a >> c | b << (32 - c))
static void lop3_u32(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const uint32_t *a = ROW(uint32_t, i->a), *b = ROW(uint32_t, i->b), *c = ROW(uint32_t, i->c),
                 *t = ROW(uint32_t, i->v[0]);
  EACH_LANE(uint32_t x = 0; for (unsigned k = 0; k < 8; k++) if (t[l] >> k & 1)
                                x |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
            d[l] = x;);
}

/* ---- floats ---- */

FLOATS(OP2, add, a + b, a + b)
FLOATS(OP2, sub, a - b, a - b)
FLOATS(OP2, mul, a *b, a *b)
FLOATS(OP2, div, a / b, a / b)
FLOATS(OP3, fma, fmaf(a, b, c), fma(a, b, c))
FLOATS(OP1, sqrt, sqrtf(a), sqrt(a))
FLOATS(OP1, rcp, 1 / a, 1 / a)
FLOATS(OP1, rsqrt, 1 / sqrtf(a), 1 / sqrt(a))
FLOATS(OP1, ex2, exp2f(a), exp2(a))
FLOATS(OP1, lg2, log2f(a), log2(a))
FLOATS(OP1, sin, sinf(a), sin(a))
FLOATS(OP1, cos, cosf(a), cos(a))
FLOATS(OP1, tanh, tanhf(a), tanh(a))
OP1(neg_f32, float, float, float, -a)
OP1(neg_f64, double, double, double, -a)
OP1(abs_f32, float, float, float, fabsf(a))
OP1(abs_f64, double, double, double, fabs(a))
OP2(copysign_f32, float, float, float, copysignf(b, a))
OP2(copysign_f64, double, double, double, copysign(b, a))
/* A number wins against NaN, and +0 is above -0. */
#define LESS(a, b) ((a) < (b) || ((a) == (b) && signbit(a) && !signbit(b)))
#define LOWER(a, b) ((a) != (a) ? (b) : (b) != (b) ? (a) : LESS(a, b) ? (a) : (b))
#define UPPER(a, b) ((a) != (a) ? (b) : (b) != (b) ? (a) : LESS(a, b) ? (b) : (a))
FLOATS(OP2, min, LOWER(a, b), LOWER(a, b))
FLOATS(OP2, max, UPPER(a, b), UPPER(a, b))
FLOATS(OP2, minnan, a != a || b != b ? a + b : LOWER(a, b), a != a || b != b ? a + b : LOWER(a, b))
FLOATS(OP2, maxnan, a != a || b != b ? a + b : UPPER(a, b), a != a || b != b ? a + b : UPPER(a, b))
FLOATS(OP2, addsat, fminf(fmaxf(a + b, 0), 1), a + b)
FLOATS(OP2, mulsat, fminf(fmaxf(a *b, 0), 1), a *b)

/* ---- halves: each in fp32, and rounded once ---- */

#define HALF2(name, in, out, expr)                                                                                     \
  static inline uint32_t name##_one(uint32_t x, uint32_t y, uint32_t z) {                                              \
    const float a = in(x), b = in(y), c = in(z);                                                                       \
    (void)b, (void)c;                                                                                                  \
    return out(expr);                                                                                                  \
  }                                                                                                                    \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    uint32_t *d = ROW(uint32_t, i->d);                                                                                 \
    const uint32_t *a = ROW(uint32_t, i->a), *b = i->b == NOWHERE ? a : ROW(uint32_t, i->b);                           \
    const uint32_t *c = i->c == NOWHERE ? a : ROW(uint32_t, i->c);                                                     \
    const bool two = i->type == T_F16X2 || i->type == T_BF16X2;                                                        \
    EACH_LANE(uint32_t x = name##_one(a[l] & 0xffff, b[l] & 0xffff, c[l] & 0xffff);                                    \
              if (two) x |= name##_one(a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16; d[l] = x;);                          \
  }
#define HALVES(name, expr)                                                                                             \
  HALF2(name##_f16, ptx_f16_in, ptx_f16_out, expr)                                                                     \
  HALF2(name##_bf16, ptx_bf16_in, ptx_bf16_out, expr)
HALVES(add, a + b)
HALVES(sub, a - b)
HALVES(mul, a *b)
HALVES(fma, (float)((double)a *b + c))
HALVES(neg, -a)
HALVES(abs, fabsf(a))
HALVES(min, LOWER(a, b))
HALVES(max, UPPER(a, b))
HALVES(minnan, a != a || b != b ? a + b : LOWER(a, b))
HALVES(maxnan, a != a || b != b ? a + b : UPPER(a, b))

/* ---- comparisons ---- */

#define COMPARE(name, R, V, expr)                                                                                      \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    const R *pa = ROW(R, i->a), *pb = ROW(R, i->b);                                                                    \
    uint32_t bits = 0, *d = i->d == NOWHERE ? NULL : ROW(uint32_t, i->d);                                              \
    EACH_LANE(const V a = (V)pa[l], b = (V)pb[l]; bits |= (uint32_t)(expr) << l;);                                     \
    uint32_t other = ~bits;                                                                                            \
    if (i->op) {                                                                                                       \
      const uint32_t c = *ROW(uint32_t, i->c) ^ (i->negate ? ~0u : 0);                                                 \
      other = i->op == 1 ? other & c : i->op == 2 ? other | c : other ^ c;                                             \
      bits = i->op == 1 ? bits & c : i->op == 2 ? bits | c : bits ^ c;                                                 \
    }                                                                                                                  \
    if (d) *d = (*d & ~lanes) | (bits & lanes);                                                                        \
    if (i->e != NOWHERE) *ROW(uint32_t, i->e) = (*ROW(uint32_t, i->e) & ~lanes) | (other & lanes);                     \
  }
#define COMPARES(suffix, R, V)                                                                                         \
  COMPARE(eq_##suffix, R, V, a == b)                                                                                   \
  COMPARE(ne_##suffix, R, V, a != b)                                                                                   \
  COMPARE(lt_##suffix, R, V, a < b)                                                                                    \
  COMPARE(le_##suffix, R, V, a <= b)                                                                                   \
  COMPARE(gt_##suffix, R, V, a > b)                                                                                    \
  COMPARE(ge_##suffix, R, V, a >= b)
COMPARES(u16, uint32_t, uint16_t)
COMPARES(s16, uint32_t, int16_t)
COMPARES(u32, uint32_t, uint32_t)
COMPARES(s32, uint32_t, int32_t)
COMPARES(u64, uint64_t, uint64_t)
COMPARES(s64, uint64_t, int64_t)
#define UNORDERED(suffix, R)                                                                                           \
  COMPARE(eq_##suffix, R, R, a == b)                                                                                   \
  COMPARE(ne_##suffix, R, R, a<b || a> b)                                                                              \
  COMPARE(lt_##suffix, R, R, a < b)                                                                                    \
  COMPARE(le_##suffix, R, R, a <= b)                                                                                   \
  COMPARE(gt_##suffix, R, R, a > b)                                                                                    \
  COMPARE(ge_##suffix, R, R, a >= b)                                                                                   \
  COMPARE(equ_##suffix, R, R, !(a < b || a > b))                                                                       \
  COMPARE(neu_##suffix, R, R, a != b)                                                                                  \
  COMPARE(ltu_##suffix, R, R, !(a >= b))                                                                               \
  COMPARE(leu_##suffix, R, R, !(a > b))                                                                                \
  COMPARE(gtu_##suffix, R, R, !(a <= b))                                                                               \
  COMPARE(geu_##suffix, R, R, !(a < b))                                                                                \
  COMPARE(num_##suffix, R, R, a == a && b == b)                                                                        \
  COMPARE(nan_##suffix, R, R, a != a || b != b)
UNORDERED(f32, float)
UNORDERED(f64, double)

#define SELECT(name, R)                                                                                                \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    R *d = ROW(R, i->d);                                                                                               \
    const R *a = ROW(R, i->a), *b = ROW(R, i->b);                                                                      \
    const uint32_t p = *ROW(uint32_t, i->c);                                                                           \
    EACH_LANE(d[l] = p >> l & 1 ? a[l] : b[l];);                                                                       \
  }
SELECT(selp_u32, uint32_t)
SELECT(selp_u64, uint64_t)

#define PREDICATES(name, expr)                                                                                         \
  static void name##_pred(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                             \
    uint32_t *d = ROW(uint32_t, i->d);                                                                                 \
    const uint32_t a = *ROW(uint32_t, i->a), b = i->b == NOWHERE ? 0 : *ROW(uint32_t, i->b);                           \
    (void)b;                                                                                                           \
    *d = (*d & ~lanes) | ((expr)&lanes);                                                                               \
  }
PREDICATES(and, a &b)
PREDICATES(or, a | b)
PREDICATES(xor, a ^ b)
PREDICATES(not, ~a)

/* ---- tables ---- */

enum { U16, S16, U32, S32, U64, S64, F32, F64, HALF, BHALF, PRED, NFORMS };
typedef struct row {
  const char *op;
  ptx_run *run[NFORMS];
} row;
#define UNSIGNED(n)                                                                                                    \
  { n##_u16, n##_u16, n##_u32, n##_u32, n##_u64, n##_u64 }
#define UNSIGNED_PRED(n)                                                                                               \
  { n##_u16, n##_u16, n##_u32, n##_u32, n##_u64, n##_u64, NULL, NULL, NULL, NULL, n##_pred }
#define SIGNED_FLOAT(n)                                                                                                \
  { n##_u16, n##_s16, n##_u32, n##_s32, n##_u64, n##_s64, n##_f32, n##_f64, n##_f16, n##_bf16 }
#define UNSIGNED_FLOAT(n)                                                                                              \
  { n##_u16, n##_u16, n##_u32, n##_u32, n##_u64, n##_u64, n##_f32, n##_f64, n##_f16, n##_bf16 }
#define FLOAT(n)                                                                                                       \
  { NULL, NULL, NULL, NULL, NULL, NULL, n##_f32, n##_f64 }
#define FLOAT_HALF(n)                                                                                                  \
  { NULL, NULL, NULL, NULL, NULL, NULL, n##_f32, n##_f64, n##_f16, n##_bf16 }
#define WORDS(n)                                                                                                       \
  { NULL, NULL, n##_u32, n##_u32, n##_u64, n##_u64 }
static const row rows[] = {
    {"add", UNSIGNED_FLOAT(add)},
    {"sub", UNSIGNED_FLOAT(sub)},
    {"mul", UNSIGNED_FLOAT(mul)},
    {"mad", {mad_u16, mad_u16, mad_u32, mad_u32, mad_u64, mad_u64, fma_f32, fma_f64}},
    {"mul.hi", {mulhi_u16, mulhi_s16, mulhi_u32, mulhi_s32, mulhi_u64, mulhi_s64}},
    {"mad.hi", {NULL, NULL, madhi_u32, madhi_s32, madhi_u64, madhi_s64}},
    {"mul.wide", {mulwide_u16, mulwide_s16, mulwide_u32, mulwide_s32}},
    {"mad.wide", {madwide_u16, madwide_s16, madwide_u32, madwide_s32}},
    {"fma", FLOAT_HALF(fma)},
    {"div", {div_u16, div_s16, div_u32, div_s32, div_u64, div_s64, div_f32, div_f64}},
    {"rem", {rem_u16, rem_s16, rem_u32, rem_s32, rem_u64, rem_s64}},
    {"min", SIGNED_FLOAT(min)},
    {"max", SIGNED_FLOAT(max)},
    {"min.NaN", FLOAT_HALF(minnan)},
    {"max.NaN", FLOAT_HALF(maxnan)},
    {"add.sat", FLOAT(addsat)},
    {"mul.sat", FLOAT(mulsat)},
    {"abs", {NULL, abs_s16, NULL, abs_s32, NULL, abs_s64, abs_f32, abs_f64, abs_f16, abs_bf16}},
    {"neg", UNSIGNED_FLOAT(neg)},
    {"sqrt", FLOAT(sqrt)},
    {"rcp", FLOAT(rcp)},
    {"rsqrt", FLOAT(rsqrt)},
    {"ex2", FLOAT(ex2)},
    {"lg2", FLOAT(lg2)},
    {"sin", FLOAT(sin)},
    {"cos", FLOAT(cos)},
    {"tanh", FLOAT(tanh)},
    {"copysign", FLOAT(copysign)},
    {"and", UNSIGNED_PRED(and)},
    {"or", UNSIGNED_PRED(or)},
    {"xor", UNSIGNED_PRED(xor)},
    {"not", UNSIGNED_PRED(not )},
    {"cnot", UNSIGNED(cnot)},
    {"shl", UNSIGNED(shl)},
    {"shr", {shr_u16, shr_s16, shr_u32, shr_s32, shr_u64, shr_s64}},
    {"bfe", {NULL, NULL, bfe_u32, bfe_s32, bfe_u64, bfe_s64}},
    {"bfi", WORDS(bfi)},
    {"brev", WORDS(brev)},
    {"popc", WORDS(popc)},
    {"clz", WORDS(clz)},
    {"bfind", WORDS(bfind)},
    {"prmt", {NULL, NULL, prmt_u32, prmt_u32}},
    {"lop3", {NULL, NULL, lop3_u32, lop3_u32}},
    {"shf.l.wrap", {NULL, NULL, shf_l_wrap, shf_l_wrap}},
    {"shf.r.wrap", {NULL, NULL, shf_r_wrap, shf_r_wrap}},
    {"shf.l.clamp", {NULL, NULL, shf_l_clamp, shf_l_clamp}},
    {"shf.r.clamp", {NULL, NULL, shf_r_clamp, shf_r_clamp}},
    {"selp", {selp_u32, selp_u32, selp_u32, selp_u32, selp_u64, selp_u64, selp_u32, selp_u64}},
    {"setp.eq", {eq_u16, eq_s16, eq_u32, eq_s32, eq_u64, eq_s64, eq_f32, eq_f64}},
    {"setp.ne", {ne_u16, ne_s16, ne_u32, ne_s32, ne_u64, ne_s64, ne_f32, ne_f64}},
    {"setp.lt", {lt_u16, lt_s16, lt_u32, lt_s32, lt_u64, lt_s64, lt_f32, lt_f64}},
    {"setp.le", {le_u16, le_s16, le_u32, le_s32, le_u64, le_s64, le_f32, le_f64}},
    {"setp.gt", {gt_u16, gt_s16, gt_u32, gt_s32, gt_u64, gt_s64, gt_f32, gt_f64}},
    {"setp.ge", {ge_u16, ge_s16, ge_u32, ge_s32, ge_u64, ge_s64, ge_f32, ge_f64}},
    {"setp.lo", {lt_u16, lt_u16, lt_u32, lt_u32, lt_u64, lt_u64}},
    {"setp.ls", {le_u16, le_u16, le_u32, le_u32, le_u64, le_u64}},
    {"setp.hi", {gt_u16, gt_u16, gt_u32, gt_u32, gt_u64, gt_u64}},
    {"setp.hs", {ge_u16, ge_u16, ge_u32, ge_u32, ge_u64, ge_u64}},
    {"setp.equ", FLOAT(equ)},
    {"setp.neu", FLOAT(neu)},
    {"setp.ltu", FLOAT(ltu)},
    {"setp.leu", FLOAT(leu)},
    {"setp.gtu", FLOAT(gtu)},
    {"setp.geu", FLOAT(geu)},
    {"setp.num", FLOAT(num)},
    {"setp.nan", FLOAT(nan)},
};
static int form_of(ptx_type t) {
  switch (t) {
    case T_U16:
    case T_B16: return U16;
    case T_S16: return S16;
    case T_U32:
    case T_B32: return U32;
    case T_S32: return S32;
    case T_U64:
    case T_B64: return U64;
    case T_S64: return S64;
    case T_F32: return F32;
    case T_F64: return F64;
    case T_F16:
    case T_F16X2: return HALF;
    case T_BF16:
    case T_BF16X2: return BHALF;
    case T_PRED: return PRED;
    default: return -1;
  }
}
/* Modifiers that make another operation. */
static void full_name(const ptx_mods *m, char *name, size_t capacity) {
  static const char *const compares[] = {"eq", "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi",
                                         "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  snprintf(name, capacity, "%s", m->op);
  if (strcmp(m->op, "setp") == 0) {
    for (size_t k = 0; k < sizeof compares / sizeof *compares; k++)
      if (ptx_has(m, compares[k])) snprintf(name, capacity, "setp.%s", compares[k]);
  } else if (strcmp(m->op, "shf") == 0) {
    snprintf(name, capacity, "shf.%s.%s", m->mod[0], m->n > 1 ? m->mod[1] : "");
  } else {
    static const char *const parts[] = {"hi", "wide", "NaN", "sat"};
    for (int k = 0; k < 4; k++)
      if (ptx_has(m, parts[k])) snprintf(name, capacity, "%s.%s", m->op, parts[k]);
  }
}
bool ptx_select_alu(const ptx_mods *m, ptx_ins *i) {
  char name[64];
  full_name(m, name, sizeof name);
  const int form = form_of((ptx_type)i->type);
  if (form < 0 || ptx_has(m, "cc")) return false; /* carries are not modelled */
  i->op = ptx_has(m, "and") ? 1 : ptx_has(m, "or") ? 2 : ptx_has(m, "xor") ? 3 : 0;
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
    if (strcmp(rows[k].op, name) == 0) {
      i->run = rows[k].run[form];
      if (!i->run && (form == HALF || form == BHALF) && strcmp(name, "selp") == 0) i->run = selp_u32;
      return i->run != NULL;
    }
  return false;
}
