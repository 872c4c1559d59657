/* SPDX-License-Identifier: Apache-2.0 */
/* A control connection that is lost or silent. RDMA goes on without it: a thread makes a new one, and then the ranks
 * begin a new epoch, because messages of the old one may be lost. While it is silent, an empty write asks the peer's
 * card whether its host is there. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include "../../../base/log.h"
#include "../../../base/tcp.h"
#include "../../../base/thread.h"
#include "ib_data.h"
#include "ib_state.h"

#define SECOND_NS UINT64_C(1000000000)
/* The kernel does not end an idle connection before the network has been away for half an hour: a silent host is found
 * by RDMA. 127 is the most that it counts. */
enum { KEEPALIVES = 127, AGAIN_MS = 500 };

uint64_t hk_ib_control_tag(const hk_ib_conn *c) { return (uint64_t)'V' << 56 | (uint64_t)c->channel; }

void hk_ib_control_begin(hk_ib_conn *c) {
  int one = 1;
  (void)setsockopt(c->control.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  hk_silence_watch(c->control.fd, (unsigned)(c->ctx->timeout_ns / SECOND_NS), KEEPALIVES);
}

/* A connection that was never up has nothing that goes on. One-sided operations dial again by themselves. */
bool hk_ib_control_may_return(const hk_ib_conn *c) {
  return c->control.eof && c->ctx->env->redial && c->repair.up_ns && !c->control.bye && !c->control.gone && !c->ceded &&
         !c->remote.n && !c->failed;
}

static void ib_control_replace(hk_ib_conn *c, int fd) {
  if (c->control.fd >= 0) hk_tcp_close(c->control.fd);
  c->control.fd = fd;
  c->control.eof = false;
  c->control.in_got = c->control.looks = 0;
  c->control.lost_ns = 0;
  c->control.silence = (hk_silence){0};
  hk_ib_control_begin(c);
  HK_INFO(HK_SUB_NET, "rank %d: channel %d to rank %d has a new control connection", c->ctx->env->rank, c->channel,
          c->peer);
}

/* ---- the thread ---- */

static hk_ib_conn *ib_control_next_lost(hk_ib_ctx *x, uint32_t from) {
  for (uint32_t i = 0; i < x->capacity; i++) {
    hk_ib_conn *c = x->conns[(from + i) % x->capacity];
    if (c && c->dials && c->control.lost_ns && hk_ib_control_may_return(c)) return c;
  }
  return NULL;
}

/* The connection may have ended while the lock was free, and another one have its place. */
static void ib_control_dialled(hk_ib_ctx *x, uint32_t index, uint64_t lost_ns, int fd, bool gone) {
  hk_ib_conn *c = index < x->capacity ? x->conns[index] : NULL;
  if (!c || c->control.lost_ns != lost_ns || !hk_ib_control_may_return(c)) {
    if (fd >= 0) hk_tcp_close(fd);
    return;
  }
  c->control.gone = gone;
  if (fd < 0) return;
  ib_control_replace(c, fd);
  snprintf(c->repair.cause, sizeof c->repair.cause, "the control connection was lost and is there again");
  (void)hk_ib_repair(c, "look at the network between the hosts"); /* the connection keeps an error */
}

static void *ib_control_redial_main(void *arg) {
  hk_ib_ctx *x = arg;
  uint32_t at = 0;
  hk_waiter w;
  hk_wait_env env = {.failure = &x->redial.stop};
  hk_wait_begin(&w, &env);
  pthread_mutex_lock(&x->lock);
  for (hk_ib_conn *c; !atomic_load(&x->redial.stop) && (c = ib_control_next_lost(x, at));) {
    uint32_t index = c->index;
    uint64_t lost_ns = c->control.lost_ns, tag = hk_ib_control_tag(c);
    int fd = -1, peer = c->peer;
    bool gone = false;
    at = index + 1;
    pthread_mutex_unlock(&x->lock);
    if (x->env->redial(x->env->arg, peer, tag, &x->redial.stop, &fd, &gone) != HK_OK && !gone)
      (void)hk_wait_nap(&w, -1, AGAIN_MS * SECOND_NS / 1000); /* `stop` is looked at above */
    pthread_mutex_lock(&x->lock);
    ib_control_dialled(x, index, lost_ns, fd, gone);
  }
  x->redial.busy = false;
  pthread_mutex_unlock(&x->lock);
  return NULL;
}

static void ib_control_start_redialing(hk_ib_ctx *x) {
  if (x->redial.busy) return;
  if (x->redial.made) pthread_join(x->redial.thread, NULL); /* it has left the lock for good */
  x->redial.made = x->redial.busy = hk_thread_start(&x->redial.thread, 0, ib_control_redial_main, x) == 0;
}

void hk_ib_control_end(hk_ib_ctx *x) {
  atomic_store(&x->redial.stop, HK_ERR_INTERNAL); /* any error ends its waits */
  if (x->redial.made) pthread_join(x->redial.thread, NULL);
  x->redial.made = false;
}

/* ---- what a connection does ---- */

hk_status hk_ib_control_check(hk_ib_conn *c, uint64_t now) {
  hk_ib_ctx *x = c->ctx;
  if (!hk_ib_control_may_return(c)) return HK_OK;
  if (!c->control.lost_ns) {
    c->control.lost_ns = now;
    HK_INFO(HK_SUB_NET,
            "rank %d: the control connection of channel %d to rank %d is lost (%s): RDMA goes on without it",
            x->env->rank, c->channel, c->peer, c->repair.cause);
  }
  if (c->dials) {
    ib_control_start_redialing(x);
  } else {
    int fd = x->env->take(x->env->arg, c->peer, hk_ib_control_tag(c));
    if (fd >= 0) ib_control_replace(c, fd); /* the peer begins the epoch */
  }
  /* Without RDMA, too, the peer counts as gone. */
  uint64_t since = c->repair.broken_ns > c->control.lost_ns ? c->repair.broken_ns : c->control.lost_ns;
  if (!c->control.eof || c->phase == HK_IB_UP || hk_ago_ns(now, since) < x->timeout_ns) return HK_OK;
  return hk_ib_fail(c, "RDMA fails, and the control connection is lost",
                    "check that host, cables and switches; HOCKET_PEER_TIMEOUT waits longer");
}

hk_status hk_ib_control_ask(hk_ib_conn *c, uint64_t now, bool waits) {
  unsigned quiet_s;
  if (c->phase != HK_IB_UP || c->control.bye || now < c->control.silent_ns) return HK_OK;
  c->control.silent_ns = now + SECOND_NS;
  /* The peer may have made a new connection for one that only it has lost. */
  int fd = c->dials || c->remote.n ? -1 : c->ctx->env->take(c->ctx->env->arg, c->peer, hk_ib_control_tag(c));
  if (fd >= 0) ib_control_replace(c, fd);
  if (c->control.eof || !waits ||
      !hk_silence_broken(&c->control.silence, c->control.fd, (unsigned)(c->ctx->timeout_ns / SECOND_NS), now, &quiet_s))
    return HK_OK;
  return hk_ib_ask_card(c);
}
