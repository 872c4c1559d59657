/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_SHARE_H
#define HK_GPU_SHARE_H
#include <stdint.h>

/* Facts about the ranks' GPUs from which a rank computes its share; equal on all ranks. */
typedef struct hk_gpu_share_facts {
  uint64_t resident; /* blocks that the smallest of the GPUs runs at once; registers and shared memory limit them */
  uint64_t ranks;    /* the largest number of the communicator's ranks on one GPU */
  uint64_t limit;    /* limit by the user's maxCTAs or by the network; 0: none */
  uint64_t sm;       /* compute capability of the oldest GPU */
} hk_gpu_share_facts;
/* The most blocks of one rank's launch. */
unsigned hk_gpu_share(const hk_gpu_share_facts *room);
/* How many communicators like this one may run their kernels at the same time, in any order.  At least four if the GPU
 * has a block for each of their ranks. */
unsigned hk_gpu_overlap(const hk_gpu_share_facts *room);
/* Warns, once a process, if the device has too few hardware queues for the streams of `ranks` ranks of this process. */
void hk_gpu_check_queues(int ranks, int device);
#endif
