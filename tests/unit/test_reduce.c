/* SPDX-License-Identifier: Apache-2.0 */
/* check: fast notsan */
/* Data movement against an element-by-element reference: every type, operator and vector level over numbers of sources
 * and destinations, sizes, alignments, in place or not; then every value of the small floats, rounding at and next to
 * every midpoint, and reads that must not leave the operands' pages. */
#include <math.h>
#include <sys/mman.h>
#include "../../src/kernels/host/kernels.h"
#include "../../src/kernels/reduce.h"
#include "../support/suite.h"

/* As ck_assert_msg, which makes a system call even where it holds. */
#define expect(condition, ...)                                                                                         \
  do {                                                                                                                 \
    if (!(condition)) ck_abort_msg(__VA_ARGS__);                                                                       \
  } while (0)

/* Narrowest first. */
static const char *const all_levels[] = {
#if defined(__x86_64__)
    "sse2", "avx2", "avx512"
#elif defined(__aarch64__)
    "neon"
#else
    "scalar"
#endif
};
enum { LEVELS = sizeof all_levels / sizeof all_levels[0] };
static bool use_level(int i) {
  if (hk_simd_select(all_levels[i])) return true;
  ck_assert_msg(i > 0, "each processor has %s", all_levels[0]);
  printf("SKIP %s: this processor lacks it\n", all_levels[i]);
  return false;
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;
static uint64_t random64(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
static unsigned below(unsigned n) { return (unsigned)(random64() >> 33) % n; }

/* ---- the reference: small floats ---- */

typedef struct format {
  int exp_bits, man_bits;
  bool ieee;           /* has infinities */
  bool saturates;      /* overflow gives the largest finite value */
  uint32_t max_finite; /* code */
} format;
static const format formats[HK_DTYPE_COUNT] = {
    [HK_F16] = {5, 10, true, false, 0x7bff},
    [HK_BF16] = {8, 7, true, false, 0x7f7f},
    [HK_E4M3] = {4, 3, false, true, 0x7e},
    [HK_E5M2] = {5, 2, true, true, 0x7b},
};
static bool is_small(hk_dtype t) { return formats[t].exp_bits != 0; }
static bool is_float(hk_dtype t) { return is_small(t) || t == HK_F32 || t == HK_F64; }

static uint32_t sign_bit(hk_dtype t) { return 1u << (formats[t].exp_bits + formats[t].man_bits); }

static double decode(hk_dtype t, uint32_t code) {
  const format *f = &formats[t];
  uint32_t mag = code & (sign_bit(t) - 1);
  double v;
  if (mag > f->max_finite) {
    v = f->ieee && mag == f->max_finite + 1 ? INFINITY : NAN;
  } else {
    int bias = (1 << (f->exp_bits - 1)) - 1, e = (int)(mag >> f->man_bits);
    uint32_t man = mag & ((1u << f->man_bits) - 1);
    v = e ? ldexp(man + (1u << f->man_bits), e - bias - f->man_bits) : ldexp(man, 1 - bias - f->man_bits);
  }
  return code & sign_bit(t) ? -v : v;
}

/* The same, looked up: the search for a value decodes many. */
static double decoded[HK_DTYPE_COUNT][1 << 16];
static void decode_all(hk_dtype t) {
  for (uint32_t code = 0; code < 2 * sign_bit(t); code++) decoded[t][code] = decode(t, code);
}
static double ref_decode(hk_dtype t, uint32_t code) { return decoded[t][code]; }

/* Nearest by search among all values, ties to the even code. */
static uint32_t ref_encode(hk_dtype t, double v) {
  const format *f = &formats[t];
  uint32_t sign = signbit(v) ? sign_bit(t) : 0;
  if (isnan(v)) return sign | (sign_bit(t) - 1);
  v = fabs(v);
  uint32_t low = 0, high = f->max_finite + 1; /* value(low) <= v; high is one beyond */
  while (high - low > 1) {
    uint32_t mid = (low + high) / 2;
    if (ref_decode(t, mid) <= v)
      low = mid;
    else
      high = mid;
  }
  double at = ref_decode(t, low);
  double next = low < f->max_finite ? ref_decode(t, low + 1) : 2 * at - ref_decode(t, low - 1);
  bool up = v - at > next - v || (v - at == next - v && (low & 1));
  if (isinf(v)) up = true;
  uint32_t code = low + up;
  if (code > f->max_finite && f->saturates) code = f->max_finite;
  return sign | code;
}

/* ---- the reference: one element ---- */

typedef union value {
  uint64_t bits;
  double f64;
  float f32;
} value;

static value get(hk_dtype t, const void *p) {
  value v = {0};
  memcpy(&v, p, hk_dtype_size(t));
  if (is_small(t)) v.f32 = (float)ref_decode(t, (uint32_t)v.bits);
  return v;
}
static void put(hk_dtype t, void *p, value v) {
  if (is_small(t)) v.bits = ref_encode(t, v.f32);
  memcpy(p, &v, hk_dtype_size(t));
}

static bool value_less(hk_dtype t, value a, value b) {
  switch (t) {
    case HK_I8: return (int8_t)a.bits < (int8_t)b.bits;
    case HK_U8: return (uint8_t)a.bits < (uint8_t)b.bits;
    case HK_I32: return (int32_t)a.bits < (int32_t)b.bits;
    case HK_U32: return (uint32_t)a.bits < (uint32_t)b.bits;
    case HK_I64: return (int64_t)a.bits < (int64_t)b.bits;
    case HK_U64: return a.bits < b.bits;
    case HK_F64: return a.f64 < b.f64;
    default: return a.f32 < b.f32;
  }
}
static bool value_nan(hk_dtype t, value a) { return is_float(t) && (t == HK_F64 ? isnan(a.f64) : isnan(a.f32)); }

static value value_combine(hk_dtype t, hk_redop op, value a, value b) {
  value v = {0};
  if (op == HK_MAX) return value_less(t, a, b) || value_nan(t, b) ? b : a;
  if (op == HK_MIN) return value_less(t, b, a) || value_nan(t, b) ? b : a;
  if (t == HK_F64)
    v.f64 = op == HK_PROD ? a.f64 * b.f64 : a.f64 + b.f64;
  else if (is_float(t))
    v.f32 = op == HK_PROD ? a.f32 * b.f32 : a.f32 + b.f32;
  else
    v.bits = op == HK_PROD ? a.bits * b.bits : a.bits + b.bits;
  return v;
}

static value value_divide(hk_dtype t, value v, int n) {
  switch (t) {
    case HK_I8: v.bits = (uint64_t)((int8_t)v.bits / n); break;
    case HK_U8: v.bits = (uint8_t)v.bits / (unsigned)n; break;
    case HK_I32: v.bits = (uint64_t)((int32_t)v.bits / (int64_t)n); break;
    case HK_U32: v.bits = (uint32_t)v.bits / (unsigned)n; break;
    case HK_I64: v.bits = (uint64_t)((int64_t)v.bits / n); break;
    case HK_U64: v.bits /= (unsigned)n; break;
    default: break;
  }
  return v;
}

typedef struct operation {
  hk_dtype type;
  hk_redop op;
  int nranks;
  uint64_t scalar; /* one element, for premulsum */
} operation;

/* Should sources be multiplied, and by what? */
static bool pre_factor(const operation *o, value *factor) {
  if (o->op == HK_PREMULSUM) {
    *factor = get(o->type, &o->scalar);
    return true;
  }
  if (o->op != HK_AVG || !is_float(o->type)) return false;
  if (o->type == HK_F64)
    factor->f64 = 1.0 / o->nranks;
  else
    factor->f32 = 1.0f / (float)o->nranks;
  return true;
}

static void ref_element(const operation *o, void *out, const char *const *src, unsigned nsrc, int fresh, size_t at,
                        bool final) {
  value acc = {0}, factor = {0};
  bool pre = pre_factor(o, &factor);
  if (nsrc == 1 && !(pre && fresh == 0) && !(final && o->op == HK_AVG && !is_float(o->type))) {
    memcpy(out, src[0] + at, hk_dtype_size(o->type)); /* a copy keeps every bit */
    return;
  }
  for (unsigned s = 0; s < nsrc; s++) {
    value v = get(o->type, src[s] + at);
    if (pre && fresh == (int)s) {
      v = value_combine(o->type, HK_PROD, v, factor);
      if (is_small(o->type)) v.f32 = (float)ref_decode(o->type, ref_encode(o->type, v.f32)); /* as a slot carries it */
    }
    acc = s ? value_combine(o->type, o->op, acc, v) : v;
  }
  if (o->op == HK_AVG && final) acc = value_divide(o->type, acc, o->nranks);
  put(o->type, out, acc);
}

/* Equal bits, or both NaN: which NaN arithmetic gives is not promised. */
static bool same(hk_dtype t, const void *a, const void *b) {
  return memcmp(a, b, hk_dtype_size(t)) == 0 || (value_nan(t, get(t, a)) && value_nan(t, get(t, b)));
}

/* ---- random moves ---- */

enum { MAX_SRC = 17, MAX_DST = 3, MAX_BYTES = 8 * 3000, PAD = 192 };
typedef struct buffers {
  _Alignas(64) char src[MAX_SRC][MAX_BYTES + 2 * PAD];
  _Alignas(64) char dst[MAX_DST][MAX_BYTES + 2 * PAD];
  _Alignas(64) char expected[MAX_BYTES];
} buffers;
static buffers mem;
static uint64_t pool[1 << 12]; /* random elements; sources are windows of it */

/* Random bits, with special values mixed in and floats mostly of moderate size, so that sums meet. */
static uint64_t random_element(hk_dtype t) {
  static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 1e-40, 3e-320, 65504, 448, 57344};
  unsigned kind = below(16);
  value v = {.bits = random64()};
  if (!is_float(t) || kind == 0) return v.bits;
  double x = kind == 1 ? special[below(12)] : (double)(int64_t)random64() * ldexp(1, -60 - (int)below(4));
  if (t == HK_F64) {
    v.f64 = x;
  } else if (t == HK_F32) {
    v.f32 = (float)x;
  } else {
    v.bits = ref_encode(t, x);
  }
  return v.bits;
}
static void fill_pool(hk_dtype t) {
  size_t size = hk_dtype_size(t);
  for (size_t i = 0; i < sizeof pool / size; i++) {
    uint64_t e = random_element(t);
    memcpy((char *)pool + i * size, &e, size);
  }
}

typedef struct shape {
  unsigned nsrc, ndst;
  size_t count;
  int fresh, in_place; /* in_place: the source that dst[0] equals, or -1 */
  unsigned flags;
} shape;

static void one_move(const operation *o, const hk_reducer *r, const shape *s) {
  const size_t size = hk_dtype_size(o->type), bytes = s->count * size;
  const void *src[MAX_SRC];
  void *dst[MAX_DST];
  for (unsigned i = 0; i < s->nsrc; i++) {
    char *p = mem.src[i] + PAD + below(8) * size;
    memcpy(p, (char *)pool + below(64) * 8, bytes);
    src[i] = p;
  }
  for (unsigned d = 0; d < s->ndst; d++) {
    dst[d] = mem.dst[d] + PAD + (below(2) ? below(8) * size : 0);
    memset(mem.dst[d], 0xa5, bytes + 2 * PAD);
  }
  if (s->in_place >= 0) dst[0] = (void *)(uintptr_t)src[s->in_place];
  char before[PAD], after[PAD];
  memcpy(before, (char *)dst[0] - PAD / 2, PAD / 2);
  memcpy(after, (char *)dst[0] + bytes, PAD / 2);
  for (size_t at = 0; at < bytes; at += size)
    ref_element(o, mem.expected + at, (const char *const *)src, s->nsrc, s->fresh, at, s->flags & HK_MOVE_FINAL);

  hk_move(r, dst, s->ndst, src, s->nsrc, s->fresh, bytes, s->flags);

  for (unsigned d = 0; d < s->ndst; d++) {
    char *p = dst[d];
    for (size_t at = 0; at < bytes; at += size)
      expect(same(o->type, p + at, mem.expected + at),
             "%s %s %s: %u sources, %u destinations, %zu elements, fresh %d, in place %d, flags %u: element %zu",
             hk_kernels_level()->name, hk_dtype_name(o->type), hk_redop_name(o->op), s->nsrc, s->ndst, s->count,
             s->fresh, s->in_place, s->flags, at / size);
    if (d == 0) {
      expect(memcmp(before, p - PAD / 2, PAD / 2) == 0 && memcmp(after, p + bytes, PAD / 2) == 0, "bytes around dst 0");
      continue;
    }
    for (int i = 0; i < PAD / 2; i++)
      expect((unsigned char)p[-1 - i] == 0xa5 && (unsigned char)p[bytes + (size_t)i] == 0xa5, "bytes around dst %u", d);
  }
}

static void moves_of(hk_dtype type, hk_redop op) {
  static const unsigned nsrcs[] = {1, 2, 3, 5, 8, 17};
  static const size_t counts[] = {0, 1, 2, 3, 5, 7, 12, 15, 16, 17, 31, 33, 64, 65, 100, 257, 300, 1031, 2500};
  operation o = {type, op, 1 + (int)below(9), random_element(type)};
  hk_reducer r;
  ck_assert_int_eq(hk_reducer_init(&r, type, op, o.nranks, &o.scalar), HK_OK);
  for (size_t n = 0; n < sizeof nsrcs / sizeof nsrcs[0]; n++)
    for (unsigned ndst = 1; ndst <= MAX_DST; ndst++)
      for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        shape s = {nsrcs[n], ndst, counts[c], (int)below(nsrcs[n] + 1) - 1, -1, below(4)};
        if (below(3) == 0) s.in_place = (int)below(nsrcs[n]);
        one_move(&o, &r, &s);
      }
}

