/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU kernels' primitives on POSIX threads: each thread of a block is one of ours.  Slow, but with real
 * concurrency, so that TSan judges the kernels' barriers, acquires and releases.  See src/kernels/cuda/primitives.h. */
#ifndef HK_TESTS_GPU_THREADS_H
#define HK_TESTS_GPU_THREADS_H
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define HK_KERNEL static
#define HK_PARAMS(type) const type
#define HK_DEVICE static inline __attribute__((unused))
#define HK_DEVICE_CALL static __attribute__((unused))
#define HK_SHARED(type, name) type *const name = (type *)(void *)gpu_me->block->shared
#define HK_UNROLL
#define HK_NO_UNROLL

/* A test may want more. */
#ifndef GPU_WARP
#define GPU_WARP 2
#endif
enum { HK_WARP = GPU_WARP, GPU_THREADS = 2 * GPU_WARP, GPU_SHARED = 49152 };

typedef struct gpu_block {
  unsigned index, blocks;
  pthread_barrier_t all, warp[GPU_THREADS / HK_WARP];
  _Atomic int ors[2], votes[GPU_THREADS / HK_WARP][2];
  _Alignas(64) char shared[GPU_SHARED];
} gpu_block;
typedef struct gpu_thread {
  gpu_block *block;
  unsigned index, ors, votes, wides;
  bool fenced; /* since the block's last barrier */
  struct {
    void *at; /* NULL: none */
    uint64_t word[2];
    int on;
  } held; /* a piece of a line that is stored later than the next one */
} gpu_thread;
static _Thread_local gpu_thread *gpu_me;

HK_DEVICE unsigned hk_thread(void) { return gpu_me->index; }
HK_DEVICE unsigned hk_threads(void) { return GPU_THREADS; }
HK_DEVICE unsigned hk_block(void) { return gpu_me->block->index; }
HK_DEVICE unsigned hk_blocks(void) { return gpu_me->block->blocks; }
HK_DEVICE void gpu_flush_line(void);
HK_DEVICE void hk_barrier(void) {
  gpu_flush_line();
  gpu_me->fenced = false;
  pthread_barrier_wait(&gpu_me->block->all);
}
HK_DEVICE int hk_barrier_or(int x) {
  gpu_flush_line();
  gpu_me->fenced = false;
  _Atomic int *mine = &gpu_me->block->ors[gpu_me->ors++ & 1], *other = &gpu_me->block->ors[gpu_me->ors & 1];
  if (x) atomic_store(mine, 1);
  pthread_barrier_wait(&gpu_me->block->all);
  int any = atomic_load(mine);
  atomic_store(other, 0); /* for the next call: all have left the one before, and none has begun the next one */
  pthread_barrier_wait(&gpu_me->block->all);
  return any;
}
HK_DEVICE void hk_warp_barrier(void) { pthread_barrier_wait(&gpu_me->block->warp[gpu_me->index / HK_WARP]); }
HK_DEVICE int hk_warp_any(int x) {
  _Atomic int *votes = gpu_me->block->votes[gpu_me->index / HK_WARP];
  _Atomic int *mine = &votes[gpu_me->votes++ & 1], *other = &votes[gpu_me->votes & 1];
  if (x) atomic_store(mine, 1);
  hk_warp_barrier();
  int any = atomic_load(mine);
  atomic_store(other, 0); /* as in hk_barrier_or */
  hk_warp_barrier();
  return any;
}
static _Atomic(unsigned long) gpu_polls; /* of all threads so far */
HK_DEVICE void hk_relax(void) {
  atomic_fetch_add_explicit(&gpu_polls, 1, memory_order_relaxed); /* relaxed: a number that nothing depends on */
  sched_yield();
}

