/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the plan that runs a call: selection, plan cache, launch arguments. */
#include "choose.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/meter.h"
#include "../base/thread.h"
#include "../collectives/algorithm.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../decide/machine.h"
#include "../decide/select.h"
#include "../program/builder.h"
#include "../program/cursor.h"
#include "../program/layout.h"
#include "collnet.h"
#include "plans.h"
#include "selection.h"
#include "tuner.h"

/* Number of copies of the lanes for the decision's channels. On a GPU a lane is a block of threads, and each link has a
 * channel. */
static unsigned choose_channels_of(ncclComm_t c, const hk_decision *d, const hk_call *op, const hk_program *p) {
  unsigned wanted = (unsigned)d->channels, most = c->backend->most_channels(c, p, p->traits.span);
  unsigned nvls = op->options.nvls_ctas ? op->options.nvls_ctas : (unsigned)c->options.nvls_ctas;
  if (nvls && p->traits.in_switch) wanted = nvls;
  if (most < 1) most = 1; /* bind reports the error */
  return wanted < most ? wanted : most;
}

static void choose_plan_free(ncclComm_t c, hk_plan *plan) {
  if (!plan) return;
  if (c->backend->unbind) c->backend->unbind(c, plan);
  hk_program_free((hk_program *)(uintptr_t)plan->program);
  for (unsigned k = 0; plan->more && k + 1 < plan->orders; k++) hk_program_free(plan->more[k]);
  free(plan->more);
  free(plan->steps);
  free(plan->links);
  free(plan);
}

/* The programs of the channels with other ring orders, if those differ. */
static hk_status choose_add_orders(ncclComm_t c, hk_plan *plan, const hk_algorithm *a, hk_build what) {
  const hk_program *first = plan->program;
  unsigned orders = c->backend->ring_orders && what.layout ? (unsigned)what.layout->nchannels : 1, differ = 0;
  if (orders > plan->channels) orders = plan->channels;
  if (orders <= 1) return HK_OK;
  plan->more = calloc(orders - 1, sizeof(hk_program *));
  if (!plan->more) return HK_FAIL_ERRNO("no memory for a plan");
  plan->orders = orders;
  for (unsigned k = 1; k < orders; k++) {
    what.channel = (int)k;
    HK_OR_RETURN(hk_algorithm_build(a, &what, &plan->more[k - 1]));
    const hk_program *p = plan->more[k - 1];
    if (p->traits.span > first->traits.span)
      return HK_FAIL(HK_ERR_INTERNAL, "%s uses %u channels on ring order %u and %u on the first", a->name,
                     p->traits.span, k, first->traits.span);
    if (p->traits.max_operands > plan->max_operands) plan->max_operands = p->traits.max_operands;
    differ += p->bytes != first->bytes || memcmp(p, first, p->bytes) != 0;
  }
  if (!differ) {
    for (unsigned k = 1; k < orders; k++) hk_program_free(plan->more[k - 1]);
    plan->orders = 1;
  }
  return HK_OK;
}

static hk_status choose_plan_make(ncclComm_t c, const hk_decision *d, const hk_call *op, int root, hk_plan **out) {
  hk_status rc = HK_OK;
  hk_coll coll = (hk_coll)op->coll;
  hk_build what = {.coll = coll, .rank = c->rank, .nranks = c->nranks, .root = root, .layout = c->selection->layout};
  const hk_algorithm *a = d->algorithm;
  hk_program *program = NULL;
  hk_plan *plan = NULL;
  plan = calloc(1, sizeof *plan);
  if (!plan) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a plan"), undo);
  HK_TRY(hk_algorithm_build(a, &what, &program), undo);
  plan->program = program;
  plan->channels = choose_channels_of(c, d, op, program);
  const bool places = program->traits.places && hk_payload_may_place(c->selection->machine);
  plan->max_operands = program->traits.max_operands + (places ? HK_PLACES_READERS : 0);
  plan->orders = 1;
  plan->sums = program->traits.in_groups;
  HK_TRY(choose_add_orders(c, plan, a, what), undo);
  plan->links = calloc((size_t)plan->channels * program->nlinks + 1, sizeof *plan->links);
  if (!plan->links) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a plan"), undo);
  HK_TRY(c->backend->bind(c, plan, program->traits.span, op), undo);
  plan->next = c->plans->all;
  c->plans->all = plan;
  HK_INFO(HK_SUB_TUNING,
          "rank %d: %s by %s: %u lanes, %u links, %u instructions, %u channels; it moves %.2f bytes for one of the "
          "message, %.2f by reference",
          c->rank, hk_coll_name(coll), a->name, program->nlanes, program->nlinks, program->ninstrs, plan->channels,
          (double)program->traits.moves / program->blocks,
          (double)program->traits.moves_by_reference / program->blocks);
  *out = plan;
  return HK_OK;
undo:
  choose_plan_free(c, plan);
  return rc;
}

static hk_status choose_plan_get(ncclComm_t c, const hk_decision *d, const hk_call *op, int root, hk_plan **out) {
  for (hk_plan *p = c->plans->all; p; p = p->next) {
    if (p->program->coll == op->coll && p->program->root == root &&
        !strcmp(p->program->algorithm, d->algorithm->name) && p->channels == choose_channels_of(c, d, op, p->program)) {
      *out = p;
      return HK_OK;
    }
  }
  return choose_plan_make(c, d, op, root, out);
}

/* The machine as a call by this plan sees it. */
static hk_machine choose_machine_of(ncclComm_t c, const hk_call *op, const hk_decision *d, const hk_plan *plan) {
  hk_machine m = hk_selection_machine_for(c, op);
  if (plan->channels <= 1 && d->protocol == HK_PROTO_SIMPLE && !plan->program->traits.switch_span) return m;
  hk_machine as = hk_machine_as(&m, d->protocol, (int)plan->channels);
  as.slot_bytes = c->backend->slot_bytes(c, plan->program, hk_collnet_slot_bytes(c, plan->program, as.slot_bytes));
  return as;
}

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
  size_t whole = hk_selection_bytes(c, op);
  hk_decision d;
  HK_TRY(hk_selection_decide(c, op, whole, &d), out);
  if (d.note) HK_INFO(HK_SUB_TUNING, "%s of %zu bytes: %s", hk_coll_name(coll), whole, d.note);
  HK_TRY(choose_plan_get(c, &d, op, hk_coll_has_root(coll) ? op->root : 0, &choice->plan), out);
  const hk_program *p = choice->plan->program;
  *a = (hk_launch){.total = bytes, .unit = unit, .block_bytes = hk_block_bytes(p, bytes, unit)};
  hk_machine m = choose_machine_of(c, op, &d, choice->plan);
  const hk_request request = {.coll = coll, .bytes = whole, .unit = unit, .uneven = op->blocks};
  HK_TRY(hk_decide_execution(&m, &request, &d), out);
  a->quantised = hk_call_quantised(op);
  a->places = d.payload.mode == HK_PAYLOAD_PLACES && choice->plan->channels == 1;
  a->chunk = d.chunk;
  if (c->selection->tuner)
    a->chunk = hk_tuner_chunk(c->selection->tuner, coll, whole, &d, (int)choice->plan->channels, a->chunk);
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
    /* Without all counts the decision does not know what this rank moves. How a rank stores concerns no other rank. */
    if (hk_coll_pairs((hk_coll)op->coll))
      choice->launch.move_flags = hk_exceeds_caches(op->blocks->out_end) ? HK_MOVE_UNCACHED : 0;
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
    choose_plan_free(c, p);
  }
  free(c->plans->scratch);
}
