/* SPDX-License-Identifier: Apache-2.0 */
/* The reductions, written once for all vector levels. A level's file defines VB, includes vector.h, may define HAVE_F16
 * with f16_hardware_decode and f16_hardware_encode, and includes this file. Then LEVEL_TABLE is what fills its
 * hk_kernels.
 *
 * `type` and `op` are constants in every instance, so that the compiler removes the switches. A kernel processes a tile
 * of four vectors at a time: the accumulators stay in registers for all sources, so each source is read once and each
 * destination written once. The ends, shorter than a vector, use partial loads and stores and the same arithmetic, so
 * that a result never depends on an element's position. */
#include "convert.h" /* memory to accumulators and back */
#include "kernels.h" /* the table's type */
#include "quantise.h"

/* ---- arithmetic ---- */

/* Integers wrap: unsigned lanes serve both signs. */
INLINE vraw add(const int type, vraw a, vraw b) {
  switch (type) {
    case HK_I8:
    case HK_U8: return (vraw)((vu8)a + (vu8)b);
    case HK_I32:
    case HK_U32: return (vraw)((vu32)a + (vu32)b);
    case HK_I64:
    case HK_U64: return (vraw)((vu64)a + (vu64)b);
    case HK_F64: return (vraw)((vf64)a + (vf64)b);
    default: return (vraw)((vf32)a + (vf32)b);
  }
}
INLINE vraw multiply(const int type, vraw a, vraw b) {
  switch (type) {
    case HK_I8:
    case HK_U8: return (vraw)((vu8)a * (vu8)b);
    case HK_I32:
    case HK_U32: return (vraw)((vu32)a * (vu32)b);
    case HK_I64:
    case HK_U64: return (vraw)((vu64)a * (vu64)b);
    case HK_F64: return (vraw)((vf64)a * (vf64)b);
    default: return (vraw)((vf32)a * (vf32)b);
  }
}

INLINE vraw combine(const int type, const int op, vraw a, vraw b) {
  switch (op) {
    case HK_PROD: return multiply(type, a, b);
    case HK_MAX: return maximum(type, a, b);
    case HK_MIN: return minimum(type, a, b);
    default: return add(type, a, b);
  }
}

/* The value of a new source: rounded to the type, so that it is the same here and after a slot. */
INLINE vraw premultiply(const int type, vraw a, vraw scale) { return nearest(type, multiply(type, a, scale)); }

/* x - 0 is x for every x, x + 0 is not (-0). */
INLINE vraw splat_scalar(const int type, const hk_reducer *r) {
  switch (type) {
    case HK_I8:
    case HK_U8: return (vraw)((vu8){0} + (uint8_t)r->scalar.bits);
    case HK_I32:
    case HK_U32: return (vraw)((vu32){0} + (uint32_t)r->scalar.bits);
    case HK_I64:
    case HK_U64: return (vraw)((vu64){0} + r->scalar.bits);
    case HK_F64: return (vraw)(r->scalar.f64 - (vf64){0});
    default: return (vraw)(r->scalar.f32 - (vf32){0});
  }
}

/* The division of avg, truncating; by the reducer's type, because sums of both signs share a kernel. 8- and 32-bit
 * quotients are exact through the wider float: a quotient that is not a whole number is further from one than its
 * rounding error. */
#define DIVIDE_LANES(ctype, ftype)                                                                                     \
  do {                                                                                                                 \
    ctype x[VB / sizeof(ctype)];                                                                                       \
    memcpy(x, &v, VB);                                                                                                 \
    for (size_t i = 0; i < VB / sizeof(ctype); i++) x[i] = (ctype)((ftype)x[i] / (ftype)divisor);                      \
    memcpy(&v, x, VB);                                                                                                 \
  } while (0)
static __attribute__((noinline)) vraw divide(int dtype, vraw v, int64_t divisor) {
  switch (dtype) {
    case HK_I8: DIVIDE_LANES(int8_t, float); break;
    case HK_U8: DIVIDE_LANES(uint8_t, float); break;
    case HK_I32: DIVIDE_LANES(int32_t, double); break;
    case HK_U32: DIVIDE_LANES(uint32_t, double); break;
    case HK_I64: DIVIDE_LANES(int64_t, int64_t); break;
    case HK_U64: DIVIDE_LANES(uint64_t, uint64_t); break;
    default: break;
  }
  return v;
}

/* ---- one span of a move ---- */

/* Only sums (avg and premulsum included) multiply, only sums of integers divide. */
#define MULTIPLIES(op) ((op) == HK_SUM)
#define DIVIDES(type, op) ((op) == HK_SUM && ((type) == HK_U8 || (type) == HK_U32 || (type) == HK_U64))

/* The common parameters of a move's spans. */
typedef struct span {
  const hk_reducer *r;
  void *const *dst;
  const void *const *src;
  unsigned ndst, nsrc;
  int fresh;   /* -1: no source is multiplied */
  bool post;   /* divide the results */
  bool stream; /* non-temporal stores if a destination is aligned */
  bool ahead;  /* the sources are in memory, not in caches: prefetch them */
} span;

