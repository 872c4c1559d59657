/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: the control socket and its messages, and epochs of queue pairs. ib_repair.c handles failures. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../base/tcp.h"
#include "ib.h"

#define MS 1000000u
enum { LOOK_MS = 50 }; /* between two reads of the control socket of a connection that is up */

/* ---- the control socket ---- */

hk_status hk_ib_send_message(hk_ib_conn *c, hk_ib_msg *m) {
  m->magic = HK_IB_MAGIC;
  m->epoch = c->epoch;
  m->nslots = c->ctx->env->nslots;
  m->slot_bytes = (uint32_t)c->ctx->env->slot_bytes;
  ssize_t n = hk_tcp_send(c->fd, m, sizeof *m);
  if (n == (ssize_t)sizeof *m) return HK_OK;
  if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) { /* an error only if a lane still waits */
    c->eof = true;
    return HK_OK;
  }
  return hk_ib_fail(c, n < 0 ? strerror(errno) : "the control connection takes no more",
                    "check the TCP network between the hosts");
}

static hk_ib_memory memory_of(const hk_ibv_mr *mr) {
  return mr ? (hk_ib_memory){.addr = (uint64_t)(uintptr_t)mr->addr, .rkey = mr->rkey} : (hk_ib_memory){0};
}

/* Fills in the FIFO's registrations. Its address is not mr->addr, which is an offset in a dma-buf. */
static void fill_rings(const hk_ib_conn *c, hk_ib_msg *m) {
  for (uint32_t i = 0; i < c->npaths && c->recv; i++) {
    m->ring[i] = memory_of(c->paths[i].recv_mr);
    if (c->paths[i].recv_mr) m->ring[i].addr = (uint64_t)(uintptr_t)c->recv->link->payload;
    m->ring[i].flags = HK_IB_OPEN | (hk_link_on_gpu(c->recv->link, 1) ? HK_IB_ON_GPU : 0);
  }
}

/* ---- fallback to another network ---- */

