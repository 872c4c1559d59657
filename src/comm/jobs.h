/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: inits, splits and shrinks. The jobs of a group run at the same time, because they wait for each other. */
#pragma once
#include "../core/comm.h"

typedef struct hk_job hk_job;
/* The jobs of a thread's group, in the order of the calls. All zero: none. */
typedef struct hk_jobs {
  hk_job *first, **end;
} hk_jobs;

/* The job owns what `how` points to. *handle, the caller's, gets the communicator. NULL: no memory. */
hk_job *hk_job_new(ncclComm_t c, const hk_init *how, ncclComm_t *handle);
/* Runs it, and frees it. A nonblocking communicator's runs on a thread of its own: HK_IN_PROGRESS. */
hk_status hk_job_run(hk_job *j);
/* Appends it. Its parent's memory is kept until it has run. */
void hk_jobs_add(hk_jobs *list, hk_job *j);
/* Runs all at the same time, and frees them. */
hk_status hk_jobs_run(hk_jobs *list);
/* The group failed before they began: frees them. The other ranks, which wait for this one, get the thread's error. */
void hk_jobs_refuse(hk_jobs *list);
/* A later init of the group cannot begin: sends the thread's error to the other ranks of that init. If it is a child,
 * the group's jobs are refused at once, because the numbers of children follow the order of the calls. */
void hk_jobs_report_unstarted(hk_jobs *list, const hk_init *given);
/* The number of jobs in the list that create the communicator or a child of it. */
int hk_jobs_of(const hk_jobs *list, ncclComm_t c);
/* Frees those jobs, and returns their number. *freed is set if `c` itself was freed. */
size_t hk_jobs_drop(hk_jobs *list, ncclComm_t c, bool *freed);
/* Frees all jobs at the end of their thread, and returns their number. Does not write the handles, which may have been
 * on the thread's stack. */
size_t hk_jobs_abandon(hk_jobs *list);
