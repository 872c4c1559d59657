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
#ifndef HK_GPU_WINDOW_H
#define HK_GPU_WINDOW_H
#include "../device/device.h"
#include "../rma/windows.h"

struct hk_gpu_fact;

typedef struct hk_gpu_windows {
  bool usable;                /* this rank's memory can be a window */
  bool multimem;              /* windows can have multicast memory */
  size_t stride;              /* bytes between the ranks' parts of the address space; equal on all ranks */
  struct hk_gpu_space *space; /* address space of the windows; NULL: no window has been registered yet */
} hk_gpu_windows;

typedef struct hk_gpu_window {
  hk_symmetric seen;
  uintptr_t user; /* address of this rank's memory, as registered */
  size_t bytes;
  size_t at;                  /* offset in each part */
  size_t begin, end;          /* range of offsets that all ranks' allocations take in each part */
  hk_memory *parts;           /* [ranks of the team] each rank's mapping */
  hk_memory own;              /* memory that the library allocated; empty: the memory is the user's */
  unsigned slot;              /* index of its entry in the pages of hk_gpu_space */
  struct hk_gpu_window *next; /* list sorted by `begin` */
} hk_gpu_window;

/* Address of window `w` in the memory of `rank`, for kernels and copies of this rank; NULL: `rank` is not in the LSA
 * team. */
static inline void *hk_gpu_window_at(ncclComm_t c, const hk_gpu_window *w, int rank) {
  int lsa_rank = hk_lsa_rank(c, rank);
  return lsa_rank < 0 ? NULL : hk_symmetric_at(&w->seen, lsa_rank);
}

extern const struct hk_window_ops hk_gpu_window_ops;
/* After hk_gpu_reach and hk_gpu_multicast_join: sets c->lsa and `stride`. */
void hk_gpu_windows_begin(ncclComm_t c, const struct hk_gpu_fact *facts, size_t stride);
void hk_gpu_windows_end(ncclComm_t c);         /* no kernel runs any more */
size_t hk_gpu_windows_held(hk_gpu_windows *w); /* bytes of the library's own memory in windows */
#endif
