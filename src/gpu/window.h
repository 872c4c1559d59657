/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Symmetric windows (rma/windows.h): memory of every rank of the LSA team, mapped into this rank's space of
 * addresses at equal offsets.
 *
 *     base           base + stride                    base + 2 * stride
 *     | rank 0:  [window]     [window]  | rank 1:  [window]     [window]  | ...
 *                ^ at                              ^ at: the same in every part
 *
 * Each rank maps whole allocations for itself, so what a rank deregisters stays mapped on the others until they do the
 * same.  New windows lie where all ranks have room.
 */
#ifndef HK_GPU_WINDOW_H
#define HK_GPU_WINDOW_H
#include "../rma/windows.h"
#include "gpu.h"

typedef struct hk_gpu_window {
  hk_symmetric seen;
  uintptr_t user; /* this rank's memory, as it was registered */
  size_t bytes;
  size_t at;                  /* offset in each part */
  size_t begin, end;          /* of what all ranks' allocations take there */
  hk_memory *parts;           /* [ranks of the team] */
  hk_memory own;              /* the library's memory; empty: the user's */
  unsigned slot;              /* in the pages of hk_gpu_space */
  struct hk_gpu_window *next; /* by `begin` */
} hk_gpu_window;

/* Window `w` in rank r's memory as kernels and copies of this rank reach it; NULL: r is not in the LSA team. */
static inline void *hk_gpu_window_at(ncclComm_t c, const hk_gpu_window *w, int rank) {
  int lsa_rank = hk_lsa_rank(c, rank);
  return lsa_rank < 0 ? NULL : hk_symmetric_at(&w->seen, lsa_rank);
}

#endif
