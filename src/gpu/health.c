/* SPDX-License-Identifier: Apache-2.0 */
#include "../base/log.h"
#include "../base/param.h"
#include "../boot/inquiry.h"
#include "../failure/mismatch.h"
#include "../failure/watch.h"
#include "gpu.h"
#include "links.h"
#include "order.h"
#include "process_group.h"
#include "proxy.h"
#include "rma.h"
#include "run.h"

static hk_status health_check(void *c, uint64_t waited_ns) {
  (void)waited_ns;
  return hk_gpu_poll_health(c);
}

hk_status hk_gpu_keep_near(ncclComm_t c) {
  hk_gpu_order *o = hk_gpu_of(c)->order;
  const hk_wait_env env = {.failure = &c->health.failure, .check = health_check, .arg = c, .spins = 100};
  hk_waiter w;
  bool near;
  HK_OR_RETURN(hk_gpu_order_near(o, &near));
  if (near) return HK_OK;
  HK_INFO_ONCE(HK_SUB_COLL,
               "rank %d of %d: its calls are some %d launches ahead of GPU %d, which other ranks of this process use, "
               "too: such a call waits until the GPU has followed",
               c->rank, c->nranks, 2 * HK_GPU_AHEAD, c->device);
  hk_wait_begin(&w, &env);
  while (!near) {
    HK_OR_RETURN(hk_wait_pause(&w));
    HK_OR_RETURN(hk_gpu_order_near(o, &near));
  }
  return HK_OK;
}

enum { PATIENCE_S = 3 };

static void health_give_up(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  HK_WARN("rank %d of %d: the failed communicator's work on GPU %d does not end, because other work is before it in "
          "its stream: its memory there is not freed",
          c->rank, c->nranks, c->device);
  hk_gpu_lose(g);
}

/* Releases the streams of a failed communicator that wait for other ranks. */
static void health_free_streams(ncclComm_t c) {
  hk_gpu_copy_free(c);
  (void)hk_gpu_rma_free(c);
}

void hk_gpu_drain(ncclComm_t c) {
  hk_wait_env env = {.spins = 100};
  hk_waiter w;
  bool done = false;
  if (!hk_gpu_of(c) || !hk_gpu_of(c)->device || hk_gpu_of(c)->lost) return;
  uint64_t until = hk_now_ns() + PATIENCE_S * UINT64_C(1000000000);
  hk_wait_begin(&w, &env);
  while (hk_gpu_order_over(hk_gpu_of(c)->order, &done) == HK_OK && !done) {
    if (!atomic_load(&c->health.failure))
      until = hk_now_ns() + PATIENCE_S * UINT64_C(1000000000);
    else if (hk_now_ns() > until)
      return health_give_up(c);
    if (atomic_load(&c->health.failure)) health_free_streams(c);
    (void)hk_wait_pause(&w);
  }
  if (atomic_load(&c->health.failure)) hk_gpu_rma_free_replays(c);
}

/* ---- failures ---- */

/* True if the launches have not ended for so long that this must be reported. */
static bool health_is_due(ncclComm_t c, hk_long_launch *l) {
  hk_gpu *g = hk_gpu_of(c);
  uint64_t now = hk_now_ns();
  hk_gpu_health *w = g->health;
  pthread_mutex_lock(&g->order->lock);
  /* A graph may be replayed at any time without a call here. Kernels that begin show that no graph hangs. */
  const bool moves = hk_gpu_kernels_began(g);
  if (w->launches != g->order->launches || !w->seen_ns || moves) {
    w->launches = g->order->launches;
    w->seen_ns = now;
  }
  l->captured = atomic_load(&g->order->captures);
  l->waited_ns = hk_ago_ns(now, w->seen_ns);
  bool due = hk_inquiry_due(&w->reported_ns, l->waited_ns, (uint64_t)c->settings->WATCHDOG * 1000000000u, 0);
  pthread_mutex_unlock(&g->order->lock);
  return due;
}

hk_status hk_gpu_watch(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  hk_long_launch l = {.waited_ns = 0};
  bool done;
  HK_OR_RETURN(hk_gpu_order_over(g->order, &done));
  if (done || !health_is_due(c, &l)) return HK_OK;
  HK_OR_RETURN(hk_mismatch_look_back(c)); /* messages of the LL protocols do not name their call */
  hk_gpu_proxy_report(g->links->proxy, l.peers, sizeof l.peers, l.links, sizeof l.links);
  return hk_watch_launch(c, &l);
}

static bool health_runs(ncclComm_t c) {
  return hk_gpu_of(c) && atomic_load(&c->health.progress) == HK_OK && !atomic_load(&c->health.failure);
}

hk_status hk_gpu_check_kernels(ncclComm_t c) {
  const int peer = health_runs(c) ? hk_gpu_kernels_mismatch(hk_gpu_of(c)) : -1;
  return peer < 0 ? HK_OK : hk_mismatch_message(c, peer);
}

hk_status hk_gpu_poll_health(ncclComm_t c) {
  if (hk_gpu_of(c) && atomic_load(&c->health.failure)) health_free_streams(c);
  HK_OR_RETURN(hk_gpu_check_kernels(c));
  return health_runs(c) ? hk_gpu_watch(c) : HK_OK;
}
