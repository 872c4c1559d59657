/* SPDX-License-Identifier: Apache-2.0 */
/* Places: see places.h. */
#include "places.h"
#include "../base/wait.h"
#include "transport.h"

static hk_slot *places_slot_of(const hk_link *l, uint64_t number) {
  return &l->slots[(uint32_t)(number - 1) & l->mask];
}

static bool places_covers(uint64_t first, uint32_t count, uint64_t number) {
  return first && number >= first && number - first < count;
}

/* ---- receiver ---- */

void hk_places_post(hk_link *l, void *to, size_t bytes, uint32_t count, size_t each, uint32_t signature) {
  hk_places *p = &l->heads->places;
  hk_ref at;
  const hk_transport_zero_copy *z = l->owner ? l->owner->transport->zero_copy : NULL;
  if (!z || !z->export_target || !z->export_target(l->owner, l, to, bytes, &at)) return;
  /* The sender may be looking at the last offer. release, all: if it sees one of the new values, it finds that `first`
   * has changed. No two offers have the same `first`. relaxed: the next store releases this one. */
  atomic_store_explicit(&p->first, 0, memory_order_relaxed);
  atomic_store_explicit(&p->count, count, memory_order_release);
  atomic_store_explicit(&p->signature, signature, memory_order_release);
  atomic_store_explicit(&p->each, each, memory_order_release);
  atomic_store_explicit(&p->region, at.region, memory_order_release);
  atomic_store_explicit(&p->offset, at.offset, memory_order_release);
  /* release: pairs with the first load in places_read_offer */
  atomic_store_explicit(&p->first, l->done + 1, memory_order_release);
}

bool hk_places_offered(const hk_link *l) {
  const hk_places *p = &l->heads->places;
  /* relaxed, both: this rank's own */
  return places_covers(atomic_load_explicit(&p->first, memory_order_relaxed),
                       atomic_load_explicit(&p->count, memory_order_relaxed), l->done + 1);
}

/* True if the sender may now write the data of a slot that has not arrived yet. It is at most as many slots ahead as
 * there are headers. */
static bool places_is_written(const hk_link *l) {
  for (uint64_t k = l->done + 1; k <= l->done + l->mask + 1; k++) {
    hk_slot *s = places_slot_of(l, k);
    /* acquire: pairs with the release that publishes the slot, after the last write to its places */
    bool sent = atomic_load_explicit(&s->seq, memory_order_acquire) == (uint32_t)k;
    if (!sent && atomic_load_explicit(&s->writing, memory_order_seq_cst) == k) return true;
  }
  return false;
}

void hk_places_withdraw(hk_link *l) {
  enum { PATIENCE_MS = 2000 }; /* to write a slot takes less; a process that has died never ends it */
  hk_places *p = &l->heads->places;
  /* relaxed: this rank's own */
  if (!atomic_load_explicit(&p->first, memory_order_relaxed)) return;
  /* seq_cst here and in hk_places_claim: this rank takes the offer back and then reads the mark; the sender sets the
   * mark and then reads the offer. So at least one of them sees what the other one has written. */
  atomic_store_explicit(&p->first, 0, memory_order_seq_cst);
  hk_wait_env env = {.deadline_ns = hk_now_ns() + PATIENCE_MS * 1000000ull};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (places_is_written(l) && hk_wait_pause(&w) == HK_OK) continue;
}

/* ---- sender ---- */

/* True if there is a place for slot `number`; returns its region and offset. */
static bool places_read_offer(hk_places *p, uint64_t number, const hk_placing *what, hk_ref *at) {
  /* seq_cst, both times: as in hk_places_withdraw */
  const uint64_t first = atomic_load_explicit(&p->first, memory_order_seq_cst);
  if (!first) return false;
  /* acquire, all: the second load of `first` comes after them */
  const uint32_t count = atomic_load_explicit(&p->count, memory_order_acquire);
  const uint32_t signature = atomic_load_explicit(&p->signature, memory_order_acquire);
  const uint64_t each = atomic_load_explicit(&p->each, memory_order_acquire);
  at->region = atomic_load_explicit(&p->region, memory_order_acquire);
  at->offset = atomic_load_explicit(&p->offset, memory_order_acquire) + (number - first) * each;
  return atomic_load_explicit(&p->first, memory_order_seq_cst) == first && places_covers(first, count, number) &&
         each == what->each && signature == what->signature;
}

hk_status hk_places_claim(hk_link *l, const hk_placing *what, void **to, unsigned *n, int *bad_peer) {
  const hk_transport_zero_copy *z = l->owner ? l->owner->transport->zero_copy : NULL;
  const uint64_t number = l->done + 1;
  hk_slot *s = places_slot_of(l, number);
  hk_ref at;
  *n = 0;
  if (!z || !z->map_target || l->by_ref != 1 || !l->nheads || l->nheads > HK_PLACES_READERS) return HK_OK;
  for (uint32_t i = 0; i < l->nheads; i++)
    if (!places_read_offer(&l->heads[i].places, number, what, &at)) return HK_OK;
  atomic_store_explicit(&s->writing, number, memory_order_seq_cst); /* as in hk_places_withdraw */
  for (uint32_t i = 0; i < l->nheads; i++) {
    bool there = places_read_offer(&l->heads[i].places, number, what, &at);
    char *place = NULL;
    hk_status rc = there ? z->map_target(l->owner, l, i, &at, what->bytes, &place) : HK_OK;
    if (!place) {
      /* release: nothing has been written */
      atomic_store_explicit(&s->writing, 0, memory_order_release);
      if (rc != HK_OK) *bad_peer = (int)i + ((int)i >= l->peer);
      return rc;
    }
    to[i] = place;
  }
  *n = l->nheads;
  return HK_OK;
}
