/* SPDX-License-Identifier: Apache-2.0 */
/* Runs checked calls on host memory to their end, on the calling thread. */
#ifndef HK_RUN_RUN_H
#define HK_RUN_RUN_H
#include "../core/comm.h"

/* Runs one call: the fast path. */
hk_status hk_run_one(const struct hk_call *call);
/* Runs the calls of a group, given in the order in which they were made, of any communicators. The collectives of one
 * communicator run in this order. Its sends and receives, and the other communicators, run at the same time. */
hk_status hk_run_group(const struct hk_call *calls, size_t n);
/* If ranks outnumber cores and no launcher has bound them: moves the calling thread to the core that is this rank's if
 * they take turns. It may leave it again. The kernel hardly moves threads that yield to one another: three of four
 * ranks that woke up on one of two cores after the init would stay there. */
void hk_run_spread(ncclComm_t c);
#endif
