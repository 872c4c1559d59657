/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a connection: opening the control socket, and what the peer's messages and the time ask for. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "../../../base/param.h"
#include "../../../base/tcp.h"
#include "ib_data.h"
#include "ib_memory.h"
#include "ib_state.h"

#define MS 1000000u
enum { LOOK_MS = 50 }; /* between two reads of the control socket of a connection that is up */

static hk_status step_send_hello(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_msg m = {.kind = HK_IB_HELLO};
  hk_ib_control_begin(c);
  /* Ranks of a host, and channels of a rank, begin with different near ports. Each path of a connection registers the
   * same memory again, so there is only one if locked memory is scarce. */
  c->ports.nmine = hk_ib_offer(x->ports, x->nports, x->nnear,
                               x->local + (x->most_cards ? c->channel % x->most_cards : c->channel), c->ports.mine);
  for (int i = 0; i < c->ports.nmine && x->scarce; i++) c->ports.mine[i].card = (uint8_t)i;
  m.hello.nports = (uint32_t)c->ports.nmine;
  m.hello.nqps = (uint32_t)c->ctx->env->settings->IB_QPS_PER_CONNECTION;
  m.hello.apart = c->apart = hk_ib_wants_apart(c);
  memcpy(m.hello.ports, c->ports.mine, sizeof m.hello.ports);
  c->phase = HK_IB_GREETING;
  return hk_ib_send_message(c, &m);
}

static hk_status step_on_hello(hk_ib_conn *c, const hk_ib_msg *m) {
  uint32_t mine = (uint32_t)c->ctx->env->settings->IB_QPS_PER_CONNECTION;
  if (c->control.greeted || m->hello.nports > HK_IB_OFFERED || m->nslots != c->ctx->env->nslots ||
      m->slot_bytes != c->ctx->env->slot_bytes)
    return hk_ib_bad_message(c, "its first control message is not valid");
  c->control.greeted = true;
  c->ports.ntheirs = (int)m->hello.nports;
  memcpy(c->ports.theirs, m->hello.ports, sizeof c->ports.theirs);
  for (int i = 0; i < c->ports.ntheirs; i++) {
    c->ports.theirs[i].device[HK_IB_NAME - 1] = '\0';
    if (c->ports.theirs[i].ngids > HK_IB_GIDS) c->ports.theirs[i].ngids = HK_IB_GIDS;
  }
  c->ports.nqps = m->hello.nqps < mine ? m->hello.nqps : mine;
  if (c->ports.nqps < 1) c->ports.nqps = 1;
  c->apart = c->apart || (m->hello.apart && !c->remote.n);
  c->ports.npairs = hk_ib_pairs(c->ctx->env->settings, c->ports.mine, c->ports.nmine, c->ports.theirs, c->ports.ntheirs,
                                c->dials, c->ctx->filter.version, c->ports.pairs);
  if (!c->ports.npairs)
    return hk_ib_fail(c, "no GID of this rank's ports is of the same kind and address family as one of the other's",
                      "give the interfaces of both hosts addresses of one family, or choose with NCCL_IB_HCA, "
                      "NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY");
  c->phase = HK_IB_PAIRING;
  return c->dials ? hk_ib_epoch_begin(c) : HK_OK;
}

/* The peer reports that its requests have failed. */
static hk_status step_on_broken(hk_ib_conn *c, const hk_ib_msg *m) {
  if (m->epoch != c->epoch || !c->dials || c->phase == HK_IB_BACKING_OFF) return HK_OK;
  snprintf(c->repair.cause, sizeof c->repair.cause, "rank %d reports: %.150s", c->peer, m->broken.text);
  for (uint32_t i = 0; i < c->npaths; i++) c->paths[i].bad = c->paths[i].bad || m->broken.bad >> i & 1;
  return hk_ib_repair(c, "look at that rank's output");
}

static hk_status step_on_ring(hk_ib_conn *c, const hk_ib_msg *m) {
  for (uint32_t i = 0; i < c->npaths && m->epoch == c->epoch; i++) c->paths[i].peer_ring = m->ring[i];
  if (c->npaths && c->paths[0].peer_ring.addr) c->tx.asked = false;
  return HK_OK;
}

static hk_status step_on_message(hk_ib_conn *c, const hk_ib_msg *m) {
  if (m->magic != HK_IB_MAGIC) return hk_ib_bad_message(c, "its control message is not valid");
  switch (m->kind) {
    case HK_IB_HELLO: return step_on_hello(c, m);
    case HK_IB_EPOCH: return hk_ib_epoch_came(c, m);
    case HK_IB_RING: return step_on_ring(c, m);
    case HK_IB_READY:
      if (m->epoch == c->epoch && c->phase == HK_IB_READYING) hk_ib_epoch_up(c);
      return HK_OK;
    case HK_IB_BROKEN: return step_on_broken(c, m);
    case HK_IB_BYE:
      c->control.bye = true;
      if (m->received >= c->tx.posted) hk_ib_rewind(c, m->received, c->tx.credit);
      return HK_OK;
    case HK_IB_END: c->control.gone = true; return HK_OK;
    case HK_IB_CEDE: return hk_ib_ceded(c, m);
    case HK_IB_ASK: return hk_ib_keys_asked(c, m);
    case HK_IB_KEYS: return hk_ib_keys_came(c, m);
    default: return hk_ib_bad_message(c, "its control message is not valid");
  }
}

