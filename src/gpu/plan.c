/* SPDX-License-Identifier: Apache-2.0 */
/* Plans in device memory, and the arguments of a kernel for a call. */
#include "plan.h"
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../core/call.h"
#include "../core/overlap.h"
#include "../kernels/gpu_small.h"
#include "../kernels/plan.h"
#include "../program/cursor.h"
#include "../run/choose.h"
#include "../transport/cuda/multicast.h"
#include "buffer.h"
#include "code.h"
#include "endpoints.h"
#include "gpu.h"
#include "memory.h"
#include "multicast.h"
#include "process_group.h"

static hk_status plan_check_program(const hk_plan *plan) {
  if (plan->max_operands > HK_GPU_OPERANDS)
    return HK_FAIL(HK_ERR_USAGE,
                   "%s has an instruction with %u operands, GPUs take %d: choose another algorithm for so many ranks "
                   "(NCCL_ALGO=^%s)",
                   plan->program->algorithm, plan->max_operands, HK_GPU_OPERANDS, plan->program->algorithm);
  return HK_OK;
}

/* The first of the program's links in a switch from other ranks, on its channel. */
static bool plan_first_receive(const hk_program *p, unsigned i) {
  const hk_link_need *needs = hk_program_links(p);
  for (unsigned k = 0; k < i; k++)
    if (needs[k].kind == HK_LINK_RECV && needs[k].channel == needs[i].channel && hk_program_link_in_switch(p, k))
      return false;
  return true;
}

