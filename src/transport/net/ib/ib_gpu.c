/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads in a GPU's memory (GPUDirect RDMA). ib_gpu_ports.c finds the cards that register it, and ib_flush.c makes
 * visible to the GPU what they have written. */
#include <stdio.h>
#include "ib_device.h"
#include "ib_gdr.h"
#include "ib_memory.h"
#include "ib_state.h"

bool hk_ib_takes_gpu(void *ctx, const hk_net_end *e) {
  hk_ib_ctx *x = ctx;
  bool ceded = false;
  hk_ib_gpu_find_ports(x);
  if (!x->gpu.direct) return false;
  pthread_mutex_lock(&x->lock); /* another network may carry it already */
  for (uint32_t i = 0; i < x->capacity && !ceded; i++) {
    const hk_ib_conn *c = x->conns[i];
    ceded = c && c->peer == e->key.peer && c->channel == e->key.channel &&
            c->ceded & hk_ib_direction(c, hk_net_sends(e));
  }
  pthread_mutex_unlock(&x->lock);
  return !ceded;
}

static uint8_t ib_gpu_direction_of(const hk_ib_conn *c, const hk_net_end *e) {
  return hk_ib_direction(c, e == c->send);
}

static bool ib_gpu_is_unsettled(const hk_ib_conn *c, const hk_net_end *e) {
  return e && e->link->gpu && e->link->payload && !(c->gpu.on_cards & ib_gpu_direction_of(c, e));
}
bool hk_ib_gpu_unsettled(const hk_ib_conn *c) {
  return ib_gpu_is_unsettled(c, c->send) || ib_gpu_is_unsettled(c, c->recv);
}

hk_ibv_mr *hk_ib_gpu_mr(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, char why[160]) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_gpu_memory m = {.why = "it is on another rail's port"};
  size_t bytes = hk_round_up(hk_ib_ring_bytes(c), HK_DEVICE_PAGE);
  if (!hk_ib_my_port(c, w)->far)
    hk_ib_gpu_register(x->env->settings, x->api, w->device->pd, e->link->gpu, e->link->payload, bytes, &m);
  if (m.mr) {
    hk_ib_count_pinned(x, m.mr);
    c->gpu.on_cards |= ib_gpu_direction_of(c, e);
    return m.mr;
  }
  snprintf(why, 160, "%.20s takes no memory of GPU %d: %.100s", w->device->name, e->link->gpu->limits.ordinal, m.why);
  if (ib_gpu_is_unsettled(c, e) && hk_net_move_to_host(e, why) != HK_OK) snprintf(why, 160, "%.159s", hk_last_error());
  return NULL;
}
