/* SPDX-License-Identifier: Apache-2.0 */
/* Edges of the verbs provider: numbers of slots that wrap, what a connection leaves alone in a phase, and memory that
 * is refused.
 * check: notsan */
#include "../../src/transport/net/ib/ib_data.h"
#include "../../src/transport/net/ib/ib_device.h"
#include "../../src/transport/net/ib/ib_memory.h"
#include "../support/ib.h"

/* ---- numbers ---- */

enum { SLOTS = 8, SLOT = 131072 };

/* As if so many messages had gone over the connection in this direction. */
static void set_number(hk_link *send, hk_link *recv, uint64_t n) {
  hk_ib_conn *out = bench_conn(send), *in = bench_conn(recv);
  send->done = send->limit = recv->done = n;
  atomic_store(&send->heads->value, n);
  atomic_store(&recv->heads->value, n);
  ((hk_net_end *)send->priv)->next = ((hk_net_end *)recv->priv)->next = n;
  for (uint64_t k = n - SLOTS; k < n; k++) { /* what the lap before has left */
    atomic_store(&send->slots[k % SLOTS].seq, (uint32_t)(k + 1));
    atomic_store(&recv->slots[k % SLOTS].seq, (uint32_t)(k + 1));
  }
  out->tx.posted = out->tx.given = out->tx.arrived = out->tx.credit = n;
  in->rx.returned = in->rx.received = n;
  atomic_store(hk_ib_credit_word(out), n);
}

/* An immediate has 31 bits of a slot's number, and the largest of them without a header is a word of its own; a slot
 * has 32 bits of it. Messages are small, large, and in parts over several queue pairs. */
TEST_LOOP(numbers_wrap, 9) {
  static const uint64_t starts[] = {UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(3) << 31};
  static const uint32_t sizes[][2] = {{0, 100}, {100, 5000}, {SLOT, 70000}};
  const uint64_t start = starts[_i / 3];
  const uint32_t *size = sizes[_i % 3];
  hk_link *send, *recv;
  ib_begin(1);
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3");
  rdma_param("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
  net_world *w = ib_world(SLOTS, SLOT);
  ib_make_way(w, &send, &recv);
  set_number(send, recv, start - 5);
  for (int i = 0; i < 12; i++) ib_carry_filled(w, send, recv, size[i & 1], (char)(i + 1));
  ck_assert_uint_eq(send->done, start + 7);
}

/* ---- what is left alone ---- */

/* The peer's host is looked at once a second, while its answer is awaited. */
TEST(looks_at_silent_hosts) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  const uint64_t now = 1000 * SECOND;
  c->control.silent_ns = now;
  ck_assert(!hk_ib_host_is_silent(c, now + SECOND)); /* it is up: nothing is awaited */
  ck_assert_uint_eq(c->control.silent_ns, now);
  static const hk_ib_phase awaiting[] = {HK_IB_PAIRING, HK_IB_READYING};
  for (int i = 0; i < 2; i++) {
    c->phase = (uint8_t)awaiting[i];
    c->control.silent_ns = now;
    c->control.eof = true;
    ck_assert(!hk_ib_host_is_silent(c, now) && c->control.silent_ns == now);
    c->control.eof = false;
    ck_assert(!hk_ib_host_is_silent(c, now - 1) && c->control.silent_ns == now);
    ck_assert(!hk_ib_host_is_silent(c, now) && c->control.silent_ns == now + SECOND);
  }
  c->phase = HK_IB_UP;
}

/* Requests that report nothing are followed by an empty one that does, if a connection is up at both ends. */
TEST_LOOP(fences_only_while_up, 4) {
  static const struct {
    hk_ib_phase phase;
    bool bye, eof, fences;
  } rows[] = {{HK_IB_UP, false, false, true},
              {HK_IB_UP, true, false, false},
              {HK_IB_UP, false, true, false},
              {HK_IB_READYING, false, false, false}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  ib_pass_on(b.w, b.send, b.recv, 1);
  ck_assert_uint_ne(c->qps[0].posted, c->qps[0].signaled);
  c->phase = (uint8_t)rows[_i].phase;
  c->control.bye = rows[_i].bye;
  c->control.eof = c->control.gone = rows[_i].eof;
  c->repair.broken_ns = c->repair.stepped_ns = hk_now_ns();
  const uint64_t before = verbs->reports;
  for (int i = 0; i < 3; i++) {
    c->control.next_look_ns = 0;
    ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_OK);
  }
  ck_assert_uint_eq(verbs->reports, before + rows[_i].fences);
}

/* ---- the thread that dials again ---- */

