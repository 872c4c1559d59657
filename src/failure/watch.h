/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks do, as others see it, and who is waited for. */
#ifndef HK_FAILURE_WATCH_H
#define HK_FAILURE_WATCH_H
#include "../boot/activity.h"
#include "../core/comm.h"

/* The next operation, which this rank has put on a stream. `traceable`: it is known which one of all ranks' operations
 * it is; after the capture of a graph, which may be replayed, it is not. */
void hk_watch_enqueued(ncclComm_t c, const struct hk_call *call, bool traceable);
/* A send or receive that this rank waits in; NULL: none. */
void hk_watch_transfer(ncclComm_t c, const struct hk_call *call);

/* This rank's newest operation in words, and those ranks that have begun more or fewer, as "; rank 3 is in ...". From
 * any thread; asks for about a second at most. */
void hk_watch_apart(ncclComm_t c, char *newest, size_t newest_bytes, char *others, size_t others_bytes);
/* What a rank does.  Blocks for at most about patience_ns. */
hk_presence hk_watch_ask(ncclComm_t c, int rank, uint64_t patience_ns, hk_activity *out);
/* The same, if it is known with that operation as its newest: from its status page, if this host has it.  False: no
 * answer. */
bool hk_watch_call_of(ncclComm_t c, int rank, uint64_t operation, uint64_t patience_ns, hk_activity *out);
/* The signature of the rank's call as that operation; 0: it is not there yet, or too far ahead to know. */
uint32_t hk_watch_signature(const hk_activity *a, uint64_t operation);
/* True if the rank has left the communicator, which is then this rank's verdict. */
bool hk_watch_left(ncclComm_t c, const struct hk_call *call, int rank);
#endif
