/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: what the calling thread collects between ncclGroupStart and ncclGroupEnd. */
#ifndef HK_RUNTIME_GROUP_H
#define HK_RUNTIME_GROUP_H
#include "comm.h"

/* Runs the call now, or at the end of the thread's group, or hands it to its stream. */
hk_status hk_group_submit(const hk_call *call);
/* Runs an init: now where no group is open; else at the group's end beside the group's other inits; in a thread of its
 * own for nonblocking communicators.  Takes `how` over.  On failure of a blocking init *handle becomes NULL. */
hk_status hk_group_submit_init(ncclComm_t c, const hk_init *how, ncclComm_t *handle);
/* Gives `rc`, with which a child cannot begin to be made; the thread's error is its text. If it is for lack of something, the
 * other members get it, too. Leaves `how` to the caller. */
hk_status hk_group_unborn(const hk_init *how, hk_status rc);
/* HK_ERR_USAGE for a send or receive of a rank to itself outside of a group: the call waits for one that comes after it. */
hk_status hk_group_check_self(const hk_call *call, const char *who);
/* Calls were not begun, for `rc`.  If the reason is this rank's (memory, the system, CUDA, a fault of the library), the
 * communicators of all of them end, because their other ranks would wait.  A wrong argument is the caller's to put right, and
 * changes nothing. */
void hk_group_fail_calls(const hk_call *calls, size_t n, hk_status rc);
/* HK_ERR_USAGE, remembered for the group's end, if calls or children of the communicator wait in a group that is open, of this
 * thread or another one. */
hk_status hk_group_refuse(ncclComm_t c, const char *who);
/* Takes the communicator's calls and children out of this thread's group, whose end then gives HK_ERR_USAGE and runs nothing.
 * True if the communicator itself was one whose init waited there: it is freed. */
bool hk_group_drop(ncclComm_t c, const char *who);
/* An argument error inside a group is remembered: the group's end gives it and runs nothing. */
hk_status hk_group_remember(hk_status rc);
hk_status hk_group_start(void);
hk_status hk_group_end(void);
/* As the end, but the group's calls are priced (microseconds, 0 where an init was in the group) and not run. */
hk_status hk_group_simulate_end(double *us);
#endif
