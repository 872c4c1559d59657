/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider between ranks that are threads: devices and ports that are not there, control connections that are
 * lost, idle connections, ports that act as one.
 * check: long=asan,tsan root */
#include <errno.h>
#include "../../src/program/program.h"
#include "../support/ib.h"
#include "../support/silence.h"

/* ---- devices that cannot be opened ---- */

/* The only one: sockets. One of several, of one rank or of both: the others. */
TEST_LOOP(does_without_what_does_not_open, 3) {
  stream t[2];
  int devices = _i ? 3 : 1;
  ib_begin(devices);
  if (!_i) rdma_param("NCCL_NET", "");
  for (int i = 0; i < (_i == 2 ? 2 : 1); i++) verbs->device[i].refuses_open = EPERM;
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 32, 20000);
  run_streams(w, t, 2);
  ck_assert_int_eq(verbs->writes > 0, _i > 0);
  net_world_free(w);
  ib_end();
}

static void second_has_no_right(int rank) { verbs->device[0].refuses_open = rank ? EPERM : 0; }
TEST(one_rank_may_not_open) {
  stream t[2];
  ib_begin(2);
  net_world *w = net_world_of(2, 8, 131072, second_has_no_right);
  verbs->device[0].refuses_open = 0;
  ib_make_streams(w, t, 32, 20000);
  run_streams(w, t, 2);
  net_world_free(w);
  ib_end();
}

/* ---- control connections ---- */

static net_world *cut_world;
static void cut_once(unsigned i) {
  if (i == 60) net_cut(cut_world, false);
}
static void end_darkness(void) {
  pthread_mutex_lock(&cut_world->lock);
  cut_world->dark = false;
  pthread_mutex_unlock(&cut_world->lock);
}
static void cut_for_long(unsigned i) {
  if (i == 40) net_cut(cut_world, true);
  if (i == 100) end_darkness();
}
static void cut_and_break(unsigned i) {
  if (i == 40) net_cut(cut_world, true);
  if (i != 100) return;
  pthread_mutex_lock(&verbs->lock);
  verbs->broken = 1; /* RDMA needs it now */
  pthread_mutex_unlock(&verbs->lock);
  end_darkness();
}

/* Something ends the control connection: RDMA goes on, and another connection is made. */
TEST_LOOP(survives_a_lost_control_connection, 3) {
  static void (*const cuts[])(unsigned) = {cut_once, cut_for_long, cut_and_break};
  stream t[2];
  ib_begin(1);
  cut_world = net_world_new(2, 8, 131072);
  ib_make_streams(cut_world, t, 160, 20000);
  t[_i % 2].before = cuts[_i];
  run_streams(cut_world, t, 2);
  net_world_free(cut_world);
  ib_end();
}

static void be_silent(net_world *w) {
  for (int i = 0; i < 2; i++) silence(w->wires[0][i], true);
}

/* No packet of the control connection arrives any more, and a rank waits. If RDMA works, it goes on waiting; if not,
 * the host is gone. */
TEST(asks_the_card_about_a_silent_host) {
  hk_link *send, *recv;
  hk_status rc = HK_OK;
  if (!silence_is_allowed()) return;
  ib_begin(1);
  rdma_param("HOCKET_PEER_TIMEOUT", "2");
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_way(w, &send, &recv);
  ib_pass_on(w, send, recv, 1);
  be_silent(w);
  recv->waiting = HK_LINK_WAITS;
  uint64_t begin_ns = hk_now_ns(), before = verbs->writes;
  while (rc == HK_OK && hk_now_ns() - begin_ns < 6000000000u) rc = net_progress_and_nap(&w->ranks[1]);
  ck_assert_msg(rc == HK_OK, "%s", hk_last_error());
  ck_assert_uint_gt(verbs->writes, before);
  ib_pass_on(w, send, recv, 2);
  verbs->device[0].dead = 1;
  recv->waiting = HK_LINK_WAITS;
  begin_ns = hk_now_ns();
  while (rc == HK_OK && hk_now_ns() - begin_ns < 20000000000u) rc = net_progress_and_nap(&w->ranks[1]);
  ck_assert_int_eq(rc, HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "host does not answer"), "%s", hk_last_error());
  verbs->device[0].dead = 0;
  net_unlink(recv);
  net_unlink(send);
  net_world_free(w);
  ib_end();
}

