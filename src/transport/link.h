/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The FIFO link: one direction of a connection between two ranks (or from one rank to all others: multicast) on a
 * channel.  Both executors and all transports meet here.
 *
 * Memory.  A ring of `nslots` slot headers, one cache line each; a payload area of `slot_bytes` a slot; one head counter
 * (a cache line) for each reader.  Where the two ends share memory there is one such FIFO.  Where they do not, each end has
 * its own in private memory and the transport's progress moves slots from the sender's to the receiver's.
 *
 * A multicast FIFO that ranks share has HK_MCAST_SLOTS headers and small payloads, so that a sender may run far ahead
 * with short messages where ranks take turns on few cores, and still only `nslots` large payloads, which stay in caches.
 *
 * Protocol.  Slots are counted from 1.  The sender of slot k waits until every reader's head >= k - nslots (the credit),
 * writes payload and header fields, then publishes by storing seq = k (release).  The receiver of slot k waits for
 * seq == k (acquire), reads, then returns the credit by storing head = k (release).  The sequence number travels in the
 * same line as a small payload, so a small message moves one cache line: there is no separate tail counter.
 *
 * By reference.  A slot may carry the address of the sender's data instead of the data (HK_SLOT_REF): between threads of a
 * process, in shared memory that the receiver can map, or for a transport that sends from user memory.  The sender must
 * then leave the data alone until the credit comes back.
 */
#ifndef HK_TRANSPORT_LINK_H
#define HK_TRANSPORT_LINK_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

enum { HK_CACHE_LINE = 64, HK_SLOT_INLINE = 48, HK_SLOT_SMALL = 1024, HK_MCAST_SLOTS = 64 };

enum {
  HK_SLOT_REF = 1 /* the slot carries `ref`, not data */
};

#define HK_REGION_PRIVATE UINT64_MAX
/* `region` 0: `offset` is an address, valid as it is in the receiver; HK_REGION_PRIVATE: an address in the sender that the
 * receiver can copy from, not point at; else the id of a shared region of the sender, and the place in it. */
typedef struct hk_ref {
  uint64_t region, offset;
} hk_ref;

typedef struct hk_slot {
  _Atomic uint32_t seq; /* low 32 bits of the slot's number once filled */
  uint32_t bytes;       /* of payload */
  uint32_t signature;   /* of the operation, so that mismatched calls are told apart from data */
  uint32_t flags;       /* HK_SLOT_* */
  union {
    unsigned char small[HK_SLOT_INLINE]; /* payload of at most HK_SLOT_INLINE bytes */
    hk_ref ref;
  };
} hk_slot;
_Static_assert(sizeof(hk_slot) == HK_CACHE_LINE, "a slot header is one cache line");

typedef struct hk_head {
  _Alignas(HK_CACHE_LINE) _Atomic uint64_t value; /* slots this reader has given back */
} hk_head;

/* HK_LINK_TAKES: nobody waits yet, but what comes is received; that nothing can come any more is no error. */
typedef enum hk_link_waiting { HK_LINK_NO_WAIT, HK_LINK_WAITS, HK_LINK_TAKES } hk_link_waiting;
typedef enum hk_link_state { HK_LINK_CONNECTING, HK_LINK_READY, HK_LINK_FAILED } hk_link_state;

struct hk_transport;
/* One end of a link, private to its rank; it stays at its address from open to close.  Sized for two cache lines of hot
 * fields. */
typedef struct hk_link {
  hk_slot *slots;
  char *payload;      /* slot i's data at payload + i * slot_bytes, page-aligned */
  hk_head *heads;     /* sender: [nheads], of all readers; receiver: its own */
  uint64_t done;      /* slots sent or received so far */
  uint64_t limit;     /* sender: slots that may be sent before the heads must be looked at again */
  char *small;        /* payloads of at most HK_SLOT_SMALL bytes, one a header; NULL: they lie among the others */
  uint32_t mask;      /* headers - 1 */
  uint32_t area_mask; /* payloads of slot_bytes - 1; the same as mask where `small` is NULL */
  uint32_t slot_bytes;
  uint32_t nheads;
  uint16_t peer;
  uint8_t kind;           /* hk_link_kind */
  _Atomic(uint8_t) state; /* hk_link_state; the transport sets it */
  uint8_t by_ref;         /* sender: 0 never, 1 shared regions only, 2 any address */
  uint8_t pumped;         /* the transport's progress moves the slots (the ends share no memory) */
  uint8_t delivers_ref;   /* receiver of a pumped link: what comes may lie in memory of the transport's own */
  uint8_t placed; /* of a pumped link, both ends alike: slots are references, of any size, and wait for their places */
  /* Receiver of a pumped link: where the data of the next slot belongs, when it is known before it comes; the transport
   * may place it there, and then fills the slot with a reference to `want`.  Cleared with every slot that is filled. */
  void *want;
  uint32_t want_bytes;
  /* Receiver of a pumped link, hk_link_waiting: a lane stands still for the next slot.  The lane sets it, the transport
   * clears it with every slot that it fills; progress then need not ask the network about links that nobody waits for. */
  uint8_t waiting;
  struct hk_transport_state *owner; /* for resolve */
  void *priv;                       /* the transport's */
  /* Receiver of a pumped link: payloads of at least so many bytes may be written straight to their places, if those are told
   * ahead (hk_link_offer); 0: none.  And the slots of which that has been considered: the lane's. */
  _Atomic(uint32_t) place_min;
  uint64_t offered;
  /* A GPU whose kernels write or read the payloads: set by who opens the link.  It stays where the transport puts them into
   * its memory: then `payload` is an address of the device, which no CPU may touch, and small ones lie there too, never in
   * their slots' headers.  Else it becomes NULL. */
  struct hk_device *gpu;
} hk_link;
_Static_assert(sizeof(hk_link) <= 2 * HK_CACHE_LINE, "two cache lines of hot fields");

