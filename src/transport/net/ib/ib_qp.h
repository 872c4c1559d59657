/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of a connection. */
#ifndef HK_TRANSPORT_NET_IB_QP_H
#define HK_TRANSPORT_NET_IB_QP_H
#include "ib_conn.h"

hk_status hk_ib_make_qps(hk_ib_conn *c, uint32_t n); /* makes n queue pairs on the paths and posts their receives */
void hk_ib_drop_qps(hk_ib_conn *c);
bool hk_ib_wants_apart(const hk_ib_conn *c); /* this rank's part of c->apart */
/* Connects the queue pairs to the peer's. On failure errno is set, and no error text: the caller may try another
 * path. */
hk_status hk_ib_join_qps(hk_ib_conn *c, const hk_ib_epoch *theirs);
/* Writes the queue pairs' vendor options (ECE) to c->ours: before they are joined those of this rank's card, then those
 * agreed on. */
void hk_ib_fill_ece(hk_ib_conn *c);
#endif
