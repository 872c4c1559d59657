/* SPDX-License-Identifier: Apache-2.0 */
/* Floats of 16 bits, in fp32's clothes. */
#ifndef HK_PTXEMU_HALF_H
#define HK_PTXEMU_HALF_H
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
#endif
