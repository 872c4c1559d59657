/* SPDX-License-Identifier: Apache-2.0 */
/* For any processor: the functions of x86.h, written with the vector extension alone. */
#pragma once

/* ---- selection ---- */
INLINE vu32 pick_less(vu32 a, vu32 b, vu32 yes, vu32 no) {
  return (vu32)choose_less(HK_I32, (vraw)a, (vraw)b, (vraw)yes, (vraw)no);
}
INLINE vraw pick_nan32(vraw v, vraw yes, vraw no) { return choose((vraw)((vf32)v != (vf32)v), yes, no); }
INLINE vraw pick_nan64(vraw v, vraw yes, vraw no) { return choose((vraw)((vf64)v != (vf64)v), yes, no); }

/* ---- wider and narrower lanes; values fit into the narrower ones ---- */
INLINE vu32 half_to_words(vhalf h) { return __builtin_convertvector(h, vu32); }
INLINE vu32 quarter_to_words(vquarter q) { return __builtin_convertvector(q, vu32); }
INLINE vhalf quarter_to_half(vquarter q) { return __builtin_convertvector(q, vhalf); }
INLINE vquarter half_to_quarter(vhalf h) { return __builtin_convertvector(h, vquarter); }
INLINE vhalf words_to_half(vu32 w) { return __builtin_convertvector(w, vhalf); }
INLINE vquarter words_to_quarter(vu32 w) { return __builtin_convertvector(w, vquarter); }
INLINE vhalf low_half(vu16 v) {
  vhalf h;
  memcpy(&h, &v, sizeof h);
  return h;
}
INLINE vhalf high_half(vu16 v) {
  vhalf h;
  memcpy(&h, (const char *)&v + sizeof h, sizeof h);
  return h;
}
INLINE vu16 join_halves(vhalf low, vhalf high) {
  vu16 v;
  memcpy(&v, &low, sizeof low);
  memcpy((char *)&v + sizeof low, &high, sizeof high);
  return v;
}

/* ---- maximum and minimum: the result is `a` if the two are equal or `a` is NaN, and `b` if `b` is NaN ---- */
INLINE vraw larger(const int type, vraw low, vraw high, vraw a, vraw b) {
  if (IS_INTEGER(type)) return choose_less(type, low, high, b, a);
  if (type == HK_F64) return pick_nan64(b, b, choose((vraw)((vf64)low < (vf64)high), b, a));
  return pick_nan32(b, b, choose((vraw)((vf32)low < (vf32)high), b, a));
}
INLINE vraw maximum(const int type, vraw a, vraw b) { return larger(type, a, b, a, b); }
INLINE vraw minimum(const int type, vraw a, vraw b) { return larger(type, b, a, a, b); }
/* The smaller of the two; NaN if v is NaN. */
INLINE vf32 clamp(vf32 v, vf32 limit) { return (vf32)choose((vraw)(v > limit), (vraw)limit, (vraw)v); }

/* ---- no streaming stores ---- */
enum { HAVE_STREAM = 0 };
INLINE void stream_whole(char *p, vraw v) { *(vraw_at *)p = v; }
INLINE void stream_half(char *p, vhalf v) { *(vhalf_at *)p = v; }
INLINE void stream_fence(void) {}
