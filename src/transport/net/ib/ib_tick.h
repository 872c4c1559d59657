/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread's part. */
#ifndef HK_TRANSPORT_NET_IB_TICK_H
#define HK_TRANSPORT_NET_IB_TICK_H
#include "ib_conn.h"

/* From here on the service thread does what connections need; not under the lock. */
hk_status hk_ib_start_ticking(hk_ib_ctx *x);
#endif
