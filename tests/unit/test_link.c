/* SPDX-License-Identifier: Apache-2.0 */
/* The FIFO protocol over the transports whose ends share memory: self, and shm between threads and processes. */
#include "../../src/transport/registry.h"
#include "../support/shm_world.h"
#include "../support/suite.h"

/* Message k's length and bytes are functions of (from, k), so that the reader can tell. */
static size_t length_of(uint64_t k, size_t slot_bytes) {
  static const size_t fixed[] = {8, 0, 1, HK_SLOT_INLINE, HK_SLOT_INLINE + 1, 1000, 4096};
  return k % 8 == 7 ? slot_bytes - k % 3 : fixed[k % 8];
}
static unsigned char byte_of(int from, uint64_t k, size_t i) {
  return (unsigned char)((size_t)from * 31 + k * 7 + i * 3 + i / 251);
}

static void put(hk_link *l, int from, uint64_t k) {
  size_t n = length_of(k, l->slot_bytes);
  unsigned char *b = hk_link_send_buffer(l, n);
  for (size_t i = 0; i < n; i++) b[i] = byte_of(from, k, i);
  hk_link_publish(l, (uint32_t)n, (uint32_t)k * 3, 0);
}

static void take(hk_link *l, int from, uint64_t k) {
  const hk_slot *s = hk_link_recv_slot(l);
  MUST(s->bytes == length_of(k, l->slot_bytes) && s->signature == (uint32_t)k * 3);
  const unsigned char *b = hk_link_recv_data(l);
  for (size_t i = 0; i < s->bytes; i++) MUST(b[i] == byte_of(from, k, i));
  hk_link_release(l);
}

/* Every rank sends `messages` to every other rank and takes theirs, a few at a time: credits run out and come back. */
static void all_pairs(world_rank *r) {
  enum { MESSAGES = 60 };
  int n = r->env.nranks, me = r->env.rank;
  hk_link *out = calloc((size_t)n, sizeof *out), *in = calloc((size_t)n, sizeof *in);
  char why[160];
  for (int p = 0; p < n; p++) {
    if (p == me) continue;
    MUST(r->transport->reachable(r->state, p, why, sizeof why));
    world_open(r, p, HK_LINK_SEND, p % HK_CHANNEL_COUNT, &out[p]);
    world_open(r, p, HK_LINK_RECV, me % HK_CHANNEL_COUNT, &in[p]);
  }
  for (uint64_t k = 0; k < MESSAGES; k++) {
    for (int p = 0; p < n; p++) {
      if (p == me) continue;
      await_send(r, &out[p]);
      put(&out[p], me, k);
    }
    if (k < 2) continue; /* two messages in flight */
    for (int p = 0; p < n; p++) {
      if (p == me) continue;
      await_recv(r, &in[p]);
      take(&in[p], p, k - 2);
    }
  }
  for (uint64_t k = MESSAGES - 2; k < MESSAGES; k++)
    for (int p = 0; p < n; p++) {
      if (p == me) continue;
      await_recv(r, &in[p]);
      take(&in[p], p, k);
    }
  for (int p = 0; p < n; p++)
    if (p != me) {
      MUST(!hk_link_can_recv(&in[p]));
      await_drained(r, &out[p]);
      world_close(r, &out[p]);
      world_close(r, &in[p]);
    }
  free(out);
  free(in);
}

