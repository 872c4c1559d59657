/* SPDX-License-Identifier: Apache-2.0 */
/* From memory to accumulators and back: 32- and 64-bit types and integers unchanged, 16- and 8-bit floats as fp32
 * lanes.
 *
 * Decoding is exact. Encoding rounds to nearest, ties to even, subnormals included. fp16 and bf16 overflow to infinity.
 * e4m3 (which has no infinity) and e5m2 saturate to their largest finite value, also for infinities, as CUDA's
 * conversions with __NV_SATFINITE do. NaN stays NaN. */
#pragma once
#include "vector.h" /* vectors and their lanes */

INLINE vu32 splat32(uint32_t x) { return (vu32){0} + x; }

/* ---- any small float: sign, `exp_bits` of exponent with `bias`, `man_bits` of mantissa ---- */

/* `ieee`: the largest exponent means infinity and NaN; else only all ones is NaN. */
INLINE vf32 decode(vu32 x, const int exp_bits, const int man_bits, const bool ieee) {
  const int shift = 23 - man_bits, bias = (1 << (exp_bits - 1)) - 1;
  const uint32_t mag_mask = (1u << (exp_bits + man_bits)) - 1, exp_mask = ((1u << exp_bits) - 1) << 23;
  vu32 sign = (x >> (exp_bits + man_bits)) << 31;
  vu32 mag = (x & mag_mask) << shift;
  vu32 bits = mag + ((uint32_t)(127 - bias) << 23);
  /* Exponent 0: set the exponent of the smallest normal number, then subtract that number's leading one. */
  vf32 least = (vf32)splat32((uint32_t)(128 - bias) << 23);
  vu32 subnormal = (vu32)((vf32)(bits + (1u << 23)) - least);
  bits = pick_less(mag, splat32(1u << 23), subnormal, bits);
  if (ieee)
    bits = pick_less(mag, splat32(exp_mask), bits, mag | 0x7f800000u);
  else
    bits = pick_less(mag, splat32(mag_mask << shift), bits, splat32(0x7fc00000u));
  return (vf32)(bits | sign);
}

/* max_code: larger magnitudes become this. nan_code 0: a NaN keeps its upper payload bits and is quiet. */
INLINE vu32 encode(vf32 v, const int exp_bits, const int man_bits, const uint32_t max_code, const uint32_t nan_code) {
  const int shift = 23 - man_bits, bias = (1 << (exp_bits - 1)) - 1;
  vu32 mag = (vu32)v & 0x7fffffffu;
  vu32 sign = ((vu32)v ^ mag) >> (31 - exp_bits - man_bits);
  /* Adding half a unit less one, plus the last bit that is kept, carries exactly if nearest-even rounds up. */
  const uint32_t rebias = (uint32_t)(bias - 127) * (1u << 23);
  vu32 code = (mag + ((mag >> shift) & 1) + (rebias + (1u << (shift - 1)) - 1)) >> shift;
  /* Below the smallest normal number: adding a power of two whose last bit is the target's makes the adder round. */
  const uint32_t anchor = (uint32_t)(127 - bias + shift + 1) << 23;
  vu32 subnormal = (vu32)((vf32)mag + (vf32)splat32(anchor)) - anchor;
  code = pick_less(mag, splat32((uint32_t)(128 - bias) << 23), subnormal, code);
  code = (vu32)minimum(HK_I32, (vraw)code, (vraw)splat32(max_code));
  const uint32_t quiet = ((1u << exp_bits) - 1) << man_bits | 1u << (man_bits - 1);
  vu32 nan = nan_code ? splat32(nan_code) : ((mag >> shift) & ((1u << man_bits) - 1)) | quiet;
  return (vu32)pick_nan32((vraw)v, (vraw)nan, (vraw)code) | sign;
}

INLINE vf32 bf16_decode(vhalf h) { return (vf32)(half_to_words(h) << 16); }
/* The result is in the upper halves of the words. NaN needs no special case: it comes from bf16 values, so its lower
 * half is zero and cannot carry. */
