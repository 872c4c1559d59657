/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, between address spaces too. */
#include <math.h>
#include "half.h"
#include "ptx.h"

/* ---- integers: by the source's type and row, and the destination's row ---- */

#define CVT_INT(name, S, V, D)                                                                                         \
  static void name(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {                                                    \
    D *d = ROW(D, i->d);                                                                                               \
    const S *a = ROW(S, i->a);                                                                                         \
    const D mask = (D)i->offset;                                                                                       \
    EACH_LANE(d[l] = (D)(V)a[l] & mask;);                                                                              \
  }
#define CVT_FROM(suffix, V)                                                                                            \
  CVT_INT(cvt_##suffix##_nn, uint32_t, V, uint32_t)                                                                    \
  CVT_INT(cvt_##suffix##_nw, uint32_t, V, uint64_t)                                                                    \
  CVT_INT(cvt_##suffix##_wn, uint64_t, V, uint32_t)                                                                    \
  CVT_INT(cvt_##suffix##_ww, uint64_t, V, uint64_t)
CVT_FROM(u8, uint8_t)
CVT_FROM(s8, int8_t)
CVT_FROM(u16, uint16_t)
CVT_FROM(s16, int16_t)
CVT_FROM(u32, uint32_t)
CVT_FROM(s32, int32_t)
CVT_FROM(u64, uint64_t)
CVT_FROM(s64, int64_t)
#define CVTS(n)                                                                                                        \
  { cvt_##n##_nn, cvt_##n##_nw, cvt_##n##_wn, cvt_##n##_ww }
static ptx_run *int_run(ptx_type from, bool wide_from, bool wide_to) {
  static ptx_run *const runs[8][4] = {CVTS(u8),  CVTS(s8),  CVTS(u16), CVTS(s16),
                                      CVTS(u32), CVTS(s32), CVTS(u64), CVTS(s64)};
  static const ptx_type types[8][2] = {{T_U8, T_B8},   {T_S8, T_S8},   {T_U16, T_B16}, {T_S16, T_S16},
                                       {T_U32, T_B32}, {T_S32, T_S32}, {T_U64, T_B64}, {T_S64, T_S64}};
  for (int k = 0; k < 8; k++)
    if (types[k][0] == from || types[k][1] == from) return runs[k][2 * wide_from + wide_to];
  return NULL;
}

/* ---- what has a float on a side, one lane at a time ---- */

static bool is_float(ptx_type t) { return t == T_F16 || t == T_BF16 || t == T_F32 || t == T_F64; }
static bool is_signed(ptx_type t) { return t == T_S8 || t == T_S16 || t == T_S32 || t == T_S64; }
static double float_in(const ptx_warp *w, const ptx_ins *i, unsigned l) {
  switch (i->from) {
    case T_F16: return (double)ptx_f16_in(ROW(uint32_t, i->a)[l] & 0xffff);
    case T_BF16: return (double)ptx_bf16_in(ROW(uint32_t, i->a)[l] & 0xffff);
    case T_F32: return (double)ROW(float, i->a)[l];
    default: return ROW(double, i->a)[l];
  }
}
enum { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };
static double rounded(double x, unsigned how) {
  switch (how) {
    case ROUND_ZERO: return trunc(x);
    case ROUND_DOWN: return floor(x);
    case ROUND_UP: return ceil(x);
    default: return nearbyint(x);
  }
}
static uint64_t to_int(double x, ptx_type type, unsigned how) {
  const unsigned bits = 8 * ptx_type_bytes(type);
  if (x != x) return bits < 32 || !is_signed(type) ? 0 : bits == 64 ? 1ull << 63 : 0;
  x = rounded(x, how);
  if (is_signed(type)) {
    const double top = ldexp(1, (int)bits - 1);
    if (x >= top) return (1ull << (bits - 1)) - 1;
    if (x < -top) return 0 - (1ull << (bits - 1));
    return (uint64_t)(int64_t)x;
  }
  if (x <= 0) return 0;
  if (x >= ldexp(1, (int)bits)) return bits == 64 ? ~0ull : (1ull << bits) - 1;
  return (uint64_t)x;
}
/* From fp32 or fp64 to what is narrower, rounded as asked: to nearest by the converter, else by a step. */
static float narrowed(double x, unsigned how) {
  float f = (float)x;
  if (how == ROUND_NEAREST || (double)f == x || x != x) return f;
  const bool up = how == ROUND_UP || (how == ROUND_ZERO && x < 0);
  if (up && (double)f < x) f = nextafterf(f, INFINITY);
  if (!up && (double)f > x) f = nextafterf(f, -INFINITY);
  return f;
}
static void float_out(const ptx_warp *w, const ptx_ins *i, unsigned l, double x) {
  if (i->negate) x = x < 0 || x != x ? 0 : x > 1 ? 1 : x; /* .sat */
  switch (i->type) {
    case T_F16: ROW(uint32_t, i->d)[l] = ptx_f16_out((float)x); break;
    case T_BF16: ROW(uint32_t, i->d)[l] = ptx_bf16_out((float)x); break;
    case T_F32: ROW(float, i->d)[l] = x != x ? ptx_f32(0x7fffffff) : narrowed(x, i->op); break;
    default: ROW(double, i->d)[l] = x;
  }
}
static void cvt_float_int(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  EACH_LANE(uint64_t x = to_int(float_in(w, i, l), (ptx_type)i->type, i->op); if (i->wide_d) ROW(uint64_t, i->d)[l] = x;
            else ROW(uint32_t, i->d)[l] = (uint32_t)(x & (uint64_t)i->offset););
}
static void cvt_float_float(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  EACH_LANE(double x = float_in(w, i, l); if (i->alias) x = rounded(x, i->op); float_out(w, i, l, x););
}
static void cvt_int_float(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const unsigned bits = 8 * ptx_type_bytes((ptx_type)i->from);
  EACH_LANE(
      const uint64_t raw = i->wide_a ? ROW(uint64_t, i->a)[l] : ROW(uint32_t, i->a)[l];
      const int64_t s = (int64_t)(raw << (64 - bits)) >> (64 - bits);
      if (i->type == T_F32 && i->op == ROUND_NEAREST) /* 64 bits by way of a double would be rounded twice */
      ROW(float, i->d)[l] = is_signed((ptx_type)i->from) ? (float)s : (float)(raw << (64 - bits) >> (64 - bits));
      else float_out(w, i, l, is_signed((ptx_type)i->from) ? (double)s : (double)(raw << (64 - bits) >> (64 - bits))););
}
static void cvt_f16_f32(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const float *a = ROW(float, i->a);
  EACH_LANE(d[l] = ptx_f16_out(a[l]););
}
static void cvt_f32_f16(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  float *d = ROW(float, i->d);
  const uint32_t *a = ROW(uint32_t, i->a);
  EACH_LANE(d[l] = ptx_f16_in(a[l] & 0xffff););
}
/* cvt.rn.f16x2.f32 d, a, b: a is the upper half. */
static void cvt_pair(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const float *a = ROW(float, i->a), *b = ROW(float, i->b);
  if (i->type == T_F16X2)
    EACH_LANE(d[l] = ptx_f16_out(a[l]) << 16 | ptx_f16_out(b[l]););
  else
    EACH_LANE(d[l] = ptx_bf16_out(a[l]) << 16 | ptx_bf16_out(b[l]););
}
/* Two floats of 8 bits: cvt.rn.f16x2.TYPE d, a; cvt.rn.satfinite.TYPE.f16x2 d, a; cvt.rn.satfinite.TYPE.f32 d, a, b. */
static void cvt_fp8_in(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const uint32_t *a = ROW(uint32_t, i->a);
  const bool e5m2 = i->from == T_E5M2X2;
  EACH_LANE(d[l] = ptx_f16_out(ptx_fp8_in(a[l] >> 8 & 0xff, e5m2)) << 16 | ptx_f16_out(ptx_fp8_in(a[l] & 0xff, e5m2)););
}
static void cvt_fp8_out(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const uint32_t *a = ROW(uint32_t, i->a);
  const bool e5m2 = i->type == T_E5M2X2;
  EACH_LANE(d[l] = ptx_fp8_out(ptx_f16_in(a[l] >> 16), e5m2) << 8 | ptx_fp8_out(ptx_f16_in(a[l] & 0xffff), e5m2););
}
static void cvt_fp8_pair(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  uint32_t *d = ROW(uint32_t, i->d);
  const float *a = ROW(float, i->a), *b = ROW(float, i->b);
  const bool e5m2 = i->type == T_E5M2X2;
  EACH_LANE(d[l] = ptx_fp8_out(a[l], e5m2) << 8 | ptx_fp8_out(b[l], e5m2););
}
static bool is_fp8(ptx_type t) { return t == T_E4M3X2 || t == T_E5M2X2; }
static ptx_run *fp8_run(const ptx_mods *m, ptx_type to, ptx_type from) {
  if (ptx_has(m, "relu")) return NULL;
  if (is_fp8(from)) return to == T_F16X2 ? cvt_fp8_in : NULL;
  return from == T_F16X2 ? cvt_fp8_out : from == T_F32 ? cvt_fp8_pair : NULL;
}
static uint64_t clamped(int64_t x, bool from_signed, ptx_type to) {
  const unsigned bits = 8 * ptx_type_bytes(to);
  if (is_signed(to)) {
    const int64_t top = (int64_t)((1ull << (bits - 1)) - 1);
    if (!from_signed && x < 0) return (uint64_t)top;
    return (uint64_t)(x > top ? top : x < -top - 1 ? -top - 1 : x);
  }
  if (from_signed && x < 0) return 0;
  return bits < 64 && (uint64_t)x >> bits ? (1ull << bits) - 1 : (uint64_t)x;
}
static void cvt_int_sat(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const unsigned bits = 8 * ptx_type_bytes((ptx_type)i->from);
  const bool s = is_signed((ptx_type)i->from);
  EACH_LANE(
      const uint64_t raw = (i->wide_a ? ROW(uint64_t, i->a)[l] : ROW(uint32_t, i->a)[l]) << (64 - bits);
      const uint64_t x = clamped(s ? (int64_t)raw >> (64 - bits) : (int64_t)(raw >> (64 - bits)), s, (ptx_type)i->type);
      if (i->wide_d) ROW(uint64_t, i->d)[l] = x; else ROW(uint32_t, i->d)[l] = (uint32_t)(x & (uint64_t)i->offset););
}

bool ptx_select_cvt(const ptx_mods *m, ptx_ins *i) {
  const ptx_type to = (ptx_type)i->type, from = (ptx_type)i->from;
  const bool to_float = is_float(to), from_float = is_float(from);
  const unsigned bytes = ptx_type_bytes(to);
  if (m->ntypes != 2) return false;
  i->op = ptx_has(m, "rz") || ptx_has(m, "rzi")   ? ROUND_ZERO
          : ptx_has(m, "rm") || ptx_has(m, "rmi") ? ROUND_DOWN
          : ptx_has(m, "rp") || ptx_has(m, "rpi") ? ROUND_UP
                                                  : ROUND_NEAREST;
  i->alias = ptx_has(m, "rni") || ptx_has(m, "rzi") || ptx_has(m, "rmi") || ptx_has(m, "rpi"); /* to a whole number */
  i->negate = ptx_has(m, "sat");
  /* A narrower value fills a wider register: by its sign, if it has one. */
  i->offset = bytes == 8 || is_signed(to) ? -1 : (int64_t)((1ull << 8 * bytes) - 1);
  if (is_fp8(to) || is_fp8(from))
    i->run = fp8_run(m, to, from);
  else if ((to == T_F16X2 || to == T_BF16X2) && from == T_F32)
    i->run = cvt_pair;
  else if (to == T_F16 && from == T_F32 && !i->negate && i->op == ROUND_NEAREST)
    i->run = cvt_f16_f32;
  else if (to == T_F32 && from == T_F16 && !i->negate)
    i->run = cvt_f32_f16;
  else if (to_float && from_float)
    i->run = cvt_float_float;
  else if (to_float)
    i->run = cvt_int_float;
  else if (from_float)
    i->run = cvt_float_int;
  else if (i->negate)
    i->run = cvt_int_sat;
  else if (bytes < ptx_type_bytes(from)) /* the narrower type decides what is kept, and how it fills the register */
    i->run = int_run(to, i->wide_a, i->wide_d);
  else
    i->run = int_run(from, i->wide_a, i->wide_d);
  return i->run != NULL;
}

/* ---- addresses: generic ones are the host's; shared and local ones are places in a window ---- */

static void cvta_shared(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t base = (uint64_t)(uintptr_t)w->block->shared;
  uint64_t *d = ROW(uint64_t, i->d);
  EACH_LANE(d[l] = base + (i->wide_a ? ROW(uint64_t, i->a)[l] : ROW(uint32_t, i->a)[l]););
}
static void cvta_to_shared(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t base = (uint64_t)(uintptr_t)w->block->shared, *a = ROW(uint64_t, i->a);
  EACH_LANE(if (i->wide_d) ROW(uint64_t, i->d)[l] = a[l] - base;
            else ROW(uint32_t, i->d)[l] = (uint32_t)(a[l] - base););
}
static void cvta_local(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t base = (uint64_t)(uintptr_t)w->stack, *a = ROW(uint64_t, i->a);
  uint64_t *d = ROW(uint64_t, i->d);
  EACH_LANE(d[l] = base + a[l];);
}
static void cvta_to_local(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t base = (uint64_t)(uintptr_t)w->stack, *a = ROW(uint64_t, i->a);
  uint64_t *d = ROW(uint64_t, i->d);
  EACH_LANE(d[l] = a[l] - base;);
}
bool ptx_select_cvta(const ptx_mods *m, ptx_ins *i) {
  const bool to = ptx_has(m, "to");
  if (ptx_has(m, "shared") || ptx_has(m, "shared::cta"))
    i->run = to ? cvta_to_shared : cvta_shared;
  else if (ptx_has(m, "local"))
    i->run = to ? cvta_to_local : cvta_local;
  else
    i->run = int_run(T_U64, i->wide_a, i->wide_d);
  i->offset = -1;
  return i->run != NULL;
}
static void isspacep(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint64_t *a = ROW(uint64_t, i->a);
  uint32_t bits = 0, *d = ROW(uint32_t, i->d);
  EACH_LANE(const bool shared = a[l] - (uint64_t)(uintptr_t)w->block->shared < SHARED_ROOM;
            const bool local = a[l] - (uint64_t)(uintptr_t)w->stack < WARP_STACK;
            const bool is = i->op == SP_SHARED  ? shared
                            : i->op == SP_LOCAL ? local
                                                : !shared && !local;
            bits |= (uint32_t)is << l;);
  *d = (*d & ~lanes) | (bits & lanes);
}
bool ptx_select_isspacep(const ptx_mods *m, ptx_ins *i) {
  i->op = ptx_has(m, "shared") || ptx_has(m, "shared::cta") ? SP_SHARED : ptx_has(m, "local") ? SP_LOCAL : SP_GLOBAL;
  i->run = isspacep;
  return ptx_has(m, "global") || i->op != SP_GLOBAL;
}