/* Of a multicast sender the readers that deny it a slot are named; their heads leave out the sender's own place. */
TEST(readers_that_lag) {
  hk_head heads[4] = {{.value = 7}, {.value = 3}, {.value = 5}, {.value = 0}};
  hk_link l = {.heads = heads, .nheads = 4, .peer = 2, .kind = HK_LINK_MCAST_SEND};
  int ranks[4] = {-1, -1, -1, -1};
  ck_assert_int_eq(hk_link_lagging(&l, 0, ranks, 4), 0);
  ck_assert_int_eq(hk_link_lagging(&l, 4, ranks, 4), 2);
  ck_assert(ranks[0] == 1 && ranks[1] == 4);
  ck_assert_int_eq(hk_link_lagging(&l, 6, ranks, 2), 2);
  ck_assert(ranks[0] == 1 && ranks[1] == 3);
  l = (hk_link){.heads = heads, .nheads = 1, .peer = 6, .kind = HK_LINK_SEND};
  ck_assert_int_eq(hk_link_lagging(&l, 8, ranks, 4), 1);
  ck_assert_int_eq(ranks[0], 6);
  for (uint16_t own = 0; own < 2; own++) { /* of two ranks the other one */
    l = (hk_link){.heads = heads, .nheads = 1, .peer = own, .kind = HK_LINK_MCAST_SEND};
    ck_assert_int_eq(hk_link_lagging(&l, 8, ranks, 4), 1);
    ck_assert_int_eq(ranks[0], 1 - own);
  }
}

static const struct { int ranks, procs; } shapes[] = {{2, 0}, {5, 0}, {16, 0}, {2, 2}, {5, 2}, {6, 5}};

TEST_LOOP(pairs, sizeof shapes / sizeof shapes[0]) {
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, shapes[_i].ranks, shapes[_i].procs, all_pairs)), 0);
}

/* A single pair, many small messages: the numbers wrap around the ring often. */
static void one_way(world_rank *r) {
  enum { MESSAGES = 5000 };
  hk_link l;
  bool sends = r->env.rank == 0;
  world_open(r, sends, sends ? HK_LINK_SEND : HK_LINK_RECV, HK_CHANNEL_P2P, &l);
  for (uint64_t k = 0; k < MESSAGES; k++) {
    if (sends) {
      await_send(r, &l);
      uint64_t *b = hk_link_send_buffer(&l, 8);
      *b = k * k;
      hk_link_publish(&l, 8, 0, 0);
    } else {
      await_recv(r, &l);
      const uint64_t *b = hk_link_recv_data(&l);
      MUST(*b == k * k);
      hk_link_release(&l);
    }
    if (k % 1000 == 999) { /* an end that is opened again goes on where it was */
      world_close(r, &l);
      world_open(r, sends, sends ? HK_LINK_SEND : HK_LINK_RECV, HK_CHANNEL_P2P, &l);
    }
  }
  if (sends) await_drained(r, &l);
  world_close(r, &l);
}

TEST_LOOP(stream, 2) { ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2, _i ? 2 : 0, one_way)), 0); }

/* The sender may fill every slot, and not one more, until the receiver gives one back. */
static void count_credits(world_rank *r) {
  hk_link out, in;
  world_open(r, 0, HK_LINK_SEND, 1, &out);
  world_open(r, 0, HK_LINK_RECV, 1, &in);
  MUST(hk_link_drained(&out));
  for (unsigned lap = 0; lap < 3; lap++) {
    for (unsigned k = 0; k < r->env.nslots; k++) {
      MUST(hk_link_can_send(&out, 0));
      put(&out, 0, k);
    }
    MUST(!hk_link_can_send(&out, 0) && !hk_link_drained(&out));
    for (unsigned k = 0; k < r->env.nslots; k++) {
      MUST(hk_link_can_recv(&in));
      take(&in, 0, k);
      MUST(hk_link_drained(&out) == (k + 1 == r->env.nslots));
    }
    MUST(!hk_link_can_recv(&in));
  }
  /* By reference: the data stays where it is. */
  char data[100] = "here";
  MUST(out.by_ref == 2);
  out.slots[out.done & out.mask].ref = (hk_ref){0, (uintptr_t)data};
  hk_link_publish(&out, sizeof data, 0, HK_SLOT_REF);
  MUST(hk_link_can_recv(&in) && hk_link_recv_data(&in) == data);
  hk_link_release(&in);
}

TEST(credits_self) { ck_assert_int_eq(world_run(world_new(&hk_transport_self, 1, 0, count_credits)), 0); }

