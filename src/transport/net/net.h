/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The net transport: links between ranks that share no memory. Each end has a FIFO of its own; a provider moves filled
 * slots from the sender's FIFO to the receiver's. net.c makes the FIFOs and chooses the provider of each peer: the
 * first one that both ranks have and that connects them. A new provider is one file plus one line in net.c's table.
 *
 * What a provider does with a SEND end: while hk_net_filled(end, k), it moves slot k (header and hk_net_slot_data) to
 * the other side. Once it no longer needs the slot's memory, or the user's memory that a reference names, it calls
 * hk_net_give_credit. What it does with a RECV end: while hk_net_has_room(end), it gets the place of the next slot's
 * payload from hk_net_place, writes the payload there, then calls hk_net_deliver.
 */
#pragma once
#include "../../device/device.h"
#include "../transport.h"

struct hk_settings; /* base/param.h */

enum {
  HK_NET_NAME = 16,
  HK_NET_ACTIVE = 3, /* most providers that a rank uses: the best one, and others for peers without it */
  HK_NET_FACT_BYTES = HK_FACT_BYTES / HK_NET_ACTIVE - HK_NET_NAME, /* of a provider; its name takes the rest */
  HK_NET_MESSAGE_MAX = 1 << 30 /* a larger `bytes` in a received header is an error */
};

typedef struct hk_net_end {
  hk_link *link;
  hk_link_key key;
  uint64_t next; /* slots that the provider has taken (SEND) or delivered (RECV) */
  /* The part of the FIFO in host memory that the caller (hk_link) has not provided. Only used pages cost memory. */
  void *memory;
  size_t bytes;
  char *host_payload; /* its payloads; used only if they are not in a GPU's memory */
  hk_device *taken;   /* the GPU whose memory the provider takes for payloads; NULL: none */
  hk_device *gpu;
  hk_memory gpu_memory;     /* the payloads in that GPU's memory; base NULL: they are in host memory */
  struct hk_net_used *used; /* private to net.c: the provider that serves the end */
  void *priv;               /* private to the provider */
} hk_net_end;
bool hk_net_sends(const hk_net_end *e); /* of a sending link */

/* The functions of a provider. All run on the thread of the communicator's lanes, unless they say otherwise. A function
 * that returns a reason writes it as text to `why`. */
typedef struct hk_net_provider {
  const char *name; /* as NCCL_NET gives it (in any case); under HK_NET_NAME bytes */
  /* Returns true if the provider can work on this machine; otherwise a reason. */
  bool (*usable)(const struct hk_settings *set, char *why, size_t why_bytes);
  /* Data to send must be in the FIFO, or in memory that `refer` allows. False: it may be anywhere (by_ref). */
  bool copies;
  bool apart;        /* data does not go over TCP: transport.h */
  bool delivers_ref; /* delivered slots may refer to memory of the provider */
  /* Makes the context and fills `fact` (HK_NET_FACT_BYTES, zeroed). */
  hk_status (*init)(const hk_transport_env *env, void **ctx, void *fact);
  /* All ranks' facts, `stride` bytes apart; they stay valid. The fact of a rank without this provider is all 0. */
  void (*join)(void *ctx, const char *facts, size_t stride);
  /* Returns true if ranks a and b, which both have the provider, reach each other; otherwise a reason. All ranks must
   * return the same, for (b, a) too. NULL: always true. */
  bool (*reachable)(void *ctx, int a, int b, char *why, size_t why_bytes);
  /* Returns true if the end's payloads may be in the memory of link->gpu. Called before `open`; a true result is
   * binding. NULL: always false. */
  bool (*takes_gpu)(void *ctx, const hk_net_end *end);
  /* True if the end may get its memory for large payloads later, by `grow`. NULL: false. */
  bool (*grows)(void *ctx);
  /* Sets `payload` and `gpu` in the link as its memory for large payloads; gpu NULL: host memory. With `grows`. */
  hk_status (*grow)(void *ctx, hk_net_end *end, char *payload, hk_device *gpu);
  /* Connects an end, or begins to; sets link->state. */
  hk_status (*open)(void *ctx, hk_net_end *end);
  /* As the transport's `memory`. NULL: the provider does not use registered memory. */
  void (*memory)(void *ctx, void *base, size_t bytes, bool there);
  /* Returns true if [data, data + bytes) may be sent from where it is. NULL: never if the provider copies, else
   * always. */
  bool (*refer)(void *ctx, const void *data, size_t bytes);
  /* As the transport's. NULL: `progress` writes what arrives to the places of hk_net_place. */
  void (*post_target)(void *ctx, hk_net_end *end, uint64_t k, void *to, uint32_t bytes);
  void (*withdraw)(void *ctx);
  /* As the transport's `ring`. */
  void (*ring)(void *ctx, hk_net_end *end);
  /* Moves what can be moved; never blocks. */
  hk_status (*progress)(void *ctx, bool *moved);
  /* Sleeps until `progress` may have work, or for about a millisecond. NULL: cannot sleep. */
  void (*sleep)(void *ctx);
  /* As the transport's. NULL: never if the provider copies, else always. */
  hk_status (*rest)(void *ctx, hk_net_end *end, bool *rests);
  void (*close)(void *ctx, hk_net_end *end);
  void (*fini)(void *ctx);
  const struct hk_remote *remote; /* one-sided operations (transport/remote.h), with this ctx; NULL: none */
} hk_net_provider;

