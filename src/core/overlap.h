/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose input and output share memory. */
#ifndef HK_CORE_OVERLAP_H
#define HK_CORE_OVERLAP_H
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
  return (call->coll == HK_ALLTOALL || call->coll == HK_ALLTOALLV) && call->in == call->out && call->comm->nranks > 1;
}
/* HK_ERR_ARGUMENT if the buffers overlap other than "in place" as nccl.h and hocket.h define it. */
hk_status hk_call_check_overlap(const hk_call *call, const char *who);
#endif
