/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of queue pairs: what ends one, and how both ranks begin the next one. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "../../../base/log.h"
#include "ib_data.h"
#include "ib_device.h"
#include "ib_state.h"
#include "ib_verbs.h"

/* Stops the queue pairs, takes in everything that has arrived, and destroys them. Nothing arrives after it. */
static hk_status epoch_end(hk_ib_conn *c) {
  hk_status rc = HK_OK;
  bool moved;
  if (!c->nqps) return HK_OK;
  hk_ibv_qp_attr error = {.qp_state = HK_IBV_QPS_ERR};
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].qp) c->ctx->api->modify_qp(c->qps[i].qp, &error, HK_IBV_QP_STATE);
  c->repair.ending = true;
  HK_TRY(hk_ib_poll(c->ctx, &moved), out);
  (void)hk_ib_received(c);
out:
  c->repair.ending = false;
  hk_ib_drop_qps(c);
  c->serial = ++c->ctx->serial;
  return rc;
}

/* The peer may not know whether its last messages have arrived, and cannot ask afterwards. */
void hk_ib_send_bye(hk_ib_conn *c) {
  hk_ib_msg end = {.kind = HK_IB_END};
  if (c->failed && c->control.fd >= 0 && !c->control.eof) (void)hk_ib_send_message(c, &end);
  if (!c->control.greeted || c->failed || c->control.eof || c->ceded == HK_IB_BOTH || epoch_end(c) != HK_OK) return;
  hk_ib_msg m = {.kind = HK_IB_BYE, .received = c->rx.received};
  (void)hk_ib_send_message(c, &m);
}

/* Makes this epoch's queue pairs on the chosen paths, and their description in c->ours. *made is false if memory could
 * not be registered, which has been handled. */
static hk_status epoch_prepare(hk_ib_conn *c, uint32_t nqps, bool *made) {
  *made = true;
  hk_ib_ctx *x = c->ctx;
  char why[160];
  hk_ib_path *refused;
  HK_OR_RETURN(hk_ib_open_paths(c, &refused, why));
  if (refused) {
    *made = false;
    /* Once the connection was up, messages may be under way that only this connection can send again. */
    if (refused != c->paths || !c->repair.up_ns) return hk_ib_cannot_register(c, refused, HK_IB_BOTH, why);
    return HK_FAIL(HK_ERR_SYSTEM, "rank %d: %s: if that is too little, " HK_IB_MORE_MEMORY, x->env->rank, why);
  }
  hk_ib_measure(c);
  HK_OR_RETURN(hk_ib_make_qps(c, nqps));
  hk_ib_describe_path(c, &c->paths[0], c->ports.route);
  c->ours =
      (hk_ib_epoch){.nqps = (uint8_t)nqps, .psn = (c->serial * 2654435761u) & 0xffffff, .received = hk_ib_received(c)};
  hk_ib_fill_paths(c);
  for (uint32_t i = 0; i < c->npaths; i++) c->ours.arena[i] = hk_ib_memory_of(c->paths[i].arena_mr);
  for (uint32_t i = 0; i < nqps; i++) c->ours.qp[i] = c->qps[i].qp->qp_num;
  /* acquire: as in send_fill_header */
  if (c->recv) c->ours.consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
  c->rx.returned = c->ours.consumed;
  return HK_OK;
}

static hk_status epoch_send(hk_ib_conn *c) {
  hk_ib_fill_ece(c);
  hk_ib_msg m = {.kind = HK_IB_EPOCH, .epoch_info = c->ours};
  hk_ib_fill_rings(c, &m);
  return hk_ib_send_message(c, &m);
}

/* Returns true, with errno, if a device of the chosen ports has failed or cannot be opened. */
static bool epoch_device_failed(hk_ib_conn *c) {
  hk_ib_device *d;
  hk_ib_leave_devices(c);
  for (hk_ib_path *w = c->paths; w < c->paths + c->npaths; w++)
    w->bad = hk_ib_device_open(c->ctx, hk_ib_my_port(c, w)->device, &d) != HK_OK || d->gone;
  for (const hk_ib_path *w = c->paths; w < c->paths + c->npaths; w++) {
    if (!w->bad) continue;
    errno = ENODEV;
    return true;
  }
  return false;
}

static hk_status epoch_cannot_join(hk_ib_conn *c);

hk_status hk_ib_epoch_begin(hk_ib_conn *c) {
  bool made;
  HK_OR_RETURN(epoch_end(c));
  hk_ib_choose_paths(c);
  c->epoch++;
  c->repair.attempts++;
  if (epoch_device_failed(c)) return epoch_cannot_join(c);
  uint32_t nqps = c->ports.nqps * c->npaths + c->apart;
  if (nqps > HK_IB_QPS) {
    HK_INFO(HK_SUB_NET, "rank %d: channel %d to rank %d gets %d queue pairs on %u paths: a connection has no more",
            c->ctx->env->rank, c->channel, c->peer, HK_IB_QPS, c->npaths);
    nqps = HK_IB_QPS;
  }
  HK_OR_RETURN(epoch_prepare(c, nqps, &made));
  if (!made) return HK_OK;
  HK_OR_RETURN(epoch_send(c));
  if (c->phase != HK_IB_FAILED) c->phase = HK_IB_PAIRING;
  return HK_OK;
}

