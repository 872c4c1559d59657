/* SPDX-License-Identifier: Apache-2.0 */
/* State that the ranks of one process share, and each rank's credits. */
#include "process_group.h"
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/fork.h"
#include "../boot/bootstrap.h"
#include "../transport/cuda/multicast.h"
#include "../transport/cuda/share.h"
#include "buffer.h"
#include "links.h"
#include "memory.h"
#include "peers.h"

/* The process groups of the process.  Global, because ranks that are threads of a process have nothing else in common
 * at init. A group also outlives the rank that leaves first. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(table_lock);
static hk_gpu_process_group *groups;

size_t hk_gpu_probe_at(int nranks) { return (size_t)nranks * HK_GPU_CHANNELS * HK_GPU_CREDIT_BYTES; }

size_t hk_gpu_credit_bytes(int nranks) { return hk_gpu_probe_at(nranks) + (size_t)2 * HK_GPU_PROBE_BYTES; }

uint64_t hk_gpu_probe_word(uint64_t comm_id, int rank, unsigned i) {
  return (comm_id + (uint64_t)rank * 64 + i + 1) * 0x9e3779b97f4a7c15u;
}

char *hk_gpu_credits_of(ncclComm_t c, int rank) {
  hk_gpu *g = hk_gpu_of(c);
  return hk_gpu_is_remote(c, rank) ? (char *)g->links->opened[rank].base + g->links->opened_at[rank]
                                   : g->group->credits[rank].base;
}

char *hk_gpu_credit(ncclComm_t c, int rank, int peer, unsigned channel) {
  return hk_gpu_credits_of(c, rank) + ((size_t)peer * HK_GPU_CHANNELS + channel) * HK_GPU_CREDIT_BYTES;
}

static void process_group_free_tables(hk_gpu_process_group *w) {
  free(w->devices);
  free(w->credits);
  free(w->slices);
  free(w->words);
  free(w->signals);
  free(w->fifos);
  free(w);
}

static hk_gpu_process_group *process_group_world_new(uint64_t comm_id, int nranks) {
  hk_gpu_process_group *w = calloc(1, sizeof *w + sizeof *w->multicast);
  if (!w) return NULL;
  w->multicast = (hk_multicast *)(w + 1);
  w->comm_id = comm_id;
  w->nranks = nranks;
  w->devices = calloc((size_t)nranks, sizeof(hk_device *));
  w->credits = calloc((size_t)nranks, sizeof(hk_memory));
  w->slices = calloc((size_t)nranks, sizeof(hk_gpu_slice));
  w->fifos = calloc((size_t)nranks, sizeof(hk_gpu_fifo *));
  w->words = calloc((size_t)nranks, sizeof(hk_shared));
  w->signals = calloc((size_t)nranks, sizeof(hk_shared));
  if (!w->devices || !w->credits || !w->slices || !w->fifos || !w->words || !w->signals) { /* out of memory */
    process_group_free_tables(w);
    return NULL;
  }
  pthread_mutex_init(&w->lock, NULL);
  w->next = groups;
  groups = w;
  return w;
}

static hk_status process_group_make_credits(ncclComm_t c, uint64_t comm_id, hk_memory *out, hk_gpu_slice *slice) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_device *d = g->device;
  hk_queue q = g->queue;
  size_t probe = hk_gpu_probe_at(c->nranks), bytes = hk_gpu_credit_bytes(c->nranks);
  uint64_t *pattern = malloc(HK_GPU_PROBE_BYTES);
  if (!pattern) return HK_FAIL_ERRNO("no memory for a communicator's GPU");
  for (unsigned i = 0; i < HK_GPU_PROBE_BYTES / 8; i++) pattern[i] = hk_gpu_probe_word(comm_id, c->rank, i);
  *slice = (hk_gpu_slice){NULL, NULL};
  HK_TRY(g->memory->pooled.pool ? hk_gpu_pool_get(&g->memory->pooled, bytes, slice, out)
                                : hk_share_make(g->links->env, bytes, bytes, out),
         out);
  HK_TRY(hk_device_copy(d, (char *)out->base + probe, pattern, HK_GPU_PROBE_BYTES, q), undo);
  goto out;
