/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <nccl.h>
#include "../kernels/cuda/link_end.h"
#include "../transport/cuda/share.h"

struct hk_gpu_links; /* links.h */

/* One end of a link. */
typedef struct hk_gpu_endpoint {
  hk_gpu_link link;
  /* copy of `link` in device memory, then the program of transfers over it (transfers.c); NULL: none yet */
  void *device;
  uint32_t program_bytes; /* size of that program */
  hk_shared shared;       /* between processes. Receiver: its own memory; sender: its mapping of that memory */
  struct hk_gpu_endpoint *next;
  uint16_t channel;
} hk_gpu_endpoint;

/* Links are made in two steps, so that ranks of one thread need not wait for each other: all receivers offer their
 * memory to their senders before any of them waits for an offer. */
hk_status hk_gpu_endpoint_offer(ncclComm_t c, int peer, bool sends, unsigned channel);
hk_status hk_gpu_endpoint_get(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_endpoint **out);
/* Gives the end memory for messages of `bytes` if it has memory for smaller ones only. Called before the launch. */
hk_status hk_gpu_endpoint_grow(ncclComm_t c, hk_gpu_endpoint *end, uint64_t bytes);

/* transfer_ends.c: puts the end and the program of a transfer over it into device memory, unless that is done: the end
 * at e->device, the program HK_GPU_PROGRAM_AT bytes after it. */
enum { HK_GPU_PROGRAM_AT = (sizeof(hk_gpu_link) + 15) & ~15 };
hk_status hk_gpu_endpoint_program(ncclComm_t c, int peer, bool sends, hk_gpu_endpoint *e);

/* Bytes at the beginning of a link's memory: of counters and words; of all that must begin as zeros. */
size_t hk_gpu_link_counters(void);
size_t hk_gpu_link_zeros(const struct hk_gpu_links *l, int peer);
