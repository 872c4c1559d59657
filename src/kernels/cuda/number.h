/* SPDX-License-Identifier: Apache-2.0 */
/* Types and operators on 16-byte vectors, bit for bit as docs/numerics.md says. `type` and `op` are constants at every
 * call, so that no switch is left in a loop.
 *
 * Accumulators are words: a lane each, 8-byte types two each. Narrow floats are fp32 there; narrow integers are
 * extended, and what is above their width is dropped when they are stored. */
#pragma once
#include "primitives.h"

/* hk_dtype's and hk_redop's values (asserted in the code that fills hk_gpu_work). */
enum { T_I8, T_U8, T_I32, T_U32, T_I64, T_U64, T_F16, T_F32, T_F64, T_BF16, T_E4M3, T_E5M2 };
enum { OP_SUM, OP_PROD, OP_MAX, OP_MIN };

#define IS_BYTE(type) ((type) == T_I8 || (type) == T_U8 || (type) == T_E4M3 || (type) == T_E5M2)
#define IS_HALF(type) ((type) == T_F16 || (type) == T_BF16)
#define IS_LONG(type) ((type) == T_I64 || (type) == T_U64 || (type) == T_F64)
#define IS_SMALL_FLOAT(type) (IS_HALF(type) || (type) == T_E4M3 || (type) == T_E5M2)
#define IS_FLOAT32(type) (IS_SMALL_FLOAT(type) || (type) == T_F32)
/* Accumulators of a vector. */
#define WORDS(type) (IS_BYTE(type) ? 16 : IS_HALF(type) ? 8 : 4)
enum { WORDS_MAX = 16 };

/* ---- small floats ---- */

HK_DEVICE float e4m3_to_f32(uint32_t x) {
  uint32_t mag = x & 0x7f, sign = (x & 0x80) << 24;
  /* Puts the bits at fp32's positions. A multiplication corrects the exponent; it is exact for subnormals too. */
  float v = mag == 0x7f ? hk_bits_f32(0x7fc00000u) : hk_mul_f32(hk_bits_f32(mag << 20), 0x1p120f);
  return hk_bits_f32(hk_f32_bits(v) | sign);
}

/* To nearest even with `exp_bits` and `man_bits`; larger than max_code, infinity too, becomes max_code; NaN
 * nan_code. */
HK_DEVICE uint32_t f32_to_code(float v, const int exp_bits, const int man_bits, const uint32_t max_code,
                               const uint32_t nan_code) {
  const int shift = 23 - man_bits, bias = (1 << (exp_bits - 1)) - 1;
  uint32_t mag = hk_f32_bits(v) & 0x7fffffffu, sign = (hk_f32_bits(v) >> 31) << (exp_bits + man_bits), code;
  if (mag > 0x7f800000u) return sign | nan_code;
  if (mag < (uint32_t)(128 - bias) << 23) {
    /* Adding a power of two whose last bit is the last bit to be kept makes the adder round. */
    const uint32_t anchor = (uint32_t)(127 - bias + shift + 1) << 23;
    code = hk_f32_bits(hk_add_f32(hk_bits_f32(mag), hk_bits_f32(anchor))) - anchor;
  } else {
    /* Half a unit less one, plus the kept part's last bit, carries exactly if rounding to nearest even rounds up. */
    code = (mag + ((mag >> shift) & 1) + ((1u << (shift - 1)) - 1) - ((uint32_t)(127 - bias) << 23)) >> shift;
  }
  return sign | (code < max_code ? code : max_code);
}

HK_DEVICE uint32_t f32_to_bf16(float v) {
  uint32_t x = hk_f32_bits(v);
  if ((x & 0x7fffffffu) > 0x7f800000u) return x >> 16 | 0x40;
  return (x + ((x >> 16) & 1) + 0x7fffu) >> 16;
}

HK_DEVICE float small_to_f32(const int type, uint32_t x) {
  switch (type) {
    case T_F16: return hk_f16_to_f32(x);
    case T_BF16: return hk_bits_f32(x << 16);
    case T_E5M2: return hk_f16_to_f32(x << 8); /* fp16 without its lower byte */
    default: return e4m3_to_f32(x);
  }
}
HK_DEVICE uint32_t f32_to_small(const int type, float v) {
  switch (type) {
    case T_F16: return hk_f32_to_f16(v);
    case T_BF16: return f32_to_bf16(v);
    case T_E5M2: return f32_to_code(v, 5, 2, 0x7b, 0x7f);
    default: return f32_to_code(v, 4, 3, 0x7e, 0x7f);
  }
}

/* ---- vectors to accumulators and back ---- */

/* One element, in the low bits, as an accumulator. */
HK_DEVICE uint32_t widen(const int type, uint32_t x) {
  if (IS_SMALL_FLOAT(type)) return hk_f32_bits(small_to_f32(type, x));
  if (type == T_I8) return (uint32_t)(int32_t)(int8_t)x;
  return x;
}
HK_DEVICE uint32_t narrow(const int type, uint32_t a) {
  if (IS_SMALL_FLOAT(type)) return f32_to_small(type, hk_bits_f32(a));
  return IS_BYTE(type) ? a & 0xff : a;
}

