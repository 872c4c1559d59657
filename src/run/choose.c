/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the plan that runs a call: selection, plan cache, launch arguments. */
#include "choose.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/meter.h"
#include "../base/param.h"
#include "../base/thread.h"
#include "../comm/rings.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../decide/outlines.h"
#include "../decide/overrides.h"
#include "../decide/programs.h"
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
  const bool places = program->traits.places && hk_payload_may_place(&c->selection->machine);
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

static hk_status choose_chunk_of(ncclComm_t c, const hk_machine *m, const hk_decision *d, const hk_plan *plan,
                                 size_t block, size_t *out) {
  const hk_coll coll = (hk_coll)plan->program->coll;
  const hk_protocol protocol = d->protocol;
  if (plan->channels <= 1 && protocol == HK_PROTO_SIMPLE && !plan->program->traits.switch_span)
    return hk_choose_chunk(m, d->algorithm, coll, block, out);
  hk_machine as = hk_machine_as(m, protocol, (int)plan->channels);
  as.slot_bytes = c->backend->slot_bytes(c, plan->program, hk_collnet_slot_bytes(c, plan->program, as.slot_bytes));
  return hk_choose_chunk(&as, d->algorithm, coll, block, out);
}

/* If each pair of ranks has its own count, no rank knows all counts. All ranks then choose as for blocks of this
 * size. */
enum { PAIR_BYTES = 1 << 20 };

/* The elements of a block on which the choice is based; equal on all ranks. For an uneven collective: of the longest
 * block, rounded up to a power of two, so that calls with other counts often need no new choice. */
static size_t choose_choice_count(const hk_call *op) {
  if (__builtin_expect(!op->blocks, 1)) return op->count;
  size_t unit = hk_dtype_size((hk_dtype)op->dtype), longest = op->blocks->longest / unit, count = 1;
  if (hk_coll_pairs((hk_coll)op->coll)) return PAIR_BYTES / unit;
  while (count < longest) count *= 2;
  return count;
}

/* Bytes of the larger of a rank's buffers. */
static size_t choose_whole_bytes(ncclComm_t c, const hk_call *op) {
  size_t bytes = choose_choice_count(op) * hk_dtype_size((hk_dtype)op->dtype);
  bool parts = hk_coll_partition((hk_coll)op->coll) == HK_PART_WHOLE;
  return parts ? bytes * (size_t)c->nranks : bytes;
}

static int choose_smaller(int a, int b) { return !a ? b : !b ? a : a < b ? a : b; }

/* The filter from the communicator's and the call's options. */
static hk_filter choose_filter_of(ncclComm_t c, const hk_call *op) {
  hk_filter filter = c->selection->overrides->filter;
  const hk_call_options *o = &op->options;
  _Static_assert(sizeof filter.only == sizeof o->only, "one bit set for each protocol");
  memcpy(filter.only, o->only, sizeof filter.only);
  filter.inplace = (hk_inplace)o->inplace;
  if (o->min_ctas) filter.min_channels = o->min_ctas;
  filter.max_channels = choose_smaller(filter.max_channels, o->max_ctas);
  if (filter.max_channels && filter.min_channels > filter.max_channels) filter.min_channels = filter.max_channels;
  filter.efficient = ((o->policy ? o->policy - 1 : c->options.policy) & NCCL_CTA_POLICY_EFFICIENCY) != 0;
  filter.batch_invariant = (op->redop & HK_REDOP_INVARIANT) != 0;
  return filter;
}

/* What the switches and the network can do for this call: they know fewer types and operators than cores do. */
static void choose_helpers(ncclComm_t c, const hk_call *op, bool *in_switch, bool *in_network) {
  const hk_team *team = &c->selection->machine.team;
  *in_switch = team->in_switch && (!hk_coll_reduces((hk_coll)op->coll) || c->backend->switch_reduces(op));
  *in_network = team->in_network && hk_collnet_can(c, op->coll, op->dtype, hk_call_op(op));
}

static hk_machine choose_machine_for(ncclComm_t c, const hk_call *op) {
  hk_machine m = c->selection->machine;
  choose_helpers(c, op, &m.team.in_switch, &m.team.in_network);
  /* With LL protocols, two ranks that disagree about a length could wait for lines that the other rank sends in another
   * form. */
  if (hk_coll_pairs((hk_coll)op->coll)) m.protocols = 1u << HK_PROTO_SIMPLE;
  if (hk_call_quantised(op)) hk_machine_quantise(&m, hk_dtype_size((hk_dtype)op->dtype));
  return m;
}

hk_status hk_choose_check(ncclComm_t c, const hk_call *op, const char *who) {
  hk_machine m = choose_machine_for(c, op);
  hk_filter filter = choose_filter_of(c, op);
  hk_decision d;
  const hk_algorithm *const *all = hk_filter_algorithms(&filter);
  for (int i = 0; all[i]; i++)
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      bool can;
      HK_OR_RETURN(
          hk_select_one(&m, &filter, (hk_coll)op->coll, choose_whole_bytes(c, op), all[i], (hk_protocol)p, &d, &can));
      if (can) return HK_OK;
    }
  return HK_FAIL(
      HK_ERR_ARGUMENT,
      "%s: none of the algorithms and protocols that algSelection names can run %s here: `hocket plan` shows "
      "those that can, and forceAlgSelection = 0 makes it a wish",
      who, hk_coll_name((hk_coll)op->coll));
}