static void cede(hk_ib_conn *c, uint8_t directions) {
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
static bool lacks_fallback(const hk_ib_conn *c, uint8_t directions) {
  return (c->send && directions & hk_ib_direction(c, true) && !hk_net_has_fallback(c->send)) ||
         (c->recv && directions & hk_ib_direction(c, false) && !hk_net_has_fallback(c->recv));
}

/* Handles memory that cannot be registered. The connection does without the path; if it is the first path, another
 * network carries these directions, if there is one. */
static hk_status cannot_register(hk_ib_conn *c, hk_ib_path *path, uint8_t directions, const char *why) {
  if (path != c->paths) {
    path->bad = true;
    snprintf(c->cause, sizeof c->cause, "%.190s", why);
    return hk_ib_repair(c, HK_IB_MORE_MEMORY);
  }
  if (lacks_fallback(c, directions))
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
  cede(c, directions);
  return hk_ib_send_message(c, &m);
}

static hk_status on_cede(hk_ib_conn *c, const hk_ib_msg *m) {
  char cause[200];
  snprintf(cause, sizeof cause, "it reports: %.150s", m->cede.cause);
  if (lacks_fallback(c, m->cede.directions)) return hk_ib_fail(c, cause, "there, " HK_IB_MORE_MEMORY);
  HK_INFO(HK_SUB_NET, "rank %d: TCP carries channel %d to rank %d, which reports: %.150s", c->ctx->env->rank,
          c->channel, c->peer, m->cede.cause);
  cede(c, m->cede.directions & HK_IB_BOTH);
  return HK_OK;
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
  if (refused) return cannot_register(c, refused, hk_ib_direction(c, sends), why);
  if (sends) return HK_OK;
  hk_ib_msg m = {.kind = HK_IB_RING};
  fill_rings(c, &m);
  return hk_ib_send_message(c, &m);
}

bool hk_ib_starves(hk_ib_conn *c) {
  if (!c->recv || c->recv->link->payload) return false;
  atomic_store_explicit(&c->recv->link->needs_buffer, 1, memory_order_relaxed); /* relaxed: it is only a hint to look */
  return true;
}

hk_status hk_ib_provide_ring(hk_ib_conn *c) {
  if (!c->recv || c->paths[0].recv_mr || hk_ib_starves(c)) return HK_OK;
  return hk_ib_grown(c, c->recv);
}

hk_status hk_ib_grown(hk_ib_conn *c, const hk_net_end *e) {
  char why[160];
  if (!c->nqps) return HK_OK; /* the epoch's message will contain it */
  hk_ib_path *refused = hk_ib_register_rings(c, why);
  if (refused && refused != c->paths) return cannot_register(c, refused, HK_IB_BOTH, why);
  if (refused) /* small messages have come already: no other network can take over */
    return HK_FAIL(HK_ERR_SYSTEM, "rank %d: %s: if that is too little, " HK_IB_MORE_MEMORY ", or NCCL_IB_DISABLE=1",
                   c->ctx->env->rank, why);
  if (e == c->send || !c->paths[0].recv_mr) return HK_OK;
  hk_ib_msg m = {.kind = HK_IB_RING};
  fill_rings(c, &m);
  return hk_ib_send_message(c, &m);
}

static hk_status send_hello(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_msg m = {.kind = HK_IB_HELLO};
  hk_ib_control_begin(c);
  /* Ranks of a host, and channels of a rank, begin with different near ports. Each path of a connection registers the
   * same memory again, so there is only one if locked memory is scarce. */
  c->nmine = hk_ib_offer(x->ports, x->nports, x->nnear, x->local + c->channel, c->mine);
  for (int i = 0; i < c->nmine && x->scarce; i++) c->mine[i].card = (uint8_t)i;
  m.hello.nports = (uint32_t)c->nmine;
  m.hello.nqps = (uint32_t)hk_param_int(HK_P_IB_QPS_PER_CONNECTION);
  m.hello.apart = c->apart = hk_ib_wants_apart(c);
  memcpy(m.hello.ports, c->mine, sizeof m.hello.ports);
  c->phase = HK_IB_GREETING;
  return hk_ib_send_message(c, &m);
}

/* ---- epochs ---- */

/* Stops the queue pairs, takes in everything that has arrived, and destroys them. Nothing arrives after it. */
static hk_status end_epoch(hk_ib_conn *c) {
  hk_status rc = HK_OK;
  bool moved;
  if (!c->nqps) return HK_OK;
  hk_ibv_qp_attr error = {.qp_state = HK_IBV_QPS_ERR};
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].qp) c->ctx->api->modify_qp(c->qps[i].qp, &error, HK_IBV_QP_STATE);
  c->ending = true;
  HK_TRY(hk_ib_poll(c->ctx, &moved), out);
  (void)hk_ib_received(c);
out:
  c->ending = false;
  hk_ib_drop_qps(c);
  c->serial = ++c->ctx->serial;
  return rc;
}

/* The peer may not know whether its last messages have arrived, and cannot ask afterwards. */
void hk_ib_send_bye(hk_ib_conn *c) {
  hk_ib_msg end = {.kind = HK_IB_END};
  if (c->failed && c->fd >= 0 && !c->eof) (void)hk_ib_send_message(c, &end);
  if (!c->greeted || c->failed || c->eof || c->ceded == HK_IB_BOTH || end_epoch(c) != HK_OK) return;
  hk_ib_msg m = {.kind = HK_IB_BYE, .received = c->received};
  (void)hk_ib_send_message(c, &m);
}

/* Makes this epoch's queue pairs on the chosen paths, and their description in c->ours. *made is false if memory could
 * not be registered, which has been handled. */
