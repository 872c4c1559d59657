/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The kinds of links, and the sizes of links and their slots, that programs, prices, kernels and transports must know
 * alike. C and CUDA C include this header.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HK_INLINE static __host__ __device__ inline
#else
#define HK_INLINE static inline
#endif
#ifdef __cplusplus
#define HK_ASSERT static_assert
#else
#define HK_ASSERT _Static_assert
#endif

/* How a slot is encoded: decide/protocol.h. */
typedef enum hk_protocol { HK_PROTO_SIMPLE, HK_PROTO_LL, HK_PROTO_LL128, HK_PROTO_COUNT } hk_protocol;

enum {
  HK_CACHE_LINE = 64,
  HK_SIZE_CLASSES = 512, /* of messages (decide/select.h) */
  HK_CHANNELS = 8,       /* of links between two ranks, for collectives */
  HK_MCAST_SLOTS = 64,   /* of a multicast link in shared memory (transport/link.h) */
  /* Below this size a copy into a slot takes less time than the wait for its reader, so slots refer to no memory. */
  HK_REF_MIN_BYTES = 16384,
  /* Buffers of this size do not stay in the caches of a core. */
  HK_STREAM_MIN_BYTES = 8 << 20,
  HK_PLACES_READERS = 15, /* of a multicast to places (transport/places.h): a sum is written to so many at once */
  /* small_bytes of a link that grows: the payload that networks send together with the header, from and to their own
   * memory. A GPU's link over the network has memory for such slots from the start. */
  HK_LINK_SMALL = 4064,
  HK_GPU_WORD_STRIDE = 2,  /* from a slot's word to the next, of 8 bytes */
  HK_GPU_HEAD_STRIDE = 16, /* from a reader's head to the next, of 8 bytes */
  /* Bytes of a slot's data that LL lines carry; the same over the network, between a kernel and its proxy. */
  HK_GPU_LL_MAX = 16384,
  HK_GPU_LL_NET_MAX = 3072,
  HK_GPU_WIDE_BYTES = 65536, /* bytes of a slot's LL128 lines, if a link has them */
  HK_GPU_REF_MIN = 65536,    /* for fewer bytes a copy into the slot is cheaper than the final wait for the credit */
  /* The kernel of small messages (kernels/cuda/small.h): the most ranks and destinations; a channel has at most
   * HK_GPU_LL_MAX bytes. */
  HK_GPU_SMALL_SOURCES = 8,
  HK_GPU_SMALL_SENDS = 8,
  HK_GPU_NET_CHANNELS = 16 /* the most of collectives between hosts: one proxy thread serves them all */
};
/* True if buffers of so many bytes do not stay in the caches of a core: stores then go past them. */
static inline bool hk_exceeds_caches(size_t bytes) { return bytes >= (size_t)HK_STREAM_MIN_BYTES; }
/* CMA (cross memory attach): the operating system's kernel copies from another process (process_vm_readv). Its time, in
 * copies by a core, if no rank of the host has measured it: a default, measured on two cores of an Intel Xeon
 * (docs/results/cpu.md). */
#define HK_CMA_COPY 1.0
/* The private memory that slots may refer to: its reader copies it by CMA. All else goes through slots. Input that the
 * reader adds goes through slots, too, because the reader would have to copy it first. */
enum {
  HK_CMA_MOVES = 1,  /* data that readers only move */
  HK_CMA_PLACED = 2, /* the same if the call is in place: the rank makes no copy of its own */
  HK_CMA_SUMS = 4    /* sums that the rank has just made */
};
/* Entry [r] of a table is the offset that turns an address in registered memory into rank r's address of it. This
 * value: r cannot read it. */
#define HK_GPU_UNSEEN INT64_MIN
/* Bytes of a slot's LL lines for data of `bytes`: each 8 bytes are in a line of 16. */
#define HK_GPU_LL_LINES(bytes) (2 * (size_t)(bytes))
/* Bytes of a message that LL128 lines of `bytes` carry. */
#define HK_GPU_LL128_CARRIES(bytes) ((bytes) / 256 * 240)

/* Memory in a switch (transport/cuda/multicast.h): the most slots, bytes of a slot, channels, and bytes of a rank. The
 * switch's answer takes a microsecond or two. */