undo:
  (void)d->ops->memory->release(d, out); /* the first failure is the one to report */
  hk_gpu_pool_put(slice);
out:
  free(pattern);
  return rc;
}

hk_status hk_gpu_credits_again(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  hk_memory credits;
  hk_gpu_slice slice;
  hk_gpu_pool_leave(&g->memory->pooled); /* the pool's memory is shared by file descriptor, which does not work here */
  HK_TRY(process_group_make_credits(c, g->group->comm_id, &credits, &slice), out);
  pthread_mutex_lock(&table_lock);
  hk_memory old = g->group->credits[c->rank];
  slice = g->group->slices[c->rank];
  g->group->credits[c->rank] = credits;
  g->group->slices[c->rank] = (hk_gpu_slice){NULL, NULL};
  pthread_mutex_unlock(&table_lock);
  rc = g->device->ops->memory->release(g->device, &old);
  hk_gpu_pool_put(&slice);
  g->memory->pooled.bytes = 0;
out:
  return rc;
}

hk_status hk_gpu_credits_offer(ncclComm_t c, hk_share_offer *o) {
  const hk_gpu_process_group *w = hk_gpu_of(c)->group;
  const hk_memory *own = &w->credits[c->rank], *whole = hk_gpu_pool_whole(&w->slices[c->rank]);
  HK_OR_RETURN(hk_share_offer_memory(hk_gpu_of(c)->links->env, whole ? whole : own, false, o));
  if (whole) o->at = (uint64_t)((char *)own->base - (char *)whole->base);
  return HK_OK;
}

hk_status hk_gpu_process_group_join(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_gpu *g = hk_gpu_of(c);
  uint64_t comm_id = hk_bootstrap_comm_id(c->bootstrap);
  hk_memory credits;
  hk_gpu_slice slice;
  HK_TRY(process_group_make_credits(c, comm_id, &credits, &slice), out);
  pthread_mutex_lock(&table_lock);
  hk_gpu_process_group *w = groups;
  while (w && w->comm_id != comm_id) w = w->next;
  if (!w) w = process_group_world_new(comm_id, c->nranks);
  if (w) {
    w->refs++;
    w->devices[c->rank] = g->device;
    w->credits[c->rank] = credits;
    w->slices[c->rank] = slice;
  } else {
    rc = HK_FAIL_ERRNO("no memory for the GPUs of %d ranks", c->nranks);
    (void)g->device->ops->memory->release(g->device, &credits);
    hk_gpu_pool_put(&slice);
  }
  g->group = w;
  pthread_mutex_unlock(&table_lock);
out:
  return rc;
}

void hk_gpu_lose(hk_gpu *g) {
  g->lost = true;
  pthread_mutex_lock(&table_lock); /* the rank has work, so it has joined its process group. It never leaves it */
  g->next_lost = g->group->lost;
  g->group->lost = g;
  pthread_mutex_unlock(&table_lock);
}

void hk_gpu_process_group_leave(hk_gpu_process_group *w) {
  if (!w) return;
  pthread_mutex_lock(&table_lock);
  if (--w->refs > 0) {
    pthread_mutex_unlock(&table_lock);
    return; /* the others' kernels may still use this rank's memory and device */
  }
  HK_LIST_REMOVE(groups, w, next);
  pthread_mutex_unlock(&table_lock);
  /* Failures to free are logged; nothing else can be done about them. */
  hk_multicast_free(w->multicast, w->devices);
  for (int r = 0; r < w->nranks; r++) {
    while (w->fifos[r]) {
      hk_gpu_fifo *f = w->fifos[r];
      w->fifos[r] = f->next;
      (void)w->devices[f->to]->ops->memory->release(w->devices[f->to], &f->data);
      free(f);
    }
  }
  hk_gpu_buffers_free_late(w);
  for (int r = 0; r < w->nranks; r++) {
    hk_device *d = w->devices[r];
    if (!d) continue;
    (void)d->ops->memory->release(d, &w->credits[r]);
    hk_gpu_pool_put(&w->slices[r]);
    hk_share_drop(d, &w->words[r]);
    hk_share_drop(d, &w->signals[r]);
    d->ops->close(d);
  }
  hk_gpu_topology_free(w);
  pthread_mutex_destroy(&w->lock);
  process_group_free_tables(w);
}
