/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The machine's functions that the kernels use: threads, barriers, 16-byte accesses, and the synchronisation of FIFO
 * links. The kernels use nothing else of CUDA, so that tests can compile them for the CPU. With HK_CUDAEMU,
 * tests/cudaemu/shim.h defines these names instead, with the meaning given here.
 *
 * A program's lane is one block of threads.  Every wait calls hk_relax() in its loop.
 *
 * "litmus: NAME" in the kernels' comments names a test of tests/litmus/links.litmus. The test fails if the order of the
 * commented access is weakened. "litmus: none": no protocol needs the order. docs/gpu-memory-model.md explains it, and
 * a suite compares.
 *
 *   HK_KERNEL void name(HK_PARAMS(struct) p)     a kernel; its parameters are one struct, immutable
 *   HK_DEVICE type name(...)                     a function of a kernel
 *   HK_SHARED(type, name)                        first in a kernel: `type *name` of the block's; not initialised
 */
#pragma once
#include <stdint.h>

/* 16 bytes, the widest access. */
typedef struct hk_vec {
  uint32_t w[4];
} hk_vec;

/* Operations of a switch on the vectors at one address of several GPUs.  16-bit floats are added in fp32 and rounded
 * once. */
enum hk_multi {
  HK_MULTI_ADD_F32,
  HK_MULTI_ADD_F64,
  HK_MULTI_ADD_F16,
  HK_MULTI_ADD_BF16,
  HK_MULTI_ADD_32,
  HK_MULTI_MIN_S32,
  HK_MULTI_MAX_S32,
  HK_MULTI_MIN_U32,
  HK_MULTI_MAX_U32,
  HK_MULTI_ADD_64,
  HK_MULTI_MIN_S64,
  HK_MULTI_MAX_S64,
  HK_MULTI_MIN_U64,
  HK_MULTI_MAX_U64
};

#if defined(HK_SHIM) /* another one, for one test */
#include HK_SHIM
#elif defined(HK_CUDAEMU)
#include "shim.h"
#else

#define HK_KERNEL extern "C" __global__
#define HK_PARAMS(type) const __grid_constant__ type
#define HK_DEVICE static __device__ __forceinline__
#define HK_DEVICE_CALL static __device__ __noinline__
#define HK_SHARED(type, name)                                                                                          \
  __shared__ type name##_memory;                                                                                       \
  type *const name = &name##_memory
#define HK_UNROLL _Pragma("unroll")
#define HK_NO_UNROLL _Pragma("unroll 1")

enum { HK_WARP = 32 };
HK_DEVICE unsigned hk_thread(void) { return threadIdx.x; } /* in the block */
HK_DEVICE unsigned hk_threads(void) { return blockDim.x; } /* of the block: a multiple of HK_WARP */
HK_DEVICE unsigned hk_block(void) { return blockIdx.x; }
HK_DEVICE unsigned hk_blocks(void) { return gridDim.x; }

/* A barrier of all threads of the block.  After it, all see what any of them wrote before it. litmus: shared,
 * reference */
HK_DEVICE void hk_barrier(void) { __syncthreads(); }
/* The same; returns whether `x` was nonzero in any thread. litmus: slot, credit, line, wide */
HK_DEVICE int hk_barrier_or(int x) { return __syncthreads_or(x); }
/* A barrier of the caller's warp; all its threads must call it. It orders their memory accesses as hk_barrier does.
 * litmus: counter */
HK_DEVICE void hk_warp_barrier(void) { __syncwarp(); }
/* True if x is nonzero in any thread of the warp; all its threads must call it. */
HK_DEVICE int hk_warp_any(int x) { return __any_sync(0xffffffffu, x); }

/* Lets other threads run, for an unspecified time. */
HK_DEVICE void hk_relax(void) {}

/* ---- data: 16-aligned, device or mapped host memory ---- */
/* Memory that others write is read only after an acquire and a barrier, so plain accesses are enough. */
HK_DEVICE hk_vec hk_load(const void *p) {
  hk_vec v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(p)
               : "memory");
  return v;
}
HK_DEVICE void hk_store(void *p, hk_vec v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
               : "memory");
}
/* With `on`; without, nothing is read and *v stays. No branch, so that several may be under way. */
HK_DEVICE void hk_load_if(hk_vec *v, const void *p, int on) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0;\n\t"
               "@p ld.global.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "+r"(v->w[0]), "+r"(v->w[1]), "+r"(v->w[2]), "+r"(v->w[3])
               : "l"(p), "r"(on)
               : "memory");
}
/* The first 8 bytes of a vector; the rest of a loaded one is zeros. */
HK_DEVICE hk_vec hk_load_half(const void *p) {
  hk_vec v = {{0, 0, 0, 0}};
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p) : "memory");
  return v;
}
HK_DEVICE void hk_store_half(void *p, hk_vec v) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]) : "memory");
}

