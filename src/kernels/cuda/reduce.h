/* SPDX-License-Identifier: Apache-2.0 */
/* Data movement by all threads of a block: destinations <- operator(sources), as move.h and wide.h do for copies. */
#pragma once
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

/* Reads the scalar of premulsum and converts it as the host does. */
HK_DEVICE uint64_t read_scalar(const hk_gpu_reducer *r) {
  const uint8_t *from = (const uint8_t *)(uintptr_t)r->scalar;
  uint64_t bits = 0;
  for (unsigned i = 0; i < r->elem_bytes; i++) bits |= (uint64_t)from[i] << 8 * i;
  switch (r->dtype) {
    case T_I8: return widen(T_I8, (uint32_t)bits);
    case T_F16: return widen(T_F16, (uint32_t)bits);
    case T_BF16: return widen(T_BF16, (uint32_t)bits);
    case T_E4M3: return widen(T_E4M3, (uint32_t)bits);
    case T_E5M2: return widen(T_E5M2, (uint32_t)bits);
    default: return bits;
  }
}

/* Registers cannot be indexed, so a loop that is not unrolled always uses v[0] and shifts the others. */
HK_DEVICE void move_up(hk_vec *v, const int n) {
  HK_UNROLL
  for (int j = 0; j + 1 < n; j++) v[j] = v[j + 1];
}

/* Vectors of LL128 lines in flight with three or more sources: the most with which the accumulators stay in
 * registers. */
#define REDUCE_FLIGHT(type) (IS_BYTE(type) ? 1 : IS_HALF(type) ? 2 : 4)
enum { FLIGHT_MAX = 4 };

/* Switches on the operator for each vector, which is cheap compared with memory. So each type has one copy of the
 * code. */
HK_DEVICE void combine_by(const int type, const hk_gpu_move *m, uint32_t *a, const uint32_t *b) {
  switch (m->reducer.op) {
    case OP_PROD: combine(type, OP_PROD, a, b); break;
    case OP_MAX: combine(type, OP_MAX, a, b); break;
    case OP_MIN: combine(type, OP_MIN, a, b); break;
    default: combine(type, OP_SUM, a, b); break; /* avg and premulsum too */
  }
}
/* Source k's vector is the next one of the sum, a. */
HK_DEVICE void take(const int type, const hk_gpu_move *m, const hk_gpu_shape *s, unsigned k, hk_vec v, uint32_t *a) {
  uint32_t b[WORDS_MAX];
  begin_reduce(type, m, s, k, v, b);
  if (k) combine_by(type, m, a, b);
  HK_UNROLL
  for (int j = 0; j < WORDS(type); j++)
    if (k == 0) a[j] = b[j];
}

enum { LOADS = 8 };
/* A thread has LOADS vectors in flight: those of `span` sources at LOADS / span places. The loop that adds them is not
 * unrolled: the compiler would mix an unrolled loop with the loads, and fewer loads would be in flight. More than LOADS
 * sources (span = LOADS) are added in groups of LOADS. */
HK_DEVICE void reduce_fast(const int type, const int span, const hk_gpu_move *m, const hk_gpu_shape *s,
                           uint32_t vectors) {
  const uint32_t step = hk_threads(), places = LOADS / span;
  HK_NO_UNROLL
  for (uint32_t i = hk_thread(); i < vectors; i += places * step) {
    hk_vec v[LOADS], sum[LOADS / 2] = {{{0, 0, 0, 0}}};
    uint32_t a[WORDS_MAX] = {0};
    HK_NO_UNROLL
    for (unsigned first = 0; first < s->nsrc; first += (unsigned)span) {
      HK_UNROLL
      for (int q = 0; q < LOADS; q++) {
        const unsigned k = first + (unsigned)(q % span);
        const uint32_t at = i + (uint32_t)(q / span) * step;
        const int on = k < s->nsrc && at < vectors;
        for (int w = 0; w < 4; w++) v[q].w[w] = 0;
        hk_load_if(&v[q], m->at[s->src + (k < s->nsrc ? k : 0)] + (uint64_t)16 * at, on);
      }
      HK_NO_UNROLL
      for (unsigned place = 0; place < places; place++) {
        HK_NO_UNROLL
        for (unsigned k = first; k < first + (unsigned)span; k++) {
          if (k < s->nsrc) take(type, m, s, k, v[0], a);
          move_up(v, LOADS);
        }
        move_up(sum, (int)places);
        if (first + (unsigned)span >= s->nsrc) sum[places - 1] = end_reduce(type, m, s, a);
      }
    }
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) {
      char *to = m->at[k];
      HK_UNROLL
      for (int j = 0; j < (int)places; j++)
        if (i + (uint32_t)j * step < vectors) hk_store(to + (uint64_t)16 * (i + (uint32_t)j * step), sum[j]);
    }
  }
}
/* Adds sources k to `end` - 1. v holds the vectors of sources in lines; the others are loaded here, except `plain`,
 * which is in `own`. */
