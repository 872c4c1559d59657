/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../transport/device_links.h"

enum { ALIGN = 256 };

typedef struct hk_gpu_granule {
  hk_memory memory;
  size_t used;
  unsigned pieces; /* pieces that have not ended */
  struct hk_gpu_granule *next;
} hk_gpu_granule;

struct hk_gpu_pool {
  pthread_mutex_t lock;
  hk_device *device; /* the pool's own: it outlives the communicators */
  unsigned holders;  /* communicators, and pieces */
  hk_gpu_granule *granules;
};

static hk_status pool_new(int device, hk_gpu_pool **out) {
  hk_status rc = HK_OK;
  hk_gpu_pool *p = calloc(1, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for what communicators share of device %d", device);
  HK_TRY(hk_cuda_open(device, &p->device), undo);
  pthread_mutex_init(&p->lock, NULL);
  p->holders = 1;
  *out = p;
  return HK_OK;
undo:
  free(p);
  return rc;
}

hk_status hk_gpu_pool_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_gpu *lender = c->lender ? hk_gpu_of(c->lender) : NULL;
  hk_gpu_pool *p = lender ? lender->pool : NULL;
  /* a driver's handle can be opened only once in a process, so granules cannot be shared */
  if (!g->links->by_file) return HK_OK;
  if (p && p->device->limits.ordinal == g->device->limits.ordinal) {
    pthread_mutex_lock(&p->lock);
    p->holders++;
    pthread_mutex_unlock(&p->lock);
    g->pool = p;
    HK_INFO(HK_SUB_ALLOC, "rank %d of %d: takes pieces of its parent's memory on GPU %d", c->rank, c->nranks,
            c->device);
    return HK_OK;
  }
  return c->options.split_share || c->options.shrink_share ? pool_new(c->device, &g->pool) : HK_OK;
}

/* Called with the lock held; unlocks it.  After the last holder no granule is left, because each granule has a piece,
 * and pieces are holders. */
static void let_go(hk_gpu_pool *p) {
  const bool last = --p->holders == 0;
  pthread_mutex_unlock(&p->lock);
  if (!last) return;
  p->device->ops->close(p->device);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

void hk_gpu_pool_leave(hk_gpu *g) {
  hk_gpu_pool *p = g->pool;
  if (!p) return;
  g->pool = NULL;
  pthread_mutex_lock(&p->lock);
  let_go(p);
}

/* Puts the new granule first in the list.  Uses the caller's device, whose queue zeroes the memory. */
static hk_status add_granule(hk_gpu_pool *p, hk_device *d, size_t bytes) {
  hk_status rc = HK_OK;
  hk_gpu_granule *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for what communicators share of device %d", d->limits.ordinal);
  bytes = hk_round_up(bytes, HK_DEVICE_GRANULE);
  HK_TRY(d->ops->alloc_shared(d, bytes, bytes, true, &x->memory), undo);
  x->next = p->granules;
  p->granules = x;
  return HK_OK;
undo:
  free(x);
  return rc;
}

hk_status hk_gpu_pool_get(hk_gpu *g, size_t bytes, hk_gpu_slice *slice, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_gpu_pool *p = g->pool;
  memset(out, 0, sizeof *out);
  bytes = hk_round_up(bytes, ALIGN);
  pthread_mutex_lock(&p->lock);
  if (!p->granules || p->granules->used + bytes > p->granules->memory.bytes)
    HK_TRY(add_granule(p, g->device, bytes), out);
  hk_gpu_granule *x = p->granules;
  *out = (hk_memory){.base = (char *)x->memory.base + x->used, .bytes = bytes};
  *slice = (hk_gpu_slice){p, x};
  x->used += bytes;
  x->pieces++;
  p->holders++;
  g->pooled += bytes;
out:
  pthread_mutex_unlock(&p->lock);
  return rc;
}

void hk_gpu_pool_put(hk_gpu_slice *slice) {
  hk_gpu_pool *p = slice->pool;
  hk_gpu_granule *x = slice->granule;
  *slice = (hk_gpu_slice){NULL, NULL};
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  if (--x->pieces == 0) {
    hk_gpu_granule **at = &p->granules;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    (void)p->device->ops->release(p->device, &x->memory); /* a failure is logged; there is nothing else to do */
    free(x);
  }
  let_go(p);
}

const hk_memory *hk_gpu_pool_whole(const hk_gpu_slice *slice) { return slice->pool ? &slice->granule->memory : NULL; }
