/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the calls of a thread between ncclGroupStart and ncclGroupEnd. */
#pragma once
#include "../core/comm.h"
#include "tasks.h"

/* Runs the call now, or at the end of the thread's group, or queues it on its stream. */
hk_status hk_group_submit(const struct hk_call *call);
/* Runs an init: now if no group is open, else at the group's end in parallel with the group's other inits; on a
 * thread of its own for nonblocking communicators. Owns `how` from here on. If a blocking init fails, *handle becomes
 * NULL. */
hk_status hk_group_submit_init(ncclComm_t c, const hk_init *how, ncclComm_t *handle);
/* Called if the creation of a communicator cannot begin, because of a missing resource or a wrong argument. Sends the
 * thread's error to the other ranks, which would wait for this one. Returns `rc`. The caller keeps `how`. */
hk_status hk_group_report_unstarted(const hk_init *how, hk_status rc);
/* HK_ERR_USAGE for a send or receive of a rank to itself outside of a group, because it would wait for a later call.
 * Allowed on a host stream, whose thread can wait. */
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
/* This rank refuses a task, for `rc`: sends the thread's error to the other ranks. Inside a group this happens at the
 * group's end, because a task's number follows the order of the calls. */
hk_status hk_group_refuse_task(ncclComm_t c, hk_status rc);
/* HK_ERR_USAGE if the communicator has ended, or the process has been forked, since its calls were queued. */
hk_status hk_group_still_there(ncclComm_t c);
hk_status hk_group_start(void);
hk_status hk_group_end(void);
/* Ends the group, but estimates the time of its calls and does not run them. *us: microseconds; 0 if the group contains
 * an init. */
hk_status hk_group_simulate_end(double *us);