static hk_status prepare(hk_ib_conn *c, uint32_t nqps, bool *made) {
  *made = true;
  hk_ib_ctx *x = c->ctx;
  char why[160];
  hk_ib_path *refused;
  HK_OR_RETURN(hk_ib_open_paths(c, &refused, why));
  if (refused) {
    *made = false;
    /* Once the connection was up, messages may be under way that only this connection can send again. */
    if (refused != c->paths || !c->up_ns) return cannot_register(c, refused, HK_IB_BOTH, why);
    return HK_FAIL(HK_ERR_SYSTEM, "rank %d: %s: if that is too little, " HK_IB_MORE_MEMORY, x->env->rank, why);
  }
  hk_ib_measure(c);
  HK_OR_RETURN(hk_ib_make_qps(c, nqps));
  hk_ib_describe_path(c, &c->paths[0], c->route);
  c->ours =
      (hk_ib_epoch){.nqps = (uint8_t)nqps, .psn = (c->serial * 2654435761u) & 0xffffff, .received = hk_ib_received(c)};
  hk_ib_fill_paths(c);
  for (uint32_t i = 0; i < c->npaths; i++) c->ours.arena[i] = memory_of(c->paths[i].arena_mr);
  for (uint32_t i = 0; i < nqps; i++) c->ours.qp[i] = c->qps[i].qp->qp_num;
  /* acquire: as in send_fill_header */
  if (c->recv) c->ours.consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
  c->returned = c->ours.consumed;
  return HK_OK;
}

static hk_status send_epoch(hk_ib_conn *c) {
  hk_ib_fill_ece(c);
  hk_ib_msg m = {.kind = HK_IB_EPOCH, .epoch_info = c->ours};
  fill_rings(c, &m);
  return hk_ib_send_message(c, &m);
}