INLINE vu32 bf16_round(vf32 v) { return (vu32)v + (((vu32)v >> 16) & 1) + 0x7fffu; }
INLINE vf32 bf16_nearest(vf32 v) { return (vf32)(bf16_round(v) & 0xffff0000u); }
INLINE vhalf bf16_encode(vf32 v) { return words_to_half(bf16_round(v) >> 16); }

#ifdef HAVE_F16
INLINE vf32 f16_decode(vhalf h) { return f16_hardware_decode(h); }
INLINE vhalf f16_encode(vf32 v) { return f16_hardware_encode(v); }

/* The 8-bit floats are converted through fp16, which holds all their values. e5m2 is fp16 without its lower byte. e4m3
 * is fp16 times 256 without one exponent bit and some mantissa bits. Here codes are in the upper bytes of 16-bit lanes;
 * lower bytes have no meaning. */

/* To the nearest value of `man_bits` mantissa bits that is a multiple of the smallest subnormal, as fp32. */
INLINE vf32 round_small(vf32 v, const int man_bits, const int min_exponent, const float max_finite) {
  vu32 mag = (vu32)v & 0x7fffffffu;
  vu32 sign = (vu32)v ^ mag;
  mag = (vu32)clamp((vf32)mag, (vf32)splat32(0) + max_finite);
  /* Adding a power of two whose last bit is the last bit that is kept makes the adder round. */
  vu32 power = (vu32)maximum(HK_I32, (vraw)(mag & 0x7f800000u), (vraw)splat32((uint32_t)(127 + min_exponent) << 23));
  vf32 anchor = (vf32)(power + ((uint32_t)(23 - man_bits) << 23));
  vf32 rounded = ((vf32)mag + anchor) - anchor;
  return (vf32)((vu32)rounded | sign);
}
INLINE vf32 e5m2_nearest(vf32 v) { return round_small(v, 2, -14, 57344.0f); }
INLINE vf32 e4m3_nearest_scaled(vf32 v) { return round_small(v, 3, -14, 1.75f); } /* of a value divided by 256 */

/* Code to fp16's bits and back. Bit 14 is set in no e4m3 value but NaN, in which the mantissa's carry sets it. */
#define CODES(suffix, lanes, signed_lanes)                                                                             \
  INLINE lanes e4m3_to_f16##suffix(lanes t) {                                                                          \
    lanes h = (lanes)((signed_lanes)t >> 1) & 0xbf80;                                                                  \
    return h | ((h + 0x80) & 0x4000);                                                                                  \
  }                                                                                                                    \
  INLINE lanes f16_to_e4m3##suffix(lanes h) {                                                                          \
    lanes mag = h << 1, nan = (lanes)((signed_lanes)mag >> 15);                                                        \
    return (h & 0x8000) | ((mag | nan) & 0x7f00);                                                                      \
  }                                                                                                                    \
  INLINE lanes code_to_f16##suffix(const int type, lanes t) {                                                          \
    return type == HK_E5M2 ? t & 0xff00 : e4m3_to_f16##suffix(t);                                                      \
  }                                                                                                                    \
  INLINE lanes f16_to_code##suffix(const int type, lanes h) { return type == HK_E5M2 ? h : f16_to_e4m3##suffix(h); }
CODES(, vhalf, vshalf)
CODES(_wide, vu16, vi16)

/* e4m3 as fp32 lanes of 1/256 of the value: sums, maxima and minima are the same, and two multiplications are saved.
 * Products need HK_E4M3 itself. */
