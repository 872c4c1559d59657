/* SPDX-License-Identifier: Apache-2.0 */
/* A checked API call; it exists until the operation is complete. */
#pragma once
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include "../base/status.h"
#include "../program/operation.h"
#include "comm.h"

/* The blocks of an uneven collective's call. All copies of the call share it, because they may outlive the user's
 * arrays. */
typedef struct hk_blocks {
  _Atomic(int) refs;
  uint64_t longest;         /* bytes of the longest block */
  uint64_t in_end, out_end; /* bytes of the input and of the output up to the end of the last block; 0: all are empty */
  hk_extent table[];        /* as hk_sizes has it */
} hk_blocks;

enum { HK_CALL_PROTOCOLS = 3, HK_CALL_CTAS = 64 };
/* What ncclCollConfig_t asks for in one call; all 0: nothing.  It is compared as bytes, so it has no gaps. */
typedef struct hk_call_options {
  uint32_t only[HK_CALL_PROTOCOLS]; /* hk_filter.only */
  uint8_t min_ctas, max_ctas, nvls_ctas;
  uint8_t cluster; /* plus 1 */
  uint8_t policy;  /* NCCL_CTA_POLICY_ bits, plus 1 */
  uint8_t inplace; /* hk_inplace; not an option of the user's */
  uint8_t unused[2];
} hk_call_options;
_Static_assert(sizeof(hk_call_options) == 4 * HK_CALL_PROTOCOLS + 8, "without gaps");

typedef struct hk_call {
  ncclComm_t comm;
  const void *in;
  void *out;
  size_t count; /* elements, as the call counts them; uneven: of all blocks; 0 if each pair has a count */
  union {
    struct {
      uint8_t coll;         /* hk_coll */
      uint8_t p2p;          /* hk_p2p, if coll is HK_SENDRECV */
      uint8_t dtype, redop; /* hk_redop, perhaps with HK_REDOP_FLAGS */
      int root;             /* or the peer of a send or receive; uneven: a hash of all counts */
    };
    uint64_t kind; /* these fields in one word, which calls are compared by */
  };
  uint64_t scalar; /* one element, for HK_PREMULSUM; or its address */
  bool scalar_on_device;
  bool asks;               /* `options` are not all 0 */
  bool holds;              /* in a group: keeps the memory of the communicator, also for the calls after it (group.c) */
  uint32_t signal;         /* of a put or a wait for signals: context * rma_signals + index */
  uint64_t window, offset; /* of a put: the window's number (rma.h), bytes */
  hk_blocks *blocks;       /* of an uneven collective; NULL otherwise */
  cudaStream_t stream;
  hk_call_options options;
  uint64_t tag;              /* set by the user, for a profiler; 0: none */
  void *launched;            /* the user's event, recorded when the kernel is launched; NULL: none */
  void *event, *group_event; /* the profiler's, for the call and for its group; NULL: no profiler */
} hk_call;
/* Checks the arguments of a collective, then runs or queues it. `op` (an ncclRedOp_t, or one that the communicator
 * made) is used only by collectives that reduce, `root` only by those that have one. Each collective of the API calls
 * this function. */
hk_status hk_coll_call(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op, int root,
                       ncclComm_t c, cudaStream_t stream);
/* HK_ERR_USAGE if the communicator's links cannot carry quantised values. */
hk_status hk_call_may_quantise(ncclComm_t c, const char *who);
/* Options of a call in addition to its arguments. */
typedef struct hk_call_request {
  hk_call_options options;
  bool must;      /* HK_ERR_ARGUMENT if nothing of options.only can run */
  uint64_t tag;   /* as in hk_call */
  void *launched; /* the same */
} hk_call_request;
hk_status hk_coll_call_with(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op,
                            int root, ncclComm_t c, cudaStream_t stream, const hk_call_request *w);
static inline bool hk_call_is_rma(const hk_call *c) { return c->p2p == HK_P2P_PUT || c->p2p == HK_P2P_WAIT; }
/* The user's arrays of an uneven collective, in elements: for each block of a buffer its count and its start (NULL:
 * each block begins where the one before ends). If one of the two buffers has a single block, this rank's, its arrays
 * are NULL. */
typedef struct hk_counts {
  const size_t *in, *in_at, *out, *out_at;
} hk_counts;
hk_status hk_coll_call_uneven(hk_coll coll, const void *in, void *out, const hk_counts *counts, ncclDataType_t type,
                              int op, ncclComm_t c, cudaStream_t stream);
