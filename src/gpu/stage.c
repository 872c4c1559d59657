/* SPDX-License-Identifier: Apache-2.0 */
/* How a call of a group runs: by which executor, and in which stage. */
#include "../core/call.h"
#include "launch.h"
#include "memory.h"
#include "process_group.h"
#include "run.h"

hk_status hk_gpu_stage_item(const hk_call *call, const hk_gpu_launch_item *before, hk_gpu_launch_item *p) {
  hk_gpu *g = hk_gpu_of(call->comm);
  *p = (hk_gpu_launch_item){.call = call, .gpu = g, .comm_id = g->group->comm_id};
  if (!before || before->call->stream != call->stream || before->gpu->code != g->code)
    return g->device->ops->stream->state(g->device, call->stream, &p->state);
  p->state = before->state;
  return HK_OK;
}

hk_status hk_gpu_stage_executor(hk_gpu_launch_item *p) {
  const bool transfer = p->call->coll == HK_SENDRECV;
  if (!transfer) HK_OR_RETURN(hk_gpu_copy_window(p->call, &p->window));
  p->by = transfer ? &hk_gpu_by_transfers : p->window ? &hk_gpu_by_copies : &hk_gpu_by_kernels;
  return HK_OK;
}

hk_status hk_gpu_stage_choose(hk_gpu_launch_item *p) {
  hk_gpu *g = p->gpu;
  hk_gpu_launch_item *last = g->stage->last;
  const size_t own = p->work.scratch_bytes * p->blocks;
  const size_t scratch = own + (hk_call_copies_input(p->call) ? hk_call_in_bytes(p->call) : 0);
  p->chained = last && p->by == &hk_gpu_by_kernels && last->by == p->by && last->work.program == p->work.program &&
               last->state.capture == p->state.capture && last->call->options.cluster == p->call->options.cluster &&
               (g->stage->length + 1) * (unsigned)g->sharers <= HK_GPU_BATCH;
  if (p->chained) {
    last->then = p;
    p->stage = last->stage;
    g->stage->length++;
    if (scratch) HK_OR_RETURN(hk_gpu_scratch(p->gpu->memory, g->stage->scratch, scratch, &p->work.scratch));
    if (scratch > own) p->work.in = p->work.scratch + own;
    g->stage->scratch += scratch;
  } else {
    p->stage = g->stage->stages++;
    g->stage->length = 1;
    g->stage->scratch = scratch;
  }
  g->stage->last = p;
  return HK_OK;
}
