/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider with requests that take their time: the fake card carries one out now and then, so that messages,
 * parts, credits and completions are under way in every state. Both ranks are of one thread: each run is the same.
 * check: notsan */
#include "../../src/transport/net/ib/ib_slots.h"
#include "../support/ib.h"
#include "../support/net_soak.h"

enum { SLOT = 131072 };
/* Around what goes into a slot's header, inline, into the ring, into one part, into a page of a part. */
static const uint32_t sizes[] = {0,    1,    48,    49,    223,   224,   225,   256,   257,   4063,   4064,
                                 4065, 4096, 65535, 65536, 65537, 69632, 69633, 98304, 98305, 131071, 131072};

static const struct {
  const char *qps, *split, *uses_inline;
  uint32_t nslots;
  unsigned lazy, inline_most;
  int devices, mtu;
  bool one_way, by_ref;
} ways[] = {
    {"1", "0", "1", 2, 1, 0, 1, 0, true, false},  {"1", "0", "1", 8, 3, 0, 1, 0, false, false},
    {"4", "1", "1", 4, 2, 0, 1, 0, false, false}, {"16", "1", "0", 8, 5, 0, 1, 3, true, false},
    {"3", "1", "1", 2, 2, 64, 2, 0, false, true}, {"2", "0", "1", 64, 3, 0, 1, 0, false, false},
    {"1", "0", "1", 8, 40, 0, 1, 0, true, false}, {"1", "1", "1", 16, 2, 32, 3, 0, false, false},
};

TEST_LOOP(carries_messages_that_take_long, HK_ARRAY_LENGTH(ways)) {
  ib_begin(ways[_i].devices);
  rdma_plenty = true;
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1,fake2");
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", ways[_i].qps);
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", ways[_i].split);
  rdma_param("NCCL_IB_USE_INLINE", ways[_i].uses_inline);
  for (int i = 0; i < 4; i++) verbs->device[i].inline_most = ways[_i].inline_most;
  verbs->device[0].mtu = ways[_i].mtu;
  verbs->lazy = ways[_i].lazy;
  net_world *w = net_world_new(2, ways[_i].nslots, SLOT);
  run_soak(&(soak){.w = w,
                   .sizes = sizes,
                   .nsizes = HK_ARRAY_LENGTH(sizes),
                   .most = SLOT,
                   .count = 150,
                   .one_way = ways[_i].one_way,
                   .seed = (uint32_t)_i});
  net_world_free(w);
  ib_end();
}

/* A sender that has gone has waited until all that it took from the lane has arrived. */
TEST_LOOP(arrives_after_the_sender_has_gone, 2) {
  enum { MESSAGES = 7 };
  static unsigned char out[MESSAGES][30000], in[30000];
  hk_link *send, *recv;
  ib_begin(1);
  if (_i) rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3"), rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  net_world *w = net_world_new(2, 8, SLOT);
  ib_make_way(w, &send, &recv);
  ib_carry(w, send, recv, 20000);
  const hk_ib_conn *c = ((const hk_net_end *)send->priv)->priv;
  for (int k = 0; k < 100 || hk_ib_unfinished(c); k++) ck_assert_int_eq(net_progress(&w->ranks[k % 2], NULL), HK_OK);
  verbs->lazy = 30;
  for (unsigned i = 0; i < MESSAGES; i++) {
    fill(out[i], sizeof out[i], i);
    ck_assert(net_try_send(send, out[i], i % 3 ? 100 : sizeof out[i], i, false));
  }
  ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  ck_assert(hk_ib_unfinished(c));
  net_unlink(send);
  for (unsigned i = 0; i < MESSAGES;) {
    uint32_t bytes, signature;
    bool direct;
    ck_assert_msg(net_progress(&w->ranks[1], NULL) == HK_OK, "%s", hk_last_error());
    if (!net_try_recv(recv, in, sizeof in, false, &bytes, &signature, &direct)) continue;
    ck_assert_uint_eq(signature, i);
    ck_assert(filled(in, i % 3 ? 100 : sizeof in, i));
    i++;
  }
  net_unlink(recv);
  net_world_free(w);
  ib_end();
}

static void own_card(int rank) { rdma_param("NCCL_IB_HCA", rank ? "=fake1" : "=fake0"); }

/* Packets that are too large for one of the two ports do not arrive. */
TEST_LOOP(agrees_on_the_size_of_packets, 2) {
  hk_link *send, *recv;
  ib_begin(2);
  verbs->device[_i].mtu = 3;
  net_world *w = net_world_of(2, 8, SLOT, own_card);
  ib_make_way(w, &send, &recv);
  for (unsigned i = 0; i < 3; i++) ib_carry(w, send, recv, 30000 * i);
  net_unlink(send);
  net_unlink(recv);
  net_world_free(w);
  ib_end();
}

/* Only payloads may be written in any order: the CPU polls the rest. */
TEST_LOOP(relaxes_the_order_of_payloads, 2) {
  hk_link *send, *recv;
  ib_begin(1);
  rdma_plenty = true; /* so that FIFOs are registered when they are needed */
  rdma_param("NCCL_IB_PCI_RELAXED_ORDERING", _i ? "0" : "2");
  net_world *w = net_world_new(2, 8, SLOT);
  ib_make_way(w, &send, &recv);
  ib_carry(w, send, recv, 4000);
  const uint64_t arenas = verbs->locked;
  ck_assert_uint_eq(verbs->relaxed, 0);
  ib_carry(w, send, recv, 40000);
  ck_assert_uint_eq(verbs->locked, arenas + 2 * 8 * SLOT);
  ck_assert_uint_eq(verbs->relaxed, _i ? 0 : 2 * 8 * SLOT);
  net_unlink(send);
  net_unlink(recv);
  net_world_free(w);
  ib_end();
}

int main(void) { return suite_main("ib_flight", .timeout = 120); }