enum { CLASSES = HK_COLL_COUNT * HK_SIZE_CLASSES };

/* Asks the model, a tuning file and a plugin for the decision. */
static hk_status choose_select_for(ncclComm_t c, const hk_call *op, size_t bytes, hk_decision *d) {
  const hk_coll coll = (hk_coll)op->coll;
  const hk_machine m = choose_machine_for(c, op);
  const hk_filter filter = choose_filter_of(c, op);
  hk_tuner *tuner = c->selection->tuner;
  HK_OR_RETURN(hk_select(&m, &filter, coll, bytes, d));
  return tuner && !d->ruled ? hk_tuner_ask(tuner, &m, &filter, coll, bytes, d) : HK_OK;
}

hk_status hk_choose_price(ncclComm_t c, const hk_call *op, double *us) {
  hk_decision d;
  HK_OR_RETURN(choose_select_for(c, op, choose_whole_bytes(c, op), &d));
  *us = d.us;
  return HK_OK;
}

/* The same, from the decision for another size of the class if there was one; its price is then not known. Rules and
 * plugins see each size. */
static hk_status choose_class(ncclComm_t c, const hk_call *op, size_t bytes, hk_decision *d) {
  const hk_selection *s = c->selection;
  bool in_switch, in_network;
  if (op->asks || s->tuner || s->overrides->rules) return choose_select_for(c, op, bytes, d);
  choose_helpers(c, op, &in_switch, &in_network);
  const int unit = hk_call_quantised(op) ? (int)hk_dtype_size((hk_dtype)op->dtype) : 0;
  const int kind = 1 + in_switch + 2 * in_network + 4 * ((op->redop & HK_REDOP_INVARIANT) != 0) + 8 * unit;
  const hk_algorithm *const *all = hk_filter_algorithms(&s->overrides->filter);
  hk_class_decision *kept = &s->classes[op->coll * HK_SIZE_CLASSES + hk_size_class(bytes)];
  if (kept->known == kind) {
    *d = (hk_decision){
        .algorithm = all[kept->algorithm], .protocol = (hk_protocol)kept->protocol, .channels = kept->channels};
    return HK_OK;
  }
  HK_OR_RETURN(choose_select_for(c, op, bytes, d));
  if (d->note) return HK_OK; /* said for each size */
  *kept =
      (hk_class_decision){.known = (uint8_t)kind, .protocol = (uint8_t)d->protocol, .channels = (uint16_t)d->channels};
  while (all[kept->algorithm] != d->algorithm) kept->algorithm++;
  return HK_OK;
}

/* Once for each collective, by one rank. */
static void choose_warn_overruled(ncclComm_t c, hk_coll coll, const hk_decision *d) {
  if (c->rank == 0 && !(c->selection->overruled >> coll & 1u))
    HK_WARN("%s: NCCL_ALGO allows only algorithms that are not batch-invariant, and HOCKET_BATCH_INVARIANT or "
            "hocketCommSetBatchInvariant is set: %s is used. Allow one that is (hocket verify --all shows which), or "
            "unset one of the two",
            hk_coll_name(coll), d->algorithm->name);
  c->selection->overruled |= 1u << coll;
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
  size_t unit = hk_dtype_size((hk_dtype)op->dtype), bytes = choose_choice_count(op) * unit;
  size_t whole = choose_whole_bytes(c, op);
  hk_decision d;
  HK_TRY(choose_class(c, op, whole, &d), out);
  if (d.note) HK_INFO(HK_SUB_TUNING, "%s of %zu bytes: %s", hk_coll_name(coll), whole, d.note);
  if (d.overruled) choose_warn_overruled(c, coll, &d);
  HK_TRY(choose_plan_get(c, &d, op, hk_coll_has_root(coll) ? op->root : 0, &choice->plan), out);
  const hk_program *p = choice->plan->program;
  *a = (hk_launch){.total = bytes, .unit = unit, .block_bytes = hk_block_bytes(p, bytes, unit)};
  hk_machine m = choose_machine_for(c, op);
  HK_TRY(hk_decide_payload(&m, coll, whole, op->blocks, &d), out);
  m.uncached = d.payload.uncached;
  a->quantised = hk_call_quantised(op);
  a->places = d.payload.mode == HK_PAYLOAD_PLACES && choice->plan->channels == 1;
  HK_TRY(choose_chunk_of(c, &m, &d, choice->plan, a->block_bytes, &a->chunk), out);
  if (c->selection->tuner)
    a->chunk = hk_tuner_chunk(c->selection->tuner, coll, whole, &d, (int)choice->plan->channels, a->chunk);
  a->protocol = d.protocol;
  a->signature = hk_call_signature(op);
  a->move_flags = d.payload.uncached ? HK_MOVE_UNCACHED : 0;
  if (hk_coll_reduces(coll))
    HK_TRY(hk_reducer_init(&a->reducer, (hk_dtype)op->dtype, hk_call_op(op), c->nranks, &op->scalar), out);
  choose_counter(c, op, a);
  a->brief = !op->blocks && hk_exec_brief(choice->plan, a);
  choice->count = choose_choice_count(op);
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
  return choice->valid && alike && choice->count == choose_choice_count(op) && choice->asks == op->asks &&
         !memcmp(&choice->options, &op->options, sizeof op->options);
}

