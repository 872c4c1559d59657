/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the API, checked, until it is complete. */
#ifndef HK_RUNTIME_CALL_H
#define HK_RUNTIME_CALL_H
#include <nccl.h>
#include <stdbool.h>
#include "../program/operation.h"
#include "../program/program.h"

typedef struct hk_call {
  ncclComm_t comm;
  const void *in;
  void *out;
  size_t count;         /* elements, as the call counts them */
  uint8_t coll;         /* hk_coll */
  uint8_t p2p;          /* hk_p2p, if coll is HK_SENDRECV */
  uint8_t dtype, redop; /* hk_redop, perhaps with HK_REDOP_INVARIANT */
  int root;             /* or the peer of a send or receive */
  uint64_t scalar;      /* one element, for HK_PREMULSUM; or its address */
  bool scalar_on_device;
  cudaStream_t stream;
  void *event, *group_event; /* of a profiler, for the call and for the group around it; NULL without one */
} hk_call;
/* Checks the arguments of a collective, then runs or queues it. `op` (an ncclRedOp_t, or one that the communicator
 * made) is used only by collectives that reduce, `root` only by those that have one. Each collective of the API calls
 * this function. */
hk_status hk_coll_call(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op, int root,
                       ncclComm_t c, cudaStream_t stream);
static inline hk_redop hk_call_op(const hk_call *c) { return (hk_redop)(c->redop & ~HK_REDOP_INVARIANT); }
#endif
