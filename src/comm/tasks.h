/* SPDX-License-Identifier: Apache-2.0 */
/* Work on whole communicators that all ranks do together and that a group may hold: ncclCommSuspend, ncclCommResume,
 * windows and device communicators. */
#pragma once
#include <nccl.h>
#include "../base/status.h"

typedef struct hk_task hk_task;
typedef hk_status hk_task_run(ncclComm_t c, void *arg);

/* Runs it on the calling thread.  `arg`, here and below, is NULL or of malloc, and freed afterwards. */
hk_status hk_task_now(ncclComm_t c, hk_task_run *run, void *arg);
/* Appends to the list, which keeps the communicator's memory allocated. */
hk_status hk_tasks_add(hk_task **list, ncclComm_t c, hk_task_run *run, void *arg);
/* Each `run` calls this first: waits until all ranks are in the task. HK_ERR_REMOTE with the cause if another rank
 * refused the task; the communicator stays usable. Any other failure ends the communicator. */
hk_status hk_task_agree(ncclComm_t c, const char *who);
/* Called instead of a task that this rank refuses: sends the cause, which is in the thread's error, to the other ranks.
 * The error stays set. */
void hk_task_refuse(ncclComm_t c);
/* Runs the list. Tasks of one communicator run in order; communicators run at the same time, because ranks of one
 * thread wait for each other. Returns the first error. */
hk_status hk_tasks_run(hk_task *list);
/* The group has failed before its tasks run: refuses all of them. */
void hk_tasks_refuse(hk_task *list);
void hk_tasks_drop(hk_task **list); /* frees it, run or not */
