/* SPDX-License-Identifier: Apache-2.0 */
/* Users' memory. */
#ifndef HK_GPU_MEMORY_H
#define HK_GPU_MEMORY_H
#include "../core/comm.h"

enum { HK_GPU_RANGES = 4 };

/* Memory that passed hk_gpu_check_pointer. */
typedef struct hk_gpu_checked {
  struct {
    uintptr_t begin, end;
  } good[HK_GPU_RANGES];
  unsigned next;
} hk_gpu_checked;

/* Zeroed memory that other processes can open. */
hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out);
/* False if `p` is not from hk_gpu_mem_alloc. */
bool hk_gpu_mem_free(void *p, hk_status *rc);
/* HK_ERR_ARGUMENT if c's device cannot use `p`. */
hk_status hk_gpu_check_pointer(ncclComm_t c, const char *what, const void *p, size_t bytes);
#endif
