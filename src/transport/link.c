/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the FIFO link that are not inlined. link.h describes the protocol. */
#include "link.h"
#include "transport.h"

/* The number of slots that every reader has given back. */
static uint64_t given_back(const hk_link *l) {
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
  l->limit = given_back(l) + l->mask + 1;
  return l->done + hk_link_held(l, bytes) < l->limit;
}

static inline void fetch_for_writing(const char *line) {
#if defined(__x86_64__)
  /* Without a -m option for the processor, compilers make an ordinary prefetch of __builtin_prefetch(.., 1). This
   * instruction exists, or does nothing, on every x86-64. */
  __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

void hk_link_warm(const hk_link *l, uint32_t bytes) {
  const char *next = hk_link_place(l, l->done, bytes);
  for (uint32_t i = 0; i < bytes; i += HK_CACHE_LINE) fetch_for_writing(next + i);
}

void hk_link_ring(hk_link *l) {
  l->rung = 1;
  if (l->owner && l->owner->transport->ring) l->owner->transport->ring(l);
}

bool hk_link_drained(hk_link *l) { return given_back(l) >= l->done; }

int hk_link_lagging(const hk_link *l, uint64_t least, int *ranks, int room) {
  int n = 0;
  for (uint32_t i = 0; i < l->nheads && n < room; i++) {
    /* relaxed: for reports; nothing is read or written because of it */
    if (atomic_load_explicit(&l->heads[i].value, memory_order_relaxed) >= least) continue;
    ranks[n++] = l->nheads == 1 ? l->peer : (int)(i + (i >= l->peer));
  }
  return n;
}

bool hk_link_refer(hk_link *l, const void *data, size_t bytes, hk_ref *ref) {
  if (l->by_ref == 2) {
    *ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)data};
    return true;
  }
  const hk_transport *t = l->owner->transport;
  return l->by_ref && t->refer && t->refer(l->owner, l, data, bytes, ref);
}

void hk_link_offer(hk_link *l, uint64_t k, void *to, uint32_t bytes) {
  l->owner->transport->offer(l->owner, l, k, to, bytes);
}

hk_status hk_link_fetch(hk_link *l, const hk_slot *s, void *to) {
  return l->owner->transport->fetch(l->owner, l, &s->ref, to, s->bytes);
}

const void *hk_link_resolve(hk_link *l, const hk_slot *s) {
  if (s->ref.region == 0) return (const void *)(uintptr_t)s->ref.offset;
  const hk_transport *t = l->owner ? l->owner->transport : NULL;
  if (t && t->resolve) return t->resolve(l->owner, l, &s->ref, s->bytes);
  HK_FAIL(HK_ERR_INTERNAL, "rank %u sent a reference to shared region %llu over a %s link, which cannot resolve it",
          l->peer, (unsigned long long)s->ref.region, t ? t->name : "raw");
  return NULL;
}
