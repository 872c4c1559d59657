/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the cards: how long a queue pair waits for an answer, and when a card gives up. */
#ifndef HK_TRANSPORT_NET_IB_TIMEOUT_H
#define HK_TRANSPORT_NET_IB_TIMEOUT_H
#include "ib_conn.h"

void hk_ib_measure(hk_ib_conn *c); /* sets round_trip_us and timeout */
/* The time for which a queue pair waits for an answer, as n in 4.096 us * 2^n, for this round trip. With so many
 * retries the card gives up within `bound_ns`. */
unsigned hk_ib_timeout_for(uint32_t round_trip_us, unsigned retries, uint64_t bound_ns);
uint64_t hk_ib_gives_up_ns(unsigned timeout, unsigned retries); /* the longest time that a card may take to give up */
#endif
