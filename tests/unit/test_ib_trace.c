/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider posts, sends and counts on fixed schedules, compared with a file: ib_trace.h. Both ranks are
 * of this thread, and the time is the test's.
 * check: notsan */
#include <sys/mman.h>
#include "../../src/transport/remote.h"
#include "../support/ib_trace.h"

enum { SLOTS = 8, SLOT = 262144, MOST = 600, MEMORY = 1 << 20 };

typedef struct scene {
  net_world *w;
  hk_link *send[2], *recv[2];
  unsigned sent[2], got[2];
  uint64_t step_ns;
  unsigned char *memory[2]; /* [MEMORY] of each rank, that may be registered */
  bool by_ref, places;      /* send from there; receive there */
  hk_status rc[2];
  bool ended[2];
} scene;

/* NULL: another network has it. */
static const hk_ib_conn *conn_of(const scene *s, int rank) {
  const hk_link *l = s->send[rank] ? s->send[rank] : s->recv[rank];
  void *ctx = NULL;
  if (!l || hk_transport_net.remote(s->w->ranks[rank].state, 1 - rank, &ctx) != &hk_ib_remote_table) return NULL;
  const hk_ib_ctx *x = ctx;
  const void *c = ((const hk_net_end *)l->priv)->priv;
  for (uint32_t i = 0; i < x->room; i++)
    if (c && x->conns[i] == c) return c;
  return NULL;
}
static void note(const scene *s, int rank) {
  say_log();
  const hk_ib_conn *c = conn_of(s, rank);
  if (!c) return;
  say_conn(rank, c);
  say_ctx(rank, c->ctx);
}

static bool any_network;
static scene open_scene(const char *name, int devices) {
  scene s = {.step_ns = MS};
  trace_begin(name, devices);
  if (any_network) rdma_param("NCCL_NET", "");
  s.w = net_world_new(2, SLOTS, SLOT);
  for (int i = 0; i < 2; i++) {
    s.w->ranks[i].env.dial = traced_dial;
    s.memory[i] = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(s.memory[i] != MAP_FAILED);
    fill(s.memory[i], MEMORY, (unsigned)i);
  }
  return s;
}
static void close_scene(scene *s) {
  trace_step = 50 * MS; /* it waits for what does not arrive */
  for (int i = 0; i < 2; i++) {
    say("rank %d ends", i);
    if (s->send[i]) net_unlink(s->send[i]);
    pass_controls();
    if (s->recv[i]) net_unlink(s->recv[i]);
    pass_controls();
    say_log();
  }
  net_world_free(s->w);
  for (int i = 0; i < 2; i++) munmap(s->memory[i], MEMORY);
  trace_end();
}

/* Each rank makes progress once. */
static void turn(scene *s) {
  for (int i = 0; i < 2; i++) {
    pass_controls();
    if (s->rc[i] == HK_OK) s->rc[i] = net_progress(&s->w->ranks[i], NULL);
    char text[1000];
    if (s->rc[i] != HK_OK && !s->ended[i]) say("rank %d fails with %d: %s", i, s->rc[i], clean(hk_last_error(), text));
    s->ended[i] = s->rc[i] != HK_OK;
    note(s, i);
    trace_now += s->step_ns;
  }
}
static void turns(scene *s, int n) {
  for (int i = 0; i < n; i++) turn(s);
}
static void connect_scene(scene *s, bool both, bool quiet) {
  trace.blocked = quiet; /* other scenes show it */
  for (int i = 0; i < 2; i++) {
    if (!i || both) s->send[i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_SEND, 3);
    note(s, i);
    if (i || both) s->recv[i] = net_link(&s->w->ranks[i], 1 - i, HK_LINK_RECV, 3);
    note(s, i);
  }
  turns(s, 20);
  for (int i = 0; i < 2; i++)
    if (conn_of(s, i)) spoil_rest((hk_ib_conn *)(uintptr_t)conn_of(s, i));
  trace.blocked = false;
}

/* ---- messages ---- */