/* In place of libc's. */
static _Atomic(int) joined;
int pthread_join(pthread_t thread, void **result) {
  static int (*real)(pthread_t, void **);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_join");
  if (thread) atomic_fetch_add(&joined, 1);
  return real(thread, result);
}

static _Atomic(int) dialled, stopped;
static _Atomic(bool) waits;
static hk_status dial_in_vain(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  (void)arg, (void)peer, (void)tag;
  *fd = -1;
  *gone = !atomic_load(&waits);
  atomic_fetch_add(&dialled, 1);
  while (atomic_load(&waits) && !atomic_load(stop)) usleep(500);
  if (!atomic_load(&waits)) return HK_ERR_REMOTE;
  usleep(20000); /* it takes a moment to stop */
  atomic_store(&stopped, 1);
  return HK_ERR_REMOTE;
}

static void lose_control(hk_ib_conn *c, int dials) {
  c->control.eof = true;
  c->control.gone = false;
  c->control.next_look_ns = 0;
  pthread_mutex_lock(&c->ctx->lock);
  ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_OK);
  pthread_mutex_unlock(&c->ctx->lock);
  while (atomic_load(&dialled) < dials) usleep(500);
}

/* Each is joined: before the next one is made, and at the end. */
TEST(threads_are_joined) {
  bench b = bench_open(1);
  b.w->ranks[0].env.redial = dial_in_vain;
  lose_control(b.c, 1);
  for (bool over = false; !over; usleep(500)) {
    pthread_mutex_lock(&b.c->ctx->lock);
    over = !b.c->ctx->redial.busy;
    ck_assert(b.c->ctx->redial.made);
    pthread_mutex_unlock(&b.c->ctx->lock);
  }
  ck_assert_int_eq(atomic_load(&joined), 0);
  atomic_store(&waits, true);
  lose_control(b.c, 2);
  ck_assert_int_eq(atomic_load(&joined), 1);
  lose_control(b.c, 2); /* the one that is there goes on */
  ib_end();
  ck_assert(atomic_load(&joined) == 2 && atomic_load(&stopped) && atomic_load(&dialled) == 2);
}

/* ---- memory ---- */

/* An address that may be outside of it. */
static char *beyond(char *memory, long by) { return (char *)((uintptr_t)memory + (uintptr_t)by); }

/* The memory of the first path is refused: before the first message another network may take over, after that none can.
 * That of another path is done without. */
TEST_LOOP(refused_in_a_new_epoch, 3) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  ck_assert(c->npaths == 2 && c->repair.up_ns);
  const int path = _i == 2; /* of which the memory is registered again, and refused */
  if (_i == 1) c->repair.up_ns = 0;
  for (int i = 0; i < 2; i++) {
    const hk_ib_device *d = c->paths[i].device;
    verbs->device[d->name[4] - '0'].full = i == path;
  }
  hk_ib_unregister(c->ctx, &c->paths[path].arena_mr);
  c->repair.retry_ns = 0;
  c->phase = HK_IB_BACKING_OFF;
  c->control.next_look_ns = 0;
  hk_status rc = hk_ib_conn_step(c, hk_now_ns());
  if (_i == 2) {
    ck_assert_msg(rc == HK_OK && c->phase == HK_IB_BACKING_OFF && c->paths[1].bad, "%d %d", rc, c->phase);
  } else {
    ck_assert_int_eq(rc, HK_ERR_SYSTEM);
    ck_assert_int_eq(strstr(hk_last_error(), "NCCL_IB_DISABLE=1") != NULL, _i == 1);
    ck_assert_msg(strstr(hk_last_error(), "ulimit -l"), "%s", hk_last_error());
  }
  for (int i = 0; i < 2; i++) verbs->device[i].full = 0;
}

/* The FIFO is registered once it is wanted, with the devices of the paths that are used. */
TEST_LOOP(registers_what_is_wanted, 2) {
  char why[160];
  bench b = bench_open(1 + _i);
  hk_ib_conn *c = b.peer;
  const int nmrs = verbs->nmrs;
  ck_assert_uint_eq(c->npaths, 1 + _i);
  ck_assert(!hk_ib_register_rings(c, why) && verbs->nmrs == nmrs);
  c->rx.wanted = true;
  ck_assert(!hk_ib_register_rings(c, why) && verbs->nmrs == nmrs + 1 + _i);
  ck_assert(!hk_ib_register_rings(c, why) && verbs->nmrs == nmrs + 1 + _i);
  ck_assert(hk_ib_has_memory_of(c, c->paths[_i].device));
  hk_ib_unregister_end(c, true);
  ck_assert_int_eq(verbs->nmrs, nmrs + 1 + _i);
  hk_ib_unregister_end(c, false);
  ck_assert_int_eq(verbs->nmrs, nmrs);
  ck_assert(hk_ib_has_memory_of(c, c->paths[_i].device)); /* the arena */
  hk_ib_unregister(c->ctx, &c->paths[_i].arena_mr);
  ck_assert(!hk_ib_has_memory_of(c, c->paths[_i].device));
}