/* ---- sender ---- */
/* Slots that a payload of `bytes` cannot use, because there are fewer payloads of its size than headers. */
static inline uint32_t hk_link_held(const hk_link *l, size_t bytes) {
  return bytes > HK_SLOT_SMALL ? l->mask - l->area_mask : 0;
}
bool hk_link_refresh_credit(hk_link *l, size_t bytes); /* looks at the heads; true where the slot may be sent */
/* May a slot with `bytes` be sent? */
static inline bool hk_link_can_send(hk_link *l, size_t bytes) {
  return __builtin_expect(l->done + hk_link_held(l, bytes) < l->limit, 1) || hk_link_refresh_credit(l, bytes);
}
/* Where the payload of the slot after `done` ones lies, on either side. */
static inline void *hk_link_place(const hk_link *l, uint64_t done, size_t bytes) {
  uint32_t i = (uint32_t)done & l->mask;
  if (bytes <= HK_SLOT_INLINE) return l->slots[i].small;
  if (bytes <= HK_SLOT_SMALL && l->small) return l->small + (size_t)i * HK_SLOT_SMALL;
  return l->payload + (size_t)(i & l->area_mask) * l->slot_bytes;
}
/* The place for the next slot's payload. */
static inline void *hk_link_send_buffer(hk_link *l, size_t bytes) { return hk_link_place(l, l->done, bytes); }
/* Fetches the next slot's payload lines for writing, so that they come from the reader's cache while this rank does other
 * things.  Messages of up to HK_LINK_WARM bytes are 20 to 35% faster by it; streams of larger ones would lose. */
enum { HK_LINK_WARM = 16384 };
void hk_link_warm(const hk_link *l, uint32_t bytes);

static inline void hk_link_fill(hk_link *l, uint32_t bytes, uint32_t signature, uint32_t flags) {
  hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  s->bytes = bytes;
  s->signature = signature;
  s->flags = flags;
  l->done++;
  /* release: the payload and the fields above must be visible before the receiver sees the number */
  atomic_store_explicit(&s->seq, (uint32_t)l->done, memory_order_release);
}
static inline void hk_link_publish(hk_link *l, uint32_t bytes, uint32_t signature, uint32_t flags) {
  hk_link_fill(l, bytes, signature, flags);
  if (bytes > HK_SLOT_INLINE && bytes <= HK_LINK_WARM && !(flags & HK_SLOT_REF) && hk_link_can_send(l, bytes))
    hk_link_warm(l, bytes); /* with a credit only: not from under a reader */
}
/* The reference to send for [data, data + bytes); false where the receivers cannot read that memory: send a copy. */
bool hk_link_refer(hk_link *l, const void *data, size_t bytes, hk_ref *ref);
/* True when every slot sent so far has been given back: the sender's buffers are its own again. */
bool hk_link_drained(hk_link *l);
/* The readers that have given back fewer than `least` slots; returns their number, at most `room`.  A multicast FIFO has a
 * head for each rank but its sender, in their order. */
int hk_link_lagging(const hk_link *l, uint64_t least, int *ranks, int room);

/* ---- receiver ---- */
static inline bool hk_link_can_recv(const hk_link *l) {
  const hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  /* acquire: pairs with the release in hk_link_publish; payload reads stay behind it */
  return atomic_load_explicit(&s->seq, memory_order_acquire) == (uint32_t)(l->done + 1);
}
static inline const hk_slot *hk_link_recv_slot(const hk_link *l) { return &l->slots[(uint32_t)l->done & l->mask]; }
/* The data of a received slot; NULL with the reason logged where a reference cannot be resolved. */
const void *hk_link_resolve(hk_link *l, const hk_slot *s);
enum { HK_LINK_AHEAD = 32 }; /* slots that may be spoken of ahead, where a FIFO has that many */
static inline bool hk_link_may_offer(const hk_link *l) {
  return l->offered < l->done + (l->mask < HK_LINK_AHEAD ? l->mask + 1 : HK_LINK_AHEAD);
}
/* Where the data of slot k (from 0), which is still to come, belongs: all `bytes` of it, at least place_min.  Nobody else may
 * need that memory before the slot has come.  Whether it is used shows in the slot: a reference to it. */
void hk_link_offer(hk_link *l, uint64_t k, void *to, uint32_t bytes);
/* Are payloads of `bytes` worth that? */
static inline bool hk_link_places(const hk_link *l, size_t bytes) {
  /* relaxed: the transport looks again, under its lock */
  uint32_t least = atomic_load_explicit(&l->place_min, memory_order_relaxed);
  return least && bytes >= least;
}
/* Copies a slot that carries HK_REGION_PRIVATE straight to where its data belongs. */
hk_status hk_link_fetch(hk_link *l, const hk_slot *s, void *to);
static inline bool hk_slot_private(const hk_slot *s) {
  return s->flags & HK_SLOT_REF && s->ref.region == HK_REGION_PRIVATE;
}
static inline const void *hk_link_recv_data(hk_link *l) {
  const hk_slot *s = hk_link_recv_slot(l);
  if (__builtin_expect(s->flags & HK_SLOT_REF, 0)) return hk_link_resolve(l, s);
  return hk_link_place(l, l->done, s->bytes);
}
static inline void hk_link_release(hk_link *l) {
  l->done++;
  /* release: our reads of the payload must be over before the sender may overwrite it */
  atomic_store_explicit(&l->heads->value, l->done, memory_order_release);
}
#endif
