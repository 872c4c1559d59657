/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations. */
#ifndef HK_TRANSPORT_NET_IB_REMOTE_H
#define HK_TRANSPORT_NET_IB_REMOTE_H
#include "ib_conn.h"

struct hk_remote;
extern const struct hk_remote hk_ib_remote_table;
#endif
