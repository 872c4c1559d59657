/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include "../kernels/cuda/work.h"
#include "../transport/cuda/share.h"
#include "gpu.h"
#include "links.h"

struct hk_gpu_proxy_work; /* proxy.h */

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

/* Gives the communicator's proxy other work (proxy.h). */
hk_status hk_gpu_proxy_give(ncclComm_t c, const struct hk_gpu_proxy_work *work);
/* After a failure: true if the proxy's thread is no longer inside a transport. */
bool hk_gpu_proxy_left(ncclComm_t c);
/* Sends the remaining slots, then ends the proxy (proxy.h). No kernel runs any more, or the communicator is lost. */
void hk_gpu_proxy_stop(ncclComm_t c);
void hk_gpu_endpoints_free(ncclComm_t c);
/* After hk_gpu_reach: allocates memory for links over the network that must not be allocated later. */
hk_status hk_gpu_proxied_begin(ncclComm_t c);

/* Bytes at the beginning of a link's memory: of counters and words; of all that must begin as zeros. */
size_t hk_gpu_link_counters(void);
size_t hk_gpu_link_zeros(const hk_gpu_links *l, int peer);
