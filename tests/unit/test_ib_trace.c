/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider posts and sends on fixed schedules, compared with a file: ib_trace.h. Both ranks are of this
 * thread, and the time is the test's.
 * check: notsan */
#include "../../src/transport/net/ib/ib_flushing.h"
#include "../../src/transport/net/ib/ib_gdr.h"
#include "../support/ib_scene.h"

/* ---- scenes ---- */

TEST(carries_small_messages) {
  scene *s = scene_open("small", 1);
  scene_connect(s, true, false);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 20);
  scene_turns(s, 200);
  scene_close();
}

TEST(carries_large_messages) {
  scene *s = scene_open("large", 1);
  scene_connect(s, true, true);
  scene_exchange(s, large, HK_ARRAY_LENGTH(large), 12);
  scene_turns(s, 200);
  scene_close();
}

/* Credits go back without data that goes there. */
TEST(carries_one_way) {
  scene *s = scene_open("one way", 1);
  verbs->device[0].max_wr = 16;
  verbs->device[0].max_cqe = 100;
  verbs->device[0].ece = 0x70;
  verbs->device[0].mtu = 3;
  scene_connect(s, false, false);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 30);
  scene_exchange(s, large, 2, 4);
  scene_turns(s, 200);
  scene_close();
}

/* Two paths with two queue pairs each, and one for credits; no data goes with requests. */
TEST(uses_all_queue_pairs) {
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", "2");
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  rdma_param("NCCL_IB_FIFO_TC", "7");
  rdma_param("NCCL_IB_USE_INLINE", "0");
  rdma_param("NCCL_IB_TC", "3");
  rdma_param("NCCL_IB_SL", "2");
  scene *s = scene_open("queue pairs", 2);
  scene_connect(s, true, false);
  scene_exchange(s, large, HK_ARRAY_LENGTH(large), 12);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 12);
  scene_turns(s, 200);
  scene_close();
}

/* Requests are under way for some time. */
TEST(carries_slowly) {
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3");
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  scene *s = scene_open("slow", 1);
  verbs->lazy = 2;
  scene_connect(s, true, true);
  scene_exchange(s, large, HK_ARRAY_LENGTH(large), 10);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 10);
  scene_turns(s, 200);
  scene_close();
}

/* Memory that the user has registered: sent from, written to. */
static void offer_all(scene *s, int me, const uint32_t *sizes, unsigned nsizes, unsigned n) {
  hk_link *l = s->recv[me];
  for (; l->offered < n && hk_link_may_post_target(l); l->offered++) {
    const uint32_t bytes = sizes[(l->offered + (unsigned)(1 - me)) % nsizes];
    if (hk_link_places(l, bytes)) hk_link_post_target(l, l->offered, s->memory[me] + l->offered % 8 * SLOT, bytes);
  }
}
TEST(writes_to_places) {
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  scene *s = scene_open("places", 2);
  for (int i = 0; i < 2; i++) hk_transport_net.zero_copy->memory(s->w->ranks[i].state, s->memory[i], MEMORY, true);
  s->by_ref = true;
  scene_connect(s, true, true);
  for (unsigned round = 1; round <= 4; round++) {
    for (int i = 0; i < 2; i++)
      if (round != 2) offer_all(s, i, large, HK_ARRAY_LENGTH(large), 3 * round);
    scene_exchange(s, large, HK_ARRAY_LENGTH(large), 3);
  }
  hk_transport_net.zero_copy->memory(s->w->ranks[1].state, s->memory[1], MEMORY, false);
  s->by_ref = false;
  scene_exchange(s, large, HK_ARRAY_LENGTH(large), 3);
  offer_all(s, 0, large, HK_ARRAY_LENGTH(large), 18);
  scene_turns(s, 3);
  hk_transport_net.proxied->withdraw(s->w->ranks[0].state);
  scene_turns(s, 20);
  scene_close();
}

/* ---- faults ---- */

