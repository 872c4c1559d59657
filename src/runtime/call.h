/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the API, checked, until it is complete. */
#ifndef HK_RUNTIME_CALL_H
#define HK_RUNTIME_CALL_H
#include <nccl.h>
#include <stdbool.h>
#include "../program/operation.h"
#include "../program/program.h"

enum { HK_CALL_PROTOCOLS = 3, HK_CALL_CTAS = 64 };
/* What ncclCollConfig_t asks for in one call; all 0: nothing.  It is compared as bytes, so it has no gaps. */
typedef struct hk_call_options {
  uint32_t only[HK_CALL_PROTOCOLS]; /* hk_wish.only */
  uint8_t min_ctas, max_ctas, nvls_ctas;
  uint8_t cluster; /* plus 1 */
  uint8_t policy;  /* NCCL_CTA_POLICY_ bits, plus 1 */
  uint8_t unused[3];
} hk_call_options;
_Static_assert(sizeof(hk_call_options) == 4 * HK_CALL_PROTOCOLS + 8, "without gaps");

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
  uint32_t signal;         /* of a put or a wait for signals: context * rma_signals + index */
  uint64_t window, offset; /* of a put: the window's number (rma.h), bytes */
  cudaStream_t stream;
  hk_call_options options;
  void *launched;            /* an event of the user's, recorded when the kernel is launched; NULL: none */
  void *event, *group_event; /* of a profiler, for the call and for the group around it; NULL without one */
} hk_call;
/* Checks the arguments of a collective, then runs or queues it. `op` (an ncclRedOp_t, or one that the communicator
 * made) is used only by collectives that reduce, `root` only by those that have one. Each collective of the API calls
 * this function. */
hk_status hk_coll_call(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op, int root,
                       ncclComm_t c, cudaStream_t stream);
/* The same, as `o` says; `must`: HK_ERR_ARGUMENT if nothing of o->only can run. */
hk_status hk_coll_call_with(hk_coll coll, const void *in, void *out, size_t count, ncclDataType_t type, int op,
                            int root, ncclComm_t c, cudaStream_t stream, const hk_call_options *o, bool must,
                            void *launched);
static inline bool hk_call_is_rma(const hk_call *c) { return c->p2p == HK_P2P_PUT || c->p2p == HK_P2P_WAIT; }
static inline hk_redop hk_call_op(const hk_call *c) { return (hk_redop)(c->redop & ~HK_REDOP_INVARIANT); }
#endif
