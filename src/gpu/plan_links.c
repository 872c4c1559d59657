/* SPDX-License-Identifier: Apache-2.0 */
/* The links of plans. */
#include "../kernels/plan.h"
#include "../program/program.h"
#include "endpoints.h"
#include "multicast.h"
#include "plan.h"

/* The first of the program's links in a switch from other ranks, on its channel. */
static bool plan_links_first_receive(const hk_program *p, unsigned i) {
  const hk_link_need *needs = hk_program_links(p);
  for (unsigned k = 0; k < i; k++)
    if (needs[k].kind == HK_LINK_RECV && needs[k].channel == needs[i].channel && hk_program_link_in_switch(p, k))
      return false;
  return true;
}

const hk_program *hk_gpu_plan_program(const hk_plan *plan, unsigned order) {
  return order ? plan->more[order - 1] : plan->program;
}

/* The links of copy number `copy` of the lanes, whose channels begin at `at`; in a switch they follow those of the copy
 * before. Offers them if `links` is NULL; else fills `links`, for messages of `bytes`. */
static hk_status plan_links_of(ncclComm_t c, const hk_program *p, unsigned copy, unsigned at, uint64_t bytes,
                               hk_gpu_link *links) {
  const hk_link_need *needs = hk_program_links(p);
  for (unsigned k = 0; k < p->nlinks; k++) {
    const hk_link_need *need = &needs[k];
    unsigned channel = need->channel + at;
    hk_gpu_endpoint *end;
    if (hk_program_link_in_switch(p, k)) {
      const unsigned in_switch = copy * p->traits.switch_span + need->channel;
      if (links) links[k] = hk_gpu_multicast_link(c, need, in_switch, plan_links_first_receive(p, k));
      continue;
    }
    if (need->kind != HK_LINK_SEND && need->kind != HK_LINK_RECV)
      return HK_FAIL(HK_ERR_INTERNAL, "%s asks for a link of kind %d, which GPUs have in a switch only", p->algorithm,
                     need->kind);
    bool sends = need->kind == HK_LINK_SEND;
    if (!links) {
      HK_OR_RETURN(hk_gpu_endpoint_offer(c, need->peer, sends, channel));
      continue;
    }
    HK_OR_RETURN(hk_gpu_endpoint_get(c, need->peer, sends, channel, &end));
    HK_OR_RETURN(hk_gpu_endpoint_grow(c, end, bytes));
    links[k] = end->link;
  }
  return HK_OK;
}

hk_status hk_gpu_plan_links(ncclComm_t c, const hk_plan *plan, uint64_t bytes, hk_gpu_link *links) {
  const hk_gpu_plan *gp = plan->device;
  for (unsigned k = 0; k < plan->channels; k++)
    HK_OR_RETURN(plan_links_of(c, hk_gpu_plan_program(plan, k % plan->orders), k, k * gp->span, bytes,
                               links ? links + k * gp->nlinks : NULL));
  return HK_OK;
}
