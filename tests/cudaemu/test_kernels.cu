/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that try the emulated driver out: tests/unit/test_cudaemu*.c launch them. */
#include "../../src/kernels/cuda/primitives.h"
#include "test_kernels.h"

#ifndef HK_CUDAEMU /* shim.h has these */
HK_DEVICE uint32_t hk_warp_ballot(int x) { return __ballot_sync(0xffffffffu, x); }
HK_DEVICE uint32_t hk_warp_shuffle(uint32_t x, unsigned lane) { return __shfl_sync(0xffffffffu, x, (int)lane); }
#endif

typedef struct barriers_row {
  uint32_t x[1024];
} barriers_row;
/* Each thread adds up what the others of its block wrote: a barrier that fails to hold changes the sum. */
HK_KERNEL void barriers(HK_PARAMS(barriers_params) p) {
  HK_SHARED(barriers_row, row);
  uint32_t sum = 0;
  for (uint32_t round = 0; round < p.rounds; round++) {
    row->x[hk_thread()] = hk_thread() + round;
    hk_barrier();
    for (unsigned i = 0; i < hk_threads(); i++) sum += row->x[i];
    hk_barrier();
  }
  if (hk_thread() < hk_threads() / 2) return; /* the others no longer wait for these */
  sum += (uint32_t)hk_barrier_or(hk_thread() + 1 == hk_threads());
  p.out[hk_block() * hk_threads() + hk_thread()] = sum;
}

HK_KERNEL void warps(HK_PARAMS(warps_params) p) {
  unsigned lane = hk_thread() % HK_WARP;
  uint32_t x = hk_warp_shuffle(hk_thread(), lane ^ 1);
  uint32_t odd = hk_warp_ballot(lane & 1);
  p.out[3 * hk_thread()] = x;
  p.out[3 * hk_thread() + 1] = odd;
  p.out[3 * hk_thread() + 2] = (uint32_t)hk_warp_any(lane == 7) + 2 * (uint32_t)hk_warp_any(0);
}

/* Data, then a flag; with `fence` the data is there before it, else it is not ordered. */
HK_KERNEL void publish(HK_PARAMS(publish_params) p) {
  hk_vec v = {{p.value, p.value, p.value, p.value}};
  for (uint32_t i = hk_thread(); i < p.vectors; i += hk_threads()) hk_store(p.data + i, v);
  if (p.fence) hk_barrier();
  if (hk_thread() == 0) {
    if (p.fence) hk_fence();
    hk_store_relaxed(p.flag, p.value);
  }
  /* What is stored may wait as long as its thread runs: until the observer has looked, and writes next to the flag. */
  while (hk_load_relaxed(p.flag + 1) != p.value) hk_relax();
}
HK_KERNEL void observe(HK_PARAMS(publish_params) p) {
  if (hk_thread() != 0) return;
  while (hk_load_relaxed(p.flag) != p.value) hk_relax();
  if (p.fence) hk_fence();
  uint32_t stale = 0;
  for (uint32_t i = 0; i < p.vectors; i++) stale += hk_load(p.data + i).w[0] != p.value;
  *p.stale = stale;
  hk_store_relaxed(p.flag + 1, p.value);
}

HK_KERNEL void halves(HK_PARAMS(halves_params) p) {
  for (uint32_t i = hk_thread(); i < 65536; i += hk_threads()) p.back[i] = (uint16_t)hk_f32_to_f16(hk_f16_to_f32(i));
}

/* ---- as NVIDIA's device code does it: a peer's address, a barrier, an allreduce ---- */