/* failure.c: `by` 1: the calls begin to use their communicators; -1: they have ended. */
void hk_calls_mark_inside(const hk_call *calls, size_t n, int by);
/* The calls were not begun, because of `rc`. If the cause is on this rank (memory, the system, CUDA, an error of the
 * library), their communicators end, because their other ranks would wait. A wrong argument is for the caller to
 * correct and changes nothing. */
void hk_calls_fail(const hk_call *calls, size_t n, hk_status rc);
/* Equal calls have equal signatures on all ranks; never 0. */
uint32_t hk_call_signature(const hk_call *call);
/* The signature in the messages of a call that is operation number `sequence`. */
static inline uint32_t hk_signature_at(uint32_t signature, uint64_t sequence) {
  return signature + (uint32_t)sequence * 0x9e3779b1u;
}
/* Counts copies of the call: `by` 1 for a new copy, -1 for one that ends. */
static inline void hk_call_hold(const hk_call *call, int by) {
  if (call->blocks && atomic_fetch_add(&call->blocks->refs, by) + by == 0) free(call->blocks);
}
/* What the call counts as (base/meter.h): its collective, or HK_COLL_COUNT and, from 1 on, its direction. */
static inline unsigned hk_call_counts_as(const hk_call *c) {
  return c->coll == HK_SENDRECV ? HK_COLL_COUNT + c->p2p - 1u : c->coll;
}
/* Bytes of the message, as nccl-tests gives them: of the larger of a rank's buffers. If each pair of ranks has its own
 * count: of what this rank sends. */
static inline uint64_t hk_call_message(const hk_call *c, int nranks) {
  const uint64_t bytes = c->count * hk_dtype_size((hk_dtype)c->dtype);
  if (c->coll == HK_SENDRECV) return c->p2p == HK_P2P_WAIT ? 0 : bytes;
  if (c->blocks) return c->count ? bytes : c->blocks->in_end;
  return hk_coll_partition((hk_coll)c->coll) == HK_PART_WHOLE ? bytes * (uint64_t)nranks : bytes;
}
/* Its links carry quantised values (program/quantised.h). */
static inline bool hk_call_quantised(const hk_call *c) { return (c->redop & HK_REDOP_QUANTISED) != 0; }
static inline hk_redop hk_call_op(const hk_call *c) { return (hk_redop)(c->redop & ~HK_REDOP_FLAGS); }

/* ---- calls whose input and output share memory ---- */
/* Bytes of the call's input, up to the end of the last block, on a rank that has both buffers. */
static inline size_t hk_call_in_bytes(const hk_call *call) {
  if (call->blocks) return call->blocks->in_end;
  return call->count * hk_dtype_size((hk_dtype)call->dtype) *
         (size_t)hk_coll_in_blocks((hk_coll)call->coll, call->comm->nranks);
}
/* The same of its output. */
static inline size_t hk_call_out_bytes(const hk_call *call) {
  if (call->blocks) return call->blocks->out_end;
  return call->count * hk_dtype_size((hk_dtype)call->dtype) *
         (size_t)hk_coll_out_blocks((hk_coll)call->coll, call->comm->nranks);
}
/* True for an exchange in place: the backend copies the input, and the program reads the copy. Each rank decides this
 * alone. */
static inline bool hk_call_copies_input(const hk_call *call) {
  return call->in == call->out && hk_coll_exchanges((hk_coll)call->coll) && call->comm->nranks > 1;
}
/* True for most valid calls, at the cost of a few instructions where `coll`, the call's, is a constant: the buffers are
 * as far apart as the longer one can be, or both are one block and in place. False: hk_call_check_overlap decides. */
static inline bool hk_call_apart(hk_coll coll, const hk_call *call) {
  const uintptr_t from = (uintptr_t)call->in, to = (uintptr_t)call->out;
  const bool one = hk_coll_in_blocks(coll, 2) == 1 && hk_coll_out_blocks(coll, 2) == 1;
  const size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype) * (one ? 1 : (size_t)call->comm->nranks);
  return !call->blocks && ((one && from == to) || (from < to ? to - from : from - to) >= bytes);
}
/* With HOCKET_PROGRAMS_BY_PLACE: the call's place becomes one of its options. Ranks of a rooted collective without both
 * buffers do not know it, so it has none. */
void hk_call_note_inplace(hk_call *call);
/* HK_ERR_ARGUMENT if the buffers overlap other than "in place" as nccl.h and hocket.h define it. */
hk_status hk_call_check_overlap(const hk_call *call, const char *who);
