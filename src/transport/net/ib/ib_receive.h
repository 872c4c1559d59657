/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: completions of requests, and messages that have arrived. */
#ifndef HK_TRANSPORT_NET_IB_RECEIVE_H
#define HK_TRANSPORT_NET_IB_RECEIVE_H
#include "ib_conn.h"

hk_status hk_ib_poll(hk_ib_ctx *x, bool *moved);     /* takes completions of all devices */
hk_status hk_ib_deliver(hk_ib_conn *c, bool *moved); /* hands messages that have arrived to the lane */
#endif
