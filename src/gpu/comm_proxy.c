/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's proxy: what it gets from the communicator, its begin and end (proxy.h). */
#include "../core/comm.h"
#include "../failure/failure.h"
#include "../transport/transport.h"
#include "gpu.h"
#include "links.h"
#include "memory.h"
#include "order.h"
#include "proxy.h"
#include "run.h"

static hk_status comm_proxy_over(void *comm, bool *done) { return hk_gpu_order_over(hk_gpu_of(comm)->order, done); }
static hk_status comm_proxy_check(void *comm) { return hk_gpu_watch(comm); }
static hk_status comm_proxy_pinned(void *comm, bool payload, size_t bytes, hk_memory *out) {
  return hk_gpu_pinned_get(hk_gpu_of(comm)->memory, payload ? HK_GPU_PINNED_PAYLOADS : HK_GPU_PINNED_STAYS, bytes, out);
}
static void comm_proxy_unpinned(void *comm, hk_memory *payload) {
  hk_gpu_pinned_unget(hk_gpu_of(comm)->memory, HK_GPU_PINNED_PAYLOADS, payload);
}
static void comm_proxy_failed(void *arg, hk_status rc) {
  ncclComm_t c = arg;
  if (!atomic_load(&c->health.failure)) (void)hk_comm_failed(c, rc); /* otherwise the failure is known already */
}

/* Allocates the GPU memory on which networks test access before the first link. */
hk_status hk_gpu_proxied_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  bool any = false;
  for (int r = 0; r < c->nranks; r++) any = any || hk_gpu_is_proxied(g->links, r);
  if (!any) return HK_OK;
  HK_OR_RETURN(g->device->ops->memory->alloc_open(g->device, 2 * HK_DEVICE_PAGE, 0, &g->links->page));
  hk_wire_env(c)->gpu_page =
      (void *)(((uintptr_t)g->links->page.base + HK_DEVICE_PAGE - 1) & ~(uintptr_t)(HK_DEVICE_PAGE - 1));
  hk_wire_env(c)->gpu_queue = g->queue;
  return HK_OK;
}

hk_status hk_gpu_proxy_make(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_proxy *p = g->links->proxy;
  const hk_gpu_proxy_env e = {.env = hk_wire_env(c),
                              .device = g->device,
                              .queue = g->queue,
                              .sends_direct = g->links->sends_direct,
                              .wait = &c->wait,
                              .over = comm_proxy_over,
                              .check = comm_proxy_check,
                              .failed = comm_proxy_failed,
                              .pinned = comm_proxy_pinned,
                              .unpinned = comm_proxy_unpinned,
                              .arg = c};
  if (!p) HK_OR_RETURN(hk_gpu_proxy_new(&e, &p));
  g->links->proxy = p;
  return HK_OK;
}

hk_status hk_gpu_proxy_give(ncclComm_t c, const struct hk_gpu_proxy_work *work) {
  HK_OR_RETURN(hk_gpu_proxy_make(c));
  return hk_gpu_proxy_serve(hk_gpu_of(c)->links->proxy, work);
}

bool hk_gpu_proxy_left(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  return !g || hk_gpu_proxy_has_left(g->links->proxy);
}

void hk_gpu_proxy_stop(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_proxy *p = g ? g->links->proxy : NULL;
  if (!p) return;
  g->links->proxy = NULL; /* other threads may ask for errors at the same time */
  hk_gpu_proxy_end(p, g->lost);
}
