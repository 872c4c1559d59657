/* SPDX-License-Identifier: Apache-2.0 */
/* Floats of 16 and of 8 bits, in fp32's clothes. */
#ifndef HK_PTXEMU_HALF_H
#define HK_PTXEMU_HALF_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline float ptx_f32(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline uint32_t ptx_f32_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static inline double ptx_f64(uint64_t bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}
static inline float ptx_f16_in(uint32_t h) {
  const uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) return ptx_f32(sign | 0x7f800000 | fraction << 13);
  if (exponent) return ptx_f32(sign | (exponent + 112) << 23 | fraction << 13);
  return ptx_f32(sign | ptx_f32_bits((float)fraction * 0x1p-24f)); /* subnormal or zero: exact in fp32 */
}
/* To nearest, ties to even. */
static inline uint32_t ptx_f16_out(float f) {
  const uint32_t x = ptx_f32_bits(f), sign = x >> 16 & 0x8000, a = x & 0x7fffffff;
  if (a > 0x7f800000) return 0x7fff;
  if (a >= 0x477ff000) return sign | 0x7c00;
  if (a < 0x38800000) return sign | (ptx_f32_bits(ptx_f32(a) + 0.5f) - 0x3f000000);
  return sign | (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
}
static inline float ptx_bf16_in(uint32_t x) { return ptx_f32(x << 16); }
static inline uint32_t ptx_bf16_out(float f) {
  const uint32_t x = ptx_f32_bits(f);
  if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (x + (x >> 16 & 1) + 0x7fff) >> 16;
}
/* Floats of 8 bits: e4m3 has no infinity and one NaN of each sign, e5m2 has both as fp16 has. */
static inline float ptx_fp8_in(uint32_t x, bool e5m2) {
  const int fraction_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, exponent = (int)(x & 0x7f) >> fraction_bits;
  const int whole = 1 << fraction_bits, fraction = (int)x & (whole - 1);
  float a = ldexpf((float)(exponent ? whole + fraction : fraction), (exponent ? exponent : 1) - bias - fraction_bits);
  if (e5m2 ? exponent == 31 : (x & 0x7f) == 0x7f) a = fraction ? NAN : INFINITY;
  return x & 0x80 ? -a : a;
}
/* To nearest, ties to even; what is too large becomes the largest finite number (.satfinite). */
static inline uint32_t ptx_fp8_out(float f, bool e5m2) {
  const int fraction_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const uint32_t sign = ptx_f32_bits(f) >> 24 & 0x80;
  const float a = fabsf(f);
  if (f != f) return 0x7f;
  if (a >= (e5m2 ? 57344.f : 448.f)) return sign | (e5m2 ? 0x7b : 0x7e);
  const int least = 1 - bias, exponent = a > 0 && ilogbf(a) > least ? ilogbf(a) : least;
  const uint32_t steps = (uint32_t)nearbyintf(ldexpf(a, fraction_bits - exponent)); /* of the last fraction bit */
  return sign | (((uint32_t)(exponent - least) << fraction_bits) + steps);
}
#endif
