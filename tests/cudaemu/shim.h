/* SPDX-License-Identifier: Apache-2.0 */
/**
 * src/kernels/cuda/primitives.h for the emulated CUDA driver: with HK_CUDAEMU the kernels' sources are C++ for the
 * host's compiler (`-x c++ -DHK_CUDAEMU -Itests/cudaemu`), linked into a shared object that the driver loads.  CUDA
 * threads are fibers; a block's fibers run on one thread of the host, one after another, so only barriers and
 * hk_relax() switch.
 *
 * hk_vec must be declared before this is included.
 */
#ifndef HK_CUDAEMU_SHIM_H
#define HK_CUDAEMU_SHIM_H
#include <stdint.h>
#include <string.h>
#include "kernel.h"

extern "C" {
__attribute__((weak, visibility("default"))) const cudaemu_driver_calls *cudaemu_driver;
}

#define HK_KERNEL extern "C" __attribute__((visibility("default")))
#define HK_PARAMS(type) const type &
#define HK_DEVICE static inline __attribute__((unused))
#define HK_DEVICE_CALL static __attribute__((noinline, unused))
#define HK_SHARED(type, name) type *const name = (type *)cudaemu_driver->shared(sizeof(type), alignof(type))
#define HK_UNROLL
#define HK_NO_UNROLL

enum { HK_WARP = CUDAEMU_WARP };
HK_DEVICE unsigned hk_thread(void) { return cudaemu_driver->self()->thread; }
HK_DEVICE unsigned hk_threads(void) { return cudaemu_driver->self()->threads; }
HK_DEVICE unsigned hk_block(void) { return cudaemu_driver->self()->block; }
HK_DEVICE unsigned hk_blocks(void) { return cudaemu_driver->self()->blocks; }

HK_DEVICE void hk_barrier(void) { cudaemu_driver->barrier(0); }
HK_DEVICE int hk_barrier_or(int x) { return cudaemu_driver->barrier(x != 0); }
HK_DEVICE void hk_warp_barrier(void) {
  uint64_t all[HK_WARP];
  cudaemu_driver->warp(0, all);
}
HK_DEVICE uint32_t hk_warp_ballot(int x) {
  uint64_t all[HK_WARP];
  uint32_t bits = 0;
  cudaemu_driver->warp(x != 0, all);
  for (int i = 0; i < HK_WARP; i++) bits |= (uint32_t)all[i] << i;
  return bits;
}
HK_DEVICE int hk_warp_any(int x) { return hk_warp_ballot(x) != 0; }
HK_DEVICE uint32_t hk_warp_shuffle(uint32_t x, unsigned lane) {
  uint64_t all[HK_WARP];
  cudaemu_driver->warp(x, all);
  return (uint32_t)all[lane % HK_WARP];
}

HK_DEVICE void hk_relax(void) { cudaemu_driver->relax(); }
HK_DEVICE uint64_t hk_clock_ns(void) { return cudaemu_driver->clock_ns(); }

/* ---- data ---- */
HK_DEVICE hk_vec hk_load(const void *p) {
  hk_vec v;
  if (cudaemu_driver->weak)
    cudaemu_driver->load16(&v, p);
  else
    memcpy(&v, __builtin_assume_aligned(p, 16), 16);
  return v;
}
HK_DEVICE void hk_store(void *p, hk_vec v) {
  if (cudaemu_driver->weak)
    cudaemu_driver->store16(p, &v);
  else
    memcpy(__builtin_assume_aligned(p, 16), &v, 16);
}
HK_DEVICE void hk_load_if(hk_vec *v, const void *p, int on) {
  if (on) *v = hk_load(p);
}
HK_DEVICE hk_vec hk_load_half(const void *p) {
  hk_vec v = {{0, 0, 0, 0}};
  memcpy(&v, p, 8);
  return v;
}
HK_DEVICE void hk_store_half(void *p, hk_vec v) { memcpy(p, &v, 8); }
/* Each half in one piece, and no order between the halves: relaxed is what the device gives. */
HK_DEVICE hk_vec hk_load_line(const void *p) {
  uint64_t half[2] = {__atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED),
                      __atomic_load_n((const uint64_t *)p + 1, __ATOMIC_RELAXED)};
  hk_vec v;
  memcpy(&v, half, 16);
  return v;
}
HK_DEVICE void hk_load_line_if(hk_vec *v, const void *p, int on) {
  if (on) *v = hk_load_line(p);
}
HK_DEVICE void hk_store_line(void *p, hk_vec v) {
  uint64_t half[2];
  memcpy(half, &v, 16);
  __atomic_store_n((uint64_t *)p, half[0], __ATOMIC_RELAXED);
  __atomic_store_n((uint64_t *)p + 1, half[1], __ATOMIC_RELAXED);
}
HK_DEVICE hk_vec hk_load_wide(const void *p, int on) {
  hk_vec v = {{0xabababab, 0xabababab, 0xabababab, 0xabababab}}; /* where it is off */
  cudaemu_driver->line((void *)p, &v, on, 0);
  return v;
}
HK_DEVICE void hk_store_wide(void *p, hk_vec v, int on) { cudaemu_driver->line(p, &v, on, 1); }

/* ---- arithmetic: the object is compiled with -ffp-contract=off ---- */
#include "arithmetic.h"

