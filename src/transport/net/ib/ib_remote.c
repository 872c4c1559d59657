/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations (remote.h) on connections without links.
 *
 * The target's arena is this origin's row of its signal counters, and the origin's arena a copy of it, followed by room
 * for data that the user has not registered. A put is one or more RDMA writes, then one of the counter's new value, on
 * the same queue pair, or after the completion of those on others. The keys of a window are asked for over the control
 * socket, once in each epoch.
 *
 * After a fault the origin asks again, and learns the counter's value: the old queue pairs are gone then, so it is
 * final. If it is the new one, the put has arrived; otherwise all of it is written again. The target cannot have seen
 * the signal, so it does not use the data yet. */
#include <string.h>
#include "../../../base/tcp.h"
#include "../../remote.h"
#include "ib_data.h"
#include "ib_memory.h"
#include "ib_state.h"

enum { STAGE = 65536, DIRECT = 1 << 20 }; /* most bytes of one write: copied, from the user's registered memory */

typedef _Atomic uint64_t counter;
static char *ib_remote_stage(const hk_ib_conn *c, uint32_t i) {
  return c->arena + hk_round_up(c->remote.n * sizeof(counter), 4096) + (size_t)(i % HK_IB_STAGES) * STAGE;
}

static hk_ib_conn *ib_remote_find(const hk_ib_ctx *x, int peer, bool dials) {
  for (uint32_t i = 0; i < x->capacity; i++)
    if (x->conns[i] && x->conns[i]->peer == peer && x->conns[i]->remote.n && x->conns[i]->dials == dials)
      return x->conns[i];
  return NULL;
}

static uint64_t ib_remote_tag(void) { return (uint64_t)'V' << 56 | HK_IB_REMOTE; }

static hk_status ib_remote_add(hk_ib_ctx *x, int peer, int fd, void *arena, size_t n, hk_ib_conn **out) {
  size_t bytes = n * sizeof(counter);
  if (!arena) bytes = hk_round_up(bytes, 4096) + HK_IB_STAGES * STAGE;
  HK_OR_RETURN(hk_ib_conn_new(x, peer, HK_IB_REMOTE, arena, bytes, out));
  (*out)->dials = !arena;
  (*out)->remote.n = n;
  (*out)->control.fd = fd;
  return HK_OK;
}

/* ---- target ---- */

static hk_status ib_remote_take(hk_ib_ctx *x, int peer, _Atomic uint64_t *counters, size_t n, hk_ib_conn **out) {
  int fd = x->env->take(x->env->arg, peer, ib_remote_tag());
  *out = NULL;
  return fd < 0 ? HK_OK : ib_remote_add(x, peer, fd, counters, n, out);
}

static hk_status ib_remote_accept(void *ctx, int peer, _Atomic uint64_t *counters, size_t n, bool *came) {
  hk_ib_ctx *x = ctx;
  hk_status rc = HK_OK;
  hk_ib_conn *c;
  bool moved;
  HK_TRY(hk_ib_start_ticking(x), out);
  hk_ib_gpu_find_ports(x);
  pthread_mutex_lock(&x->lock);
  c = ib_remote_find(x, peer, false);
  if (!c) rc = ib_remote_take(x, peer, counters, n, &c);
  if (rc == HK_OK && c) rc = hk_ib_poll(x, &moved);
  if (rc == HK_OK && c) rc = hk_ib_conn_step(c, hk_now_ns()); /* takes another socket if the origin dials again */
  *came = c && c->control.fd >= 0;
  pthread_mutex_unlock(&x->lock);
out:
  return rc;
}

/* ---- origin ---- */

static hk_status ib_remote_open(void *ctx, int peer, size_t n) {
  hk_ib_ctx *x = ctx;
  hk_status rc = HK_OK;
  hk_ib_conn *c;
  int fd = -1;
  HK_TRY(hk_ib_start_ticking(x), out);
  hk_ib_gpu_find_ports(x);
  HK_TRY(x->env->dial(x->env->arg, peer, NULL, ib_remote_tag(), &fd),
         out); /* not under the lock: it waits for the peer */
  pthread_mutex_lock(&x->lock);
  rc = ib_remote_add(x, peer, fd, NULL, n, &c);
  pthread_mutex_unlock(&x->lock);
  if (rc != HK_OK) hk_tcp_close(fd);
out:
  return rc;
}

/* All requests are complete: each queue pair's last one reports that. */
static bool ib_remote_all_complete(const hk_ib_conn *c) {
  for (uint32_t i = 0; i < c->nqps; i++)
    if (c->qps[i].done != c->qps[i].posted) return false;
  return true;
}

static bool ib_remote_is_spread(const hk_ib_conn *c, const hk_remote_put *p) {
  return p->bytes >= HK_IB_SPLIT_MIN && c->nqps > 1;
}

