/* SPDX-License-Identifier: Apache-2.0 */
/* Places (places.h) without a transport: what the sender may claim, and when a reader that fails may go on. */
#include <pthread.h>
#include "../../src/program/program.h"
#include "../../src/transport/places.h"
#include "../../src/transport/transport.h"
#include "../support/suite.h"

enum { READERS = 3, SLOTS = 4, EACH = 64, WAVES = 3, SIGNATURE = 77 };

/* Region r + 1 is memory[r]. Reader `unmapped` has memory that the sender cannot map. */
static char memory[READERS][EACH * WAVES];
static int unmapped;

static bool lend(hk_transport_state *s, hk_link *l, const void *data, size_t bytes, hk_ref *out) {
  (void)s;
  (void)bytes;
  for (int r = 0; r < READERS; r++) {
    ptrdiff_t at = (const char *)data - memory[r];
    if (at < 0 || at >= (ptrdiff_t)sizeof memory[r]) continue;
    *out = (hk_ref){(uint64_t)r + 1, (uint64_t)at};
    return l->by_ref == 1;
  }
  return false;
}

static hk_status borrow(hk_transport_state *s, hk_link *l, unsigned reader, const hk_ref *ref, size_t bytes,
                        char **at) {
  (void)s;
  (void)l;
  if ((int)reader == unmapped) return HK_ERR_REMOTE;
  ck_assert_uint_eq(ref->region, reader + 1);
  ck_assert_uint_le(ref->offset + bytes, sizeof memory[reader]);
  *at = memory[reader] + ref->offset;
  return HK_OK;
}

static const hk_transport_zero_copy fake_zero_copy = {.export_target = lend, .map_target = borrow};
static const hk_transport fake = {.name = "fake", .zero_copy = &fake_zero_copy};
static hk_transport_state state = {.transport = &fake};
static hk_slot slots[SLOTS];
static hk_head heads[READERS];
static hk_link sender, readers[READERS];
static const hk_placing usual = {EACH, EACH, SIGNATURE};

/* The sender is rank 1 of four. */
static void setup(void) {
  memset(slots, 0, sizeof slots);
  memset(heads, 0, sizeof heads);
  unmapped = -1;
  sender = (hk_link){.owner = &state,
                     .slots = slots,
                     .heads = heads,
                     .nheads = READERS,
                     .mask = SLOTS - 1,
                     .by_ref = 1,
                     .peer = 1,
                     .kind = HK_LINK_MCAST_SEND};
  for (int r = 0; r < READERS; r++)
    readers[r] = (hk_link){.owner = &state,
                           .slots = slots,
                           .heads = &heads[r],
                           .mask = SLOTS - 1,
                           .by_ref = 1,
                           .peer = 1,
                           .kind = HK_LINK_MCAST_RECV};
}

static void offer(int r) { hk_places_post(&readers[r], memory[r], sizeof memory[r], WAVES, EACH, SIGNATURE); }

static unsigned claim(const hk_placing *what, void **to) {
  unsigned n = 99;
  int bad = -1;
  ck_assert_int_eq(hk_places_claim(&sender, what, to, &n, &bad), HK_OK);
  ck_assert_int_eq(bad, -1);
  return n;
}

static void send_placed(void) {
  hk_link_fill(&sender, EACH, SIGNATURE, HK_SLOT_PLACED);
  for (int r = 0; r < READERS; r++) {
    ck_assert(hk_link_can_recv(&readers[r]) && hk_places_offered(&readers[r]));
    hk_link_release(&readers[r]);
  }
}

