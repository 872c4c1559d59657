/* SPDX-License-Identifier: Apache-2.0 */
/* The level that every processor of the architecture has: SSE2 on x86-64, NEON on aarch64, else compiler-generated code
 * for 16-byte vectors. */
#define VB 16
#include "vector.h"
#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define HAVE_F16 1
INLINE vf32 f16_hardware_decode(vhalf h) { return (vf32)vcvt_f32_f16((float16x4_t)h); }
INLINE vhalf f16_hardware_encode(vf32 v) { return (vhalf)vcvt_f16_f32((float32x4_t)v); }
#define BASE_NAME "neon"
#elif defined(__x86_64__)
#define BASE_NAME "sse2"
#else
#define BASE_NAME "scalar"
#endif
#include "body.h"

const hk_kernels hk_kernels_base = LEVEL_TABLE(BASE_NAME);
