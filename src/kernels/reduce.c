/* SPDX-License-Identifier: Apache-2.0 */
/* Reducers, the choice of the vector level, and copies. The loops are in host/. */
#include "reduce.h"
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include "../base/log.h"   /* HK_WARN */
#include "../base/param.h" /* HOCKET_SIMD */
#include "../base/sanitizers.h"
#include "../transport/link.h" /* HK_LINK_WARM */
#include "host/kernels.h"      /* the levels' tables */

/* ---- the vector level ---- */

/* Widest first. */
static const hk_kernels *const levels[] = {
#if defined(__x86_64__)
    &hk_kernels_avx512, &hk_kernels_avx2,
#endif
    &hk_kernels_base};

static bool reduce_runs_here(const hk_kernels *k) {
#if defined(__x86_64__)
  /* These builtins also check that the operating system saves the wide registers. */
  if (k == &hk_kernels_avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (k == &hk_kernels_avx2) {
    unsigned a, b, c, d; /* clang 14's builtin does not know f16c */
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  }
#endif
  (void)k;
  return true;
}

static const hk_kernels *reduce_widest(void) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(levels); i++)
    if (reduce_runs_here(levels[i])) return levels[i];
  return &hk_kernels_base;
}

/* The level of that name; if this processor lacks it, its widest level; NULL for an unknown name. */
static const hk_kernels *reduce_named(const char *name) {
  for (size_t i = 0; i < HK_ARRAY_LENGTH(levels); i++)
    if (strcasecmp(name, levels[i]->name) == 0) return reduce_runs_here(levels[i]) ? levels[i] : reduce_widest();
  /* Names of other architectures, and "scalar", mean the lowest level of this build. */
  static const char *const least[] = {"scalar", "sse2", "neon"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(least); i++)
    if (strcasecmp(name, least[i]) == 0) return &hk_kernels_base;
  return NULL;
}

static _Atomic(const hk_kernels *) chosen;

static const hk_kernels *reduce_choose_level(void) {
  const char *wanted = hk_param_str(HK_P_SIMD);
  const hk_kernels *k = wanted ? reduce_named(wanted) : reduce_widest();
  if (!k) {
    k = reduce_widest();
    HK_WARN("HOCKET_SIMD=%s names no vector level (sse2, avx2, avx512, neon, scalar): using %s.", wanted, k->name);
  }
  /* Relaxed: the tables are constant, and threads that choose at the same time choose the same. */
  atomic_store_explicit(&chosen, k, memory_order_relaxed);
  return k;
}

static inline const hk_kernels *reduce_level(void) {
  const hk_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
  return __builtin_expect(k != NULL, 1) ? k : reduce_choose_level();
}

const hk_kernels *hk_kernels_level(void) { return reduce_level(); }

bool hk_simd_select(const char *name) {
  const hk_kernels *k = reduce_named(name);
  if (!k || strcasecmp(k->name, name) != 0) return false;
  atomic_store_explicit(&chosen, k, memory_order_relaxed);
  return true;
}

/* ---- reducers ---- */

/* One small float as fp32, exactly. `ieee`: the largest exponent means infinity and NaN; else only all ones is NaN. */
static float reduce_small_float(uint32_t x, int exp_bits, int man_bits, bool ieee) {
  const int top = (1 << exp_bits) - 1, bias = top >> 1;
  uint32_t man = x & ((1u << man_bits) - 1);
  int exponent = (int)(x >> man_bits) & top;
  float v;
  if (ieee && exponent == top)
    v = man ? NAN : INFINITY;
  else if (!ieee && exponent == top && man == (1u << man_bits) - 1)
    v = NAN;
  else if (exponent == 0)
    v = ldexpf((float)man, 1 - bias - man_bits);
  else
    v = ldexpf((float)(man | 1u << man_bits), exponent - bias - man_bits);
  return x >> (exp_bits + man_bits) & 1 ? -v : v;
}

/* One element in the type's own arithmetic; nothing for a wrong type. */
static void reduce_read_scalar(hk_reducer *r, const void *element) {
  uint64_t raw = 0;
  memcpy(&raw, element, r->elem_bytes);
  switch ((hk_dtype)r->dtype) {
    case HK_F16: r->scalar.f32 = reduce_small_float((uint32_t)raw, 5, 10, true); break;
    case HK_BF16: r->scalar.f32 = reduce_small_float((uint32_t)raw, 8, 7, true); break;
    case HK_E4M3: r->scalar.f32 = reduce_small_float((uint32_t)raw, 4, 3, false); break;
    case HK_E5M2: r->scalar.f32 = reduce_small_float((uint32_t)raw, 5, 2, true); break;
    default: r->scalar.bits = raw;
  }
}

