/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider's table of functions: the context of a rank, opening and closing ends, and progress. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../base/service.h"
#include "../../../base/tcp.h"
#include "../../peer.h"
#include "ib_conn.h"
#include "ib_data.h"
#include "ib_device.h"
#include "ib_memory.h"
#include "ib_state.h"
#include "ib_verbs.h"

enum {
  IDLE_POLLS = 64,  /* without a message, between two looks at the clock */
  BUSY_POLLS = 256, /* the same with messages */
  SWEEP_MS = 5,     /* between two looks at connections on which nothing moves... */
  SWEEP_MOST = 64,  /* ...of which each takes so many, so that the number of all does not matter */
  FLUSH_S = 2
};

/* What a rank publishes about itself. */
typedef struct ib_fact {
  uint8_t nspots;
  uint8_t reserved[7];
  hk_ib_spot spots[HK_IB_SPOTS]; /* its ports, the best first; more are not needed to find a way */
} ib_fact;
_Static_assert(sizeof(ib_fact) <= HK_NET_FACT_BYTES, "the fact fits");

/* ---- context ---- */

/* One device that opens is enough here: init tries all. Without ports libibverbs is not loaded. */
typedef struct trial {
  const hk_ibv *api;
  bool asked, opened;
} trial;
static bool ib_one_opens(void *arg, const char *device, char *why, size_t why_bytes) {
  trial *t = arg;
  t->asked = true;
  if (!t->api && !(t->api = hk_ibv_load(why, why_bytes))) return false;
  return t->opened = t->opened || hk_ibv_opens((void *)(uintptr_t)t->api, device, why, why_bytes);
}

static bool ib_usable(const hk_settings *set, char *why, size_t why_bytes) {
  hk_ib_port ports[HK_IB_PORTS];
  int nnear;
  trial t = {0};
  if (set->IB_DISABLE) {
    snprintf(why, why_bytes, "NCCL_IB_DISABLE=1");
    return false;
  }
  if (hk_ib_ports(set, ports, &nnear, ib_one_opens, &t, why, why_bytes)) return true;
  if (t.asked) (void)hk_ibv_load(why, why_bytes); /* without it no device opens: that is the reason */
  return false;
}

static hk_status ib_init(const hk_transport_env *env, void **out, void *fact) {
  hk_status rc = HK_OK;
  char why[160];
  ib_fact f = {.nspots = 0}; /* `fact` has no alignment */
  hk_ib_ctx *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for the RDMA ports of rank %d", env->rank);
  x->env = env;
  x->tick.timer = -1;
  x->api = hk_ibv_load(why, sizeof why);
  x->timeout_ns = (uint64_t)env->settings->PEER_TIMEOUT * 1000000000u;
  x->scarce = hk_ib_memory_is_scarce();
  x->fifo_class = (int)env->settings->IB_FIFO_TC;
  HK_TRY(hk_ib_gid_filter_of(env->settings, &x->filter), out);
  HK_TRY(hk_ib_cards_of(env->settings, &x->most_cards), out);
  x->nports = hk_ib_ports(env->settings, x->ports, &x->nnear, hk_ibv_opens, (void *)(uintptr_t)x->api, why, sizeof why);
  for (int i = 0; i < x->nports; i++) {
    const hk_ib_port *p = &x->ports[i];
    bool ethernet = p->layer == HK_IBV_LAYER_ETHERNET;
    char text[48] = "no GID";
    if (i < HK_IB_SPOTS) f.spots[f.nspots++] = hk_ib_spot_of(p);
    if (p->ngids) hk_ib_gid_text(&p->gids[0].gid, text);
    HK_INFO(HK_SUB_INIT | HK_SUB_NET, "RDMA port %d: %s:%d, %s, best of %d GIDs: %s%s", i, p->device, p->number,
            ethernet ? "RoCE" : "InfiniBand", p->ngids, text, i < x->nnear ? ", near" : "");
  }
  memcpy(fact, &f, sizeof f);
  pthread_mutex_init(&x->lock, NULL);
  *out = x;
out:
  if (rc != HK_OK) free(x);
  return rc;
}