HK_DEVICE void take_lines(const int type, const hk_gpu_move *m, const hk_gpu_shape *s, unsigned k, unsigned end,
                          uint32_t i, unsigned n, unsigned plain, hk_vec own, hk_vec *v, uint32_t *a) {
  HK_NO_UNROLL
  for (; k < end; k++) {
    if (k == plain)
      v[0] = own;
    else if (!m->lines[s->src + k])
      v[0] = load_plain(m->at[s->src + k] + (uint64_t)16 * i, n);
    take(type, m, s, k, v[0], a);
    move_up(v, LINES_MOST);
  }
}

/* `call` with each type in its case: T. */
#define TYPE_CASE(type, call)                                                                                          \
  case type: {                                                                                                         \
    const int T = type;                                                                                                \
    call;                                                                                                              \
    break;                                                                                                             \
  }
#define EACH_TYPE(dtype, call)                                                                                         \
  switch (dtype) {                                                                                                     \
    TYPE_CASE(T_I8, call)                                                                                              \
    TYPE_CASE(T_U8, call)                                                                                              \
    TYPE_CASE(T_I32, call)                                                                                             \
    TYPE_CASE(T_U32, call)                                                                                             \
    TYPE_CASE(T_I64, call)                                                                                             \
    TYPE_CASE(T_U64, call)                                                                                             \
    TYPE_CASE(T_F16, call)                                                                                             \
    TYPE_CASE(T_F32, call)                                                                                             \
    TYPE_CASE(T_F64, call)                                                                                             \
    TYPE_CASE(T_BF16, call)                                                                                            \
    TYPE_CASE(T_E4M3, call)                                                                                            \
    default: TYPE_CASE(T_E5M2, call)                                                                                   \
  }

/* Reduces the rest after the fast loops, from vector `i` on. One function for all types: the lines take the registers,
 * so it has a stack frame, and ptxas adds up the frames of all functions. A kernel's stack must stay below the 1024
 * bytes that a context has for each thread (docs/gpu.md). */
HK_DEVICE_CALL bool reduce_rest(const hk_gpu_move *m, const hk_gpu_shape *s, uint32_t i) {
  unsigned plain = 0; /* the first source that is not in lines: loaded before the wait for the others */
  while (plain < s->nsrc && m->lines[s->src + plain]) plain++;
  for (; (uint64_t)16 * i < s->bytes; i += hk_threads()) {
    uint32_t a[WORDS_MAX] = {0};
    const unsigned n = piece_of(s, i);
    hk_vec own = {{0, 0, 0, 0}}, sum = {{0, 0, 0, 0}};
    if (plain < s->nsrc) own = load_plain(m->at[s->src + plain] + (uint64_t)16 * i, n);
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->nsrc; k += LINES_MOST) {
      hk_vec v[LINES_MOST];
      const unsigned end = s->nsrc - k < LINES_MOST ? s->nsrc : k + LINES_MOST;
      if (!load_lines(m, s->src + k, end - k, i, n, LINES_MOST, v)) return false;
      EACH_TYPE(m->reducer.dtype, take_lines(T, m, s, k, end, i, n, plain, own, v, a))
    }
    EACH_TYPE(m->reducer.dtype, sum = end_reduce(T, m, s, a))
    store_all(m, s, i, n, sum);
  }
  return true;
}

/* The reduction if LL128 lines are among the operands: with two sources, as in most instructions, all lines of a pass
 * are in flight. */
