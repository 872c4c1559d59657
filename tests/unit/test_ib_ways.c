/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider between ranks that are threads: devices and ports that are not there, idle connections, ports that
 * act as one. test_ib_trace has what fails while they work.
 * check: long=asan,tsan */
#include "../support/ib.h"

/* ---- devices that cannot be opened ---- */

/* The only one: sockets. One of several, of one rank or of both: the others. */
TEST_LOOP(does_without_what_does_not_open, 3) {
  int devices = _i ? 3 : 1;
  ib_begin(devices);
  if (!_i) rdma_param("NCCL_NET", "");
  for (int i = 0; i < (_i == 2 ? 2 : 1); i++) verbs->device[i].refuses_open = EPERM;
  net_world *w = ib_world(8, 131072);
  ib_run_streams(w, 32, 20000);
  ck_assert_int_eq(verbs->writes > 0, _i > 0);
}

static void second_has_no_right(int rank) { verbs->device[0].refuses_open = rank ? EPERM : 0; }
TEST(one_rank_may_not_open) {
  ib_begin(2);
  net_world *w = ib_world_of(8, 131072, second_has_no_right);
  verbs->device[0].refuses_open = 0;
  ib_run_streams(w, 32, 20000);
}

/* ---- many connections ---- */

/* Progress looks at connections on which something moves. The FIFO of one that carries only small messages costs no
 * registered memory. */
TEST(idle_connections_cost_nothing) {
  enum { CHANNELS = 8, ARENAS = 2 * CHANNELS * (2 * 8 + 1) * 4096 };
  hk_link *send[CHANNELS], *recv[CHANNELS];
  ib_begin(1);
  rdma_plenty = true;
  net_world *w = ib_world(8, 131072);
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
}

/* ---- different ports ---- */

static void fewer_for_the_second(int rank) { rdma_param("NCCL_IB_HCA", rank ? "=fake1" : "fake"); }

TEST(agrees_on_ports) {
  ib_begin(3);
  net_world *w = ib_world_of(8, 131072, fewer_for_the_second);
  ib_run_streams(w, 32, 20000);
}

/* ---- ports that act as one ---- */

static void begin_merged(int devices) {
  ib_begin(devices);
  rdma_plenty = true; /* ports are not merged where little memory may be locked */
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1,fake2");
}

/* Several ports carry one connection, and messages in parts and in turn. */
TEST_LOOP(spreads_over_ports, 3) {
  int devices = _i < 2 ? 2 : 3;
  begin_merged(devices);
  if (_i % 2) rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), rdma_param("NCCL_IB_QPS_PER_CONNECTION", "2");
  net_world *w = ib_world(8, 131072);
  ib_run_streams(w, 96, 100000);
  for (int i = 0; i < devices; i++) ck_assert_uint_gt(verbs->device[i].writes, 96 / 4);
}

static void merged_for_the_first(int rank) { rdma_param("NCCL_IB_MERGE_NICS", rank ? "0" : "1"); }
static void two_and_three(int rank) { rdma_param("NCCL_IB_HCA", rank ? "^fake0" : "fake"); }
/* As many ways as both have ports for. */
TEST_LOOP(agrees_on_merged_ports, 3) {
  static void (*const differ[])(int) = {fewer_for_the_second, merged_for_the_first, two_and_three};
  begin_merged(3);
  net_world *w = ib_world_of(8, 131072, differ[_i]);
  ib_run_streams(w, 48, 20000);
  int busy = 0;
  for (int i = 0; i < 3; i++) busy += verbs->device[i].writes > 0;
  ck_assert_int_eq(busy, _i == 2 ? 2 : 1);
}

/* A port's cable leads somewhere else, or its device takes no memory: it is left out after one try.  The connection
 * begins with device 1. */
TEST_LOOP(leaves_a_port_without_a_peer, 3) {
  int bad = _i == 2 ? 1 : 0;
  begin_merged(2);
  if (_i == 1)
    verbs->device[bad].full = 1;
  else
    verbs->device[bad].silent = 0xff;
  net_world *w = ib_world(8, 131072);
  ib_run_streams(w, 64, 20000);
  ck_assert_uint_eq(verbs->device[bad].writes, 0);
}

int main(void) { return ib_main("ib_ways", .timeout = 120); }