TEST(for_each_wave) {
  void *to[READERS];
  for (int operation = 0; operation < 2; operation++) {
    for (int r = 0; r < READERS; r++) {
      ck_assert(!hk_places_offered(&readers[r]));
      ck_assert_uint_eq(claim(&usual, to), 0); /* one has not offered */
      offer(r);
    }
    for (size_t w = 0; w < WAVES; w++) {
      ck_assert_uint_eq(claim(&usual, to), READERS);
      for (int r = 0; r < READERS; r++) ck_assert_ptr_eq(to[r], memory[r] + w * EACH);
      send_placed();
    }
  }
  ck_assert_uint_eq(claim(&usual, to), 0); /* the next operation's slot */
}

TEST(of_the_same_operation) {
  static const hk_placing others[] = {{EACH, EACH, SIGNATURE + 1}, {EACH, EACH / 2, SIGNATURE}};
  void *to[READERS];
  for (int r = 0; r < READERS; r++) offer(r);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(others); k++) ck_assert_uint_eq(claim(&others[k], to), 0);
  ck_assert_uint_eq(claim(&(hk_placing){8, EACH, SIGNATURE}, to), READERS); /* the last wave may be shorter */
}

TEST(only_between_processes) {
  void *to[READERS];
  char own[EACH];
  hk_places_post(&readers[0], own, sizeof own, 1, EACH, SIGNATURE); /* memory that cannot be lent */
  ck_assert(!hk_places_offered(&readers[0]));
  for (int r = 0; r < READERS; r++) offer(r);
  for (sender.by_ref = 0; sender.by_ref <= 2; sender.by_ref++)
    ck_assert_uint_eq(claim(&usual, to), sender.by_ref == 1 ? READERS : 0);
  sender.by_ref = 1;
  sender.nheads = HK_PLACES_READERS + 1;
  ck_assert_uint_eq(claim(&usual, to), 0);
  sender.nheads = 0;
  ck_assert_uint_eq(claim(&usual, to), 0);
  sender.nheads = READERS;
  sender.owner = NULL;
  ck_assert_uint_eq(claim(&usual, to), 0);
}

/* Heads are in the order of the ranks, without the sender: reader 0 is rank 0, and reader 1 rank 2. */
TEST(memory_that_cannot_be_mapped) {
  static const int ranks[READERS] = {0, 2, 3};
  for (int r = 0; r < READERS; r++) offer(r);
  for (unmapped = 0; unmapped < READERS; unmapped++) {
    void *to[READERS];
    unsigned n = 99;
    int bad = -1;
    ck_assert_int_eq(hk_places_claim(&sender, &usual, to, &n, &bad), HK_ERR_REMOTE);
    ck_assert(n == 0 && bad == ranks[unmapped]);
    ck_assert_uint_eq(atomic_load(&slots[0].writing), 0); /* no reader waits for it */
  }
}

static void *publish_late(void *arg) {
  (void)arg;
  usleep(100 * 1000); /* only makes a reader that does not wait fail the test */
  memory[0][0] = 1;
  hk_link_fill(&sender, EACH, SIGNATURE, HK_SLOT_PLACED);
  return NULL;
}

TEST(a_reader_that_fails_waits) {
  void *to[READERS];
  pthread_t late;
  for (int r = 0; r < READERS; r++) offer(r);
  for (int k = 0; k < 2; k++) { /* slots ahead of what the reader has taken */
    ck_assert_uint_eq(claim(&usual, to), READERS);
    if (k == 0) hk_link_fill(&sender, EACH, SIGNATURE, HK_SLOT_PLACED);
  }
  memory[0][0] = 0;
  ck_assert_int_eq(pthread_create(&late, NULL, publish_late, NULL), 0);
  hk_link_withdraw(&readers[0]);
  char seen = memory[0][0];
  pthread_join(late, NULL);
  ck_assert_int_eq(seen, 1);
  ck_assert(!hk_places_offered(&readers[0]) && hk_places_offered(&readers[1]));
  ck_assert_uint_eq(claim(&usual, to), 0);
  hk_link_withdraw(&readers[0]); /* nothing to wait for */
}

int main(void) { return suite_main("places", .timeout = 30, .setup = setup); }
