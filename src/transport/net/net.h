/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The net transport: links between ranks that share no memory.  Each end has a FIFO of its own; a provider moves filled
 * slots from the sender's FIFO to the receiver's.  net.c makes the FIFOs and chooses the provider of each peer: the first
 * that both have and by which they reach each other.  A new provider is one file plus one line in net.c's table.
 *
 * What a provider does with a SEND end: while hk_net_filled(end, k), take slot k (header and hk_net_slot_data) to the other
 * side; once it needs the slot's memory, and the user's memory behind a reference, no more: hk_net_give_credit.
 * What it does with a RECV end: while hk_net_has_room(end), ask hk_net_place where the next slot's payload goes, write it
 * there, then hk_net_deliver.
 */
#ifndef HK_TRANSPORT_NET_H
#define HK_TRANSPORT_NET_H
#include "../../device/device.h"
#include "../transport.h"

enum {
  HK_NET_NAME = 16,
  HK_NET_ACTIVE = 3, /* providers that a rank uses: the best one, and others for peers that do not have it */
  HK_NET_FACT_BYTES = HK_FACT_BYTES / HK_NET_ACTIVE - HK_NET_NAME, /* what a provider may tell; the rest is its name */
  HK_NET_MESSAGE_MAX = 1 << 30 /* a slot's bytes above this are garbage from the wire */
};

typedef struct hk_net_end {
  hk_link *link;
  hk_link_key key;
  uint64_t next; /* slots that the provider has taken (SEND) or delivered (RECV) */
  void *memory;  /* the FIFO; of payloads that lie in a GPU's memory it has the place, without pages */
  size_t bytes, payload_at;
  hk_device *gpu;
  hk_memory gpu_memory;     /* those payloads, in its memory; base NULL: none */
  struct hk_net_used *used; /* net.c's: by whom it is served */
  void *priv;               /* the provider's */
} hk_net_end;

typedef struct hk_net_provider {
  const char *name; /* as NCCL_NET gives it (in any case); under HK_NET_NAME bytes */
  /* Can it work here?  If not, `why` gets the reason in words. */
  bool (*usable)(char *why, size_t why_bytes);
  /* Must a link's data lie in the FIFO, or where `refer` allows it?  Else it may lie anywhere (by_ref). */
  bool copies;
  bool delivers_ref; /* slots that it delivers may refer to memory of its own */
  /* Makes the context and fills `fact` (HK_NET_FACT_BYTES, zeroed). */
  hk_status (*init)(const hk_transport_env *env, void **ctx, void *fact);
  /* All ranks' facts, `stride` bytes apart; they stay valid.  Only ranks with this provider have one. */
  void (*join)(void *ctx, const char *facts, size_t stride);
  /* May this rank reach `peer`, which has the same provider?  Both ends answer alike.  NULL: yes. */
  bool (*reachable)(void *ctx, int peer, char *why, size_t why_bytes);
  /* May the end's payloads lie in the memory of link->gpu?  Before `open`; once yes, it counts.  NULL: no. */
  bool (*takes_gpu)(void *ctx, const hk_net_end *end);
  /* Connects an end, or begins to; sets link->state. */
  hk_status (*open)(void *ctx, hk_net_end *end);
  /* As the transport's `memory`; NULL: it makes no difference. */
  void (*memory)(void *ctx, void *base, size_t bytes, bool there);
  /* May [data, data + bytes) be sent from where it is?  NULL: no, or anything where it does not copy. */
  bool (*refer)(void *ctx, const void *data, size_t bytes);
  /* Memory of some GPU, by the caller's dma-buf or (fd -1) by its address, is registered for placed messages of the end; `memory`
   * takes it back.  And: does the GPU see the first `slots` messages, the last of which came to `at`?  What is to be done for
   * it is under way.  NULL together: no slots are placed. */
  hk_status (*gpu_memory)(void *ctx, hk_net_end *end, void *base, size_t bytes, int fd, uint64_t offset);
  hk_status (*gpu_visible)(void *ctx, hk_net_end *end, const void *at, uint64_t slots, bool *yes);
  /* As the transport's; NULL: what arrives is written by `progress`, to where hk_net_place says. */
  void (*offer)(void *ctx, hk_net_end *end, uint64_t k, void *to, uint32_t bytes);
  void (*withdraw)(void *ctx);
  /* Moves what can be moved; never blocks. */
  hk_status (*progress)(void *ctx, bool *moved);
  /* Sleeps until `progress` may have something to do, or about a millisecond.  NULL: cannot. */
  void (*sleep)(void *ctx);
  void (*close)(void *ctx, hk_net_end *end);
  void (*fini)(void *ctx);
} hk_net_provider;