/* The number of a slot has 32 bits: the FIFO goes on behind 2^32. */
TEST(numbers_wrap) {
  enum { SLOTS = 4 };
  static hk_slot slots[SLOTS];
  static hk_head head;
  uint64_t start = (1ull << 32) - 6;
  hk_link out = {.slots = slots,
                 .heads = &head,
                 .nheads = 1,
                 .mask = SLOTS - 1,
                 .area_mask = SLOTS - 1,
                 .done = start,
                 .limit = start};
  hk_link in = out;
  atomic_init(&head.value, start);
  for (uint64_t k = start; k < start + 20; k++) {
    ck_assert(hk_link_can_send(&out, 0) && !hk_link_can_recv(&in));
    memcpy(hk_link_send_buffer(&out, 8), &k, 8);
    hk_link_publish(&out, 8, 0, 0);
    ck_assert(hk_link_can_recv(&in));
    ck_assert(!memcmp(hk_link_recv_data(&in), &k, 8));
    hk_link_release(&in);
  }
}

/* An operation fails while a reader copies from its memory: the sender waits for that copy, and no other one begins. */
typedef struct withdrawal {
  hk_link *link;
  _Atomic(bool) over;
} withdrawal;
static void *withdraw(void *arg) {
  withdrawal *w = arg;
  hk_link_withdraw(w->link);
  atomic_store(&w->over, true);
  return NULL;
}
TEST(withdrawn) {
  enum { SLOTS = 4 };
  static hk_slot slots[SLOTS];
  static hk_head head;
  static char data[64];
  hk_link out = {.slots = slots, .heads = &head, .nheads = 1, .mask = SLOTS - 1, .area_mask = SLOTS - 1, .by_ref = 2};
  hk_link in = out;
  out.kind = HK_LINK_SEND;
  in.kind = HK_LINK_RECV;
  for (int k = 0; k < 2; k++) {
    ck_assert(hk_link_can_send(&out, sizeof data));
    ck_assert(hk_link_refer(&out, data, sizeof data, &slots[k].ref));
    hk_link_publish(&out, sizeof data, 0, HK_SLOT_REF);
  }
  ck_assert(hk_link_can_recv(&in) && hk_link_recv_data(&in) == data);
  withdrawal w = {.link = &out};
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, withdraw, &w), 0);
  while (atomic_load(&slots[1].seq) == 2) sched_yield(); /* it has begun */
  for (int i = 0; i < 100; i++) sched_yield();
  ck_assert(!atomic_load(&w.over));
  hk_link_release(&in);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert(!hk_link_can_recv(&in));
  ck_assert_ptr_null(hk_link_recv_data(&in)); /* the reader had seen that the slot is there */
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "before this rank has read the data"));
  hk_link_withdraw(&in); /* its operation fails, too */
  hk_link_withdraw(&out);
}

/* Every rank in turn sends to all; slow readers hold the sender back. */
static void all_hear(world_rank *r) {
  enum { MESSAGES = 40 };
  int n = r->env.nranks, me = r->env.rank;
  hk_link out, *in = calloc((size_t)n, sizeof *in);
  MUST(r->transport->multicast(r->state));
  world_open(r, me, HK_LINK_MCAST_SEND, 2, &out);
  MUST(out.nheads == (uint32_t)n - 1);
  for (int p = 0; p < n; p++)
    if (p != me) world_open(r, p, HK_LINK_MCAST_RECV, 2, &in[p]);
  for (uint64_t k = 0; k < MESSAGES; k++) {
    await_send(r, &out);
    put(&out, me, k);
    if (k == 0) continue;
    for (int p = 0; p < n; p++) {
      if (p == me) continue;
      await_recv(r, &in[p]);
      take(&in[p], p, k - 1);
    }
  }
  for (int p = 0; p < n; p++) {
    if (p == me) continue;
    await_recv(r, &in[p]);
    take(&in[p], p, MESSAGES - 1);
    world_close(r, &in[p]);
  }
  await_drained(r, &out);
  world_close(r, &out);
  free(in);
}

