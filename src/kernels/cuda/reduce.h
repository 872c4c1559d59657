/* SPDX-License-Identifier: Apache-2.0 */
/* Data movement by all threads of a block: destinations <- operator(sources), as move.h and wide.h do for copies. */
#ifndef HK_KERNELS_CUDA_REDUCE_H
#define HK_KERNELS_CUDA_REDUCE_H
#include "number.h"
#include "wide.h"

/* Source k's vector as accumulators. */
HK_DEVICE void begin_reduce(const int type, const hk_gpu_move *m, const hk_gpu_shape *s, unsigned k, hk_vec v,
                            uint32_t *a) {
  decode(type, v, a);
  if ((int)k == s->fresh) premultiply(type, a, m->reducer.scalar);
}
HK_DEVICE hk_vec end_reduce(const int type, const hk_gpu_move *m, const hk_gpu_shape *s, uint32_t *a) {
  if (s->divided) divide(type, a, m->reducer.divisor);
  return encode(type, a);
}

/* Vectors in flight of each source: as many as leave the accumulators in registers. */
#define REDUCE_FLIGHT(type) (IS_BYTE(type) ? 1 : IS_HALF(type) ? 2 : 4)
enum { FLIGHT_MAX = 4 };

/* The operator is looked at for each vector: one copy of the code a type. */
enum { ANY_OP = -1 };
HK_DEVICE void combine_by(const int type, const int op, const hk_gpu_move *m, uint32_t *a, const uint32_t *b) {
  switch (op == ANY_OP ? (int)m->reducer.op : op) {
    case OP_PROD: combine(type, OP_PROD, a, b); break;
    case OP_MAX: combine(type, OP_MAX, a, b); break;
    case OP_MIN: combine(type, OP_MIN, a, b); break;
    default: combine(type, OP_SUM, a, b); break; /* avg and premulsum too */
  }
}

/* An operand's vectors i, i + step, ... Past the last one the first is read again: no branch, no element undefined, and
 * nothing that another thread may be overwriting in place. */
HK_DEVICE void load_flight(const hk_gpu_move *m, unsigned operand, uint32_t i, uint32_t step, uint32_t vectors,
                           const int flight, hk_vec *v) {
  const char *from = m->at[operand];
  HK_UNROLL
  for (int j = 0; j < flight; j++) {
    uint32_t at = i + (uint32_t)j * step;
    v[j] = hk_load(from + (uint64_t)16 * (at < vectors ? at : i));
  }
}
HK_DEVICE void add_source(const int type, const int op, const hk_gpu_move *m, const hk_gpu_shape *s, unsigned k,
                          const int flight, const hk_vec *v, uint32_t a[][WORDS_MAX]) {
  HK_UNROLL
  for (int j = 0; j < flight; j++) {
    uint32_t b[WORDS_MAX];
    begin_reduce(type, m, s, k, v[j], b);
    combine_by(type, op, m, a[j], b);
  }
}
HK_DEVICE void reduce_fast(const int type, const int op, const hk_gpu_move *m, const hk_gpu_shape *s,
                           uint32_t vectors) {
  const int flight = REDUCE_FLIGHT(type);
  const uint32_t step = hk_threads();
  HK_NO_UNROLL
  for (uint32_t i = hk_thread(); i < vectors; i += (uint32_t)flight * step) {
    uint32_t a[FLIGHT_MAX][WORDS_MAX];
    hk_vec v[FLIGHT_MAX], next[FLIGHT_MAX];
    /* The first two sources are all in flight before the first is looked at; a single one is read twice, without a
     * branch. */
    load_flight(m, s->src, i, step, vectors, flight, v);
    load_flight(m, s->src + (s->nsrc > 1), i, step, vectors, flight, next);
    HK_UNROLL
    for (int j = 0; j < flight; j++) begin_reduce(type, m, s, 0, v[j], a[j]);
    if (s->nsrc > 1) add_source(type, op, m, s, 1, flight, next, a);
    HK_NO_UNROLL
    for (unsigned k = 2; k < s->nsrc; k++) {
      load_flight(m, s->src + k, i, step, vectors, flight, v);
      add_source(type, op, m, s, k, flight, v, a);
    }
    HK_UNROLL
    for (int j = 0; j < flight; j++) v[j] = end_reduce(type, m, s, a[j]);
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) {
      char *to = m->at[k];
      HK_UNROLL
      for (int j = 0; j < flight; j++)
        if (j == 0 || i + (uint32_t)j * step < vectors) hk_store(to + (uint64_t)16 * (i + (uint32_t)j * step), v[j]);
    }
  }
}
/* What the fast loops leave, from vector `i` on. */
HK_DEVICE bool reduce_rest(const int type, const hk_gpu_move *m, const hk_gpu_shape *s, uint64_t i) {
  for (; 16 * i < s->bytes; i += hk_threads()) {
    uint32_t a[WORDS_MAX], b[WORDS_MAX];
    unsigned n = piece_of(s, i);
    hk_gpu_got got = load_any(m, s->src, i, n);
    if (!got.here) return false;
    begin_reduce(type, m, s, 0, got.v, a);
    for (unsigned k = 1; k < s->nsrc; k++) {
      got = load_any(m, s->src + k, i, n);
      if (!got.here) return false;
      begin_reduce(type, m, s, k, got.v, b);
      combine_by(type, ANY_OP, m, a, b);
    }
    store_all(m, s, i, n, end_reduce(type, m, s, a));
  }
  return true;
}

