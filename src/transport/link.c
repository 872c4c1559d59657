/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the FIFO link that are not inlined. link.h describes the protocol. */
#include "link.h"
#include "../base/wait.h"
#include "places.h"
#include "transport.h"

hk_link hk_link_in_memory(const hk_transport_env *env, const hk_link_key *key, hk_slot *slots, char *payload) {
  return (hk_link){.slots = slots,
                   .heads = (hk_head *)(void *)(slots + env->nslots),
                   .payload = payload,
                   .mask = env->nslots - 1,
                   .area_mask = env->nslots - 1,
                   .limit = hk_link_sends((hk_link_kind)key->kind) ? env->nslots : 0, /* all slots may be filled */
                   .slot_bytes = (uint32_t)env->slot_bytes,
                   .nheads = 1,
                   .peer = key->peer,
                   .kind = key->kind,
                   .state = HK_LINK_READY};
}

/* The number of slots that every reader has given back. */
static uint64_t link_given_back(const hk_link *l) {
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < l->nheads; i++) {
    /* acquire: pairs with the release in hk_link_release; the next write into the slot, or into a buffer that was sent
     * by reference, must not overtake the reader's last reads of it */
    uint64_t head = atomic_load_explicit(&l->heads[i].value, memory_order_acquire);
    if (head < least) least = head;
  }
  return l->nheads ? least : l->done; /* no readers: nothing to wait for */
}

bool hk_link_refresh_credit(hk_link *l, size_t bytes) {
  l->limit = link_given_back(l) + l->mask + 1;
  return l->done + hk_link_held(l, bytes) < l->limit;
}

void hk_link_warm(const hk_link *l, uint32_t bytes) {
  const char *next = hk_link_place(l, l->done, bytes);
  for (uint32_t i = 0; i < bytes; i += HK_CACHE_LINE) hk_fetch_for_writing(next + i);
}

void hk_link_ring(hk_link *l) {
  l->rung = 1;
  const hk_transport_proxied *t = l->owner ? l->owner->transport->proxied : NULL;
  if (t && t->ring) t->ring(l);
}

bool hk_link_drained(hk_link *l) { return link_given_back(l) >= l->done; }

/* seq_cst here and in hk_link_withdraw: the reader sets its mark and then reads the slot's number; the sender changes
 * the number and then reads the mark. So at least one of them sees what the other one has written. */
static bool link_begin_reading(hk_link *l, const hk_slot *s) {
  atomic_store_explicit(&l->heads->reading, l->done + 1, memory_order_seq_cst);
  return atomic_load_explicit(&s->seq, memory_order_seq_cst) == (uint32_t)(l->done + 1);
}

static bool link_is_reading(const hk_head *h) {
  return atomic_load_explicit(&h->reading, memory_order_seq_cst) >
         atomic_load_explicit(&h->value, memory_order_acquire); /* acquire: as in link_given_back */
}

void hk_link_withdraw(hk_link *l) {
  enum { PATIENCE_MS = 2000 }; /* a copy takes less; a thread that has died never ends its copy */
  if (!l->heads || l->gpu || l->proxied) return;
  if (!hk_link_sends((hk_link_kind)l->kind)) {
    /* release: the reads are over */
    atomic_store_explicit(&l->heads->reading, 0, memory_order_release);
    if (l->kind == HK_LINK_MCAST_RECV) hk_places_withdraw(l);
    return;
  }
  if (l->by_ref != 2) return;
  for (uint64_t k = link_given_back(l); k < l->done; k++) {
    hk_slot *s = &l->slots[(uint32_t)k & l->mask];
    if (s->flags & HK_SLOT_REF) atomic_store_explicit(&s->seq, ~(uint32_t)(k + 1), memory_order_seq_cst);
  }
  hk_wait_env env = {.deadline_ns = hk_now_ns() + PATIENCE_MS * 1000000ull};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (uint32_t i = 0; i < l->nheads; i++)
    while (link_is_reading(&l->heads[i]) && hk_wait_pause(&w) == HK_OK) continue;
}

int hk_link_lagging(const hk_link *l, uint64_t least, int *ranks, int capacity) {
  int n = 0;
  for (uint32_t i = 0; i < l->nheads && n < capacity; i++) {
    /* relaxed: for reports; nothing is read or written because of it */
    if (atomic_load_explicit(&l->heads[i].value, memory_order_relaxed) >= least) continue;
    ranks[n++] = l->kind == HK_LINK_MCAST_SEND ? (int)i + ((int)i >= l->peer) : l->peer;
  }
  return n;
}

bool hk_link_refer(hk_link *l, const void *data, size_t bytes, hk_ref *ref) {
  if (l->by_ref == 2) {
    *ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)data};
    return true;
  }
  const hk_transport_zero_copy *z = l->owner->transport->zero_copy;
  return l->by_ref && z && z->refer && z->refer(l->owner, l, data, bytes, ref);
}

void hk_link_post_target(hk_link *l, uint64_t k, void *to, uint32_t bytes) {
  l->owner->transport->zero_copy->post_target(l->owner, l, k, to, bytes);
}

hk_status hk_link_fetch(hk_link *l, const hk_slot *s, void *to) {
  return l->owner->transport->zero_copy->fetch(l->owner, l, &s->ref, to, s->bytes);
}

const void *hk_link_resolve(hk_link *l, const hk_slot *s) {
  if (s->ref.region == 0) {
    if (l->proxied || link_begin_reading(l, s)) return (const void *)(uintptr_t)s->ref.offset;
    HK_FAIL(HK_ERR_REMOTE,
            "rank %u has ended its operation before this rank has read the data: it failed or was "
            "aborted: see that rank's output",
            l->peer);
    return NULL;
  }
  const hk_transport *t = l->owner ? l->owner->transport : NULL;
  if (t && t->zero_copy && t->zero_copy->resolve) return t->zero_copy->resolve(l->owner, l, &s->ref, s->bytes);
  HK_FAIL(HK_ERR_INTERNAL, "rank %u sent a reference to shared region %llu over a %s link, which cannot resolve it",
          l->peer, (unsigned long long)s->ref.region, t ? t->name : "raw");
  return NULL;
}
