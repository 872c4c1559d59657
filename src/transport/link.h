/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The FIFO link: one direction of a connection between two ranks (or from one rank to all others: multicast) on a
 * channel. Executors and transports share this structure: lanes fill and read slots, transports connect the two ends.
 *
 * Memory. A ring of `nslots` slot headers, one cache line each; a payload area of `slot_bytes` a slot; one head counter
 * (a cache line) for each reader. If the two ends share memory there is one such FIFO. Otherwise each end
 * has its own in private memory and the transport's progress moves slots from the sender's to the receiver's. If such a
 * link belongs to GPUs' kernels, a proxy moves slots between them and the transport (gpu/proxy.h).
 *
 * In shared memory each header has a small payload as well, and there may be fewer large ones than headers, so that
 * these stay in caches. A multicast FIFO there has HK_MCAST_SLOTS headers, so that a sender may run far ahead with
 * short messages if ranks take turns on few cores.
 *
 * Protocol. Slots are counted from 1. The sender of slot k waits until every reader's head >= k - nslots (the credit),
 * writes payload and header fields, then publishes by storing seq = k (release). The receiver of slot k waits for seq
 * == k (acquire), reads, then returns the credit by storing head = k (release). The sequence number travels in the same
 * line as a small payload, so a small message moves one cache line: there is no separate tail counter.
 *
 * By reference. A slot may carry the address of the sender's data instead of the data (HK_SLOT_REF): between threads of
 * a process, in shared memory that the receiver can map, or for a transport that sends from user memory. The sender
 * must then leave the data alone until the credit comes back.
 *
 * Placed. The readers of a multicast may offer places in shared memory of theirs. If all do, the sender writes the data
 * there, and its slot carries nothing (places.h).
 *
 * Threads. Each end belongs to the thread that runs its lanes. The functions below are for that thread, unless they say
 * otherwise. Fields that other threads or processes access are atomic.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../program/limits.h"

enum { HK_SLOT_INLINE = 48 };
/* small_bytes of a link in shared memory: at most HK_SLOT_SMALL_MOST; of a multicast at least HK_SLOT_SMALL. */
enum { HK_SLOT_SMALL = 1024, HK_SLOT_SMALL_MOST = 8192 };

enum {
  HK_SLOT_REF = 1,   /* the slot carries `ref`, not data */
  HK_SLOT_PLACED = 2 /* the sender has written the data where the reader wants it (places.h) */
};
/* The flags of a slot that the network adds to others (HK_LINK_SUM_SEND, HK_LINK_SCATTER_SEND): hk_dtype, hk_redop. */
#define HK_SLOT_SUM(type, op) ((uint32_t)(type) << 8 | (uint32_t)(op) << 16)

#define HK_REGION_PRIVATE UINT64_MAX
/* The address of data.
 *   region  0: `offset` is an address that is valid in the receiver. HK_REGION_PRIVATE: an address in the sender's
 *           memory, which the receiver can copy from but not access directly. Otherwise the id of a shared region of
 *           the sender.
 *   offset  in bytes, from the start of that region */
typedef struct hk_ref {
  uint64_t region, offset;
} hk_ref;

typedef struct hk_slot {
  _Atomic uint32_t seq; /* low 32 bits of the slot's number once filled */
  uint32_t bytes;       /* of payload */
  uint32_t signature;   /* of the operation: a receiver whose call does not match finds a different one */
  uint32_t flags;       /* HK_SLOT_* */
  union {
    unsigned char small[HK_SLOT_INLINE]; /* payload of at most HK_SLOT_INLINE bytes */
    hk_ref ref;
    struct {
      hk_ref unused;
      /* Multicast: the number of this slot, once its sender may write to the readers' places (places.h). */
      _Atomic uint64_t writing;
    };
  };
} hk_slot;
_Static_assert(sizeof(hk_slot) == HK_CACHE_LINE, "a slot header is one cache line");

/* Where the reader of a multicast wants the data of the slots to come: slot `first` + i at `offset` + i * `each` of a
 * shared region of the reader. `first` is 0 while the rest changes (places.c). */
typedef struct hk_places {
  _Atomic uint64_t first;     /* the number of the first slot, from 1; 0: no places */
  _Atomic uint32_t count;     /* of slots */
  _Atomic uint32_t signature; /* of the operation, as in the slots */
  _Atomic uint64_t each;      /* bytes */
  _Atomic uint64_t region, offset;
} hk_places;

