/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's GPU: its parts, the begin of its init, and its end. */
#include "gpu.h"
#include <stdlib.h>
#include "../base/log.h"
#include "../transport/device_links.h"
#include "buffer.h"
#include "code.h"
#include "links.h"
#include "memory.h"
#include "multicast.h"
#include "order.h"
#include "peers.h"
#include "process_group.h"
#include "rma.h"
#include "run.h"
#include "window.h"

/* A rank on its GPU, with all parts. */
typedef struct whole {
  hk_gpu gpu; /* the first member, by which all is freed */
  hk_gpu_links links;
  hk_device_env env;
  hk_gpu_topology topology;
  hk_gpu_windows windows;
  hk_gpu_buffers buffers;
  hk_gpu_copies copies;
  hk_gpu_split split;
  hk_gpu_stage stage;
  hk_gpu_checked checked;
  hk_gpu_memory memory;
  hk_gpu_order order;
  hk_gpu_health health;
} whole;

/* Takes part in the lender's pool, or makes a new one if the communicator may lend. */
static hk_status gpu_begin_pool(ncclComm_t c) {
  const hk_gpu *g = hk_gpu_of(c);
  /* a driver's handle can be opened only once in a process, so granules cannot be shared */
  if (!hk_gpu_by_file(g->links)) return HK_OK;
  if (c->lender && hk_gpu_pool_join(&g->memory->pooled, &hk_gpu_of(c->lender)->memory->pooled)) {
    HK_INFO(HK_SUB_ALLOC, "rank %d of %d: takes pieces of its parent's memory on GPU %d", c->rank, c->nranks,
            c->device);
    return HK_OK;
  }
  return c->options.split_share || c->options.shrink_share ? hk_gpu_pool_new(&g->memory->pooled) : HK_OK;
}

static hk_gpu *gpu_new(ncclComm_t c) {
  whole *all = calloc(1, sizeof *all);
  if (!all) return NULL;
  all->gpu = (hk_gpu){.comm = c,
                      .memory = &all->memory,
                      .checked = &all->checked,
                      .links = &all->links,
                      .topology = &all->topology,
                      .order = &all->order,
                      .health = &all->health,
                      .stage = &all->stage,
                      .split = &all->split,
                      .buffers = &all->buffers,
                      .copies = &all->copies,
                      .windows = &all->windows};
  all->links.env = &all->env;
  all->buffers.comm = c;
  all->order.loose = c->options.loose_captures;
  all->order.timer.meter = c->order.meter;
  all->order.mixes = c->options.mixes_graphs;
  pthread_mutex_init(&all->order.lock, NULL);
  pthread_mutex_init(&all->memory.pinned_lock, NULL);
  pthread_mutex_init(&all->buffers.imports_lock, NULL);
  return &all->gpu;
}

hk_status hk_gpu_attach(ncclComm_t c, void *fact) {
  hk_gpu *g = gpu_new(c);
  if (!g) return HK_FAIL_ERRNO("no memory for a communicator's GPU");
  c->backend_state = g;
  HK_OR_RETURN(hk_gpu_code_get(c->device, &g->code));
  HK_OR_RETURN(hk_cuda_open(c->device, &g->device));
  g->memory->device = g->memory->pooled.device = g->order->device = g->buffers->device = g->device;
  HK_OR_RETURN(g->device->ops->stream->create(g->device, &g->queue));
  g->device->own = g->queue;
  HK_OR_RETURN(hk_gpu_reports_begin(c));
  hk_gpu_links_begin(c);
  HK_OR_RETURN(gpu_begin_pool(c));
  HK_OR_RETURN(hk_gpu_process_group_join(c));
  hk_gpu_fact_fill(c, fact);
  return HK_OK;
}

/* The device stays open for other ranks of the process, which may still send to this rank's memory. */
static void gpu_leave_queue(hk_gpu *g) {
  if (g->group) pthread_mutex_lock(&g->group->lock);
  g->device->own = NULL;
  if (g->group) pthread_mutex_unlock(&g->group->lock);
}

/* Failures while freeing are logged; nothing else can be done about them. */
void hk_gpu_detach(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  if (!g) return;
  hk_gpu_drain(c);
  pthread_mutex_lock(&c->health.lock);
  c->health.stop_kernels = NULL;
  pthread_mutex_unlock(&c->health.lock);
  hk_gpu_buffers_end(c);
  if (g->lost) {
    c->backend_state = NULL;
    return;
  }
  hk_gpu_suspended_free(&g->suspended);
  hk_gpu_windows_end(c);
  hk_gpu_multicast_end(g);
  if (g->device) {
    hk_gpu_endpoints_free(c);
    hk_gpu_copy_end(c);
    hk_gpu_rma_end(c);
    hk_gpu_topology_end(g->topology);
    const hk_device_ops *ops = g->device->ops;
    hk_gpu_tables_end(g->memory);
    hk_gpu_arena_free(g->memory);
    (void)ops->memory->release(g->device, &g->links->page);
    (void)ops->memory->release(g->device, &g->state);
    hk_gpu_order_free(g->order);
    gpu_leave_queue(g);
    (void)ops->stream->free(g->device, g->queue);
    if (!g->group) ops->close(g->device); /* else the last rank that leaves closes it */
  }
  hk_gpu_process_group_leave(g->group);
  hk_gpu_code_put(g->code);
  pthread_mutex_destroy(&g->order->lock);
  pthread_mutex_destroy(&g->memory->pinned_lock);
  pthread_mutex_destroy(&g->buffers->imports_lock);
  free(g);
  c->backend_state = NULL;
}
