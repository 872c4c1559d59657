/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs provider between ranks that are threads, over the fake libibverbs.so.1: data, faults, memory that runs
 * out. */
#include "../../src/transport/net/ib/ib_data.h"
#include "../../src/transport/net/ib/ib_device.h"
#include "../fakes/rdmacm.h"
#include "../support/ib.h"

/* ---- data ---- */

static const struct {
  const char *name, *value;
  bool want, both;
  uint32_t most, nslots;
  const char *qps;
} ways[] = {
    {NULL, NULL, false, false, 4064, 8, NULL},
    {NULL, NULL, true, true, 70000, 8, NULL},
    {"NCCL_IB_USE_INLINE", "0", true, true, 5000, 2, NULL},
    {NULL, NULL, true, true, 70000, 8, "4"},
    {NULL, NULL, false, true, 4064, 256, "4"}, /* more than one completion queue has room for */
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "1", false, true, 70000, 4, "3"},
    {"NCCL_IB_PCI_RELAXED_ORDERING", "0", true, false, 70000, 8, NULL},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "1", true, true, 130000, 8, "16"},
};

TEST_LOOP(carries_messages, HK_ARRAY_LENGTH(ways)) {
  stream t[2];
  ib_begin(2);
  if (ways[_i].name) rdma_param(ways[_i].name, ways[_i].value);
  if (ways[_i].qps) rdma_param("NCCL_IB_QPS_PER_CONNECTION", ways[_i].qps);
  net_world *w = ib_world(ways[_i].nslots, 131072);
  ib_make_streams(w, t, 96, ways[_i].most);
  for (int i = 0; i < 2; i++) t[i].want = ways[_i].want, t[i].both = ways[_i].both;
  run_streams(w, t, 2);
  ck_assert_uint_gt(verbs->writes, 96);
}

/* Small messages report their completion now and then, and when their link ends. */
TEST(asks_for_few_reports) {
  hk_link *send, *recv;
  ib_begin(1);
  net_world *w = ib_world(8, 131072);
  ib_make_way(w, &send, &recv);
  verbs->reports = 0;
  for (unsigned i = 0; i < 96; i++) ib_pass_on(w, send, recv, i);
  ck_assert_uint_lt(verbs->reports, 96 / 4);
  for (unsigned i = 0; i < 96; i++) { /* the sender has time to ask, and does so every 50 ms at most */
    ib_pass_on(w, send, recv, i);
    for (int k = 0; k < 200; k++) ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  }
  ck_assert_uint_lt(verbs->reports, 96 / 2);
  net_unlink(send);
  ck_assert_uint_gt(verbs->reports, 0);
}

/* The receiver ends before it has looked for the message, which is dropped. */
TEST(ends_with_an_unread_message) {
  hk_link *send, *recv;
  unsigned number = 1;
  ib_begin(1);
  net_world *w = ib_world(8, 131072);
  ib_make_way(w, &send, &recv);
  uint64_t before = verbs->writes;
  ck_assert(net_try_send(send, &number, sizeof number, 7, false));
  while (verbs->writes == before) ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  net_unlink(recv);
}

/* A large message that the sender's memory holds; the receiver gets it, and the sender knows that it has arrived. */
static void pass_by_reference(net_world *w, hk_link *send, hk_link *recv, const char *from, uint32_t bytes) {
  uint32_t n, signature;
  bool direct;
  char *got = malloc(bytes);
  hk_slot *s = &send->slots[(uint32_t)send->done & send->mask];
  ck_assert(hk_link_can_send(send, bytes) && hk_link_refer(send, from, bytes, &s->ref));
  hk_link_publish(send, bytes, 7, HK_SLOT_REF);
  bool here = false;
  while (!(here = here || net_try_recv(recv, got, bytes, true, &n, &signature, &direct)) || !hk_link_drained(send))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(n, bytes);
  ck_assert_mem_eq(got, from, bytes);
  free(got);
}

enum { REGISTERED = 3 << 20, PIECE = 100000 };