/* The words for a path: GIDs of Ethernet, LIDs of InfiniBand. */
TEST(describes_paths) {
  char text[HK_IB_ROUTE];
  bench b = bench_open(1);
  const hk_ib_path *w = &b.c->paths[0];
  hk_ib_describe_path(b.c, w, text);
  ck_assert_msg(strstr(text, "fake0 port 1 GID 3 ") && strstr(text, "10.0.0.1 -> fake0 port 1 GID 3"), "%s", text);
  for (int i = 0; i < b.c->ports.nmine; i++)
    b.c->ports.mine[i].layer = HK_IBV_LAYER_INFINIBAND, b.c->ports.mine[i].lid = 5;
  for (int i = 0; i < b.c->ports.ntheirs; i++) b.c->ports.theirs[i].lid = 6;
  hk_ib_describe_path(b.c, w, text);
  ck_assert_str_eq(text, "fake0 port 1 LID 5 -> fake0 port 1 LID 6");
}

/* Data is sent from where it is if all of it is registered, and does not go through the ring. */
TEST(refers_to_registered_memory) {
  static char memory[8192];
  bench b = bench_open(1);
  hk_ib_ctx *x = b.c->ctx;
  ck_assert(!hk_ib_refer(x, memory, sizeof memory));
  hk_ib_user_memory(x, memory, sizeof memory, true);
  ck_assert(hk_ib_refer(x, memory, sizeof memory) && hk_ib_refer(x, memory + 1, sizeof memory - 1));
  ck_assert(!hk_ib_refer(x, memory + 1, sizeof memory) && !hk_ib_refer(x, beyond(memory, -1), sizeof memory));
  ck_assert(!hk_ib_refer(x, memory, HK_IB_SMALL) && hk_ib_refer(x, memory, HK_IB_SMALL + 1));
  hk_ib_user_memory(x, memory, sizeof memory, false);
  ck_assert(!hk_ib_refer(x, memory, sizeof memory));
}

/* ---- places ---- */

/* From how many bytes on a lane is to offer places: not for what goes through the ring, and not without registered
 * memory. */
TEST_LOOP(offers_from_some_size, 7) {
  static const struct {
    const char *direct;
    bool registered;
    uint32_t least;
  } rows[] = {{"-1", true, 0},      {"0", true, HK_IB_SMALL + 1}, {"4064", true, HK_IB_SMALL + 1},
              {"4065", true, 4065}, {"100000", true, 100000},     {"0", false, 0},
              {"100000", false, 0}};
  static char memory[8192];
  _Static_assert((int)HK_IB_SMALL == 4064, "the rows are about it");
  rdma_param("HOCKET_IB_DIRECT", rows[_i].direct);
  bench b = bench_open(1);
  hk_ib_ctx *x = b.peer->ctx;
  atomic_store(&b.recv->place_min, 7);
  if (rows[_i].registered) hk_ib_user_memory(x, memory, sizeof memory, true);
  hk_ib_place_min(x, b.recv);
  ck_assert_uint_eq(atomic_load(&b.recv->place_min), rows[_i].least);
  if (rows[_i].registered) hk_ib_user_memory(x, memory, sizeof memory, false);
  ck_assert_uint_eq(atomic_load(&b.recv->place_min), 0);
}