static void ib_join(void *ctx, const char *facts, size_t stride) {
  hk_ib_ctx *x = ctx;
  x->facts = facts;
  x->stride = stride;
  for (int r = 0; r < x->env->rank; r++) x->local += x->env->peers[r].host == x->env->peers[x->env->rank].host;
}

static bool ib_reachable(void *ctx, int a, int b, char *why, size_t why_bytes) {
  const hk_ib_ctx *x = ctx;
  ib_fact facts[2];
  memcpy(&facts[0], x->facts + (size_t)a * x->stride, sizeof facts[0]);
  memcpy(&facts[1], x->facts + (size_t)b * x->stride, sizeof facts[1]);
  for (int i = 0; i < 2; i++)
    if (facts[i].nspots > HK_IB_SPOTS) facts[i].nspots = HK_IB_SPOTS;
  return hk_ib_spots_meet(x->env->settings, facts[0].spots, facts[0].nspots, facts[1].spots, facts[1].nspots, why,
                          why_bytes);
}

static void ib_free_conn(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  hk_ib_send_bye(c);
  hk_ib_drop_qps(c);
  hk_ib_free_memory(c);
  if (c->control.fd >= 0) hk_tcp_close(c->control.fd);
  if (c->arena && (c->dials || !c->remote.n)) munmap(c->arena, c->arena_bytes);
  free(c->tx.pending);
  hk_ib_leave_active(c);
  x->conns[c->index] = NULL;
  x->nconns--;
  free(c);
}

static void ib_fini(void *ctx) {
  hk_ib_ctx *x = ctx;
  if (x->tick.timer >= 0) {
    hk_service_remove(x->env->service, x->tick.timer);
    close(x->tick.timer);
  }
  hk_ib_control_end(x);
  for (uint32_t i = 0; i < x->room; i++) /* connections whose ends another network carries */
    if (x->conns[i]) ib_free_conn(x->conns[i]);
  hk_ib_user_free(x);
  if (x->ndevices)
    HK_INFO(
        HK_SUB_NET,
        "rank %d: RDMA devices held at most %llu KiB of memory, and %llu KiB now; %llu large messages were written to "
        "their places, %llu copied there",
        x->env->rank, (unsigned long long)x->counts.pinned_most / 1024, (unsigned long long)x->counts.pinned / 1024,
        (unsigned long long)x->counts.placed, (unsigned long long)x->counts.copied);
  for (int i = 0; i < x->ndevices; i++) hk_ib_device_close(x, &x->devices[i]);
  pthread_mutex_destroy(&x->lock);
  free(x->conns);
  free(x->progress.active);
  free(x);
}

/* ---- connections ---- */

static hk_status ib_open_end(hk_ib_ctx *x, hk_net_end *e) {
  hk_status rc = HK_OK;
  hk_ib_conn *c = NULL;
  for (uint32_t i = 0; i < x->room && !c; i++)
    if (x->conns[i] && x->conns[i]->peer == e->key.peer && x->conns[i]->channel == e->key.channel) c = x->conns[i];
  bool fresh = !c, sends = hk_net_sends(e);
  size_t arena_bytes = (2 * (size_t)x->env->nslots + 1) * HK_IB_ENTRY;
  if (fresh) HK_OR_RETURN(hk_ib_conn_new(x, e->key.peer, e->key.channel, NULL, arena_bytes, &c));
  e->priv = c;
  *(sends ? &c->send : &c->recv) = e;
  if (!sends) hk_ib_place_min(x, e->link);
  if (!sends && c->rx.wanted) (void)hk_ib_starves(c);
  hk_ib_stir(c);
  if (c->phase == HK_IB_UP)
    atomic_store_explicit(&e->link->state, HK_LINK_READY, memory_order_relaxed); /* relaxed: as in hk_ib_epoch_up() */
  if (fresh)
    HK_TRY(hk_ib_conn_step(c, hk_now_ns()), undo);
  else
    HK_TRY(hk_ib_add_end(c, e), undo);
  return HK_OK;
undo:
  *(sends ? &c->send : &c->recv) = NULL; /* the caller frees it */
  if (fresh)
    ib_free_conn(c);
  else
    hk_ib_unregister_end(c, sends);
  return rc;
}