static const hk_program *plan_program_of(const hk_plan *plan, unsigned order) {
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
      if (links) links[k] = hk_gpu_multicast_link(c, need, in_switch, plan_first_receive(p, k));
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

static hk_status plan_each_link(ncclComm_t c, const hk_plan *plan, uint64_t bytes, hk_gpu_link *links) {
  const hk_gpu_plan *gp = plan->device;
  for (unsigned k = 0; k < plan->channels; k++)
    HK_OR_RETURN(plan_links_of(c, plan_program_of(plan, k % plan->orders), k, k * gp->span, bytes,
                               links ? links + k * gp->nlinks : NULL));
  return HK_OK;
}

bool hk_gpu_uses_switch(const hk_program *p) { return p->traits.switch_span > 0; }
unsigned hk_gpu_most_channels(const struct ncclComm *c, const hk_program *p, unsigned span) {
  unsigned most = hk_gpu_of(c)->blocks / (p->nlanes > span ? p->nlanes : span);
  if (!hk_gpu_uses_switch(p)) return most;
  const unsigned in_switch = hk_gpu_of(c)->group->multicast->channels / p->traits.switch_span;
  return most < in_switch ? most : in_switch;
}

hk_status hk_gpu_bind(ncclComm_t c, hk_plan *plan, unsigned span, const hk_call *call) {
  (void)call;
  HK_OR_RETURN(plan_check_program(plan));
  hk_gpu_plan *gp = calloc(1, sizeof *gp);
  if (!gp) return HK_FAIL_ERRNO("no memory for a plan");
  gp->span = span;
  plan->device = gp;
  for (unsigned k = 0; k < plan->orders; k++) {
    const hk_program *p = plan_program_of(plan, k);
    gp->in_switch = gp->in_switch || hk_gpu_uses_switch(p);
    if (p->nlanes > gp->lanes) gp->lanes = p->nlanes;
    if (p->nlinks > gp->nlinks) gp->nlinks = p->nlinks;
    if (p->scratch_blocks > gp->scratch_blocks) gp->scratch_blocks = p->scratch_blocks;
    if (p->bytes > gp->program_bytes) gp->program_bytes = hk_round_up(p->bytes, 64);
  }
  return plan_each_link(c, plan, 0, NULL);
}

/* Copies `image` to memory of the device. */
static hk_status plan_put_there(ncclComm_t c, const void *image, size_t bytes, void **at) {
  hk_gpu *g = hk_gpu_of(c);
  HK_OR_RETURN(hk_gpu_arena_get(g->memory, bytes, at));
  HK_OR_RETURN(g->device->ops->copy(g->device, *at, image, bytes, g->queue));
  return g->device->ops->wait(g->device, g->queue);
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
  HK_TRY(plan_each_link(c, plan, bytes, links), out);
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
    memcpy(image + k * gp->program_bytes, plan_program_of(plan, k), plan_program_of(plan, k)->bytes);
  hk_gpu_link *links = (hk_gpu_link *)(void *)(image + links_at);
  HK_TRY(plan_each_link(c, plan, message, links), out);
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

/* A thread has four vectors under way at once (60 bytes with LL128); more threads would only wait for each other at
 * barriers. With LL it has one: a thread asks for the next vector's lines after it has received this one's. */
static unsigned plan_threads_for(const hk_gpu_code *k, size_t chunk, hk_protocol protocol) {
  size_t wanted = hk_round_up(chunk / (protocol == HK_PROTO_LL ? 16 : 60), 32);
  if (wanted < 96) wanted = 96;
  return wanted < k->threads ? (unsigned)wanted : k->threads;
}

hk_status hk_gpu_work_of(ncclComm_t c, const hk_call *call, hk_gpu_work *work, unsigned *blocks, unsigned *threads,
                         const hk_gpu_small **small) {
  const hk_plan *plan;
  const hk_launch *l;
  HK_OR_RETURN(hk_choose(c, call, &plan, &l));
  const hk_program *p = plan->program;
  const hk_gpu_plan *gp = plan->device;
  const hk_reducer *r = &l->reducer;
  char *scratch_at = NULL;
  const hk_sizes sizes = hk_sizes_for(p, l->total, l->block_bytes, l->chunk);
  const uint64_t message = sizes.longest < sizes.chunk ? sizes.longest : sizes.chunk;
  if (!gp->image) HK_OR_RETURN(plan_upload(c, plan, message));
  if (!gp->grown && message > HK_LINK_SMALL) HK_OR_RETURN(plan_grow(c, plan, message));
  *blocks = plan->channels * gp->lanes;
  *threads = plan_threads_for(hk_gpu_of(c)->code, l->chunk, (hk_protocol)l->protocol);
  const size_t scratch = gp->scratch_blocks * hk_scratch_stride(l->chunk);
  const size_t copied = hk_call_copies_input(call) ? hk_call_in_bytes(call) : 0;
  if (scratch || copied) HK_OR_RETURN(hk_gpu_scratch(hk_gpu_of(c)->memory, 0, scratch * *blocks + copied, &scratch_at));
  const int64_t *seen_in = NULL, *seen_out = NULL;
  if (l->protocol == HK_PROTO_SIMPLE && !gp->in_switch) /* a switch reduces only data in slots */
    HK_OR_RETURN(hk_gpu_buffers_of(c, call, &seen_in, &seen_out));
  if (copied) seen_in = NULL; /* other ranks see the user's memory, not the copy */
  *work = (hk_gpu_work){.program = gp->image,
                        .links = gp->links,
                        .in = copied ? scratch_at + scratch * *blocks : call->in,
                        .out = call->out,
                        .scratch = scratch_at,
                        .scratch_bytes = scratch,
                        .sizes = sizes,
                        .state = hk_gpu_of(c)->state.base,
                        .reducer = {.dtype = r->dtype,
                                    .op = r->op,
                                    .elem_bytes = r->elem_bytes,
                                    .pre = r->pre,
                                    .post = r->post,
                                    .reduces = (uint8_t)hk_coll_reduces((hk_coll)call->coll),
                                    .divisor = r->divisor,
                                    .scalar = r->scalar.bits},
                        .seen_in = seen_in,
                        .seen_out = seen_out,
                        .signature = l->signature,
                        .program_bytes = (uint32_t)gp->program_bytes,
                        .nlinks = gp->nlinks,
                        .channels = (uint16_t)plan->channels,
                        .orders = (uint16_t)plan->orders,
                        .lanes = (uint16_t)gp->lanes,
                        .proto = (uint8_t)l->protocol,
                        .many = gp->many};
  if (hk_call_op(call) == HK_PREMULSUM && call->scalar_on_device) {
    work->reducer.by_address = 1;
    work->reducer.scalar = call->scalar;
  }
  *small = l->brief && gp->small && hk_gpu_small_blocks(work) ? gp->small : NULL;
  return HK_OK;
}