extern const hk_net_provider hk_net_ib, hk_net_socket;

/* ---- a provider that cannot carry an end, of which nothing has been moved yet ---- */
/* No card takes the GPU's memory after all, for the reason given (NULL: it has been told): payloads move to the host's, what
 * the lane has filled too, and link->gpu becomes NULL.  The kernels stay where they are: the lane copies from now on.  Only
 * on the lane's thread, which is in `open` or `progress`.  Nothing to do where they lie there already. */
hk_status hk_net_move_to_host(hk_net_end *e, const char *why);
/* Is there another provider by which the ranks reach each other?  Both ends answer alike. */
bool hk_net_has_fallback(const hk_net_end *e);
/* Opens the end with that one; the caller has forgotten it and holds no lock.  May block as `open` may. */
hk_status hk_net_fall_back(hk_net_end *e);

/* ---- links whose slots are placed (hk_link.placed): for the net plugin that this library is ---- */
/* May a link's slots be, by the network that carries it now? */
bool hk_net_can_place(const hk_link *l);
/* The provider's gpu_memory and gpu_visible. */
hk_status hk_net_gpu_memory(hk_link *l, void *base, size_t bytes, int fd, uint64_t offset);
hk_status hk_net_gpu_visible(hk_link *l, const void *at, uint64_t slots, bool *yes);

/* ---- SEND ends ---- */
static inline hk_slot *hk_net_slot(const hk_net_end *e, uint64_t k) { /* k counts from 0 */
  return &e->link->slots[(uint32_t)k & e->link->mask];
}
static inline bool hk_net_filled(const hk_net_end *e, uint64_t k) {
  /* acquire: pairs with hk_link_publish; the slot's fields and payload are read behind it */
  return atomic_load_explicit(&hk_net_slot(e, k)->seq, memory_order_acquire) == (uint32_t)(k + 1);
}
static inline const void *hk_net_slot_data(const hk_net_end *e, uint64_t k) {
  const hk_slot *s = hk_net_slot(e, k);
  if (s->flags & HK_SLOT_REF) return (const void *)(uintptr_t)s->ref.offset; /* the address holds in this process */
  return hk_link_place(e->link, k, s->bytes);
}
/* The slot's part of the payloads, on either side, where small ones do not lie with the host: maybe an address of a GPU. */
static inline char *hk_net_payload(const hk_net_end *e, uint64_t k) {
  return e->link->payload + (size_t)((uint32_t)k & e->link->mask) * e->link->slot_bytes;
}
static inline void hk_net_give_credit(hk_net_end *e, uint64_t slots) {
  /* release: our reads of the slots' memory must be over before the lane may fill them again */
  atomic_store_explicit(&e->link->heads->value, slots, memory_order_release);
}

/* ---- RECV ends ---- */
static inline bool hk_net_has_room(const hk_net_end *e) {
  /* acquire: pairs with hk_link_release; the lane's reads of the slot are over before we write it */
  return e->next - atomic_load_explicit(&e->link->heads->value, memory_order_acquire) <= e->link->mask;
}
/* Where a payload of `bytes` of the next slot goes; NULL where it is larger than a slot and nobody has said yet where he
 * wants it.  *direct: that is the user's memory (link->want). */
void *hk_net_place(const hk_net_end *e, uint32_t bytes, bool *direct);
/* Publishes the next slot, whose payload is at `place`. */
void hk_net_deliver(hk_net_end *e, uint32_t bytes, uint32_t signature, void *place, bool direct);
#endif