/* NCCL's defaults last for half a minute. */
TEST(outlasts_nccl) {
  unsetenv("HOCKET_PEER_TIMEOUT");
  hk_param_reload();
  ck_assert_int_ge(hk_param_int(HK_P_PEER_TIMEOUT), 30);
}

/* ---- many connections ---- */

/* Progress looks at connections on which something moves. The FIFO of one that carries only small messages costs no
 * registered memory. */
TEST(idle_connections_cost_nothing) {
  enum { CHANNELS = 8, ARENAS = 2 * CHANNELS * (2 * 8 + 1) * 4096 };
  hk_link *send[CHANNELS], *recv[CHANNELS];
  ib_begin(1);
  rdma_plenty = true;
  net_world *w = net_world_new(2, 8, 131072);
  for (int i = 0; i < CHANNELS; i++) {
    send[i] = net_link(&w->ranks[0], 1, HK_LINK_SEND, i);
    recv[i] = net_link(&w->ranks[1], 0, HK_LINK_RECV, i);
    for (uint32_t n = 0; n < 10; n++) ib_carry(w, send[i], recv[i], 400 * n);
  }
  for (int i = 0; i < 2; i++) {
    const hk_net_end *e = i ? recv[0]->priv : send[0]->priv;
    const hk_ib_conn *c = e->priv;
    for (int k = 0; k < 100 && c->ctx->progress.nactive; k++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
    ck_assert_uint_eq(c->ctx->progress.nactive, 0);
  }
  ck_assert_uint_eq(verbs->locked, ARENAS);
  ib_carry(w, send[3], recv[3], 60000);
  ck_assert_uint_eq(verbs->locked, ARENAS + 2 * 8 * 131072);
  for (int i = 0; i < CHANNELS; i++) {
    net_unlink(send[i]);
    net_unlink(recv[i]);
  }
  net_world_free(w);
  ib_end();
}

/* ---- different ports ---- */

static void fewer_for_the_second(int rank) { rdma_param("NCCL_IB_HCA", rank ? "=fake1" : "fake"); }

TEST(agrees_on_ports) {
  stream t[2];
  ib_begin(3);
  net_world *w = net_world_of(2, 8, 131072, fewer_for_the_second);
  ib_make_streams(w, t, 32, 20000);
  run_streams(w, t, 2);
  net_world_free(w);
  ib_end();
}

/* ---- ports that act as one ---- */

static void begin_merged(int devices) {
  ib_begin(devices);
  rdma_plenty = true; /* ports are not merged where little memory may be locked */
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1,fake2");
}

/* Several ports carry one connection, and messages in parts and in turn. */
TEST_LOOP(spreads_over_ports, 3) {
  stream t[2];
  int devices = _i < 2 ? 2 : 3;
  begin_merged(devices);
  if (_i % 2) rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), rdma_param("NCCL_IB_QPS_PER_CONNECTION", "2");
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 96, 100000);
  run_streams(w, t, 2);
  for (int i = 0; i < devices; i++) ck_assert_uint_gt(verbs->device[i].writes, 96 / 4);
  net_world_free(w);
  ib_end();
}

static void merged_for_the_first(int rank) { rdma_param("NCCL_IB_MERGE_NICS", rank ? "0" : "1"); }
static void two_and_three(int rank) { rdma_param("NCCL_IB_HCA", rank ? "^fake0" : "fake"); }
/* As many ways as both have ports for. */
TEST_LOOP(agrees_on_merged_ports, 3) {
  static void (*const differ[])(int) = {fewer_for_the_second, merged_for_the_first, two_and_three};
  stream t[2];
  begin_merged(3);
  net_world *w = net_world_of(2, 8, 131072, differ[_i]);
  ib_make_streams(w, t, 48, 20000);
  run_streams(w, t, 2);
  int busy = 0;
  for (int i = 0; i < 3; i++) busy += verbs->device[i].writes > 0;
  ck_assert_int_eq(busy, _i == 2 ? 2 : 1);
  net_world_free(w);
  ib_end();
}

