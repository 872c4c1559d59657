/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the devices, and devices that fail and come back. */
#ifndef HK_TRANSPORT_NET_IB_EVENT_H
#define HK_TRANSPORT_NET_IB_EVENT_H
#include "ib_conn.h"

/* Logs events of the devices. Connections that an event ends get new queue pairs, on another device if there is one. */
hk_status hk_ib_handle_events(hk_ib_ctx *x);
/* Closes devices that have failed once nothing of theirs is used, and opens them again when that is possible: after a
 * second, and after twice as long each time that they fail. */
void hk_ib_devices_return(hk_ib_ctx *x, uint64_t now);
#endif
