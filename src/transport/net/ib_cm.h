/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The kernel's word on the way between two RoCE GIDs that are addresses (rdma_cm, by librdmacm): has an RDMA port the one, is
 * there a route, does the other one's neighbour answer?  Connections are made without it, InfiniBand needs no addresses.  It is
 * asked where nothing comes through, to tell why, and by `hocket doctor peer`.
 */
#ifndef HK_TRANSPORT_NET_IB_CM_H
#define HK_TRANSPORT_NET_IB_CM_H
#include "../../base/wait.h"
#include "ib_port.h"

typedef enum hk_ib_cm_answer {
  HK_IB_CM_ROUTE,    /* the kernel knows one */
  HK_IB_CM_NO_ROUTE, /* it knows none */
  HK_IB_CM_NO_ANSWER /* it cannot be asked: no librdmacm, no rdma_ucm, these are no addresses, or the wait has ended */
} hk_ib_cm_answer;

enum { HK_IB_CM_WORDS = 160 };
/* Waits for `ms` at most, less where `wait` ends.  `words`: "rxe0:1 resolves 10.0.0.2", or why not. */
hk_ib_cm_answer hk_ib_cm_ask(const hk_wait_env *wait, const hk_ibv_gid *from, const hk_ibv_gid *to, int ms,
                             char words[HK_IB_CM_WORDS]);
#endif
