/* SPDX-License-Identifier: Apache-2.0 */
/* Data movement on host memory: destinations <- operator(sources), all types and operators, vectorised with run-time
 * dispatch.  Reductions of 16- and 8-bit floats accumulate in fp32 over all sources of the call and round once
 * (nearest, ties to even; e4m3 saturates to its largest finite value as CUDA's conversion does). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../program/operation.h" /* types and operators */

/* A reduction, resolved once per operation. */
typedef struct hk_reducer {
  uint8_t dtype, op;
  uint8_t elem_bytes;
  /* HK_IN sources are multiplied by `scalar` when they are read (premulsum, and avg of floats by 1/n). The product is
   * rounded to the type, as it is in a slot: ranks that add up the same inputs get equal bits. */
  uint8_t pre;
  uint8_t post; /* final results are divided by `divisor` (avg of integers, truncating as C does) */
  uint8_t tiny; /* hk_tiny: hk_move adds a few elements of two sources itself */
  int64_t divisor;
  union {
    uint64_t bits;
    double f64;
    float f32; /* also for the narrower floats */
    int64_t i64;
  } scalar; /* in the type's own arithmetic */
  /* Combines n >= 1 sources; see hk_move. */
  void (*run)(const struct hk_reducer *r, void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc,
              int fresh, size_t bytes, unsigned flags);
} hk_reducer;

/* scalar: for HK_PREMULSUM, one element of `dtype`; other operators ignore it. nranks: the divisor of HK_AVG. avg and
 * premulsum also work with nranks == 1. */
hk_status hk_reducer_init(hk_reducer *r, hk_dtype dtype, hk_redop op, int nranks, const void *scalar);

enum {
  HK_MOVE_FINAL = 1,                                 /* apply `post` */
  HK_MOVE_STREAM = 2,                                /* destinations will not be read soon: use non-temporal stores */
  HK_MOVE_AHEAD = 4,                                 /* sources are in memory, not in caches: prefetch them */
  HK_MOVE_UNCACHED = HK_MOVE_STREAM | HK_MOVE_AHEAD, /* both */
  HK_MOVE_SLOT = 8 /* a copy to a link's slot, whose cache lines the reader's core has */
};

/* memcpy in the best form for this processor and size. */
void hk_copy(void *dst, const void *src, size_t bytes, unsigned flags);
/* One source to several destinations. */
void hk_copy_to_all(void *const *dst, unsigned ndst, const void *src, size_t bytes, unsigned flags);

/* ---- moving: inline, so that the smallest messages cost a few nanoseconds ---- */

/* The size of a link's slot header. Messages up to this size are added or copied inline. */
enum { HK_MOVE_TINY = 48 };
typedef enum hk_tiny { HK_TINY_NONE, HK_TINY_F32, HK_TINY_F64, HK_TINY_U32, HK_TINY_U64 } hk_tiny;

/* Vectors and elements anywhere in memory, in place too. */
#define HK_ADD_TINY(element)                                                                                           \
  do {                                                                                                                 \
    typedef element hk_at __attribute__((aligned(1), may_alias));                                                      \
    typedef element hk_vector __attribute__((vector_size(16)));                                                        \
    typedef hk_vector hk_vector_at __attribute__((aligned(1), may_alias));                                             \
    size_t i = 0;                                                                                                      \
    for (; i + 16 <= bytes; i += 16)                                                                                   \
      *(hk_vector_at *)(d + i) = *(const hk_vector_at *)(x + i) + *(const hk_vector_at *)(y + i);                      \
    for (; i < bytes; i += sizeof(element)) *(hk_at *)(d + i) = *(const hk_at *)(x + i) + *(const hk_at *)(y + i);     \
  } while (0)
static inline void hk_add_tiny(unsigned tiny, void *dst, const void *a, const void *b, size_t bytes) {
  char *d = dst;
  const char *x = a, *y = b;
  switch (tiny) {
    case HK_TINY_F32: HK_ADD_TINY(float); break;
    case HK_TINY_F64: HK_ADD_TINY(double); break;
    case HK_TINY_U32: HK_ADD_TINY(uint32_t); break;
    default: HK_ADD_TINY(uint64_t); break;
  }
}
#undef HK_ADD_TINY

/* At most 64 bytes, by two overlapping moves of a power of two; everything is read before anything is written. */
static inline void hk_copy_tiny(void *dst, const void *src, size_t bytes) {
  char *d = dst;
  const char *s = src;
#define HK_COPY_TINY(n)                                                                                                \
  do {                                                                                                                 \
    char first[n], last[n];                                                                                            \
    __builtin_memcpy(first, s, n);                                                                                     \
    __builtin_memcpy(last, s + bytes - (n), n);                                                                        \
    __builtin_memcpy(d, first, n);                                                                                     \
    __builtin_memcpy(d + bytes - (n), last, n);                                                                        \
  } while (0)
  if (bytes >= 32)
    HK_COPY_TINY(32);
  else if (bytes >= 16)
    HK_COPY_TINY(16);
  else if (bytes >= 8)
    HK_COPY_TINY(8);
  else if (bytes >= 4)
    HK_COPY_TINY(4);
  else if (bytes >= 2)
    HK_COPY_TINY(2);
  else if (bytes)
    *d = *s;
#undef HK_COPY_TINY
}

/* dst[i][..] = op(src[0], src[1], ...), in that order, for all i. `fresh` is the index of the one source that gets
 * `pre`, or -1. bytes is a multiple of the element; pointers need only the element's alignment. A destination may be
 * equal to a source, but must not overlap one otherwise. r may be NULL if nsrc == 1: a plain copy. */
static inline void hk_move(const hk_reducer *r, void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc,
                           int fresh, size_t bytes, unsigned flags) {
  if (nsrc > 1 || (r && ((r->pre && fresh == 0) || (r->post && (flags & HK_MOVE_FINAL))))) {
    if (bytes <= HK_MOVE_TINY && r->tiny && nsrc == 2 && ndst == 1)
      hk_add_tiny(r->tiny, dst[0], src[0], src[1], bytes);
    else
      r->run(r, dst, ndst, src, nsrc, fresh, bytes, flags);
  } else if (ndst == 1) {
    if (bytes <= HK_MOVE_TINY)
      hk_copy_tiny(dst[0], src[0], bytes);
    else
      hk_copy(dst[0], src[0], bytes, flags);
  } else {
    hk_copy_to_all(dst, ndst, src[0], bytes, flags);
  }
}