enum {
  HK_GPU_SWITCH_SLOTS = 4,
  HK_GPU_SWITCH_SLOT_BYTES = 64 << 10,
  HK_GPU_SWITCH_CHANNELS = 16,
  HK_GPU_SWITCH_BYTES = 64 << 20
};
/* The bytes of a slot in a switch, if slots of other links have `bytes`: the slots of all channels, two for each rank
 * and slot number, must fit into the memory. */
static inline size_t hk_gpu_switch_slot(size_t bytes, unsigned nslots, unsigned channels, int nranks) {
  const size_t slots = (size_t)2 * nslots * channels * (size_t)nranks;
  size_t slot = bytes < (size_t)HK_GPU_SWITCH_SLOT_BYTES ? bytes : (size_t)HK_GPU_SWITCH_SLOT_BYTES;
  while (slot > 4096 && slots * slot >= (size_t)HK_GPU_SWITCH_BYTES) slot /= 2; /* signals need some memory, too */
  return slot;
}
/* The most bytes that a wave moves through a slot of `bytes`: more than its lines carry would be sent as with
 * Simple. */
static inline size_t hk_gpu_slot_carries(size_t bytes, hk_protocol p) {
  const size_t lines = p == HK_PROTO_LL      ? (size_t)HK_GPU_LL_MAX
                       : p == HK_PROTO_LL128 ? (size_t)HK_GPU_LL128_CARRIES(HK_GPU_WIDE_BYTES)
                                             : bytes;
  return bytes < lines ? bytes : lines;
}

/* The most blocks of a space: a stride between any two of them fits. So many ranks can gather. */
enum { HK_BLOCKS_MOST = (1 << 19) - 1, HK_RANKS_MOST = HK_BLOCKS_MOST, HK_LINKS_MOST = HK_BLOCKS_MOST };

typedef enum hk_link_kind {
  HK_LINK_SEND,       /* to `peer` */
  HK_LINK_RECV,       /* from `peer` */
  HK_LINK_MCAST_SEND, /* one slot that every other rank of the host reads; peer is the rank itself */
  HK_LINK_MCAST_RECV, /* reads the multicast slots of `peer` */
  /* The network makes a sum (CollNet; inside a host, a switch: HK_INSTR_IN_SWITCH). The ranks of a group form a circle:
   * a sending link names the next rank, a receiving link the previous one. Slot k of a receiving link is the sum of
   * slot k of all sending links. */
  HK_LINK_SUM_SEND,
  HK_LINK_SUM_RECV,
  /* The same for gathers and scatters. The n ranks of a group are numbered along the circle, from the lowest rank on.
   * GATHER: the receiving links get slot k of each sending link, as slots k n to k n + n - 1. SCATTER: slot k of the
   * rank with number m is the sum of slots k n + m. */
  HK_LINK_GATHER_SEND,
  HK_LINK_GATHER_RECV,
  HK_LINK_SCATTER_SEND,
  HK_LINK_SCATTER_RECV
} hk_link_kind;
enum { HK_LINK_KINDS = HK_LINK_SCATTER_RECV + 1 };
HK_INLINE int hk_link_sends(hk_link_kind k) {
  return k == HK_LINK_SEND || k == HK_LINK_MCAST_SEND || k == HK_LINK_SUM_SEND || k == HK_LINK_GATHER_SEND ||
         k == HK_LINK_SCATTER_SEND;
}
/* True for a link of a group. */
HK_INLINE int hk_link_in_group(hk_link_kind k) { return k >= HK_LINK_SUM_SEND; }
/* True if a round has n slots at one end of the link and one slot at the other (gather, scatter). */
HK_INLINE int hk_link_in_rounds(hk_link_kind k) { return k >= HK_LINK_GATHER_SEND; }
/* The most ranks of a host that are in such groups, each in a different group; NCCL's limit on a host. */
enum { HK_SUM_GROUPS = 8 };

/* The kind of the other end of a link of kind k. */
HK_INLINE hk_link_kind hk_link_other_end(hk_link_kind k) { return (hk_link_kind)(hk_link_sends(k) ? k + 1 : k - 1); }
HK_ASSERT(HK_LINK_RECV == HK_LINK_SEND + 1 && HK_LINK_MCAST_RECV == HK_LINK_MCAST_SEND + 1 &&
              HK_LINK_SUM_RECV == HK_LINK_SUM_SEND + 1 && HK_LINK_GATHER_RECV == HK_LINK_GATHER_SEND + 1 &&
              HK_LINK_SCATTER_RECV == HK_LINK_SCATTER_SEND + 1,
          "each receiving kind follows its sending kind");
