/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "memory.h"

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

bool hk_gpu_pool_join(hk_gpu_pooled *own, const hk_gpu_pooled *lender) {
  hk_gpu_pool *p = lender->pool;
  if (!p || p->device->limits.ordinal != own->device->limits.ordinal) return false;
  pthread_mutex_lock(&p->lock);
  p->holders++;
  pthread_mutex_unlock(&p->lock);
  own->pool = p;
  return true;
}

hk_status hk_gpu_pool_new(hk_gpu_pooled *own) {
  hk_status rc = HK_OK;
  const int device = own->device->limits.ordinal;
  hk_gpu_pool *p = calloc(1, sizeof *p);
  if (!p) return HK_FAIL_ERRNO("no memory for what communicators share of device %d", device);
  HK_TRY(hk_cuda_open(device, &p->device), undo);
  pthread_mutex_init(&p->lock, NULL);
  p->holders = 1;
  own->pool = p;
  return HK_OK;
undo:
  free(p);
  return rc;
}

/* Called with the lock held; unlocks it.  After the last holder no granule is left, because each granule has a piece,
 * and pieces are holders. */
static void pool_let_go(hk_gpu_pool *p) {
  const bool last = --p->holders == 0;
  pthread_mutex_unlock(&p->lock);
  if (!last) return;
  p->device->ops->close(p->device);
  pthread_mutex_destroy(&p->lock);
  free(p);
}

void hk_gpu_pool_leave(hk_gpu_pooled *own) {
  hk_gpu_pool *p = own->pool;
  if (!p) return;
  own->pool = NULL;
  pthread_mutex_lock(&p->lock);
  pool_let_go(p);
}

/* Puts the new granule first in the list.  Uses the caller's device, whose queue zeroes the memory. */
static hk_status pool_add_granule(hk_gpu_pool *p, hk_device *d, size_t bytes) {
  hk_status rc = HK_OK;
  hk_gpu_granule *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for what communicators share of device %d", d->limits.ordinal);
  bytes = hk_round_up(bytes, HK_DEVICE_GRANULE);
  HK_TRY(d->ops->memory->alloc_shared(d, bytes, bytes, true, &x->memory), undo);
  x->next = p->granules;
  p->granules = x;
  return HK_OK;
undo:
  free(x);
  return rc;
}

hk_status hk_gpu_pool_get(hk_gpu_pooled *own, size_t bytes, hk_gpu_slice *slice, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_gpu_pool *p = own->pool;
  memset(out, 0, sizeof *out);
  bytes = hk_round_up(bytes, ALIGN);
  pthread_mutex_lock(&p->lock);
  if (!p->granules || p->granules->used + bytes > p->granules->memory.bytes)
    HK_TRY(pool_add_granule(p, own->device, bytes), out);
  hk_gpu_granule *x = p->granules;
  *out = (hk_memory){.base = (char *)x->memory.base + x->used, .bytes = bytes};
  *slice = (hk_gpu_slice){p, x};
  x->used += bytes;
  x->pieces++;
  p->holders++;
  own->bytes += bytes;
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
    HK_LIST_REMOVE(p->granules, x, next);
    (void)p->device->ops->memory->release(p->device, &x->memory); /* a failure is logged; there is nothing else to do */
    free(x);
  }
  pool_let_go(p);
}

const hk_memory *hk_gpu_pool_whole(const hk_gpu_slice *slice) { return slice->pool ? &slice->granule->memory : NULL; }