/* ---- LL lines: two words of data, each with its flag, that a reader polls. Each half of 8 bytes is read and written
 * in one piece, so that a word is valid if its flag is. ---- */
/* litmus: none; for reports */
HK_DEVICE hk_vec hk_load_line(const void *p) {
  hk_vec v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(p)
               : "memory");
  return v;
}
/* With `on`; without, nothing is read and *v stays. No branch, so that several may be under way.
 * litmus: line, line_polled_again */
HK_DEVICE void hk_load_line_if(hk_vec *v, const void *p, int on) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0;\n\t"
               "@p ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "+r"(v->w[0]), "+r"(v->w[1]), "+r"(v->w[2]), "+r"(v->w[3])
               : "l"(p), "r"(on)
               : "memory");
}
/* litmus: line, line_polled_again, refresh */
HK_DEVICE void hk_store_line(void *p, hk_vec v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]),
               "r"(v.w[3])
               : "memory");
}

/* ---- LL128 lines: all threads of a warp call these. Eight neighbouring threads with `on` set have the eight pieces,
 * in order, of an aligned line of 128 bytes. They write or read it with one instruction. In the device's own memory,
 * and in another's over NVLink, a reader sees the line whole or not at all. PTX does not promise that, but the hardware
 * does it, and LL128 depends on it. Without `on` nothing is written, and the value read has no meaning. litmus: wide,
 * wide_polled_again ---- */
HK_DEVICE hk_vec hk_load_wide(const void *p, int on) {
  hk_vec v = {{0, 0, 0, 0}};
  asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0;\n\t"
               "@p ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "+r"(v.w[0]), "+r"(v.w[1]), "+r"(v.w[2]), "+r"(v.w[3])
               : "l"(p), "r"(on)
               : "memory");
  return v;
}
HK_DEVICE void hk_store_wide(void *p, hk_vec v, int on) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0;\n\t"
               "@p st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};}" ::"l"(p),
               "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "r"(on)
               : "memory");
}

/* ---- synchronisation between ranks: system scope, as the other rank may be another GPU or the CPU ---- */
/* Acquire: no later access of the thread, and no access after a later barrier, is performed before it. litmus: slot,
 * credit, reference, proxied_receive, switch_given, switch_sums */