TEST(repairs_broken_requests) {
  scene *s = scene_open("broken", 1);
  s->step_ns = 10 * MS;
  scene_connect(s, true, true);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 5);
  for (int i = 0; i < 3; i++) {
    verbs->skip = 3;
    verbs->broken = 1 + i;
    scene_exchange(s, i % 2 ? small : large, 5, 4);
    scene_turns(s, i == 1 ? 400 : 5);
  }
  verbs->passing = 2;
  verbs->severed = 1;
  scene_exchange(s, large, 4, 3);
  verbs->passing = 1;
  verbs->unanswered = 1;
  scene_exchange(s, large, 4, 3);
  scene_turns(s, 20);
  scene_close();
}

/* Each request fails: repairs end when the time for them is over. */
TEST(gives_up) {
  scene *s = scene_open("never repaired", 1);
  scene_connect(s, true, true);
  s->step_ns = 200 * MS; /* a longer gap would count as a pause of the process */
  verbs->broken = 1 << 30;
  for (int i = 0; i < 2; i++) (void)scene_send(s, i, 100);
  const uint64_t begun = trace_now, most = scene_conn(s, 0)->ctx->timeout_ns;
  trace.blocked = true; /* other scenes show repairs */
  while (!s->ended[0] && !s->ended[1]) {
    ck_assert_uint_lt(trace_now - begun, 3 * most);
    scene_turn(s);
  }
  ck_assert_uint_gt(trace_now - begun, most);
  trace.blocked = false;
  scene_close();
}

/* The port goes down, the connection takes the other one; the first comes back, and it takes that again. */
TEST_LOOP(leaves_ports_and_comes_back, 2) {
  if (_i) rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  scene *s = scene_open(_i ? "a port of two" : "ports", 2);
  void (*set_port)(int, int);
  *(void **)&set_port = rdma_fake("libibverbs.so.1", "fake_verbs_port");
  s->step_ns = 10 * MS;
  scene_connect(s, true, true);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  set_port(0, 0);
  scene_exchange(s, large, 3, 4);
  scene_turns(s, 40);
  set_port(0, 1);
  scene_turns(s, 300);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  scene_close();
}

/* A device fails, and can be opened again after some time. */
TEST(leaves_devices_and_comes_back) {
  scene *s = scene_open("devices", 2);
  s->step_ns = 10 * MS;
  scene_connect(s, true, true);
  scene_exchange(s, large, 3, 4);
  verbs->fatal = 1;
  scene_exchange(s, large, 3, 4);
  verbs->device[0].returns = 3;
  scene_turns(s, 600);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  scene_close();
}

/* Requests that neither complete nor fail. */
TEST(repairs_what_hangs) {
  scene *s = scene_open("hanging", 1);
  s->step_ns = 100 * MS;
  scene_connect(s, true, true);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  verbs->device[0].dead = 1;
  (void)scene_send(s, 0, 100);
  (void)scene_send(s, 1, 100000);
  scene_turns(s, 60);
  verbs->device[0].dead = 0;
  scene_turns(s, 100);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  scene_close();
}

/* The control connection is lost: RDMA goes on, and another one is made, or not, or the peer has gone. */
TEST_LOOP(goes_on_without_control, 4) {
  static const char *const names[] = {"control lost", "control lost for good", "control lost, peer gone", "no control"};
  scene *s = scene_open(names[_i], 1);
  s->step_ns = 20 * MS;
  for (int i = 0; i < 2; i++) s->w->ranks[i].env.redial = _i < 3 ? trace_redial : NULL;
  scene_connect(s, true, true);
  trace.blocked = true;
  scene_exchange(s, large, 3, 4);
  trace.blocked = false;
  redial_fails = true;
  trace_cut_controls();
  scene_turns(s, 4);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  for (int i = 0; i < 200 && !scene_conn(s, 0)->control.lost_ns && _i < 3; i++) scene_turn(s);
  if (_i == 1) verbs->broken = 1;
  if (_i == 2) redial_gone = true;
  redial_fails = _i == 1;
  if (_i == 0) scene_await_redial(s);
  if (_i == 2) scene_await_redial(s);
  if (_i != 0) (void)scene_send(s, 0, 8);
  if (_i == 1) s->step_ns = SECOND;
  scene_turns(s, 100);
  if (_i == 0) scene_exchange(s, large, 3, 3);
  scene_close();
}

