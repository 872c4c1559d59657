/* SPDX-License-Identifier: Apache-2.0 */
/* Turns calls into launches: checks them, orders streams, and groups calls that run together. */
#include "run.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/thread.h"
#include "../core/call.h"
#include "../core/overlap.h"
#include "../decide/protocol.h"
#include "../failure/failure.h"
#include "../failure/watch.h"
#include "../kernels/cuda/work.h"
#include "../kernels/plan.h"
#include "../program/program.h"
#include "../run/choose.h"
#include "../run/profiler.h"
#include "code.h"
#include "launch.h"
#include "links.h"
#include "memory.h"
#include "order.h"
#include "process_group.h"
#include "proxy.h"
#include "rma.h"

static hk_status run_check_buffers(const hk_call *call) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  const hk_blocks *b = call->blocks;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  bool in = call->p2p ? call->p2p == HK_P2P_SEND || call->p2p == HK_P2P_PUT
                      : hk_coll_has_input((hk_coll)call->coll, c->rank, call->root);
  bool out = call->p2p ? call->p2p == HK_P2P_RECV : hk_coll_has_output((hk_coll)call->coll, c->rank, call->root);
  size_t n_in = call->p2p ? 1 : (size_t)hk_coll_in_blocks((hk_coll)call->coll, c->nranks);
  size_t n_out = call->p2p ? 1 : (size_t)hk_coll_out_blocks((hk_coll)call->coll, c->nranks);
  size_t in_bytes = b ? b->in_end : bytes * n_in, out_bytes = b ? b->out_end : bytes * n_out;
  if (in && in_bytes) HK_TRY(hk_gpu_check_pointer(c, "sendbuff", call->in, in_bytes), out);
  if (out && out_bytes) HK_TRY(hk_gpu_check_pointer(c, "recvbuff", call->out, out_bytes), out);
  if (bytes == 0) return HK_OK;
  if (hk_call_op(call) == HK_PREMULSUM && call->scalar_on_device)
    rc = hk_gpu_check_pointer(c, "the operator's scalar", (void *)(uintptr_t)call->scalar, 1);
out:
  return rc;
}

/* An error in the call's arguments changes nothing. A later failure ends the communicator. */
static hk_status run_check_call(const hk_call *call) {
  hk_status rc = hk_gpu_poll_health(call->comm, false);
  if (rc != HK_OK) return hk_comm_failed(call->comm, rc);
  return run_check_buffers(call);
}

/* Records work that was put into the queue, and lets the proxy look for it. */
static hk_status run_end_order(hk_gpu *g, hk_queue q, const hk_queue_state *s) {
  hk_status rc = hk_gpu_order_end(g->order, q, s);
  hk_gpu_proxy_wake(g->links->proxy, s->capturing);
  return rc;
}

/* launchOrderImplicit: work that is launched between the two functions runs after the earlier work of other such
 * communicators on the GPU, on any stream.  Ranks that share a GPU wait for each other, so they are not ordered. */
static hk_queue_order *run_chain(const hk_call *call, const hk_queue_state *s) {
  hk_gpu *g = hk_gpu_of(call->comm);
  if (!call->comm->options.in_launch_order || g->sharers > 1) return NULL;
  return s->capturing ? &g->code->captured : &g->code->order;
}
static hk_status run_begin_chain(hk_gpu *g, hk_queue_order *chain, hk_queue q, const hk_queue_state *s) {
  if (!chain) return HK_OK;
  pthread_mutex_lock(&g->code->lock);
  return g->device->ops->order->begin(g->device, chain, q, s);
}
static hk_status run_end_chain(hk_gpu *g, hk_queue_order *chain, hk_queue q, const hk_queue_state *s, hk_status rc) {
  if (!chain) return rc;
  if (rc == HK_OK) rc = g->device->ops->order->end(g->device, chain, q, s);
  pthread_mutex_unlock(&g->code->lock);
  return rc;
}

/* Publishes the call on the status page, for the other ranks. `alone`: no other call runs together with it, so that it
 * can be timed. */