HK_DEVICE char *lsa_at(const char *base, const lsa_params &p, int rank) {
  return (char *)((uintptr_t)base + ((uintptr_t)(uint32_t)rank * p.stride_4g << 32));
}
HK_DEVICE void multi_add(void *at, uint32_t x) {
#ifndef HK_CUDAEMU
  asm volatile("multimem.red.release.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
#else
  char *views[CUDAEMU_VIEWS];
  unsigned n = cudaemu_driver->views(at, sizeof x, views);
  for (unsigned d = 0; d < n; d++) __atomic_fetch_add((uint32_t *)(void *)views[d], x, __ATOMIC_RELEASE);
#endif
}

/* Epochs over multicast memory, epochs over single stores, the switch's inbox (barriers of each), an inbox a rank. */
HK_DEVICE void lsa_barrier(const lsa_params &p) {
  const size_t at = (size_t)p.place * 128, b = hk_block(), n = p.barriers, t = (size_t)p.ranks;
  uint32_t *mine = (uint32_t *)(void *)(lsa_at(p.buffer, p, p.rank) + at);
  uint32_t *epoch = mine + (p.all_buffer ? 0 : n) + b;
  hk_barrier();
  hk_fence();
  if (p.all_buffer) {
    if (hk_thread() == 0) {
      multi_add((uint32_t *)(void *)(p.all_buffer + at) + 2 * n + b, 1);
      while (hk_load_relaxed(mine + 2 * n + b) - (*epoch + (uint32_t)t) > UINT32_MAX / 2) hk_relax();
      *epoch += (uint32_t)t;
    }
  } else {
    for (int r = (int)hk_thread(); r < p.ranks; r += (int)hk_threads()) {
      uint32_t *theirs = (uint32_t *)(void *)(lsa_at(p.buffer, p, r) + at);
      hk_store_relaxed(theirs + 3 * n + b * t + (size_t)p.rank, *epoch + 1);
    }
    for (int r = (int)hk_thread(); r < p.ranks; r += (int)hk_threads())
      while (hk_load_relaxed(mine + 3 * n + b * t + (size_t)r) - (*epoch + 1) > UINT32_MAX / 2) hk_relax();
    hk_barrier();
    if (hk_thread() == 0) *epoch += 1;
  }
  hk_fence();
  hk_barrier();
}

HK_KERNEL void lsa_allreduce(HK_PARAMS(lsa_params) p) {
  const uint32_t first = hk_block() * hk_threads() + hk_thread(), step = hk_blocks() * hk_threads();
  for (uint32_t round = 1; round <= p.rounds; round++) {
    for (uint32_t i = first; i < p.count; i += step) {
      const uint32_t x = (uint32_t)(p.rank + 1) * round + i;
      hk_store(lsa_at(p.in, p, p.rank) + 16 * (size_t)i, hk_vec{{x, x, x, x}});
    }
    lsa_barrier(p);
    for (uint32_t i = first; i < p.count; i += step) {
      const size_t at = 16 * (size_t)i;
      hk_vec sum = {{0, 0, 0, 0}};
      if ((int)((i / step) % (uint32_t)p.ranks) != p.rank) continue;
      if (p.all_in) {
        hk_multi_store(p.all_out + at, hk_multi_reduce(p.all_in + at, HK_MULTI_ADD_32));
        continue;
      }
      for (int r = 0; r < p.ranks; r++) {
        hk_vec v = hk_load(lsa_at(p.in, p, r) + at);
        for (int k = 0; k < 4; k++) sum.w[k] += v.w[k];
      }
      for (int r = 0; r < p.ranks; r++) hk_store(lsa_at(p.out, p, r) + at, sum);
    }
    lsa_barrier(p);
    for (uint32_t i = first; i < p.count; i += step) {
      hk_vec v = hk_load(lsa_at(p.out, p, p.rank) + 16 * (size_t)i);
      const uint32_t n = (uint32_t)p.ranks, want = n * (n + 1) / 2 * round + n * i;
      for (int k = 0; k < 4; k++)
        if (v.w[k] != want) *p.bad = round;
    }
    lsa_barrier(p);
  }
}

/* Half of the threads wait for the rest, who never come. */
HK_KERNEL void stuck(HK_PARAMS(barriers_params) p) {
  (void)p;
  if (hk_thread() % 2)
    hk_barrier();
  else
    hk_warp_barrier();
}