TEST_LOOP(every_move, LEVELS) {
  if (!use_level(_i)) return;
  for (int t = 0; t < HK_DTYPE_COUNT; t++) {
    fill_pool((hk_dtype)t);
    for (int op = 0; op < HK_REDOP_COUNT; op++) moves_of((hk_dtype)t, (hk_redop)op);
  }
}

/* ---- small floats ---- */

static const hk_dtype small_types[] = {HK_F16, HK_BF16, HK_E4M3, HK_E5M2};

/* dst[i] = src[i] * scalar through the library */
static void scaled(hk_dtype t, double scalar, void *dst, const void *src, size_t bytes) {
  hk_reducer r;
  uint32_t code = ref_encode(t, scalar);
  expect(ref_decode(t, code) == scalar, "%g is no value of the type", scalar);
  ck_assert_int_eq(hk_reducer_init(&r, t, HK_PREMULSUM, 1, &code), HK_OK);
  hk_move(&r, &dst, 1, &src, 1, 0, bytes, 0);
}

TEST_LOOP(every_small_value, LEVELS) {
  if (!use_level(_i)) return;
  static char in[2 << 16], out[2 << 16], twice[2 << 16];
  for (size_t k = 0; k < 4; k++) {
    hk_dtype t = small_types[k];
    size_t size = hk_dtype_size(t), n = 2 * (size_t)sign_bit(t);
    for (uint32_t code = 0; code < n; code++) memcpy(in + code * size, &code, size);
    scaled(t, 1, out, in, n * size);
    scaled(t, 2, twice, in, n * size);
    for (uint32_t code = 0; code < n; code++) {
      double v = ref_decode(t, code);
      uint32_t same_code = isinf(v) && formats[t].saturates ? ref_encode(t, v) : code;
      uint32_t double_code = ref_encode(t, 2 * v);
      expect(same(t, out + code * size, &same_code), "%s %s: value %x changes", hk_kernels_level()->name,
             hk_dtype_name(t), code);
      expect(same(t, twice + code * size, &double_code), "%s %s: twice %x", hk_kernels_level()->name, hk_dtype_name(t),
             code);
    }
  }
}

