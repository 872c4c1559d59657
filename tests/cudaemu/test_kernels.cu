/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that try the emulated driver out: tests/unit/test_cudaemu*.c launch them. */
#include "../../src/kernels/cuda/primitives.h"
#include "test_kernels.h"

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

/* Blocks hand a number on in a ring, spinning; several kernels may be one ring. */
HK_KERNEL void pass_on(HK_PARAMS(pass_on_params) p) {
  unsigned me = p.first + hk_block(), next = (me + 1) % p.total;
  if (hk_thread() != 0) return;
  for (uint64_t round = 1; round <= p.rounds; round++) {
    while (hk_load_acquire(&p.flag[me]) < round) {
      if (hk_load_relaxed(p.stop)) return;
      hk_relax();
    }
    p.count[me]++;
    hk_store_release(&p.flag[next], next == 0 ? round + 1 : round);
  }
}

/* Data, then a flag; with `fence` the flag is a release, else it is not ordered. */
HK_KERNEL void publish(HK_PARAMS(publish_params) p) {
  hk_vec v = {{p.value, p.value, p.value, p.value}};
  for (uint32_t i = hk_thread(); i < p.vectors; i += hk_threads()) hk_store(p.data + i, v);
  if (p.fence) hk_barrier();
  if (hk_thread() != 0) {
    if (!p.fence) /* what they stored may wait in their buffers as long as they run */
      for (int i = 0; i < 64; i++) hk_relax();
    return;
  }
  hk_store_relaxed(p.flag, p.value);
  for (int i = 0; i < 32; i++) hk_relax();
}
HK_KERNEL void observe(HK_PARAMS(publish_params) p) {
  if (hk_thread() != 0) return;
  while (hk_load_relaxed(p.flag) != p.value) hk_relax();
  uint32_t stale = 0;
  for (uint32_t i = 0; i < p.vectors; i++) stale += hk_load(p.data + i).w[0] != p.value;
  *p.stale = stale;
}

HK_KERNEL void halves(HK_PARAMS(halves_params) p) {
  for (uint32_t i = hk_thread(); i < 65536; i += hk_threads()) p.back[i] = (uint16_t)hk_f32_to_f16(hk_f16_to_f32(i));
}

/* Half of the threads wait for the rest, who never come. */
HK_KERNEL void stuck(HK_PARAMS(barriers_params) p) {
  uint64_t all[HK_WARP];
  (void)p;
  if (hk_thread() % 2)
    hk_barrier();
  else
    cudaemu_driver->warp(1, all);
}
