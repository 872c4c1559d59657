/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that one vector level provides to reduce.c. body.h is the only implementation; each level's file
 * includes it with another vector width. */
#pragma once
#include <stdbool.h>
#include "../reduce.h" /* hk_reducer and the types */

typedef void (*hk_reduce_fn)(const hk_reducer *r, void *const *dst, unsigned ndst, const void *const *src,
                             unsigned nsrc, int fresh, size_t bytes, unsigned flags);

/* avg and premulsum are sums: see hk_reducer.pre and .post. */
enum { HK_KERNEL_OPS = HK_MIN + 1 };

typedef struct hk_kernels {
  const char *name;
  hk_reduce_fn reduce[HK_DTYPE_COUNT][HK_KERNEL_OPS];
  /* One source, any destinations, bytes as they are. */
  void (*copy)(void *const *dst, unsigned ndst, const void *src, size_t bytes, unsigned flags);
  /* widen: n elements of a type that has a quantised form become fp32, times a factor; narrow: the reverse. With `adds`
   * the result is added to the destination's values. */
  void (*widen)(hk_dtype type, float *to, const void *from, size_t n, float factor, bool adds);
  void (*narrow)(hk_dtype type, void *to, const float *from, size_t n);
  /* quantise: n values of fp32 get their quantised form (program/quantised.h); no scale's byte is below `least`.
   * restore: the reverse. */
  void (*quantise)(int8_t *values, uint8_t *scales, const float *x, size_t n, uint32_t least);
  void (*restore)(float *to, const int8_t *values, const uint8_t *scales, size_t n, bool adds);
} hk_kernels;

extern const hk_kernels hk_kernels_base;
#if defined(__x86_64__)
extern const hk_kernels hk_kernels_avx2, hk_kernels_avx512;
#endif

const hk_kernels *hk_kernels_level(void); /* the level that is used */
/* For tests and benchmarks: reducers initialised and copies made from now on use this level. Returns false, without a
 * change, if the name is unknown or the processor does not have the level. */
bool hk_simd_select(const char *name);
