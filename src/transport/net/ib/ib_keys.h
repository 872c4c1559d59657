/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of windows for one-sided operations. */
#ifndef HK_TRANSPORT_NET_IB_KEYS_H
#define HK_TRANSPORT_NET_IB_KEYS_H
#include "ib_conn.h"

/* At the arena's start: the counters of a connection for one-sided operations. */
static inline _Atomic uint64_t *hk_ib_counters(const hk_ib_conn *c) { return (_Atomic uint64_t *)(void *)c->arena; }
struct hk_remote_put;
hk_status hk_ib_keys_ask(hk_ib_conn *c, const struct hk_remote_put *p);    /* the keys of the put's window */
hk_status hk_ib_keys_asked(hk_ib_conn *c, const hk_ib_msg *m);             /* HK_IB_ASK has come */
hk_status hk_ib_keys_came(hk_ib_conn *c, const hk_ib_msg *m);              /* HK_IB_KEYS has come */
const hk_ib_keys *hk_ib_keys_find(const hk_ib_remote *r, uint64_t window); /* NULL: they are not known */
#endif