/* The elements of n bytes from `from`, n less than VB and at most a step. */
INLINE void span_part(const int type, const int op, const span *m, size_t from, size_t n) {
  vraw a = load_part(type, (const char *)m->src[0] + from, n);
  if (MULTIPLIES(op) && m->fresh == 0) a = premultiply(type, a, splat_scalar(type, m->r));
  for (unsigned s = 1; s < m->nsrc; s++) {
    vraw b = load_part(type, (const char *)m->src[s] + from, n);
    if (MULTIPLIES(op) && m->fresh == (int)s) b = premultiply(type, b, splat_scalar(type, m->r));
    a = combine(type, op, a, b);
  }
  if (DIVIDES(type, op) && m->post) a = divide(m->r->dtype, a, m->r->divisor);
  for (unsigned d = 0; d < m->ndst; d++) store_part(type, (char *)m->dst[d] + from, a, n);
}

/* From `from`, one vector at a time, for all whole vectors; returns the end. */
INLINE size_t span_single(const int type, const int op, const span *m, vraw scale, size_t from, size_t end) {
  const size_t step = STEP_BYTES(type);
  for (; end - from >= step; from += step) {
    vraw a = load(type, (const char *)m->src[0] + from);
    if (MULTIPLIES(op) && m->fresh == 0) a = premultiply(type, a, scale);
    for (unsigned s = 1; s < m->nsrc; s++) {
      vraw b = load(type, (const char *)m->src[s] + from);
      if (MULTIPLIES(op) && m->fresh == (int)s) b = premultiply(type, b, scale);
      a = combine(type, op, a, b);
    }
    if (DIVIDES(type, op) && m->post) a = divide(m->r->dtype, a, m->r->divisor);
    for (unsigned d = 0; d < m->ndst; d++) store(type, (char *)m->dst[d] + from, a);
  }
  return from;
}

INLINE tile premultiply_tile(const int type, tile t, vraw scale) {
  return (tile){premultiply(type, t.a, scale), premultiply(type, t.b, scale), premultiply(type, t.c, scale),
                premultiply(type, t.d, scale)};
}
INLINE tile combine_tile(const int type, const int op, tile x, tile y) {
  return (tile){combine(type, op, x.a, y.a), combine(type, op, x.b, y.b), combine(type, op, x.c, y.c),
                combine(type, op, x.d, y.d)};
}
INLINE tile divide_tile(const hk_reducer *r, tile t) {
  return (tile){divide(r->dtype, t.a, r->divisor), divide(r->dtype, t.b, r->divisor), divide(r->dtype, t.c, r->divisor),
                divide(r->dtype, t.d, r->divisor)};
}

/* Processors fetch ahead by themselves, but not past the end of a page. So the lines of the next page are asked for,
 * into the second cache: the first one has too few places for what is on its way from memory. It gets the next few
 * lines, unless there are so many sources that the requests would take the loads' time; all measured. */
enum { AHEAD_BYTES = 4096, NEAR_BYTES = 512, NEAR_SOURCES = 4, LINE_BYTES = 64 };
INLINE void ask_ahead(const span *m, size_t from, size_t step) {
  for (unsigned s = 0; s < m->nsrc; s++) {
    const char *at = (const char *)m->src[s] + from;
    for (size_t i = 0; i < step; i += LINE_BYTES) {
      __builtin_prefetch(at + AHEAD_BYTES + i, 0, 2);
      if (m->nsrc <= NEAR_SOURCES) __builtin_prefetch(at + NEAR_BYTES + i, 0, 3);
    }
  }
}

/* The same by tiles. */
INLINE size_t span_tiles(const int type, const int op, const span *m, vraw scale, size_t from, size_t end) {
  const size_t step = 4 * STEP_BYTES(type);
  for (; end - from >= step; from += step) {
    if (m->ahead) ask_ahead(m, from, step);
    tile x = load_tile(type, (const char *)m->src[0] + from);
    if (MULTIPLIES(op) && m->fresh == 0) x = premultiply_tile(type, x, scale);
    for (unsigned s = 1; s < m->nsrc; s++) {
      tile y = load_tile(type, (const char *)m->src[s] + from);
      if (MULTIPLIES(op) && m->fresh == (int)s) y = premultiply_tile(type, y, scale);
      x = combine_tile(type, op, x, y);
    }
    if (DIVIDES(type, op) && m->post) x = divide_tile(m->r, x);
    for (unsigned d = 0; d < m->ndst; d++) {
      char *q = (char *)m->dst[d] + from;
      if (STREAMS(type) && m->stream && ((uintptr_t)q & (VB - 1)) == 0)
        store_tile(type, q, x, true);
      else
        store_tile(type, q, x, false);
    }
  }
  return from;
}

/* Below this number of bytes neither aligning the first destination nor streaming gains anything. */
enum { ALIGN_FROM_BYTES = 2048 };