#define HK_E4M3_SCALED HK_DTYPE_COUNT
INLINE vraw widen_code(const int type, vhalf f16) {
  vf32 v = f16_hardware_decode(f16);
  return (vraw)(type == HK_E4M3 ? v * 256.0f : v);
}
INLINE vhalf narrow_code(const int type, vraw v) {
  if (type == HK_E5M2) return f16_hardware_encode(e5m2_nearest((vf32)v));
  return f16_hardware_encode(e4m3_nearest_scaled(type == HK_E4M3 ? (vf32)v * (1.0f / 256.0f) : (vf32)v));
}
INLINE vraw widen_quarter(const int type, vquarter q) {
  return widen_code(type, code_to_f16(type, quarter_to_half(q) << 8));
}
INLINE vquarter narrow_quarter(const int type, vraw v) {
  return half_to_quarter(f16_to_code(type, narrow_code(type, v)) >> 8);
}
#else
INLINE vf32 f16_decode(vhalf h) { return decode(half_to_words(h), 5, 10, true); }
INLINE vhalf f16_encode(vf32 v) { return words_to_half(encode(v, 5, 10, 0x7c00, 0)); }
#define HK_E4M3_SCALED HK_E4M3
INLINE vraw widen_quarter(const int type, vquarter q) {
  vu32 x = quarter_to_words(q);
  return (vraw)(type == HK_E5M2 ? decode(x, 5, 2, true) : decode(x, 4, 3, false));
}
INLINE vquarter narrow_quarter(const int type, vraw v) {
  vf32 x = (vf32)v;
  return words_to_quarter(type == HK_E5M2 ? encode(x, 5, 2, 0x7b, 0x7f) : encode(x, 4, 3, 0x7e, 0x7f));
}
#endif

/* ---- by type ---- */

#define IS_QUARTER(type) ((type) == HK_E4M3 || (type) == HK_E5M2 || (type) == HK_E4M3_SCALED)
#define IS_HALF(type) ((type) == HK_F16 || (type) == HK_BF16)
/* Bytes of memory that become one accumulator vector. */
#define STEP_BYTES(type) (IS_QUARTER(type) ? VB / 4 : IS_HALF(type) ? VB / 2 : VB)

INLINE vraw widen_half(const int type, vhalf h) { return (vraw)(type == HK_F16 ? f16_decode(h) : bf16_decode(h)); }
INLINE vhalf narrow_half(const int type, vraw v) { return type == HK_F16 ? f16_encode((vf32)v) : bf16_encode((vf32)v); }

/* The lanes rounded to the type, as if stored and loaded. */
INLINE vraw nearest(const int type, vraw v) {
  if (type == HK_BF16) return (vraw)bf16_nearest((vf32)v);
#ifdef HAVE_F16
  if (type == HK_E5M2) return (vraw)e5m2_nearest((vf32)v);
  if (type == HK_E4M3_SCALED) return (vraw)e4m3_nearest_scaled((vf32)v);
#endif
  if (IS_HALF(type)) return widen_half(type, narrow_half(type, v));
  if (IS_QUARTER(type)) return widen_quarter(type, narrow_quarter(type, v));
  return v;
}

INLINE vraw load(const int type, const char *p) {
  switch (STEP_BYTES(type)) {
    case VB / 2: return widen_half(type, *(const vhalf_at *)p);
    case VB / 4: return widen_quarter(type, *(const vquarter_at *)p);
    default: return *(const vraw_at *)p;
  }
}
/* The first n bytes, n less than VB and at most STEP_BYTES; the lanes beyond are zero. */
INLINE vraw load_part(const int type, const char *p, size_t n) {
  switch (STEP_BYTES(type)) {
    case VB / 2: return widen_half(type, part_of_half(p, n));
    case VB / 4: return widen_quarter(type, part_of_quarter(p, n));
    default: return part_of_whole(p, n);
  }
}
INLINE void store(const int type, char *p, vraw v) {
  switch (STEP_BYTES(type)) {
    case VB / 2: *(vhalf_at *)p = narrow_half(type, v); break;
    case VB / 4: *(vquarter_at *)p = narrow_quarter(type, v); break;
    default: *(vraw_at *)p = v;
  }
}
INLINE void store_part(const int type, char *p, vraw v, size_t n) {
  switch (STEP_BYTES(type)) {
    case VB / 2: put_part_of_half(p, narrow_half(type, v), n); break;
    case VB / 4: put_part_of_quarter(p, narrow_quarter(type, v), n); break;
    default: put_part_of_whole(p, v, n);
  }
}