/* The peer's host does not answer any more, while it is waited for, or not; or while a connection is made. */
TEST_LOOP(asks_after_silent_hosts, 3) {
  static const char *const names[] = {"silent, waited for", "silent", "silent from the begin"};
  scene *s = scene_open(names[_i], 1);
  s->step_ns = SECOND;
  trace_info.tcpi_rtt = 30000;
  if (_i < 2) scene_connect(s, true, true);
  if (_i < 2) scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  if (_i == 2) {
    for (int i = 0; i < 2; i++) s->send[i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_SEND, 3);
    for (int i = 0; i < 2; i++) s->recv[i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_RECV, 3);
    trace_pass_controls();
    controls[0].deaf = true;
  }
  if (_i == 0) hk_link_set_waiting(s->recv[0], HK_LINK_WAITS);
  trace_info.tcpi_probes = 1;
  for (int i = 0; i < 50; i++) {
    trace_info.tcpi_last_ack_recv = trace_info.tcpi_last_data_recv = (uint32_t)(i * 2000 + 1000);
    scene_turns(s, 1);
  }
  memset(&trace_info, 0, sizeof trace_info);
  controls[0].deaf = false;
  scene_close();
}

/* ---- memory ---- */

/* An end comes when the other direction is there already, and the peer waits for its memory. */
TEST_LOOP(takes_ends_later, 2) {
  rdma_plenty = !_i;
  rdma_scarce = _i;
  scene *s = scene_open(_i ? "ends later, little memory" : "ends later", 1);
  s->send[0] = net_link(&s->w->ranks[0], 1, HK_LINK_SEND, 3);
  s->send[1] = net_link(&s->w->ranks[1], 0, HK_LINK_SEND, 3);
  scene_turns(s, 10);
  scene_may_grow(s, 0, s->send[0], true);
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 2; k++) (void)scene_send(s, i, k ? 100 : 70000);
  scene_turns(s, 10);
  s->recv[1] = scene_small_link(s, 1, HK_LINK_RECV);
  scene_check(s, 1);
  scene_turns(s, 5);
  s->recv[0] = net_link(&s->w->ranks[0], 1, HK_LINK_RECV, 3);
  scene_check(s, 0);
  scene_exchange(s, large, 3, 0);
  for (int i = 0; i < 20; i++) {
    for (int k = 0; k < 2; k++) scene_receive(s, k);
    scene_turn(s);
  }
  net_unlink(s->send[0]);
  s->send[0] = NULL;
  scene_turns(s, 5);
  s->sent[0] = 0;
  free(s->recv[1]->small);
  scene_close();
}

/* One card of two takes no memory, or queue pairs with less inline data; the first one refuses to be opened. */
TEST_LOOP(does_without, 4) {
  static const char *const names[] = {"a full card of two", "less inline", "a closed card", "full later"};
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  scene *s = scene_open(names[_i], 2);
  s->step_ns = 10 * MS;
  verbs->device[0].full = _i == 0;
  for (int i = 0; i < 2 && _i == 1; i++) verbs->device[i].inline_most = i ? 100 : 32;
  if (_i == 2) verbs->device[0].refuses_open = EPERM;
  scene_connect(s, true, false);
  scene_exchange(s, large, 3, 4);
  verbs->device[1].full = _i == 3;
  if (_i == 3) {
    for (int i = 0; i < 2; i++) hk_transport_net.zero_copy->memory(s->w->ranks[i].state, s->memory[i], MEMORY, true);
    s->by_ref = true;
    scene_exchange(s, large, 3, 4);
  }
  scene_turns(s, 100);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  scene_close();
}

