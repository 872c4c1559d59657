/* SPDX-License-Identifier: Apache-2.0 */
/* When a GPU sees what cards have written into its memory. */
#ifndef HK_TRANSPORT_NET_IB_FLUSH_H
#define HK_TRANSPORT_NET_IB_FLUSH_H
#include "ib_conn.h"

/* Sets *yes if the GPU sees the payload of slot k, which has arrived. Otherwise a flush has been started: call
 * again. */
hk_status hk_ib_flush_visible(hk_ib_conn *c, uint64_t k, bool *yes);
hk_status hk_ib_flush_done(hk_ib_conn *c, uint32_t path, const hk_ibv_wc *wc); /* a read has completed */
void hk_ib_flush_drop(hk_ib_conn *c); /* frees the flush's queue pairs, with the connection's queue pairs */
#endif