static hk_choice *choose_kept_for(ncclComm_t c, const hk_call *op) {
  const uint64_t h = (choose_choice_count(op) * 0x9e3779b97f4a7c15u ^ op->kind) * 0xc2b2ae3d27d4eb4fu;
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

const hk_machine *hk_choose_machine(ncclComm_t c) { return &c->selection->machine; }

const hk_constants *hk_choose_constants(ncclComm_t c) { return &c->selection->overrides->constants; }

hk_status hk_choose_layout(ncclComm_t c, const uint64_t *hosts, const uint16_t *order, int nchannels) {
  return hk_layout_new(&c->selection->layout, c->nranks, hosts, NULL, order, nchannels);
}

void hk_choose_rings(ncclComm_t c, hk_ring_settings *out) {
  const hk_overrides *o = c->selection->overrides;
  *out = (hk_ring_settings){.paths = &o->paths,
                            .cross_nic = o->cross_nic,
                            .min_channels = o->filter.min_channels,
                            .max_channels = o->filter.max_channels,
                            .graph_file = o->graph_file,
                            .dump_file = o->graph_dump_file};
}

int hk_choose_most_channels(ncclComm_t c) { return c->selection->overrides->filter.max_channels; }

/* Forgets the choices of earlier calls. Their plans stay. */
static void choose_forget(ncclComm_t c) {
  for (int coll = 0; coll < HK_COLL_COUNT; coll++) c->plans->last[coll].valid = false;
  memset(c->plans->kept, 0, sizeof c->plans->kept);
  memset(c->selection->classes, 0, CLASSES * sizeof *c->selection->classes);
}

void hk_choose_only(ncclComm_t c, int coll, uint32_t algorithms) {
  c->selection->overrides->filter.barred[coll] = ~algorithms;
  choose_forget(c);
}

const hk_algorithm *const *hk_choose_algorithms(ncclComm_t c) {
  return hk_filter_algorithms(&c->selection->overrides->filter);
}

uint64_t hk_choose_programs(ncclComm_t c) {
  const hk_user_programs *p = c->selection->overrides->programs;
  return p ? p->hash : 0;
}

hk_status hk_choose_add_program(ncclComm_t c, const char *name, const char *text, uint8_t *way, uint64_t *hash) {
  hk_overrides *o = c->selection->overrides;
  if (!o->programs) HK_OR_RETURN(hk_user_programs_new(&o->programs));
  o->filter.algorithms = o->programs->all;
  const int before = o->programs->n;
  const uint64_t hash_before = o->programs->hash;
  HK_OR_RETURN(hk_user_programs_add(o->programs, name, text, (unsigned)c->settings->SLOTS, way));
  for (int i = before; i < o->programs->n; i++) {
    const int nranks = o->programs->own[i].loaded.nranks;
    if (nranks == c->nranks) continue;
    hk_user_programs_drop(o->programs, hash_before);
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: a program of %d ranks, and this communicator has %d", name, nranks, c->nranks);
  }
  *hash = o->programs->hash;
  choose_forget(c);
  return HK_OK;
}

void hk_choose_drop_program(ncclComm_t c, uint64_t hash_before) {
  hk_user_programs *p = c->selection->overrides->programs;
  /* Prices are kept by address, and the next program has the address of one that goes. */
  for (int i = 0; i < p->n; i++) hk_outlines_forget(c->selection->machine.outlines, &p->own[i].algorithm);
  hk_user_programs_drop(p, hash_before);
  choose_forget(c);
}

hk_status hk_choose_new(ncclComm_t c) {
  c->plans = calloc(1, sizeof *c->plans);
  c->selection = calloc(1, sizeof *c->selection + sizeof(hk_overrides) + CLASSES * sizeof(hk_class_decision));
  if (c->selection) {
    c->selection->overrides = (hk_overrides *)(c->selection + 1);
    c->selection->classes = (hk_class_decision *)(c->selection->overrides + 1);
  }
  return c->plans && c->selection ? HK_OK : HK_FAIL_ERRNO("no memory for a communicator's plans");
}

void hk_plans_free(ncclComm_t c) {
  while (c->plans->all) {
    hk_plan *p = c->plans->all;
    c->plans->all = p->next;
    choose_plan_free(c, p);
  }
  free(c->plans->scratch);
}

void hk_selection_free(ncclComm_t c) {
  hk_outlines_free(c->selection->machine.outlines);
  hk_layout_free(c->selection->layout);
  hk_overrides_clear(c->selection->overrides);
  hk_tuner_free(c->selection->tuner);
}
