/* SPDX-License-Identifier: Apache-2.0 */
/* Runs checked calls on host memory to their end, in the thread that asks. */
#ifndef HK_RUNTIME_RUN_H
#define HK_RUNTIME_RUN_H
#include "comm.h"

/* One call alone: the fast path. */
hk_status hk_run_one(const hk_call *call);
/* The calls of a group, in the order they were made; any mix of communicators.  Collectives of one communicator run in
 * order, its sends and receives beside them, all communicators side by side. */
hk_status hk_run_group(const hk_call *calls, size_t n);
#endif
