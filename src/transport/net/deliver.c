/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a provider the place for an arriving message, and publishes the message to the lane. */
#include "../../base/log.h"
#include "../../device/device.h"
#include "net.h"

void *hk_net_place(const hk_net_end *e, uint32_t bytes, bool *direct) {
  const hk_link *l = e->link;
  *direct = false;
  if (bytes <= HK_SLOT_INLINE) return hk_net_slot(e, e->next)->small;
  if (l->recv_target && bytes <= l->recv_target_bytes) {
    *direct = true;
    return l->recv_target;
  }
  if (bytes > l->slot_bytes) return NULL;
  if (bytes > l->small_bytes && !l->payload) {
    atomic_store_explicit(&e->link->needs_buffer, 1, memory_order_relaxed); /* relaxed: it is only a hint to look */
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
  e->link->recv_target = NULL; /* it was for this slot; the lane sets it again if it knows the next slot's place */
  /* release: payload and fields must be visible before the lane sees the number */
  atomic_store_explicit(&s->seq, (uint32_t)e->next, memory_order_release);
}

/* ---- an end whose payloads cannot be in the memory of a GPU ---- */

/* Copies the payloads that the lane has filled already. Small ones go to their slots' headers, where host memory has
 * them. */
static hk_status deliver_copy_filled(hk_net_end *e, char *to) {
  hk_link *l = e->link;
  hk_queue q = l->owner->env->gpu_queue;
  /* relaxed: this thread, as the provider, writes it */
  uint64_t k = atomic_load_explicit(&l->heads->value, memory_order_relaxed), end = k + l->mask + 1;
  for (; k < end && hk_net_filled(e, k); k++) {
    hk_slot *s = hk_net_slot(e, k);
    if (!hk_link_on_gpu(l, s->bytes)) continue;
    size_t at = (size_t)((uint32_t)k & l->mask) * l->slot_bytes;
    void *place = s->bytes <= HK_SLOT_INLINE ? (void *)s->small : to + at;
    HK_OR_RETURN(e->gpu->ops->copy(e->gpu, place, l->payload + at, s->bytes, q));
  }
  return e->gpu->ops->wait(e->gpu, q);
}

hk_status hk_net_move_to_host(hk_net_end *e, const char *why) {
  hk_link *l = e->link;
  hk_net_common *s = (hk_net_common *)l->owner;
  int rank = s->base.env->rank;
  char *host = l->payload ? e->host_payload : NULL; /* NULL: it has not grown yet */
  bool sends = hk_link_sends((hk_link_kind)e->key.kind);
  if (!l->gpu) return HK_OK;
  if (sends && host) HK_OR_RETURN(deliver_copy_filled(e, host));
  l->payload = host;
  l->gpu = NULL;
  if (why && !s->move_reported)
    HK_WARN(
        "rank %d: %s, though it accepted some in the trial: data passes through host memory on channel %d %s rank %d, "
        "and perhaps on others (see NCCL_DEBUG=INFO)",
        rank, why, e->key.channel, sends ? "to" : "from", e->key.peer);
  else if (why)
    HK_INFO(HK_SUB_NET, "rank %d: %s: data passes through host memory on channel %d %s rank %d", rank, why,
            e->key.channel, sends ? "to" : "from", e->key.peer);
  s->move_reported = s->move_reported || why;
  return HK_OK;
}
