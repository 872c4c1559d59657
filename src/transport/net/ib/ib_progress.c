/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a rank's connections, on the thread of its lanes. */
#include "ib_data.h"
#include "ib_state.h"

enum {
  IDLE_POLLS = 64,  /* without a message, between two looks at the clock */
  BUSY_POLLS = 256, /* the same with messages */
  SWEEP_MS = 5,     /* between two sweeps, which look at connections on which nothing moves */
  SWEEP_MOST = 64   /* connections of a sweep: its time does not grow with their number */
};

/* Until a lane fills a slot (hk_link_ring), a completion comes, or a sweep, there is nothing to do for it. */
static bool progress_is_quiet(const hk_ib_conn *c) {
  if (c->phase == HK_IB_FAILED || c->phase == HK_IB_RESTING) return true;
  if (c->phase != HK_IB_UP || c->tx.asked || c->places.announced < c->places.offered) return false;
  if (c->send && (c->tx.posted != c->tx.given || hk_net_filled(c->send, c->tx.posted))) return false;
  if (!c->recv) return true;
  /* acquire: pairs with hk_link_release, as in hk_ib_return_credit */
  uint64_t consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
  return consumed == c->recv->next && consumed - c->rx.returned < (c->ctx->env->nslots + 1) / 2 &&
         !c->rx.headers[(uint32_t)c->recv->next & (c->ctx->env->nslots - 1)];
}

void hk_ib_ring(void *ctx, hk_net_end *e) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  if (e->priv) hk_ib_stir(e->priv);
  pthread_mutex_unlock(&x->lock);
}

static hk_status progress_serve(hk_ib_conn *c, bool look, uint64_t now, bool *any) {
  /* Messages that have arrived are delivered even if the queue pairs have failed since: the peer may have ended. */
  if (c->phase != HK_IB_FAILED) HK_OR_RETURN(hk_ib_deliver(c, any));
  if (c->phase == HK_IB_UP) {
    if (c->places.announced < c->places.offered)
      HK_OR_RETURN(hk_ib_place_announce(c)); /* before credits that let the peer use them */
    HK_OR_RETURN(hk_ib_send(c, any));
    if (c->recv) HK_OR_RETURN(hk_ib_return_credit(c));
  }
  if (look || c->tx.asked || c->phase != HK_IB_UP) HK_OR_RETURN(hk_ib_conn_step(c, now ? now : hk_now_ns()));
  return HK_OK;
}

static void progress_sweep(hk_ib_ctx *x) {
  for (uint32_t i = 0; i < SWEEP_MOST && i < x->capacity; i++, x->progress.swept++) {
    if (x->progress.swept >= x->capacity) x->progress.swept = 0;
    if (x->conns[x->progress.swept]) hk_ib_stir(x->conns[x->progress.swept]);
  }
}

static hk_status progress_make(hk_ib_ctx *x, bool *moved) {
  bool any = false;
  x->progress.steps++;
  HK_OR_RETURN(hk_ib_poll(x, &any));
  bool look = x->progress.idle % IDLE_POLLS == 0 || x->progress.steps % BUSY_POLLS == 0;
  uint64_t now = look ? hk_now_ns() : 0;
  if (look && now >= x->progress.next_sweep_ns) {
    x->progress.next_sweep_ns = now + SWEEP_MS * 1000000ull;
    progress_sweep(x);
  }
  for (uint32_t i = 0; i < x->progress.nactive;) {
    hk_ib_conn *c = x->progress.active[i];
    HK_OR_RETURN(progress_serve(c, look, now, &any));
    if (c->send) c->send->link->rung = 0;
    if (!progress_is_quiet(c)) {
      if (c->send) c->send->link->rung = 1;
      i++;
    } else {
      hk_ib_leave_active(c);
    }
  }
  if (any) {
    *moved = true;
    x->progress.idle = 0;
  }
  x->progress.idle++;
  if (look && now >= x->progress.next_events_ns) {
    x->progress.next_events_ns = now + HK_IB_TICK_MS * 1000000ull;
    HK_OR_RETURN(hk_ib_handle_events(x));
    hk_ib_devices_return(x, now);
  }
  return HK_OK;
}

/* Removes an end that another network is to carry from its connection, and returns it; NULL: none. */
static hk_net_end *progress_take_ceded(hk_ib_ctx *x) {
  for (uint32_t i = 0; i < x->capacity; i++) {
    hk_ib_conn *c = x->conns[i];
    for (int sends = 0; c && sends < 2; sends++) {
      hk_net_end **at = sends ? &c->send : &c->recv, *e = *at;
      if (!e || !(c->ceded & hk_ib_direction(c, sends))) continue;
      hk_ib_unregister_end(c, sends);
      *at = NULL;
      return e;
    }
  }
  x->ceding = false;
  return NULL;
}

/* Opens ceded ends with the next network. Not under the lock: the other network may connect to the peer, whose service
 * thread may wait for its own lock. */
static hk_status progress_fall_back(hk_ib_ctx *x) {
  hk_net_end *e;
  do {
    pthread_mutex_lock(&x->lock);
    e = x->ceding ? progress_take_ceded(x) : NULL;
    pthread_mutex_unlock(&x->lock);
    if (e) HK_OR_RETURN(hk_net_fall_back(e));
  } while (e);
  return HK_OK;
}

hk_status hk_ib_make_progress(void *ctx, bool *moved) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  hk_status rc = progress_make(x, moved);
  bool ceding = x->ceding;
  pthread_mutex_unlock(&x->lock);
  return rc == HK_OK && ceding ? progress_fall_back(x) : rc;
}

/* Returns true if only a completion can bring work. A connection that is being made or repaired gets messages over its
 * socket. Messages in flight, or those that wait for a credit, which comes without a completion, take only a network
 * round trip, and falling asleep and waking up would add to that. */
static bool progress_may_sleep(hk_ib_ctx *x, struct pollfd fds[HK_IB_PORTS]) {
  bool moved = false;
  for (uint32_t i = 0; i < x->progress.nactive; i++) {
    const hk_ib_conn *c = x->progress.active[i];
    if (c->remote.n) continue;
    if (c->phase != HK_IB_UP || (c->send && (c->tx.posted != c->tx.given || hk_net_filled(c->send, c->tx.posted))))
      return false;
  }
  return hk_ib_arm(x, fds) && hk_ib_poll(x, &moved) == HK_OK && !moved;
}

/* Control messages come without a completion, so a sleep takes at most a millisecond. */
void hk_ib_sleep(void *ctx) {
  hk_ib_ctx *x = ctx;
  struct pollfd fds[HK_IB_PORTS] = {0}; /* the service thread may open more devices meanwhile */
  pthread_mutex_lock(&x->lock);
  bool may = progress_may_sleep(x, fds);
  nfds_t n = (nfds_t)x->ndevices;
  pthread_mutex_unlock(&x->lock);
  if (!may || poll(fds, n, 1) <= 0) return;
  pthread_mutex_lock(&x->lock);
  hk_ib_read_notifications(x, fds);
  pthread_mutex_unlock(&x->lock);
}