/* Handles queue pairs that could not be connected (errno): the port is down, or its GID is gone. */
static hk_status epoch_cannot_join(hk_ib_conn *c) {
  int err = errno;
  hk_ib_device *d;
  const hk_ib_path *w = c->paths;
  while (!w->bad && w + 1 < c->paths + c->npaths) w++;
  const hk_ib_port *port = hk_ib_my_port(c, w);
  bool open = hk_ib_device_open(c->ctx, port->device, &d) == HK_OK;
  snprintf(c->repair.cause, sizeof c->repair.cause, "queue pairs cannot be connected: %s; port %d of %s is %s",
           strerror(err), port->number, port->device,
           open ? hk_ib_port_state(c->ctx, d, port->number) : "unknown, as the device cannot be opened");
  return hk_ib_repair(c, "check the port's state and its GIDs (hocket doctor)");
}

/* The rank that begins epochs may not have rested: then it gets a message of this one. */
static hk_status epoch_go_on(hk_ib_conn *c) {
  hk_ib_msg m = {.kind = HK_IB_BROKEN};
  snprintf(m.broken.text, sizeof m.broken.text, "the connection was suspended");
  c->phase = HK_IB_PAIRING;
  hk_ib_stir(c);
  return c->dials ? hk_ib_epoch_begin(c) : hk_ib_send_message(c, &m);
}

hk_status hk_ib_rest(void *ctx, hk_net_end *e, bool *rests) {
  hk_ib_ctx *x = ctx;
  hk_ib_conn *c = e->priv;
  hk_status rc = HK_OK;
  pthread_mutex_lock(&x->lock);
  if (!*rests && c->phase == HK_IB_RESTING) {
    rc = epoch_go_on(c);
  } else if (*rests && c->phase == HK_IB_UP && !c->ceded && !c->control.eof) {
    rc = epoch_end(c);
    hk_ib_free_memory(c);
    c->phase = HK_IB_RESTING;
    c->repair.rested = true;
  }
  *rests = c->phase == HK_IB_RESTING;
  pthread_mutex_unlock(&x->lock);
  return rc;
}

static hk_status epoch_join(hk_ib_conn *c, const hk_ib_epoch *theirs, const hk_ib_memory ring[HK_IB_PATHS]) {
  for (uint32_t i = 0; i < c->npaths; i++) {
    c->paths[i].peer_arena = theirs->arena[i];
    c->paths[i].peer_ring = ring[i];
  }
  hk_ib_rewind(c, theirs->received, theirs->consumed);
  c->places.announced = 0; /* places have other keys in this epoch */
  c->tx.asked = false;
  return hk_ib_join_qps(c, theirs);
}

/* Reports that this rank can receive: the peer may send. */
static hk_status epoch_ready(hk_ib_conn *c) {
  hk_ib_msg m = {.kind = HK_IB_READY};
  c->phase = HK_IB_READYING;
  return hk_ib_send_message(c, &m);
}

hk_status hk_ib_epoch_came(hk_ib_conn *c, const hk_ib_msg *m) {
  const hk_ib_epoch *t = &m->epoch_info;
  if (!c->control.greeted || t->nqps < 1 + c->apart || t->nqps > HK_IB_QPS)
    return hk_ib_bad_message(c, "its description of queue pairs is not valid");
  if (c->dials) {
    if (m->epoch != c->epoch || c->phase != HK_IB_PAIRING) return HK_OK; /* from an earlier epoch */
    if (t->nqps != c->nqps || t->npaths != c->npaths)
      return hk_ib_bad_message(c, "its description of queue pairs is not valid");
  } else {
    HK_OR_RETURN(epoch_end(c));
    c->epoch = m->epoch;
    if (c->epoch > 1 && !c->repair.rested) hk_ib_note_failure(c, hk_now_ns());
    c->repair.attempts++;
    if (!hk_ib_take_paths(c, t)) return hk_ib_bad_message(c, "it chose ports that were not offered");
    if (epoch_device_failed(c)) return epoch_cannot_join(c);
    bool made;
    HK_OR_RETURN(epoch_prepare(c, t->nqps, &made));
    if (!made) return HK_OK;
  }
  if (c->send && !hk_ib_can_rewind(c, t->received))
    return hk_ib_fail(c, "it lacks a message whose arrival its card has acknowledged", "see both hosts' kernel logs");
  if (epoch_join(c, t, m->ring) != HK_OK) return epoch_cannot_join(c);
  if (!c->dials) HK_OR_RETURN(epoch_send(c));
  return epoch_ready(c);
}

void hk_ib_epoch_up(hk_ib_conn *c) {
  c->phase = HK_IB_UP;
  c->repair.came = false;
  c->repair.up_ns = hk_now_ns();
  /* relaxed: the state says nothing about other memory */
  if (c->send) atomic_store_explicit(&c->send->link->state, HK_LINK_READY, memory_order_relaxed);
  if (c->recv) atomic_store_explicit(&c->recv->link->state, HK_LINK_READY, memory_order_relaxed);
  const uint32_t data = hk_ib_data_qps(c);
  for (uint32_t i = 0; i < c->npaths; i++) {
    char words[64], route[HK_IB_ROUTE];
    const hk_ib_path *w = &c->paths[i];
    hk_ib_describe_path(c, w, route);
    HK_INFO(
        HK_SUB_NET,
        "rank %d: channel %d to rank %d %sover %s: %s, pair %d of %d, %u queue pair%s, MTU %d, round trip %u us: sent "
        "again after %.0f ms%s",
        c->ctx->env->rank, c->channel, c->peer, i ? "also " : "", route,
        hk_ib_pair_words(c->ports.mine, c->ports.theirs, &c->ports.pairs[w->pair], words), w->pair + 1, c->ports.npairs,
        (data - i + c->npaths - 1) / c->npaths, data - i <= c->npaths ? "" : "s", 128 << c->ours.paths[i].mtu,
        c->round_trip_us, (double)(4096ull << c->timeout) / 1e6,
        c->epoch <= 1      ? ""
        : c->repair.rested ? ", after a rest"
                           : ", after a failure");
  }
  c->repair.rested = false;
}