static void run_post(const hk_call *call, const hk_queue_state *s, bool alone) {
  hk_gpu *g = hk_gpu_of(call->comm);
  if (s->capturing && !g->order->captures && call->comm->options.no_captures)
    HK_INFO(HK_SUB_COLL,
            "rank %d of %d: a call is captured, and graphUsageMode is 0: this is right here, but another NCCL may hang",
            call->comm->rank, call->comm->nranks);
  g->order->captures = g->order->captures || s->capturing;
  g->order->timer.wanted = hk_watch_enqueued(call->comm, call, !g->order->captures);
  if (!alone) g->order->timer.wanted = NULL;
}

/* Starts a profiler's event for an operation that will be put into its stream now. */
static void *run_profile(const hk_call *call, bool by_copies) {
  const hk_plan *plan;
  const hk_launch *l;
  ncclComm_t c = call->comm;
  if (!c->profiler) return NULL;
  if (call->coll == HK_SENDRECV) return hk_profile_transfer(c->profiler, call, false).transfer;
  if (by_copies) return hk_profile_copies(c->profiler, call);
  if (hk_choose(c, call, &plan, &l) != HK_OK) return NULL; /* it was chosen before, so this is a cache lookup */
  return hk_profile_enqueued(c->profiler, call, plan->program->algorithm, hk_protocols[l->protocol].name,
                             plan->channels);
}

/* True if an earlier item has the same communicator and, if `q`, the same stream. */
static bool run_is_repeated(const hk_gpu_launch_batch *s, size_t i, bool q) {
  for (size_t k = i; k-- > 0;)
    if (s->at[k]->gpu == s->at[i]->gpu && (!q || s->at[k]->call->stream == s->at[i]->call->stream)) return true;
  return false;
}

/* Makes the batch's stream wait for the earlier calls of the communicators, and for the other streams of the batch. */
static hk_status run_join_streams(hk_gpu_launch_batch *s) {
  for (size_t i = 0; i < s->n; i++) {
    const hk_gpu_launch_item *p = s->at[i];
    hk_queue q = p->call->stream;
    if (run_is_repeated(s, i, true)) continue;
    HK_OR_RETURN(hk_gpu_order_begin(p->gpu->order, q, &p->state));
    if (q == s->queue) continue;
    HK_OR_RETURN(hk_gpu_order_mark(p->gpu->order, q, &p->state));
    HK_OR_RETURN(hk_gpu_order_follow(p->gpu->order, s->queue, &s->at[0]->state));
  }
  return HK_OK;
}

/* Makes the other streams, and later calls of the communicators, wait for the batch's launches. */
static hk_status run_part_streams(hk_gpu_launch_batch *s) {
  for (size_t i = 0; i < s->n; i++) {
    const hk_gpu_launch_item *p = s->at[i];
    if (!run_is_repeated(s, i, false)) HK_OR_RETURN(run_end_order(p->gpu, s->queue, &s->at[0]->state));
  }
  for (size_t i = 0; i < s->n; i++) {
    const hk_gpu_launch_item *p = s->at[i];
    if (p->call->stream == s->queue || run_is_repeated(s, i, true)) continue;
    HK_OR_RETURN(hk_gpu_order_follow(p->gpu->order, p->call->stream, &p->state));
  }
  return HK_OK;
}

/* ---- executors ---- */

/* The result is the same on all ranks. */
static hk_status run_find_executor(hk_gpu_launch_item *p) {
  const bool transfer = p->call->coll == HK_SENDRECV;
  if (!transfer) HK_OR_RETURN(hk_gpu_copy_window(p->call, &p->window));
  p->by = transfer ? &hk_gpu_by_transfers : p->window ? &hk_gpu_by_copies : &hk_gpu_by_kernels;
  return HK_OK;
}

/* Launches the stage's calls that the executor runs. */
static hk_status run_stage(const hk_gpu_launch_batch *s, const hk_gpu_executor *by, unsigned stage) {
  hk_gpu_launch_item **at = s->at + s->n; /* a list of as many items */
  size_t n = 0;
  for (size_t i = 0; i < s->n; i++)
    if (s->at[i]->by == by && s->at[i]->stage == stage) at[n++] = s->at[i];
  return n ? by->launch(s, at, n) : HK_OK;
}

