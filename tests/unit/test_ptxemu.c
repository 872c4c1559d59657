/* SPDX-License-Identifier: Apache-2.0 */
/* The PTX interpreter of the emulated driver, on PTX that is written here: what it loads, what it refuses, and what its
 * memory shows.
 * check: notsan */
#include <dlfcn.h>
#include <math.h>
#include "../support/gpu.h"
#include "../support/suite.h"

static CUmodule modules[64];
static int nmodules;
static CUmodule load(const void *image) {
  OK(ModuleLoadData(&modules[nmodules], image));
  return modules[nmodules++];
}
static void unload_all(void) {
  while (nmodules) OK(ModuleUnload(modules[--nmodules]));
}
static CUfunction function(CUmodule m, const char *name) {
  CUfunction f;
  OK(ModuleGetFunction(&f, m, name));
  return f;
}

#define HEAD(arch) "// made by hand\n.version 8.0\n.target sm_" arch "\n.address_size 64\n"
#define ADDS(text)                                                                                                     \
  ".visible .global .align 4 .u32 counter = 5;\n"                                                                      \
  ".visible .entry adds(.param .u64 p, .param .u32 x) {\n"                                                             \
  "  .reg .b32 %r<5>; .reg .b64 %rd<4>;\n"                                                                             \
  "  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [x];\n"                                                                 \
  "  mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;\n"                                      \
  "  ld.global.u32 %r3, [counter]; add.s32 %r4, %r1, %r3; add.s32 %r4, %r4, " text "; st.global.u32 [%rd3], %r4;\n"    \
  "  ret;\n}\n"

static void check_adds(CUmodule m, uint32_t more) {
  uint32_t x = 100, out[40];
  CUdeviceptr p = emu_alloc(sizeof out);
  void *params[] = {&p, &x};
  OK(LaunchKernel(function(m, "adds"), 1, 1, 1, 40, 1, 1, 0, NULL, params, NULL));
  emu_read(out, p, sizeof out);
  suite_all(i, 40, out[i] == 105 + more);
  OK(MemFree(p));
}

TEST(text_and_variables) {
  CUmodule m;
  CUfunction f;
  CUdeviceptr at;
  size_t bytes;
  uint32_t seven = 7, more = 2;
  emu_start(1);
  m = load(HEAD("90") ADDS("0"));
  check_adds(m, 0);
  FAILS(CUDA_ERROR_NOT_FOUND, ModuleGetFunction(&f, m, "subtracts"));
  CUresult (*global)(CUdeviceptr *, size_t *, CUmodule, const char *);
  *(void **)&global = dlsym(dlopen(emu_file("libcuda.so.1"), RTLD_NOW), "cuModuleGetGlobal_v2");
  ck_assert_int_eq(global(&at, &bytes, m, "counter"), CUDA_SUCCESS);
  ck_assert_uint_eq(bytes, 4);
  OK(MemcpyAsync(at, (CUdeviceptr)(uintptr_t)&seven, 4, NULL));
  check_adds(m, more);
  ck_assert_int_eq(global(&at, &bytes, m, "nothing"), CUDA_ERROR_NOT_FOUND);
  unload_all();
}

