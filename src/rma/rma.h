/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-sided operations on host memory: puts into other ranks' windows, signals, and waits for signals.
 *
 * Windows are numbered from 1 in the order of their registration, which is the same on all ranks: a put names its
 * window by this number. Window 0 is the rank's signal table: a counter for each rank, context and signal. Only one
 * rank counts up a counter, and only the table's owner waits for it. See docs/rma.md.
 */
#pragma once
#include "../core/comm.h"

struct hk_call;

/* True if the communicator has one-sided operations at all. */
static inline bool hk_rma_supported(const struct ncclComm *c) {
  return c->one_sided && c->options.rma_contexts > 0 && c->options.rma_signals > 0;
}

/* At the end of init: lets other ranks of this host ask for windows, although there are none yet. */
hk_status hk_rma_meet(ncclComm_t c);
/* From any thread, with the first window: other ranks can write to this rank from here on. Does nothing after that. */
hk_status hk_rma_begin(ncclComm_t c);
/* From any thread: a window has been removed from the communicator's registrations. */
void hk_rma_dropped(ncclComm_t c);
/* Before the transports are detached: ends the connections for messages. The table stays, because a rank of this
 * process or a network card may be about to write to it. */
void hk_rma_end(ncclComm_t c);
void hk_rma_free(hk_rma *r);

/* Carries out a put or signal: `in` may be used again after it returns. */
hk_status hk_rma_put(const struct hk_call *call);
/* True if all signals for which the call waits have arrived; they are then consumed. */
bool hk_rma_arrived(const struct hk_call *call);

/* ---- packets of a backend (gpu/rma_proxy.c): calls of hk_rma_put with window 0, whose signals it uses itself ---- */

enum { HK_RMA_ROW = 16 }; /* the least number of signals that each rank has for packets, whatever the options are */
/* As hk_rma_begin; window 0 also gets an inbox of inbox_bytes for puts of other ranks, at *offset on all ranks. */
hk_status hk_rma_begin_packets(ncclComm_t c, size_t inbox_bytes, char **inbox, size_t *offset);
/* The number of signals so far from that rank with that number. */
uint64_t hk_rma_count(ncclComm_t c, int rank, uint32_t signal);
