/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Places: the sender of a multicast writes long data directly to its readers' destinations, in memory of ncclMemAlloc
 * that both processes map. Data is read once and written once for each reader. If the readers copied it from the
 * sender, each would read it once more, from memory, because messages of this length do not fit into caches.
 *
 * A reader offers places when it begins an operation, before it sends anything, for all slots of a link at once
 * (hk_places, next to its head). The sender decides for each slot. If all readers have offered a place for it, it
 * writes there. If one has not, the slot carries the data or a reference, so no rank waits for an offer. The verifier
 * has proved that nothing else needs a place when the slot is sent (hk_instr_lands).
 *
 * An operation that fails. The sender sets a mark in the slot's header before it looks at the offers for the last time.
 * A reader whose operation has failed takes its offers back and waits for the mark to go, so nothing is written to the
 * user's memory after that. Places are for processes: threads of one process read one another's memory.
 */
#pragma once
#include "link.h"

/* Receiver of a multicast, at the beginning of an operation: the data of the next `count` slots belongs at `to`, each
 * `each` bytes after the one before, `bytes` in all. Does nothing if other processes cannot map that memory. */
void hk_places_post(hk_link *l, void *to, size_t bytes, uint32_t count, size_t each, uint32_t signature);
/* The message that the sender will send; `each` and `signature` as in the readers' offers. */
typedef struct hk_placing {
  size_t bytes, each;
  uint32_t signature;
} hk_placing;
/* Sender: fills to[0 .. l->nheads - 1] with the readers' places for the next slot and sets *n to their number; the
 * caller writes there and then publishes the slot with HK_SLOT_PLACED. *n == 0: some reader has offered none. An error,
 * and *bad_peer: that reader's memory cannot be mapped. */
hk_status hk_places_claim(hk_link *l, const hk_placing *what, void **to, unsigned *n, int *bad_peer);
/* Receiver: true if it has offered a place for the slot that has arrived. */
bool hk_places_offered(const hk_link *l);
/* Receiver, after its operation has failed: no sender writes to places after this returns, unless a sender stops for
 * two seconds while it writes a slot. */
void hk_places_withdraw(hk_link *l);
