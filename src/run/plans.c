/* SPDX-License-Identifier: Apache-2.0 */
/* Makes plans: programs bound to links (plans.h). */
#include "plans.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../collectives/algorithm.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../decide/payload.h"
#include "../program/builder.h"
#include "../program/layout.h"
#include "selection.h"

/* Number of copies of the lanes for the decision's channels. On a GPU a lane is a block of threads, and each link has a
 * channel. */
static unsigned plans_channels_of(ncclComm_t c, int channels, const hk_call *op, const hk_program *p) {
  unsigned wanted = (unsigned)channels, most = c->backend->most_channels(c, p, p->traits.span);
  unsigned nvls = op->options.nvls_ctas ? op->options.nvls_ctas : (unsigned)c->options.nvls_ctas;
  if (nvls && p->traits.in_switch) wanted = nvls;
  if (most < 1) most = 1; /* bind reports the error */
  return wanted < most ? wanted : most;
}

void hk_plan_free(ncclComm_t c, hk_plan *plan) {
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
static hk_status plans_add_orders(ncclComm_t c, hk_plan *plan, const hk_algorithm *a, hk_build what) {
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

static hk_status plans_make(ncclComm_t c, const hk_algorithm *a, int channels, const hk_call *op, int root,
                            hk_plan **out) {
  hk_status rc = HK_OK;
  hk_coll coll = (hk_coll)op->coll;
  hk_build what = {.coll = coll, .rank = c->rank, .nranks = c->nranks, .root = root, .layout = c->selection->layout};
  hk_program *program = NULL;
  hk_plan *plan = NULL;
  plan = calloc(1, sizeof *plan);
  if (!plan) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a plan"), undo);
  HK_TRY(hk_algorithm_build(a, &what, &program), undo);
  plan->program = program;
  plan->channels = plans_channels_of(c, channels, op, program);
  const bool places = program->traits.places && hk_payload_may_place(c->selection->machine);
  plan->max_operands = program->traits.max_operands + (places ? HK_PLACES_READERS : 0);
  plan->orders = 1;
  plan->sums = program->traits.in_groups;
  HK_TRY(plans_add_orders(c, plan, a, what), undo);
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
  hk_plan_free(c, plan);
  return rc;
}

const hk_program *hk_plan_program(const hk_plan *plan, unsigned *channels) {
  *channels = plan->channels;
  return plan->program;
}

hk_status hk_plan_get(ncclComm_t c, const hk_algorithm *a, int channels, const hk_call *op, hk_plan **out) {
  const int root = hk_coll_has_root((hk_coll)op->coll) ? op->root : 0; /* else `root` may be a hash of counts */
  for (hk_plan *p = c->plans->all; p; p = p->next) {
    if (p->program->coll == op->coll && p->program->root == root && !strcmp(p->program->algorithm, a->name) &&
        p->channels == plans_channels_of(c, channels, op, p->program)) {
      *out = p;
      return HK_OK;
    }
  }
  return plans_make(c, a, channels, op, root, out);
}