typedef struct hk_head {
  _Alignas(HK_CACHE_LINE) _Atomic uint64_t value; /* slots this reader has given back */
  /* k + 1: this reader copies from memory that slot k refers to; `value` or less: it does not (hk_link_withdraw). */
  _Atomic uint64_t reading;
  hk_places places;
} hk_head;
_Static_assert(sizeof(hk_head) == HK_CACHE_LINE, "the head of a reader is one cache line");

/* What a lane expects of a proxied link. NO_WAIT: the transport need not check for messages. WAITS: the lane cannot
 * continue without the next message, so a broken connection is an error. TAKES: no lane waits yet, but messages that
 * arrive are received; a broken connection is no error. */
typedef enum hk_link_waiting { HK_LINK_NO_WAIT, HK_LINK_WAITS, HK_LINK_TAKES } hk_link_waiting;
typedef enum hk_link_state { HK_LINK_CONNECTING, HK_LINK_READY, HK_LINK_FAILED } hk_link_state;

/* Identifies a link. The keys of both ends differ only in the peer and the kind. */
typedef struct hk_link_key {
  int32_t peer;
  uint8_t kind;     /* hk_link_kind */
  uint16_t channel; /* 0..HK_CHANNELS-1: collective lanes; HK_CHANNEL_P2P: send/recv; from 256 on: relay.h */
} hk_link_key;
enum { HK_CHANNEL_P2P = HK_CHANNELS, HK_CHANNEL_COUNT };

struct hk_transport;
/* One end of a link, private to its rank. Its address does not change from open to close. */
typedef struct hk_link {
  /* The caller may set `slots` and `payload` before `open`: zeroed memory of its own for headers and a head, and for
   * payloads, which stays until the link is closed. A transport that uses other memory replaces them. */
  hk_slot *slots;
  char *payload;  /* slot i's data at payload + i * slot_bytes, page-aligned; NULL: see `small` */
  hk_head *heads; /* sender: [nheads], of all readers; receiver: its own */
  uint64_t done;  /* slots sent or received so far */
  uint64_t limit; /* sender: slots that may be sent before the heads must be looked at again */
  /* Payloads of at most small_bytes bytes, one for each header; NULL, and 0: they are in `payload`.  The caller may set
   * both before `open` of a transport that `grows` (transport.h): then there is no `payload` before `grow`. */
  char *small;
  uint32_t mask;      /* number of headers, minus 1 */
  uint32_t area_mask; /* number of payloads of slot_bytes, minus 1; equal to `mask` if `small` is NULL */
  uint32_t slot_bytes, small_bytes;
  uint32_t nheads;
  int32_t peer;
  uint8_t kind;           /* hk_link_kind */
  _Atomic(uint8_t) state; /* hk_link_state; the transport sets it */
  uint8_t by_ref;         /* sender: 0 never, 1 shared regions only, 2 any address */
  uint8_t proxied;        /* the transport's progress moves the slots (the ends share no memory) */
  /* Receiver of a proxied link: payloads of at least this many bytes may be written straight to their places, if these
   * are offered before the message is sent (hk_link_post_target); 0: none. */
  _Atomic(uint32_t) place_min;
  /* Receiver of a proxied link: where the data of the next slot belongs, if this is known before it arrives. The
   * transport may write it there, and then fills the slot with a reference to `recv_target`. Cleared with every slot
   * that is filled. */
  void *recv_target;
  uint32_t recv_target_bytes;
  /* Receiver of a proxied link, hk_link_waiting: whether a lane waits for the next slot. The lane sets it, and the
   * transport clears it with every slot that it fills. Progress then need not ask the network about links that no lane
   * waits for. Atomic, because the service thread looks at it while a lane runs. */
  _Atomic(uint8_t) waiting;
  /* Receiver of a proxied link that grows: a large payload has arrived, or is about to, and there is no memory for it
   * yet. */
  _Atomic(uint8_t) needs_buffer;
  /* Sender of a proxied link: the transport knows that there may be slots to move. It clears this when it has moved
   * them all, so its progress need not check links on which nothing is sent. */
  uint8_t rung;
  uint8_t delivers_ref; /* receiver of a proxied link: payloads may be references to memory of the transport */
  struct hk_transport_state *owner; /* for resolve */
  void *priv;                       /* private to the transport */
  uint64_t offered;                 /* receiver, the lane's: slots for which it has decided whether to offer a place */
  /* The GPU whose kernels write or read the payloads; the caller sets it before `open`. It stays set if the transport
   * puts the payloads into its memory: then `payload` is an address of the device, which the CPU must not access, and
   * all payloads but those in `small` are there, none in its slot's header. Otherwise `open` sets it to NULL. */
  struct hk_device *gpu;
} hk_link;
_Static_assert(sizeof(hk_link) <= 2 * HK_CACHE_LINE, "two cache lines of hot fields");

