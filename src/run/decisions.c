/* SPDX-License-Identifier: Apache-2.0 */
/* The decision of a call (selection.h), in three steps: algorithm, protocol and channels, from the machine and the
 * filter of the call; the plan; then how the plan's data travels, and what runs it. */
#include <string.h>
#include "../base/log.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../decide/filter.h"
#include "../decide/machine.h"
#include "../decide/select.h"
#include "collnet.h"
#include "selection.h"
#include "tuner.h"

/* If each pair of ranks has its own count, no rank knows all counts. All ranks then choose as for blocks of this
 * size. */
enum { PAIR_BYTES = 1 << 20 };

static size_t decisions_uneven_count(const hk_call *op) {
  size_t unit = hk_dtype_size((hk_dtype)op->dtype), longest = op->blocks->longest / unit, count = 1;
  if (hk_coll_pairs((hk_coll)op->coll)) return PAIR_BYTES / unit;
  while (count < longest) count *= 2;
  return count;
}

size_t hk_selection_count(const hk_call *op) { return op->blocks ? decisions_uneven_count(op) : op->count; }

/* Of the larger of a rank's buffers. */
static size_t decisions_bytes(ncclComm_t c, const hk_call *op) {
  size_t bytes = hk_selection_count(op) * hk_dtype_size((hk_dtype)op->dtype);
  bool parts = hk_coll_partition((hk_coll)op->coll) == HK_PART_WHOLE;
  return parts ? bytes * (size_t)c->nranks : bytes;
}

/* The filter from the communicator's and the call's options. */
static hk_filter decisions_filter(ncclComm_t c, const hk_call *op) {
  hk_filter filter = *c->selection->filter;
  const hk_call_options *o = &op->options;
  _Static_assert(sizeof filter.only == sizeof o->only, "one bit set for each protocol");
  memcpy(filter.only, o->only, sizeof filter.only);
  filter.inplace = (hk_inplace)o->inplace;
  if (o->min_ctas) filter.min_channels = o->min_ctas;
  filter.max_channels = hk_filter_stricter(filter.max_channels, o->max_ctas);
  if (filter.max_channels && filter.min_channels > filter.max_channels) filter.min_channels = filter.max_channels;
  filter.efficient = ((o->policy ? o->policy - 1 : c->options.policy) & NCCL_CTA_POLICY_EFFICIENCY) != 0;
  filter.batch_invariant = (op->redop & HK_REDOP_INVARIANT) != 0;
  return filter;
}

/* What the switches and the network can do for this call: they know fewer types and operators than cores do. */
static void decisions_helpers(ncclComm_t c, const hk_call *op, bool *in_switch, bool *in_network) {
  const hk_team *team = &c->selection->machine->team;
  *in_switch = team->in_switch && (!hk_coll_reduces((hk_coll)op->coll) || c->backend->switch_reduces(op));
  *in_network = team->in_network && hk_collnet_can(c, op->coll, op->dtype, hk_call_op(op));
}

/* The communicator's machine with what this call can use of it. */
static hk_machine decisions_machine_for(ncclComm_t c, const hk_call *op) {
  hk_machine m = *c->selection->machine;
  decisions_helpers(c, op, &m.team.in_switch, &m.team.in_network);
  /* With LL protocols, two ranks that disagree about a length could wait for lines that the other rank sends in another
   * form. */
  if (hk_coll_pairs((hk_coll)op->coll)) m.protocols = 1u << HK_PROTO_SIMPLE;
  if (hk_call_quantised(op)) hk_machine_quantise(&m, hk_dtype_size((hk_dtype)op->dtype));
  return m;
}

hk_status hk_selection_check(ncclComm_t c, const hk_call *op, const char *who) {
  hk_machine m = decisions_machine_for(c, op);
  hk_filter filter = decisions_filter(c, op);
  hk_decision d;
  HK_OR_RETURN(hk_select(&m, &filter, (hk_coll)op->coll, decisions_bytes(c, op), &d));
  if (!d.unmet) return HK_OK;
  return HK_FAIL(
      HK_ERR_ARGUMENT,
      "%s: none of the algorithms and protocols that algSelection names can run %s here: `hocket plan` shows "
      "those that can, and forceAlgSelection = 0 makes it a preference",
      who, hk_coll_name((hk_coll)op->coll));
}