static const struct { int ranks, procs; } crowds[] = {{2, 0}, {3, 0}, {8, 0}, {2, 2}, {4, 4}, {8, 3}};

TEST_LOOP(multicast, sizeof crowds / sizeof crowds[0]) {
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, crowds[_i].ranks, crowds[_i].procs, all_hear)), 0);
}

/* A multicast FIFO takes many short messages ahead of its readers, and of long ones as many as a link.  Long and short
 * ones mixed never write where an unread one lies. */
static void run_ahead(world_rank *r) {
  enum { LAPS = 50 };
  bool sends = r->env.rank == 0;
  hk_link l;
  uint32_t seed = 7, sent = 0;
  world_open(r, 0, sends ? HK_LINK_MCAST_SEND : HK_LINK_MCAST_RECV, 1, &l);
  MUST(l.small_bytes == (r->env.nranks == 2 ? 8192 : 2048));
  if (sends) {
    while (hk_link_can_send(&l, 8)) hk_link_publish(&l, 0, 0, 0), sent++;
    MUST(sent == HK_MCAST_SLOTS);
  }
  world_barrier(r);
  for (; !sends && sent < HK_MCAST_SLOTS; sent++) hk_link_release(&l);
  world_barrier(r);
  if (sends) {
    for (sent = 0; hk_link_can_send(&l, l.small_bytes + 1); sent++) hk_link_publish(&l, l.small_bytes + 1, 0, 0);
    MUST(sent == l.area_mask + 1 && hk_link_can_send(&l, l.small_bytes));
  }
  world_barrier(r);
  for (sent = 0; !sends && sent < l.area_mask + 1; sent++) hk_link_release(&l);
  world_barrier(r);
  for (uint32_t k = 0; k < LAPS * HK_MCAST_SLOTS; k++) {
    const uint32_t sizes[] = {4, 48, 49, l.small_bytes, l.small_bytes + 1, 16384};
    seed = seed * 1103515245u + 12345u;
    uint32_t bytes = sizes[(seed >> 16) % HK_ARRAY_LENGTH(sizes)];
    hk_waiter w;
    hk_wait_begin(&w, &r->wait);
    if (sends) {
      while (!hk_link_can_send(&l, bytes)) MUST(hk_wait_pause(&w) == HK_OK);
      memset(hk_link_send_buffer(&l, bytes), (int)(k & 255), bytes);
      hk_link_publish(&l, bytes, 0, 0);
      continue;
    }
    await_recv(r, &l);
    const unsigned char *data = hk_link_recv_data(&l);
    for (uint32_t i = 0; i < bytes; i++) MUST(data[i] == (k & 255));
    hk_link_release(&l);
  }
  if (sends) await_drained(r, &l);
  world_close(r, &l);
}
TEST_LOOP(multicast_ahead, 4) {
  ck_assert_int_eq(world_run(world_new(&hk_transport_shm, 2 + _i % 2, _i / 2 ? 2 : 0, run_ahead)), 0);
}

/* A pair, which cannot be multicast to when a third rank is elsewhere. */
static void elsewhere(world_rank *r) { r->world->peers[r->env.rank].host = r->env.rank == 2 ? 7 : 1; }
static void no_multicast(world_rank *r) {
  char why[160] = "";
  MUST(!r->transport->multicast(r->state));
  bool far = r->env.rank == 2;
  for (int p = 0; p < 3; p++)
    if (p != r->env.rank) MUST(r->transport->reachable(r->state, p, why, sizeof why) == (!far && p != 2));
  MUST(strstr(why, "another host"));
  MUST((r->transport->host->failure_word(r->state) == NULL) == far);
}
TEST(multicast_needs_all) {
  world *w = world_new(&hk_transport_shm, 3, 0, no_multicast);
  for (int r = 0; r < 3; r++) w->peers[r].process = r == 2 ? 2 : 1;
  w->tamper = elsewhere;
  ck_assert_int_eq(world_run(w), 0);
}

int main(void) { return suite_main("link", .timeout = 60); }