HK_DEVICE hk_vec hk_load(const void *p) {
  hk_vec v;
  memcpy(&v, p, sizeof v);
  return v;
}
HK_DEVICE void hk_store(void *p, hk_vec v) { memcpy(p, &v, sizeof v); }
HK_DEVICE void hk_load_if(hk_vec *v, const void *p, int on) {
  if (on) memcpy(v, p, sizeof *v);
}
HK_DEVICE hk_vec hk_load_half(const void *p) {
  hk_vec v = {{0, 0, 0, 0}};
  memcpy(&v, p, 8);
  return v;
}
HK_DEVICE void hk_store_half(void *p, hk_vec v) { memcpy(p, &v, 8); }
HK_DEVICE hk_vec hk_load_line(const void *p) {
  hk_vec v;
  for (int i = 0; i < 2; i++) {
    uint64_t half = __atomic_load_n((const uint64_t *)p + i, __ATOMIC_RELAXED); /* data and flag in one piece */
    memcpy(&v.w[2 * i], &half, sizeof half);
  }
  return v;
}
HK_DEVICE void hk_load_line_if(hk_vec *v, const void *p, int on) {
  if (on) *v = hk_load_line(p);
}
/* The halves arrive in either order, and now and then long after each other. */
HK_DEVICE void hk_store_line(void *p, hk_vec v) {
  static _Thread_local unsigned turn;
  unsigned first = turn++ * 2654435761u >> 31;
  for (unsigned i = 0; i < 2; i++) {
    uint64_t half;
    memcpy(&half, &v.w[2 * (i ^ first)], sizeof half);
    __atomic_store_n((uint64_t *)p + (i ^ first), half, __ATOMIC_RELAXED);
    if (turn % 101 == 0) sched_yield();
  }
}
/* Lines of eight threads: the last word, the flag, is written after all else, and read before it. */
HK_DEVICE uint64_t gpu_check_piece(const void *p) {
  if ((uintptr_t)p % 128 != gpu_me->index % 8 * 16) abort(); /* not the line's piece that is this thread's */
  return gpu_me->index % 8 == 7;
}
HK_DEVICE hk_vec hk_load_wide(const void *p, int on) {
  const uint64_t *half = p;
  uint64_t word[2] = {0, 0};
  gpu_flush_line();
  bool last = on && gpu_check_piece(p);
  if (last) word[1] = __atomic_load_n(&half[1], __ATOMIC_ACQUIRE);
  hk_warp_barrier();
  if (on) word[0] = __atomic_load_n(&half[0], __ATOMIC_RELAXED);
  if (on && !last) word[1] = __atomic_load_n(&half[1], __ATOMIC_RELAXED);
  hk_vec v;
  memcpy(&v, word, sizeof v);
  return v;
}
HK_DEVICE void gpu_store_piece(void *p, const uint64_t *word, int on) {
  uint64_t *half = p;
  bool last = on && gpu_check_piece(p);
  if (on) __atomic_store_n(&half[0], word[0], __ATOMIC_RELAXED);
  if (on && !last) __atomic_store_n(&half[1], word[1], __ATOMIC_RELAXED);
  hk_warp_barrier();
  if (last) __atomic_store_n(&half[1], word[1], __ATOMIC_RELEASE);
}
HK_DEVICE void gpu_flush_line(void) {
  void *at = gpu_me->held.at;
  gpu_me->held.at = NULL;
  if (at) gpu_store_piece(at, gpu_me->held.word, gpu_me->held.on);
}
/* Lines have no order among each other: every third one waits until another one, or all, has been stored. */
HK_DEVICE void hk_store_wide(void *p, hk_vec v, int on) {
  uint64_t word[2];
  memcpy(word, &v, sizeof v);
  if (gpu_me->wides++ % 3 == 0 && !gpu_me->held.at) {
    gpu_me->held.at = p;
    gpu_me->held.on = on;
    memcpy(gpu_me->held.word, word, sizeof word);
    return;
  }
  gpu_store_piece(p, word, on);
  gpu_flush_line();
}
/* Multicast is the emulated driver's: nothing here asks for it. */
HK_DEVICE hk_vec hk_multi_reduce(const void *p, const int what) {
  (void)p, (void)what;
  abort();
}
HK_DEVICE void hk_multi_store(void *p, hk_vec v) {
  (void)p, (void)v;
  abort();
}
HK_DEVICE void hk_multi_store_signal(uint64_t *p, uint64_t v) {
  (void)p, (void)v;
  abort();
}
HK_DEVICE void hk_multi_fence(void) { abort(); }
HK_DEVICE uint64_t hk_load_acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
/* TSan knows no fences, so a fence makes releases of the signals that follow it, until the block's next barrier. */
HK_DEVICE void hk_fence(void) { gpu_me->fenced = true; }
HK_DEVICE void hk_store_signal(uint64_t *p, uint64_t v) {
  if (gpu_me->fenced)
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
  else
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
HK_DEVICE uint64_t hk_load_signal(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
HK_DEVICE uint32_t hk_load_relaxed(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
HK_DEVICE void hk_store_relaxed(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
HK_DEVICE uint32_t hk_swap_if(uint32_t *p, uint32_t from, uint32_t to) {
  __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return from;
}

#include "../cudaemu/arithmetic.h"
#endif
