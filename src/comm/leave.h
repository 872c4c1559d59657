/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator: a bounded wait for what is still inside it, then the end itself. */
#pragma once
#include "../core/comm.h"

/* Marks the communicator as ending. HK_ERR_USAGE if another thread has done so already; an abort may follow a
 * destroy. */
hk_status hk_leave_begin(ncclComm_t c, const char *who, hk_closing how);
/* Waits until nothing is inside: batches of streams and groups, inits of children, a call of another thread. Reports
 * every 10 s what is inside; HK_ERR_SYSTEM after `seconds`. */
hk_status hk_leave_wait(ncclComm_t c, const char *who, int64_t seconds);
/* As hk_leave_wait, for operations that run normally: after HOCKET_DESTROY_TIMEOUT they fail on all ranks. */
hk_status hk_leave_in_peace(ncclComm_t c, const char *who);
/* Waits once more for the threads inside the communicator, and frees it. If a thread never leaves, the communicator is
 * not freed and its memory leaks. Returns rc, or the error of that wait. */
hk_status hk_leave_end(ncclComm_t c, const char *who, hk_status rc);