/* What the user has registered is sent from where it lies; the device is given it once, and until he takes it back. */
TEST_LOOP(sends_registered_memory, 3) {
  hk_link *send, *recv;
  hk_ref ref;
  int ndevices = _i == 2 ? 2 : 1;
  ib_begin(ndevices);
  if (_i) rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3"), rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  rdma_plenty = true;
  net_world *w = ib_world(8, 131072);
  hk_transport_state *sender = w->ranks[0].state;
  ib_make_way(w, &send, &recv);
  static char memory[REGISTERED];
  for (size_t i = 0; i < REGISTERED; i++) memory[i] = (char)(i * 7 + i / 251);
  int before = verbs->nmrs;
  ck_assert(!hk_link_refer(send, memory, PIECE, &ref));
  ib_carry(w, send, recv, 60000); /* for the first large message the FIFOs are registered */
  before = verbs->nmrs;
  hk_transport_net.zero_copy->memory(sender, memory, REGISTERED, true);
  for (int i = 0; i < 10; i++) {
    pass_by_reference(w, send, recv, memory + i * 1234, PIECE);
    ck_assert_int_eq(verbs->nmrs, before + ndevices);
  }
  pass_by_reference(w, send, recv, memory + REGISTERED - PIECE, PIECE);
  ck_assert(!hk_link_refer(send, memory + REGISTERED - PIECE + 1, PIECE, &ref));
  ck_assert(!hk_link_refer(send, memory, 100, &ref)); /* small ones are copied */
  hk_transport_net.zero_copy->memory(sender, memory, REGISTERED, false);
  ck_assert_int_eq(verbs->nmrs, before);
  ck_assert(!hk_link_refer(send, memory, PIECE, &ref));
}

/* Too much for the device: it is copied.  And nobody takes it back before the end. */
TEST(copies_what_the_device_refuses) {
  hk_link *send, *recv;
  ib_begin(1);
  net_world *w = ib_world(8, 131072);
  ib_make_way(w, &send, &recv);
  static char memory[REGISTERED];
  memory[5] = 1;
  verbs->lockable = verbs->locked + 8 * 131072; /* the FIFO's */
  hk_transport_net.zero_copy->memory(w->ranks[0].state, memory, REGISTERED, true);
  for (int i = 0; i < 10; i++) pass_by_reference(w, send, recv, memory + i, PIECE);
  hk_transport_net.zero_copy->memory(w->ranks[0].state, memory, PIECE, true);
  verbs->lockable = 0;
  pass_by_reference(w, send, recv, memory, PIECE);
}

TEST(sleeps_until_something_comes) {
  hk_link *send, *recv;
  ib_begin(1);
  net_world *w = ib_world(8, 131072);
  hk_transport_state *sleeper = w->ranks[1].state;
  ib_make_way(w, &send, &recv);
  for (unsigned i = 0; i < 3; i++) {
    hk_transport_net.proxied->sleep(sleeper); /* nothing comes: it arms its queue */
    ck_assert_uint_eq(verbs->heard, i);
    ib_pass_on(w, send, recv, i);
    hk_transport_net.proxied->sleep(sleeper); /* it is told of what came */
    ck_assert_uint_eq(verbs->heard, i + 1);
  }
}

static void own_card(int rank) { rdma_param("NCCL_IB_HCA", rank ? "=fake1" : "=fake0"); }

/* A sender that has gone has waited until all that it took from the lane has arrived. */
TEST_LOOP(arrives_after_the_sender_has_gone, 2) {
  enum { MESSAGES = 7 };
  static unsigned char out[MESSAGES][30000], in[30000];
  hk_link *send, *recv;
  ib_begin(1);
  if (_i) rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3"), rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  net_world *w = ib_world(8, 131072);
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
}

/* Packets that are too large for one of the two ports do not arrive. */
TEST_LOOP(agrees_on_the_size_of_packets, 2) {
  hk_link *send, *recv;
  ib_begin(2);
  verbs->device[_i].mtu = 3;
  net_world *w = ib_world_of(8, 131072, own_card);
  ib_make_way(w, &send, &recv);
  for (unsigned i = 0; i < 3; i++) ib_carry(w, send, recv, 30000 * i);
}

