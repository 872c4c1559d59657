/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives, and a call as plain fields: collective or direction, type, operator, count, root. Ranks send these
 * fields to each other and print them in error messages. C and CUDA C include this header. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "limits.h"

/* coll.def has a row for each collective; the following definitions are generated from it. */
/* clang-format off */
typedef enum hk_coll {
#define HK_COLL(id, ...) HK_##id,
#include "coll.def"
  HK_COLL_COUNT,
  HK_SENDRECV = HK_COLL_COUNT /* one send or one receive: collectives/transfer.h; no algorithm */
} hk_coll;

/* Sets of collectives, a bit each: masks, because device code reads them too. */
enum {
  HK_COLLS_REDUCE = 0
#define HK_COLL(id, name, reduces, ...) | (reduces) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_ROOT = 0
#define HK_COLL(id, name, reduces, root, ...) | (root) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_WHOLE = 0
#define HK_COLL(id, name, reduces, root, whole, ...) | (whole) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_IN_EACH = 0
#define HK_COLL(id, name, reduces, root, whole, in, ...) | (in) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_OUT_EACH = 0
#define HK_COLL(id, name, reduces, root, whole, in, out, ...) | (out) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_IN_ROOT = 0
#define HK_COLL(id, name, reduces, root, whole, in, out, in_root, ...) | (in_root) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_OUT_ROOT = 0
#define HK_COLL(id, name, reduces, root, whole, in, out, in_root, out_root, ...) | (out_root) << HK_##id
#include "coll.def"
  ,
  HK_COLLS_UNEVEN = 0
#define HK_COLL(id, name, reduces, root, whole, in, out, in_root, out_root, bus, alias, from, part, plain) \
  | (HK_##plain != HK_##id) << HK_##id
#include "coll.def"
};
/* clang-format on */

const char *hk_coll_name(hk_coll c); /* "AllReduce", as in NCCL's logs */
/* The collective of that name, of n characters in any case; HK_COLL_COUNT: there is none. */
hk_coll hk_coll_by_name(const char *name, size_t n);
/* The factor between algorithm and bus bandwidth, as in nccl-tests: the part of a message that must cross each rank's
 * link. */
double hk_coll_bus_factor(hk_coll c, int nranks);
/* True if the collective is in the set.  False for HK_SENDRECV, and for an invalid number received over a wire. */
HK_INLINE int hk_coll_in_set(unsigned set, hk_coll c) { return (unsigned)c < HK_COLL_COUNT && (set >> c & 1); }
/* True if the collective reduces; if it has a root. */
HK_INLINE int hk_coll_reduces(hk_coll c) { return hk_coll_in_set(HK_COLLS_REDUCE, c); }
HK_INLINE int hk_coll_has_root(hk_coll c) { return hk_coll_in_set(HK_COLLS_ROOT, c); }
typedef enum hk_partition { HK_PART_SPLIT, HK_PART_WHOLE } hk_partition;
HK_INLINE hk_partition hk_coll_partition(hk_coll c) {
  return hk_coll_in_set(~(unsigned)HK_COLLS_WHOLE, c) ? HK_PART_SPLIT : HK_PART_WHOLE;
}
/* The number of messages in the input and the output of one rank; for gather's output and scatter's input: the
 * root's. */
HK_INLINE int hk_coll_in_blocks(hk_coll c, int nranks) { return hk_coll_in_set(HK_COLLS_IN_EACH, c) ? nranks : 1; }
HK_INLINE int hk_coll_out_blocks(hk_coll c, int nranks) { return hk_coll_in_set(HK_COLLS_OUT_EACH, c) ? nranks : 1; }
/* True if the rank has an input, or an output. With a root, often only the root has one of them. */
HK_INLINE int hk_coll_has_input(hk_coll c, int rank, int root) {
  return !hk_coll_in_set(HK_COLLS_IN_ROOT, c) || rank == root;
}
HK_INLINE int hk_coll_has_output(hk_coll c, int rank, int root) {
  return !hk_coll_in_set(HK_COLLS_OUT_ROOT, c) || rank == root;
}
/* Each rank has a block for each rank and gets one from each. In place, a block that arrives overwrites one that is
 * still to be sent. */
HK_INLINE int hk_coll_exchanges(hk_coll c) {
  return hk_coll_in_set((unsigned)HK_COLLS_IN_EACH & (unsigned)HK_COLLS_OUT_EACH, c);
}
/* uneven: each block has its own length.  pairs: each pair of ranks has its own length, which no third rank knows. */
HK_INLINE int hk_coll_uneven(hk_coll c) { return hk_coll_in_set(HK_COLLS_UNEVEN, c); }
HK_INLINE int hk_coll_pairs(hk_coll c) { return hk_coll_exchanges(c) && hk_coll_uneven(c); }
/* The collective whose programs `c` uses (coll.def). */
hk_coll hk_coll_plain(hk_coll c);
/* Whether a call is in place. Ranks must agree about what they run, and they may differ in this. So it is
 * HK_INPLACE_ANY, unless the user promises that all ranks do the same (HOCKET_PROGRAMS_BY_PLACE). */
typedef enum hk_inplace { HK_INPLACE_ANY, HK_INPLACE_YES, HK_INPLACE_NO } hk_inplace;
/* In place: the output block at the address of input block `block` of `rank`; -1: none. */
int hk_coll_alias(hk_coll c, int rank, int nranks, int root, int block);
/* The rank, and the block of its input, whose data output block `block` of `rank` holds. If the collective reduces, the
 * output block holds the sum of block `part` of all ranks' inputs. */
void hk_coll_source(hk_coll c, int rank, int nranks, int root, int block, int *from, int *part);

/* A block of an uneven collective. */
typedef struct hk_extent {
  uint64_t at, bytes; /* from the start of the buffer; its length */
} hk_extent;

/* How a call divides its buffers, in bytes. */
typedef struct hk_sizes {
  uint64_t total;       /* length of a message that is divided into blocks */
  uint64_t block_bytes; /* distance between blocks, and length of each block that the message's end does not clip */
  uint64_t longest;     /* length of the longest block */
  uint64_t chunk;       /* part of a block that one wave moves; not 0 */
  /* Uneven collective: in_blocks extents of the input, then out_blocks of the output.  NULL: all blocks have equal
   * length. */
  const hk_extent *table;
} hk_sizes;
/* Bytes from one scratch buffer of a lane to the next: whole cache lines. */
HK_INLINE uint64_t hk_scratch_stride(uint64_t chunk) { return (chunk + 63) & ~(uint64_t)63; }
/* Makes sizes for whole or split messages, and computes `longest`. */
HK_INLINE hk_sizes hk_sizes_of(hk_partition partition, uint64_t total, uint64_t block_bytes, uint64_t chunk) {
  hk_sizes s = {total, block_bytes, block_bytes, chunk, 0};
  if (partition == HK_PART_SPLIT && total < block_bytes) s.longest = total;
  return s;
}

/* Values are ncclDataType_t's and ncclRedOp_t's (asserted in api/api_coll.c). */
typedef enum hk_dtype {
  HK_I8,
  HK_U8,
  HK_I32,
  HK_U32,
  HK_I64,
  HK_U64,
  HK_F16,
  HK_F32,
  HK_F64,
  HK_BF16,
  HK_E4M3,
  HK_E5M2,
  HK_DTYPE_COUNT
} hk_dtype;
typedef enum hk_redop { HK_SUM, HK_PROD, HK_MAX, HK_MIN, HK_AVG, HK_PREMULSUM, HK_REDOP_COUNT } hk_redop;
/* Flags in hk_operation.redop: the sum must be made in the fixed order; links carry quantised values (quantised.h).
 * Calls that differ in them do not match. */
enum { HK_REDOP_INVARIANT = 128, HK_REDOP_QUANTISED = 64, HK_REDOP_FLAGS = HK_REDOP_INVARIANT | HK_REDOP_QUANTISED };
/* PUT: also a signal alone, with count 0.  WAIT: for `count` signals. */
typedef enum hk_p2p { HK_P2P_NONE, HK_P2P_SEND, HK_P2P_RECV, HK_P2P_PUT, HK_P2P_WAIT } hk_p2p;
/* "Send", "Recv", "PutSignal", "WaitSignal" */
const char *hk_p2p_name(hk_p2p p);

/* These accept any value: a value that names nothing has size 0 and the name "unknown type" or "unknown operator". */
static inline size_t hk_dtype_size(hk_dtype t) { /* bytes of an element */
  static const uint8_t bytes[HK_DTYPE_COUNT] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return (unsigned)t < HK_DTYPE_COUNT ? bytes[t] : 0;
}
const char *hk_dtype_name(hk_dtype t);
const char *hk_redop_name(hk_redop op);

typedef struct hk_operation {
  /* elements, as the call counts them. Uneven collective: the total of all blocks (0: each pair has its own count) */
  uint64_t count;
  int32_t root;  /* send or receive: the peer; uneven collective: a hash of all counts */
  uint8_t coll;  /* hk_coll */
  uint8_t p2p;   /* hk_p2p, if coll is HK_SENDRECV */
  uint8_t dtype; /* hk_dtype */
  uint8_t redop; /* hk_redop, perhaps with HK_REDOP_FLAGS */
} hk_operation;

/* "AllReduce(1000 x float, sum)", "Send to(5 x int8, rank 3)", "WaitSignal(2 signals, rank 3)".  Accepts any values of
 * the fields. */
void hk_operation_describe(const hk_operation *o, char *text, size_t bytes);

/* The signature in a transfer's slots: equal at both ends if the sizes of the send and the receive are equal. */
static inline uint32_t hk_transfer_signature(size_t bytes) {
  uint64_t h = (bytes + 1) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32) | 1u;
}