typedef void part_fn(const span *m, size_t from, size_t n);
INLINE void reduce(const int type, const int op, part_fn *part, const span *m, size_t bytes) {
  const size_t step = STEP_BYTES(type);
  if (bytes < step) {
    if (bytes) part(m, 0, bytes);
    return;
  }
  size_t from = 0;
  if (bytes >= ALIGN_FROM_BYTES) {
    /* Stores that cross cache lines cost twice, and streaming stores must not cross them: align by the first
     * destination. */
    from = (size_t)(-(uintptr_t)m->dst[0]) & (VB - 1);
    for (size_t at = 0; at < from; at += step) part(m, at, from - at < step ? from - at : step);
  }
  vraw scale = MULTIPLIES(op) && m->fresh >= 0 ? splat_scalar(type, m->r) : (vraw){0};
  from = span_tiles(type, op, m, scale, from, bytes);
  from = span_single(type, op, m, scale, from, bytes);
  if (from < bytes) part(m, from, bytes - from);
  if (m->stream) stream_fence();
}

/* Streaming to a line that was just read costs a quarter more than to write it back normally. */
static bool in_place(void *const *dst, unsigned ndst, const void *const *src, unsigned nsrc) {
  for (unsigned d = 0; d < ndst; d++)
    for (unsigned s = 0; s < nsrc; s++)
      if (dst[d] == src[s]) return true;
  return false;
}

/* Named by type and op, computed as `lanes`. */
#define KERNEL_AS(lanes, type, op)                                                                                     \
  static __attribute__((noinline)) void part_##type##_##op(const span *m, size_t from, size_t n) {                     \
    span_part(HK_##lanes, HK_##op, m, from, n);                                                                        \
  }                                                                                                                    \
  static void reduce_##type##_##op(const hk_reducer *r, void *const *dst, unsigned ndst, const void *const *src,       \
                                   unsigned nsrc, int fresh, size_t bytes, unsigned flags) {                           \
    const span m = {r,                                                                                                 \
                    dst,                                                                                               \
                    src,                                                                                               \
                    ndst,                                                                                              \
                    nsrc,                                                                                              \
                    r && r->pre ? fresh : -1,                                                                          \
                    r && r->post && (flags & HK_MOVE_FINAL),                                                           \
                    (flags & HK_MOVE_STREAM) && bytes >= ALIGN_FROM_BYTES && !in_place(dst, ndst, src, nsrc),          \
                    flags & HK_MOVE_AHEAD};                                                                            \
    if (ndst) reduce(HK_##lanes, HK_##op, part_##type##_##op, &m, bytes);                                              \
  }
#define KERNEL(type, op) KERNEL_AS(type, type, op)
#define KERNELS(type) KERNEL(type, SUM) KERNEL(type, PROD) KERNEL(type, MAX) KERNEL(type, MIN)
KERNELS(U8)
KERNELS(U32)
KERNELS(U64)
KERNELS(F16)
KERNELS(F32)
KERNELS(F64)
KERNELS(BF16)
KERNELS(E5M2)
KERNEL_AS(E4M3_SCALED, E4M3, SUM)
KERNEL(E4M3, PROD)
KERNEL_AS(E4M3_SCALED, E4M3, MAX)
KERNEL_AS(E4M3_SCALED, E4M3, MIN)
/* Signed sums and products are the unsigned ones. */
KERNEL(I8, MAX)
KERNEL(I8, MIN)
KERNEL(I32, MAX)
KERNEL(I32, MIN)
KERNEL(I64, MAX)
KERNEL(I64, MIN)

static void copy_to_all(void *const *dst, unsigned ndst, const void *src, size_t bytes, unsigned flags) {
  reduce_U8_SUM(NULL, dst, ndst, &src, 1, -1, bytes, flags);
}

#define ROW(type, arithmetic)                                                                                          \
  [HK_##type] = {[HK_SUM] = reduce_##arithmetic##_SUM,                                                                 \
                 [HK_PROD] = reduce_##arithmetic##_PROD,                                                               \
                 [HK_MAX] = reduce_##type##_MAX,                                                                       \
                 [HK_MIN] = reduce_##type##_MIN}
#define LEVEL_TABLE(level_name)                                                                                        \
  {                                                                                                                    \
    .name = level_name, .copy = copy_to_all, .widen = widen, .narrow = narrow, .quantise = quantise,                   \
    .restore = restore, .reduce = {                                                                                    \
      ROW(I8, U8),                                                                                                     \
      ROW(U8, U8),                                                                                                     \
      ROW(I32, U32),                                                                                                   \
      ROW(U32, U32),                                                                                                   \
      ROW(I64, U64),                                                                                                   \
      ROW(U64, U64),                                                                                                   \
      ROW(F16, F16),                                                                                                   \
      ROW(F32, F32),                                                                                                   \
      ROW(F64, F64),                                                                                                   \
      ROW(BF16, BF16),                                                                                                 \
      ROW(E4M3, E4M3),                                                                                                 \
      ROW(E5M2, E5M2)                                                                                                  \
    }                                                                                                                  \
  }
