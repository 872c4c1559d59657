/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the calls of a thread between ncclGroupStart and ncclGroupEnd. */
#ifndef HK_COMM_GROUP_H
#define HK_COMM_GROUP_H
#include "../core/comm.h"
#include "tasks.h"

/* Runs the call now, or at the end of the thread's group, or queues it on its stream. */
hk_status hk_group_submit(const struct hk_call *call);
/* Runs an init: now if no group is open, else at the group's end in parallel with the group's other inits; on a
 * thread of its own for nonblocking communicators. Owns `how` from here on. If a blocking init fails, *handle becomes
 * NULL. */
hk_status hk_group_submit_init(ncclComm_t c, const hk_init *how, ncclComm_t *handle);
/* Returns `rc`, with which making a communicator cannot begin; the thread's error is its text. The other ranks, which
 * would wait for this one, get the error, whether this rank lacks something or has a wrong argument. The caller keeps
 * `how`. */
hk_status hk_group_report_unstarted(const hk_init *how, hk_status rc);
/* HK_ERR_USAGE for a send or receive of a rank to itself outside of a group: the call would wait for a later one.  The
 * thread of a host stream can wait for it. */
hk_status hk_group_check_self(const struct hk_call *call, const char *who);
/* HK_ERR_USAGE, remembered for the group's end, if calls or children of the communicator wait in an open group of
 * this thread or another one. */
hk_status hk_group_refuse(ncclComm_t c, const char *who);
/* Removes the communicator's calls and children from this thread's group, whose end then returns HK_ERR_USAGE and
 * runs nothing. True if the communicator's own init waited there: it is freed. */
bool hk_group_drop(ncclComm_t c, const char *who);
/* Remembers an argument error inside a group: the group's end returns it and runs nothing. */
hk_status hk_group_remember(hk_status rc);
/* Runs it now, or at the end of the thread's group, together with the group's others and before its calls (tasks.h). */
hk_status hk_group_submit_task(ncclComm_t c, hk_task_run *run, void *arg);
/* A task is refused here, for `rc`: the other ranks get the thread's error.  In a group at its end, as its number
 * follows the order of the calls. */
hk_status hk_group_refuse_task(ncclComm_t c, hk_status rc);
/* After its calls were queued a communicator may have ended, or the process may have been forked: HK_ERR_USAGE. */
hk_status hk_group_still_there(ncclComm_t c);
hk_status hk_group_start(void);
hk_status hk_group_end(void);
/* As the end of the group, but its calls are priced (microseconds; 0 if an init was in the group) and not run. */
hk_status hk_group_simulate_end(double *us);
#endif