extern const hk_net_provider hk_net_ib, hk_net_socket;

/* The beginning of the transport's state; other files of the transport know only this part. */
typedef struct hk_net_common {
  hk_transport_state base;
  bool move_reported; /* a warning about a move to host memory has been logged */
} hk_net_common;

/* ---- for a provider that cannot carry an end; no data of the end has been moved yet ---- */
/* Moves the end's payloads, and those that the lane has filled already, from the GPU's memory to host memory, because
 * no card accepts that memory; link->gpu becomes NULL, and the lane copies between GPU and FIFO from now on. `why`: the
 * reason, which is logged; NULL: it has been logged already. Only on the lane's thread, within `open` or `progress`.
 * Does nothing if they are in host memory already. */
hk_status hk_net_move_to_host(hk_net_end *e, const char *why);
/* Returns true if another provider connects the two ranks. Both ends get the same result. */
bool hk_net_has_fallback(const hk_net_end *e);
/* Opens the end with that provider. The caller keeps no pointer to the end and holds no lock. May block as `open`
 * may. */
hk_status hk_net_fall_back(hk_net_end *e);

/* ---- for links through a third rank: relay.c ---- */
/* The first network that both ranks have; NULL: none. *joined: it connects the two ranks; otherwise `why` says why not.
 * Equal on all ranks that have this network. */
const struct hk_net_used *hk_net_between(hk_transport_state *s, int a, int b, bool *joined, char *why,
                                         size_t why_bytes);
/* Makes another state of the same rank, with contexts of its own, for another thread: `env` has its functions and
 * waits. The networks are those of `s`, without plugins. */
hk_status hk_net_again(hk_transport_state *s, const hk_transport_env *env, hk_transport_state **out);

/* ---- SEND ends; slots count from 0 ---- */
static inline hk_slot *hk_net_slot(const hk_net_end *e, uint64_t k) {
  return &e->link->slots[(uint32_t)k & e->link->mask];
}
/* Returns true if the lane has filled slot k. */
static inline bool hk_net_filled(const hk_net_end *e, uint64_t k) {
  /* acquire: pairs with hk_link_fill; the slot's fields and payload are read after it */
  return atomic_load_explicit(&hk_net_slot(e, k)->seq, memory_order_acquire) == (uint32_t)(k + 1);
}
/* The data of slot k: in the FIFO, or where its reference says. */
static inline const void *hk_net_slot_data(const hk_net_end *e, uint64_t k) {
  const hk_slot *s = hk_net_slot(e, k);
  if (s->flags & HK_SLOT_REF) return (const void *)(uintptr_t)s->ref.offset; /* an address of this process */
  return hk_link_place(e->link, k, s->bytes);
}
/* Slot k's part of the payload area, on either side. It may be an address of a GPU; then small payloads are there,
 * too. */
static inline char *hk_net_payload(const hk_net_end *e, uint64_t k) {
  return e->link->payload + (size_t)((uint32_t)k & e->link->mask) * e->link->slot_bytes;
}
/* Gives the first `slots` slots back to the lane. */
static inline void hk_net_give_credit(hk_net_end *e, uint64_t slots) {
  /* release: the provider's reads of the slots' memory must be over before the lane may fill them again */
  atomic_store_explicit(&e->link->heads->value, slots, memory_order_release);
}

/* ---- RECV ends ---- */
/* Returns true if the next slot is free. */
static inline bool hk_net_has_room(const hk_net_end *e) {
  /* acquire: pairs with hk_link_release; the lane's reads of the slot are over before it is written */
  return e->next - atomic_load_explicit(&e->link->heads->value, memory_order_acquire) <= e->link->mask;
}
/* The place for a payload of `bytes` of the next slot. *direct: it is the user's memory (link->recv_target). NULL if
 * the payload is larger than a slot and the lane has not set link->recv_target yet, or if the link has no large
 * payloads yet. */
void *hk_net_place(const hk_net_end *e, uint32_t bytes, bool *direct);
/* Publishes the next slot, whose payload is at `place`; `direct` is from hk_net_place. */
void hk_net_deliver(hk_net_end *e, uint32_t bytes, uint32_t signature, void *place, bool direct);