static bool send_one(scene *s, int me, uint32_t bytes) {
  static unsigned char data[2][SLOTS + 1][SLOT];
  if (s->rc[me] != HK_OK || !hk_link_can_send(s->send[me], bytes)) return false;
  unsigned char *from = data[me][s->sent[me] % (SLOTS + 1)];
  if (s->by_ref) from = s->memory[me] + s->sent[me] * 7919u % (MEMORY - bytes);
  if (!s->by_ref) fill(from, bytes, s->sent[me]);
  say("rank %d: message %u of %u bytes", me, s->sent[me], bytes);
  ck_assert(net_try_send(s->send[me], from, bytes, 1000 + s->sent[me], s->by_ref));
  s->sent[me]++;
  return true;
}
static void receive_one(scene *s, int me) {
  static unsigned char data[SLOT];
  uint32_t bytes, signature;
  bool direct;
  if (s->rc[me] != HK_OK || !net_try_recv(s->recv[me], data, SLOT, false, &bytes, &signature, &direct)) return;
  ck_assert_uint_eq(signature, 1000 + s->got[me]);
  say("rank %d: got %u of %u bytes: %08x", me, s->got[me]++, bytes, golden_hash(2166136261u, data, bytes));
}

/* Each rank that sends fills the slots that it may, of these sizes in turn, until n have come. */
static void exchange(scene *s, const uint32_t *sizes, unsigned nsizes, unsigned n) {
  const unsigned begin[2] = {s->sent[0], s->sent[1]};
  for (int step = 0; step < 3000; step++) {
    bool over = true;
    for (int i = 0; i < 2; i++) {
      while (s->send[i] && s->sent[i] - begin[i] < n && send_one(s, i, sizes[(s->sent[i] + (unsigned)i) % nsizes]))
        continue;
      if (s->recv[i]) receive_one(s, i);
      if (s->recv[i] && s->got[i] - begin[1 - i] < n && s->rc[i] == HK_OK) over = false;
    }
    if (over) return;
    turn(s);
  }
  say("no end");
}

static const uint32_t small[] = {0, 1, 48, 49, 224, 225, 4064, 100, 8},
                      large[] = {4065, 65536, 100, 200000, 262144, 70000};

static void set(const char *name, const char *value) {
  setenv(name, value, 1);
  hk_param_reload();
}

/* ---- scenes ---- */

START_TEST(carries_small_messages) {
  rdma_plenty = true;
  scene s = open_scene("small", 1);
  connect_scene(&s, true, false);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 20);
  turns(&s, 200);
  close_scene(&s);
}
END_TEST

START_TEST(carries_large_messages) {
  rdma_plenty = true;
  scene s = open_scene("large", 1);
  connect_scene(&s, true, true);
  exchange(&s, large, HK_ARRAY_LENGTH(large), 12);
  turns(&s, 200);
  close_scene(&s);
}
END_TEST

/* Credits go back without data that goes there. */
START_TEST(carries_one_way) {
  rdma_plenty = true;
  scene s = open_scene("one way", 1);
  verbs->device[0].max_wr = 16;
  verbs->device[0].max_cqe = 100;
  verbs->device[0].ece = 0x70;
  verbs->device[0].mtu = 3;
  connect_scene(&s, false, false);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 30);
  exchange(&s, large, 2, 4);
  turns(&s, 200);
  close_scene(&s);
}
END_TEST

/* Two paths with two queue pairs each, and one for credits; no data goes with requests. */
START_TEST(uses_all_queue_pairs) {
  rdma_plenty = true;
  set("NCCL_IB_QPS_PER_CONNECTION", "2");
  set("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  set("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  set("NCCL_IB_FIFO_TC", "7");
  set("NCCL_IB_USE_INLINE", "0");
  set("NCCL_IB_TC", "3");
  set("NCCL_IB_SL", "2");
  scene s = open_scene("queue pairs", 2);
  connect_scene(&s, true, false);
  exchange(&s, large, HK_ARRAY_LENGTH(large), 12);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 12);
  turns(&s, 200);
  close_scene(&s);
}
END_TEST

