/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: requests for slots that the lane has filled, and credits. */
#ifndef HK_TRANSPORT_NET_IB_SEND_H
#define HK_TRANSPORT_NET_IB_SEND_H
#include "ib_conn.h"

hk_status hk_ib_send(hk_ib_conn *c, bool *moved); /* posts what the lane has filled; sets *moved if there was any */
hk_status hk_ib_return_credit(hk_ib_conn *c);     /* writes the credit to the peer once half of the slots are owed */
#endif
