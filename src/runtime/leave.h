/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator: waiting for what is still inside, for a bounded time, then the end itself. */
#ifndef HK_RUNTIME_LEAVE_H
#define HK_RUNTIME_LEAVE_H
#include "comm.h"

/* Marks the communicator as ending; HK_ERR_USAGE if another thread has done so already.  An abort may overtake a destroy. */
hk_status hk_leave_begin(ncclComm_t c, const char *who, hk_closing how);
/* Waits until nothing is inside any more: batches of streams and groups, inits of children, a call of another thread.  Reports
 * every 10 s what is; HK_ERR_SYSTEM after `seconds`. */
hk_status hk_leave_wait(ncclComm_t c, const char *who, int64_t seconds);
/* The same for operations that nothing has ended: they have HOCKET_DESTROY_TIMEOUT; then they fail, on all ranks. */
hk_status hk_leave_in_peace(ncclComm_t c, const char *who);
/* Waits once more for who was told to leave, and frees; a communicator that something never leaves is not freed, and what it
 * holds is lost.  Gives rc, or the error of that wait. */
hk_status hk_leave_end(ncclComm_t c, const char *who, hk_status rc);
#endif
