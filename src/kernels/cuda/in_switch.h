/* SPDX-License-Identifier: Apache-2.0 */
/* destinations <- the sum, made by a switch, of the same slot of all ranks (NVLS). */
#pragma once
#include "reduce.h"

/* The type and operator in the switch's terms. The host uses the switch for no others (hk_gpu_switch_reduces). */
HK_DEVICE int multi_of(const hk_gpu_reducer *r) {
  const bool max = r->op == OP_MAX, min = r->op == OP_MIN;
  switch (r->dtype) {
    case T_F32: return HK_MULTI_ADD_F32;
    case T_F64: return HK_MULTI_ADD_F64;
    case T_F16: return HK_MULTI_ADD_F16;
    case T_BF16: return HK_MULTI_ADD_BF16;
    case T_I32: return max ? HK_MULTI_MAX_S32 : min ? HK_MULTI_MIN_S32 : HK_MULTI_ADD_32;
    case T_U32: return max ? HK_MULTI_MAX_U32 : min ? HK_MULTI_MIN_U32 : HK_MULTI_ADD_32;
    case T_I64: return max ? HK_MULTI_MAX_S64 : min ? HK_MULTI_MIN_S64 : HK_MULTI_ADD_64;
    default: return max ? HK_MULTI_MAX_U64 : min ? HK_MULTI_MIN_U64 : HK_MULTI_ADD_64;
  }
}

/* avg of integers; floats were multiplied before. */
HK_DEVICE_CALL hk_vec divide_vector(const hk_gpu_reducer *r, hk_vec v) {
  uint32_t a[WORDS_MAX];
  switch (r->dtype) {
    case T_I32:
      decode(T_I32, v, a);
      divide(T_I32, a, r->divisor);
      return encode(T_I32, a);
    case T_U32:
      decode(T_U32, v, a);
      divide(T_U32, a, r->divisor);
      return encode(T_U32, a);
    case T_I64:
      decode(T_I64, v, a);
      divide(T_I64, a, r->divisor);
      return encode(T_I64, a);
    case T_U64:
      decode(T_U64, v, a);
      divide(T_U64, a, r->divisor);
      return encode(T_U64, a);
    default: return v;
  }
}

enum { SWITCH_FLIGHT = 4 };
/* A thread's next vectors.  Past the last one the first is read again, as in load_flight. */
HK_DEVICE void load_sums(const int what, const char *from, uint64_t i, uint64_t vectors, hk_vec *v) {
  HK_UNROLL
  for (int j = 0; j < SWITCH_FLIGHT; j++) {
    const uint64_t at = i + j * (uint64_t)hk_threads();
    v[j] = hk_multi_reduce(from + 16 * (at < vectors ? at : i), what);
  }
}
#define LOAD_SUMS(name)                                                                                                \
  case name: load_sums(name, from, i, vectors, v); break
HK_DEVICE void load_any_sums(const int what, const char *from, uint64_t i, uint64_t vectors, hk_vec *v) {
  switch (what) { /* one switch statement for all vectors in flight */
    LOAD_SUMS(HK_MULTI_ADD_F32);
    LOAD_SUMS(HK_MULTI_ADD_F64);
    LOAD_SUMS(HK_MULTI_ADD_F16);
    LOAD_SUMS(HK_MULTI_ADD_BF16);
    LOAD_SUMS(HK_MULTI_ADD_32);
    LOAD_SUMS(HK_MULTI_MIN_S32);
    LOAD_SUMS(HK_MULTI_MAX_S32);
    LOAD_SUMS(HK_MULTI_MIN_U32);
    LOAD_SUMS(HK_MULTI_MAX_U32);
    LOAD_SUMS(HK_MULTI_ADD_64);
    LOAD_SUMS(HK_MULTI_MIN_S64);
    LOAD_SUMS(HK_MULTI_MAX_S64);
    LOAD_SUMS(HK_MULTI_MIN_U64);
    default: load_sums(HK_MULTI_MAX_U64, from, i, vectors, v); break;
  }
}

/* Stores to all destinations; some are multicast addresses. A slot has room for whole vectors, so the last vector is
 * stored whole, with bytes beyond the message. */
HK_DEVICE void store_switched(const hk_gpu_move *m, const hk_gpu_shape *s, uint64_t i, uint64_t vectors,
                              const hk_vec *v) {
  HK_NO_UNROLL
  for (unsigned k = 0; k < s->ndst; k++) {
    HK_UNROLL
    for (int j = 0; j < SWITCH_FLIGHT; j++) {
      const uint64_t at = i + j * (uint64_t)hk_threads();
      if (at >= vectors) continue;
      if (m->lines[k] == EVERYWHERE)
        hk_multi_store(m->at[k] + 16 * at, v[j]);
      else
        store_pieces(m->at[k] + 16 * at, v[j], piece_of(s, at));
    }
  }
}

/* The last vector is read whole, with bytes beyond the message. */
HK_DEVICE_CALL void add_in_switch(const hk_gpu_move *m, const hk_gpu_shape *shape, const char *from) {
  const hk_gpu_shape s = *shape;
  const uint64_t vectors = (s.bytes + 15) / 16, step = hk_threads();
  const int what = multi_of(&m->reducer);
  HK_NO_UNROLL
  for (uint64_t i = hk_thread(); i < vectors; i += SWITCH_FLIGHT * step) {
    hk_vec v[SWITCH_FLIGHT];
    load_any_sums(what, from, i, vectors, v);
    HK_UNROLL
    for (int j = 0; j < SWITCH_FLIGHT; j++)
      if (s.divided) v[j] = divide_vector(&m->reducer, v[j]);
    store_switched(m, &s, i, vectors, v);
  }
}

/* Destinations <- a source in plain memory. */
HK_DEVICE_CALL void copy_in_switch(const hk_gpu_move *m, const hk_gpu_shape *shape) {
  const hk_gpu_shape s = *shape;
  const uint64_t vectors = (s.bytes + 15) / 16, step = hk_threads();
  const char *from = m->at[s.src];
  HK_NO_UNROLL
  for (uint64_t i = hk_thread(); i < vectors; i += SWITCH_FLIGHT * step) {
    hk_vec v[SWITCH_FLIGHT];
    HK_UNROLL
    for (int j = 0; j < SWITCH_FLIGHT; j++) {
      const uint64_t at = i + j * step < vectors ? i + j * step : i;
      v[j] = load_pieces(from + 16 * at, piece_of(&s, at));
    }
    store_switched(m, &s, i, vectors, v);
  }
}
