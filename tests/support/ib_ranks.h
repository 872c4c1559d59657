/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the verbs provider between ranks that are threads, over the fake libibverbs.so.1. */
#ifndef HK_TESTS_IB_RANKS_H
#define HK_TESTS_IB_RANKS_H
#include <check.h>
#include "../../src/base/param.h"
#include "../../src/transport/net/ib/ib_conn.h"
#include "fake_rdma.h"
#include "net_streams.h"
#include "suite.h"

static fake_verbs_state *verbs;

static inline void ib_begin(int devices) {
  verbs = rdma_begin(devices);
  rdma_param("NCCL_NET", "IB");
}
static inline void ib_end(void) { rdma_end(verbs); }

static inline void ib_make_streams(net_world *w, stream t[2], unsigned count, uint32_t most) {
  for (int i = 0; i < 2; i++)
    t[i] = (stream){
        .rank = &w->ranks[i], .peer = 1 - i, .channel = 3, .count = count, .most = most, .want = true, .both = true};
}

/* What is behind the last element that is used harms who reads it. */
static inline void ib_spoil_rest(hk_ib_conn *c) {
  hk_ib_ctx *x = c->ctx;
  for (int i = c->ports.npairs; i < HK_IB_PAIRS; i++)
    c->ports.pairs[i] =
        (hk_ib_pair){.mine = 255, .theirs = 255, .my_gid = 255, .their_gid = 255, .worked = true, .out = true};
  for (int i = c->ports.nmine; i < HK_IB_OFFERED; i++) memset(&c->ports.mine[i], 0xee, sizeof c->ports.mine[i]);
  for (int i = c->ports.ntheirs; i < HK_IB_OFFERED; i++) memset(&c->ports.theirs[i], 0xee, sizeof c->ports.theirs[i]);
  for (int i = x->nports; i < HK_IB_PORTS; i++) memset(&x->ports[i], 0xee, sizeof x->ports[i]);
  for (int i = (int)c->npaths; i < HK_IB_PATHS; i++) {
    c->paths[i].pair = HK_IB_PAIRS * 1000;
    c->paths[i].bad = true;
    c->gpu.flush.readers[i].dirty = true;
  }
  for (int i = 0; i < HK_IB_PORTS; i++) {
    hk_ib_device *d = &x->devices[i];
    if (i >= x->ndevices) memset(d, 0xee, sizeof *d);
    for (int k = d->ncqs; k < HK_IB_CQS && i < x->ndevices; k++) memset(&d->cqs[k], 0xee, sizeof d->cqs[k]);
  }
}

/* One way from rank 0 to rank 1, both of this thread. */
static inline void ib_make_way(net_world *w, hk_link **send, hk_link **recv) {
  *send = net_link(&w->ranks[0], 1, HK_LINK_SEND, 3);
  *recv = net_link(&w->ranks[1], 0, HK_LINK_RECV, 3);
  while (atomic_load(&(*send)->state) != HK_LINK_READY || atomic_load(&(*recv)->state) != HK_LINK_READY)
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
}

static inline void ib_pass_on(net_world *w, hk_link *send, hk_link *recv, unsigned number) {
  uint32_t bytes, signature, got;
  bool direct;
  while (!net_try_send(send, &number, sizeof number, 7, false))
    ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  while (!net_try_recv(recv, &got, sizeof got, false, &bytes, &signature, &direct))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(got, number);
}

static inline void ib_carry(net_world *w, hk_link *send, hk_link *recv, uint32_t bytes) {
  static char out[65536], in[65536];
  uint32_t got = UINT32_MAX, signature;
  bool direct;
  memset(out, (int)bytes, bytes);
  while (!net_try_send(send, out, bytes, 1, false))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  while (!net_try_recv(recv, in, bytes, false, &got, &signature, &direct))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(got, bytes);
  ck_assert_mem_eq(in, out, bytes);
}

static inline void ib_pull_cable(unsigned i) {
  if (i != 60) return;
  pthread_mutex_lock(&verbs->lock);
  verbs->device[0].down = 1;
  pthread_mutex_unlock(&verbs->lock);
}
#endif