/* Only payloads may be written in any order: the CPU polls the rest. */
TEST_LOOP(relaxes_the_order_of_payloads, 2) {
  hk_link *send, *recv;
  ib_begin(1);
  rdma_plenty = true; /* so that FIFOs are registered when they are needed */
  rdma_param("NCCL_IB_PCI_RELAXED_ORDERING", _i ? "0" : "2");
  net_world *w = ib_world(8, 131072);
  ib_make_way(w, &send, &recv);
  ib_carry(w, send, recv, 4000);
  const uint64_t arenas = verbs->locked;
  ck_assert_uint_eq(verbs->relaxed, 0);
  ib_carry(w, send, recv, 40000);
  ck_assert_uint_eq(verbs->locked, arenas + 2 * 8 * 131072);
  ck_assert_uint_eq(verbs->relaxed, _i ? 0 : 2 * 8 * 131072);
}

/* ---- faults ---- */

/* A caller that had no answer soon enough called again. */
TEST(takes_the_call_that_counts) {
  int pair[2];
  ib_begin(1);
  net_world *w = ib_world(8, 131072);
  for (int i = 0; i < 3; i++) {
    net_pair(true, pair);
    close(pair[0]);
    w->mail[w->nmail].from = 0;
    w->mail[w->nmail].to = 1;
    w->mail[w->nmail].tag = (uint64_t)'V' << 56 | 3;
    w->mail[w->nmail++].fd = pair[1];
  }
  ib_run_streams(w, 32, 20000);
}

TEST_LOOP(repairs_broken_queue_pairs, 3) {
  ib_begin(1);
  verbs->skip = 20 + 20 * _i;
  verbs->broken = 2 + _i;
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", _i ? "2" : "1");
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", _i == 2 ? "1" : "0");
  net_world *w = ib_world(8, 131072);
  ib_run_streams(w, 128, 20000);
  ck_assert_int_eq(verbs->broken, 0);
}

/* The peer takes no part for longer than HOCKET_PEER_TIMEOUT while queue pairs are replaced, as a process that is
 * stopped. Then the new ones fail, too: that is the first time, and no error. */
TEST(waits_for_a_stopped_peer) {
  hk_link *send, *recv;
  const unsigned char data[100] = {7};
  unsigned char in[100];
  uint32_t bytes = 0, signature = 0;
  bool direct, came = false;
  hk_status rc = HK_OK;
  ib_begin(1);
  rdma_param("HOCKET_PEER_TIMEOUT", "2");
  net_world *w = ib_world(8, 131072);
  ib_make_way(w, &send, &recv);
  verbs->broken = 1;
  ck_assert(net_try_send(send, data, sizeof data, 5, false));
  for (uint64_t until = hk_now_ns() + 3500000000u; rc == HK_OK && hk_now_ns() < until;)
    rc = net_progress(&w->ranks[0], NULL);
  ck_assert_msg(rc == HK_OK && verbs->broken == 0, "%s", hk_last_error());
  verbs->broken = 1;
  while (rc == HK_OK && !came) {
    rc = net_progress(&w->ranks[0], NULL);
    if (rc == HK_OK) rc = net_progress(&w->ranks[1], NULL);
    came = net_try_recv(recv, in, sizeof in, true, &bytes, &signature, &direct);
  }
  ck_assert_msg(rc == HK_OK && verbs->broken == 0 && in[0] == 7, "%s", hk_last_error());
}

/* A port goes down and stays so: what was on its way goes over the other one. */
TEST(moves_to_another_port) {
  stream t[2];
  ib_begin(2);
  net_world *w = ib_world(8, 131072);
  ib_make_streams(w, t, 128, 20000);
  t[0].before = ib_pull_cable;
  run_streams(w, t, 2);
}

/* The device says that it fails, and answers no more: the other one takes over. */
TEST(leaves_a_failing_device) {
  ib_begin(2);
  verbs->skip = 60;
  verbs->fatal = 1;
  net_world *w = ib_world(8, 131072);
  ib_run_streams(w, 128, 20000);
  ck_assert_int_eq(verbs->fatal, 0);
}

/* Two cards use those of their vendor's options that both know; one that knows none, or is not to, leaves them as they
 * are. */
static const struct {
  unsigned offered[2], agreed[2];
  const char *enable;
} options[] = {{{7, 5}, {5, 5}, "1"}, {{6, 7}, {6, 6}, "1"}, {{7, 0}, {7, 0}, "1"}, {{7, 5}, {7, 5}, "0"}};