/* InfiniBand: one subnet, ports that want a global header, two subnets with a router. */
static int subnets;
static void make_infiniband(void) {
  for (int i = 0; i < 2; i++) {
    char path[160];
    snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/link_layer", i);
    fm_file(path, "InfiniBand\n");
    snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/lid", i);
    fm_file(path, "0x%x\n", 17 + i);
    for (int k = 0; k < 4; k++) {
      snprintf(path, sizeof path, "sys/class/infiniband/fake%d/ports/1/gids/%d", i, k);
      if (k == 0)
        fm_file(path, "fe80:0000:0000:000%d:0000:0000:0000:00%02x\n", subnets ? i : 0, i + 1);
      else if (k == 1 && subnets)
        fm_file(path, "fe80:0000:00%02x:000%d:0000:0000:0000:00%02x\n", i + 50, i, i + 1);
      else
        fm_file(path, "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }
  }
}
TEST_LOOP(goes_over_infiniband, 3) {
  static const char *const names[] = {"InfiniBand", "global headers", "subnets"};
  before_ranks = make_infiniband;
  subnets = _i == 2;
  rdma_param("NCCL_IB_PKEY", "3");
  rdma_param("NCCL_IB_TIMEOUT", "17");
  rdma_param("NCCL_IB_RETRY_CNT", "5");
  rdma_param("NCCL_IB_FIFO_TC", "7");
  scene *s = scene_open(names[_i], 2);
  verbs->addressed = 0;
  verbs->flags = _i == 1 ? 1 : 0;
  scene_connect(s, true, false);
  scene_exchange(s, large, 3, 4);
  scene_close();
}

/* There is no memory for large payloads before the first one. */
TEST(grows) {
  scene *s = scene_open("growing", 1);
  for (int i = 0; i < 2; i++) {
    s->send[i] = scene_small_link(s, i, HK_LINK_SEND);
    s->recv[i] = scene_small_link(s, i, HK_LINK_RECV);
  }
  scene_turns(s, 20);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 5);
  scene_exchange(s, large, 2, 3);
  scene_turns(s, 100);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 3);
  for (int i = 0; i < 2; i++) {
    free(s->send[i]->small);
    free(s->recv[i]->small);
  }
  scene_close();
}

TEST(gives_memory_back) {
  scene *s = scene_open("rest", 1);
  scene_connect(s, true, true);
  scene_exchange(s, large, 3, 4);
  for (int way = 0; way < 2; way++) {
    for (int i = 0; i < 2; i++) {
      bool rests = true;
      ck_assert_int_eq(hk_transport_net.payload->rest(s->send[i], &rests), HK_OK);
      trace_say("rank %d %s", i, rests ? "rests" : "does not rest");
      scene_check(s, i);
    }
    scene_turns(s, 10);
    for (int i = 0; i < 2; i++) {
      bool rests = false;
      ck_assert_int_eq(hk_transport_net.payload->rest(s->send[i ^ way], &rests), HK_OK);
      trace_say("rank %d %s", i ^ way, rests ? "rests" : "does not rest");
      scene_check(s, i ^ way);
      scene_turns(s, 2);
    }
    scene_turns(s, 100);
    scene_exchange(s, large, 3, 4);
  }
  scene_close();
}

/* Two channels, of which one ends before the other, and sleeps. */
TEST(serves_several_connections) {
  scene *s = scene_open("several", 2);
  hk_link *more[4];
  scene_connect(s, true, true);
  for (int i = 0; i < 2; i++) {
    more[2 * i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_SEND, 4);
    more[2 * i + 1] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_RECV, 4);
  }
  scene_turns(s, 20);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 4);
  for (int i = 0; i < 2; i++) {
    hk_transport_net.proxied->sleep(s->w->ranks[i].state);
    scene_check(s, i);
  }
  (void)scene_send(s, 0, 8);
  hk_transport_net.proxied->sleep(s->w->ranks[0].state);
  scene_turn(s);
  hk_transport_net.proxied->sleep(s->w->ranks[1].state);
  scene_check(s, 1);
  scene_turns(s, 70);
  for (int i = 0; i < 4; i++) net_unlink(more[i]);
  for (int i = 0; i < 2; i++) scene_check(s, i);
  scene_turns(s, 10);
  scene_close();
}

/* ---- a GPU's memory ---- */

/* How it becomes visible; by how many devices; whose end is on the GPU; do cards refuse its memory after all? */
static const struct {
  hk_ib_flushing flushing;
  int devices;
  bool sends, receives, refused;
} on_gpu[] = {{HK_IB_READ_FLUSH, 2, true, true, false},
              {HK_IB_DRIVER_FLUSH, 1, true, true, false},
              {HK_IB_NO_FLUSH, 1, false, true, false},
              {HK_IB_READ_FLUSH, 1, true, true, true}};
