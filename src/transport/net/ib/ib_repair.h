/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of a connection, and their repair. */
#ifndef HK_TRANSPORT_NET_IB_REPAIR_H
#define HK_TRANSPORT_NET_IB_REPAIR_H
#include "ib_conn.h"

/* A request on a queue pair has failed: begins a new epoch, or fails the connection. */
hk_status hk_ib_broken(hk_ib_conn *c, uint32_t qp, const hk_ibv_wc *wc, const char *doing);
/* The device or completion queue of the connection's queue pairs has failed: the same. */
hk_status hk_ib_lost(hk_ib_conn *c, const char *what, bool repairable);
/* Begins a new epoch, or fails the connection if that was tried for too long. c->repair.cause is the reason: a rank
 * that does not begin epochs sends it to the other one. */
hk_status hk_ib_repair(hk_ib_conn *c, const char *advice);
/* Repairs the connection if requests have neither completed nor failed for longer than their retries take. */
hk_status hk_ib_check_progress(hk_ib_conn *c, uint64_t now);
/* Starts to count the time of repairs, and counts it: only while this process takes part, and the peer's answer is not
 * waited for. */
void hk_ib_begin_repairs(hk_ib_conn *c, uint64_t now);
/* A failure of a connection that has been up for long is a new one: the time and the attempts are counted anew. */
void hk_ib_note_failure(hk_ib_conn *c, uint64_t now);
void hk_ib_count_repairs(hk_ib_conn *c, uint64_t now);
/* Returns true if the peer's answer is waited for and its host does not answer the kernel's questions. */
bool hk_ib_host_is_silent(hk_ib_conn *c, uint64_t now);
/* A port is up again: after BACK_MS without another change, connections that had left it begin an epoch over it. */
void hk_ib_port_came_back(hk_ib_ctx *x, const hk_ib_device *d, int port, uint64_t now);
hk_status hk_ib_go_back(hk_ib_conn *c, uint64_t now);
#endif
