/* SPDX-License-Identifier: Apache-2.0 */
/* What the service thread does for RDMA connections of a rank that makes no call: it repairs them and sends again, and
 * neither connects nor delivers.
 * check: notsan */
#include "../../src/base/service.h"
#include "../support/ib.h"

static hk_service *service;

static bench setup_served(int rank) {
  bench b = {.w = NULL};
  ib_begin(1);
  b.w = ib_world(8, 65536);
  ck_assert_int_eq(hk_service_new(&service, "test"), HK_OK);
  b.w->ranks[rank].env.service = service;
  return b;
}

static void teardown(void) {
  ib_end();
  hk_service_free(service);
}

static void open_way(bench *b) {
  ib_make_way(b->w, &b->send, &b->recv);
  b->c = bench_conn(b->send);
  b->peer = bench_conn(b->recv);
}

static uint8_t phase_of(const hk_ib_conn *c) {
  pthread_mutex_lock(&c->ctx->lock);
  uint8_t phase = c->phase;
  pthread_mutex_unlock(&c->ctx->lock);
  return phase;
}

/* So many ticks, whatever each of them does. */
static void await_ticks(int n) { usleep((useconds_t)n * HK_IB_TICK_MS * 1000 + 50000); }

/* A message is lost, and its sender (or its receiver) makes no call any more: it comes all the same. */
TEST_LOOP(repairs_for_an_absent_rank, 2) {
  const unsigned number = 7;
  uint32_t got = 0, bytes, signature;
  bool direct, came = false;
  const int absent = _i;
  bench b = setup_served(absent);
  open_way(&b);
  ib_pass_on(b.w, b.send, b.recv, 1);
  const uint32_t epoch = b.c->epoch;
  verbs->broken = 1;
  ck_assert(net_try_send(b.send, &number, sizeof number, 7, false));
  ck_assert_int_eq(net_progress(&b.w->ranks[0], NULL), HK_OK);
  for (uint64_t until = hk_now_ns() + 10 * SECOND; !came && hk_now_ns() < until;) {
    ck_assert_int_eq(net_progress_and_nap(&b.w->ranks[1 - absent]), HK_OK);
    if (absent == 0) came = net_try_recv(b.recv, &got, sizeof got, false, &bytes, &signature, &direct);
    if (absent == 1) came = phase_of(b.peer) == HK_IB_UP && b.peer->epoch > epoch && b.c->phase == HK_IB_UP;
  }
  ck_assert(came && verbs->broken == 0);
  if (absent == 1) { /* nothing is delivered before the rank itself calls */
    for (int i = 0; i < 100; i++) ck_assert_int_eq(net_progress_and_nap(&b.w->ranks[0]), HK_OK);
    await_ticks(2);
    ck_assert(!net_try_recv(b.recv, &got, sizeof got, false, &bytes, &signature, &direct));
    while (!net_try_recv(b.recv, &got, sizeof got, false, &bytes, &signature, &direct))
      ck_assert_int_eq(net_progress(&b.w->ranks[1], NULL), HK_OK);
  }
  ck_assert_uint_eq(got, 7);
}

/* It opens no control connection, which may wait for the peer's service. */
TEST(does_not_connect) {
  bench b = setup_served(1);
  b.recv = net_link(&b.w->ranks[1], 0, HK_LINK_RECV, 3);
  b.send = net_link(&b.w->ranks[0], 1, HK_LINK_SEND, 3); /* it has dialled */
  b.peer = bench_conn(b.recv);
  await_ticks(3);
  ck_assert_int_eq(phase_of(b.peer), HK_IB_DIALING);
  ck_assert_int_eq(net_progress(&b.w->ranks[1], NULL), HK_OK);
  ck_assert_int_ne(phase_of(b.peer), HK_IB_DIALING);
}

/* While the rank makes calls, it does nothing: the rank itself looks. An error waits for the rank. */
TEST(leaves_it_to_the_rank) {
  bench b = setup_served(1);
  open_way(&b);
  hk_ib_ctx *x = b.peer->ctx;
  for (uint64_t until = hk_now_ns() + 4 * HK_IB_TICK_MS * MS; hk_now_ns() < until;)
    ck_assert_int_eq(net_progress(&b.w->ranks[1], NULL), HK_OK);
  pthread_mutex_lock(&x->lock);
  ck_assert_uint_gt(x->tick.seen, 0);
  x->progress.steps = x->tick.seen + 1; /* a call since the last tick */
  hk_ib_msg m = bench_message_of(b.c, HK_IB_END);
  ck_assert_int_eq(send(b.c->control.fd, &m, sizeof m, 0), (ssize_t)sizeof m);
  b.peer->control.next_look_ns = 0;
  const uint64_t steps = x->progress.steps;
  for (bool seen = false; !seen;) { /* until the next tick */
    pthread_mutex_unlock(&x->lock);
    usleep(1000);
    pthread_mutex_lock(&x->lock);
    seen = x->tick.seen == steps;
    if (seen) ck_assert(!b.peer->control.gone);
  }
  bool gone = false;
  for (uint64_t until = hk_now_ns() + 10 * SECOND; !gone && hk_now_ns() < until;) { /* then it looks */
    pthread_mutex_unlock(&x->lock);
    usleep(1000);
    pthread_mutex_lock(&x->lock);
    gone = b.peer->control.gone;
  }
  pthread_mutex_unlock(&x->lock);
  ck_assert(gone);
}

int main(void) { return suite_main("ib_ticks", .teardown = teardown, .timeout = 60); }