HK_DEVICE uint64_t hk_load_acquire(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
/* A fence before hk_store_signal. A thread that acquires the signal sees all earlier accesses of this thread, and those
 * of other threads before an earlier barrier. The fence waits about a microsecond, until all earlier stores have
 * arrived, so an instruction has at most one. litmus: slot, credit, step, reference, slot_before_line, proxied_send,
 * proxied_receive, switch_sums */
HK_DEVICE void hk_fence(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/* Stores a link's word or head in one piece. The store itself orders nothing. litmus: slot, credit, step, line */
HK_DEVICE void hk_store_signal(uint64_t *p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* litmus: line, wide; other protocols need an acquire: credit_no_acquire */
HK_DEVICE uint64_t hk_load_signal(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
/* No order at all: for words on whose value no other memory depends, such as the abort flag. litmus: none; they are
 * strong so that a poll ends */
HK_DEVICE uint32_t hk_load_relaxed(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
HK_DEVICE void hk_store_relaxed(uint32_t *p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Sets *p to `to` if it is `from`; returns the old value. litmus: none */
HK_DEVICE uint32_t hk_swap_if(uint32_t *p, uint32_t from, uint32_t to) { return atomicCAS_system(p, from, to); }

/* ---- multicast addresses (NVLS): each means the same place in the memory of several GPUs, and only these go there.
 * Since sm_90; a host that has no such address never lets a kernel get here. ---- */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HK_MULTI_4(op)                                                                                                 \
  for (int i = 0; i < 4; i++)                                                                                          \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." op " %0, [%1];" : "=r"(v.w[i]) : "l"(at + 4 * i) : "memory")
#define HK_MULTI_2(op)                                                                                                 \
  for (int i = 0; i < 2; i++) {                                                                                        \
    uint64_t x;                                                                                                        \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." op " %0, [%1];" : "=l"(x) : "l"(at + 8 * i) : "memory");     \
    v.w[2 * i] = (uint32_t)x;                                                                                          \
    v.w[2 * i + 1] = (uint32_t)(x >> 32);                                                                              \
  }
#define HK_MULTI_VECTOR(op)                                                                                            \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." op " {%0,%1,%2,%3}, [%4];"                                     \
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])                                                \
               : "l"(at)                                                                                               \
               : "memory")
/* The order of the sum is not defined, so the rounding of floats depends on the switch. litmus: none; hk_multi_fence
 * orders it */
HK_DEVICE hk_vec hk_multi_reduce(const void *p, const int what) {
  const char *at = (const char *)p;
  hk_vec v;
  switch (what) {
    case HK_MULTI_ADD_F32: {
      float f[4];
      asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])
                   : "l"(at)
                   : "memory");
      for (int i = 0; i < 4; i++) v.w[i] = __float_as_uint(f[i]);
      break;
    }
    case HK_MULTI_ADD_F64:
      for (int i = 0; i < 2; i++) {
        double d;
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f64 %0, [%1];" : "=d"(d) : "l"(at + 8 * i) : "memory");
        v.w[2 * i] = (uint32_t)__double2loint(d);
        v.w[2 * i + 1] = (uint32_t)__double2hiint(d);
      }
      break;
    case HK_MULTI_ADD_F16: HK_MULTI_VECTOR("add.acc::f32.v4.f16x2"); break;
    case HK_MULTI_ADD_BF16: HK_MULTI_VECTOR("add.acc::f32.v4.bf16x2"); break;
    case HK_MULTI_ADD_32: HK_MULTI_4("add.u32"); break;
    case HK_MULTI_MIN_S32: HK_MULTI_4("min.s32"); break;
    case HK_MULTI_MAX_S32: HK_MULTI_4("max.s32"); break;
    case HK_MULTI_MIN_U32: HK_MULTI_4("min.u32"); break;
    case HK_MULTI_MAX_U32: HK_MULTI_4("max.u32"); break;
    case HK_MULTI_ADD_64: HK_MULTI_2("add.u64"); break;
    case HK_MULTI_MIN_S64: HK_MULTI_2("min.s64"); break;
    case HK_MULTI_MAX_S64: HK_MULTI_2("max.s64"); break;
    case HK_MULTI_MIN_U64: HK_MULTI_2("min.u64"); break;
    default: HK_MULTI_2("max.u64"); break;
  }
  return v;
}
/* litmus: none; hk_multi_fence orders it */
HK_DEVICE void hk_multi_store(void *p, hk_vec v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(__uint_as_float(v.w[0])),
               "f"(__uint_as_float(v.w[1])), "f"(__uint_as_float(v.w[2])), "f"(__uint_as_float(v.w[3]))
               : "memory");
}
/* As hk_store_signal, on each of the GPUs. litmus: switch_given, switch_given_again, switch_sums */
HK_DEVICE void hk_multi_store_signal(uint64_t *p, uint64_t v) {
  asm volatile("multimem.st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
#else
HK_DEVICE hk_vec hk_multi_reduce(const void *, const int) {
  __trap();
  return hk_vec{{0, 0, 0, 0}};
}
HK_DEVICE void hk_multi_store(void *, hk_vec) { __trap(); }
HK_DEVICE void hk_multi_store_signal(uint64_t *, uint64_t) { __trap(); }
#endif
/* Orders accesses to the same memory by its own address and by a multicast address. The accesses may be of two threads
 * if the fence lies on the causality path between them. litmus: switch_given, switch_given_again, switch_sums */
HK_DEVICE void hk_multi_fence(void) { asm volatile("fence.proxy.alias;" ::: "memory"); }

/* ---- arithmetic that compilers would fuse or that the machine has an instruction for ---- */
HK_DEVICE float hk_add_f32(float a, float b) { return __fadd_rn(a, b); }
HK_DEVICE float hk_mul_f32(float a, float b) { return __fmul_rn(a, b); }
HK_DEVICE double hk_add_f64(double a, double b) { return __dadd_rn(a, b); }
HK_DEVICE double hk_mul_f64(double a, double b) { return __dmul_rn(a, b); }
HK_DEVICE float hk_bits_f32(uint32_t x) { return __uint_as_float(x); }
HK_DEVICE uint32_t hk_f32_bits(float x) { return __float_as_uint(x); }
HK_DEVICE double hk_bits_f64(uint64_t x) { return __longlong_as_double((long long)x); }
HK_DEVICE uint64_t hk_f64_bits(double x) { return (uint64_t)__double_as_longlong(x); }
/* fp16 in the lower half of a word; exact, and to nearest even. */
HK_DEVICE float hk_f16_to_f32(uint32_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)h));
  return f;
}
HK_DEVICE uint32_t hk_f32_to_f16(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
#endif
