/* SPDX-License-Identifier: Apache-2.0 */
/* Events for NCCL profiler plugins. Without a plugin c->profiler is NULL, and calls check only that. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;

typedef struct hk_profiler hk_profiler;

/* Loads the plugin that NCCL_PROFILER_PLUGIN names, else libnccl-profiler.so. c->profiler stays NULL if there is
 * none. A named one that cannot be loaded is a warning. */
hk_status hk_profiler_load(ncclComm_t c);
/* Initialises the plugin once the communicator's facts are known; one that refuses is dropped. `id` is the
 * communicator's number, equal on all ranks. */
void hk_profiler_begin(ncclComm_t c, uint64_t id, int hosts);
void hk_profiler_free(ncclComm_t c);

/* API calls, on the caller's thread. `group`: the event of a group; NULL if the plugin gets no group events. */
void *hk_profile_group_open(hk_profiler *p, int depth);
void hk_profile_group_runs(hk_profiler *p, void *group);
/* Begins the event of a call and stores it in call->event; it ends when the call returns. */
void hk_profile_call(hk_profiler *p, struct hk_call *call, void *group);

/* Operations, on the thread that runs them. The collectives of a communicator run one after another. */
void hk_profile_collective(hk_profiler *p, const struct hk_call *call, const char *algorithm, unsigned channels);
void hk_profile_computed(hk_profiler *p);            /* the collective's instructions have run */
void hk_profile_waited(hk_profiler *p, uint64_t ns); /* it waited long for other ranks */
void hk_profile_collective_over(hk_profiler *p);
/* The same on a GPU: an operation's event ends when it is in its stream, as in NCCL.  Returns the event. */
void *hk_profile_enqueued(hk_profiler *p, const struct hk_call *call, const char *algorithm, const char *protocol,
                          unsigned channels);
/* An operation by copy engines, and its parts. */
void *hk_profile_copies(hk_profiler *p, const struct hk_call *call);
void hk_profile_copy_sync(hk_profiler *p, void *parent, bool complete);
void hk_profile_copy_batch(hk_profiler *p, void *parent, int operations, size_t bytes);
/* The event of a send or receive. *kernel, unless `kernel` is NULL: that of a channel, because the time of the transfer
 * is known. NULL, both: none. */
void *hk_profile_transfer(hk_profiler *p, const struct hk_call *call, void **kernel);
void hk_profile_transfer_over(hk_profiler *p, void *transfer, void *kernel);
void hk_profile_over(hk_profiler *p, void *event); /* of a group, a call or an operation */
/* Ends all open events of what ran together. */
void hk_profile_run_over(hk_profiler *p);

/* For net plugins, in the form that they expect: type 0 starts an event, 1 stops, 2 updates, 3 updates and stops it;
 * `profiler` is a communicator's. */
int hk_profile_net_event(void **event, int type, void *profiler, int64_t id, void *data);
