/* SPDX-License-Identifier: Apache-2.0 */
/* Work on whole communicators that all ranks do together and that a group may hold: ncclCommSuspend,
 * ncclCommResume. */
#ifndef HK_RUNTIME_ACTS_H
#define HK_RUNTIME_ACTS_H
#include "comm.h"

typedef struct hk_act hk_act;
typedef hk_status hk_act_run(ncclComm_t c);

/* Runs it on the calling thread. */
hk_status hk_act_now(ncclComm_t c, hk_act_run *run);
/* Appends to the list, which keeps the communicator's memory. */
hk_status hk_acts_add(hk_act **list, ncclComm_t c, hk_act_run *run);
/* Runs all of the list at the same time, as the ranks of one thread wait for each other, and frees it; the first
 * error. */
hk_status hk_acts_run(hk_act **list);
void hk_acts_drop(hk_act **list); /* without running them */
#endif
