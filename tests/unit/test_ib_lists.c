/* SPDX-License-Identifier: Apache-2.0 */
/* The list of an RDMA context's connections that may have something to move: a connection leaves it when nothing is to
 * be done for it, and comes back with a message or with a sweep. test_ib_trace asks after the list at each step.
 * check: notsan */
#include <sys/mman.h>
#include "../support/ib.h"

/* What the lists say of each other. */
static void check_lists(const hk_ib_ctx *x) {
  uint32_t conns = 0, listed = 0;
  for (uint32_t i = 0; i < x->capacity; i++) {
    const hk_ib_conn *c = x->conns[i];
    if (!c) continue;
    conns++;
    ck_assert_uint_eq(c->index, i);
    if (!c->place) continue;
    listed++;
    ck_assert(c->place <= x->progress.nactive && x->progress.active[c->place - 1] == c);
  }
  ck_assert_uint_eq(conns, x->nconns);
  ck_assert_uint_eq(listed, x->progress.nactive);
}

/* Each sweep takes the next 64 connections, after the last one the first again. */
TEST(sweeps) {
  enum { MORE = 80 };
  hk_ib_conn *c[MORE];
  bench b = bench_open(1);
  hk_ib_ctx *x = b.peer->ctx; /* it waits for connections that never come */
  const size_t arena_bytes = b.peer->arena_bytes;
  for (int i = 0; i < MORE; i++) ck_assert_int_eq(hk_ib_conn_new(x, 0, 100 + i, NULL, arena_bytes, &c[i]), HK_OK);
  ck_assert_uint_ge(x->capacity, MORE + 1);
  x->progress.swept = 0;
  for (uint32_t swept = 0, round = 0; round < 4; round++) {
    for (uint32_t i = 0; i < x->capacity; i++)
      if (x->conns[i]) x->conns[i]->place = 0;
    x->progress.nactive = x->progress.idle = 0;
    x->progress.next_sweep_ns = 0;
    const uint64_t before = hk_now_ns();
    ck_assert_int_eq(net_progress(&b.w->ranks[1], NULL), HK_OK);
    ck_assert_uint_ge(x->progress.next_sweep_ns, before + 5 * MS);
    bool taken[256] = {false};
    for (int i = 0; i < 64; i++, swept++) taken[swept % x->capacity] = true;
    for (uint32_t i = 0; i < x->capacity; i++)
      if (x->conns[i] && x->conns[i] != b.peer) ck_assert_int_eq(x->conns[i]->place != 0, taken[i]);
    check_lists(x);
    x->progress.next_sweep_ns = UINT64_MAX; /* not yet */
    for (int i = 0; i < MORE; i++) c[i]->place = 0;
    x->progress.nactive = x->progress.idle = b.peer->place = 0;
    ck_assert_int_eq(net_progress(&b.w->ranks[1], NULL), HK_OK);
    ck_assert_uint_eq(x->progress.nactive, 0);
  }
  for (int i = 0; i < MORE; i++) {
    hk_ib_mark_failed(c[i]);
    munmap(c[i]->arena, arena_bytes);
    free(c[i]->tx.pending);
    x->conns[c[i]->index] = NULL;
    x->nconns--;
    free(c[i]);
  }
}

/* What keeps a connection in the list: all that it still has to do. */
TEST_LOOP(stays_while_busy, 7) {
  enum { NOTHING, ASKED, UNGIVEN, FILLED, UNREAD, HALF_OWED, SOME_OWED };
  bench b = bench_open(1);
  hk_ib_conn *send = b.c, *recv = b.peer, *c = _i == UNGIVEN || _i == FILLED ? send : recv;
  hk_net_end *e = b.recv->priv;
  const hk_ib_ctx *x = c->ctx;
  while (send->ctx->progress.nactive || recv->ctx->progress.nactive)
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&b.w->ranks[i], NULL), HK_OK);
  const uint32_t slots = c->ctx->env->nslots;
  if (_i == FILLED) { /* the peer gives no credit */
    c->tx.posted = c->tx.given = c->tx.credit + slots;
    c->send->next = c->tx.posted;
    b.send->done = b.send->limit = c->tx.posted;
    atomic_store(&hk_net_slot(c->send, c->tx.posted)->seq, (uint32_t)c->tx.posted + 1);
  }
  if (_i == UNGIVEN) c->tx.posted = c->tx.given + 1, c->tx.sizes[0] = 2, c->tx.pending[0] = 1;
  if (_i == ASKED) c->tx.asked = true, c->control.next_look_ns = UINT64_MAX;
  if (_i == UNREAD) e->next = 1, c->rx.returned = 0;
  if (_i == HALF_OWED || _i == SOME_OWED) {
    e->next = slots / 2 - (_i == SOME_OWED);
    atomic_store(&b.recv->heads->value, e->next);
  }
  hk_ib_stir(c);
  ck_assert_int_eq(net_progress(&b.w->ranks[c == recv], NULL), HK_OK);
  const bool busy = _i >= ASKED && _i <= UNREAD;
  ck_assert_int_eq(c->place != 0, busy);
  ck_assert_int_eq(x->progress.nactive, busy);
  if (c->send) ck_assert_int_eq(c->send->link->rung, busy);
  if (_i == HALF_OWED) ck_assert_uint_eq(c->rx.returned, slots / 2);
  if (_i == SOME_OWED) ck_assert_uint_eq(c->rx.returned, 0);
  c->tx.asked = false;
}

int main(void) { return ib_main("ib_lists", .timeout = 60); }
