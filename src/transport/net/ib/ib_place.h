/* SPDX-License-Identifier: Apache-2.0 */
/* Places: memory that the user has registered, into which the peer writes. */
#ifndef HK_TRANSPORT_NET_IB_PLACE_H
#define HK_TRANSPORT_NET_IB_PLACE_H
#include "ib_conn.h"

/* The provider's `offer` and `withdraw`. */
void hk_ib_place_post(void *ctx, hk_net_end *e, uint64_t k, void *to, uint32_t bytes);
void hk_ib_place_withdraw(void *ctx);
/* Announces offers to the peer: those since the last call, or all of them in a new epoch. */
hk_status hk_ib_place_announce(hk_ib_conn *c);
/* Sender: fills `to` with the place of slot k, which has `bytes`. Returns false if none of that size is known. */
bool hk_ib_place_find(hk_ib_conn *c, uint64_t k, uint32_t bytes, hk_ib_target *to);
/* Receiver: the place to which the peer has written slot k; NULL if no such place was announced. */
void *hk_ib_place_used(hk_ib_conn *c, uint64_t k, uint32_t bytes);
#endif