/* ---- a tile: four vectors, with names so that they stay in registers. Lanes may be in any order that store_tile
 * reverses. ---- */

typedef struct tile {
  vraw a, b, c, d;
} tile;

INLINE void load_words(const char *p, vraw *lower, vraw *upper) {
  vu32 w = (vu32) * (const vraw_at *)p;
  *lower = (vraw)(w << 16);
  *upper = (vraw)(w & 0xffff0000u);
}
INLINE vraw join_words(vraw lower, vraw upper) {
  return (vraw)((bf16_round((vf32)lower) >> 16) | (bf16_round((vf32)upper) & 0xffff0000u));
}

#ifdef HAVE_F16
enum { QUARTERS_STREAM = HAVE_STREAM };
INLINE tile load_quarters(const int type, const char *p) {
  vu16 w = (vu16) * (const vraw_at *)p;
  vu16 lower = code_to_f16_wide(type, w << 8), upper = code_to_f16_wide(type, w);
  return (tile){widen_code(type, low_half(lower)), widen_code(type, high_half(lower)),
                widen_code(type, low_half(upper)), widen_code(type, high_half(upper))};
}
INLINE vraw join_quarters(const int type, tile t) {
  vu16 lower = f16_to_code_wide(type, join_halves(narrow_code(type, t.a), narrow_code(type, t.b)));
  vu16 upper = f16_to_code_wide(type, join_halves(narrow_code(type, t.c), narrow_code(type, t.d)));
  return (vraw)((lower >> 8) | (upper & 0xff00));
}
#else
enum { QUARTERS_STREAM = 0 };
#endif

INLINE tile load_tile(const int type, const char *p) {
  const size_t step = STEP_BYTES(type);
  tile t;
  if (type == HK_BF16) { /* the lower and the upper halves of words */
    load_words(p, &t.a, &t.b);
    load_words(p + VB, &t.c, &t.d);
    return t;
  }
#ifdef HAVE_F16
  if (IS_QUARTER(type)) return load_quarters(type, p); /* the lower and the upper bytes of 16-bit lanes */
#endif
  return (tile){load(type, p), load(type, p + step), load(type, p + 2 * step), load(type, p + 3 * step)};
}

/* May store_tile stream?  p must then be aligned to VB. */
#define STREAMS(type) (IS_QUARTER(type) ? QUARTERS_STREAM : (type) == HK_F16 ? HAVE_STREAM && VB >= 32 : HAVE_STREAM)
INLINE void store_whole(char *p, vraw v, bool stream) {
  if (stream)
    stream_whole(p, v);
  else
    *(vraw_at *)p = v;
}
INLINE void store_half(char *p, vraw v, bool stream) {
  vhalf h = f16_encode((vf32)v);
  if (stream)
    stream_half(p, h);
  else
    *(vhalf_at *)p = h;
}
INLINE void store_tile(const int type, char *p, tile t, const bool stream) {
  const size_t step = STEP_BYTES(type);
  if (type == HK_BF16) {
    store_whole(p, join_words(t.a, t.b), stream);
    store_whole(p + VB, join_words(t.c, t.d), stream);
  } else if (type == HK_F16) {
    store_half(p, t.a, stream);
    store_half(p + step, t.b, stream);
    store_half(p + 2 * step, t.c, stream);
    store_half(p + 3 * step, t.d, stream);
  } else if (step == VB) {
    store_whole(p, t.a, stream);
    store_whole(p + step, t.b, stream);
    store_whole(p + 2 * step, t.c, stream);
    store_whole(p + 3 * step, t.d, stream);
  } else {
#ifdef HAVE_F16
    store_whole(p, join_quarters(type, t), stream);
#else
    store(type, p, t.a);
    store(type, p + step, t.b);
    store(type, p + 2 * step, t.c);
    store(type, p + 3 * step, t.d);
#endif
  }
}
