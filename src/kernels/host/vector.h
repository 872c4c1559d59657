/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of VB bytes (16, 32 or 64) through the compilers' vector extension, and access to parts of a vector in
 * memory. Included by the file of one level, which defines VB. x86.h and portable.h add the same functions: lane
 * conversion, selection, maximum and minimum, streaming stores. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "../reduce.h" /* the types' names */
#if defined(__x86_64__)
#include <immintrin.h> /* masked access */
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#define VECTOR(bytes) __attribute__((vector_size(bytes)))
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "partial loads assume little-endian memory");

typedef uint8_t vraw VECTOR(VB); /* bits of any lanes */
typedef uint8_t vu8 VECTOR(VB);
typedef int8_t vi8 VECTOR(VB);
typedef uint16_t vu16 VECTOR(VB);
typedef int16_t vi16 VECTOR(VB);
typedef uint32_t vu32 VECTOR(VB);
typedef int32_t vi32 VECTOR(VB);
typedef uint64_t vu64 VECTOR(VB);
typedef int64_t vi64 VECTOR(VB);
typedef float vf32 VECTOR(VB);
typedef double vf64 VECTOR(VB);
/* A vector of fp32 lanes as 16- and as 8-bit floats in memory. */
typedef uint16_t vhalf VECTOR(VB / 2);
typedef int16_t vshalf VECTOR(VB / 2);
typedef uint8_t vquarter VECTOR(VB / 4);

/* The same, anywhere in memory. */
typedef vraw vraw_at __attribute__((aligned(1), may_alias));
typedef vhalf vhalf_at __attribute__((aligned(1), may_alias));
typedef vquarter vquarter_at __attribute__((aligned(1), may_alias));
typedef uint64_t u64_at __attribute__((aligned(1), may_alias));
typedef uint32_t u32_at __attribute__((aligned(1), may_alias));
typedef uint16_t u16_at __attribute__((aligned(1), may_alias));

/* The first n bytes at p, n < 8, zeros above; reads nothing beyond. */
INLINE uint64_t word_part(const char *p, size_t n) {
  if (n >= 4) return *(const u32_at *)p | (uint64_t) * (const u32_at *)(p + n - 4) << (8 * (n - 4));
  if (n == 0) return 0;
  uint64_t w = (uint8_t)p[0];
  w |= (uint64_t)(uint8_t)p[n / 2] << (8 * (n / 2));
  return w | (uint64_t)(uint8_t)p[n - 1] << (8 * (n - 1));
}
INLINE uint64_t word_of(const char *p, size_t at, size_t n) {
  if (at >= n) return 0;
  return n - at >= 8 ? *(const u64_at *)(p + at) : word_part(p + at, n - at);
}
INLINE void put_word(char *p, size_t at, size_t n, uint64_t w) {
  if (at >= n) return;
  p += at;
  n -= at;
  if (n >= 8) {
    *(u64_at *)p = w;
    return;
  }
  if (n & 4) {
    *(u32_at *)p = (uint32_t)w;
    p += 4;
    w >>= 32;
  }
  if (n & 2) {
    *(u16_at *)p = (uint16_t)w;
    p += 2;
    w >>= 16;
  }
  if (n & 1) *p = (char)w;
}

/* ---- parts of a vector: the first n bytes; n is less than VB ---- */
#if VB == 64
INLINE __mmask64 first(size_t n) { return ((__mmask64)1 << n) - 1; }
INLINE vraw part_of_whole(const char *p, size_t n) { return (vraw)_mm512_maskz_loadu_epi8(first(n), p); }
INLINE vhalf part_of_half(const char *p, size_t n) { return (vhalf)_mm256_maskz_loadu_epi8((__mmask32)first(n), p); }
INLINE vquarter part_of_quarter(const char *p, size_t n) {
  return (vquarter)_mm_maskz_loadu_epi8((__mmask16)first(n), p);
}
INLINE void put_part_of_whole(char *p, vraw v, size_t n) { _mm512_mask_storeu_epi8(p, first(n), (__m512i)v); }
INLINE void put_part_of_half(char *p, vhalf v, size_t n) {
  _mm256_mask_storeu_epi8(p, (__mmask32)first(n), (__m256i)v);
}
INLINE void put_part_of_quarter(char *p, vquarter v, size_t n) {
  _mm_mask_storeu_epi8(p, (__mmask16)first(n), (__m128i)v);
}
#else
/* Through 64-bit registers: each detour over the stack would cost a failed store forwarding. */
typedef uint64_t vwords_half VECTOR(VB / 2);
INLINE vraw part_of_whole(const char *p, size_t n) {
#if VB == 32
  return (vraw)(vu64){word_of(p, 0, n), word_of(p, 8, n), word_of(p, 16, n), word_of(p, 24, n)};
#else
  return (vraw)(vu64){word_of(p, 0, n), word_of(p, 8, n)};
#endif
}
INLINE vhalf part_of_half(const char *p, size_t n) {
#if VB == 32
  return (vhalf)(vwords_half){word_of(p, 0, n), word_of(p, 8, n)};
#else
  return (vhalf)(vwords_half){word_of(p, 0, n)};
#endif
}
INLINE vquarter part_of_quarter(const char *p, size_t n) {
  uint64_t w = word_of(p, 0, n);
  vquarter v;
  memcpy(&v, &w, sizeof v);
  return v;
}
INLINE void put_part_of_whole(char *p, vraw v, size_t n) {
  for (unsigned i = 0; i < VB / 8; i++) put_word(p, 8 * i, n, ((vu64)v)[i]);
}
INLINE void put_part_of_half(char *p, vhalf v, size_t n) {
  for (unsigned i = 0; i < VB / 16; i++) put_word(p, 8 * i, n, ((vwords_half)v)[i]);
}
INLINE void put_part_of_quarter(char *p, vquarter v, size_t n) {
  uint64_t w = 0;
  memcpy(&w, &v, sizeof v);
  put_word(p, 0, n, w);
}
#endif

/* ---- selection ---- */

/* mask: all ones or all zeros a lane */
INLINE vraw choose(vraw mask, vraw yes, vraw no) { return (yes & mask) | (no & ~mask); }

#define IS_INTEGER(type) ((type) <= HK_U64)
_Static_assert(HK_I8 == 0 && HK_U64 == 5, "the integer types come first");
/* yes if a < b, for the integer types */
INLINE vraw choose_less(const int type, vraw a, vraw b, vraw yes, vraw no) {
  switch (type) {
    case HK_I8: return choose((vraw)((vi8)a < (vi8)b), yes, no);
    case HK_U8: return choose((vraw)((vu8)a < (vu8)b), yes, no);
    case HK_I32: return choose((vraw)((vi32)a < (vi32)b), yes, no);
    case HK_U32: return choose((vraw)((vu32)a < (vu32)b), yes, no);
    case HK_I64: return choose((vraw)((vi64)a < (vi64)b), yes, no);
    default: return choose((vraw)((vu64)a < (vu64)b), yes, no);
  }
}

#if defined(__x86_64__)
#include "x86.h"
#else
#include "portable.h"
#endif