/* Every value times factors whose products fp32 holds: halves are ties among the subnormals, the others fall on and
 * next to midpoints everywhere. */
TEST_LOOP(rounding_of_products, LEVELS) {
  if (!use_level(_i)) return;
  static const double factors[] = {0.5, 0.25, 0.75, 1.25, 1.5, 1.75, 3, 0.4375, 0.0390625, -0.625, 16};
  static char in[2 << 16], out[2 << 16];
  for (size_t k = 0; k < 4; k++) {
    hk_dtype t = small_types[k];
    size_t size = hk_dtype_size(t), n = 2 * (size_t)sign_bit(t);
    for (uint32_t code = 0; code < n; code++) memcpy(in + code * size, &code, size);
    for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
      scaled(t, factors[f], out, in, n * size);
      for (uint32_t code = 0; code < n; code++) {
        uint32_t expected = ref_encode(t, ref_decode(t, code) * factors[f]);
        expect(same(t, out + code * size, &expected), "%s %s: %x times %g", hk_kernels_level()->name, hk_dtype_name(t),
               code, factors[f]);
      }
    }
  }
}

/* Every value plus a fraction of the distance to the next, where the fraction is a value too. */
TEST_LOOP(rounding_of_sums, LEVELS) {
  if (!use_level(_i)) return;
  static const double fractions[] = {0.4375, 0.5, 0.625, -0.5};
  static char value_at[2 << 16], part[2 << 16], out[2 << 16];
  for (size_t k = 0; k < 4; k++) {
    hk_dtype t = small_types[k];
    size_t size = hk_dtype_size(t), n = formats[t].max_finite + 1;
    hk_reducer r;
    ck_assert_int_eq(hk_reducer_init(&r, t, HK_SUM, 1, NULL), HK_OK);
    for (int f = 0; f < 8; f++) {
      double sign = f & 4 ? -1 : 1;
      for (uint32_t c = 0; c < n; c++) {
        uint32_t from = c < n - 1 ? c : c - 1;
        uint32_t v = ref_encode(t, sign * ref_decode(t, c));
        double x = sign * fractions[f & 3] * (ref_decode(t, from + 1) - ref_decode(t, from));
        uint32_t p = ref_encode(t, x);
        if (ref_decode(t, p) != x) p = 0;
        memcpy(value_at + c * size, &v, size);
        memcpy(part + c * size, &p, size);
      }
      const void *src[2] = {value_at, part};
      void *dst = out;
      hk_move(&r, &dst, 1, src, 2, -1, n * size, 0);
      for (uint32_t c = 0; c < n; c++) {
        double exact = (double)get(t, value_at + c * size).f32 + (double)get(t, part + c * size).f32;
        uint32_t expected = ref_encode(t, exact);
        expect(same(t, out + c * size, &expected), "%s %s: %x + %g of the gap", hk_kernels_level()->name,
               hk_dtype_name(t), c, fractions[f & 3]);
      }
    }
  }
}

