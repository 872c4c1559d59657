/* SPDX-License-Identifier: Apache-2.0 */
/* What NVIDIA's nccl_device headers use of CUDA C++, for the emulated driver.  They are compiled as C++ for the CPU,
 * and inline.py has put calls of these functions in the place of their PTX.  Only what kernels.cu reaches is there.
 * What is missing ends the process. */
#ifndef HK_TESTS_DEVICE_SHIM_H
#define HK_TESTS_DEVICE_SHIM_H
#include <stdlib.h>
#include <new>
#include "../../../src/kernels/cuda/primitives.h"

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define CUDART_VERSION 13000
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__

struct emu_dim {
  unsigned x;
};
#define threadIdx (emu_dim{hk_thread()})
#define blockDim (emu_dim{hk_threads()})
#define blockIdx (emu_dim{hk_block()})
#define gridDim (emu_dim{hk_blocks()})
struct uint4 {
  uint32_t x, y, z, w;
};
struct ulonglong2 {
  unsigned long long x, y;
};
struct ulong2 {
  unsigned long x, y;
};
static inline void __syncthreads() { hk_barrier(); }
static inline void __syncwarp(uint32_t = ~0u) { hk_warp_barrier(); }
static inline void __barrier_sync_count(int, int) { abort(); }
static inline uint32_t __activemask() { return ~0u; }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __ffs(uint32_t x) { return __builtin_ffs((int)x); }
static inline uint32_t __fns(uint32_t, uint32_t, int) { abort(); }
static inline uint32_t __ballot_sync(uint32_t, int x) { return hk_warp_ballot(x); }
static inline uint32_t __shfl_sync(uint32_t, uint32_t x, int lane, int = 32) {
  return hk_warp_shuffle(x, (unsigned)lane);
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
static inline long long clock64() { return (long long)hk_clock_ns(); }
template <typename T>
static inline T __ldg(const T *p) {
  return *p;
}

/* ---- PTX ---- */
static inline int emu_laneid() { return (int)(hk_thread() % HK_WARP); }
static inline uint32_t emu_lanemask_lt() { return (1u << emu_laneid()) - 1; }
static inline void emu_multimem_add(uint32_t *p, uint32_t x) {
  char *views[CUDAEMU_VIEWS];
  unsigned n = cudaemu_driver->views(p, sizeof *p, views);
  if (!n) abort();
  if (cudaemu_driver->weak) cudaemu_driver->fence();
  for (unsigned d = 0; d < n; d++) __atomic_fetch_add((uint32_t *)(void *)views[d], x, __ATOMIC_RELEASE);
}
static inline void emu_store4(void *p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  hk_store_line(p, hk_vec{{a, b, c, d}});
}
static inline void emu_multimem_store4(void *p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  char *views[CUDAEMU_VIEWS];
  unsigned n = cudaemu_driver->views(p, sizeof(hk_vec), views);
  for (unsigned i = 0; i < n; i++) emu_store4(views[i], a, b, c, d);
}
static inline uint4 emu_load4(const uint4 *p) {
  hk_relax();
  hk_vec v = hk_load_line(p);
  return uint4{v.w[0], v.w[1], v.w[2], v.w[3]};
}
[[noreturn]] static inline void emu_unknown(const char *what) {
  __builtin_printf("device_shim.h does not know \"%s\"\n", what);
  abort();
}
#endif
