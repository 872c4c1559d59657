/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: making it, whether it may have something to move, its control messages, and its end in an error. */
#include "ib_conn.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "../../../base/array.h"
#include "../../../base/tcp.h"
#include "ib_state.h"

hk_status hk_ib_conn_new(hk_ib_ctx *x, int peer, int channel, void *arena, size_t arena_bytes, hk_ib_conn **out) {
  uint32_t n = x->env->nslots, index = 0;
  hk_ib_conn *c = NULL;
  while (index < x->capacity && x->conns[index]) index++;
  if (index == x->capacity) {
    uint32_t capacity = x->capacity;
    if (!HK_RESERVE(x->conns, capacity, index + 1)) goto no_memory;
    hk_ib_conn **active = realloc(x->progress.active, capacity * sizeof *active);
    if (!active) goto no_memory;
    x->progress.active = active;
    memset(x->conns + index, 0, (capacity - index) * sizeof *x->conns);
    x->capacity = capacity;
  }
  c = calloc(1, sizeof *c);
  if (!c || !(c->tx.pending = calloc(4, n))) goto no_memory;
  c->tx.sizes = c->tx.pending + n;
  c->rx.headers = c->tx.sizes + n;
  c->rx.parts = c->rx.headers + n;
  c->arena_bytes = arena_bytes;
  c->arena = arena;
  if (!arena) c->arena = mmap(NULL, c->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (c->arena == MAP_FAILED) goto no_memory;
  c->ctx = x;
  c->peer = peer;
  c->dials = x->env->rank < peer;
  c->channel = (uint16_t)channel;
  c->index = index;
  c->serial = ++x->serial;
  c->control.fd = -1;
  snprintf(c->ports.route, sizeof c->ports.route, "not connected");
  x->conns[index] = c;
  x->nconns++;
  hk_ib_stir(c);
  *out = c;
  return HK_OK;
no_memory:
  if (c) free(c->tx.pending);
  free(c);
  return HK_FAIL_ERRNO("no memory for the connection to rank %d", peer);
}

void hk_ib_stir(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  if (c->place) return;
  x->progress.active[x->progress.nactive++] = c;
  c->place = x->progress.nactive;
}

void hk_ib_leave_active(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  if (!c->place) return;
  hk_ib_conn *last = x->progress.active[--x->progress.nactive];
  x->progress.active[c->place - 1] = last;
  last->place = c->place;
  c->place = 0;
}

void hk_ib_mark_failed(hk_ib_conn *c) {
  c->failed = HK_ERR_REMOTE;
  c->phase = HK_IB_FAILED;
  /* relaxed: the state says nothing about other memory */
  if (c->send) atomic_store_explicit(&c->send->link->state, HK_LINK_FAILED, memory_order_relaxed);
  if (c->recv) atomic_store_explicit(&c->recv->link->state, HK_LINK_FAILED, memory_order_relaxed);
}

hk_status hk_ib_fail(hk_ib_conn *c, const char *cause, const char *advice) {
  hk_ib_mark_failed(c);
  return HK_FAIL(HK_ERR_REMOTE, "rank %d lost the connection to rank %d (%s, channel %d): %s; %s", c->ctx->env->rank,
                 c->peer, c->ports.route, c->channel, cause, advice);
}

hk_status hk_ib_bad_message(hk_ib_conn *c, const char *what) {
  return hk_ib_fail(c, what, "do all ranks run the same version of this library, with the same settings?");
}

hk_status hk_ib_send_message(hk_ib_conn *c, hk_ib_msg *m) {
  m->magic = HK_IB_MAGIC;
  m->epoch = c->epoch;
  m->nslots = c->ctx->env->nslots;
  m->slot_bytes = (uint32_t)c->ctx->env->slot_bytes;
  ssize_t n = hk_tcp_send(c->control.fd, m, sizeof *m);
  if (n == (ssize_t)sizeof *m) return HK_OK;
  if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) { /* an error only if a lane still waits */
    c->control.eof = true;
    return HK_OK;
  }
  return hk_ib_fail(c, n < 0 ? strerror(errno) : "the control connection takes no more",
                    "check the TCP network between the hosts");
}