HK_DEVICE bool reduce_two_wide(const int type, const hk_gpu_move *m, const hk_gpu_shape *s) {
  const uint64_t step = hk_threads() / PAIR_THREADS;
  for (uint64_t i = warp_pair(); i * PAIR_DATA < s->bytes; i += FLIGHT_MAX * step) {
    hk_gpu_share share[FLIGHT_MAX];
    hk_vec v[FLIGHT_MAX], next[FLIGHT_MAX];
    HK_UNROLL
    for (int j = 0; j < FLIGHT_MAX; j++) share[j] = share_of(s, own_pair(i) + j * step);
    if (!load_shares(m, s->src, share, own_pair(i), step, FLIGHT_MAX, v)) return false;
    if (!load_shares(m, s->src + 1, share, own_pair(i), step, FLIGHT_MAX, next)) return false;
    HK_NO_UNROLL
    for (int j = 0; j < FLIGHT_MAX; j++) { /* as in reduce_fast */
      uint32_t a[WORDS_MAX] = {0};
      take(type, m, s, 0, v[0], a);
      take(type, m, s, 1, next[0], a);
      move_up(v, FLIGHT_MAX);
      move_up(next, FLIGHT_MAX);
      v[FLIGHT_MAX - 1] = end_reduce(type, m, s, a);
    }
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) store_shares(m, k, share, own_pair(i), step, FLIGHT_MAX, v);
  }
  return true;
}
/* The same for any number of sources, with as many lines in flight as leave the accumulators in registers. */
HK_DEVICE bool reduce_wide(const int type, const hk_gpu_move *m, const hk_gpu_shape *s) {
  const int flight = REDUCE_FLIGHT(type);
  const uint64_t step = hk_threads() / PAIR_THREADS;
  if (s->nsrc == 2) return reduce_two_wide(type, m, s);
  for (uint64_t i = warp_pair(); i * PAIR_DATA < s->bytes; i += flight * step) {
    hk_gpu_share share[FLIGHT_MAX];
    uint32_t a[FLIGHT_MAX][WORDS_MAX] = {{0}};
    hk_vec v[FLIGHT_MAX];
    HK_UNROLL
    for (int j = 0; j < flight; j++) share[j] = share_of(s, own_pair(i) + j * step);
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->nsrc; k++) {
      if (!load_shares(m, s->src + k, share, own_pair(i), step, flight, v)) return false;
      HK_UNROLL
      for (int j = 0; j < flight; j++) take(type, m, s, k, v[j], a[j]);
    }
    HK_UNROLL
    for (int j = 0; j < flight; j++) v[j] = end_reduce(type, m, s, a[j]);
    HK_NO_UNROLL
    for (unsigned k = 0; k < s->ndst; k++) store_shares(m, k, share, own_pair(i), step, flight, v);
  }
  return true;
}

/* Two functions for each type: registers are few, and a call is cheap compared with a move. Each copies the shape into
 * registers; in memory it would be read again after every access. */
#define REDUCE_OF(name, type)                                                                                          \
  HK_DEVICE_CALL bool reduce_wide_##name(const hk_gpu_move *m, const hk_gpu_shape *shape) {                            \
    const hk_gpu_shape s = *shape;                                                                                     \
    return reduce_wide(type, m, &s);                                                                                   \
  }                                                                                                                    \
  HK_DEVICE_CALL void reduce_##name(const hk_gpu_move *m, const hk_gpu_shape *shape, uint32_t vectors) {               \
    const hk_gpu_shape s = *shape;                                                                                     \
    if (s.nsrc <= 2)                                                                                                   \
      reduce_fast(type, 2, m, &s, vectors);                                                                            \
    else if (s.nsrc <= 4)                                                                                              \
      reduce_fast(type, 4, m, &s, vectors);                                                                            \
    else                                                                                                               \
      reduce_fast(type, LOADS, m, &s, vectors);                                                                        \
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
  return 16 * whole >= s->bytes || reduce_rest(m, s, (uint32_t)whole + hk_thread())
HK_DEVICE_CALL bool reduce_any(const hk_gpu_move *m, const hk_gpu_shape *s) {
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