/* Where memory may run out, all is registered before the first message: another network cannot take over later. */
static bool ib_grows(void *ctx) { return !((hk_ib_ctx *)ctx)->scarce; }

static hk_status ib_grow(void *ctx, hk_net_end *e, char *payload, hk_device *gpu) {
  hk_ib_ctx *x = ctx;
  hk_status rc = HK_OK;
  pthread_mutex_lock(&x->lock);
  hk_ib_conn *c = e->priv;
  e->link->payload = payload;
  e->link->gpu = gpu;
  if (c->phase != HK_IB_FAILED && !(c->ceded & hk_ib_direction(c, e == c->send))) rc = hk_ib_grown(c, e);
  hk_ib_stir(c);
  pthread_mutex_unlock(&x->lock);
  return rc;
}

static hk_status ib_open(void *ctx, hk_net_end *e) {
  hk_ib_ctx *x = ctx;
  hk_status rc = HK_OK;
  HK_OR_RETURN(hk_ib_start_ticking(x));
  hk_ib_gpu_find_ports(x);
  pthread_mutex_lock(&x->lock);
  rc = ib_open_end(x, e);
  pthread_mutex_unlock(&x->lock);
  return rc;
}

/* Removes an end that another network is to carry from its connection, and returns it; NULL: none. */
static hk_net_end *ib_take_ceded(hk_ib_ctx *x) {
  for (uint32_t i = 0; i < x->room; i++) {
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
static hk_status ib_fall_back(hk_ib_ctx *x) {
  hk_net_end *e;
  do {
    pthread_mutex_lock(&x->lock);
    e = x->ceding ? ib_take_ceded(x) : NULL;
    pthread_mutex_unlock(&x->lock);
    if (e) HK_OR_RETURN(hk_net_fall_back(e));
  } while (e);
  return HK_OK;
}

/* Waits until the last messages have arrived: messages in flight are lost when the queue pairs are destroyed. */
static void ib_flush(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  hk_wait_env env = hk_ib_wait_env(x);
  uint64_t until = hk_now_ns() + (uint64_t)FLUSH_S * 1000000000u;
  hk_waiter w;
  bool moved;
  hk_wait_begin(&w, &env);
  while (!c->failed && !c->control.eof && hk_ib_unfinished(c)) {
    if (hk_ib_poll(x, &moved) != HK_OK || hk_ib_conn_step(c, hk_now_ns()) != HK_OK) return;
    if (c->phase == HK_IB_UP && (hk_ib_send(c, &moved) != HK_OK || hk_ib_fence(c, true) != HK_OK)) return;
    if (hk_now_ns() > until || hk_wait_pause(&w) != HK_OK) return;
  }
}

static void ib_close_end(hk_net_end *e) {
  hk_ib_conn *c = e->priv;
  bool sends = hk_net_sends(e);
  if (sends)
    ib_flush(c);
  else
    (void)hk_ib_received(c);
  *(sends ? &c->send : &c->recv) = NULL;
  if (!c->send && !c->recv && !c->ceded) {
    ib_free_conn(c);
    return;
  }
  hk_ib_unregister_end(c, sends);
}

static void ib_close(void *ctx, hk_net_end *e) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  ib_close_end(e);
  pthread_mutex_unlock(&x->lock);
}

/* ---- progress ---- */

/* Until a lane fills a slot (hk_link_ring), a completion comes, or a sweep, there is nothing to do for it. */
static bool ib_is_quiet(const hk_ib_conn *c) {
  if (c->phase == HK_IB_FAILED || c->phase == HK_IB_RESTING) return true;
  if (c->phase != HK_IB_UP || c->tx.asked || c->places.announced < c->places.offered) return false;
  if (c->send && (c->tx.posted != c->tx.given || hk_net_filled(c->send, c->tx.posted))) return false;
  if (!c->recv) return true;
  /* acquire: pairs with hk_link_release, as in hk_ib_return_credit */
  uint64_t consumed = atomic_load_explicit(&c->recv->link->heads->value, memory_order_acquire);
  return consumed == c->recv->next && consumed - c->rx.returned < (c->ctx->env->nslots + 1) / 2 &&
         !c->rx.headers[(uint32_t)c->recv->next & (c->ctx->env->nslots - 1)];
}

static void ib_ring(void *ctx, hk_net_end *e) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  if (e->priv) hk_ib_stir(e->priv);
  pthread_mutex_unlock(&x->lock);
}

