/* SPDX-License-Identifier: Apache-2.0 */
/* Launches a batch of calls: orders its streams, and runs its stages in turn. */
#include "../core/call.h"
#include "code.h"
#include "launch.h"
#include "links.h"
#include "memory.h"
#include "order.h"
#include "proxy.h"
#include "run.h"

hk_status hk_gpu_end_order(hk_gpu *g, hk_queue q, const hk_queue_state *s) {
  hk_status rc = hk_gpu_order_end(g->order, q, s);
  hk_gpu_proxy_wake(g->links->proxy, s->capturing);
  return rc;
}

/* launchOrderImplicit: work that is launched between the two functions runs after the earlier work of other such
 * communicators on the GPU, on any stream.  Ranks that share a GPU wait for each other, so they are not ordered. */
static hk_queue_order *batch_chain(const hk_call *call, const hk_queue_state *s) {
  hk_gpu *g = hk_gpu_of(call->comm);
  if (!call->comm->options.in_launch_order || g->sharers > 1) return NULL;
  return s->capturing ? &g->code->captured : &g->code->order;
}
static hk_status batch_begin_chain(hk_gpu *g, hk_queue_order *chain, hk_queue q, const hk_queue_state *s) {
  if (!chain) return HK_OK;
  pthread_mutex_lock(&g->code->lock);
  return g->device->ops->order->begin(g->device, chain, q, s);
}
static hk_status batch_end_chain(hk_gpu *g, hk_queue_order *chain, hk_queue q, const hk_queue_state *s, hk_status rc) {
  if (!chain) return rc;
  if (rc == HK_OK) rc = g->device->ops->order->end(g->device, chain, q, s);
  pthread_mutex_unlock(&g->code->lock);
  return rc;
}

/* True if an earlier item has the same communicator and, if `q`, the same stream. */
static bool batch_is_repeated(const hk_gpu_launch_batch *s, size_t i, bool q) {
  for (size_t k = i; k-- > 0;)
    if (s->at[k]->gpu == s->at[i]->gpu && (!q || s->at[k]->call->stream == s->at[i]->call->stream)) return true;
  return false;
}

/* Makes the batch's stream wait for the earlier calls of the communicators, and for the other streams of the batch. */
static hk_status batch_join_streams(hk_gpu_launch_batch *s) {
  for (size_t i = 0; i < s->n; i++) {
    const hk_gpu_launch_item *p = s->at[i];
    hk_queue q = p->call->stream;
    if (batch_is_repeated(s, i, true)) continue;
    HK_OR_RETURN(hk_gpu_order_begin(p->gpu->order, q, &p->state));
    if (q == s->queue) continue;
    HK_OR_RETURN(hk_gpu_order_mark(p->gpu->order, q, &p->state));
    HK_OR_RETURN(hk_gpu_order_follow(p->gpu->order, s->queue, &s->at[0]->state));
  }
  return HK_OK;
}

/* Makes the other streams, and later calls of the communicators, wait for the batch's launches. */
static hk_status batch_part_streams(hk_gpu_launch_batch *s) {
  for (size_t i = 0; i < s->n; i++) {
    const hk_gpu_launch_item *p = s->at[i];
    if (!batch_is_repeated(s, i, false)) HK_OR_RETURN(hk_gpu_end_order(p->gpu, s->queue, &s->at[0]->state));
  }
  for (size_t i = 0; i < s->n; i++) {
    const hk_gpu_launch_item *p = s->at[i];
    if (p->call->stream == s->queue || batch_is_repeated(s, i, true)) continue;
    HK_OR_RETURN(hk_gpu_order_follow(p->gpu->order, p->call->stream, &p->state));
  }
  return HK_OK;
}

/* Launches the stage's calls that the executor runs. */
static hk_status batch_stage(const hk_gpu_launch_batch *s, const hk_gpu_executor *by, unsigned stage) {
  hk_gpu_launch_item **at = s->at + s->n; /* a list of as many items */
  size_t n = 0;
  for (size_t i = 0; i < s->n; i++)
    if (s->at[i]->by == by && s->at[i]->stage == stage) at[n++] = s->at[i];
  return n ? by->launch(s, at, n) : HK_OK;
}

/* The copies of a stage follow its kernels. */
static hk_status batch_stages(const hk_gpu_launch_batch *s) {
  unsigned stages = 0;
  for (size_t i = 0; i < s->n; i++)
    if (s->at[i]->gpu->stage->stages > stages) stages = s->at[i]->gpu->stage->stages;
  for (unsigned stage = 0; stage < stages; stage++) {
    HK_OR_RETURN(batch_stage(s, &hk_gpu_by_kernels, stage));
    HK_OR_RETURN(batch_stage(s, &hk_gpu_by_copies, stage));
  }
  return HK_OK;
}

hk_status hk_gpu_batch_run(hk_gpu_launch_batch *s) {
  hk_status rc = HK_OK;
  const hk_queue_state *state = &s->at[0]->state;
  hk_queue_order *chain = NULL;
  for (size_t i = 0; i < s->n && !chain; i++) chain = batch_chain(s->at[i]->call, state);
  HK_TRY(batch_join_streams(s), out);
  rc = batch_begin_chain(s->gpu, chain, s->queue, state);
  if (rc == HK_OK) rc = batch_stages(s);
  for (size_t i = 0; rc == HK_OK && i < s->n; i++)
    if (s->at[i]->table) rc = hk_gpu_table_used(s->gpu->device, s->at[i]->table, state, s->queue);
  if (rc == HK_OK) rc = batch_stage(s, &hk_gpu_by_transfers, 0);
  HK_TRY(batch_end_chain(s->gpu, chain, s->queue, state, rc), out);
  HK_TRY(batch_part_streams(s), out);
out:
  for (size_t i = 0; rc != HK_OK && i < s->n; i++)
    if (!batch_is_repeated(s, i, false)) hk_comm_failed(s->at[i]->call->comm, rc);
  return rc;
}