/* A fatbin as nvcc writes it: the newest PTX that the device can run is taken; what is packed needs a library. */
static size_t add_part(char *to, const char *ptx, uint32_t arch, bool packed) {
  const size_t n = strlen(ptx) + 1, header = 64;
  size_t bytes = 0;
  char *data = to + header;
  if (packed) { /* LZ4: all of it literal */
    data[bytes++] = (char)0xf0;
    size_t left = n - 15;
    for (; left >= 255; left -= 255) data[bytes++] = (char)255;
    data[bytes++] = (char)left;
  }
  memcpy(data + bytes, ptx, n);
  bytes += n;
  const uint16_t kind = 1;
  const uint32_t head = (uint32_t)header, short_bytes = (uint32_t)bytes;
  const uint64_t capacity = (bytes + 7) / 8 * 8, flags = packed ? 0x2011 : 0x11, whole = n;
  memset(to, 0, header);
  memcpy(to, &kind, 2);
  memcpy(to + 4, &head, 4);
  memcpy(to + 8, &capacity, 8);
  memcpy(to + 16, &short_bytes, 4);
  memcpy(to + 28, &arch, 4);
  memcpy(to + 40, &flags, 8);
  memcpy(to + 56, &whole, 8);
  return header + capacity;
}
TEST_LOOP(fatbin, 2) {
  static _Alignas(8) char image[8192];
  struct {
    uint32_t magic, version;
    const void *data, *more;
  } wrapper = {0x466243b1, 1, image, NULL};
  const uint32_t head[] = {0xba55ed50, 16 << 16 | 1};
  const bool packed = _i == 1;
  void *lz4 = packed ? dlopen("liblz4.so.1", RTLD_NOW) : NULL;
  if (packed && !lz4) {
    printf("SKIP: packed PTX: there is no liblz4.so.1\n");
    return;
  }
  emu_start(1);
  uint64_t n = add_part(image + 16, HEAD("75") ADDS("1"), 75, packed);
  n += add_part(image + 16 + n, HEAD("80") ADDS("2"), 80, packed);
  n += add_part(image + 16 + n, HEAD("120") ADDS("3"), 120, packed);
  memcpy(image, head, 8);
  memcpy(image + 8, &n, 8);
  check_adds(load(image), 2);
  check_adds(load(&wrapper), 2);
  unload_all();
}

/* ---- floats of 8 bits ---- */

/* Each thread takes two fp32 numbers and puts three words: both of them in TYPE, those again in fp16, and that again in
 * TYPE. */
#define BYTES(type)                                                                                                    \
  HEAD("90")                                                                                                           \
  ".visible .entry bytes(.param .u64 from, .param .u64 to) {\n"                                                        \
  "  .reg .b16 %rs<3>; .reg .b32 %r<6>; .reg .f32 %f<3>; .reg .b64 %rd<7>;\n"                                          \
  "  ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; mov.u32 %r1, %tid.x;\n"                                       \
  "  mul.wide.u32 %rd3, %r1, 8; add.s64 %rd4, %rd1, %rd3; mul.wide.u32 %rd5, %r1, 12; add.s64 %rd6, %rd2, %rd5;\n"     \
  "  ld.global.v2.f32 {%f1, %f2}, [%rd4]; cvt.rn.satfinite." type "x2.f32 %rs1, %f1, %f2;\n"                           \
  "  cvt.rn.f16x2." type "x2 %r2, %rs1; cvt.rn.satfinite." type "x2.f16x2 %rs2, %r2;\n"                                \
  "  cvt.u32.u16 %r3, %rs1; cvt.u32.u16 %r4, %rs2;\n"                                                                  \
  "  st.global.u32 [%rd6], %r3; st.global.u32 [%rd6+4], %r2; st.global.u32 [%rd6+8], %r4; ret;\n}\n"
