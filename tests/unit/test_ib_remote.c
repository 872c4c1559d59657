/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations by the card, without a communicator: puts from memory of all kinds, at once and on requests that
 * take their time, with faults. Both ranks are of this thread.
 * check: notsan */
#include <sys/mman.h>
#include "../../src/transport/remote.h"
#include "../support/ib.h"

enum { SIGNALS = 5, MEMORY = 3 << 20, PATIENCE = 200000 };

typedef struct puts_bench {
  net_world *w;
  void *ctx[2];
  const hk_remote *remote;
  _Atomic uint64_t *counters; /* of rank 1, in memory that has nothing else */
  unsigned char *from, *to;   /* [MEMORY] of ranks 0 and 1 */
} puts_bench;

static puts_bench setup(int devices, size_t signals) {
  puts_bench b = {.w = NULL};
  ib_begin(devices);
  rdma_plenty = true;
  rdma_param("NCCL_NET_FORCE_MERGE", "fake0,fake1");
  b.w = ib_world(8, 65536);
  for (int i = 0; i < 2; i++) b.remote = hk_transport_net.proxied->remote(b.w->ranks[i].state, 1 - i, &b.ctx[i]);
  ck_assert_ptr_nonnull(b.remote);
  b.counters = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  b.from = mmap(NULL, 2 * MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(b.counters != MAP_FAILED && b.from != MAP_FAILED);
  b.to = b.from + MEMORY;
  ck_assert_int_eq(b.remote->open(b.ctx[0], 1, signals), HK_OK);
  fill(b.from, MEMORY, 3);
  return b;
}
static void memory_of(const puts_bench *b, int rank, void *at, size_t bytes, bool there) {
  hk_transport_net.zero_copy->memory(b->w->ranks[rank].state, at, bytes, there);
}

/* Control connections are looked at now and then: from here on at once. */
static void look_at_once(void *ctx) {
  const hk_ib_ctx *x = ctx;
  for (uint32_t i = 0; i < x->capacity; i++)
    if (x->conns[i]) x->conns[i]->control.next_look_ns = 0;
}

/* Calls both sides until the put has ended. */
static hk_remote_state carry_out(const puts_bench *b, const hk_remote_put *p, size_t signals) {
  hk_remote_state state = HK_REMOTE_BUSY;
  bool came;
  for (int i = 0; i < PATIENCE && state <= HK_REMOTE_PEER; i++) {
    for (int r = 0; r < 2; r++) look_at_once(b->ctx[r]);
    ck_assert_int_eq(b->remote->accept(b->ctx[1], 0, b->counters, signals, &came), HK_OK);
    const hk_status rc = b->remote->put(b->ctx[0], 1, p, &state);
    ck_assert_msg(rc == HK_OK, "%s", hk_last_error());
  }
  return state;
}
static hk_remote_put put_of(const puts_bench *b, uint64_t window, uint64_t offset, size_t at, size_t bytes,
                            uint32_t signal) {
  return (hk_remote_put){.window = {.number = window, .at = (uint64_t)(uintptr_t)b->to, .bytes = MEMORY},
                         .offset = offset,
                         .data = b->from + at,
                         .bytes = bytes,
                         .signal = signal};
}
/* What was put is there, and nothing around it. */
static void check_put(const puts_bench *b, uint64_t offset, size_t at, size_t bytes) {
  ck_assert(memcmp(b->to + offset, b->from + at, bytes) == 0);
  ck_assert(!offset || !b->to[offset - 1]);
  ck_assert(offset + bytes == MEMORY || !b->to[offset + bytes]);
  memset(b->to + offset, 0, bytes);
}

static const size_t sizes[] = {0,     1,      256,    257,           4096,    65535,         65536,           65537,
                               70000, 131072, 600000, 8 * 65536 + 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 777, MEMORY};

/* Registered memory, memory of which the card may only read, and memory that is copied first. */
static const struct {
  const char *qps, *uses_inline;
  bool registered, fixed;
  unsigned lazy;
  int devices;
} ways[] = {{"1", "1", true, false, 0, 1},  {"1", "1", false, false, 0, 1}, {"3", "0", true, false, 2, 1},
            {"3", "1", false, false, 3, 2}, {"1", "1", true, true, 1, 1},   {"4", "1", false, false, 1, 1}};

TEST_LOOP(puts_all_sizes, HK_ARRAY_LENGTH(ways)) {
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", ways[_i].qps);
  rdma_param("NCCL_IB_USE_INLINE", ways[_i].uses_inline);
  puts_bench b = setup(ways[_i].devices, SIGNALS);
  uint64_t expected[SIGNALS] = {0};
  if (ways[_i].fixed) verbs->fixed = (const char *)b.from, verbs->fixed_bytes = MEMORY;
  if (ways[_i].registered) memory_of(&b, 0, b.from, MEMORY, true);
  memory_of(&b, 1, b.to, MEMORY, true);
  verbs->lazy = ways[_i].lazy;
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(sizes); i++) {
    const size_t at = MEMORY - sizes[i], bytes = sizes[i];
    const uint64_t offset = i % 2 ? at : at / 2;
    const uint32_t signal = i % SIGNALS;
    const hk_remote_put p = put_of(&b, 1, offset, at, bytes, signal);
    const uint64_t before = verbs->writes;
    ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
    check_put(&b, offset, at, bytes);
    expected[signal]++;
    for (int k = 0; k < SIGNALS; k++) ck_assert_uint_eq(b.counters[k], expected[k]);
    if (bytes > 256) { /* as few writes as there may be, and that of the signal */
      const size_t piece = ways[_i].registered ? 1 << 20 : 65536;
      ck_assert_uint_le(verbs->writes - before, (bytes + piece - 1) / piece + 1 + 2);
      ck_assert_uint_ge(verbs->writes - before, (bytes + piece - 1) / piece + 1);
    }
  }
  const size_t given = (size_t)ways[_i].devices * MEMORY * (ways[_i].registered ? 2 : 1);
  ck_assert_uint_gt(verbs->locked, given); /* each memory once for each device */
  ck_assert_uint_lt(verbs->locked, given + (size_t)ways[_i].devices * (MEMORY / 2));
}