/* ---- multicast: device after device, in an order that no program may count on ---- */
template <typename T, typename F>
static hk_vec cudaemu_reduce(char *const *views, unsigned n, unsigned first, F combine) {
  T sum[16 / sizeof(T)], one[16 / sizeof(T)];
  memcpy(sum, views[first % n], 16);
  for (unsigned d = 1; d < n; d++) {
    memcpy(one, views[(first + d) % n], 16);
    for (unsigned i = 0; i < 16 / sizeof(T); i++) sum[i] = combine(sum[i], one[i]);
  }
  hk_vec v;
  memcpy(&v, sum, 16);
  return v;
}
/* Halves add up in fp32 and are rounded once. */
template <typename W, typename N>
static hk_vec cudaemu_reduce_halves(char *const *views, unsigned n, unsigned first, W widen, N narrow) {
  float sum[8] = {0};
  uint16_t one[8];
  hk_vec v;
  for (unsigned d = 0; d < n; d++) {
    memcpy(one, views[(first + d) % n], 16);
    for (unsigned i = 0; i < 8; i++) sum[i] = d ? sum[i] + widen(one[i]) : widen(one[i]);
  }
  for (unsigned i = 0; i < 8; i++) one[i] = (uint16_t)narrow(sum[i]);
  memcpy(&v, one, 16);
  return v;
}
HK_DEVICE float cudaemu_bf16_to_f32(uint32_t x) { return hk_bits_f32(x << 16); }
HK_DEVICE uint32_t cudaemu_f32_to_bf16(float f) {
  uint32_t x = hk_f32_bits(f);
  if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff; /* the device's NaN */
  return (x + (x >> 16 & 1) + 0x7fff) >> 16;
}
#define CUDAEMU_REDUCE(T, expression) cudaemu_reduce<T>(views, n, first, [](T a, T b) -> T { return (T)(expression); })
HK_DEVICE hk_vec hk_multi_reduce(const void *p, const int what) {
  char *views[CUDAEMU_VIEWS];
  unsigned n = cudaemu_driver->views(p, 16, views), first = (unsigned)((uintptr_t)p >> 4);
  switch (what) {
    case HK_MULTI_ADD_F32: return CUDAEMU_REDUCE(float, a + b);
    case HK_MULTI_ADD_F64: return CUDAEMU_REDUCE(double, a + b);
    case HK_MULTI_ADD_F16: return cudaemu_reduce_halves(views, n, first, hk_f16_to_f32, hk_f32_to_f16);
    case HK_MULTI_ADD_BF16: return cudaemu_reduce_halves(views, n, first, cudaemu_bf16_to_f32, cudaemu_f32_to_bf16);
    case HK_MULTI_ADD_32: return CUDAEMU_REDUCE(uint32_t, a + b);
    case HK_MULTI_MIN_S32: return CUDAEMU_REDUCE(int32_t, a < b ? a : b);
    case HK_MULTI_MAX_S32: return CUDAEMU_REDUCE(int32_t, a > b ? a : b);
    case HK_MULTI_MIN_U32: return CUDAEMU_REDUCE(uint32_t, a < b ? a : b);
    case HK_MULTI_MAX_U32: return CUDAEMU_REDUCE(uint32_t, a > b ? a : b);
    case HK_MULTI_ADD_64: return CUDAEMU_REDUCE(uint64_t, a + b);
    case HK_MULTI_MIN_S64: return CUDAEMU_REDUCE(int64_t, a < b ? a : b);
    case HK_MULTI_MAX_S64: return CUDAEMU_REDUCE(int64_t, a > b ? a : b);
    case HK_MULTI_MIN_U64: return CUDAEMU_REDUCE(uint64_t, a < b ? a : b);
    default: return CUDAEMU_REDUCE(uint64_t, a > b ? a : b);
  }
}
HK_DEVICE void hk_multi_store(void *p, hk_vec v) {
  char *views[CUDAEMU_VIEWS];
  unsigned n = cudaemu_driver->views(p, 16, views);
  for (unsigned d = 0; d < n; d++) hk_store(views[d], v);
}
HK_DEVICE void hk_multi_store_signal(uint64_t *p, uint64_t v) {
  char *views[CUDAEMU_VIEWS];
  unsigned n = cudaemu_driver->views(p, 8, views);
  for (unsigned d = 0; d < n; d++) __atomic_store_n((uint64_t *)(void *)views[d], v, __ATOMIC_RELAXED);
}
HK_DEVICE void hk_multi_fence(void) {
  if (cudaemu_driver->weak) cudaemu_driver->fence();
}

/* ---- synchronisation ---- */
HK_DEVICE uint64_t hk_load_acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
HK_DEVICE void hk_fence(void) {
  if (cudaemu_driver->weak) cudaemu_driver->fence();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
HK_DEVICE void hk_store_signal(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
HK_DEVICE uint64_t hk_load_signal(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
/* Relaxed: what the thread stored before may well become visible later. */
HK_DEVICE uint32_t hk_load_relaxed(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
HK_DEVICE void hk_store_relaxed(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
HK_DEVICE uint32_t hk_swap_if(uint32_t *p, uint32_t from, uint32_t to) {
  __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return from;
}
#endif
