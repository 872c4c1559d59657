/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the devices: what a connection does about them, and devices that fail and come back. */
#include <stdio.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "ib_device.h"
#include "ib_memory.h"
#include "ib_state.h"
#include "ib_verbs.h"

#define SECOND_NS UINT64_C(1000000000)
enum { MOST_FALLS = 6 };

/* Connections on the device get new queue pairs. Those on a failed completion queue `cq` cannot: it is not known which
 * messages have arrived and were acknowledged by the card. */
static hk_status event_lost(hk_ib_ctx *x, const hk_ib_device *d, const hk_ib_cq *cq, const char *what) {
  for (uint32_t i = 0; i < x->capacity; i++) {
    hk_ib_conn *c = x->conns[i];
    bool concerned = false;
    for (uint32_t p = 0; c && p < c->npaths && !cq; p++) concerned = concerned || c->paths[p].device == d;
    for (uint32_t q = 0; c && q < c->nqps && !concerned; q++) concerned = cq && c->qps[q].cq == cq;
    if (concerned) HK_OR_RETURN(hk_ib_lost(c, what, !cq));
  }
  return HK_OK;
}

static hk_status event_handle(hk_ib_ctx *x, hk_ib_device *d, const hk_ibv_async_event *e) {
  char what[120];
  bool honoured = x->env->settings->IB_RETURN_ASYNC_EVENTS != 0;
  switch (e->event_type) {
    case HK_IBV_EVENT_PORT_ERR:
    case HK_IBV_EVENT_PORT_ACTIVE:
      HK_INFO(HK_SUB_NET, "rank %d: port %d of RDMA device %s is %s", x->env->rank, e->element.port_num, d->name,
              e->event_type == HK_IBV_EVENT_PORT_ERR ? "down" : "up");
      if (e->event_type == HK_IBV_EVENT_PORT_ACTIVE) hk_ib_port_came_back(x, d, e->element.port_num, hk_now_ns());
      return HK_OK;
    case HK_IBV_EVENT_DEVICE_FATAL:
      snprintf(what, sizeof what, "RDMA device %s has failed or is being removed", d->name);
      HK_WARN("rank %d: %s", x->env->rank, what);
      d->gone = honoured;
      d->retry_ns = hk_now_ns() + (SECOND_NS << (d->falls < MOST_FALLS ? d->falls++ : MOST_FALLS));
      return honoured ? event_lost(x, d, NULL, what) : HK_OK;
    case HK_IBV_EVENT_CQ_ERR:
      snprintf(what, sizeof what, "a completion queue of RDMA device %s has overflowed or failed", d->name);
      HK_WARN("rank %d: %s", x->env->rank, what);
      for (int i = 0; i < d->ncqs && honoured; i++)
        if (d->cqs[i].cq == e->element.object) return event_lost(x, d, &d->cqs[i], what);
      return HK_OK;
    default:
      HK_INFO(HK_SUB_NET, "rank %d: RDMA device %s reports event %d", x->env->rank, d->name, e->event_type);
      return HK_OK;
  }
}

hk_status hk_ib_handle_events(hk_ib_ctx *x) {
  for (int i = 0; i < x->ndevices; i++) {
    hk_ib_device *d = &x->devices[i];
    hk_ibv_async_event e;
    while (d->context && x->api->get_async_event(d->context, &e) == 0) {
      x->api->ack_async_event(&e); /* before the queue of the event is destroyed */
      HK_OR_RETURN(event_handle(x, d, &e));
    }
  }
  return HK_OK;
}

/* ---- devices that come back ---- */

static bool event_is_used(const hk_ib_ctx *x, const hk_ib_device *d) {
  for (int i = 0; i < d->ncqs; i++)
    if (d->cqs[i].used) return true;
  for (uint32_t i = 0; i < x->capacity; i++)
    if (x->conns[i] && hk_ib_has_memory_of(x->conns[i], d)) return true;
  return false;
}

/* Connections that use its ports choose again, once these have been up for a while. */
static void event_returned(hk_ib_ctx *x, hk_ib_device *d, uint64_t now) {
  HK_INFO(HK_SUB_NET, "rank %d: RDMA device %s can be opened again", x->env->rank, d->name);
  d->gone = false;
  for (int i = 0; i < x->nports; i++)
    if (strcmp(x->ports[i].device, d->name) == 0) hk_ib_port_came_back(x, d, x->ports[i].number, now);
}

void hk_ib_devices_return(hk_ib_ctx *x, uint64_t now) {
  for (int i = 0; i < x->ndevices; i++) {
    hk_ib_device *d = &x->devices[i];
    if (!d->gone || now < d->retry_ns) continue;
    if (d->context && event_is_used(x, d)) continue;
    if (d->context) {
      hk_ib_user_leave(x, d);
      hk_ib_device_close(x, d);
    }
    d->retry_ns = now + SECOND_NS;
    if (hk_ib_device_open_named(x, d)) event_returned(x, d, now);
  }
}
