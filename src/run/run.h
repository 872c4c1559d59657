/* SPDX-License-Identifier: Apache-2.0 */
/* Runs checked calls on host memory to their end, on the calling thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../core/call.h"

struct hk_exec;   /* kernels/exec.h */
struct hk_launch; /* kernels/plan.h */
struct hk_plan;

hk_status hk_run_collective(const hk_call *call);
/* Runs the calls of a group, given in the order in which they were made, of any communicators. The collectives of one
 * communicator run in this order. Its sends and receives, and the other communicators, run at the same time. */
hk_status hk_run_group(const hk_call *calls, size_t n);
/* If a host has as many ranks as cores, or more, and no launcher has bound the ranks: moves the calling thread to this
 * rank's core in a round-robin distribution. The thread is not pinned there. The kernel rarely moves threads that yield
 * to each other: if three of four ranks woke up on one of two cores after the init, they would stay there. */
void hk_run_spread(ncclComm_t c);

/* ---- choose.c ---- */
/* Writes the plan and the launch arguments of a collective; both are valid until the next call of the same
 * collective. */
hk_status hk_choose(ncclComm_t c, const hk_call *op, const struct hk_plan **plan, const struct hk_launch **launch);
hk_status hk_choose_scratch(ncclComm_t c, size_t bytes, void **out);

/* ---- ended.c ---- */
/* An operation ended with `rc`. If the communicator has not failed, this rank is the first to see the cause (in a
 * message, a link or its own memory), and raises it. Then returns the settled failure, as hk_failure_resolve does. `x`
 * is NULL for a send or receive. `peer` is the rank that is involved; -1: x has it. */
hk_status hk_run_ended(ncclComm_t c, const hk_call *call, const struct hk_exec *x, int peer, hk_status rc);
/* Returns the status of a call that could not begin. A wrong argument is found by all ranks or concerns only this one,
 * and changes nothing. If this rank lacks a resource, the other ranks would wait, so the communicator fails. */
hk_status hk_run_not_begun(ncclComm_t c, const hk_call *call, hk_status rc);

/* ---- one_sided.c: puts, and waits for signals ---- */
hk_status hk_run_one_sided(const hk_call *call);
/* Those of a communicator in a group. */
typedef struct hk_one_sided {
  const hk_call **puts, **waits;
  size_t nputs, nwaits;
} hk_one_sided;
/* Puts do not depend on calls of other ranks, so they run first, in order. *peer: the rank of a put that fails. */
hk_status hk_one_sided_step(ncclComm_t c, hk_one_sided *o, bool *moved, int *peer);

/* Runs one call: the fast path. */
static inline hk_status hk_run_one(const hk_call *call) {
  if (call->coll != HK_SENDRECV) return hk_run_collective(call);
  return hk_call_is_rma(call) ? hk_run_one_sided(call) : hk_run_group(call, 1);
}