/* Overflow and infinities. */
TEST_LOOP(range, LEVELS) {
  if (!use_level(_i)) return;
  for (size_t k = 0; k < 4; k++) {
    hk_dtype t = small_types[k];
    uint32_t max = formats[t].max_finite, one = ref_encode(t, 1), sum = 0;
    const void *src[2] = {&max, &max};
    void *dst = &sum;
    hk_reducer r;
    ck_assert_int_eq(hk_reducer_init(&r, t, HK_SUM, 1, NULL), HK_OK);
    hk_move(&r, &dst, 1, src, 2, -1, hk_dtype_size(t), 0);
    ck_assert_uint_eq(sum, formats[t].saturates ? max : max + 1);
    if (formats[t].ieee) {
      uint32_t infinity = max + 1, less = infinity | sign_bit(t);
      src[0] = &infinity;
      src[1] = &one;
      hk_move(&r, &dst, 1, src, 2, -1, hk_dtype_size(t), 0);
      ck_assert_uint_eq(sum, formats[t].saturates ? max : infinity);
      src[1] = &less;
      hk_move(&r, &dst, 1, src, 2, -1, hk_dtype_size(t), 0);
      ck_assert(isnan(ref_decode(t, sum)));
    }
  }
}

/* ---- memory ---- */

/* Operands that end, and operands that begin, at an inaccessible page. */
TEST_LOOP(no_stray_access, LEVELS) {
  if (!use_level(_i)) return;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *area[3];
  for (int i = 0; i < 3; i++) {
    area[i] = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(area[i] != MAP_FAILED);
    ck_assert_int_eq(mprotect(area[i] + page, page, PROT_READ | PROT_WRITE), 0);
  }
  for (int t = 0; t < HK_DTYPE_COUNT; t++) {
    hk_reducer r;
    ck_assert_int_eq(hk_reducer_init(&r, (hk_dtype)t, HK_SUM, 1, NULL), HK_OK);
    for (size_t n = 0; n <= 300; n++) {
      size_t bytes = n * r.elem_bytes;
      for (int ends = 0; ends < 2; ends++)
        for (unsigned nsrc = 1; nsrc <= 2; nsrc++) {
          size_t at = ends ? 2 * page - bytes : page;
          void *dst = area[2] + at;
          const void *src[2] = {area[0] + at, area[1] + at};
          hk_move(&r, &dst, 1, src, nsrc, -1, bytes, n & 1 ? HK_MOVE_STREAM | HK_MOVE_AHEAD : 0);
        }
    }
  }
  for (int i = 0; i < 3; i++) munmap(area[i], 3 * page);
}