static bool reduce_is_float(hk_dtype t) {
  return t == HK_F16 || t == HK_F32 || t == HK_F64 || t == HK_BF16 || t == HK_E4M3 || t == HK_E5M2;
}

hk_status hk_reducer_init(hk_reducer *r, hk_dtype dtype, hk_redop op, int nranks, const void *scalar) {
  memset(r, 0, sizeof *r);
  if ((unsigned)dtype >= HK_DTYPE_COUNT) return HK_FAIL(HK_ERR_ARGUMENT, "There is no data type %d.", (int)dtype);
  if ((unsigned)op >= HK_REDOP_COUNT) return HK_FAIL(HK_ERR_ARGUMENT, "There is no operator %d.", (int)op);
  if (op == HK_AVG && nranks < 1) return HK_FAIL(HK_ERR_INTERNAL, "avg over %d ranks.", nranks);
  if (op == HK_PREMULSUM && !scalar) return HK_FAIL(HK_ERR_ARGUMENT, "premulsum needs its scalar, which is NULL.");
  r->dtype = (uint8_t)dtype;
  r->op = (uint8_t)op;
  r->elem_bytes = (uint8_t)hk_dtype_size(dtype);
  r->divisor = 1;
  if (op == HK_PREMULSUM) {
    r->pre = 1;
    reduce_read_scalar(r, scalar);
  } else if (op == HK_AVG && reduce_is_float(dtype)) {
    r->pre = nranks > 1;
    if (dtype == HK_F64)
      r->scalar.f64 = 1.0 / nranks;
    else
      r->scalar.f32 = 1.0f / (float)nranks;
  } else if (op == HK_AVG) {
    r->post = nranks > 1;
    r->divisor = nranks;
  }
  static const uint8_t tiny[HK_DTYPE_COUNT] = {[HK_I32] = HK_TINY_U32, [HK_U32] = HK_TINY_U32, [HK_I64] = HK_TINY_U64,
                                               [HK_U64] = HK_TINY_U64, [HK_F32] = HK_TINY_F32, [HK_F64] = HK_TINY_F64};
  if (op == HK_SUM) r->tiny = tiny[dtype];
  r->run = reduce_level()->reduce[dtype][r->op < HK_KERNEL_OPS ? r->op : HK_SUM];
  return HK_OK;
}

/* ---- copies ---- */

void hk_copy_to_all(void *const *dst, unsigned ndst, const void *src, size_t bytes, unsigned flags) {
  reduce_level()->copy(dst, ndst, src, bytes, flags);
}

/* Measured on an AMD EPYC (docs/results/cpu.md). Stores by a loop fetch each line before they replace it. The lines of
 * a slot come from the cache of the core that read them last; "rep movsb" only takes them over, in a third of the time
 * between two chiplets. It is slow to begin, so it copies 4 KiB and more to slots, and 16 KiB and more to memory that
 * no other core has. memcpy chooses by the processor and by the C library's version, and knows nothing of other cores.
 */
static void reduce_copy_cached(void *dst, const void *src, size_t bytes, bool slot) {
#if defined(__x86_64__)
  enum { LOOP_BYTES = 2048, STRING_BYTES = 16384 };
  if (bytes >= (slot ? HK_LINK_WARM + 1 : STRING_BYTES) && !HK_SANITIZED) { /* which sees no assembly */
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
    return;
  }
  if (bytes >= LOOP_BYTES) {
    reduce_level()->copy(&dst, 1, src, bytes, 0);
    return;
  }
#endif
  (void)slot; /* only x86 has such a copy */
  memcpy(dst, src, bytes);
}

/* Streaming stores are faster beyond the second cache and slower in it, so the caller decides. */
void hk_copy(void *dst, const void *src, size_t bytes, unsigned flags) {
  if (dst == src) return;
  if (flags & HK_MOVE_UNCACHED)
    reduce_level()->copy(&dst, 1, src, bytes, flags);
  else
    reduce_copy_cached(dst, src, bytes, flags & HK_MOVE_SLOT);
}
