/* SPDX-License-Identifier: Apache-2.0 */
/* The executor of collectives by kernels. */
#include <string.h>
#include "../core/call.h"
#include "../run/run.h"
#include "code.h"
#include "launch.h"
#include "memory.h"
#include "plan.h"

static hk_status kernels_offer(const hk_call *call) {
  const struct hk_plan *plan;
  const struct hk_launch *launch;
  return hk_choose(call->comm, call, &plan, &launch);
}

/* A thread has four vectors under way at once (60 bytes with LL128); more threads would only wait for each other at
 * barriers. With LL it has one: a thread asks for the next vector's lines after it has received this one's. */
static unsigned kernels_threads_for(const hk_gpu_code *k, size_t chunk, hk_protocol protocol) {
  size_t wanted = hk_round_up(chunk / (protocol == HK_PROTO_LL ? 16 : 60), 32);
  if (wanted < 96) wanted = 96;
  return wanted < k->threads ? (unsigned)wanted : k->threads;
}

/* Fills the kernel's arguments for a call; for an uneven collective they point to a table. */
static hk_status kernels_arguments(hk_gpu_launch_item *p) {
  const hk_call *call = p->call;
  ncclComm_t c = call->comm;
  HK_OR_RETURN(hk_gpu_work_of(c, call, &p->work, &p->small));
  p->blocks = (unsigned)p->work.channels * p->work.lanes;
  p->threads = kernels_threads_for(p->gpu->code, p->work.sizes.chunk, (hk_protocol)p->work.proto);
  if (!call->blocks) return HK_OK;
  size_t n =
      (size_t)(hk_coll_in_blocks((hk_coll)call->coll, c->nranks) + hk_coll_out_blocks((hk_coll)call->coll, c->nranks));
  HK_OR_RETURN(hk_gpu_table_get(p->gpu->memory, n * sizeof(hk_extent), &p->table));
  memcpy(p->table->memory.host, call->blocks->table, n * sizeof(hk_extent));
  p->work.sizes.table = (const hk_extent *)p->table->memory.base;
  return HK_OK;
}

/* Copies the inputs of calls in place that the kernel must read unchanged. */
static hk_status kernels_copy_inputs(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q) {
  hk_status rc = HK_OK;
  for (size_t i = 0; i < n && rc == HK_OK; i++)
    if (hk_call_copies_input(at[i]->call))
      rc = g->device->ops->copy(g->device, (void *)(uintptr_t)at[i]->work.in, at[i]->call->in,
                                hk_call_in_bytes(at[i]->call), q);
  return rc;
}

/* One launch of n items, each with the items that are chained to it. */
static hk_status kernels_launch_items(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q) {
  hk_gpu_batch batch; /* not initialised: unset parts are not passed to the kernel */
  hk_kernel_launch l = {.function = g->code->batch, .here = at[0]->state.here, .param = &batch};
  unsigned works = 0;
  bool small;
  HK_OR_RETURN(kernels_copy_inputs(g, at, n, q));
  hk_status rc = hk_gpu_small_launch(g, at, n, q, &small);
  if (small || rc != HK_OK) return rc;
  for (size_t i = 0; i < n; i++) {
    if (at[i]->chained) continue;
    batch.work[works] = at[i]->work;
    batch.end[works++] = l.blocks += at[i]->blocks;
    if (at[i]->threads > l.threads) l.threads = at[i]->threads;
  }
  batch.works = works;
  for (size_t i = 0, head = 0; i < n; i++) {
    if (at[i]->chained) continue;
    hk_gpu_work *before = &batch.work[head++];
    for (const hk_gpu_launch_item *p = at[i]->then; p; p = p->then) {
      before->next = works;
      before = &batch.work[works++];
      *before = p->work;
      if (p->threads > l.threads) l.threads = p->threads;
    }
  }
  l.param_bytes = offsetof(hk_gpu_batch, work) + works * sizeof(hk_gpu_work);
  return hk_gpu_launch(g, at[0]->call, &l, q);
}

static hk_status kernels_launch_batch(const hk_gpu_launch_batch *s, hk_gpu_launch_item *const *at, size_t n) {
  for (size_t i = 0; i < n; i++) HK_OR_RETURN(hk_gpu_launch_record(at[i], s->queue));
  return kernels_launch_items(s->gpu, at, n, s->queue);
}

/* The ranks of a communicator wait for each other, so they are in one launch. */
static hk_status kernels_launch(const hk_gpu_launch_batch *s, hk_gpu_launch_item **at, size_t n) {
  size_t begin = 0, end = 0;
  hk_gpu_launch_sort(at, n);
  while (end < n) {
    size_t next = end;
    while (next < n && at[next]->comm_id == at[end]->comm_id) next++;
    if (next - end > HK_GPU_BATCH)
      return HK_FAIL(HK_ERR_USAGE, "a group has %zu ranks of one communicator on GPU %d: %d is the most", next - end,
                     s->gpu->device->limits.ordinal, HK_GPU_BATCH);
    if (next - begin > HK_GPU_BATCH) {
      HK_OR_RETURN(kernels_launch_batch(s, at + begin, end - begin));
      begin = end;
    }
    end = next;
  }
  return kernels_launch_batch(s, at + begin, end - begin);
}

const hk_gpu_executor hk_gpu_by_kernels = {
    .offer = kernels_offer, .arguments = kernels_arguments, .launch = kernels_launch};
