/* SPDX-License-Identifier: Apache-2.0 */
/* The FIFOs of a connection's ends: registering them, announcing them to the peer, and the fallback to another network
 * if that is refused. */
#include <stdio.h>
#include "../../../base/log.h"
#include "ib_data.h"
#include "ib_device.h"
#include "ib_state.h"

/* A registration's mr->addr is an offset in a dma-buf, not the address. */
void hk_ib_fill_rings(const hk_ib_conn *c, hk_ib_msg *m) {
  for (uint32_t i = 0; i < c->npaths && c->recv; i++) {
    m->ring[i] = hk_ib_memory_of(c->paths[i].recv_mr);
    if (c->paths[i].recv_mr) m->ring[i].addr = (uint64_t)(uintptr_t)c->recv->link->payload;
    m->ring[i].flags = HK_IB_OPEN | (hk_link_on_gpu(c->recv->link, 1) ? HK_IB_ON_GPU : 0);
  }
}

static void rings_cede(hk_ib_conn *c, uint8_t directions) {
  hk_ib_ctx *x = c->ctx;
  x->ceding = true;
  c->ceded |= directions;
  if (c->ceded == HK_IB_BOTH) {
    hk_ib_drop_qps(c);
    hk_ib_free_memory(c);
    c->serial = ++x->serial;
  }
}

/* Returns true if there is an end in these directions that no other network can carry. Both ranks get the same
 * result. */
static bool rings_lack_fallback(const hk_ib_conn *c, uint8_t directions) {
  return (c->send && directions & hk_ib_direction(c, true) && !hk_net_has_fallback(c->send)) ||
         (c->recv && directions & hk_ib_direction(c, false) && !hk_net_has_fallback(c->recv));
}

hk_status hk_ib_cannot_register(hk_ib_conn *c, hk_ib_path *path, uint8_t directions, const char *why) {
  if (path != c->paths) {
    path->bad = true;
    snprintf(c->repair.cause, sizeof c->repair.cause, "%.190s", why);
    return hk_ib_repair(c, HK_IB_MORE_MEMORY);
  }
  if (rings_lack_fallback(c, directions))
    return HK_FAIL(HK_ERR_SYSTEM, "rank %d: %s: if that is too little, " HK_IB_MORE_MEMORY ", or NCCL_IB_DISABLE=1",
                   c->ctx->env->rank, why);
  hk_ib_msg m = {.kind = HK_IB_CEDE, .cede.directions = directions};
  snprintf(m.cede.cause, sizeof m.cede.cause, "%.150s", why);
  hk_ib_ctx *x = c->ctx;
  if (!x->scarce_reported)
    HK_WARN("rank %d: %s; TCP carries channel %d to rank %d instead, and perhaps others (see "
            "NCCL_DEBUG=INFO): " HK_IB_MORE_MEMORY,
            x->env->rank, why, c->channel, c->peer);
  else
    HK_INFO(HK_SUB_NET, "rank %d: %s; TCP carries channel %d to rank %d instead", x->env->rank, why, c->channel,
            c->peer);
  x->scarce_reported = true;
  rings_cede(c, directions);
  return hk_ib_send_message(c, &m);
}

hk_status hk_ib_ceded(hk_ib_conn *c, const hk_ib_msg *m) {
  char cause[200];
  snprintf(cause, sizeof cause, "it reports: %.150s", m->cede.cause);
  if (rings_lack_fallback(c, m->cede.directions)) return hk_ib_fail(c, cause, "there, " HK_IB_MORE_MEMORY);
  HK_INFO(HK_SUB_NET, "rank %d: TCP carries channel %d to rank %d, which reports: %.150s", c->ctx->env->rank,
          c->channel, c->peer, m->cede.cause);
  rings_cede(c, m->cede.directions & HK_IB_BOTH);
  return HK_OK;
}

bool hk_ib_starves(hk_ib_conn *c) {
  if (!c->recv || c->recv->link->payload) return false;
  atomic_store_explicit(&c->recv->link->needs_buffer, 1, memory_order_relaxed); /* relaxed: it is only a hint to look */
  return true;
}

hk_status hk_ib_add_end(hk_ib_conn *c, const hk_net_end *e) {
  char why[160];
  bool sends = e == c->send;
  if (c->ceded & hk_ib_direction(c, sends)) {
    c->ctx->ceding = true;
    return HK_OK;
  }
  if (!c->nqps) return HK_OK; /* the epoch's message will contain it */
  hk_ib_path *refused = hk_ib_register_rings(c, why);
  if (refused) return hk_ib_cannot_register(c, refused, hk_ib_direction(c, sends), why);
  if (sends) return HK_OK;
  hk_ib_msg m = {.kind = HK_IB_RING};
  hk_ib_fill_rings(c, &m);
  return hk_ib_send_message(c, &m);
}

hk_status hk_ib_grown(hk_ib_conn *c, const hk_net_end *e) {
  char why[160];
  if (!c->nqps) return HK_OK; /* the epoch's message will contain it */
  hk_ib_path *refused = hk_ib_register_rings(c, why);
  if (refused && refused != c->paths) return hk_ib_cannot_register(c, refused, HK_IB_BOTH, why);
  if (refused) /* small messages have come already: no other network can take over */
    return HK_FAIL(HK_ERR_SYSTEM, "rank %d: %s: if that is too little, " HK_IB_MORE_MEMORY ", or NCCL_IB_DISABLE=1",
                   c->ctx->env->rank, why);
  if (e == c->send || !c->paths[0].recv_mr) return HK_OK;
  hk_ib_msg m = {.kind = HK_IB_RING};
  hk_ib_fill_rings(c, &m);
  return hk_ib_send_message(c, &m);
}

hk_status hk_ib_provide_ring(hk_ib_conn *c) {
  if (!c->recv || c->paths[0].recv_mr || hk_ib_starves(c)) return HK_OK;
  return hk_ib_grown(c, c->recv);
}
