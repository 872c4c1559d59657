/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a connection. */
#ifndef HK_TRANSPORT_NET_IB_STEP_H
#define HK_TRANSPORT_NET_IB_STEP_H
#include "ib_conn.h"

/* Goes on with connecting and repairing, and reads the control socket; `now` is hk_now_ns(). Never blocks on the peer,
 * except to open the control connection. */
hk_status hk_ib_conn_step(hk_ib_conn *c, uint64_t now);
#endif
