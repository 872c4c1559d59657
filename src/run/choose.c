/* SPDX-License-Identifier: Apache-2.0 */
/* The plan and the launch of a call: those of an earlier equal call, or new ones from its decision (decisions.c). */
#include <stdlib.h>
#include <string.h>
#include "../base/meter.h"
#include "../base/thread.h"
#include "../core/comm.h"
#include "../decide/select.h"
#include "../program/cursor.h"
#include "plans.h"
#include "run.h"
#include "selection.h"

static void choose_counter(ncclComm_t c, const hk_call *op, hk_launch *a) {
  a->message = hk_call_message(op, c->nranks);
  a->cell = hk_meter_at(c->order.meter, hk_call_counts_as(op), a->message);
}

static hk_status choose_decide(ncclComm_t c, const hk_call *op, hk_choice *choice) {
  hk_status rc = HK_OK;
  hk_cancel_hold(); /* links may be opened */
  hk_coll coll = (hk_coll)op->coll;
  hk_launch *a = &choice->launch;
  size_t unit = hk_dtype_size((hk_dtype)op->dtype), bytes = hk_selection_count(op) * unit;
  hk_decision d;
  HK_TRY(hk_selection_decide(c, op, &d, &choice->plan), out);
  *a = (hk_launch){.total = bytes, .unit = unit, .block_bytes = hk_block_bytes(choice->plan->program, bytes, unit)};
  a->quantised = hk_call_quantised(op);
  a->places = d.payload.mode == HK_PAYLOAD_PLACES && choice->plan->channels == 1;
  a->chunk = d.chunk;
  a->protocol = d.protocol;
  a->signature = hk_call_signature(op);
  a->by_cma = d.payload.by_cma;
  a->move_flags = d.payload.uncached ? HK_MOVE_UNCACHED : 0;
  if (hk_coll_reduces(coll))
    HK_TRY(hk_reducer_init(&a->reducer, (hk_dtype)op->dtype, hk_call_op(op), c->nranks, &op->scalar), out);
  choose_counter(c, op, a);
  a->brief = d.executor == HK_EXECUTOR_SMALL || (d.executor == HK_EXECUTOR_STEPS && hk_exec_has_steps(choice->plan, a));
  choice->count = hk_selection_count(op);
  choice->kind = op->kind;
  choice->asks = op->asks;
  choice->dtype = op->dtype;
  choice->redop = op->redop;
  choice->options = op->options;
  choice->valid = hk_call_op(op) != HK_PREMULSUM; /* the scalar may differ from call to call */
out:
  if (rc != HK_OK) choice->valid = false;
  return rc;
}

/* True if the choice for an earlier call also holds for this call. */
static bool choose_holds(const hk_choice *choice, const hk_call *op) {
  bool alike = choice->kind == op->kind;
  if (op->blocks) alike = choice->dtype == op->dtype && choice->redop == op->redop; /* `root` is a hash of the counts */
  return choice->valid && alike && choice->count == hk_selection_count(op) && choice->asks == op->asks &&
         !memcmp(&choice->options, &op->options, sizeof op->options);
}

static hk_choice *choose_kept_for(ncclComm_t c, const hk_call *op) {
  const uint64_t h = (hk_selection_count(op) * 0x9e3779b97f4a7c15u ^ op->kind) * 0xc2b2ae3d27d4eb4fu;
  return &c->plans->kept[h >> 32 & (HK_CHOICES_KEPT - 1)];
}

/* Takes the choice of an earlier call, or makes a new one. A tuner plugin is asked whenever the call changes. */
static hk_status choose_decide_once(ncclComm_t c, const hk_call *op, hk_choice *choice) {
  hk_choice *kept = choose_kept_for(c, op);
  if (!c->selection->tuner && kept->kind == op->kind && choose_holds(kept, op)) {
    *choice = *kept;
    return HK_OK;
  }
  HK_OR_RETURN(choose_decide(c, op, choice));
  if (choice->valid) *kept = *choice;
  return HK_OK;
}

/* For calls that differ from the last one, or ask for something more. */
static __attribute__((noinline)) hk_status choose(ncclComm_t c, const hk_call *op, hk_choice *choice,
                                                  const hk_plan **plan, const hk_launch **launch) {
  if (!choose_holds(choice, op)) HK_OR_RETURN(choose_decide_once(c, op, choice));
  if (op->blocks) { /* the call's own */
    choice->launch.signature = hk_call_signature(op);
    choice->launch.block_bytes = op->blocks->longest;
    choice->launch.table = op->blocks->table;
    /* Without all counts the decision does not know what this rank moves. How a rank stores, and what runs its part,
     * concern no other rank. */
    if (hk_coll_pairs((hk_coll)op->coll))
      choice->launch.move_flags = hk_exceeds_caches(op->blocks->out_end) ? HK_MOVE_UNCACHED : 0;
    if (choice->plan->steps) choice->launch.brief = hk_exec_has_steps(choice->plan, &choice->launch);
    choose_counter(c, op, &choice->launch);
  }
  *plan = choice->plan;
  *launch = &choice->launch;
  return HK_OK;
}

hk_status hk_choose(ncclComm_t c, const hk_call *op, const hk_plan **plan, const hk_launch **launch) {
  hk_choice *choice = &c->plans->last[op->coll];
  bool same = choice->kind == op->kind && choice->count == op->count && choice->valid;
  if (__builtin_expect(!same || op->blocks || op->asks || choice->asks, 0)) return choose(c, op, choice, plan, launch);
  *plan = choice->plan;
  *launch = &choice->launch;
  return HK_OK;
}

hk_status hk_choose_scratch(ncclComm_t c, size_t bytes, void **out) {
  if (c->plans->scratch_bytes < bytes) {
    free(c->plans->scratch);
    c->plans->scratch_bytes = 0;
    c->plans->scratch = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!c->plans->scratch) return HK_FAIL_ERRNO("no memory for %zu bytes of scratch", bytes);
    c->plans->scratch_bytes = bytes;
  }
  *out = c->plans->scratch;
  return HK_OK;
}

hk_status hk_plans_new(ncclComm_t c) {
  c->plans = calloc(1, sizeof *c->plans);
  return c->plans ? HK_OK : HK_FAIL_ERRNO("no memory for a communicator's plans");
}

void hk_choices_forget(ncclComm_t c) {
  for (int coll = 0; coll < HK_COLL_COUNT; coll++) c->plans->last[coll].valid = false;
  memset(c->plans->kept, 0, sizeof c->plans->kept);
}

void hk_plans_free(ncclComm_t c) {
  while (c->plans->all) {
    hk_plan *p = c->plans->all;
    c->plans->all = p->next;
    hk_plan_free(c, p);
  }
  free(c->plans->scratch);
}
