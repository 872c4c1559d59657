/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of src/kernels/cuda/primitives.h on a host, for the emulated driver's kernels (shim.h) and for those that
 * POSIX threads run (tests/support/gpu_threads.h). */
#ifndef HK_CUDAEMU_ARITHMETIC_H
#define HK_CUDAEMU_ARITHMETIC_H
#include <stdint.h>
#include <string.h>

HK_DEVICE float hk_add_f32(float a, float b) { return a + b; }
HK_DEVICE float hk_mul_f32(float a, float b) { return a * b; }
HK_DEVICE double hk_add_f64(double a, double b) { return a + b; }
HK_DEVICE double hk_mul_f64(double a, double b) { return a * b; }
HK_DEVICE float hk_bits_f32(uint32_t x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
HK_DEVICE uint32_t hk_f32_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
HK_DEVICE double hk_bits_f64(uint64_t x) {
  double f;
  memcpy(&f, &x, 8);
  return f;
}
HK_DEVICE uint64_t hk_f64_bits(double x) {
  uint64_t u;
  memcpy(&u, &x, 8);
  return u;
}
HK_DEVICE float hk_f16_to_f32(uint32_t h) {
  uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) return hk_bits_f32(sign | 0x7f800000 | fraction << 13);
  if (exponent) return hk_bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
  float tiny = (float)fraction * 0x1p-24f; /* subnormal or zero: exact in fp32 */
  return hk_bits_f32(sign | hk_f32_bits(tiny));
}
HK_DEVICE uint32_t hk_f32_to_f16(float f) {
  uint32_t x = hk_f32_bits(f), sign = x >> 16 & 0x8000, a = x & 0x7fffffff;
  if (a > 0x7f800000) return 0x7fff;         /* the device's NaN */
  if (a >= 0x477ff000) return sign | 0x7c00; /* rounds beyond 65504 */
  if (a < 0x38800000) {                      /* subnormal: adding 0.5 rounds to multiples of 2^-24 */
    uint32_t sum = hk_f32_bits(hk_bits_f32(a) + 0.5f);
    return sign | (sum - 0x3f000000);
  }
  uint32_t odd = a >> 13 & 1; /* to nearest, ties to even */
  return sign | (a - (112u << 23) + 0xfff + odd) >> 13;
}
#endif
