/* SPDX-License-Identifier: Apache-2.0 */
/* Work on whole communicators that all ranks do together and that a group may hold: ncclCommSuspend, ncclCommResume,
 * windows and device communicators. */
#ifndef HK_COMM_TASKS_H
#define HK_COMM_TASKS_H
#include "../core/comm.h"

typedef struct hk_task hk_task;
typedef hk_status hk_task_run(ncclComm_t c, void *arg);

/* Runs it on the calling thread.  `arg`, here and below, is NULL or of malloc, and freed afterwards. */
hk_status hk_task_now(ncclComm_t c, hk_task_run *run, void *arg);
/* Appends to the list, which keeps the communicator's memory. */
hk_status hk_tasks_add(hk_task **list, ncclComm_t c, hk_task_run *run, void *arg);
/* First in each `run`: waits until all ranks are in the task.  HK_ERR_REMOTE, and the communicator stays as it is, if
 * the task was refused on another rank: its cause.  Another failure ends the communicator. */
hk_status hk_task_agree(ncclComm_t c, const char *who);
/* Instead of a task that is refused on this rank for the cause in the thread's error, which stays: the others, which
 * are in the task or come to it, get the cause. */
void hk_task_refuse(ncclComm_t c);
/* Runs the list: those of one communicator in their order, and communicators at the same time, as the ranks of one
 * thread wait for each other.  The first error. */
hk_status hk_tasks_run(hk_task *list);
/* The group fails before they run: refuses all. */
void hk_tasks_refuse(hk_task *list);
void hk_tasks_drop(hk_task **list); /* frees it, run or not */
#endif
