/* SPDX-License-Identifier: Apache-2.0 */
/* The FIFOs of a connection's ends: registering and announcing them, and the fallback to another network. */
#ifndef HK_TRANSPORT_NET_IB_RINGS_H
#define HK_TRANSPORT_NET_IB_RINGS_H
#include "ib_conn.h"

/* Registers and announces an end that was opened on a connection that exists already. */
hk_status hk_ib_add_end(hk_ib_conn *c, const hk_net_end *e);
/* An end has got its FIFO for large messages after small ones: registers and announces what must be by now. */
hk_status hk_ib_grown(hk_ib_conn *c, const hk_net_end *e);
bool hk_ib_starves(hk_ib_conn *c); /* The receiver has no such FIFO yet: notes that it needs one. */
/* The peer wants the FIFO: registers and announces it. */
hk_status hk_ib_provide_ring(hk_ib_conn *c);
void hk_ib_fill_rings(const hk_ib_conn *c, hk_ib_msg *m); /* fills in the FIFO's registrations */
static inline hk_ib_memory hk_ib_memory_of(const hk_ibv_mr *mr) {
  return mr ? (hk_ib_memory){.addr = (uint64_t)(uintptr_t)mr->addr, .rkey = mr->rkey} : (hk_ib_memory){0};
}
/* Handles memory that cannot be registered. The connection does without the path; if it is the first path, another
 * network carries these directions, if there is one. */
hk_status hk_ib_cannot_register(hk_ib_conn *c, hk_ib_path *path, uint8_t directions, const char *why);
hk_status hk_ib_ceded(hk_ib_conn *c, const hk_ib_msg *m); /* the peer cannot register: HK_IB_CEDE has come */
#endif
