/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-sided operations between GPUs that do not reach each other's memory: those of several hosts, or without peer
 * access.  The thread of each rank's proxy (proxy.h) moves the data through host memory.
 *
 * Every rank has an inbox in host memory, with some slots for each other rank.  The stream of a put sets a word and
 * waits for another word.  The thread, which polls, copies the data from the GPU in pieces, and puts each as a packet
 * into the peer's inbox with the one-sided operations of host memory (rma/rma.h): by stores, by the network card, or by
 * messages.  Their signals count the packets between a pair of ranks, and the slots that were given back.  The thread
 * of the peer copies the packet to its GPU's window and then writes the word for which its own streams wait (rma.c).
 * The put's stream goes on when the last packet has left this rank's memory.
 *
 * The words are the input from the GPU, so a captured put is replayed without a call of the host.
 */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../device/device.h"

/* Data for a rank's window; after the data, a word of that rank's signals is written. */
typedef struct hk_gpu_rma_proxy_op {
  int peer;
  uint32_t word; /* as for hk_gpu_rma_come */
  const void *from;
  size_t bytes; /* 0: the word alone */
  uint64_t window, offset;
} hk_gpu_rma_proxy_op;

/* By all ranks: makes the inbox. */
hk_status hk_gpu_rma_proxy_begin(ncclComm_t c);
/* After all ranks have made theirs: the proxy's thread begins to move packets. */
hk_status hk_gpu_rma_proxy_start(ncclComm_t c);
hk_status hk_gpu_rma_proxy_enqueue(ncclComm_t c, const hk_gpu_rma_proxy_op *op, hk_queue q, const hk_queue_state *s);
/* Releases the streams of a failed communicator that wait for packets to leave.  True if it may have released a
 * captured one. */
bool hk_gpu_rma_proxy_free(ncclComm_t c);
void hk_gpu_rma_proxy_end(ncclComm_t c); /* after the proxy's end */