static hk_status ib_serve(hk_ib_conn *c, bool look, uint64_t now, bool *any) {
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

static void ib_sweep(hk_ib_ctx *x) {
  for (uint32_t i = 0; i < SWEEP_MOST && i < x->room; i++, x->progress.swept++) {
    if (x->progress.swept >= x->room) x->progress.swept = 0;
    if (x->conns[x->progress.swept]) hk_ib_stir(x->conns[x->progress.swept]);
  }
}

static hk_status ib_make_progress(hk_ib_ctx *x, bool *moved) {
  bool any = false;
  x->progress.steps++;
  HK_OR_RETURN(hk_ib_poll(x, &any));
  bool look = x->progress.idle % IDLE_POLLS == 0 || x->progress.steps % BUSY_POLLS == 0;
  uint64_t now = look ? hk_now_ns() : 0;
  if (look && now >= x->progress.next_sweep_ns) {
    x->progress.next_sweep_ns = now + SWEEP_MS * 1000000ull;
    ib_sweep(x);
  }
  for (uint32_t i = 0; i < x->progress.nactive;) {
    hk_ib_conn *c = x->progress.active[i];
    HK_OR_RETURN(ib_serve(c, look, now, &any));
    if (c->send) c->send->link->rung = 0;
    if (!ib_is_quiet(c)) {
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

static hk_status ib_progress(void *ctx, bool *moved) {
  hk_ib_ctx *x = ctx;
  pthread_mutex_lock(&x->lock);
  hk_status rc = ib_make_progress(x, moved);
  bool ceding = x->ceding;
  pthread_mutex_unlock(&x->lock);
  return rc == HK_OK && ceding ? ib_fall_back(x) : rc;
}

/* Returns true if only a completion can bring work. A connection that is being made or repaired gets messages over its
 * socket. Messages in flight, or those that wait for a credit, which comes without a completion, take only a network
 * round trip, and falling asleep and waking up would add to that. */
static bool ib_may_sleep(hk_ib_ctx *x, struct pollfd fds[HK_IB_PORTS]) {
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
static void ib_sleep(void *ctx) {
  hk_ib_ctx *x = ctx;
  struct pollfd fds[HK_IB_PORTS] = {0}; /* the service thread may open more devices meanwhile */
  pthread_mutex_lock(&x->lock);
  bool may = ib_may_sleep(x, fds);
  nfds_t n = (nfds_t)x->ndevices;
  pthread_mutex_unlock(&x->lock);
  if (!may || poll(fds, n, 1) <= 0) return;
  pthread_mutex_lock(&x->lock);
  hk_ib_read_notifications(x, fds);
  pthread_mutex_unlock(&x->lock);
}

const hk_net_provider hk_net_ib = {
    .name = "IB",
    .copies = true,
    .apart = true,
    .usable = ib_usable,
    .init = ib_init,
    .join = ib_join,
    .reachable = ib_reachable,
    .takes_gpu = hk_ib_takes_gpu,
    .open = ib_open,
    .grows = ib_grows,
    .grow = ib_grow,
    .memory = hk_ib_user_memory,
    .refer = hk_ib_refer,
    .post_target = hk_ib_place_post,
    .withdraw = hk_ib_place_withdraw,
    .progress = ib_progress,
    .ring = ib_ring,
    .sleep = ib_sleep,
    .rest = hk_ib_rest,
    .close = ib_close,
    .remote = &hk_ib_remote_table,
    .fini = ib_fini,
};