static double value_of(unsigned code, bool e5m2) { /* of a positive number */
  const unsigned exponent = code >> (e5m2 ? 2 : 3);
  const double fraction = (code & (e5m2 ? 3 : 7)) / (e5m2 ? 4.0 : 8.0);
  return exponent ? (1 + fraction) * exp2((int)exponent - (e5m2 ? 15 : 7)) : fraction * exp2(e5m2 ? -14 : -6);
}
/* The code whose value is nearest, the even one of two; what is larger than all of them has the largest. */
static unsigned nearest(float x, bool e5m2) {
  const unsigned largest = e5m2 ? 0x7b : 0x7e;
  unsigned best = 0;
  if (isnan(x)) return 0x7f;
  if (fabs((double)x) > value_of(largest, e5m2)) return largest | (signbit(x) ? 0x80 : 0);
  for (unsigned code = 1; code <= largest; code++) {
    const double d = fabs(value_of(code, e5m2) - fabsf(x)), least = fabs(value_of(best, e5m2) - fabsf(x));
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return best | (signbit(x) ? 0x80 : 0);
}
static float half_of(uint32_t h) {
  const float a =
      ldexpf((float)((h & 0x3ff) + (h >> 10 & 31 ? 0x400 : 0)), (h >> 10 & 31 ? (int)(h >> 10 & 31) : 1) - 25);
  return h & 0x8000 ? -a : a;
}
TEST_LOOP(bytes, 2) {
  const bool e5m2 = _i == 1;
  enum { N = 256 };
  static float in[N][2];
  static uint32_t out[N][3];
  for (unsigned k = 0; k < N; k++) { /* each number, half of the way to the next, a little to a side of that */
    const float at = (float)value_of(k / 2, e5m2), next = (float)value_of(k / 2 + 1, e5m2), half = (at + next) / 2;
    in[k][0] = k % 2 ? half : at;
    in[k][1] = -nextafterf(half, k % 2 ? 0 : INFINITY);
  }
  in[N - 1][0] = NAN;
  in[N - 1][1] = -INFINITY;
  emu_start(1);
  CUdeviceptr from = emu_alloc(sizeof in), to = emu_alloc(sizeof out);
  void *params[] = {&from, &to};
  OK(MemcpyAsync(from, (CUdeviceptr)(uintptr_t)in, sizeof in, NULL));
  OK(LaunchKernel(function(load(e5m2 ? BYTES("e5m2") : BYTES("e4m3")), "bytes"), 1, 1, 1, N, 1, 1, 0, NULL, params,
                  NULL));
  emu_read(out, to, sizeof out);
  for (unsigned k = 0; k < N; k++) {
    const uint32_t both = nearest(in[k][0], e5m2) << 8 | nearest(in[k][1], e5m2), low = both & 0xff;
    const double sign = low & 0x80 ? -1 : 1;
    if (out[k][0] != both || out[k][2] != both ||
        (double)half_of(out[k][1] & 0xffff) != sign * value_of(low & 0x7f, e5m2))
      ck_abort_msg("%g and %g: %x, not %x; in fp16 %x, and again %x", (double)in[k][0], (double)in[k][1], out[k][0],
                   both, out[k][1], out[k][2]);
  }
  OK(MemFree(from));
  OK(MemFree(to));
  unload_all();
}

/* ---- what ends a launch ---- */

/* Even threads go another way than odd ones; who is together afterwards, and after a barrier of the warp? */
static const char parts[] = HEAD("90") ".visible .entry parts(.param .u64 p) {\n"
                                       "  .reg .pred %p<2>; .reg .b32 %r<5>; .reg .b64 %rd<4>;\n"
                                       "  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1;\n"
                                       "  mul.wide.u32 %rd2, %r1, 8; add.s64 %rd3, %rd1, %rd2;\n"
                                       "  setp.eq.u32 %p1, %r2, 0; @%p1 bra L; add.u32 %r2, %r2, 1;\n"
                                       "L: activemask.b32 %r3; bar.warp.sync -1; activemask.b32 %r4;\n"
                                       "  st.global.v2.u32 [%rd3], {%r3, %r4}; ret;\n}\n";
TEST_LOOP(apart, 2) {
  uint32_t out[64];
  if (_i) setenv("CUDAEMU_APART", "1", 1);
  emu_start(1);
  CUdeviceptr p = emu_alloc(sizeof out);
  void *params[] = {&p};
  OK(LaunchKernel(function(load(parts), "parts"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
  emu_read(out, p, sizeof out);
  const uint32_t even = _i ? 0x55555555 : ~0u, odd = _i ? 0xaaaaaaaa : ~0u;
  suite_all(i, 32, out[2 * i] == (i % 2 ? odd : even) && out[2 * i + 1] == ~0u);
  OK(MemFree(p));
  unload_all();
}

#define FAULT(text)                                                                                                    \
  HEAD("90")                                                                                                           \
  ".visible .entry fault(.param .u64 p) {\n"                                                                           \
  "  .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>; .shared .align 16 .b8 mine[64];\n"                           \
  "  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;\n  " text "\n  ret;\n}\n"
static const char *const faults[] = {
    FAULT("ld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%rd1+8];"), /* alignment */
    FAULT("st.global.u64 [%rd1+4], %rd1;"),
    FAULT("ld.global.v2.u32 {%r2,%r3}, [%rd1+4];"),
    FAULT("ld.shared.u32 %r2, [%rd1];"), /* an address of another space */
    FAULT("mov.u64 %rd2, mine; ld.global.u32 %r2, [%rd2];"),
    FAULT("mov.u64 %rd2, mine; cvta.shared.u64 %rd3, %rd2; ld.global.u32 %r2, [%rd3];"),
    FAULT("mov.u64 %rd2, mine; st.shared.u32 [%rd2+64], %r1;"), /* beyond what is there */
    FAULT("mov.u64 %rd2, 0; ld.global.u32 %r2, [%rd2];"),
    FAULT("@%p1 bra L; bar.sync 0; L: @!%p1 bra M; bar.sync 1; M:"), /* barriers that some never reach */
    FAULT("vote.sync.any.pred %p2, %p1, 65535;"),                    /* lanes that are no members */
    FAULT("multimem.st.relaxed.sys.global.u32 [%rd1], %r1;"),        /* no multicast address */
    FAULT("trap;"),
    FAULT("frobnicate.u32 %r1, %r2;"),
};
enum { FAULTS = sizeof faults / sizeof *faults };
TEST_LOOP(failures, FAULTS) {
  emu_start(1);
  CUdeviceptr p = emu_alloc(64);
  void *params[] = {&p};
  CUstream s = emu_new_stream(CU_STREAM_NON_BLOCKING);
  OK(LaunchKernel(function(load(faults[_i]), "fault"), 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
  FAILS(CUDA_ERROR_LAUNCH_FAILED, StreamSynchronize(s));
  unload_all();
}

/* ---- what memory shows ---- */

/* The first block of a launch writes data and then a flag, another one or a kernel elsewhere reads the flag and then
 * the data.  The writer begins after the reader, who would else see all of it, and runs until the reader has looked,
 * because its end would let all that it has stored arrive. */
#define MESSAGE                                                                                                        \
  HEAD("90")                                                                                                           \
  ".visible .entry message(.param .u64 p, .param .u32 reads) {\n"                                                      \
  "  .reg .pred %%p<4>; .reg .b32 %%r<9>; .reg .b64 %%a;\n"                                                            \
  "  ld.param.u64 %%a, [p]; ld.param.u32 %%r1, [reads]; mov.u32 %%r2, %%ctaid.x; add.s32 %%r1, %%r1, %%r2;\n"          \
  "  setp.ne.u32 %%p1, %%r1, 0; @%%p1 bra READ;\n"                                                                     \
  "B: ld.relaxed.sys.global.u32 %%r3, [%%a+64]; setp.ne.u32 %%p2, %%r3, 1; @%%p2 bra B;\n"                             \
  "  st.global.u32 [%%a], 7; %s\n  st.%s.global.u32 [%%a+128], 1;\n"                                                   \
  "W: ld.relaxed.sys.global.u32 %%r3, [%%a+256]; setp.ne.u32 %%p2, %%r3, 1; @%%p2 bra W; ret;\n"                       \
  "READ: st.relaxed.sys.global.u32 [%%a+64], 1;\n"                                                                     \
  "R: ld.%s.global.u32 %%r3, [%%a+128]; setp.ne.u32 %%p2, %%r3, 1; @%%p2 bra R;\n  %s\n"                               \
  "  ld.global.u32 %%r4, [%%a]; st.global.u32 [%%a+384], %%r4; st.release.sys.global.u32 [%%a+256], 1; ret;\n}\n"
typedef enum place { BLOCKS, DEVICES, BOTH } place; /* blocks of a launch, kernels on two devices, either */
static const struct {
  const char *before, *store, *load, *after;
  place place;
  bool seen;
} messages[] = {
    {"", "release.sys", "acquire.sys", "", BOTH, true},
    {"", "relaxed.sys", "acquire.sys", "", BOTH, false},
    {"", "volatile", "acquire.sys", "", BOTH, false},
    {"", "release.sys", "relaxed.sys", "", BOTH, false},
    {"", "release.sys", "volatile", "", BOTH, false},
    {"fence.acq_rel.sys;", "relaxed.sys", "relaxed.sys", "fence.acq_rel.sys;", BOTH, true},
    {"fence.sc.sys;", "volatile", "volatile", "membar.sys;", BOTH, true},
    {"fence.acq_rel.sys;", "relaxed.sys", "relaxed.sys", "", BOTH, false},
    {"", "relaxed.sys", "relaxed.sys", "fence.acq_rel.sys;", BOTH, false},
    {"", "release.gpu", "acquire.gpu", "", BLOCKS, true},
    {"fence.acq_rel.gpu;", "relaxed.gpu", "relaxed.gpu", "fence.acq_rel.gpu;", BLOCKS, true},
    {"fence.acq_rel.gpu;", "relaxed.sys", "acquire.sys", "", DEVICES, false},
    {"fence.acq_rel.cta;", "relaxed.sys", "acquire.sys", "", BOTH, false},
    {"fence.acq_rel.sys;", "relaxed.sys", "relaxed.sys", "fence.acq_rel.gpu;", DEVICES, false},
    {"fence.acq_rel.sys;", "relaxed.sys", "relaxed.sys", "fence.acq_rel.cta;", BOTH, false},
};
enum { MESSAGES = sizeof messages / sizeof *messages };

static uint32_t pass_message(place where, const char *ptx, CUdeviceptr p) {
  CUstream s[2];
  uint32_t reads[2] = {0, 1};
  for (int d = 0; d < 2; d++) {
    emu_use(d);
    s[d] = emu_new_stream(CU_STREAM_NON_BLOCKING);
    if (d && where == BLOCKS) continue;
    void *params[] = {&p, &reads[d]};
    OK(LaunchKernel(function(load(ptx), "message"), where == BLOCKS ? 2 : 1, 1, 1, 1, 1, 1, 0, s[d], params, NULL));
  }
  for (int d = 0; d < 2; d++) {
    emu_use(d);
    OK(StreamSynchronize(s[d]));
    OK(StreamDestroy(s[d]));
  }
  emu_use(0);
  unload_all();
  return emu_word(p + 384);
}
TEST_LOOP(message_passing, MESSAGES) {
  char text[4000];
  setenv("CUDAEMU_WEAK", "1", 1);
  emu_start(2);
  snprintf(text, sizeof text, MESSAGE, messages[_i].before, messages[_i].store, messages[_i].load, messages[_i].after);
  for (place where = BLOCKS; where <= DEVICES; where++) {
    bool stale = false;
    if (messages[_i].place != BOTH && messages[_i].place != where) continue;
    for (int k = 0; k < 10; k++) stale |= pass_message(where, text, emu_alloc(512)) != 7;
    ck_assert_msg(stale != messages[_i].seen, "%s st.%s, ld.%s %s, %s", messages[_i].before, messages[_i].store,
                  messages[_i].load, messages[_i].after, where == BLOCKS ? "two blocks" : "two devices");
  }
}

int main(void) {
  unsetenv("CUDAEMU_PTX");
  return suite_main("ptxemu", .timeout = 30);
}
