/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a communicator's decisions. */
#pragma once
#include "../core/call.h"
#include "../decide/machine.h"

struct hk_decision; /* decide/select.h */

/* A decision that holds for all plain calls of a collective and size class (hk_size_class). */
typedef struct hk_class_decision {
  uint8_t known; /* 1 + the kind of call (choose.c); 0: not yet decided */
  uint8_t algorithm, protocol;
  uint16_t channels;
} hk_class_decision;

/* Equal on all ranks, fixed at init. */
typedef struct hk_selection {
  hk_machine machine;
  struct hk_layout *layout;       /* NULL: one host */
  struct hk_overrides *overrides; /* decide/overrides.h */
  struct hk_tuner *tuner;         /* NULL: none */
  uint64_t sums;                  /* the reductions of the network, if machine.in_network: hk_collnet_sum bits */
  int network_calls;              /* HK_COLLNET_GATHERS, HK_COLLNET_SCATTERS */
  unsigned overruled;             /* bits 1u << hk_coll: the warning of hk_decision.overruled has been logged */
  hk_class_decision *classes;     /* HK_COLL_COUNT x HK_SIZE_CLASSES */
} hk_selection;

size_t hk_selection_uneven_count(const hk_call *op);
/* The elements of a block on which the choice is based; equal on all ranks. For an uneven collective: of the longest
 * block, rounded up to a power of two, so that calls with other counts often need no new choice. */
static inline size_t hk_selection_count(const hk_call *op) {
  return __builtin_expect(!op->blocks, 1) ? op->count : hk_selection_uneven_count(op);
}
size_t hk_selection_bytes(ncclComm_t c, const hk_call *op); /* of the larger of a rank's buffers */
hk_machine hk_selection_machine(ncclComm_t c, const hk_call *op);
/* The decision for a call of `bytes`. Plain calls get the one for another size of the class if there was one; its price
 * is then not known. Rules and plugins see each size. Warns if it is batch-invariant against NCCL_ALGO. */
hk_status hk_selection_decide(ncclComm_t c, const hk_call *op, size_t bytes, struct hk_decision *d);
