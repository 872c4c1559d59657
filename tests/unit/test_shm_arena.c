/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The layout of the arena of shared memory: its parts do not overlap, have the alignment that their writers need, and
 * are where both ends of a link find them; and the counters of an end that is opened again. */
#include <sys/mman.h>
#include "../../src/base/param.h"
#include "../../src/program/program.h"
#include "../../src/transport/relay.h"
#include "../../src/transport/shm/shm_arena.h"
#include "../../src/transport/status_page.h"
#include "../support/suite.h"

enum { PAGE = 4096, PAIR = 2 * HK_CACHE_LINE };

static const hk_shm_shape shapes[] = {{1, 2, 4096},   {2, 4, 16384},  {3, 8, 65536}, {4, 64, 4096},
                                      {5, 128, 8192}, {2, 256, 1024}, {9, 8, 1000}};

typedef struct part {
  const char *begin, *end;
  const char *what;
} part;
static part *parts;
static size_t nparts;

static void add(const volatile void *at, size_t bytes, const char *what) {
  const char *begin = (const char *)(uintptr_t)at;
  parts[nparts++] = (part){begin, begin + bytes, what};
}
static int by_begin(const void *a, const void *b) {
  const part *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Large payloads in use. On links of collectives those of all senders to a rank take 2 MiB, but there are at least
 * two. */
static uint32_t payloads(const hk_shm_arena *a, hk_link_kind kind, uint32_t channel) {
  const bool link = kind == HK_LINK_SEND || kind == HK_LINK_RECV;
  uint32_t n = a->shape.nslots;
  while (link && channel != HK_CHANNEL_P2P && n > 2 && n * a->shape.slot_bytes * (a->shape.nranks - 1) > 2 << 20)
    n /= 2;
  return n;
}

static hk_link end_of(const hk_shm_arena *a, hk_link_kind kind, uint32_t channel, uint32_t self, uint32_t peer) {
  hk_link_key key = {.peer = (int)(100 + peer), .kind = (uint8_t)kind, .channel = (uint8_t)channel};
  hk_link l = {.small = (char *)&key, .small_bytes = 5}; /* of another end, once */
  hk_shm_arena_link(a, &key, self, peer, &l);
  ck_assert(l.peer == (int)(100 + peer) && l.kind == kind && l.slot_bytes == a->shape.slot_bytes);
  ck_assert(!l.done && l.area_mask == payloads(a, kind, channel) - 1);
  ck_assert_uint_eq(l.limit, hk_link_sends(kind) ? l.mask + 1 : 0);
  return l;
}

static void add_link(const hk_shm_arena *a, uint32_t channel, uint32_t from, uint32_t to) {
  const uint32_t nslots = a->shape.nslots;
  hk_link out = end_of(a, HK_LINK_SEND, channel, from, to), in = end_of(a, HK_LINK_RECV, channel, to, from);
  ck_assert(out.slots == in.slots && out.heads == in.heads && out.payload == in.payload && out.mask == nslots - 1);
  ck_assert(out.nheads == 1 && in.nheads == 1 && out.small == in.small && out.small_bytes == 8192);
  ck_assert((uintptr_t)out.slots % PAIR == 0 && (uintptr_t)out.heads % PAIR == 0 && (uintptr_t)out.payload % PAGE == 0);
  add(out.slots, nslots * sizeof(hk_slot), "slots");
  add(out.heads, PAIR, "head"); /* the line that is fetched with it has nothing of another rank */
  add(out.payload, nslots * a->shape.slot_bytes, "payload");
  add(out.small, nslots * (size_t)8192, "small payload");
}

static void add_mcast(const hk_shm_arena *a, uint32_t channel, uint32_t from) {
  const uint32_t n = a->shape.nranks, nslots = a->shape.nslots,
                 many = nslots > HK_MCAST_SLOTS ? nslots : HK_MCAST_SLOTS;
  const uint32_t small = n < 3 ? 8192 : n == 3 ? 2048 : 1024;
  hk_link out = end_of(a, HK_LINK_MCAST_SEND, channel, from, from);
  ck_assert(out.mask == many - 1 && out.nheads == n - 1 && out.small_bytes == small);
  ck_assert((uintptr_t)out.slots % PAIR == 0 && (uintptr_t)out.payload % PAGE == 0);
  for (uint32_t r = 0, at = 0; r < n; r++) {
    if (r == from) continue;
    hk_link in = end_of(a, HK_LINK_MCAST_RECV, channel, r, from);
    ck_assert(in.slots == out.slots && in.payload == out.payload && in.small == out.small && in.mask == out.mask);
    ck_assert(in.nheads == 1 && in.heads == out.heads + at++);
  }
  add(out.slots, many * sizeof(hk_slot), "slots of a multicast");
  add(out.heads, (n - 1) * sizeof(hk_head), "heads");
  add(out.payload, nslots * a->shape.slot_bytes, "payload of a multicast");
  add(out.small, many * (size_t)small, "small payload of a multicast");
}

TEST_LOOP(nothing_overlaps, (int)(sizeof shapes / sizeof *shapes)) {
  hk_shm_arena a;
  hk_shm_arena_layout(&a, &shapes[_i]);
  const uint32_t n = shapes[_i].nranks;
  ck_assert_ptr_null(hk_shm_arena_failure(&a));
  ck_assert(hk_shm_arena_map(&a, -1));
  parts = calloc(HK_CHANNEL_COUNT * (4 * n * n + 4 * n) + 2 * n + 3, sizeof *parts);
  nparts = 0;
  add(hk_shm_arena_failure(&a), HK_CACHE_LINE, "failure");
  add(hk_shm_arena_cma(&a), HK_CACHE_LINE, "cma");
  for (uint32_t r = 0; r < n; r++) {
    add(hk_shm_arena_reads(&a, r), 1, "reads");
    add(hk_shm_arena_status_page(&a, r), sizeof(hk_status_page), "board");
    for (uint32_t c = 0; c < HK_CHANNEL_COUNT; c++) {
      add_mcast(&a, c, r);
      for (uint32_t to = 0; to < n; to++) add_link(&a, c, r, to);
    }
  }
  add(hk_shm_arena_call_checks(&a), sizeof(hk_call_checks), "claims");
  ck_assert_uint_eq((uintptr_t)hk_shm_arena_call_checks(&a) % PAIR, 0);
  qsort(parts, nparts, sizeof *parts, by_begin);
  ck_assert_ptr_eq(parts[0].begin, a.base);
  for (size_t i = 0; i + 1 < nparts; i++)
    ck_assert_msg(parts[i].end <= parts[i + 1].begin, "%s and %s overlap by %td bytes", parts[i].what,
                  parts[i + 1].what, parts[i].end - parts[i + 1].begin);
  const char *end = parts[nparts - 1].end;
  ck_assert(end <= a.base + a.bytes && a.base + a.bytes < end + PAGE); /* and no more than that */
  free(parts);
  hk_shm_arena_unmap(&a);
  ck_assert_ptr_null(a.base);
  hk_shm_arena_unmap(&a);
}

/* The header page has a byte for so many ranks. */
TEST(has_some_bytes) {
  hk_shm_arena a;
  hk_shm_arena_layout(&a, &shapes[2]);
  ck_assert(hk_shm_arena_map(&a, -1));
  hk_shm_arena none = a;
  none.base = NULL;
  ck_assert(!hk_shm_arena_map(&none, 9999) && !none.base); /* no such file */
  const uint32_t capacity = PAGE - PAIR;
  ck_assert((char *)hk_shm_arena_reads(&a, 0) == a.base + PAIR);
  ck_assert((char *)hk_shm_arena_reads(&a, capacity - 1) == a.base + PAGE - 1);
  ck_assert_ptr_null(hk_shm_arena_reads(&a, capacity));
  hk_shm_arena_unmap(&a);
}

/* What a FIFO holds: given back by all readers, and filled but not given back. */
static const struct {
  uint64_t heads[3], filled; /* slots up to this are filled */
} states[] = {{{0, 0, 0}, 0},  {{5, 5, 5}, 5},      {{5, 6, 7}, 8},    {{7, 5, 6}, 9},
              {{9, 8, 4}, 68}, {{3, 3, 3}, 3 + 64}, {{90, 91, 95}, 99}};

TEST_LOOP(goes_on, (int)(sizeof states / sizeof *states)) {
  hk_shm_arena a;
  const hk_shm_shape shape = {4, 4, 4096};
  hk_shm_arena_layout(&a, &shape);
  ck_assert(hk_shm_arena_map(&a, -1));
  const hk_link_key key = {.peer = 1, .kind = HK_LINK_MCAST_SEND, .channel = 2};
  hk_link out = end_of(&a, HK_LINK_MCAST_SEND, 2, 1, 1), again = {.slots = NULL};
  uint64_t least = UINT64_MAX;
  ck_assert_uint_eq(out.nheads, 3);
  for (int i = 0; i < 3; i++) {
    atomic_store(&out.heads[i].value, states[_i].heads[i]);
    if (states[_i].heads[i] < least) least = states[_i].heads[i];
  }
  for (uint64_t k = 0; k < states[_i].filled; k++) atomic_store(&out.slots[k & out.mask].seq, (uint32_t)(k + 1));
  hk_shm_arena_link(&a, &key, 1, 1, &again);
  ck_assert_uint_eq(again.done, states[_i].filled);
  ck_assert_uint_eq(again.limit, least + 64);
  static const uint32_t readers[] = {0, 2, 3};
  for (int i = 0; i < 3; i++) { /* a reader goes on after what it has given back */
    const hk_link_key in = {.peer = 1, .kind = HK_LINK_MCAST_RECV, .channel = 2};
    again.limit = 77;
    hk_shm_arena_link(&a, &in, readers[i], 1, &again);
    ck_assert(again.done == states[_i].heads[i] && again.limit == 77);
  }
  hk_shm_arena_unmap(&a);
}

/* The FIFO that a rank shares with its relay. */
TEST_LOOP(relay_fifo, (int)(sizeof shapes / sizeof *shapes)) {
  hk_transport_env env = {
      .settings = hk_settings_now(), .nslots = shapes[_i].nslots, .slot_bytes = shapes[_i].slot_bytes};
  hk_relay_fifo f[2];
  const size_t bytes = hk_relay_fifo_bytes(&env), payload = env.nslots * env.slot_bytes;
  const int fd = memfd_create("fifo", MFD_CLOEXEC);
  ck_assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  for (int i = 0; i < 2; i++) {
    ck_assert(hk_relay_fifo_map(&env, fd, &f[i]) && f[i].bytes == bytes);
    const char *base = f[i].base, *slots = (const char *)f[i].slots, *asleep = (const char *)f[i].asleep;
    ck_assert((uintptr_t)slots % HK_CACHE_LINE == 0 && (uintptr_t)f[i].payload % PAGE == 0);
    ck_assert(asleep >= base && asleep + HK_CACHE_LINE <= slots);
    ck_assert(slots + env.nslots * sizeof(hk_slot) + sizeof(hk_head) <= f[i].payload);
    ck_assert(f[i].payload + payload <= base + bytes && base + bytes < f[i].payload + payload + PAGE);
  }
  memset(f[0].payload, 7, payload);
  atomic_store(&f[0].slots[env.nslots - 1].seq, 9);
  atomic_store(f[0].asleep, 1);
  ck_assert(f[1].payload[0] == 7 && f[1].payload[payload - 1] == 7 && atomic_load(f[1].asleep) == 1);
  ck_assert_uint_eq(atomic_load(&f[1].slots[env.nslots - 1].seq), 9);
  for (int i = 0; i < 2; i++) hk_relay_fifo_unmap(&f[i]);
  ck_assert_ptr_null(f[0].base);
  hk_relay_fifo_unmap(&f[0]);
  close(fd);
}

int main(void) { return suite_main("shm_arena"); }
