/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider's table of functions: opening and closing ends. */
#include <stdlib.h>
#include <sys/mman.h>
#include "../../../base/tcp.h"
#include "ib_data.h"
#include "ib_memory.h"
#include "ib_state.h"

enum { FLUSH_S = 2 };

void hk_ib_conn_free(hk_ib_conn *c) {
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

static hk_status ib_open_end(hk_ib_ctx *x, hk_net_end *e) {
  hk_status rc = HK_OK;
  hk_ib_conn *c = NULL;
  for (uint32_t i = 0; i < x->capacity && !c; i++)
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
    hk_ib_conn_free(c);
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
    hk_ib_conn_free(c);
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

const hk_net_provider hk_net_ib = {
    .name = "IB",
    .copies = true,
    .apart = true,
    .usable = hk_ib_usable,
    .init = hk_ib_init,
    .join = hk_ib_join,
    .reachable = hk_ib_reachable,
    .takes_gpu = hk_ib_takes_gpu,
    .open = ib_open,
    .grows = ib_grows,
    .grow = ib_grow,
    .memory = hk_ib_user_memory,
    .refer = hk_ib_refer,
    .post_target = hk_ib_place_post,
    .withdraw = hk_ib_place_withdraw,
    .progress = hk_ib_make_progress,
    .ring = hk_ib_ring,
    .sleep = hk_ib_sleep,
    .rest = hk_ib_rest,
    .close = ib_close,
    .remote = &hk_ib_remote_table,
    .fini = hk_ib_fini,
};