/* Returns true, with errno, if a device of the chosen ports has failed or cannot be opened. */
static bool device_failed(hk_ib_conn *c) {
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

static hk_status cannot_join(hk_ib_conn *c);

/* Begins an epoch: the lower rank. */
static hk_status begin_epoch(hk_ib_conn *c) {
  bool made;
  HK_OR_RETURN(end_epoch(c));
  hk_ib_choose_paths(c);
  c->epoch++;
  c->attempts++;
  if (device_failed(c)) return cannot_join(c);
  uint32_t nqps = c->peer_nqps * c->npaths + c->apart;
  if (nqps > HK_IB_QPS) {
    HK_INFO(HK_SUB_NET, "rank %d: channel %d to rank %d gets %d queue pairs on %u paths: a connection has no more",
            c->ctx->env->rank, c->channel, c->peer, HK_IB_QPS, c->npaths);
    nqps = HK_IB_QPS;
  }
  HK_OR_RETURN(prepare(c, nqps, &made));
  if (!made) return HK_OK;
  HK_OR_RETURN(send_epoch(c));
  if (c->phase != HK_IB_FAILED) c->phase = HK_IB_PAIRING;
  return HK_OK;
}

/* Handles queue pairs that could not be connected (errno): the port is down, or its GID is gone. */
static hk_status cannot_join(hk_ib_conn *c) {
  int err = errno;
  hk_ib_device *d;
  const hk_ib_path *w = c->paths;
  while (!w->bad && w + 1 < c->paths + c->npaths) w++;
  const hk_ib_port *port = hk_ib_my_port(c, w);
  bool open = hk_ib_device_open(c->ctx, port->device, &d) == HK_OK;
  snprintf(c->cause, sizeof c->cause, "queue pairs cannot be connected: %s; port %d of %s is %s", strerror(err),
           port->number, port->device,
           open ? hk_ib_port_state(c->ctx, d, port->number) : "unknown, as the device cannot be opened");
  return hk_ib_repair(c, "check the port's state and its GIDs (hocket doctor)");
}

/* The rank that begins epochs may not have rested: then it gets a message of this one. */
static hk_status go_on(hk_ib_conn *c) {
  hk_ib_msg m = {.kind = HK_IB_BROKEN};
  snprintf(m.broken.text, sizeof m.broken.text, "the connection was suspended");
  c->phase = HK_IB_PAIRING;
  hk_ib_stir(c);
  return c->dials ? begin_epoch(c) : hk_ib_send_message(c, &m);
}

hk_status hk_ib_rest(void *ctx, hk_net_end *e, bool *rests) {
  hk_ib_ctx *x = ctx;
  hk_ib_conn *c = e->priv;
  hk_status rc = HK_OK;
  pthread_mutex_lock(&x->lock);
  if (!*rests && c->phase == HK_IB_RESTING) {
    rc = go_on(c);
  } else if (*rests && c->phase == HK_IB_UP && !c->ceded && !c->eof) {
    rc = end_epoch(c);
    hk_ib_free_memory(c);
    c->phase = HK_IB_RESTING;
    c->rested = true;
  }
  *rests = c->phase == HK_IB_RESTING;
  pthread_mutex_unlock(&x->lock);
  return rc;
}

/* ---- the peer's messages ---- */

static hk_status bad_message(hk_ib_conn *c, const char *what) {
  return hk_ib_fail(c, what, "do all ranks run the same version of this library, with the same settings?");
}

static hk_status on_hello(hk_ib_conn *c, const hk_ib_msg *m) {
  uint32_t mine = (uint32_t)hk_param_int(HK_P_IB_QPS_PER_CONNECTION);
  if (c->greeted || m->hello.nports > HK_IB_OFFERED || m->nslots != c->ctx->env->nslots ||
      m->slot_bytes != c->ctx->env->slot_bytes)
    return bad_message(c, "its first control message is not valid");
  c->greeted = true;
  c->ntheirs = (int)m->hello.nports;
  memcpy(c->theirs, m->hello.ports, sizeof c->theirs);
  for (int i = 0; i < c->ntheirs; i++) {
    c->theirs[i].device[HK_IB_NAME - 1] = '\0';
    if (c->theirs[i].ngids > HK_IB_GIDS) c->theirs[i].ngids = HK_IB_GIDS;
  }
  c->peer_nqps = m->hello.nqps < mine ? m->hello.nqps : mine;
  if (c->peer_nqps < 1) c->peer_nqps = 1;
  c->apart = c->apart || (m->hello.apart && !c->remote.n);
  c->npairs = hk_ib_pairs(c->mine, c->nmine, c->theirs, c->ntheirs, c->dials, c->ctx->wish.version, c->pairs);
  if (!c->npairs)
    return hk_ib_fail(c, "no GID of this rank's ports is of the same kind and address family as one of the other's",
                      "give the interfaces of both hosts addresses of one family, or choose with NCCL_IB_HCA, "
                      "NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY");
  c->phase = HK_IB_PAIRING;
  return c->dials ? begin_epoch(c) : HK_OK;
}

static hk_status join(hk_ib_conn *c, const hk_ib_epoch *theirs, const hk_ib_memory ring[HK_IB_PATHS]) {
  for (uint32_t i = 0; i < c->npaths; i++) {
    c->paths[i].peer_arena = theirs->arena[i];
    c->paths[i].peer_ring = ring[i];
  }
  hk_ib_rewind(c, theirs->received, theirs->consumed);
  c->announced = 0; /* places have other keys in this epoch */
  c->asked = false;
  return hk_ib_join_qps(c, theirs);
}

/* Reports that this rank can receive: the peer may send. */
static hk_status ready(hk_ib_conn *c) {
  hk_ib_msg m = {.kind = HK_IB_READY};
  c->phase = HK_IB_READYING;
  return hk_ib_send_message(c, &m);
}

static hk_status on_epoch(hk_ib_conn *c, const hk_ib_msg *m) {
  const hk_ib_epoch *t = &m->epoch_info;
  if (!c->greeted || t->nqps < 1 + c->apart || t->nqps > HK_IB_QPS)
    return bad_message(c, "its description of queue pairs is not valid");
  if (c->dials) {
    if (m->epoch != c->epoch || c->phase != HK_IB_PAIRING) return HK_OK; /* from an earlier epoch */
    if (t->nqps != c->nqps || t->npaths != c->npaths)
      return bad_message(c, "its description of queue pairs is not valid");
  } else {
    HK_OR_RETURN(end_epoch(c));
    c->epoch = m->epoch;
    if (c->epoch > 1 && !c->rested) hk_ib_note_failure(c, hk_now_ns());
    c->attempts++;
    if (!hk_ib_take_paths(c, t)) return bad_message(c, "it chose ports that were not offered");
    if (device_failed(c)) return cannot_join(c);
    bool made;
    HK_OR_RETURN(prepare(c, t->nqps, &made));
    if (!made) return HK_OK;
  }
  if (c->send && !hk_ib_can_rewind(c, t->received))
    return hk_ib_fail(c, "it lacks a message whose arrival its card has acknowledged", "see both hosts' kernel logs");
  if (join(c, t, m->ring) != HK_OK) return cannot_join(c);
  if (!c->dials) HK_OR_RETURN(send_epoch(c));
  return ready(c);
}

static void come_up(hk_ib_conn *c) {
  c->phase = HK_IB_UP;
  c->came = false;
  c->up_ns = hk_now_ns();
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
        hk_ib_pair_words(c->mine, c->theirs, &c->pairs[w->pair], words), w->pair + 1, c->npairs,
        (data - i + c->npaths - 1) / c->npaths, data - i <= c->npaths ? "" : "s", 128 << c->ours.paths[i].mtu,
        c->round_trip_us, (double)(4096ull << c->timeout) / 1e6,
        c->epoch <= 1 ? ""
        : c->rested   ? ", after a rest"
                      : ", after a failure");
  }
  c->rested = false;
}

