/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised values (program/quantised.h) to fp32 and back, and between fp32 and the user's types. Included by body.h.
 */
#include "../../program/quantised.h"
#include "convert.h"

enum { QUANT = HK_QUANTISED_BLOCK };

INLINE float quant_float(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* The scale's byte: the largest finite magnitude has the bits `most`. 126 is 1.96875 * 2^6, so a larger mantissa takes
 * the next power. */
INLINE uint32_t quant_scale(uint32_t most, uint32_t least) {
  const uint32_t top = (most + 0x3ffffu) >> 23;
  return top > least + 6 ? top - 6 : least;
}

INLINE uint32_t quant_most(vu32 v) {
#if VB == 64
  return _mm512_reduce_max_epu32((vint)v);
#else
  uint32_t lanes[VB / 4], most = 0;
  memcpy(lanes, &v, sizeof lanes);
  for (unsigned i = 0; i < VB / 4; i++) most = lanes[i] > most ? lanes[i] : most;
  return most;
#endif
}

/* Adding 1.5 * 2^23 makes the adder round to an integer, whose lower bits are then the sum's. */
#define QUANT_ROUND 12582912.0f

/* A block with infinities or NaN. */
static __attribute__((noinline)) uint8_t quant_odd_block(int8_t *to, const float *x, uint32_t least) {
  uint32_t bits[QUANT], most = 0;
  memcpy(bits, x, sizeof bits);
  for (unsigned i = 0; i < QUANT; i++) {
    const uint32_t mag = bits[i] & 0x7fffffffu;
    if (mag < 0x7f800000u && mag > most) most = mag;
  }
  const uint32_t k = quant_scale(most, least);
  for (unsigned i = 0; i < QUANT; i++) {
    const float r = x[i] * quant_float((254 - k) << 23) + QUANT_ROUND;
    const uint32_t mag = bits[i] & 0x7fffffffu;
    int8_t value;
    memcpy(&value, &r, sizeof value); /* little endian: the lowest bits */
    to[i] = mag > 0x7f800000u ? -128 : mag < 0x7f800000u ? value : bits[i] >> 31 ? -127 : 127;
  }
  return (uint8_t)k;
}

INLINE uint8_t quant_block(int8_t *to, const float *x, uint32_t least) {
  enum { LANES = VB / 4, VECTORS = QUANT / LANES };
  vf32 v[VECTORS];
  vraw most = {0};
  for (unsigned i = 0; i < VECTORS; i++) {
    v[i] = (vf32) * (const vraw_at *)(x + i * LANES);
    most = maximum(HK_I32, most, (vraw)((vu32)v[i] & 0x7fffffffu));
  }
  const uint32_t top = quant_most((vu32)most), k = quant_scale(top, least);
  if (__builtin_expect(top >= 0x7f800000u, 0)) return quant_odd_block(to, x, least);
  const float inverse = quant_float((254 - k) << 23);
  for (unsigned i = 0; i < VECTORS; i++)
    *(vquarter_at *)(to + i * LANES) = words_to_quarter((vu32)(v[i] * inverse + QUANT_ROUND) & 0xffu);
  return (uint8_t)k;
}

static void quantise(int8_t *values, uint8_t *scales, const float *x, size_t n, uint32_t least) {
  for (; n >= QUANT; n -= QUANT, x += QUANT, values += QUANT) *scales++ = quant_block(values, x, least);
  if (!n) return;
  float last[QUANT] = {0};
  int8_t to[QUANT];
  memcpy(last, x, n * sizeof *x);
  *scales = quant_block(to, last, least);
  memcpy(values, to, n);
}

typedef int8_t quant_bytes VECTOR(16);
typedef quant_bytes quant_bytes_at __attribute__((aligned(1), may_alias));

/* True if the block has infinities or NaN. */
INLINE bool quant_is_odd(const int8_t *values) {
  uint64_t any[2];
  const quant_bytes a = *(const quant_bytes_at *)values, b = *(const quant_bytes_at *)(values + 16);
  const quant_bytes odd = (quant_bytes)(a > HK_QUANTISED_MOST) | (quant_bytes)(a < -HK_QUANTISED_MOST) |
                          (quant_bytes)(b > HK_QUANTISED_MOST) | (quant_bytes)(b < -HK_QUANTISED_MOST);
  memcpy(any, &odd, sizeof any);
  return (any[0] | any[1]) != 0;
}

static __attribute__((noinline)) void restore_odd_block(float *to, const int8_t *values, float scale, bool adds) {
  for (unsigned i = 0; i < QUANT; i++) {
    const int q = values[i];
    const float v = q == -128   ? quant_float(0x7fc00000u)
                    : q == 127  ? quant_float(0x7f800000u)
                    : q == -127 ? quant_float(0xff800000u)
                                : (float)q * scale;
    to[i] = adds ? to[i] + v : v;
  }
}

INLINE void restore_block(float *to, const int8_t *values, float scale, const bool adds) {
  enum { LANES = VB / 4 };
  if (__builtin_expect(quant_is_odd(values), 0)) {
    restore_odd_block(to, values, scale, adds);
    return;
  }
  for (unsigned i = 0; i < QUANT; i += LANES) {
    const vi32 words = (vi32)(quarter_to_words(*(const vquarter_at *)(values + i)) << 24) >> 24;
    vf32 v = __builtin_convertvector(words, vf32) * scale;
    if (adds) v += (vf32) * (const vraw_at *)(to + i);
    *(vraw_at *)(to + i) = (vraw)v;
  }
}

INLINE void restore_all(float *to, const int8_t *values, const uint8_t *scales, size_t n, const bool adds) {
  for (; n >= QUANT; n -= QUANT, to += QUANT, values += QUANT)
    restore_block(to, values, quant_float((uint32_t)*scales++ << 23), adds);
  if (!n) return;
  float last[QUANT] = {0};
  int8_t from[QUANT] = {0};
  memcpy(from, values, n);
  memcpy(last, to, n * sizeof *to);
  restore_block(last, from, quant_float((uint32_t)*scales << 23), adds);
  memcpy(to, last, n * sizeof *to);
}

static void restore(float *to, const int8_t *values, const uint8_t *scales, size_t n, bool adds) {
  adds ? restore_all(to, values, scales, n, true) : restore_all(to, values, scales, n, false);
}

INLINE void widen_as(const int type, float *to, const void *from, size_t n, float factor, const bool adds) {
  const size_t lanes = VB / sizeof *to, step = STEP_BYTES(type), part = n % lanes * (step / lanes);
  const char *p = from;
  for (; n >= lanes; n -= lanes, p += step, to += lanes) {
    vf32 v = (vf32)load(type, p) * factor;
    if (adds) v += (vf32) * (const vraw_at *)to;
    *(vraw_at *)to = (vraw)v;
  }
  if (!n) return;
  vf32 v = (vf32)load_part(type, p, part) * factor;
  if (adds) v += (vf32)part_of_whole((const char *)to, n * sizeof *to);
  put_part_of_whole((char *)to, (vraw)v, n * sizeof *to);
}

static void widen(hk_dtype type, float *to, const void *from, size_t n, float factor, bool adds) {
  switch (type) {
    case HK_F16: widen_as(HK_F16, to, from, n, factor, adds); break;
    case HK_BF16: widen_as(HK_BF16, to, from, n, factor, adds); break;
    default: widen_as(HK_F32, to, from, n, factor, adds);
  }
}

INLINE void narrow_as(const int type, void *to, const float *from, size_t n) {
  const size_t lanes = VB / sizeof *from, step = STEP_BYTES(type), part = n % lanes * (step / lanes);
  char *p = to;
  for (; n >= lanes; n -= lanes, p += step, from += lanes) store(type, p, *(const vraw_at *)from);
  if (n) store_part(type, p, part_of_whole((const char *)from, n * sizeof *from), part);
}

static void narrow(hk_dtype type, void *to, const float *from, size_t n) {
  switch (type) {
    case HK_F16: narrow_as(HK_F16, to, from, n); break;
    case HK_BF16: narrow_as(HK_BF16, to, from, n); break;
    default: narrow_as(HK_F32, to, from, n);
  }
}
