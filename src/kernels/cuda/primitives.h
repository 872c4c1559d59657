/* SPDX-License-Identifier: Apache-2.0 */
/**
 * All that the kernels use of the machine: threads, barriers, 16-byte accesses, and the synchronisation of FIFO links.
 * The kernels use nothing else of CUDA, so that tests can compile them for the CPU: with HK_CUDAEMU these names come from
 * tests/cudaemu/shim.h instead, each with the meaning given here.
 *
 * A program's lane is one block of threads.  Every wait calls hk_relax() in its loop.
 *
 *   HK_KERNEL void name(HK_PARAMS(struct) p)     a kernel; its parameters are one struct, immutable
 *   HK_DEVICE type name(...)                     a function of a kernel
 *   HK_SHARED(type, name)                        first in a kernel: `type *name` of the block's; not initialised
 */
#ifndef HK_KERNELS_CUDA_PRIMITIVES_H
#define HK_KERNELS_CUDA_PRIMITIVES_H
#include <stdint.h>

/* 16 bytes, the widest access. */
typedef struct hk_vec {
  uint32_t w[4];
} hk_vec;

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

/* Of all threads of the block.  What any of them wrote before is seen by all after. */
HK_DEVICE void hk_barrier(void) { __syncthreads(); }
/* The same; gives whether `x` was nonzero in any of them. */
HK_DEVICE int hk_barrier_or(int x) { return __syncthreads_or(x); }
/* Of the threads of the caller's warp, all of which call it; orders their accesses to memory as the barrier does. */
HK_DEVICE void hk_warp_barrier(void) { __syncwarp(); }
/* Whether x is nonzero in any of the warp's threads, all of which call it. */
HK_DEVICE int hk_warp_any(int x) { return __any_sync(0xffffffffu, x); }

/* Nothing may be assumed of how long it takes; other threads run meanwhile. */
HK_DEVICE void hk_relax(void) {}
HK_DEVICE uint64_t hk_clock_ns(void) {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

/* ---- data: 16-aligned, device or mapped host memory ---- */
/* Memory that others may write at other times is read only behind an acquire and a barrier, so that plain accesses do. */
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
/* The first 8 bytes of a vector; the rest of a loaded one is zeros. */
HK_DEVICE hk_vec hk_load_half(const void *p) {
  hk_vec v = {{0, 0, 0, 0}};
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p) : "memory");
  return v;
}
HK_DEVICE void hk_store_half(void *p, hk_vec v) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]) : "memory");
}

/* ---- LL lines: two words of data, each with its flag, that a reader polls.  Each half of 8 bytes is read and written in
 * one piece, so that a word is there when its flag is. ---- */
HK_DEVICE hk_vec hk_load_line(const void *p) {
  hk_vec v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(p)
               : "memory");
  return v;
}
HK_DEVICE void hk_store_line(void *p, hk_vec v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]),
               "r"(v.w[3])
               : "memory");
}

/* ---- LL128 lines: all threads of a warp call these.  Eight neighbours with `on` set have the eight pieces, in order, of an
 * aligned line of 128 bytes; they write it with one instruction, and read it with one, and the memory (the device's own, or
 * another's over NVLink) lets a reader see it whole or not at all.  PTX does not promise that; the hardware does, and all
 * of LL128 rests on it.  Without `on` nothing is written, and what is read means nothing. ---- */
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
/* Nothing behind it in the thread's order, or behind a later barrier, is done before it. */
HK_DEVICE uint64_t hk_load_acquire(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
/* Everything that the thread did before it, and what others did before an earlier barrier, is visible to whoever
 * acquires the value. */
HK_DEVICE void hk_store_release(uint64_t *p, uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* No order at all: for words that stand alone, such as the abort flag. */
HK_DEVICE uint32_t hk_load_relaxed(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
HK_DEVICE void hk_store_relaxed(uint32_t *p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* *p = to where it is `from`; gives what was there. */
HK_DEVICE uint32_t hk_swap_if(uint32_t *p, uint32_t from, uint32_t to) { return atomicCAS_system(p, from, to); }

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
#endif
