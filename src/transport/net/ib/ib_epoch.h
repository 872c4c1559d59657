/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of queue pairs. */
#ifndef HK_TRANSPORT_NET_IB_EPOCH_H
#define HK_TRANSPORT_NET_IB_EPOCH_H
#include "ib_conn.h"

hk_status hk_ib_epoch_begin(hk_ib_conn *c);                    /* the lower rank begins an epoch */
hk_status hk_ib_epoch_came(hk_ib_conn *c, const hk_ib_msg *m); /* HK_IB_EPOCH has come */
void hk_ib_epoch_up(hk_ib_conn *c);                            /* the peer can receive: HK_IB_READY has come */
/* As hk_net_provider's: a connection that is up rests, both ends together. */
hk_status hk_ib_rest(void *ctx, hk_net_end *e, bool *rests);
void hk_ib_send_bye(hk_ib_conn *c); /* ends the connection in order: reports how much has been received */
#endif