/* Asks the model, a tuning file and a plugin for the decision. */
static hk_status decisions_ask(ncclComm_t c, const hk_call *op, size_t bytes, hk_decision *d) {
  const hk_machine m = decisions_machine_for(c, op);
  const hk_filter filter = decisions_filter(c, op);
  return hk_tuner_select(c->selection->tuner, &m, &filter, (hk_coll)op->coll, bytes, d);
}

hk_status hk_selection_price(ncclComm_t c, const hk_call *op, double *us) {
  hk_decision d;
  HK_OR_RETURN(decisions_ask(c, op, decisions_bytes(c, op), &d));
  *us = d.us;
  return HK_OK;
}

/* Once for each collective, by one rank. */
static void decisions_warn_overruled(ncclComm_t c, hk_coll coll, const hk_decision *d) {
  if (c->rank == 0 && !(c->selection->overruled >> coll & 1u))
    HK_WARN("%s: NCCL_ALGO allows only algorithms that are not batch-invariant, and HOCKET_BATCH_INVARIANT or "
            "hocketCommSetBatchInvariant is set: %s is used. Allow one that is (hocket verify --all shows which), or "
            "unset one of the two",
            hk_coll_name(coll), hk_decision_algorithm(d));
  c->selection->overruled |= 1u << coll;
}

/* The first step: takes the decision that is kept for the call's class, or makes it and keeps it. */
static hk_status decisions_choose(ncclComm_t c, const hk_call *op, hk_decision *d) {
  const hk_selection *s = c->selection;
  const struct hk_algorithm *const *all = hk_filter_algorithms(s->filter);
  const size_t bytes = decisions_bytes(c, op);
  hk_class_decision *kept = NULL;
  int kind = 0;
  if (!op->asks && !s->tuner && !s->filter->rules) {
    bool in_switch, in_network;
    decisions_helpers(c, op, &in_switch, &in_network);
    const int unit = hk_call_quantised(op) ? (int)hk_dtype_size((hk_dtype)op->dtype) : 0;
    kind = 1 + in_switch + 2 * in_network + 4 * ((op->redop & HK_REDOP_INVARIANT) != 0) + 8 * unit;
    kept = &s->classes[op->coll * HK_SIZE_CLASSES + hk_size_class(bytes)];
    if (kept->known == kind) {
      *d = (hk_decision){
          .algorithm = all[kept->algorithm], .protocol = (hk_protocol)kept->protocol, .channels = kept->channels};
      return HK_OK;
    }
  }
  HK_OR_RETURN(decisions_ask(c, op, bytes, d));
  if (d->overruled) decisions_warn_overruled(c, (hk_coll)op->coll, d);
  if (d->note) HK_INFO(HK_SUB_TUNING, "%s of %zu bytes: %s", hk_coll_name((hk_coll)op->coll), bytes, d->note);
  if (!kept || d->note) return HK_OK; /* a note is said for each size */
  *kept =
      (hk_class_decision){.known = (uint8_t)kind, .protocol = (uint8_t)d->protocol, .channels = (uint16_t)d->channels};
  while (all[kept->algorithm] != d->algorithm) kept->algorithm++;
  return HK_OK;
}

/* The third step. */
static hk_status decisions_execution(ncclComm_t c, const hk_call *op, const struct hk_plan *plan, hk_decision *d) {
  const hk_coll coll = (hk_coll)op->coll;
  const size_t whole = decisions_bytes(c, op);
  const hk_request request = {
      .coll = coll, .bytes = whole, .unit = hk_dtype_size((hk_dtype)op->dtype), .uneven = op->blocks};
  const hk_machine m = decisions_machine_for(c, op);
  unsigned channels;
  const struct hk_program *p = hk_plan_program(plan, &channels);
  hk_machine as = hk_machine_as(&m, d->protocol, (int)channels); /* as a call by the plan sees it */
  as.slot_bytes = c->backend->slot_bytes(c, p, as.slot_bytes);
  HK_OR_RETURN(hk_decide_execution(&as, &request, d));
  if (c->selection->tuner) d->chunk = hk_tuner_chunk(c->selection->tuner, coll, whole, d, (int)channels, d->chunk);
  return HK_OK;
}

hk_status hk_selection_decide(ncclComm_t c, const hk_call *op, hk_decision *d, struct hk_plan **plan) {
  HK_OR_RETURN(decisions_choose(c, op, d));
  HK_OR_RETURN(hk_plan_get(c, d->algorithm, d->channels, op, plan));
  return decisions_execution(c, op, *plan, d);
}