/* Requests are under way for some time. */
START_TEST(carries_slowly) {
  rdma_plenty = true;
  set("NCCL_IB_QPS_PER_CONNECTION", "3");
  set("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  scene s = open_scene("slow", 1);
  verbs->lazy = 2;
  connect_scene(&s, true, true);
  exchange(&s, large, HK_ARRAY_LENGTH(large), 10);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 10);
  turns(&s, 200);
  close_scene(&s);
}
END_TEST

/* Memory that the user has registered: sent from, written to. */
static void offer_all(scene *s, int me, const uint32_t *sizes, unsigned nsizes, unsigned n) {
  hk_link *l = s->recv[me];
  for (; l->offered < n && hk_link_may_offer(l); l->offered++) {
    const uint32_t bytes = sizes[(l->offered + (unsigned)(1 - me)) % nsizes];
    if (hk_link_places(l, bytes)) hk_link_offer(l, l->offered, s->memory[me] + l->offered * 4096, bytes);
  }
}
START_TEST(writes_to_places) {
  rdma_plenty = true;
  set("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  scene s = open_scene("places", 2);
  for (int i = 0; i < 2; i++) hk_transport_net.memory(s.w->ranks[i].state, s.memory[i], MEMORY, true);
  s.by_ref = true;
  connect_scene(&s, true, false);
  for (unsigned round = 1; round <= 4; round++) {
    for (int i = 0; i < 2; i++)
      if (round != 2) offer_all(&s, i, large, HK_ARRAY_LENGTH(large), 3 * round);
    exchange(&s, large, HK_ARRAY_LENGTH(large), 3);
  }
  hk_transport_net.memory(s.w->ranks[1].state, s.memory[1], MEMORY, false);
  s.by_ref = false;
  exchange(&s, large, HK_ARRAY_LENGTH(large), 3);
  offer_all(&s, 0, large, HK_ARRAY_LENGTH(large), 18);
  turns(&s, 3);
  hk_transport_net.withdraw(s.w->ranks[0].state);
  turns(&s, 20);
  close_scene(&s);
}
END_TEST

/* ---- faults ---- */

START_TEST(repairs_broken_requests) {
  rdma_plenty = true;
  scene s = open_scene("broken", 1);
  s.step_ns = 10 * MS;
  connect_scene(&s, true, true);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 5);
  for (int i = 0; i < 3; i++) {
    verbs->skip = 3;
    verbs->broken = 1 + i;
    exchange(&s, i % 2 ? small : large, 5, 4);
    turns(&s, i == 1 ? 400 : 5);
  }
  verbs->passing = 2;
  verbs->severed = 1;
  exchange(&s, large, 4, 3);
  verbs->passing = 1;
  verbs->unanswered = 1;
  exchange(&s, large, 4, 3);
  turns(&s, 20);
  close_scene(&s);
}
END_TEST

static const struct {
  const char *name;
  int lost, doubled, denied, overrun, broken;
  const char *replay;
} ends[] = {{"lost", .lost = 1},
            {"doubled", .doubled = 1},
            {"denied", .denied = 1},
            {"overrun", .overrun = 1},
            {"not repaired", .broken = 1, .replay = "0"}};
START_TEST(ends_with_an_error) {
  rdma_plenty = true;
  set("NCCL_IB_RETURN_ASYNC_EVENTS", "1");
  if (ends[_i].replay) set("HOCKET_IB_REPLAY", ends[_i].replay);
  scene s = open_scene(ends[_i].name, 1);
  connect_scene(&s, true, true);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 3);
  verbs->skip = 1;
  verbs->lost = ends[_i].lost;
  verbs->doubled = ends[_i].doubled;
  verbs->denied = ends[_i].denied;
  verbs->overrun = ends[_i].overrun;
  verbs->broken = ends[_i].broken;
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 3; k++) (void)send_one(&s, i, small[k]);
  for (int i = 0; i < 60; i++) {
    s.step_ns = 10 * MS;
    turn(&s);
    for (int k = 0; k < 2; k++) receive_one(&s, k);
  }
  close_scene(&s);
}
END_TEST

