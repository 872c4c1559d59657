/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads in a GPU's memory: which cards register it. */
#ifndef HK_TRANSPORT_NET_IB_GPU_H
#define HK_TRANSPORT_NET_IB_GPU_H
#include "ib_conn.h"

/* Finds which ports are near the rank's GPU, and which can register its memory. Sorts x->ports and removes those that
 * do not fit. Before the first connection; takes the lock. */
void hk_ib_gpu_find_ports(hk_ib_ctx *x);
bool hk_ib_takes_gpu(void *ctx, const hk_net_end *e); /* the provider's takes_gpu */
/* Registers the end's payloads in a GPU's memory. Returns NULL with the cause if the card refuses, although it accepted
 * such memory in the trial: if none of the end's payloads is registered yet, they move to host memory, and link->gpu is
 * NULL. */
hk_ibv_mr *hk_ib_gpu_mr(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, char why[160]);
/* Returns true if an end's payloads in GPU memory are not registered yet. Only the lane's thread may do that. */
bool hk_ib_gpu_unsettled(const hk_ib_conn *c);
#endif