TEST_LOOP(carries_from_gpu_to_gpu, HK_ARRAY_LENGTH(on_gpu)) {
  char name[40];
  snprintf(name, sizeof name, "GPU %d", _i);
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  scene *s = scene_open(name, on_gpu[_i].devices);
  *(void **)&flush_cards = rdma_fake("libibverbs.so.1", "fake_verbs_flush");
  gpu_memory = mmap(NULL, 1 << 24, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(gpu_memory != MAP_FAILED);
  verbs->gpu = gpu_memory;
  verbs->gpu_bytes = 1 << 24;
  verbs->peermem = !on_gpu[_i].refused;
  verbs->late = on_gpu[_i].flushing != HK_IB_NO_FLUSH;
  for (int i = 0; i < 2; i++) {
    void *ctx;
    (void)hk_transport_net.proxied->remote(s->w->ranks[i].state, 1 - i, &ctx);
    hk_ib_ctx *x = ctx;
    x->gpu.known = x->gpu.direct = true;
    x->gpu.flushing = (uint8_t)on_gpu[_i].flushing;
    s->send[i] = scene_gpu_link(s, i, HK_LINK_SEND, on_gpu[_i].sends);
    s->recv[i] = scene_gpu_link(s, i, HK_LINK_RECV, on_gpu[_i].receives);
    trace_say("rank %d: GPU %d %d", i, s->send[i]->gpu != NULL, s->recv[i]->gpu != NULL);
  }
  scene_turns(s, on_gpu[_i].refused ? 0 : 20); /* or slots are filled before it is known */
  scene_exchange(s, large, HK_ARRAY_LENGTH(large), 7);
  scene_exchange(s, small, HK_ARRAY_LENGTH(small), 5);
  verbs->skip = 2;
  verbs->broken = 1;
  scene_exchange(s, large, HK_ARRAY_LENGTH(large), 4);
  scene_turns(s, 100);
  munmap(gpu_memory, 1 << 24);
  scene_close();
}

/* ---- one-sided operations ---- */

TEST(puts_by_the_card) {
  static const size_t bytes[] = {0, 8, 257, 70000, 600000};
  static _Atomic uint64_t counters[8192] __attribute__((aligned(4096)));
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", "2");
  scene *s = scene_open("puts", 1);
  void *ctx[2];
  const hk_remote *remote = NULL;
  for (int i = 0; i < 2; i++) remote = hk_transport_net.proxied->remote(s->w->ranks[i].state, 1 - i, &ctx[i]);
  ck_assert_int_eq(remote->open(ctx[0], 1, 3), HK_OK);
  hk_transport_net.zero_copy->memory(s->w->ranks[1].state, s->memory[1], MEMORY, true);
  for (unsigned k = 0; k < 12; k++) {
    if (k == 6) hk_transport_net.zero_copy->memory(s->w->ranks[0].state, s->memory[0], MEMORY, true);
    const hk_remote_put p = {.window = {.number = 5 + k / 9, .at = (uint64_t)(uintptr_t)s->memory[1], .bytes = MEMORY},
                             .offset = 64 * k,
                             .data = s->memory[0] + k,
                             .bytes = bytes[k % HK_ARRAY_LENGTH(bytes)],
                             .signal = k % 3};
    hk_remote_state state = HK_REMOTE_BUSY;
    if (k == 7) verbs->severed = 1;
    if (k == 10) verbs->unanswered = 1, verbs->passing = 1;
    for (int i = 0; i < 400 && state <= HK_REMOTE_PEER; i++) {
      bool came = false;
      trace_pass_controls();
      ck_assert_int_eq(remote->accept(ctx[1], 0, counters, 3, &came), HK_OK);
      for (int c = 0; c < 2; c++) {
        const hk_ib_ctx *x = ctx[c];
        trace_log();
        if (x->capacity && x->conns[0]) check_conn(c, x->conns[0]);
        check_ctx(x);
      }
      trace_pass_controls();
      ck_assert_int_eq(remote->put(ctx[0], 1, &p, &state), HK_OK);
      trace_now += 20 * MS;
    }
    trace_say("put %u: state %d, counters %llu %llu %llu", k, state, (unsigned long long)counters[0],
              (unsigned long long)counters[1], (unsigned long long)counters[2]);
    ck_assert_mem_eq(s->memory[1] + p.offset, p.data, p.bytes);
  }
  scene_close();
}

int main(void) {
  golden_clear(TRACE_FILE);
  return suite_main("ib_trace", .setup = scene_plenty);
}
