/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a kernel for a call. */
#include "../core/call.h"
#include "../kernels/gpu_small.h"
#include "../kernels/plan.h"
#include "../run/run.h"
#include "buffer.h"
#include "gpu.h"
#include "memory.h"
#include "plan.h"

hk_status hk_gpu_work_of(ncclComm_t c, const hk_call *call, hk_gpu_work *work, const hk_gpu_small **small) {
  const hk_plan *plan;
  const hk_launch *l;
  HK_OR_RETURN(hk_choose(c, call, &plan, &l));
  const hk_gpu_plan *gp = plan->device;
  const hk_reducer *r = &l->reducer;
  char *scratch_at = NULL;
  const hk_sizes sizes = hk_sizes_of((hk_partition)gp->partition, l->total, l->block_bytes, l->chunk);
  const uint64_t message = sizes.longest < sizes.chunk ? sizes.longest : sizes.chunk;
  if (!gp->image || (!gp->grown && message > HK_LINK_SMALL)) HK_OR_RETURN(hk_gpu_plan_upload(c, plan, message));
  const size_t blocks = (size_t)plan->channels * gp->lanes, scratch = gp->scratch_blocks * hk_scratch_stride(l->chunk);
  const size_t copied = hk_call_copies_input(call) ? hk_call_in_bytes(call) : 0;
  if (scratch || copied) HK_OR_RETURN(hk_gpu_scratch(hk_gpu_of(c)->memory, 0, scratch * blocks + copied, &scratch_at));
  const int64_t *seen_in = NULL, *seen_out = NULL;
  if (l->protocol == HK_PROTO_SIMPLE && !gp->in_switch) /* a switch reduces only data in slots */
    HK_OR_RETURN(hk_gpu_buffers_of(c, call, &seen_in, &seen_out));
  if (copied) seen_in = NULL; /* other ranks see the user's memory, not the copy */
  *work = (hk_gpu_work){.program = gp->image,
                        .links = gp->links,
                        .in = copied ? scratch_at + scratch * blocks : call->in,
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
