/* SPDX-License-Identifier: Apache-2.0 */
/* x86-64: intrinsics for operations that compilers translate badly from the vector extension. Included by vector.h;
 * portable.h has the same functions for other processors. */
#pragma once
#include <immintrin.h>

#if VB == 64
typedef __m512i vint;
typedef __m512 vsingle;
typedef __m512d vdouble;
typedef __m256i vint_half;
#define MM(name) _mm512_##name
#define STREAM_HALF _mm256_stream_si256
#elif VB == 32
typedef __m256i vint;
typedef __m256 vsingle;
typedef __m256d vdouble;
typedef __m128i vint_half;
#define MM(name) _mm256_##name
#define STREAM_HALF _mm_stream_si128
#else
typedef __m128i vint;
typedef __m128 vsingle;
typedef __m128d vdouble;
#define MM(name) _mm_##name
#endif

/* ---- selection ---- */
#if VB == 64
INLINE vu32 pick_less(vu32 a, vu32 b, vu32 yes, vu32 no) {
  return (vu32)_mm512_mask_mov_epi32((vint)no, _mm512_cmplt_epi32_mask((vint)a, (vint)b), (vint)yes);
}
INLINE vraw pick_nan32(vraw v, vraw yes, vraw no) {
  __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  return (vraw)_mm512_mask_mov_epi32((vint)no, nan, (vint)yes);
}
INLINE vraw pick_nan64(vraw v, vraw yes, vraw no) {
  __mmask8 nan = _mm512_cmp_pd_mask((__m512d)v, (__m512d)v, _CMP_UNORD_Q);
  return (vraw)_mm512_mask_mov_epi64((vint)no, nan, (vint)yes);
}
#else
INLINE vu32 pick_less(vu32 a, vu32 b, vu32 yes, vu32 no) {
  return (vu32)choose_less(HK_I32, (vraw)a, (vraw)b, (vraw)yes, (vraw)no);
}
INLINE vraw pick_nan32(vraw v, vraw yes, vraw no) { return choose((vraw)((vf32)v != (vf32)v), yes, no); }
INLINE vraw pick_nan64(vraw v, vraw yes, vraw no) { return choose((vraw)((vf64)v != (vf64)v), yes, no); }
#endif

/* ---- wider and narrower lanes; values fit into the narrower ones ---- */
#if VB == 64
INLINE vu32 half_to_words(vhalf h) { return (vu32)_mm512_cvtepu16_epi32((vint_half)h); }
INLINE vu32 quarter_to_words(vquarter q) { return (vu32)_mm512_cvtepu8_epi32((__m128i)q); }
INLINE vhalf quarter_to_half(vquarter q) { return (vhalf)_mm256_cvtepu8_epi16((__m128i)q); }
INLINE vhalf words_to_half(vu32 w) { return (vhalf)_mm512_cvtepi32_epi16((vint)w); }
INLINE vquarter half_to_quarter(vhalf h) { return (vquarter)_mm256_cvtepi16_epi8((vint_half)h); }
INLINE vquarter words_to_quarter(vu32 w) { return (vquarter)_mm512_cvtepi32_epi8((vint)w); }
#elif VB == 32
INLINE __m128i quarter_bits(vquarter q) {
  uint64_t bits;
  memcpy(&bits, &q, sizeof bits);
  return _mm_cvtsi64_si128((long long)bits);
}
INLINE vu32 half_to_words(vhalf h) { return (vu32)_mm256_cvtepu16_epi32((vint_half)h); }
INLINE vu32 quarter_to_words(vquarter q) { return (vu32)_mm256_cvtepu8_epi32(quarter_bits(q)); }
INLINE vhalf quarter_to_half(vquarter q) { return (vhalf)_mm_cvtepu8_epi16(quarter_bits(q)); }
INLINE vhalf words_to_half(vu32 w) {
  return (vhalf)_mm_packus_epi32(_mm256_castsi256_si128((vint)w), _mm256_extracti128_si256((vint)w, 1));
}
INLINE vquarter half_to_quarter(vhalf h) {
  uint64_t bits = (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16((__m128i)h, (__m128i)h));
  vquarter q;
  memcpy(&q, &bits, sizeof q);
  return q;
}
INLINE vquarter words_to_quarter(vu32 w) { return half_to_quarter(words_to_half(w)); }
#else
INLINE vu32 half_to_words(vhalf h) {
  uint64_t bits;
  memcpy(&bits, &h, sizeof bits);
  return (vu32)_mm_unpacklo_epi16(_mm_cvtsi64_si128((long long)bits), _mm_setzero_si128());
}
INLINE vu32 quarter_to_words(vquarter q) {
  int bits;
  memcpy(&bits, &q, sizeof bits);
  __m128i h = _mm_unpacklo_epi8(_mm_cvtsi32_si128(bits), _mm_setzero_si128());
  return (vu32)_mm_unpacklo_epi16(h, _mm_setzero_si128());
}
/* SSE2 packs with signed saturation only: sign-extend first, so that nothing saturates. */
INLINE __m128i packed_half(vu32 w) {
  __m128i x = _mm_srai_epi32(_mm_slli_epi32((vint)w, 16), 16);
  return _mm_packs_epi32(x, x);
}
INLINE vhalf words_to_half(vu32 w) {
  uint64_t bits = (uint64_t)_mm_cvtsi128_si64(packed_half(w));
  vhalf h;
  memcpy(&h, &bits, sizeof h);
  return h;
}
INLINE vquarter words_to_quarter(vu32 w) {
  __m128i h = packed_half(w);
  int bits = _mm_cvtsi128_si32(_mm_packus_epi16(h, h));
  vquarter q;
  memcpy(&q, &bits, sizeof q);
  return q;
}
#endif

