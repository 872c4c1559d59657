/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 (F, BW, VL, DQ): 64-byte vectors.  AVX512_BF16's conversion is not used: it flushes subnormals. */
#if defined(__x86_64__)
#define VB 64
#include "vector.h"
#define HAVE_F16 1
INLINE vf32 f16_hardware_decode(vhalf h) { return (vf32)_mm512_cvtph_ps((__m256i)h); }
INLINE vhalf f16_hardware_encode(vf32 v) { return (vhalf)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT); }
#include "body.h"

const hk_kernels hk_kernels_avx512 = LEVEL_TABLE("avx512");
#else
typedef int hk_no_avx512; /* ISO C wants a declaration */
#endif