/* Which offers are kept: of the next slots, of registered memory or of none. */
TEST_LOOP(keeps_offers, 6) {
  static char memory[8192];
  enum { NEXT = 3 };
  static const struct {
    uint64_t k;
    int at;
    uint32_t bytes;
    bool kept;
  } rows[] = {{NEXT - 1, 0, 100, false},
              {NEXT, 0, 8192, true},
              {NEXT, 1, 8192, false},
              {NEXT, 9000, 100, false},
              {NEXT + HK_IB_PLACES - 1, 0, 100, true},
              {NEXT + HK_IB_PLACES, 0, 100, false}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_net_end *e = b.recv->priv;
  const uint64_t k = rows[_i].k;
  hk_ib_user_memory(c->ctx, memory, sizeof memory, true);
  e->next = NEXT;
  hk_ib_place_post(c->ctx, e, k, beyond(memory, rows[_i].at), rows[_i].bytes);
  const hk_ib_offered *o = &c->places.offers[k % HK_IB_PLACES];
  ck_assert_uint_eq(o->slot, rows[_i].kept ? k + 1 : 0);
  ck_assert_uint_eq(c->places.offered, rows[_i].kept ? k + 1 : 0);
  if (rows[_i].kept) {
    ck_assert(o->to == beyond(memory, rows[_i].at) && o->bytes == rows[_i].bytes && !o->announced);
    ck_assert_ptr_null(hk_ib_place_used(c, k, rows[_i].bytes)); /* the peer does not know it */
    c->places.offers[k % HK_IB_PLACES].announced = true;
    ck_assert_ptr_eq(hk_ib_place_used(c, k, rows[_i].bytes), o->to);
    ck_assert_ptr_null(hk_ib_place_used(c, k, rows[_i].bytes + 1));
    ck_assert_ptr_null(hk_ib_place_used(c, k + 1, rows[_i].bytes));
    ck_assert_ptr_null(hk_ib_place_used(c, k, rows[_i].bytes - 1));
  }
  hk_ib_place_withdraw(c->ctx); /* the peer may write to an announced place: the connection ends */
  ck_assert_int_eq(c->phase, rows[_i].kept ? HK_IB_FAILED : HK_IB_UP);
  ck_assert_int_eq(c->nqps == 0, rows[_i].kept);
  ck_assert_uint_eq(c->places.offered, 0);
  e->next = 0;
  hk_ib_user_memory(c->ctx, memory, sizeof memory, false);
}

/* An announced place that has been used is no reason to end. */
TEST(withdraws_what_is_open) {
  static char memory[8192];
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_net_end *e = b.recv->priv;
  hk_ib_user_memory(c->ctx, memory, sizeof memory, true);
  hk_ib_place_post(c->ctx, e, 0, memory, 5000);
  hk_ib_place_post(c->ctx, e, 1, memory, 5000);
  c->places.offers[0].announced = true;
  e->next = 1;
  hk_ib_place_withdraw(c->ctx);
  ck_assert(c->phase == HK_IB_UP && c->nqps && !c->places.offered);
  e->next = 0;
  hk_ib_user_memory(c->ctx, memory, sizeof memory, false);
}

/* ---- the end of an epoch ---- */

/* What has come in order stays to be delivered, and what came after a gap is sent again. */
TEST_LOOP(keeps_what_came_in_order, 2) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  for (int k = 0; k < SLOTS; k++) {
    const hk_ib_header h = {.parts = k == 2 ? 2 : 0};
    memcpy(c->arena + hk_ib_rx_offset(c, (uint64_t)k), &h, sizeof h);
    c->rx.headers[k] = 1;
    c->rx.parts[k] = k == 2 ? (uint8_t)(1 + _i) : 0; /* of two */
  }
  const int kept = _i ? SLOTS : 2;
  ck_assert_uint_eq(hk_ib_received(c), (uint64_t)kept);
  ck_assert_uint_eq(c->rx.received, (uint64_t)kept);
  for (int k = 0; k < SLOTS; k++) {
    ck_assert_int_eq(c->rx.headers[k], k < kept);
    ck_assert_int_eq(c->rx.parts[k], _i && k == 2 ? 2 : 0);
  }
  memset(c->rx.headers, 0, SLOTS);
  memset(c->rx.parts, 0, SLOTS);
}

/* ---- machines that RDMA does not work on ---- */

static const struct {
  const char *disable;
  int refuses, ports;
  const char *state, *why; /* why NULL: it works */
} machines[] = {{"0", 0, 1, NULL, NULL},
                {"1", 0, 1, NULL, "NCCL_IB_DISABLE=1"},
                {"0", EPERM, 1, NULL, "cannot be opened"},
                {"0", 0, 0, NULL, "has no RDMA device"},
                {"0", 0, 1, "1: DOWN\n", "port 1 of fake0 is 1: DOWN"}};
TEST_LOOP(is_usable_with_ports, HK_ARRAY_LENGTH(machines)) {
  char why[160] = "";
  ib_begin(machines[_i].ports);
  rdma_param("NCCL_IB_DISABLE", machines[_i].disable);
  verbs->device[0].refuses_open = machines[_i].refuses;
  if (machines[_i].state) fm_file("sys/class/infiniband/fake0/ports/1/state", "%s", machines[_i].state);
  ck_assert_int_eq(hk_net_ib.usable(hk_settings_now(), why, sizeof why), !machines[_i].why);
  if (machines[_i].why) ck_assert_msg(strstr(why, machines[_i].why), "%s", why);
}

int main(void) { return ib_main("ib_edges", .timeout = 60); }