TEST_LOOP(agrees_on_options, HK_ARRAY_LENGTH(options)) {
  hk_link *send, *recv;
  ib_begin(2);
  rdma_param("NCCL_IB_ECE_ENABLE", options[_i].enable);
  for (int i = 0; i < 2; i++) verbs->device[i].ece = options[_i].offered[i];
  net_world *w = ib_world_of(8, 131072, own_card);
  ib_make_way(w, &send, &recv);
  ib_pass_on(w, send, recv, 1);
  for (int i = 0; i < 2; i++) ck_assert_uint_eq(verbs->device[i].agreed, options[_i].agreed[i]);
}

TEST_LOOP(uses_settings, 2) {
  ib_begin(1);
  rdma_param("NCCL_IB_SL", "3");
  rdma_param("NCCL_IB_RETRY_CNT", "5");
  if (_i) rdma_param("NCCL_IB_TC", "106");
  if (_i) rdma_param("NCCL_IB_TIMEOUT", "16");
  net_world *w = ib_world(8, 131072);
  for (int i = 0; i < 2; i++) w->ranks[i].env.traffic_class = 104; /* ncclConfig_t's */
  ib_run_streams(w, 8, 1000);
  ck_assert_uint_eq(verbs->traffic_class, _i ? 106 : 104);
  ck_assert_uint_eq(verbs->service_level, 3);
  ck_assert_uint_eq(verbs->timeout, _i ? 16 : 14);
  ck_assert_uint_eq(verbs->retries, 5);
}

TEST(waits_as_long_as_the_path_takes) {
  uint64_t bound = 20000000000u;
  ck_assert_uint_eq(hk_ib_timeout_for(0, 6, bound), 14);
  ck_assert_uint_eq(hk_ib_timeout_for(8000, 6, bound), 14);
  ck_assert_uint_eq(hk_ib_timeout_for(10000, 6, bound), 15);
  ck_assert_uint_eq(hk_ib_timeout_for(60000, 6, bound), 17);
  ck_assert_uint_eq(hk_ib_timeout_for(4000000, 6, bound), 17); /* seven times four times 0.54 s */
  ck_assert_uint_le(hk_ib_gives_up_ns(17, 6), bound);
  ck_assert_uint_eq(hk_ib_timeout_for(60000, 6, 0), 14);
  ck_assert_uint_lt(hk_ib_gives_up_ns(14, 6), 10000000000u);
}

TEST(tries_the_next_gid) {
  ib_begin(1);
  verbs->device[0].silent = 1u << 3; /* the best one: RoCE v2 with an IPv4 address */
  net_world *w = ib_world(8, 131072);
  ib_run_streams(w, 32, 20000);
}

/* What must end in an error on both sides, that says what it was. */
static void ends_with(const char *words) {
  stream t[2];
  net_world *w = ib_world(8, 131072);
  verbs->skip = 50;
  ib_make_streams(w, t, 128, 20000);
  try_streams(w, t, 2);
  bool said = false;
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(t[i].rc, HK_ERR_REMOTE);
    said = said || strstr(t[i].error, words);
  }
  ck_assert_msg(said, "'%s' is not in: %s\n%s", words, t[0].error, t[1].error);
}

/* A message that is lost or comes twice, a wrong key, a queue that overflows. */
TEST_LOOP(tells_of_what_no_repair_hides, 4) {
  static const char *const words[] = {"one was lost or came twice", "one was lost or came twice", "REM_ACCESS_ERR",
                                      "overflowed"};
  ib_begin(1);
  int *const faults[] = {&verbs->lost, &verbs->doubled, &verbs->denied, &verbs->overrun};
  *faults[_i] = 1;
  ends_with(words[_i]);
}

TEST(ends_at_once_without_replay) {
  ib_begin(1);
  rdma_param("HOCKET_IB_REPLAY", "0");
  verbs->broken = 1;
  fake_cm_state *cm = rdma_fake("librdmacm.so.1", "fake_cm");
  cm->addr_error = ETIMEDOUT;
  ends_with("the kernel says: 10.0.0.1 does not answer");
  ib_end();
  ck_assert_int_eq(cm->open, 0);
}

/* ---- memory that runs out ---- */

