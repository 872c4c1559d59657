/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of the verbs provider between two ranks of this thread, to which a test says what has happened and what
 * time it is. */
#ifndef HK_TESTS_IB_BENCH_H
#define HK_TESTS_IB_BENCH_H
#include "../../src/transport/net/ib/ib_step.h"
#include "ib_ranks.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

typedef struct bench {
  net_world *w;
  hk_link *send, *recv;
  hk_ib_conn *c, *peer; /* of rank 0, which dials, and of rank 1 */
} bench;

static inline hk_ib_conn *bench_conn(const hk_link *l) { return ((const hk_net_end *)l->priv)->priv; }

static inline bench bench_open(int devices) {
  bench b = {.w = NULL};
  ib_begin(devices);
  rdma_plenty = true;
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1,fake2");
  b.w = net_world_new(2, 8, 65536);
  ib_make_way(b.w, &b.send, &b.recv);
  b.c = bench_conn(b.send);
  b.peer = bench_conn(b.recv);
  ib_spoil_rest(b.c);
  ib_spoil_rest(b.peer);
  ck_assert(b.c->dials && !b.peer->dials);
  return b;
}

static inline void bench_close(bench *b) {
  ck_assert_uint_eq(b->c->ctx->counts.pinned + b->peer->ctx->counts.pinned, verbs->locked);
  for (int i = 0; i < 4; i++) verbs->device[i].dead = verbs->device[i].down = 0;
  hk_ib_mark_failed(b->c); /* nothing is waited for */
  hk_ib_mark_failed(b->peer);
  net_unlink(b->send);
  net_unlink(b->recv);
  net_world_free(b->w);
  ib_end();
}

/* The next message on the control connection that this rank's peer has sent. */
static inline hk_ib_msg bench_message_for(const hk_ib_conn *c) {
  hk_ib_msg m = {0};
  ck_assert_int_eq(recv(c->control.fd, &m, sizeof m, MSG_DONTWAIT), (ssize_t)sizeof m);
  return m;
}
static inline void bench_no_message_for(const hk_ib_conn *c) {
  char byte;
  ck_assert_int_eq(recv(c->control.fd, &byte, 1, MSG_DONTWAIT), -1);
}

/* Rank's peer sends it a message, as far as `bytes` of it, and the rank looks for it. */
static inline hk_status bench_hear(hk_ib_conn *to, const hk_ib_conn *from, hk_ib_msg m, size_t bytes) {
  ck_assert_int_eq(send(from->control.fd, &m, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
  to->control.next_look_ns = 0;
  return hk_ib_conn_step(to, hk_now_ns());
}
/* With what all messages have. */
static inline hk_ib_msg bench_message_of(const hk_ib_conn *c, hk_ib_kind kind) {
  return (hk_ib_msg){.magic = HK_IB_MAGIC,
                     .kind = kind,
                     .epoch = c->epoch,
                     .nslots = c->ctx->env->nslots,
                     .slot_bytes = (uint32_t)c->ctx->env->slot_bytes};
}
#endif