static void (*set_port)(int number, int up);
static net_rank *flapping;
static void flap(unsigned i) {
  if (i == 60) set_port(0, 0);
  if (i != 100) return;
  set_port(0, 1);
  for (uint64_t until = hk_now_ns() + 2500000000u; hk_now_ns() < until;) /* it must stay up for two seconds */
    ck_assert_int_eq(net_progress_and_nap(flapping), HK_OK);
}

/* A port that is up again carries messages again. */
TEST_LOOP(goes_back_to_a_port, 2) {
  stream t[2];
  begin_merged(2);
  set_port = (void (*)(int, int))(uintptr_t)dlsym(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_verbs_port");
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 400, 20000);
  t[_i].before = flap;
  flapping = t[_i].rank;
  run_streams(w, t, 2);
  uint64_t before = verbs->device[0].writes;
  ck_assert_uint_gt(before, 300);
  net_world_free(w);
  ib_end();
}

static int wanted_qps;
static void fall(unsigned i) {
  pthread_mutex_lock(&verbs->lock);
  if (i == 60) verbs->fatal = 1;
  pthread_mutex_unlock(&verbs->lock);
  for (int qps = 0; i == 200 && qps < wanted_qps;) {
    ck_assert_int_eq(net_progress_and_nap(flapping), HK_OK);
    pthread_mutex_lock(&verbs->lock);
    qps = verbs->nqps;
    pthread_mutex_unlock(&verbs->lock);
  }
}

/* A device that has failed carries messages again once it can be opened again, whether there is another one or not. */
TEST_LOOP(goes_back_to_a_device, 4) {
  stream t[2];
  const int devices = 1 + _i % 2;
  begin_merged(devices);
  for (int i = 0; i < devices; i++) verbs->device[i].returns = 2;
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 400, 20000);
  t[_i / 2].before = fall;
  flapping = t[_i / 2].rank;
  wanted_qps = 2 * devices;
  run_streams(w, t, 2);
  ck_assert_int_eq(verbs->fatal, 0);
  for (int i = 0; i < devices; i++) ck_assert_uint_gt(verbs->device[i].writes, 300);
  ck_assert_int_eq(verbs->ncontexts, 2 * devices); /* what has failed is closed */
  net_world_free(w);
  ib_end();
}

/* One of two ports goes down: the other carries on alone. */
TEST(goes_on_with_one_port) {
  stream t[2];
  begin_merged(2);
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 160, 20000);
  t[0].before = ib_pull_cable;
  run_streams(w, t, 2);
  ck_assert_uint_gt(verbs->device[1].writes, verbs->device[0].writes + 60);
  net_world_free(w);
  ib_end();
}

/* A port's cable leads somewhere else, or its device takes no memory: it is left out after one try.  The connection
 * begins with device 1. */
TEST_LOOP(leaves_a_port_without_a_peer, 3) {
  stream t[2];
  int bad = _i == 2 ? 1 : 0;
  begin_merged(2);
  if (_i == 1)
    verbs->device[bad].full = 1;
  else
    verbs->device[bad].silent = 0xff;
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 64, 20000);
  run_streams(w, t, 2);
  ck_assert_uint_eq(verbs->device[bad].writes, 0);
  net_world_free(w);
  ib_end();
}

TEST_LOOP(repairs_merged_ports, 2) {
  stream t[2];
  begin_merged(2);
  verbs->skip = 30;
  verbs->broken = 3;
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", _i ? "1" : "0");
  net_world *w = net_world_new(2, 8, 131072);
  ib_make_streams(w, t, 128, 100000);
  run_streams(w, t, 2);
  ck_assert_int_eq(verbs->broken, 0);
  net_world_free(w);
  ib_end();
}

int main(void) { return suite_main("ib_ways", .timeout = 120); }