/* Posts the next write of the data; *posted is false if there is no room. */
static hk_status ib_remote_post_piece(hk_ib_conn *c, const hk_remote_put *p, const hk_ib_keys *keys, bool *posted) {
  hk_ib_remote *r = &c->remote;
  const char *from = (const char *)p->data + r->sent;
  size_t left = p->bytes - r->sent, n = left < DIRECT ? left : DIRECT;
  uint32_t at = r->piece % HK_IB_STAGES, q = ib_remote_is_spread(c, p) ? r->piece % c->nqps : 0;
  hk_ib_source source = {.from = from};
  const hk_ibv_mr *mr;
  if (left <= c->qps[q].inline_bytes) {
    source.readable = true;
  } else if ((mr = hk_ib_user_mr(c->ctx, c->qps[q].path->device, from, n, false))) {
    source.lkey = mr->lkey;
  } else {
    const hk_ib_qp *last = &c->qps[r->staged[at].qp];
    *posted = r->piece < HK_IB_STAGES || (int32_t)(last->done - r->staged[at].position) >= 0;
    if (!*posted) return HK_OK;
    if (n > STAGE) n = STAGE;
    source.from = memcpy(ib_remote_stage(c, at), from, n);
    source.lkey = c->qps[q].path->arena_mr->lkey;
  }
  source.bytes = (uint32_t)n;
  HK_OR_RETURN(hk_ib_post_write(c, q, &source, keys->addr + p->offset + r->sent,
                                keys->rkeys[(size_t)(c->qps[q].path - c->paths)], true, posted));
  if (!*posted) return HK_OK;
  r->staged[at].qp = q;
  r->staged[at].position = c->qps[q].posted;
  r->piece++;
  r->sent += n;
  return HK_OK;
}

/* Begins the put, or begins it again in a new epoch. *ready: what the target has of it, and the window's keys, are
 * known. */
static hk_status ib_remote_prepare(hk_ib_conn *c, const hk_remote_put *p, hk_remote_state *state, bool *ready) {
  hk_ib_remote *r = &c->remote;
  *ready = false;
  if (r->epoch != c->epoch) {
    r->epoch = c->epoch;
    r->again = r->begun;
    r->asked = r->signalled = false;
    r->nkeys = 0;
  }
  if (!r->begun) {
    r->begun = true;
    r->again = r->asked = r->signalled = false;
    r->sent = r->piece = 0;
    /* relaxed: this rank's own copy */
    r->target = atomic_load_explicit(&hk_ib_counters(c)[p->signal], memory_order_relaxed) + 1;
  }
  const hk_ib_keys *keys = p->bytes ? hk_ib_keys_find(r, p->window.number) : NULL;
  if (r->again || (p->bytes && !keys)) {
    if (!r->asked) HK_OR_RETURN(hk_ib_keys_ask(c, p));
    if (!r->answered) return HK_OK;
    r->sent = r->piece = 0;
    if (r->again && r->value >= r->target) *state = HK_REMOTE_DONE;
    r->again = false;
    if (*state == HK_REMOTE_DONE) return HK_OK;
    keys = p->bytes ? hk_ib_keys_find(r, p->window.number) : NULL;
  }
  if (keys && !keys->registered) *state = HK_REMOTE_NOWHERE;
  *ready = !keys || keys->registered;
  return HK_OK;
}

static hk_status ib_remote_advance(hk_ib_conn *c, const hk_remote_put *p, hk_remote_state *state) {
  hk_ib_remote *r = &c->remote;
  counter *counters = hk_ib_counters(c);
  bool ready, posted = true;
  *state = HK_REMOTE_PEER;
  if (c->phase != HK_IB_UP) return HK_OK;
  HK_OR_RETURN(ib_remote_prepare(c, p, state, &ready));
  if (!ready) return HK_OK;
  *state = HK_REMOTE_BUSY;
  while (r->sent < p->bytes && posted)
    HK_OR_RETURN(ib_remote_post_piece(c, p, hk_ib_keys_find(r, p->window.number), &posted));
  if (r->sent < p->bytes) return HK_OK;
  if (!r->signalled && (!ib_remote_is_spread(c, p) || ib_remote_all_complete(c))) {
    /* relaxed: this rank's own copy, which the card reads */
    atomic_store_explicit(&counters[p->signal], r->target, memory_order_relaxed);
    size_t at = p->signal * sizeof *counters;
    hk_ib_source source = {c->arena + at, sizeof *counters, c->qps[0].path->arena_mr->lkey, true};
    HK_OR_RETURN(hk_ib_post_write(c, 0, &source, c->qps[0].path->peer_arena.addr + at, c->qps[0].path->peer_arena.rkey,
                                  true, &r->signalled));
  }
  if (r->signalled && ib_remote_all_complete(c)) *state = HK_REMOTE_DONE;
  return HK_OK;
}

static hk_status ib_remote_failed(hk_ib_conn *c) {
  return HK_FAIL(HK_ERR_REMOTE, "rank %d lost the connection to rank %d for one-sided operations (%s): %s",
                 c->ctx->env->rank, c->peer, c->ports.route, c->repair.cause);
}

static hk_status ib_remote_put(void *ctx, int peer, const hk_remote_put *p, hk_remote_state *state) {
  hk_ib_ctx *x = ctx;
  hk_status rc = HK_OK;
  bool moved;
  pthread_mutex_lock(&x->lock);
  hk_ib_conn *c = ib_remote_find(x, peer, true);
  x->progress.steps++;
  c->remote.busy = true;
  if (c->failed) { /* in the service thread: its words are not this thread's */
    rc = ib_remote_failed(c);
    goto out;
  }
  HK_TRY(hk_ib_poll(x, &moved), out);
  HK_TRY(hk_ib_conn_step(c, hk_now_ns()), out);
  if (c->ceded == HK_IB_BOTH)
    *state = HK_REMOTE_UNUSABLE;
  else
    HK_TRY(ib_remote_advance(c, p, state), out);
out:
  if (c->failed && c->remote.denied) {
    *state = HK_REMOTE_DENIED;
    rc = HK_OK;
  }
  if (rc != HK_OK || *state > HK_REMOTE_PEER) c->remote.busy = c->remote.begun = false;
  pthread_mutex_unlock(&x->lock);
  return rc;
}

const hk_remote hk_ib_remote_table = {.accept = ib_remote_accept, .open = ib_remote_open, .put = ib_remote_put};
