/* SPDX-License-Identifier: Apache-2.0 */
/* A control connection that is lost or silent. */
#ifndef HK_TRANSPORT_NET_IB_CONTROL_H
#define HK_TRANSPORT_NET_IB_CONTROL_H
#include "ib_conn.h"

uint64_t hk_ib_control_tag(const hk_ib_conn *c);
void hk_ib_control_begin(hk_ib_conn *c); /* sets the options of a new control socket */
/* Returns true if the control connection is lost, and its end does not show that the peer has gone. */
bool hk_ib_control_may_return(const hk_ib_conn *c);
/* A lost control connection: the dialling rank has a thread make a new one, the other one takes it. An error if RDMA
 * fails for too long, too. */
hk_status hk_ib_control_check(hk_ib_conn *c, uint64_t now);
/* Once a second: takes a new control connection for one that only the peer has lost. If a lane `waits` and the control
 * connection is silent, asks the peer's card whether its host is there. */
hk_status hk_ib_control_ask(hk_ib_conn *c, uint64_t now, bool waits);
void hk_ib_control_end(hk_ib_ctx *x); /* ends the thread; not under the lock */
#endif
