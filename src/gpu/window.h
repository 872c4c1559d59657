/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Symmetric windows (rma/windows.h): memory of every rank of the LSA team, mapped into this rank's space of
 * addresses at equal offsets.
 *
 *     base           base + stride                    base + 2 * stride
 *     | rank 0:  [window]     [window]  | rank 1:  [window]     [window]  | ...
 *                ^ at                              ^ at: the same in every part
 *
 * Each rank maps whole allocations for itself. So memory that one rank deregisters stays mapped on the others until
 * they deregister it too.  New windows lie where all ranks have free addresses.
 */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

struct hk_facts; /* base/facts.h */

typedef struct hk_gpu_windows {
  bool usable;                /* this rank's memory can be a window */
  bool multimem;              /* windows can have multicast memory */
  size_t stride;              /* bytes between the ranks' parts of the address space; equal on all ranks */
  struct hk_gpu_space *space; /* address space of the windows; NULL: no window has been registered yet */
} hk_gpu_windows;

extern const struct hk_window_ops hk_gpu_window_ops;
/* After hk_gpu_reach and hk_gpu_multicast_join: sets c->lsa and `stride`. */
void hk_gpu_windows_begin(ncclComm_t c, const struct hk_facts *facts);
void hk_gpu_windows_end(ncclComm_t c);         /* no kernel runs any more */
size_t hk_gpu_windows_held(hk_gpu_windows *w); /* bytes of the library's own memory in windows */
