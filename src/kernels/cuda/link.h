/* SPDX-License-Identifier: Apache-2.0 */
/* What both kernels of collectives (exec.cu, small.h) know of a link: what marks a slot as this call's, and the flags
 * of its lines when numbers come round. */
#ifndef HK_KERNELS_CUDA_LINK_H
#define HK_KERNELS_CUDA_LINK_H
#include "move.h"

/* The lower half of a slot's word, beside its number. */
HK_DEVICE uint32_t tag_of(uint32_t signature, uint64_t bytes) { return signature ^ (uint32_t)bytes * 0x9e3779b1u; }

/* Before the numbers in flags wrap round, every line gets a new one, so that an old flag never matches. LL's flags have
 * fewer bits; each is written anew four times in a round. litmus: refresh */
enum { LL_NUMBER_BITS = 32 - HK_GPU_LL_TAG_BITS };
HK_DEVICE bool due_for_refresh(uint64_t number, uint32_t nslots) {
  return (number & ((1u << (LL_NUMBER_BITS - 2)) - 1)) < nslots;
}
HK_DEVICE void refresh_lines(const hk_gpu_link *k, uint64_t done) {
  const uint64_t slot = done & (k->nslots - 1), number = done + 1;
  if (k->lines && due_for_refresh(number, k->nslots)) {
    uint32_t old = line_flag(done, 0); /* the number before this slot's: not waited for any more */
    hk_vec v = {{old, old, old, old}};
    for (uint32_t i = 0; i < 2 * HK_GPU_LL_MAX; i += 16) hk_store_line(k->lines + slot * 2 * HK_GPU_LL_MAX + i, v);
  }
  if (k->wide && (number & 0x3fffffffu) < k->nslots) { /* then lines of LL are due, too */
    uint32_t old = (uint32_t)done;
    hk_vec v = {{old, old, old, old}};
    for (uint32_t i = 112; i < k->wide_bytes; i += 128) hk_store_line(k->wide + slot * k->wide_bytes + i, v);
  }
}
#endif
