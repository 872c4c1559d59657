/* SPDX-License-Identifier: Apache-2.0 */
/* Where a provider puts a message that comes, and how it publishes it to the lane. */
#include "net.h"

void *hk_net_place(const hk_net_end *e, uint32_t bytes, bool *direct) {
  const hk_link *l = e->link;
  *direct = false;
  if (bytes <= HK_SLOT_INLINE) return hk_net_slot(e, e->next)->small;
  if (l->want && bytes <= l->want_bytes) {
    *direct = true;
    return l->want;
  }
  if (bytes > l->slot_bytes) return NULL;
  if (bytes > l->small_bytes && !l->payload) {
    atomic_store_explicit(&e->link->starves, 1, memory_order_relaxed); /* relaxed: it is only a hint to look */
    return NULL;
  }
  return hk_link_place(l, e->next, bytes);
}

void hk_net_deliver(hk_net_end *e, uint32_t bytes, uint32_t signature, void *place, bool direct) {
  hk_slot *s = hk_net_slot(e, e->next);
  s->bytes = bytes;
  s->signature = signature;
  s->flags = direct ? HK_SLOT_REF : 0;
  if (direct) s->ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)place};
  e->next++;
  hk_link_set_waiting(e->link, HK_LINK_NO_WAIT);
  e->link->want = NULL; /* it was for this slot; the lane sets it again if it knows the next slot's place */
  /* release: payload and fields must be visible before the lane sees the number */
  atomic_store_explicit(&s->seq, (uint32_t)e->next, memory_order_release);
}
