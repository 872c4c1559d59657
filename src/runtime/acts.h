/* SPDX-License-Identifier: Apache-2.0 */
/* Work on whole communicators that all ranks do together and that a group may hold: ncclCommSuspend, ncclCommResume,
 * windows and device communicators. */
#ifndef HK_RUNTIME_ACTS_H
#define HK_RUNTIME_ACTS_H
#include "comm.h"

typedef struct hk_act hk_act;
typedef hk_status hk_act_run(ncclComm_t c, void *arg);

/* Runs it on the calling thread.  `arg`, here and below, is NULL or of malloc, and freed afterwards. */
hk_status hk_act_now(ncclComm_t c, hk_act_run *run, void *arg);
/* Appends to the list, which keeps the communicator's memory. */
hk_status hk_acts_add(hk_act **list, ncclComm_t c, hk_act_run *run, void *arg);
/* Runs the list: those of one communicator in their order, and communicators at the same time, as the ranks of one
 * thread wait for each other.  The first error. */
hk_status hk_acts_run(hk_act *list);
void hk_acts_drop(hk_act **list); /* frees it, run or not */
#endif
