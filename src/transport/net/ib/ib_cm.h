/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Asks the kernel for the route between two RoCE GIDs that are addresses (rdma_cm, by librdmacm): whether an RDMA port
 * has the first address, whether there is a route, and whether the neighbour answers. Connections are made without it,
 * and InfiniBand needs no addresses. It is asked for the cause if no data comes through, and by `hocket doctor peer`.
 */
#pragma once
#include "../../../base/wait.h"
#include "ib_port.h"

typedef enum hk_ib_cm_answer {
  HK_IB_CM_ROUTE,    /* there is a route */
  HK_IB_CM_NO_ROUTE, /* there is none */
  HK_IB_CM_NO_ANSWER /* unknown: no librdmacm, no rdma_ucm, GIDs that are no addresses, or the wait was ended */
} hk_ib_cm_answer;

enum { HK_IB_CM_WORDS = 160 };
/* Waits for at most `ms` milliseconds, less if `wait` fails. `words` gets "rxe0:1 resolves 10.0.0.2", or the cause.
 * From any thread. */
hk_ib_cm_answer hk_ib_cm_ask(const hk_wait_env *wait, const hk_ibv_gid *from, const hk_ibv_gid *to, int ms,
                             char words[HK_IB_CM_WORDS]);