TEST_LOOP(copies, LEVELS) {
  if (!use_level(_i)) return;
  enum { SIZE = 5 << 20 };
  char *from = malloc(SIZE + 256), *to = malloc(SIZE + 256);
  for (size_t i = 0; i < SIZE + 256; i++) from[i] = (char)random64();
  static const size_t sizes[] = {0,    1,    3,     48,    64,     100,     1000,     2047,
                                 4096, 5000, 16383, 65536, 100001, 1 << 20, SIZE - 3, SIZE};
  static const unsigned ways[] = {0, HK_MOVE_STREAM, HK_MOVE_AHEAD, HK_MOVE_UNCACHED};
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
    for (size_t w = 0; w < HK_ARRAY_LENGTH(ways); w++) {
      const unsigned flags = ways[w];
      size_t n = sizes[k], a = 64 + below(64), b = 64 + below(64);
      memset(to, 0x5a, SIZE + 256);
      hk_copy(to + b, from + a, n, flags);
      expect(memcmp(to + b, from + a, n) == 0, "%zu bytes, flags %u", n, flags);
      expect(to[b - 1] == 0x5a && to[b + n] == 0x5a, "bytes around a copy of %zu", n);
    }
  hk_copy(from, from, SIZE, 0);
  free(from);
  free(to);
}

/* ---- the rest ---- */

TEST(wrong_arguments) {
  hk_reducer r;
  ck_assert_int_eq(hk_reducer_init(&r, HK_DTYPE_COUNT, HK_SUM, 2, NULL), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_reducer_init(&r, HK_F32, HK_REDOP_COUNT, 2, NULL), HK_ERR_ARGUMENT);
  ck_assert_int_eq(hk_reducer_init(&r, HK_F32, HK_PREMULSUM, 2, NULL), HK_ERR_ARGUMENT);
  ck_assert_uint_eq(hk_dtype_size(HK_DTYPE_COUNT), 0);
  ck_assert_uint_eq(hk_dtype_size(HK_BF16), 2);
  ck_assert_str_eq(hk_dtype_name(HK_E4M3), "f8e4m3");
  ck_assert_str_eq(hk_redop_name(HK_PREMULSUM), "premulsum");
}

int main(void) {
  for (size_t k = 0; k < HK_ARRAY_LENGTH(small_types); k++) decode_all(small_types[k]);
  return suite_main("reduce", .timeout = 120);
}