HK_DEVICE void decode(const int type, hk_vec v, uint32_t *a) {
  HK_UNROLL
  for (int i = 0; i < WORDS(type); i++) {
    if (IS_BYTE(type))
      a[i] = widen(type, v.w[i / 4] >> 8 * (i % 4) & 0xff);
    else if (IS_HALF(type))
      a[i] = widen(type, v.w[i / 2] >> 16 * (i % 2) & 0xffff);
    else
      a[i] = v.w[i];
  }
}
HK_DEVICE hk_vec encode(const int type, const uint32_t *a) {
  hk_vec v = {{0, 0, 0, 0}};
  HK_UNROLL
  for (int i = 0; i < WORDS(type); i++) {
    if (IS_BYTE(type))
      v.w[i / 4] |= narrow(type, a[i]) << 8 * (i % 4);
    else if (IS_HALF(type))
      v.w[i / 2] |= narrow(type, a[i]) << 16 * (i % 2);
    else
      v.w[i] = a[i];
  }
  return v;
}

/* ---- operators ---- */

/* NaN stays, whichever side it is on; of equal values the first stays. */
#define FIRST_OF_FLOATS(op, x, y) (((op) == OP_MAX ? (x) >= (y) : (x) <= (y)) || (x) != (x))
#define FIRST_OF_INTEGERS(op, x, y) ((op) == OP_MAX ? (x) >= (y) : (x) <= (y))

HK_DEVICE uint32_t combine_words(const int type, const int op, uint32_t x, uint32_t y) {
  if (IS_FLOAT32(type)) {
    float a = hk_bits_f32(x), b = hk_bits_f32(y);
    if (op == OP_SUM) return hk_f32_bits(hk_add_f32(a, b));
    if (op == OP_PROD) return hk_f32_bits(hk_mul_f32(a, b));
    return FIRST_OF_FLOATS(op, a, b) ? x : y;
  }
  if (op == OP_SUM) return x + y;
  if (op == OP_PROD) return x * y;
  if (type == T_I8 || type == T_I32) return FIRST_OF_INTEGERS(op, (int32_t)x, (int32_t)y) ? x : y;
  return FIRST_OF_INTEGERS(op, x, y) ? x : y;
}
HK_DEVICE uint64_t combine_longs(const int type, const int op, uint64_t x, uint64_t y) {
  if (type == T_F64) {
    double a = hk_bits_f64(x), b = hk_bits_f64(y);
    if (op == OP_SUM) return hk_f64_bits(hk_add_f64(a, b));
    if (op == OP_PROD) return hk_f64_bits(hk_mul_f64(a, b));
    return FIRST_OF_FLOATS(op, a, b) ? x : y;
  }
  if (op == OP_SUM) return x + y;
  if (op == OP_PROD) return x * y;
  if (type == T_I64) return FIRST_OF_INTEGERS(op, (int64_t)x, (int64_t)y) ? x : y;
  return FIRST_OF_INTEGERS(op, x, y) ? x : y;
}

HK_DEVICE uint64_t long_at(const uint32_t *a, int i) { return a[2 * i] | (uint64_t)a[2 * i + 1] << 32; }
HK_DEVICE void set_long(uint32_t *a, int i, uint64_t x) {
  a[2 * i] = (uint32_t)x;
  a[2 * i + 1] = (uint32_t)(x >> 32);
}

HK_DEVICE void combine(const int type, const int op, uint32_t *a, const uint32_t *b) {
  if (IS_LONG(type)) {
    HK_UNROLL
    for (int i = 0; i < 2; i++) set_long(a, i, combine_longs(type, op, long_at(a, i), long_at(b, i)));
    return;
  }
  HK_UNROLL
  for (int i = 0; i < WORDS(type); i++) a[i] = combine_words(type, op, a[i], b[i]);
}

/* The user's input times the scalar, rounded to the type: what a slot would carry. */
HK_DEVICE void premultiply(const int type, uint32_t *a, uint64_t scalar) {
  if (IS_LONG(type)) {
    HK_UNROLL
    for (int i = 0; i < 2; i++) set_long(a, i, combine_longs(type, OP_PROD, long_at(a, i), scalar));
    return;
  }
  HK_UNROLL
  for (int i = 0; i < WORDS(type); i++) {
    a[i] = combine_words(type, OP_PROD, a[i], (uint32_t)scalar);
    if (IS_SMALL_FLOAT(type) || IS_BYTE(type)) a[i] = widen(type, narrow(type, a[i]));
  }
}

/* avg of integers: the wrapped sum by the number of ranks, towards zero. No other type is divided. A call: it is long,
 * and the loops need it once an operation. */
HK_DEVICE_CALL uint64_t divided(uint64_t x, int is_signed, int64_t by) {
  if (is_signed) return (uint64_t)((int64_t)x / by);
  return x / (uint64_t)by;
}
HK_DEVICE void divide(const int type, uint32_t *a, int64_t by) {
  if (IS_FLOAT32(type) || type == T_F64) return;
  const int is_signed = type == T_I8 || type == T_I32 || type == T_I64;
  if (IS_LONG(type)) {
    HK_UNROLL
    for (int i = 0; i < 2; i++) set_long(a, i, divided(long_at(a, i), is_signed, by));
    return;
  }
  HK_UNROLL
  for (int i = 0; i < WORDS(type); i++) {
    uint32_t x = widen(type, narrow(type, a[i]));
    a[i] = (uint32_t)divided(is_signed ? (uint64_t)(int64_t)(int32_t)x : x, is_signed, by);
  }
}
