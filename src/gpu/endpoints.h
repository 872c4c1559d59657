/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_ENDPOINTS_H
#define HK_GPU_ENDPOINTS_H
#include "../kernels/cuda/work.h"
#include "../transport/cuda/share.h"
#include "gpu.h"

/* One end of a link. */
typedef struct hk_gpu_endpoint {
  hk_gpu_link link;
  void *device;           /* its copy and the program of transfers over it (transfers.c); NULL: none yet */
  uint32_t program_bytes; /* of that program */
  hk_shared shared;       /* between processes: the receiver's own memory, or as the sender has opened it */
  struct hk_gpu_endpoint *next;
  uint16_t channel;
} hk_gpu_endpoint;

/* Links are made in two steps, so that ranks of one thread need not wait for each other: all receivers offer their
 * memory to their senders before any of them waits for an offer. */
hk_status hk_gpu_endpoint_offer(ncclComm_t c, int peer, bool sends, unsigned channel);
hk_status hk_gpu_endpoint_get(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_endpoint **out);
/* Before a launch that moves messages of `bytes` over the end: if it has memory for smaller ones only, it gets more. */
hk_status hk_gpu_endpoint_grow(ncclComm_t c, hk_gpu_endpoint *end, uint64_t bytes);
#endif