/* The copies of a stage follow its kernels. */
static hk_status run_stages(const hk_gpu_launch_batch *s) {
  unsigned stages = 0;
  for (size_t i = 0; i < s->n; i++)
    if (s->at[i]->gpu->stage->stages > stages) stages = s->at[i]->gpu->stage->stages;
  for (unsigned stage = 0; stage < stages; stage++) {
    HK_OR_RETURN(run_stage(s, &hk_gpu_by_kernels, stage));
    HK_OR_RETURN(run_stage(s, &hk_gpu_by_copies, stage));
  }
  return HK_OK;
}

/* ---- a group ---- */

static hk_status run_batch(hk_gpu_launch_batch *s) {
  hk_status rc = HK_OK;
  const hk_queue_state *state = &s->at[0]->state;
  hk_queue_order *chain = NULL;
  for (size_t i = 0; i < s->n && !chain; i++) chain = run_chain(s->at[i]->call, state);
  HK_TRY(run_join_streams(s), out);
  rc = run_begin_chain(s->gpu, chain, s->queue, state);
  if (rc == HK_OK) rc = run_stages(s);
  for (size_t i = 0; rc == HK_OK && i < s->n; i++)
    if (s->at[i]->table) rc = hk_gpu_table_used(s->gpu->device, s->at[i]->table, state, s->queue);
  if (rc == HK_OK) rc = run_stage(s, &hk_gpu_by_transfers, 0);
  HK_TRY(run_end_chain(s->gpu, chain, s->queue, state, rc), out);
  HK_TRY(run_part_streams(s), out);
out:
  for (size_t i = 0; rc != HK_OK && i < s->n; i++)
    if (!run_is_repeated(s, i, false)) hk_comm_failed(s->at[i]->call->comm, rc);
  return rc;
}

/* Successive collectives of a communicator with the same plan are one stage: the blocks of the first also run the
 * others, each over its own links.  The stages of all communicators are launched in turn.  All ranks form the same
 * stages, because they agree on plans and on the largest number of ranks on a GPU. */