static hk_status step_read_messages(hk_ib_conn *c) {
  while (!c->control.eof && c->phase != HK_IB_FAILED && c->ceded != HK_IB_BOTH) {
    ssize_t n = hk_tcp_recv(c->control.fd, (char *)&c->control.in + c->control.in_got,
                            sizeof c->control.in - c->control.in_got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      snprintf(c->repair.cause, sizeof c->repair.cause, "%s", n < 0 ? strerror(errno) : "the other side closed it");
      c->control.eof = true;
      break;
    }
    c->control.in_got += (uint32_t)n;
    if (c->control.in_got < sizeof c->control.in) continue;
    c->control.in_got = 0;
    c->control.in.broken.text[sizeof c->control.in.broken.text - 1] = '\0';
    HK_OR_RETURN(step_on_message(c, &c->control.in));
  }
  return HK_OK;
}

/* Returns true if a lane waits for this connection. */
static bool step_is_needed(const hk_ib_conn *c) {
  return c->remote.busy || (c->recv && hk_link_waits(c->recv->link) == HK_LINK_WAITS) ||
         (c->send && (c->tx.posted != c->tx.given || hk_net_filled(c->send, c->tx.posted)));
}

/* A peer that gets no answer in time connects again and closes the first control socket. If this rank has taken the
 * closed one, it drops it and waits for the next. */
static bool step_dial_abandoned(hk_ib_conn *c) {
  if (!c->control.eof || c->control.greeted || c->dials) return false;
  hk_tcp_close(c->control.fd);
  c->control.fd = -1;
  c->control.eof = false;
  c->control.in_got = 0;
  c->ports.nmine = 0;
  c->phase = HK_IB_DIALING;
  return true;
}

hk_status hk_ib_conn_step(hk_ib_conn *c, uint64_t now) {
  hk_ib_ctx *x = c->ctx;
  if (c->failed) return !x->tick.serving && step_is_needed(c) ? c->failed : HK_OK;
  if (c->ceded == HK_IB_BOTH || c->phase == HK_IB_RESTING) return HK_OK;
  hk_ib_count_repairs(c, now);
  /* Opening the control connection waits for the peer's service thread, so the service thread does not do it. */
  if (x->tick.serving && ((c->phase == HK_IB_DIALING && c->control.fd < 0) || hk_ib_gpu_unsettled(c))) return HK_OK;
  if (c->phase == HK_IB_DIALING) {
    uint64_t tag = hk_ib_control_tag(c);
    if (c->control.fd >= 0)
      ; /* ib_remote.c has opened or taken it */
    else if (c->dials)
      HK_OR_RETURN(x->env->dial(x->env->arg, c->peer, NULL, tag, &c->control.fd));
    else
      c->control.fd = x->env->take(x->env->arg, c->peer, tag);
    if (c->control.fd < 0) return HK_OK;
    HK_OR_RETURN(step_send_hello(c));
  }
  if (c->phase == HK_IB_UP && !c->tx.asked && now < c->control.next_look_ns) return HK_OK;
  c->control.next_look_ns = now + (uint64_t)LOOK_MS * MS;
  HK_OR_RETURN(step_read_messages(c));
  if (step_dial_abandoned(c)) return HK_OK;
  HK_OR_RETURN(hk_ib_control_check(c, now));
  HK_OR_RETURN(hk_ib_control_ask(c, now, step_is_needed(c)));
  HK_OR_RETURN(hk_ib_go_back(c, now));
  if (hk_ib_host_is_silent(c, now))
    return hk_ib_fail(c, "its host does not answer",
                      "check that host, cable and switch; HOCKET_PEER_TIMEOUT waits longer");
  if (c->phase == HK_IB_UP && !c->control.bye && !c->control.eof) HK_OR_RETURN(hk_ib_fence(c, false));
  if (c->phase == HK_IB_UP && !c->control.bye) HK_OR_RETURN(hk_ib_check_progress(c, now));
  if (c->phase == HK_IB_BACKING_OFF && now >= c->repair.retry_ns && !c->control.eof) HK_OR_RETURN(hk_ib_epoch_begin(c));
  /* Messages that were sent before the socket's end have arrived: another poll of the completions finds them. */
  if (c->control.eof && !hk_ib_control_may_return(c) && !x->tick.serving && step_is_needed(c) && c->control.looks++ > 1)
    return hk_ib_fail(c, "its process has ended, or its communicator was destroyed or aborted",
                      "look at that rank's output and at its host's kernel log");
  return HK_OK;
}
