/* SPDX-License-Identifier: Apache-2.0 */
/* A call as plain fields: collective or direction, type, operator, count, root. Ranks send these fields to each other
 * and print them in error messages. */
#pragma once
#include <stddef.h>
#include <stdint.h>

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
  static const uint8_t bytes[HK_DTYPE_COUNT] = {
      [HK_I8] = 1,  [HK_U8] = 1,  [HK_I32] = 4, [HK_U32] = 4,  [HK_I64] = 8,  [HK_U64] = 8,
      [HK_F16] = 2, [HK_F32] = 4, [HK_F64] = 8, [HK_BF16] = 2, [HK_E4M3] = 1, [HK_E5M2] = 1,
  };
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
