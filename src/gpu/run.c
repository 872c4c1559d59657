/* SPDX-License-Identifier: Apache-2.0 */
/* Turns calls into launches: prepares them, and groups calls that run together. */
#include "run.h"
#include <stdlib.h>
#include "../base/thread.h"
#include "../core/call.h"
#include "../run/profiler.h"
#include "launch.h"
#include "links.h"
#include "memory.h"
#include "order.h"
#include "rma.h"

/* Finds all errors of the calls before anything is launched. */
static hk_status run_prepare(const hk_call *calls, size_t n, hk_gpu_launch_item *items) {
  hk_status rc = HK_OK;
  for (size_t i = 0; i < n; i++) HK_TRY(hk_gpu_check_call(&calls[i]), out);
  for (size_t i = 0; i < n; i++) HK_TRY(hk_gpu_stage_item(&calls[i], i ? &items[i - 1] : NULL, &items[i]), out);
  for (size_t i = 0; i < n; i++) {
    rc = items[i].state.capturing ? HK_OK : hk_gpu_keep_near(calls[i].comm);
    if (rc == HK_OK) rc = hk_gpu_stage_executor(&items[i]);
    if (rc == HK_OK && items[i].by->offer && hk_gpu_processes(items[i].gpu->links)) rc = items[i].by->offer(&calls[i]);
    if (rc != HK_OK) return hk_comm_failed(calls[i].comm, rc);
  }
  for (size_t i = 0; i < n; i++) {
    ncclComm_t c = calls[i].comm;
    hk_gpu_post(&calls[i], &items[i].state, n == 1);
    rc = items[i].by->arguments(&items[i]);
    if (rc == HK_OK && items[i].by != &hk_gpu_by_transfers) rc = hk_gpu_stage_choose(&items[i]);
    if (rc != HK_OK) return hk_comm_failed(c, rc);
  }
  for (size_t i = 0; i < n; i++) items[i].event = hk_gpu_profile(&calls[i], items[i].by == &hk_gpu_by_copies);
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
    HK_TRY(hk_gpu_batch_run(&s), out);
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
    hk_gpu_post(call, &s, false);
    rc = s.capturing ? HK_OK : hk_gpu_keep_near(c);
    if (rc == HK_OK) rc = hk_gpu_order_begin(g->order, call->stream, &s);
    if (rc == HK_OK) rc = hk_gpu_rma_enqueue(call, &s);
    g->order->ahead.entries += 2; /* entries in the driver's queue: a copy and a word, or words */
    if (rc == HK_OK) rc = hk_gpu_end_order(g, call->stream, &s);
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
  for (size_t i = 0; i < n; i++) HK_TRY(hk_gpu_check_call(&calls[i]), out);
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

hk_status hk_gpu_run_one(const hk_call *call) {
  HK_UNCANCELLED;
  hk_health *h = &call->comm->health;
  /* A store is enough: one thread at a time may call.  relaxed: as in host_backend.c */
  atomic_store_explicit(&h->calling, true, memory_order_relaxed);
  hk_status rc = hk_gpu_run(call, 1);
  atomic_store_explicit(&h->calling, false, memory_order_release); /* a thread that sees false may free what we used */
  return rc;
}
