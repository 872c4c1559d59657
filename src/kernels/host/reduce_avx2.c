/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 with F16C: 32-byte vectors. */
#if defined(__x86_64__)
#define VB 32
#include "vector.h"
#define HAVE_F16 1
INLINE vf32 f16_hardware_decode(vhalf h) { return (vf32)_mm256_cvtph_ps((__m128i)h); }
INLINE vhalf f16_hardware_encode(vf32 v) { return (vhalf)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#include "body.h"

const hk_kernels hk_kernels_avx2 = LEVEL_TABLE("avx2");
#else
typedef int hk_no_avx2; /* ISO C wants a declaration */
#endif
