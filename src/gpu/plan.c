/* SPDX-License-Identifier: Apache-2.0 */
/* Plans in device memory. */
#include "plan.h"
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../kernels/gpu_small.h"
#include "../kernels/plan.h"
#include "../program/program.h"
#include "gpu.h"
#include "memory.h"
#include "multicast.h"

static hk_status plan_check_program(const hk_plan *plan) {
  if (plan->max_operands > HK_GPU_OPERANDS)
    return HK_FAIL(HK_ERR_USAGE,
                   "%s has an instruction with %u operands, GPUs take %d: choose another algorithm for so many ranks "
                   "(NCCL_ALGO=^%s)",
                   plan->program->algorithm, plan->max_operands, HK_GPU_OPERANDS, plan->program->algorithm);
  return HK_OK;
}

hk_status hk_gpu_bind(ncclComm_t c, hk_plan *plan, unsigned span, const struct hk_call *call) {
  (void)call;
  HK_OR_RETURN(plan_check_program(plan));
  hk_gpu_plan *gp = calloc(1, sizeof *gp);
  if (!gp) return HK_FAIL_ERRNO("no memory for a plan");
  gp->span = span;
  gp->partition = plan->program->traits.parts ? HK_PART_SPLIT : (hk_partition)plan->program->partition;
  plan->device = gp;
  for (unsigned k = 0; k < plan->orders; k++) {
    const hk_program *p = hk_gpu_plan_program(plan, k);
    gp->in_switch = gp->in_switch || hk_gpu_uses_switch(p);
    if (p->nlanes > gp->lanes) gp->lanes = p->nlanes;
    if (p->nlinks > gp->nlinks) gp->nlinks = p->nlinks;
    if (p->scratch_blocks > gp->scratch_blocks) gp->scratch_blocks = p->scratch_blocks;
    if (p->bytes > gp->program_bytes) gp->program_bytes = hk_round_up(p->bytes, 64);
  }
  return hk_gpu_plan_links(c, plan, 0, NULL);
}

/* Copies `image` to memory of the device. */
static hk_status plan_put_there(ncclComm_t c, const void *image, size_t bytes, void **at) {
  hk_gpu *g = hk_gpu_of(c);
  HK_OR_RETURN(hk_gpu_arena_get(g->memory, bytes, at));
  return hk_device_copy(g->device, *at, image, bytes, g->queue);
}

/* True if some link over the network has memory for small messages only. */
static bool plan_may_grow(const hk_gpu_link *links, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (links[i].small && !links[i].data) return true;
  return false;
}

/* For the first messages of `bytes` that do not fit the links: makes a larger copy of the links, because earlier
 * launches still read the old ones. */
static hk_status plan_grow(ncclComm_t c, const hk_plan *plan, uint64_t bytes) {
  hk_status rc = HK_OK;
  hk_gpu_plan *gp = plan->device;
  const size_t n = (size_t)plan->channels * gp->nlinks;
  void *at;
  hk_gpu_link *links = calloc(n, sizeof *links);
  if (!links) return HK_FAIL_ERRNO("no memory for a plan");
  HK_TRY(hk_gpu_plan_links(c, plan, bytes, links), out);
  HK_TRY(plan_put_there(c, links, n * sizeof *links, &at), out);
  gp->links = at;
  gp->grown = true;
out:
  free(links);
  return rc;
}

/* Copies the plan and its links to the device. Getting the links may wait for other processes. */
static hk_status plan_upload(ncclComm_t c, const hk_plan *plan, uint64_t message) {
  hk_status rc = HK_OK;
  hk_gpu_plan *gp = plan->device;
  void *at;
  size_t links_at = plan->orders * gp->program_bytes,
         bytes = links_at + (size_t)plan->channels * gp->nlinks * sizeof(hk_gpu_link);
  char *image = calloc(1, bytes);
  if (!image) return HK_FAIL_ERRNO("no memory for a plan");
  for (unsigned k = 0; k < plan->orders; k++)
    memcpy(image + k * gp->program_bytes, hk_gpu_plan_program(plan, k), hk_gpu_plan_program(plan, k)->bytes);
  hk_gpu_link *links = (hk_gpu_link *)(void *)(image + links_at);
  HK_TRY(hk_gpu_plan_links(c, plan, message, links), out);
  for (size_t k = 0; k < (size_t)plan->channels * gp->nlinks; k++) gp->many = gp->many || links[k].others;
  HK_TRY(plan_put_there(c, image, bytes, &at), out);
  gp->image = at;
  gp->links = (hk_gpu_link *)(void *)(gp->image + links_at);
  gp->grown = !plan_may_grow(links, (size_t)plan->channels * gp->nlinks);
  if (c->settings->GPU_SMALL) rc = hk_gpu_small_bind(plan, gp->nlinks, links, gp->links, &gp->small);
out:
  free(image);
  return rc;
}

/* Its memory is the communicator's: arena.c. */
void hk_gpu_plan_free(ncclComm_t c, hk_plan *plan) {
  hk_gpu_plan *gp = plan->device;
  (void)c;
  if (gp) free(gp->small);
  free(gp);
}

hk_status hk_gpu_plan_upload(ncclComm_t c, const hk_plan *plan, uint64_t message) {
  const hk_gpu_plan *gp = plan->device;
  if (!gp->image) HK_OR_RETURN(plan_upload(c, plan, message));
  return !gp->grown && message > HK_LINK_SMALL ? plan_grow(c, plan, message) : HK_OK;
}
