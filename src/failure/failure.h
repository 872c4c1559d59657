/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a communicator, and the error that all its ranks report. */
#pragma once
#include "../boot/activity.h"
#include "../core/comm.h"

/* True if `rc` means that this rank lacks a resource or has an internal error. A wrong argument is no such case: the
 * caller can correct it while the other ranks wait. */
static inline bool hk_lacks(hk_status rc) { return rc == HK_ERR_SYSTEM || rc == HK_ERR_CUDA || rc == HK_ERR_INTERNAL; }
/* Ends the communicator at once, for a reason of this rank alone. The first failure counts: waits end with `code`,
 * and `text` is kept for ncclGetLastError. True for the first one. */
bool hk_comm_fail(ncclComm_t c, hk_status code, const char *text);
/* Ends the communicator for an event that other ranks may report better: waits end at once, the event to report is
 * settled a little later. From any thread; never blocks. */
void hk_failure_record(ncclComm_t c, const hk_event *e);
/* The same for an event that the bootstrap has received (hk_bootstrap_options.on_failure), which is logged, too. */
void hk_failure_received(void *comm, const hk_event *e);
/* The same for an event of this rank, which is also sent to the other ranks. `text` may be as long as an event's. */
void hk_failure_raise(ncclComm_t c, hk_event_kind kind, int rank, hk_status code, const char *text);
/* The settled failure; HK_OK if there is none, or if it is not settled. */
hk_status hk_failure_settled(ncclComm_t c);
/* True if this rank has failed or knows of a failure, or if another rank of this host does and its event has not
 * arrived yet. */
static inline bool hk_comm_failing(ncclComm_t c) {
  return atomic_load(&c->health.failure) || (c->wait.shared_failure && atomic_load(c->wait.shared_failure));
}
/* Call it after a wait ended with a failure: waits until the failure is settled, and fails with it. `where` (may be
 * NULL): the API call. */
hk_status hk_failure_resolve(ncclComm_t c, const char *where);