/* The limit does not apply to a process with CAP_IPC_LOCK in the first user namespace. */
TEST(may_lock_as_root) {
  struct rlimit limit = {65536, 65536};
  ib_begin(1); /* drops it */
  ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  ck_assert(hk_ib_memory_is_scarce());
  if (rdma_lock(true)) ck_assert(!hk_ib_memory_is_scarce());
}

enum { NSLOTS = 8, RING = NSLOTS * 65536, ARENA = (2 * NSLOTS + 1) * 4096 };
/* Of both ranks, as they share the device. */
static const uint64_t lockable[] = {1, ARENA, 2 * ARENA, 2 * ARENA + RING, 2 * ARENA + 3 * RING, 2 * ARENA + 4 * RING};

static void begin_scarce(uint64_t bytes) {
  struct rlimit limit;
  ib_begin(1);
  ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (limit.rlim_cur > 1 << 20) limit.rlim_cur = 1 << 20;
  ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  verbs->lockable = bytes;
}

TEST_LOOP(gives_way_to_tcp, HK_ARRAY_LENGTH(lockable)) {
  begin_scarce(lockable[_i]);
  rdma_param("NCCL_NET", "");
  net_world *w = ib_world(NSLOTS, 65536);
  ib_run_streams(w, 64, 65536);
  bool enough = _i + 1 == (int)HK_ARRAY_LENGTH(lockable);
  if (_i != 4) ck_assert_int_eq(verbs->writes > 0, enough); /* three rings: one direction may be under way by then */
  ck_assert_int_eq(w->dials, enough ? 1 : 2);               /* the control connection, and a socket */
}

TEST_LOOP(insists_on_rdma, 2) {
  stream t[2];
  begin_scarce(lockable[_i]);
  net_world *w = ib_world(NSLOTS, 65536);
  ib_make_streams(w, t, 64, 65536);
  try_streams(w, t, 2);
  ck_assert(t[0].rc != HK_OK && t[1].rc != HK_OK);
  ck_assert_msg(strstr(t[0].error, "ulimit -l") || strstr(t[1].error, "ulimit -l"), "%s\n%s", t[0].error, t[1].error);
}

/* One direction is under way when there is no memory for the other. */
TEST_LOOP(one_direction_gives_way, 2) {
  begin_scarce(1 << 30);
  rdma_param("NCCL_NET", "");
  net_world *w = ib_world(NSLOTS, 65536);
  hk_link *send = net_link(&w->ranks[_i], 1 - _i, HK_LINK_SEND, 1);
  hk_link *recv = net_link(&w->ranks[1 - _i], _i, HK_LINK_RECV, 1);
  for (uint32_t n = 0; n < 20; n++) ib_carry(w, send, recv, n * 3000);
  ck_assert_int_eq(w->dials, 1);
  verbs->lockable = verbs->locked;
  hk_link *back = net_link(&w->ranks[1 - _i], _i, HK_LINK_SEND, 1);
  hk_link *here = net_link(&w->ranks[_i], 1 - _i, HK_LINK_RECV, 1);
  for (uint32_t n = 0; n < 20; n++) ib_carry(w, back, here, n * 3000);
  ck_assert_int_eq(w->dials, 2);
  uint64_t before = verbs->writes;
  for (uint32_t n = 0; n < 20; n++) ib_carry(w, send, recv, n * 3000);
  ck_assert_uint_gt(verbs->writes, before);
}

/* The same where nothing else could carry it: opening it fails, and what is under way does not notice. */
TEST_LOOP(forgets_what_cannot_be_opened, 2) {
  hk_link *back;
  begin_scarce(1 << 30);
  net_world *w = ib_world(NSLOTS, 65536);
  hk_link *send = net_link(&w->ranks[_i], 1 - _i, HK_LINK_SEND, 1);
  hk_link *recv = net_link(&w->ranks[1 - _i], _i, HK_LINK_RECV, 1);
  for (uint32_t n = 0; n < 20; n++) ib_carry(w, send, recv, n * 3000);
  verbs->lockable = verbs->locked;
  ck_assert_int_eq(net_try_link(&w->ranks[_i], 1 - _i, HK_LINK_RECV, 1, &back), HK_ERR_SYSTEM);
  for (uint32_t n = 0; n < 20; n++) ib_carry(w, send, recv, n * 3000);
}

int main(void) { return ib_main("ib", .timeout = 120); }