static inline hk_link_waiting hk_link_waits(const hk_link *l) {
  /* relaxed: it only says whether to ask the network; the slot's number orders the data */
  return (hk_link_waiting)atomic_load_explicit(&l->waiting, memory_order_relaxed);
}
static inline void hk_link_set_waiting(hk_link *l, hk_link_waiting to) {
  atomic_store_explicit(&l->waiting, (uint8_t)to, memory_order_relaxed); /* relaxed: as in hk_link_waits */
}

/* ---- sender ---- */
/* The number of slots that a payload of `bytes` cannot use, because there are fewer payloads of its size than
 * headers. */
static inline uint32_t hk_link_held(const hk_link *l, size_t bytes) {
  return bytes > l->small_bytes ? l->mask - l->area_mask : 0;
}
/* Reads the heads again. Returns true if a slot with `bytes` may be sent. */
bool hk_link_refresh_credit(hk_link *l, size_t bytes);
/* Returns true if there is credit for a slot with `bytes`. Never blocks. */
static inline bool hk_link_can_send(hk_link *l, size_t bytes) {
  return __builtin_expect(l->done + hk_link_held(l, bytes) < l->limit, 1) || hk_link_refresh_credit(l, bytes);
}
/* The place of the payload of the slot with index `done` (from 0), on either side. */
static inline void *hk_link_place(const hk_link *l, uint64_t done, size_t bytes) {
  uint32_t i = (uint32_t)done & l->mask;
  if (bytes <= HK_SLOT_INLINE) return l->slots[i].small;
  if (bytes <= l->small_bytes) return l->small + (size_t)i * l->small_bytes;
  return l->payload + (size_t)(i & l->area_mask) * l->slot_bytes;
}
/* True if the payload of a slot with `bytes` is in a GPU's memory. */
static inline bool hk_link_on_gpu(const hk_link *l, size_t bytes) { return l->gpu && bytes > l->small_bytes; }
/* The place for the next slot's payload. */
static inline void *hk_link_send_buffer(hk_link *l, size_t bytes) { return hk_link_place(l, l->done, bytes); }
/* Prefetches the cache lines of the next slot's payload for writing, so that they leave the reader's cache while this
 * rank does other things. This makes messages of up to HK_LINK_WARM bytes 20 to 35% faster. Longer ones are copied to
 * slots without fetching the lines (HK_MOVE_SLOT): what is prefetched only delays them. */
enum { HK_LINK_WARM = 4095 };
void hk_link_warm(const hk_link *l, uint32_t bytes);
static inline void hk_fetch_for_writing(const void *line) {
#if defined(__x86_64__)
  /* Without a -m option for the processor, compilers make an ordinary prefetch of __builtin_prefetch(.., 1). This
   * instruction exists, or does nothing, on every x86-64. */
  __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
  __builtin_prefetch(line, 1);
#endif
}
/* For a sender that runs ahead with messages in headers: prefetches the header that it will write some messages later,
 * if the readers have given that slot back. The lines are in the readers' caches, and the next locked instruction waits
 * until the last one has arrived. The readers may poll headers nearer than this one. */
enum { HK_LINK_EARLY = 8 };
static inline void hk_link_warm_early(const hk_link *l) {
  if (l->mask >= 4 * HK_LINK_EARLY - 1 && l->done + HK_LINK_EARLY < l->limit)
    hk_fetch_for_writing(&l->slots[(uint32_t)(l->done + HK_LINK_EARLY) & l->mask]);
}

void hk_link_ring(hk_link *l); /* sets `rung` and notifies the transport */
/* Writes the next slot's header and publishes the slot. Its payload must be complete. */
static inline void hk_link_fill(hk_link *l, uint32_t bytes, uint32_t signature, uint32_t flags) {
  hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  s->bytes = bytes;
  s->signature = signature;
  s->flags = flags;
  l->done++;
  /* release: the payload and the fields above must be visible before the receiver sees the number */
  atomic_store_explicit(&s->seq, (uint32_t)l->done, memory_order_release);
  if (__builtin_expect(l->proxied && !l->rung, 0)) hk_link_ring(l);
}
/* The same, and prefetches the slot after it if that helps (hk_link_warm). */
static inline void hk_link_publish(hk_link *l, uint32_t bytes, uint32_t signature, uint32_t flags) {
  hk_link_fill(l, bytes, signature, flags);
  if (bytes > HK_SLOT_INLINE && bytes <= HK_LINK_WARM && !(flags & HK_SLOT_REF) && hk_link_can_send(l, bytes))
    hk_link_warm(l, bytes); /* only with a credit: a reader may still use those lines */
}
/* Fills `ref` with the reference to send for [data, data + bytes). Returns false if the receivers cannot read that
 * memory: then the caller sends a copy. */