/* The port goes down, the connection takes the other one; the first comes back, and it takes that again. */
START_TEST(leaves_ports_and_comes_back) {
  rdma_plenty = true;
  if (_i) set("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  scene s = open_scene(_i ? "a port of two" : "ports", 2);
  void (*set_port)(int, int);
  *(void **)&set_port = rdma_fake("libibverbs.so.1", "fake_verbs_port");
  s.step_ns = 10 * MS;
  connect_scene(&s, true, false);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 4);
  set_port(0, 0);
  exchange(&s, large, 3, 4);
  turns(&s, 40);
  set_port(0, 1);
  turns(&s, 300);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 4);
  close_scene(&s);
}
END_TEST

/* A device fails, and can be opened again after some time. */
START_TEST(leaves_devices_and_comes_back) {
  rdma_plenty = true;
  scene s = open_scene("devices", 2);
  s.step_ns = 10 * MS;
  connect_scene(&s, true, false);
  exchange(&s, large, 3, 4);
  verbs->fatal = 1;
  exchange(&s, large, 3, 4);
  verbs->device[0].returns = 3;
  turns(&s, 600);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 4);
  close_scene(&s);
}
END_TEST

/* Requests that neither complete nor fail. */
START_TEST(repairs_what_hangs) {
  rdma_plenty = true;
  scene s = open_scene("hanging", 1);
  s.step_ns = 100 * MS;
  connect_scene(&s, true, true);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 4);
  verbs->device[0].dead = 1;
  (void)send_one(&s, 0, 100);
  (void)send_one(&s, 1, 100000);
  turns(&s, 60);
  verbs->device[0].dead = 0;
  turns(&s, 100);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 4);
  close_scene(&s);
}
END_TEST

/* ---- memory ---- */

/* Too little memory may be locked: TCP carries what cannot be registered. */
START_TEST(falls_back) {
  static const uint64_t lockable[] = {1, 100000, 2200000, 5000000};
  char name[40];
  snprintf(name, sizeof name, "lockable %llu", (unsigned long long)lockable[_i]);
  any_network = rdma_scarce = true;
  scene s = open_scene(name, 1);
  s.step_ns = 10 * MS;
  verbs->lockable = lockable[_i];
  connect_scene(&s, true, false);
  exchange(&s, large, 3, 4);
  turns(&s, 40);
  close_scene(&s);
}
END_TEST

START_TEST(gives_memory_back) {
  rdma_plenty = true;
  scene s = open_scene("rest", 1);
  connect_scene(&s, true, true);
  exchange(&s, large, 3, 4);
  for (int way = 0; way < 2; way++) {
    for (int i = 0; i < 2; i++) {
      bool rests = true;
      ck_assert_int_eq(hk_transport_net.rest(s.send[i], &rests), HK_OK);
      say("rank %d %s", i, rests ? "rests" : "does not rest");
      note(&s, i);
    }
    turns(&s, 10);
    for (int i = 0; i < 2; i++) {
      bool rests = false;
      ck_assert_int_eq(hk_transport_net.rest(s.send[i ^ way], &rests), HK_OK);
      say("rank %d %s", i ^ way, rests ? "rests" : "does not rest");
      note(&s, i ^ way);
      turns(&s, 2);
    }
    turns(&s, 100);
    exchange(&s, large, 3, 4);
  }
  close_scene(&s);
}
END_TEST

/* Two channels, of which one ends before the other, and sleeps. */
START_TEST(serves_several_connections) {
  rdma_plenty = true;
  scene s = open_scene("several", 2);
  hk_link *more[4];
  connect_scene(&s, true, true);
  for (int i = 0; i < 2; i++) {
    more[2 * i] = net_link(&s.w->ranks[i], 1 - i, HK_LINK_SEND, 4);
    more[2 * i + 1] = net_link(&s.w->ranks[i], 1 - i, HK_LINK_RECV, 4);
  }
  turns(&s, 20);
  exchange(&s, small, HK_ARRAY_LENGTH(small), 4);
  for (int i = 0; i < 2; i++) {
    hk_transport_net.sleep(s.w->ranks[i].state);
    note(&s, i);
  }
  (void)send_one(&s, 0, 8);
  hk_transport_net.sleep(s.w->ranks[0].state);
  turn(&s);
  hk_transport_net.sleep(s.w->ranks[1].state);
  note(&s, 1);
  turns(&s, 70);
  for (int i = 0; i < 4; i++) net_unlink(more[i]);
  for (int i = 0; i < 2; i++) note(&s, i);
  turns(&s, 10);
  close_scene(&s);
}
END_TEST