/* The peer reports that its requests have failed. */
static hk_status on_broken(hk_ib_conn *c, const hk_ib_msg *m) {
  if (m->epoch != c->epoch || !c->dials || c->phase == HK_IB_BACKING_OFF) return HK_OK;
  snprintf(c->cause, sizeof c->cause, "rank %d reports: %.150s", c->peer, m->broken.text);
  for (uint32_t i = 0; i < c->npaths; i++) c->paths[i].bad = c->paths[i].bad || m->broken.bad >> i & 1;
  return hk_ib_repair(c, "look at that rank's output");
}

static hk_status on_ring(hk_ib_conn *c, const hk_ib_msg *m) {
  for (uint32_t i = 0; i < c->npaths && m->epoch == c->epoch; i++) c->paths[i].peer_ring = m->ring[i];
  if (c->npaths && c->paths[0].peer_ring.addr) c->asked = false;
  return HK_OK;
}

static hk_status on_message(hk_ib_conn *c, const hk_ib_msg *m) {
  if (m->magic != HK_IB_MAGIC) return bad_message(c, "its control message is not valid");
  switch (m->kind) {
    case HK_IB_HELLO: return on_hello(c, m);
    case HK_IB_EPOCH: return on_epoch(c, m);
    case HK_IB_RING: return on_ring(c, m);
    case HK_IB_READY:
      if (m->epoch == c->epoch && c->phase == HK_IB_READYING) come_up(c);
      return HK_OK;
    case HK_IB_BROKEN: return on_broken(c, m);
    case HK_IB_BYE:
      c->bye = true;
      if (m->received >= c->posted) hk_ib_rewind(c, m->received, c->credit);
      return HK_OK;
    case HK_IB_END: c->gone = true; return HK_OK;
    case HK_IB_CEDE: return on_cede(c, m);
    case HK_IB_ASK: return hk_ib_remote_asked(c, m);
    case HK_IB_KEYS: return hk_ib_remote_answered(c, m);
    default: return bad_message(c, "its control message is not valid");
  }
}

