/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the verbs provider share: ib.h. */
#include "ib.h"
#include <arpa/inet.h>
#include "../../src/program/program.h"
#include "../../src/transport/peer.h"

fake_verbs_state *verbs;
/* ---- Ranks ---- */

void ib_begin(int devices) {
  verbs = rdma_begin(devices);
  rdma_param("NCCL_NET", "IB");
}

static bench made; /* its world is NULL: there is none */

net_world *ib_world(uint32_t nslots, size_t slot_bytes) { return net_world_new(2, nslots, slot_bytes); }
net_world *ib_world_of(uint32_t nslots, size_t slot_bytes, void (*before)(int rank)) {
  return net_world_of(2, nslots, slot_bytes, before);
}

void ib_end(void) {
  if (made.w) {
    ck_assert_uint_eq(made.c->ctx->counts.pinned + made.peer->ctx->counts.pinned, verbs->locked);
    for (int i = 0; i < 4; i++) verbs->device[i].dead = verbs->device[i].down = 0;
    hk_ib_mark_failed(made.c);
    hk_ib_mark_failed(made.peer);
    made.w = NULL;
  }
  net_worlds_end();
  if (verbs) rdma_end(verbs);
  verbs = NULL;
}

void ib_make_streams(net_world *w, stream t[2], unsigned count, uint32_t most) {
  for (int i = 0; i < 2; i++)
    t[i] = (stream){
        .rank = &w->ranks[i], .peer = 1 - i, .channel = 3, .count = count, .most = most, .want = true, .both = true};
}

void ib_run_streams(net_world *w, unsigned count, uint32_t most) {
  stream t[2];
  ib_make_streams(w, t, count, most);
  run_streams(w, t, 2);
}

void ib_spoil_rest(hk_ib_conn *c) {
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

void ib_make_way(net_world *w, hk_link **send, hk_link **recv) {
  *send = net_link(&w->ranks[0], 1, HK_LINK_SEND, 3);
  *recv = net_link(&w->ranks[1], 0, HK_LINK_RECV, 3);
  while (atomic_load(&(*send)->state) != HK_LINK_READY || atomic_load(&(*recv)->state) != HK_LINK_READY)
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
}

void ib_pass_on(net_world *w, hk_link *send, hk_link *recv, unsigned number) {
  uint32_t bytes, signature, got;
  bool direct;
  while (!net_try_send(send, &number, sizeof number, 7, false))
    ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  while (!net_try_recv(recv, &got, sizeof got, false, &bytes, &signature, &direct))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(got, number);
}

void ib_carry_filled(net_world *w, hk_link *send, hk_link *recv, uint32_t bytes, char fill) {
  static char out[131072], in[131072];
  uint32_t got = UINT32_MAX, signature;
  bool direct;
  ck_assert_uint_le(bytes, sizeof out);
  memset(out, fill, bytes);
  memset(in, ~fill, bytes);
  while (!net_try_send(send, out, bytes, 1, false))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  while (!net_try_recv(recv, in, bytes, false, &got, &signature, &direct))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(got, bytes);
  ck_assert_mem_eq(in, out, bytes);
}

void ib_carry(net_world *w, hk_link *send, hk_link *recv, uint32_t bytes) {
  ib_carry_filled(w, send, recv, bytes, (char)bytes);
}

void ib_pull_cable(unsigned i) {
  if (i != 60) return;
  pthread_mutex_lock(&verbs->lock);
  verbs->device[0].down = 1;
  pthread_mutex_unlock(&verbs->lock);
}

/* ---- A bench ---- */

hk_ib_conn *bench_conn(const hk_link *l) { return ((const hk_net_end *)l->priv)->priv; }

bench bench_open(int devices) {
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
  return made = b;
}

hk_ib_msg bench_message_for(const hk_ib_conn *c) {
  hk_ib_msg m = {0};
  ck_assert_int_eq(recv(c->control.fd, &m, sizeof m, MSG_DONTWAIT), (ssize_t)sizeof m);
  return m;
}

void bench_no_message_for(const hk_ib_conn *c) {
  char byte;
  ck_assert_int_eq(recv(c->control.fd, &byte, 1, MSG_DONTWAIT), -1);
}

hk_status bench_hear(hk_ib_conn *to, const hk_ib_conn *from, hk_ib_msg m, size_t bytes) {
  ck_assert_int_eq(send(from->control.fd, &m, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
  to->control.next_look_ns = 0;
  return hk_ib_conn_step(to, hk_now_ns());
}

hk_ib_msg bench_message_of(const hk_ib_conn *c, hk_ib_kind kind) {
  return (hk_ib_msg){.magic = HK_IB_MAGIC,
                     .kind = kind,
                     .epoch = c->epoch,
                     .nslots = c->ctx->env->nslots,
                     .slot_bytes = (uint32_t)c->ctx->env->slot_bytes};
}

/* ---- Invented ports with the GIDs of a card ---- */

hk_ib_gid invented_gid(int index, hk_ib_gid_kind kind, const char *address, int prefix) {
  hk_ib_gid g = {.index = (uint8_t)index, .kind = (uint8_t)kind, .prefix = (uint8_t)prefix};
  ck_assert_int_eq(inet_pton(AF_INET6, address, g.gid.raw), 1);
  return g;
}

int invented_gids(hk_ib_gid out[6], const char *host) {
  char v4[48], local[48], global[48];
  snprintf(v4, sizeof v4, "::ffff:10.1.0.%s", host);
  snprintf(local, sizeof local, "fe80::%s", host);
  snprintf(global, sizeof global, "fd00::%s", host);
  out[0] = invented_gid(0, HK_IB_GID_ROCE1, local, 64);
  out[1] = invented_gid(1, HK_IB_GID_ROCE2, local, 64);
  out[2] = invented_gid(2, HK_IB_GID_ROCE1, v4, 24);
  out[3] = invented_gid(3, HK_IB_GID_ROCE2, v4, 24);
  out[4] = invented_gid(4, HK_IB_GID_ROCE1, global, 64);
  out[5] = invented_gid(5, HK_IB_GID_ROCE2, global, 64);
  return 6;
}

hk_ib_port invented_port(const char *name, const char *host, uint8_t layer) {
  hk_ib_port p = {.number = 1, .layer = layer, .mtu = 5, .lid = (uint16_t)atoi(host)};
  snprintf(p.device, sizeof p.device, "%s", name);
  hk_ib_gid_filter w = {.index = -1, .version = 2, .family = AF_UNSPEC};
  p.ngids = (uint8_t)hk_ib_gids_order(p.gids, invented_gids(p.gids, host), &w);
  return p;
}