bool hk_link_refer(hk_link *l, const void *data, size_t bytes, hk_ref *ref);
/* Returns true once every slot sent so far has been given back: the sender may use its buffers again. */
bool hk_link_drained(hk_link *l);
/* Call it after an operation has failed. Sender: withdraws the references in its slots to memory of this process, and
 * waits for readers that copy from that memory now. Then the user may free it. Receiver: notes that it reads no such
 * memory. */
void hk_link_withdraw(hk_link *l);
/* Fills `ranks` with the readers that have given back fewer than `least` slots. Returns their number, at most
 * `capacity`. A multicast FIFO has a head for each rank except its sender, in the order of the ranks. From any
 * thread. */
int hk_link_lagging(const hk_link *l, uint64_t least, int *ranks, int capacity);

/* ---- receiver ---- */
/* Returns true if the next slot has arrived. Never blocks. */
static inline bool hk_link_can_recv(const hk_link *l) {
  const hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  /* acquire: pairs with the release in hk_link_fill; the payload is read after it */
  return atomic_load_explicit(&s->seq, memory_order_acquire) == (uint32_t)(l->done + 1);
}
/* The header of the slot that has arrived. */
static inline const hk_slot *hk_link_recv_slot(const hk_link *l) { return &l->slots[(uint32_t)l->done & l->mask]; }
/* The address of the data that the slot's reference names. NULL if it cannot be resolved; the error is set then. */
const void *hk_link_resolve(hk_link *l, const hk_slot *s);
enum { HK_LINK_AHEAD = 32 }; /* a place can be offered this many slots ahead, at most the number of slots of the FIFO */
/* Returns true if the slot with index `offered` is near enough for an offer. */
static inline bool hk_link_may_post_target(const hk_link *l) {
  return l->offered < l->done + (l->mask < HK_LINK_AHEAD ? l->mask + 1 : HK_LINK_AHEAD);
}
/* Offers [to, to + bytes) as the place for the data of slot k (from 0), which has not arrived yet. `bytes` is the whole
 * payload and at least place_min. No other instruction may need that memory before the slot has arrived. If the place
 * was used, the slot carries a reference to it. */
void hk_link_post_target(hk_link *l, uint64_t k, void *to, uint32_t bytes);
/* Returns true if payloads of `bytes` are large enough for an offer. */
static inline bool hk_link_places(const hk_link *l, size_t bytes) {
  /* relaxed: the transport looks again, under its lock */
  uint32_t least = atomic_load_explicit(&l->place_min, memory_order_relaxed);
  return least && bytes >= least;
}
/* Copies the data of a slot that carries HK_REGION_PRIVATE to `to`. HK_ERR_REMOTE if the sender's memory cannot be
 * read. */
hk_status hk_link_fetch(hk_link *l, const hk_slot *s, void *to);
/* Returns true if the slot's data is private memory of the sender: the receiver must copy it. */
static inline bool hk_slot_private(const hk_slot *s) {
  return s->flags & HK_SLOT_REF && s->ref.region == HK_REGION_PRIVATE;
}
/* The data of the slot that has arrived, until its release. NULL as for hk_link_resolve. */
static inline const void *hk_link_recv_data(hk_link *l) {
  const hk_slot *s = hk_link_recv_slot(l);
  if (__builtin_expect(s->flags & HK_SLOT_REF, 0)) return hk_link_resolve(l, s);
  return hk_link_place(l, l->done, s->bytes);
}
/* For a receiver whose sender may be ahead: if the next slot has arrived, prefetches the beginning of its payload,
 * assuming `bytes` as in the last one. The lines move from the sender's cache while the caller does other things. */
enum { HK_LINK_EXPECT = 4096 };
static inline void hk_link_expect(const hk_link *l, size_t bytes) {
  if (!hk_link_can_recv(l)) return;
  const char *next = hk_link_place(l, l->done, bytes);
  if (bytes > HK_LINK_EXPECT) bytes = HK_LINK_EXPECT;
  for (size_t i = 0; i < bytes; i += HK_CACHE_LINE) __builtin_prefetch(next + i);
}
/* Returns the credit of the slot that has arrived. */
static inline void hk_link_release(hk_link *l) {
  l->done++;
  /* release: this rank's reads of the payload must be over before the sender may overwrite it */
  atomic_store_explicit(&l->heads->value, l->done, memory_order_release);
}