static hk_status read_messages(hk_ib_conn *c) {
  while (!c->eof && c->phase != HK_IB_FAILED && c->ceded != HK_IB_BOTH) {
    ssize_t n = hk_tcp_recv(c->fd, (char *)&c->in + c->in_got, sizeof c->in - c->in_got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      snprintf(c->cause, sizeof c->cause, "%s", n < 0 ? strerror(errno) : "the other side closed it");
      c->eof = true;
      break;
    }
    c->in_got += (uint32_t)n;
    if (c->in_got < sizeof c->in) continue;
    c->in_got = 0;
    c->in.broken.text[sizeof c->in.broken.text - 1] = '\0';
    HK_OR_RETURN(on_message(c, &c->in));
  }
  return HK_OK;
}

/* Returns true if a lane waits for this connection. */
static bool needed(const hk_ib_conn *c) {
  return c->remote.busy || (c->recv && hk_link_waits(c->recv->link) == HK_LINK_WAITS) ||
         (c->send && (c->posted != c->given || hk_net_filled(c->send, c->posted)));
}

/* A peer that gets no answer in time connects again and closes the first control socket. If this rank has taken the
 * closed one, it drops it and waits for the next. */
static bool dial_abandoned(hk_ib_conn *c) {
  if (!c->eof || c->greeted || c->dials) return false;
  hk_tcp_close(c->fd);
  c->fd = -1;
  c->eof = false;
  c->in_got = 0;
  c->nmine = 0;
  c->phase = HK_IB_DIALING;
  return true;
}

hk_status hk_ib_conn_step(hk_ib_conn *c, uint64_t now) {
  hk_ib_ctx *x = c->ctx;
  if (c->failed) return !x->serving && needed(c) ? c->failed : HK_OK;
  if (c->ceded == HK_IB_BOTH || c->phase == HK_IB_RESTING) return HK_OK;
  hk_ib_count_repairs(c, now);
  /* Opening the control connection waits for the peer's service thread, so the service thread does not do it. */
  if (x->serving && ((c->phase == HK_IB_DIALING && c->fd < 0) || hk_ib_gpu_unsettled(c))) return HK_OK;
  if (c->phase == HK_IB_DIALING) {
    uint64_t tag = hk_ib_control_tag(c);
    if (c->fd >= 0)
      ; /* ib_remote.c has opened or taken it */
    else if (c->dials)
      HK_OR_RETURN(x->env->dial(x->env->arg, c->peer, NULL, tag, &c->fd));
    else
      c->fd = x->env->take(x->env->arg, c->peer, tag);
    if (c->fd < 0) return HK_OK;
    HK_OR_RETURN(send_hello(c));
  }
  if (c->phase == HK_IB_UP && !c->asked && now < c->next_look_ns) return HK_OK;
  c->next_look_ns = now + (uint64_t)LOOK_MS * MS;
  HK_OR_RETURN(read_messages(c));
  if (dial_abandoned(c)) return HK_OK;
  HK_OR_RETURN(hk_ib_control_check(c, now));
  HK_OR_RETURN(hk_ib_control_ask(c, now, needed(c)));
  HK_OR_RETURN(hk_ib_go_back(c, now));
  if (hk_ib_host_is_silent(c, now))
    return hk_ib_fail(c, "its host does not answer",
                      "check that host, cable and switch; HOCKET_PEER_TIMEOUT waits longer");
  if (c->phase == HK_IB_UP && !c->bye && !c->eof) HK_OR_RETURN(hk_ib_fence(c, false));
  if (c->phase == HK_IB_UP && !c->bye) HK_OR_RETURN(hk_ib_check_progress(c, now));
  if (c->phase == HK_IB_BACKING_OFF && now >= c->retry_ns && !c->eof) HK_OR_RETURN(begin_epoch(c));
  /* Messages that were sent before the socket's end have arrived: another poll of the completions finds them. */
  if (c->eof && !hk_ib_control_may_return(c) && !x->serving && needed(c) && c->looks++ > 1)
    return hk_ib_fail(c, "its process has ended, or its communicator was destroyed or aborted",
                      "look at that rank's output and at its host's kernel log");
  return HK_OK;
}
