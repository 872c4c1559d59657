/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_PARK_H
#define HK_GPU_PARK_H
#include "../core/comm.h"

struct hk_gpu_suspended;

hk_status hk_gpu_suspend(ncclComm_t c);
hk_status hk_gpu_resume(ncclComm_t c);
void hk_gpu_memory_held(ncclComm_t c, uint64_t *may, uint64_t *stays);
/* Ends the suspension of a communicator that is freed, or has its memory again.  NULL: it is not suspended. */
void hk_gpu_suspended_free(struct hk_gpu_suspended **suspended);
#endif
