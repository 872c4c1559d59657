/* SPDX-License-Identifier: Apache-2.0 */
/* The activity of ranks as other ranks see it, and the ranks that this one waits for. */
#ifndef HK_FAILURE_WATCH_H
#define HK_FAILURE_WATCH_H
#include "../boot/activity.h"
#include "../core/comm.h"

/* Publishes the next operation, which this rank has put on a stream. `traceable`: the operation has the same number on
 * all ranks. False after the capture of a graph, because replays are not counted. */
void hk_watch_enqueued(ncclComm_t c, const struct hk_call *call, bool traceable);
/* Publishes the send or receive in which this rank waits; NULL: none. */
void hk_watch_transfer(ncclComm_t c, const struct hk_call *call);

/* Describes this rank's newest operation, and in `others` the ranks that have begun more or fewer operations, as ";
 * rank 3 is in ...". From any thread; takes about a second at most. */
void hk_watch_apart(ncclComm_t c, char *newest, size_t newest_bytes, char *others, size_t others_bytes);
/* Gets the activity of a rank. Blocks for at most about patience_ns. */
hk_presence hk_watch_ask(ncclComm_t c, int rank, uint64_t patience_ns, hk_activity *out);
/* As hk_watch_ask, but reads the activity as of call number `operation` from the rank's status page, if this host has
 * that page. False: unknown. */
bool hk_watch_call_of(ncclComm_t c, int rank, uint64_t operation, uint64_t patience_ns, hk_activity *out);
/* The signature of the rank's call number `operation`; 0: the rank has not begun it, or it is too old to be known. */
uint32_t hk_watch_signature(const hk_activity *a, uint64_t operation);
/* True if the rank has left the communicator: this rank has then raised that as its verdict. */
bool hk_watch_left(ncclComm_t c, const struct hk_call *call, int rank);
#endif
