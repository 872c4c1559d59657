/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the user has registered with the communicator: large messages are sent from it without a copy, and are
 * written straight to their places in it (ib_place.c). It is registered with a device for the first message, until the
 * user deregisters it, so later messages cost nothing. */
#include "ib_memory.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../program/limits.h"
#include "ib_device.h"
#include "ib_verbs.h"

_Static_assert((int)HK_LINK_SMALL <= (int)HK_IB_SMALL, "the FIFO has no small messages of links that grow");

struct hk_ib_region {
  uintptr_t begin, end;
  hk_ib_region *next;
  bool refused[HK_IB_PORTS];   /* by the device: messages are copied */
  bool fixed[HK_IB_PORTS];     /* the device may only read it */
  hk_ibv_mr *mrs[HK_IB_PORTS]; /* for each device; NULL: not registered yet */
};

static void ib_memory_forget(hk_ib_ctx *x, hk_ib_region *r) {
  for (int i = 0; i < HK_IB_PORTS; i++) hk_ib_unregister(x, &r->mrs[i]);
  free(r);
}

static hk_ib_region *ib_memory_find(const hk_ib_ctx *x, const void *data, size_t bytes) {
  uintptr_t at = (uintptr_t)data;
  hk_ib_region *r = x->user.regions;
  while (r && !(at >= r->begin && at < r->end && bytes <= r->end - at)) r = r->next;
  return r;
}

void hk_ib_place_min(hk_ib_ctx *x, hk_link *link) {
  int64_t least = x->env->settings->IB_DIRECT;
  if (least >= 0 && least <= HK_IB_SMALL)
    least = HK_IB_SMALL + 1; /* small ones go through the ring, with their headers */
  /* relaxed: set under the lock, which is held */
  if (least < 0 || !atomic_load_explicit(&x->user.any, memory_order_relaxed)) least = 0;
  atomic_store_explicit(&link->place_min, (uint32_t)least, memory_order_relaxed); /* relaxed: hk_link_places() */
}

void hk_ib_user_memory(void *ctx, void *base, size_t bytes, bool there) {
  hk_ib_ctx *x = ctx;
  uintptr_t begin = (uintptr_t)base, end = begin + bytes;
  hk_ib_region *fresh = there && bytes ? calloc(1, sizeof *fresh) : NULL; /* NULL: messages are copied */
  pthread_mutex_lock(&x->lock);
  if (fresh) {
    *fresh = (hk_ib_region){.begin = begin, .end = end, .next = x->user.regions};
    x->user.regions = fresh;
  } else if (!there) {
    hk_ib_region **at = &x->user.regions, *r;
    while (*at && !((*at)->begin == begin && (*at)->end == end)) at = &(*at)->next;
    r = *at;
    if (r) *at = r->next;
    if (r) ib_memory_forget(x, r);
  }
  /* relaxed: a reader takes the lock before it uses the list */
  atomic_store_explicit(&x->user.any, x->user.regions != NULL, memory_order_relaxed);
  for (uint32_t i = 0; i < x->capacity; i++)
    if (x->conns[i] && x->conns[i]->recv) hk_ib_place_min(x, x->conns[i]->recv->link);
  pthread_mutex_unlock(&x->lock);
}

/* The same device may take it when it is back. */
void hk_ib_user_leave(hk_ib_ctx *x, const hk_ib_device *d) {
  const int i = (int)(d - x->devices);
  for (hk_ib_region *r = x->user.regions; r; r = r->next) {
    hk_ib_unregister(x, &r->mrs[i]);
    r->refused[i] = r->fixed[i] = false;
  }
}

void hk_ib_user_free(hk_ib_ctx *x) {
  while (x->user.regions) {
    hk_ib_region *r = x->user.regions;
    x->user.regions = r->next;
    ib_memory_forget(x, r);
  }
}

bool hk_ib_refer(void *ctx, const void *data, size_t bytes) {
  hk_ib_ctx *x = ctx;
  if (bytes <= HK_IB_SMALL || !atomic_load_explicit(&x->user.any, memory_order_relaxed))
    return false; /* relaxed: see above */
  pthread_mutex_lock(&x->lock);
  bool known = hk_ib_is_registered(x, data, bytes);
  pthread_mutex_unlock(&x->lock);
  return known;
}

bool hk_ib_is_registered(hk_ib_ctx *x, const void *data, size_t bytes) {
  return ib_memory_find(x, data, bytes) != NULL;
}

/* Memory that cannot be registered for writing is registered for reading: messages can be sent from it. */
static void ib_memory_register_host(hk_ib_ctx *x, hk_ib_device *d, hk_ib_region *r) {
  int i = (int)(d - x->devices);
  size_t bytes = r->end - r->begin;
  char why[160];
  r->mrs[i] = hk_ib_try_register(x, d, (void *)r->begin, bytes, true, why);
  if (r->mrs[i]) return;
  r->fixed[i] = true;
  if ((r->mrs[i] = x->api->reg_mr(d->pd, (void *)r->begin, bytes, 0))) {
    hk_ib_count_pinned(x, r->mrs[i]);
    return;
  }
  r->refused[i] = true;
  HK_INFO(HK_SUB_NET, "rank %d: RDMA device %s does not take the %zu registered bytes at %p (%s): they are copied",
          x->env->rank, d->name, bytes, (void *)r->begin, strerror(errno));
}

hk_ibv_mr *hk_ib_user_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes, bool writes) {
  int i = (int)(d - x->devices);
  hk_ib_region *r = ib_memory_find(x, data, bytes);
  if (d->gone) return NULL;
  if (r && !r->mrs[i] && !r->refused[i]) ib_memory_register_host(x, d, r);
  return r && !(writes && r->fixed[i]) ? r->mrs[i] : NULL;
}
