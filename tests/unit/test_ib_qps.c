/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pairs of a connection of the verbs provider: how many there are, and one of their own for credits. */
#include "../support/ib.h"

/* More queue pairs than slots, on one port or two, of messages as wholes or in parts. */
static const struct {
  const char *qps, *split;
  int devices, made;
} many[] = {{"16", "0", 1, 16}, {"128", "0", 1, 128}, {"128", "1", 1, 128}, {"100", "1", 2, 128}, {"3", "0", 2, 6}};

TEST_LOOP(has_many_queue_pairs, HK_ARRAY_LENGTH(many)) {
  hk_link *send, *recv;
  ib_begin(many[_i].devices);
  rdma_plenty = true;
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", many[_i].qps);
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", many[_i].split);
  net_world *w = ib_world(8, 1 << 20);
  ib_make_way(w, &send, &recv);
  ck_assert_int_eq(verbs->nqps, 2 * many[_i].made);
  for (unsigned i = 0; i < 300; i++) ib_pass_on(w, send, recv, i);
  const hk_ib_conn *c = ((const hk_net_end *)send->priv)->priv;
  for (uint32_t q = 0; q < c->nqps; q++) ck_assert_uint_gt(c->qps[q].posted, 0);
  for (unsigned i = 0; i < 2; i++) ib_carry(w, send, recv, 65536);
  verbs->broken = 1;
  for (unsigned i = 0; i < 40; i++) ib_carry(w, send, recv, 65536);
}

static int class_row;

/* What a receiver writes has a class of its own if it sets one, whoever else does; without messages from it, there is
 * nothing else. */
static const struct {
  const char *of[2]; /* NCCL_IB_FIFO_TC of each rank */
  const char *qps;
  int made;       /* queue pairs of a rank */
  unsigned class; /* of rank 1's credits */
} classes[] = {{{"24", "28"}, "1", 2, 28},
               {{"-1", "28"}, "2", 3, 28},
               {{"24", "-1"}, "1", 2, 96},
               {{"-1", "-1"}, "1", 1, 96},
               {{"0", "0"}, "128", 128, 0}};

static void own_class(int rank) {
  rdma_param("NCCL_IB_HCA", rank ? "=fake1" : "=fake0");
  rdma_param("NCCL_IB_FIFO_TC", classes[class_row].of[rank]);
}

TEST_LOOP(credits_have_their_class, HK_ARRAY_LENGTH(classes)) {
  hk_link *send, *recv;
  ib_begin(2);
  class_row = _i;
  rdma_param("NCCL_IB_TC", "96");
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", classes[_i].qps);
  net_world *w = ib_world_of(8, 131072, own_class);
  ib_make_way(w, &send, &recv);
  ck_assert_int_eq(verbs->nqps, 2 * classes[_i].made);
  for (unsigned i = 0; i < 100; i++) ib_carry(w, send, recv, i % 3 ? 50000 : 200);
  net_unlink(send);
  net_unlink(recv);
  ck_assert_uint_gt(verbs->device[1].writes, 100 / 8);
  ck_assert_uint_gt(verbs->device[0].writes, 100);
  uint64_t data = verbs->device[0].writes, credits = verbs->device[1].writes;
  const bool same = classes[_i].class == 96;
  ck_assert_uint_eq(verbs->by_class[96], same ? data + credits : data);
  if (!same) ck_assert_uint_eq(verbs->by_class[classes[_i].class], credits);
}

/* InfiniBand has no traffic class without routers: there, the setting makes no queue pair. */
TEST(only_on_ethernet) {
  hk_link *send, *recv;
  ib_begin(1);
  fm_file("sys/class/infiniband/fake0/ports/1/link_layer", "InfiniBand\n");
  fm_file("sys/class/infiniband/fake0/ports/1/lid", "5\n");
  rdma_param("NCCL_IB_FIFO_TC", "24");
  net_world *w = ib_world(8, 131072);
  ib_make_way(w, &send, &recv);
  for (unsigned i = 0; i < 20; i++) ib_pass_on(w, send, recv, i);
  ck_assert_int_eq(verbs->nqps, 2);
}

int main(void) { return ib_main("ib_qps", .timeout = 60); }