#if VB == 64
INLINE vhalf low_half(vu16 v) { return (vhalf)_mm512_castsi512_si256((vint)v); }
INLINE vhalf high_half(vu16 v) { return (vhalf)_mm512_extracti64x4_epi64((vint)v, 1); }
INLINE vu16 join_halves(vhalf low, vhalf high) {
  return (vu16)_mm512_inserti64x4(_mm512_castsi256_si512((vint_half)low), (vint_half)high, 1);
}
#elif VB == 32
INLINE vhalf low_half(vu16 v) { return (vhalf)_mm256_castsi256_si128((vint)v); }
INLINE vhalf high_half(vu16 v) { return (vhalf)_mm256_extracti128_si256((vint)v, 1); }
INLINE vu16 join_halves(vhalf low, vhalf high) { return (vu16)_mm256_set_m128i((vint_half)high, (vint_half)low); }
#endif

/* ---- maximum and minimum: the result is `a` if the two are equal or `a` is NaN, and `b` if `b` is NaN ---- */

#if VB >= 32
#define CASES_8_32(which)                                                                                              \
  case HK_I8: return (vraw)MM(which##_epi8)((vint)a, (vint)b);                                                         \
  case HK_U8: return (vraw)MM(which##_epu8)((vint)a, (vint)b);                                                         \
  case HK_I32: return (vraw)MM(which##_epi32)((vint)a, (vint)b);                                                       \
  case HK_U32:                                                                                                         \
    return (vraw)MM(which##_epu32)((vint)a, (vint)b);
#else
#define CASES_8_32(which)
#endif
#if VB == 64
#define CASES_64(which)                                                                                                \
  case HK_I64: return (vraw)MM(which##_epi64)((vint)a, (vint)b);                                                       \
  case HK_U64:                                                                                                         \
    return (vraw)MM(which##_epu64)((vint)a, (vint)b);
#else
#define CASES_64(which)
#endif
/* Floats: the instruction returns its second operand if the two are equal or one is NaN. */
#define EXTREME(name, which, low, high)                                                                                \
  INLINE vraw name(const int type, vraw a, vraw b) {                                                                   \
    switch (type) {                                                                                                    \
      CASES_8_32(which)                                                                                                \
      CASES_64(which)                                                                                                  \
      case HK_F64: return pick_nan64(b, b, (vraw)MM(which##_pd)((vdouble)b, (vdouble)a));                              \
      default:                                                                                                         \
        if (IS_INTEGER(type)) return choose_less(type, low, high, b, a);                                               \
        return pick_nan32(b, b, (vraw)MM(which##_ps)((vsingle)b, (vsingle)a));                                         \
    }                                                                                                                  \
  }
EXTREME(maximum, max, a, b)
EXTREME(minimum, min, b, a)
/* The smaller of the two; NaN if v is NaN. */
INLINE vf32 clamp(vf32 v, vf32 limit) { return (vf32)MM(min_ps)((vsingle)limit, (vsingle)v); }

/* ---- streaming stores: p is aligned to the stored size; below 16 bytes they would gain nothing ---- */

#if VB == 64
INLINE void stream_whole(char *p, vraw v) { _mm512_stream_si512((void *)p, (vint)v); }
#elif VB == 32
INLINE void stream_whole(char *p, vraw v) { _mm256_stream_si256((void *)p, (vint)v); }
#else
INLINE void stream_whole(char *p, vraw v) { _mm_stream_si128((void *)p, (vint)v); }
#endif
#if VB >= 32
INLINE void stream_half(char *p, vhalf v) { STREAM_HALF((void *)p, (vint_half)v); }
#else
INLINE void stream_half(char *p, vhalf v) { *(vhalf_at *)p = v; }
#endif
enum { HAVE_STREAM = 1 };
/* Streaming stores are weakly ordered: they must be visible before a later release store publishes them. */
INLINE void stream_fence(void) { _mm_sfence(); }