/* ---- one-sided operations ---- */

START_TEST(puts_by_the_card) {
  static const size_t bytes[] = {0, 8, 257, 70000, 600000};
  static _Atomic uint64_t counters[8192] __attribute__((aligned(4096)));
  rdma_plenty = true;
  set("NCCL_IB_QPS_PER_CONNECTION", "2");
  scene s = open_scene("puts", 1);
  void *ctx[2];
  const hk_remote *remote = NULL;
  for (int i = 0; i < 2; i++) remote = hk_transport_net.remote(s.w->ranks[i].state, 1 - i, &ctx[i]);
  ck_assert_int_eq(remote->open(ctx[0], 1, 3), HK_OK);
  hk_transport_net.memory(s.w->ranks[1].state, s.memory[1], MEMORY, true);
  for (unsigned k = 0; k < 12; k++) {
    if (k == 6) hk_transport_net.memory(s.w->ranks[0].state, s.memory[0], MEMORY, true);
    const hk_remote_put p = {.window = {.number = 5 + k / 9, .at = (uint64_t)(uintptr_t)s.memory[1], .bytes = MEMORY},
                             .offset = 64 * k,
                             .data = s.memory[0] + k,
                             .bytes = bytes[k % HK_ARRAY_LENGTH(bytes)],
                             .signal = k % 3};
    hk_remote_state state = HK_REMOTE_BUSY;
    if (k == 7) verbs->severed = 1;
    if (k == 10) verbs->unanswered = 1, verbs->passing = 1;
    for (int i = 0; i < 400 && state <= HK_REMOTE_PEER; i++) {
      bool came = false;
      pass_controls();
      ck_assert_int_eq(remote->accept(ctx[1], 0, counters, 3, &came), HK_OK);
      for (int c = 0; c < 2; c++) {
        const hk_ib_ctx *x = ctx[c];
        say_log();
        if (x->room && x->conns[0]) say_conn(c, x->conns[0]);
        say_ctx(c, x);
      }
      pass_controls();
      ck_assert_int_eq(remote->put(ctx[0], 1, &p, &state), HK_OK);
      trace_now += 20 * MS;
    }
    say("put %u: state %d, counters %llu %llu %llu", k, state, (unsigned long long)counters[0],
        (unsigned long long)counters[1], (unsigned long long)counters[2]);
    ck_assert_mem_eq(s.memory[1] + p.offset, p.data, p.bytes);
  }
  close_scene(&s);
}
END_TEST

int main(void) {
  golden_clear(TRACE_FILE);
  TCase *t = tcase_create("ib_trace");
  tcase_add_test(t, carries_small_messages);
  tcase_add_test(t, carries_large_messages);
  tcase_add_test(t, carries_one_way);
  tcase_add_test(t, uses_all_queue_pairs);
  tcase_add_test(t, carries_slowly);
  tcase_add_test(t, writes_to_places);
  tcase_add_test(t, repairs_broken_requests);
  tcase_add_loop_test(t, ends_with_an_error, 0, (int)HK_ARRAY_LENGTH(ends));
  tcase_add_loop_test(t, leaves_ports_and_comes_back, 0, 2);
  tcase_add_test(t, leaves_devices_and_comes_back);
  tcase_add_test(t, repairs_what_hangs);
  tcase_add_loop_test(t, falls_back, 0, 4);
  tcase_add_test(t, gives_memory_back);
  tcase_add_test(t, serves_several_connections);
  tcase_add_test(t, puts_by_the_card);
  return suite_run_one("ib_trace", t);
}