static hk_status run_choose_stage(hk_gpu_launch_item *p) {
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

/* Finds all errors of the calls before anything is launched. */
static hk_status run_prepare(const hk_call *calls, size_t n, hk_gpu_launch_item *items) {
  hk_status rc = HK_OK;
  for (size_t i = 0; i < n; i++) HK_TRY(run_check_call(&calls[i]), out);
  for (size_t i = 0; i < n; i++) {
    hk_gpu_launch_item *p = &items[i];
    ncclComm_t c = calls[i].comm;
    *p = (hk_gpu_launch_item){.call = &calls[i], .gpu = hk_gpu_of(c), .comm_id = hk_gpu_of(c)->group->comm_id};
    if (i && calls[i - 1].stream == p->call->stream && items[i - 1].gpu->code == p->gpu->code)
      p->state = items[i - 1].state;
    else
      HK_TRY(p->gpu->device->ops->stream->state(p->gpu->device, p->call->stream, &p->state), out);
  }
  for (size_t i = 0; i < n; i++) {
    rc = items[i].state.capturing ? HK_OK : hk_gpu_keep_near(calls[i].comm);
    if (rc == HK_OK) rc = run_find_executor(&items[i]);
    if (rc == HK_OK && items[i].by->offer && hk_gpu_processes(items[i].gpu->links)) rc = items[i].by->offer(&calls[i]);
    if (rc != HK_OK) return hk_comm_failed(calls[i].comm, rc);
  }
  for (size_t i = 0; i < n; i++) {
    ncclComm_t c = calls[i].comm;
    run_post(&calls[i], &items[i].state, n == 1);
    rc = items[i].by->arguments(&items[i]);
    if (rc == HK_OK && items[i].by != &hk_gpu_by_transfers) rc = run_choose_stage(&items[i]);
    if (rc != HK_OK) return hk_comm_failed(c, rc);
  }
  for (size_t i = 0; i < n; i++) items[i].event = run_profile(&calls[i], items[i].by == &hk_gpu_by_copies);
out:
  return rc;
}

static hk_status run_group(const hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  hk_gpu_launch_item one = {.call = NULL}, *of_one[2], *items = n == 1 ? &one : calloc(n, sizeof *items);
  hk_gpu_launch_batch s = {.at = n == 1 ? of_one : malloc(2 * n * sizeof(hk_gpu_launch_item *))};
  size_t begun = 0; /* calls for which a profiler's event has begun */
  if (!items || !s.at) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a group of %zu calls", n), out);
  for (size_t i = 0; i < n; i++) *hk_gpu_of(calls[i].comm)->stage = (hk_gpu_stage){0};
  HK_TRY(run_prepare(calls, n, items), out);
  begun = n;
  for (size_t i = 0; i < n; i++) {
    hk_gpu_launch_item *first = &items[i];
    if (first->placed) continue;
    s.n = 0;
    s.gpu = first->gpu;
    s.queue = first->call->stream;
    for (size_t k = i; k < n; k++) {
      hk_gpu_launch_item *p = &items[k];
      if (p->placed || p->gpu->code != first->gpu->code || p->state.capture != first->state.capture) continue;
      p->placed = true;
      s.at[s.n++] = p;
    }
    HK_TRY(run_batch(&s), out);
  }
out:
  for (size_t i = 0; items && i < begun; i++)
    if (calls[i].comm->profiler) hk_profile_over(calls[i].comm->profiler, items[i].event);
  for (size_t i = 0; i < begun; i++)
    if (calls[i].comm->profiler) hk_profile_run_over(calls[i].comm->profiler);
  for (size_t i = 0; items && i < n; i++) hk_gpu_table_put(items[i].table);
  if (n > 1) {
    free(items);
    free(s.at);
  }
  return rc;
}

/* ---- one-sided operations ---- */

/* Runs the calls that put, or those that wait. */
static hk_status run_one_sided(const hk_call *calls, size_t n, hk_p2p kind) {
  hk_status rc = HK_OK;
  for (size_t i = 0; i < n; i++) {
    const hk_call *call = &calls[i];
    ncclComm_t c = call->comm;
    hk_gpu *g = hk_gpu_of(c);
    hk_queue_state s;
    if (call->p2p != kind) continue;
    HK_TRY(g->device->ops->stream->state(g->device, call->stream, &s), out);
    run_post(call, &s, false);
    rc = s.capturing ? HK_OK : hk_gpu_keep_near(c);
    if (rc == HK_OK) rc = hk_gpu_order_begin(g->order, call->stream, &s);
    if (rc == HK_OK) rc = hk_gpu_rma_enqueue(call, &s);
    g->order->ahead.entries += 2; /* entries in the driver's queue: a copy and a word, or words */
    if (rc == HK_OK) rc = run_end_order(g, call->stream, &s);
    if (rc != HK_OK) return hk_comm_failed(c, rc);
  }
out:
  return rc;
}

/* Puts do not wait for calls of other ranks, so they run first, and waits last. */
hk_status hk_gpu_run(const hk_call *calls, size_t n) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  hk_call *others = NULL;
  size_t nothers = 0;
  for (size_t i = 0; i < n; i++) nothers += !hk_call_is_rma(&calls[i]);
  if (nothers == n) return run_group(calls, n);
  for (size_t i = 0; i < n; i++) HK_TRY(run_check_call(&calls[i]), out);
  if (nothers && !(others = malloc(nothers * sizeof *others))) {
    rc = HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
    /* else the communicators' other ranks would wait */
    for (size_t i = 0; i < n; i++) (void)hk_comm_failed(calls[i].comm, rc);
    return rc;
  }
  nothers = 0;
  for (size_t i = 0; i < n; i++)
    if (!hk_call_is_rma(&calls[i])) others[nothers++] = calls[i];
  HK_TRY(run_one_sided(calls, n, HK_P2P_PUT), out);
  if (nothers) HK_TRY(run_group(others, nothers), out);
  rc = run_one_sided(calls, n, HK_P2P_WAIT);
out:
  free(others);
  return rc;
}