/* The same if LL128 lines are among the operands. */
HK_DEVICE bool reduce_wide(const int type, const hk_gpu_move *m, const hk_gpu_shape *s) {
  const int flight = REDUCE_FLIGHT(type);
  const uint64_t step = hk_threads() / PAIR_THREADS;
  for (uint64_t i = warp_pair(); i * PAIR_DATA < s->bytes; i += flight * step) {
    hk_gpu_share share[FLIGHT_MAX];
    uint32_t a[FLIGHT_MAX][WORDS_MAX], b[WORDS_MAX];
    hk_vec v[FLIGHT_MAX];
    HK_UNROLL
    for (int j = 0; j < flight; j++) share[j] = share_of(s, own_pair(i) + j * step);
    if (!load_shares(m, s->src, share, own_pair(i), step, flight, v)) return false;
    HK_UNROLL
    for (int j = 0; j < flight; j++) begin_reduce(type, m, s, 0, v[j], a[j]);
    HK_NO_UNROLL
    for (unsigned k = 1; k < s->nsrc; k++) {
      if (!load_shares(m, s->src + k, share, own_pair(i), step, flight, v)) return false;
      HK_UNROLL
      for (int j = 0; j < flight; j++) {
        begin_reduce(type, m, s, k, v[j], b);
        combine_by(type, ANY_OP, m, a[j], b);
      }
    }
    HK_UNROLL
    for (int j = 0; j < flight; j++) v[j] = end_reduce(type, m, s, a[j]);
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) store_shares(m, k, share, own_pair(i), step, flight, v);
  }
  return true;
}

/* Three functions for each type: a call costs little beside a move, and registers are few. Each takes the shape into
 * its own registers: what is in memory would be read again after every access. */
#define REDUCE_OF(name, type)                                                                                          \
  HK_DEVICE_CALL bool reduce_wide_##name(const hk_gpu_move *m, const hk_gpu_shape *shape) {                            \
    const hk_gpu_shape s = *shape;                                                                                     \
    return reduce_wide(type, m, &s);                                                                                   \
  }                                                                                                                    \
  HK_DEVICE_CALL bool reduce_rest_##name(const hk_gpu_move *m, const hk_gpu_shape *shape, uint64_t i) {                \
    const hk_gpu_shape s = *shape;                                                                                     \
    return reduce_rest(type, m, &s, i);                                                                                \
  }                                                                                                                    \
  HK_DEVICE_CALL void reduce_##name(const hk_gpu_move *m, const hk_gpu_shape *shape, uint32_t vectors) {               \
    const hk_gpu_shape s = *shape;                                                                                     \
    switch (IS_BYTE(type) ? ANY_OP : m->reducer.op) {                                                                  \
      case ANY_OP: reduce_fast(type, ANY_OP, m, &s, vectors); break; /* decoding takes the time, and the room */       \
      case OP_PROD: reduce_fast(type, OP_PROD, m, &s, vectors); break;                                                 \
      case OP_MAX: reduce_fast(type, OP_MAX, m, &s, vectors); break;                                                   \
      case OP_MIN: reduce_fast(type, OP_MIN, m, &s, vectors); break;                                                   \
      default: reduce_fast(type, OP_SUM, m, &s, vectors); break;                                                       \
    }                                                                                                                  \
  }
REDUCE_OF(i8, T_I8)
REDUCE_OF(u8, T_U8)
REDUCE_OF(i32, T_I32)
REDUCE_OF(u32, T_U32)
REDUCE_OF(i64, T_I64)
REDUCE_OF(u64, T_U64)
REDUCE_OF(f16, T_F16)
REDUCE_OF(f32, T_F32)
REDUCE_OF(f64, T_F64)
REDUCE_OF(bf16, T_BF16)
REDUCE_OF(e4m3, T_E4M3)
REDUCE_OF(e5m2, T_E5M2)

#define REDUCE_CASE(name)                                                                                              \
  if (s->wide) return reduce_wide_##name(m, s);                                                                        \
  if (whole) reduce_##name(m, s, (uint32_t)whole);                                                                     \
  return 16 * whole >= s->bytes || reduce_rest_##name(m, s, whole + hk_thread())
HK_DEVICE bool reduce_any(const hk_gpu_move *m, const hk_gpu_shape *s) {
  uint64_t whole = s->simple ? s->bytes / 16 : 0;
  switch (m->reducer.dtype) {
    case T_I8: REDUCE_CASE(i8);
    case T_U8: REDUCE_CASE(u8);
    case T_I32: REDUCE_CASE(i32);
    case T_U32: REDUCE_CASE(u32);
    case T_I64: REDUCE_CASE(i64);
    case T_U64: REDUCE_CASE(u64);
    case T_F16: REDUCE_CASE(f16);
    case T_F32: REDUCE_CASE(f32);
    case T_F64: REDUCE_CASE(f64);
    case T_BF16: REDUCE_CASE(bf16);
    case T_E4M3: REDUCE_CASE(e4m3);
    default: REDUCE_CASE(e5m2);
  }
}
#endif
