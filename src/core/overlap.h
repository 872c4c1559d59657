/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose input and output share memory. */
#pragma once
#include "call.h"
#include "comm.h"

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
/* True for an alltoall in place: each block that arrives overwrites one that is still to be sent. So the backend copies
 * the input, and the program reads the copy. Each rank decides this alone. */
static inline bool hk_call_copies_input(const hk_call *call) {
  return call->in == call->out && (call->coll == HK_ALLTOALL || call->coll == HK_ALLTOALLV) && call->comm->nranks > 1;
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
