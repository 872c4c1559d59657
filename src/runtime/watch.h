/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks do, as others see it, and who is waited for. */
#ifndef HK_RUNTIME_WATCH_H
#define HK_RUNTIME_WATCH_H
#include "../boot/activity.h"
#include "../transport/board.h"
#include "call.h"
#include "comm.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && offsetof(hk_board_op, root) == 20 &&
                   offsetof(hk_board_op, coll) == 24 && offsetof(hk_board_op, op) == 26,
               "hk_watch_post packs an hk_board_op");
/* The operation that this rank begins, where peers that wait can see it. */
static inline void hk_watch_post(ncclComm_t c, const struct hk_call *call, uint32_t signature) {
  hk_board_put(c->order.board, c->order.sequence, call->count, signature | (uint64_t)(uint32_t)call->root << 32,
               call->coll | (uint64_t)call->dtype << 8 | (uint64_t)call->redop << 16);
}
/* The next operation, which this rank has put on a stream. `traceable`: it is known which one of all ranks' operations
 * it is; after the capture of a graph, which may be replayed, it is not. */
void hk_watch_enqueued(ncclComm_t c, const struct hk_call *call, bool traceable);
/* It is over. */
static inline void hk_watch_over(ncclComm_t c) {
  /* relaxed: it is read for reports, and alone */
  atomic_store_explicit(&c->order.board->over, c->order.sequence, memory_order_relaxed);
}
/* A send or receive that this rank waits in; NULL: none. */
void hk_watch_transfer(ncclComm_t c, const struct hk_call *call);

/* This rank's newest operation in words, and those ranks that have begun more or fewer, as "; rank 3 is in ...". From
 * any thread; asks for about a second at most. */
void hk_watch_apart(ncclComm_t c, char *newest, size_t newest_bytes, char *others, size_t others_bytes);
/* What a rank does.  Blocks for at most about patience_ns. */
hk_presence hk_watch_ask(ncclComm_t c, int rank, uint64_t patience_ns, hk_activity *out);
/* The same, where it is known with that operation as its newest: from its board, if this host has it.  False: no
 * answer. */
bool hk_watch_call_of(ncclComm_t c, int rank, uint64_t operation, uint64_t patience_ns, hk_activity *out);
/* The signature of the rank's call as that operation; 0: it is not there yet, or too far ahead to know. */
uint32_t hk_watch_signature(const hk_activity *a, uint64_t operation);
/* True where the rank has left the communicator, which is then this rank's verdict. */
bool hk_watch_left(ncclComm_t c, const struct hk_call *call, int rank);
#endif
