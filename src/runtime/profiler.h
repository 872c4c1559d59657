/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL profiler plugins: what is told to them.  A communicator without one has a NULL pointer, which is all that calls look
 * at. */
#ifndef HK_RUNTIME_PROFILER_H
#define HK_RUNTIME_PROFILER_H
#include "comm.h"

typedef struct hk_profiler hk_profiler;

/* Looks for the plugin that NCCL_PROFILER_PLUGIN names, else for libnccl-profiler.so; c->profiler stays NULL where there is
 * none, and one that was named and cannot be had is a warning. */
hk_status hk_profiler_load(ncclComm_t c);
/* Begins its work once the communicator's facts are known; one that refuses is let go. */
void hk_profiler_begin(ncclComm_t c);
void hk_profiler_free(ncclComm_t c);

/* Calls of the API, in the caller's thread.  A group's event is `group`, NULL for one that is not told. */
void *hk_profile_group_open(hk_profiler *p, int depth);
void hk_profile_group_runs(hk_profiler *p, void *group);
void hk_profile_group_closed(hk_profiler *p, void *group);
/* Begins the event of a call, which goes with it in call->event; it ends when the call returns. */
void hk_profile_call(hk_profiler *p, hk_call *call, void *group);
void hk_profile_call_over(hk_profiler *p, const hk_call *call);

/* Operations, in the thread that runs them.  A communicator's collectives come one after another. */
void hk_profile_collective(hk_profiler *p, const hk_call *call, const hk_plan *plan);
void hk_profile_collective_over(hk_profiler *p);
void *hk_profile_transfer(hk_profiler *p, const hk_call *call); /* the event; NULL: not told */
void hk_profile_over(hk_profiler *p, void *event);
/* The end of what ran together: whatever is open ends. */
void hk_profile_run_over(hk_profiler *p);

/* For net plugins, as they expect it: type 0 starts an event, 1 stops, 2 updates, 3 updates and stops it; `profiler` is a
 * communicator's. */
int hk_profile_net_event(void **event, int type, void *profiler, int64_t id, void *data);
#endif
