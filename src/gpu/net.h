/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Links between GPUs that only the network joins.
 *
 * Each end has the transport's FIFO (transport/link.h): the kernels read and write the slots' data right there, and its head
 * counter is their credit.  The data lies in the GPU's memory where a network card reaches that (GPUDirect RDMA; the
 * transport decides, for each end alone), else in pinned host memory, as all the rest does.  Where a card takes no more of it when
 * the connection is made, the kernels know that place already: the proxy copies each slot then.
 *
 * All that the proxy, a thread of the communicator, adds is the slots' numbers.  Where a kernel has stored a slot's word,
 * the proxy publishes the slot to the transport; where the transport has delivered one, the proxy stores its word.  So it
 * needs to know nothing of programs, calls or launches, and captured launches are replayed with nobody asking it.
 *
 * Beside a slot's word lies a note of the kernel's (kernels/cuda/work.h): the sender's tells the slot's bytes, the
 * receiver's that it stands still for this slot: then a peer that is gone is an error, and before it is not.
 */
#ifndef HK_GPU_NET_H
#define HK_GPU_NET_H
#include "gpu.h"

enum { HK_GPU_NET_CHANNELS = 16 }; /* of collectives between hosts at most: one thread serves them all */

/* ---- net.c: one end ---- */
typedef struct hk_gpu_far {
  _Alignas(HK_CACHE_LINE) hk_link link; /* the transport's end; the proxy is its lane */
  hk_memory fifo;                       /* the transport's host memory, pinned */
  hk_memory words;                      /* words and notes; behind them data, where the transport receives elsewhere */
  char *data;                           /* of the kernel's slots */
  bool on_gpu;                          /* these lie in the GPU's memory, where no CPU gets at them... */
  hk_gpu *gpu;                          /* ...but by copies, where the transport has taken link.gpu back */
  struct hk_gpu_far *next;
} hk_gpu_far;

/* Opens and pins; fills data, word and head of `out`. */
hk_status hk_gpu_far_new(ncclComm_t c, const hk_link_key *key, hk_gpu_link *out, hk_gpu_far **far);
void hk_gpu_far_free(ncclComm_t c, hk_gpu_far *far);
/* Before the transport's progress: what the kernel has sent, or whether it waits. */
hk_status hk_gpu_far_before(hk_gpu_far *far, bool *moved);
/* Behind it: what has come. */
hk_status hk_gpu_far_after(hk_gpu_far *far, bool *moved);
/* Has the transport taken all that the kernel has sent? */
bool hk_gpu_far_quiet(hk_gpu_far *far);

/* ---- proxy.c: the thread ---- */
/* One end of a link; the first one starts the proxy. */
hk_status hk_gpu_proxy_open(ncclComm_t c, const hk_link_key *key, hk_gpu_link *out);
/* "2, 5": the ranks that kernels wait for over the network; empty: none.  From any thread. */
void hk_gpu_proxy_waits_for(hk_gpu *g, char *text, size_t bytes);
/* Behind each launch. */
void hk_gpu_proxy_wake(hk_gpu *g, bool captured);
/* Sends what is still there to send, ends the thread and closes its links; no kernel runs any more, or g->lost. */
void hk_gpu_proxy_stop(ncclComm_t c);
#endif
