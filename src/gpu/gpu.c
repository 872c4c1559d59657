/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's GPU: choice, init and end. */
#include "gpu.h"
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../kernels/cuda/work.h"
#include "../run/selection.h"
#include "../topo/topo.h"
#include "../transport/cuda/multicast.h"
#include "../transport/device_links.h"
#include "../transport/peer.h"
#include "../transport/transport.h"
#include "buffer.h"
#include "code.h"
#include "endpoints.h"
#include "links.h"
#include "memory.h"
#include "multicast.h"
#include "order.h"
#include "peers.h"
#include "process_group.h"
#include "proxy.h"
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

static hk_status gpu_file_of(void *arg, int peer, uint64_t region, int *fd, size_t *bytes) {
  return hk_wire_file(arg, peer, region, fd, bytes);
}

/* Takes part in the lender's pool, or makes a new one if the communicator may lend. */
static hk_status gpu_begin_pool(ncclComm_t c) {
  const hk_gpu *g = hk_gpu_of(c);
  /* a driver's handle can be opened only once in a process, so granules cannot be shared */
  if (!g->links->env->by_file) return HK_OK;
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

hk_status hk_gpu_attach(ncclComm_t c, void *own) {
  hk_gpu_fact *fact = own;
  hk_gpu *g = gpu_new(c);
  if (!g) return HK_FAIL_ERRNO("no memory for a communicator's GPU");
  c->backend_state = g;
  HK_OR_RETURN(hk_gpu_code_get(c->device, &g->code));
  HK_OR_RETURN(hk_cuda_open(c->device, &g->device));
  g->memory->device = g->memory->pooled.device = g->order->device = g->buffers->device = g->device;
  HK_OR_RETURN(g->device->ops->stream->create(g->device, &g->queue));
  g->device->own = g->queue;
  HK_OR_RETURN(g->device->ops->memory->alloc_host(g->device, sizeof(hk_gpu_state) + HK_GPU_TABLES_BYTES, &g->state));
  HK_OR_RETURN(hk_gpu_tables_begin(g->memory, &g->state, sizeof(hk_gpu_state)));
  pthread_mutex_lock(&c->health.lock); /* from now on hk_comm_fail ends kernels too */
  c->health.stop_kernels = &((hk_gpu_state *)g->state.host)->abort;
  if (atomic_load(&c->health.failure)) *c->health.stop_kernels = 1;
  pthread_mutex_unlock(&c->health.lock);
  *g->links->env = (hk_device_env){.env = hk_wire_env(c),
                                   .device = g->device,
                                   .by_file = g->device->limits.fd_handles && c->settings->CUMEM_ENABLE != 0,
                                   .file = gpu_file_of,
                                   .exchange = hk_gpu_exchange,
                                   .arg = c};
  HK_OR_RETURN(gpu_begin_pool(c));
  HK_OR_RETURN(hk_gpu_process_group_join(c));
  const hk_device_limits *l = &g->device->limits;
  fact->blocks = g->code->resident;
  fact->sm = (uint64_t)l->sm;
  if (!hk_bus_id_parse(l->bus_id, &fact->bus)) fact->bus = UINT64_MAX;
  fact->by_fd = g->links->env->by_file;
  fact->p2p_peers = (uint32_t)c->options.p2p_peers;
  const bool no_ctas = (c->options.policy & NCCL_CTA_POLICY_ZERO) != 0;
  fact->copies = no_ctas && l->stream_words &&
                 g->device->ops->word->check(g->device, g->group->credits[c->rank].base, g->queue) == HK_OK;
  if (l->multicast && c->settings->NVLS_ENABLE != 0)
    fact->multicast = (c->options.nvls_mode & ncclNvlsHostModeDisableTransport ? 0 : HK_GPU_MULTICAST_SUMS) |
                      (c->options.nvls_mode & ncclNvlsHostModeDisableSymmetricMultimem ? 0 : HK_GPU_MULTICAST_WINDOWS);
  fact->window_stride = (uint64_t)c->settings->WIN_STRIDE;
  if (!fact->window_stride) fact->window_stride = l->memory_bytes;
  hk_wire_env(c)->gpu = g->device;
  fact->id = hk_hash(0, l->uuid, sizeof l->uuid) | 1;
  return HK_OK;
}

/* *most: the largest number of ranks on one device. */
static hk_status gpu_count_sharers(const struct hk_facts *facts, int nranks, int *most) {
  uint64_t *ids = malloc((size_t)nranks * sizeof *ids);
  if (!ids) return HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", nranks);
  for (int r = 0; r < nranks; r++) ids[r] = hk_gpu_fact_of(facts, r)->id;
  *most = hk_gpu_most_equal(ids, nranks);
  free(ids);
  return HK_OK;
}

/* The most peers with which any rank communicates at once. A rank that names none means all. */
static unsigned gpu_p2p_peers(const struct hk_facts *facts, int nranks) {
  unsigned most = 1;
  for (int r = 0; r < nranks; r++) {
    const unsigned n = hk_gpu_fact_of(facts, r)->p2p_peers;
    if (!n || n > (unsigned)nranks) return (unsigned)nranks;
    if (n > most) most = n;
  }
  return most;
}

/* As NCCL decides it: older GPUs that share their PCI switch's bandwidth with traffic between them are read slowly. */
static bool gpu_sends_direct(ncclComm_t c) {
  int64_t set = c->settings->NET_GDR_READ;
  bool nvlink = false;
  for (int r = 0; r < c->nranks; r++) nvlink = nvlink || hk_gpu_of(c)->topology->nvlink[r];
  return set >= 0 ? set != 0 : nvlink || hk_gpu_of(c)->device->limits.sm >= 80;
}

hk_status hk_gpu_join(ncclComm_t c, const struct hk_facts *facts) {
  hk_gpu *g = hk_gpu_of(c);
  hk_gpu_share_facts room = {.resident = UINT64_MAX, .sm = UINT64_MAX};
  bool hosts = false, copies = true;
  int here = 0; /* ranks of this process on this GPU */
  for (int s = 0; s < 2; s++) {
    g->links->ends[s] = calloc((size_t)c->nranks, sizeof *g->links->ends[s]);
    if (!g->links->ends[s]) return HK_FAIL_ERRNO("no memory for the links of %d ranks", c->nranks);
  }
  HK_OR_RETURN(gpu_count_sharers(facts, c->nranks, &g->sharers));
  for (int r = 0; r < c->nranks; r++) {
    const hk_gpu_fact *f = hk_gpu_fact_of(facts, r);
    if (f->blocks < room.resident) room.resident = f->blocks;
    if (f->sm < room.sm) room.sm = f->sm;
    copies = copies && f->copies;
    hosts = hosts || !hk_wire_near(c, r);
    here += c->peers[r].process == c->peers[c->rank].process && f->id == hk_gpu_fact_of(facts, c->rank)->id;
  }
  hk_gpu_check_queues(here, c->device);
  g->order->ahead.bounded = here > 1;
  g->sm = (int)room.sm;
  room.ranks = (uint64_t)g->sharers;
  room.limit = (uint64_t)hk_selection_most_channels(c); /* equal on all ranks: init compares it */
  if (hosts && (!room.limit || room.limit > HK_GPU_NET_CHANNELS)) room.limit = HK_GPU_NET_CHANNELS;
  g->blocks = hk_gpu_share(&room);
  HK_INFO(HK_SUB_INIT,
          "rank %d: %u blocks at most on GPU %d, where %u communicators like this one run at the same time", c->rank,
          g->blocks, c->device, hk_gpu_overlap(&room));
  g->split->parts = g->blocks / 2 / gpu_p2p_peers(facts, c->nranks);
  if (g->split->parts < 1) g->split->parts = 1;
  if (g->split->parts > HK_GPU_P2P_CHANNELS) g->split->parts = HK_GPU_P2P_CHANNELS;
  /* A send or receive over the network may use more links than the blocks would ask for, but no more than there are. */
  g->split->net_parts = c->options.net_channels ? (unsigned)c->options.net_channels : g->split->parts;
  if (g->split->net_parts > HK_GPU_P2P_CHANNELS) g->split->net_parts = HK_GPU_P2P_CHANNELS;
  g->split->part_bytes = 4 * hk_wire_env(c)->slot_bytes;
  g->cluster = g->device->limits.clusters ? (unsigned)c->options.cluster : 0;
  HK_OR_RETURN(hk_gpu_topology_read(c, facts));
  g->links->sends_direct = gpu_sends_direct(c);
  HK_OR_RETURN(hk_gpu_reach(c, facts));
  HK_OR_RETURN(hk_gpu_proxied_begin(c));
  HK_OR_RETURN(hk_gpu_arena_begin(g->memory, &g->group->credits[c->rank], hk_gpu_credit_bytes(c->nranks)));
  hk_gpu_buffers_begin(c);
  HK_OR_RETURN(
      hk_gpu_copy_choose(c, (c->options.policy & NCCL_CTA_POLICY_ZERO) != 0, copies && !hosts, g->sharers == 1));
  HK_OR_RETURN(hk_gpu_multicast_join(c, facts));
  hk_gpu_windows_begin(c, facts);
  c->one_sided = g->windows->usable && g->device->limits.stream_words;
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
  if (g->in_switch) hk_multicast_leave(g->group->multicast);
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
