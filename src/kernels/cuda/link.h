/* SPDX-License-Identifier: Apache-2.0 */
/* Common to both kernels of collectives (exec.cu, small.h): the tag of a call's slots, and the renewal of line flags
 * before numbers wrap round. */
#pragma once
#include "move.h"

/* The tag in the lower half of a slot's word; the upper half is the slot's number. */
HK_DEVICE uint32_t tag_of(uint32_t signature, uint64_t bytes) { return signature ^ (uint32_t)bytes * 0x9e3779b1u; }

/* The most bytes of a slot that go in LL lines, and their place. */
HK_DEVICE uint32_t lines_carry(const hk_gpu_link *k) { return k->proxied ? HK_GPU_LL_NET_MAX : HK_GPU_LL_MAX; }
HK_DEVICE char *lines_of(const hk_gpu_link *k, uint64_t slot) { return k->lines + slot * 2 * lines_carry(k); }

/* Before the numbers in flags wrap round, every line gets a new flag, so that an old flag never matches. LL's numbers
 * have fewer bits: each line is renewed four times before they repeat. litmus: refresh */
HK_DEVICE void refresh_lines(const hk_gpu_link *k, uint64_t done) {
  const uint64_t slot = done & (k->nslots - 1), number = done + 1;
  if (k->lines && hk_gpu_lines_due(number, k->nslots)) {
    uint32_t old = hk_gpu_line_flag(done, 0); /* the previous number: no rank waits for it */
    hk_vec v = {{old, old, old, old}};
    for (uint32_t i = 0; i < 2 * lines_carry(k); i += 16)
      store_line(lines_of(k, slot) + i, v, k->multi & HK_GPU_MULTI_DATA);
  }
  if (k->wide && (number & 0x3fffffffu) < k->nslots) { /* LL's lines are then also renewed above */
    uint32_t old = (uint32_t)done;
    hk_vec v = {{old, old, old, old}};
    for (uint32_t i = 112; i < k->wide_bytes; i += 128) hk_store_line(k->wide + slot * k->wide_bytes + i, v);
  }
}