/* Keys of more windows than are kept are asked for again. */
TEST(knows_many_windows) {
  enum { WINDOWS = HK_IB_WINDOWS + 3 };
  puts_bench b = setup(1, SIGNALS);
  memory_of(&b, 1, b.to, MEMORY, true);
  for (unsigned i = 0; i < 3 * WINDOWS; i++) {
    hk_remote_put p = put_of(&b, i % WINDOWS, 10, i, 1000, 4);
    p.window.at += 4096 * (i % WINDOWS);
    p.window.bytes = 4096;
    ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
    check_put(&b, 4096 * (i % WINDOWS) + 10, i, 1000);
    ck_assert_uint_eq(b.counters[4], i + 1);
  }
}

/* A window that was never registered: nothing is written. A signal needs none. */
TEST(finds_no_window) {
  puts_bench b = setup(1, SIGNALS);
  hk_remote_put p = put_of(&b, 1, 0, 0, 1000, 0);
  ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_NOWHERE);
  ck_assert(!b.to[0] && !b.counters[0]);
  p = put_of(&b, 1, 0, 0, 0, 2);
  ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
  ck_assert_uint_eq(b.counters[2], 1);
  memory_of(&b, 1, b.to, MEMORY, true);
  p = put_of(&b, 2, 0, 0, 1000, 0);
  ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
  check_put(&b, 0, 0, 1000);
  memory_of(&b, 1, b.to, MEMORY, false); /* too early */
  ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DENIED);
  ck_assert(!b.to[0] && b.counters[0] == 1);
}

/* A fault at each write of a put: it is repeated, and its signal counts once. */
TEST_LOOP(counts_once, 8) {
  puts_bench b = setup(1, SIGNALS);
  rdma_param("HOCKET_IB_REPLAY", "1");
  memory_of(&b, 1, b.to, MEMORY, true);
  hk_remote_put p = put_of(&b, 1, 5, 0, 150000, 1);
  ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
  verbs->passing = _i % 4;
  *(_i < 4 ? &verbs->severed : &verbs->unanswered) = 1;
  for (unsigned i = 1; i < 4; i++) {
    memset(b.to, 0, MEMORY);
    ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
    ck_assert(!verbs->severed && !verbs->unanswered);
    check_put(&b, 5, 0, 150000);
    ck_assert_uint_eq(b.counters[1], i + 1);
  }
}

/* An origin that got no answer in time has closed its socket, and dials again: the target takes the new one. */
TEST(takes_the_next_socket) {
  bool came = false;
  int pair[2];
  puts_bench b = setup(1, SIGNALS);
  hk_ib_conn *origin = ((hk_ib_ctx *)b.ctx[0])->conns[0];
  ck_assert_int_eq(b.remote->accept(b.ctx[1], 0, b.counters, SIGNALS, &came), HK_OK);
  ck_assert(came);
  close(origin->control.fd);
  look_at_once(b.ctx[1]);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(b.remote->accept(b.ctx[1], 0, b.counters, SIGNALS, &came), HK_OK);
    ck_assert(!came);
  }
  net_pair(true, pair);
  origin->control.fd = pair[0];
  b.w->mail[b.w->nmail].from = 0;
  b.w->mail[b.w->nmail].to = 1;
  b.w->mail[b.w->nmail].tag = b.w->mail[0].tag;
  b.w->mail[b.w->nmail++].fd = pair[1];
  ck_assert_int_eq(b.remote->accept(b.ctx[1], 0, b.counters, SIGNALS, &came), HK_OK);
  ck_assert(came);
  const hk_remote_put p = put_of(&b, 1, 0, 0, 0, 2);
  ck_assert_int_eq(carry_out(&b, &p, SIGNALS), HK_REMOTE_DONE);
  ck_assert_uint_eq(b.counters[2], 1);
}

/* The counters' row is of any length, and what the origin copies comes after it. */
TEST_LOOP(has_counters_of_any_number, 6) {
  static const size_t numbers[] = {1, 511, 512, 513, 1024, 1025};
  const size_t n = numbers[_i];
  puts_bench b = setup(1, n);
  memory_of(&b, 1, b.to, MEMORY, true);
  for (unsigned i = 0; i < 3; i++) {
    const hk_remote_put p = put_of(&b, 1, 0, i, 8 * 65536, (uint32_t)n - 1);
    ck_assert_int_eq(carry_out(&b, &p, n), HK_REMOTE_DONE);
    check_put(&b, 0, i, 8 * 65536);
    for (size_t k = 0; k < n; k++) ck_assert_uint_eq(b.counters[k], k + 1 == n ? i + 1 : 0);
  }
  ck_assert_uint_eq(b.counters[n], 0);
}

int main(void) { return ib_main("ib_remote", .timeout = 60); }
