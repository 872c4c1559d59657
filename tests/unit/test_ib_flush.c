/* SPDX-License-Identifier: Apache-2.0 */
/* When what has come is visible to a GPU: which reads are awaited, and what their end or their failure does. The test
 * plays the GPU and the completions.
 * check: notsan */
#include "../../src/device/device.h"
#include "../../src/transport/net/ib/ib_data.h"
#include "../../src/transport/net/ib/ib_flushing.h"
#include "../../src/transport/net/ib/ib_gdr.h"
#include "../support/ib.h"

static int flushes;
static hk_status flush_result;
static hk_status flush(hk_device *d) {
  (void)d;
  flushes++;
  return flush_result;
}
static const hk_device_card_ops card = {.flush = flush};
static const hk_device_ops ops = {.card = &card};
static hk_device gpu = {.ops = &ops};

/* So many messages are there, and not delivered. */
static void come(hk_ib_conn *c, unsigned n) {
  for (unsigned k = 0; k < n; k++) {
    memset(c->arena + hk_ib_rx_offset(c, k), 0, sizeof(hk_ib_header));
    c->rx.headers[k] = 1;
  }
}

static void leave(const bench *b) {
  b->recv->gpu = NULL;
  memset(b->peer->rx.headers, 0, 8);
  b->peer->gpu.flush.asked = 0;
}

/* By the driver, at once; or not at all. */
TEST(by_the_driver) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  bool yes = false;
  b.recv->gpu = &gpu;
  come(c, 3);
  c->ctx->gpu.flushing = HK_IB_NO_FLUSH;
  ck_assert(hk_ib_flush_visible(c, 2, &yes) == HK_OK && yes && !flushes && !c->gpu.flush.seen);
  c->ctx->gpu.flushing = HK_IB_DRIVER_FLUSH;
  ck_assert(hk_ib_flush_visible(c, 0, &yes) == HK_OK && yes && flushes == 1 && c->gpu.flush.seen == 3);
  ck_assert(hk_ib_flush_visible(c, 2, &yes) == HK_OK && yes && flushes == 1);  /* the same flush */
  ck_assert(hk_ib_flush_visible(c, 3, &yes) == HK_OK && !yes && flushes == 2); /* it has not come */
  flush_result = HK_ERR_CUDA;
  come(c, 4);
  ck_assert(hk_ib_flush_visible(c, 3, &yes) == HK_ERR_CUDA && !yes && c->gpu.flush.seen == 3);
  leave(&b);
}

/* All reads that were begun together are awaited. */
TEST(awaits_all_reads) {
  const hk_ibv_wc good = {.status = HK_IBV_WC_SUCCESS};
  bench b = bench_open(2);
  hk_ib_conn *c = b.peer;
  hk_ib_flush *f = &c->gpu.flush;
  ck_assert_uint_eq(c->npaths, 2);
  f->seen = 2;
  f->asked = 5;
  f->readers[0].reading = f->readers[1].reading = true;
  ck_assert_int_eq(hk_ib_flush_done(c, 1, &good), HK_OK);
  ck_assert(f->seen == 2 && f->asked == 5 && f->reads == 1 && f->readers[0].reading && !f->readers[1].reading);
  ck_assert_int_eq(hk_ib_flush_done(c, 0, &good), HK_OK);
  ck_assert(f->seen == 5 && !f->asked && f->reads == 2 && !f->readers[0].reading);
  f->asked = 4; /* an older one */
  f->readers[0].reading = true;
  ck_assert_int_eq(hk_ib_flush_done(c, 0, &good), HK_OK);
  ck_assert(f->seen == 5 && !f->asked && f->reads == 3);
  leave(&b);
}

/* A read that fails makes new queue pairs, and all is read again; after the end of the receiver it does not matter. */
TEST_LOOP(reads_fail, 2) {
  const hk_ibv_wc bad = {.status = HK_IBV_WC_RETRY_EXC_ERR};
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_ib_flush *f = &c->gpu.flush;
  hk_net_end *e = c->recv;
  f->asked = 5;
  f->readers[0].reading = true;
  f->readers[0].dirty = false;
  if (_i) c->recv = NULL;
  ck_assert_int_eq(hk_ib_flush_done(c, 0, &bad), HK_OK);
  c->recv = e;
  ck_assert(!f->asked && !f->readers[0].reading);
  ck_assert_int_eq(c->phase, _i ? HK_IB_UP : HK_IB_PAIRING);
  ck_assert_int_eq(c->paths[0].bad, !_i);
  ck_assert_int_eq(f->readers[0].dirty, !_i);
  ck_assert_uint_eq(f->seen, _i ? 5 : 0);
  if (!_i) ck_assert_msg(strstr(c->repair.cause, "reading from the GPU failed"), "%s", c->repair.cause);
  leave(&b);
}

int main(void) { return ib_main("ib_flush", .timeout = 60); }
