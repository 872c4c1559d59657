/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of a connection's slots: sent, arrived, and given back. */
#ifndef HK_TRANSPORT_NET_IB_SLOTS_H
#define HK_TRANSPORT_NET_IB_SLOTS_H
#include "ib_conn.h"

/* Gives slots back to the lane: small ones once they are in the ring, large ones once they have arrived. */
void hk_ib_give_back(hk_ib_conn *c);
uint64_t hk_ib_credit(hk_ib_conn *c); /* slots that the peer has read, of those that this rank sends */
/* Returns true if slots were taken from the lane that are not known to have arrived. */
bool hk_ib_unfinished(const hk_ib_conn *c);
/* Returns true if all slots after the first `received` can be sent again. A large message cannot, once its arrival was
 * acknowledged: its memory belongs to the lane again. */
bool hk_ib_can_rewind(const hk_ib_conn *c, uint64_t received);
/* Resets the sender to what the peer has: everything after its first `received` slots is sent again. */
void hk_ib_rewind(hk_ib_conn *c, uint64_t received, uint64_t consumed);
/* The number of the peer's slots that have arrived completely, delivered or not. */
uint64_t hk_ib_arrived_to(const hk_ib_conn *c);
/* The same number as hk_ib_arrived_to; forgets parts of later slots. For the end of an epoch. */
uint64_t hk_ib_received(hk_ib_conn *c);
#endif
