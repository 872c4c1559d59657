/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the user has registered with the communicator: large messages leave from where they lie in it, and are written to
 * where they belong in it (ib_place.c).  A device is given it with the first message and keeps it until the user takes the
 * registration back, so later ones cost nothing.
 * Other memory is never kept: it could be freed, and something else be mapped in its place, without anybody telling us. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/log.h"
#include "ib.h"

struct hk_ib_region {
  uintptr_t begin, end;
  hk_ib_region *next;
  bool gpu; /* it is a GPU's: no CPU gets at it */
  int fd;   /* its dma-buf, in which it begins at `offset`; -1: known by its address */
  uint64_t offset;
  bool refused[HK_IB_PORTS];   /* by the device: messages are copied */
  bool fixed[HK_IB_PORTS];     /* the device may only read it */
  hk_ibv_mr *mrs[HK_IB_PORTS]; /* by device; NULL: not given to it yet */
};

static void forget(hk_ib_ctx *x, hk_ib_region *r) {
  for (int i = 0; i < HK_IB_PORTS; i++) hk_ib_unregister(x, &r->mrs[i]);
  if (r->fd >= 0) close(r->fd);
  free(r);
}

static hk_ib_region *find(const hk_ib_ctx *x, const void *data, size_t bytes) {
  uintptr_t at = (uintptr_t)data;
  hk_ib_region *r = x->regions;
  while (r && !(at >= r->begin && at < r->end && bytes <= r->end - at)) r = r->next;
  return r;
}

void hk_ib_user_memory(void *ctx, void *base, size_t bytes, bool there) {
  hk_ib_ctx *x = ctx;
  uintptr_t begin = (uintptr_t)base, end = begin + bytes;
  hk_ib_region *fresh = there && bytes ? calloc(1, sizeof *fresh) : NULL; /* without memory for it, it is copied */
  pthread_mutex_lock(&x->lock);
  if (fresh) {
    *fresh = (hk_ib_region){.begin = begin, .end = end, .next = x->regions, .fd = -1};
    x->regions = fresh;
  } else if (!there) {
    hk_ib_region **at = &x->regions, *r;
    while (*at && !((*at)->begin == begin && (*at)->end == end)) at = &(*at)->next;
    r = *at;
    if (r) *at = r->next;
    if (r) forget(x, r);
  }
  /* relaxed: whoever reads it takes the lock before he looks closer */
  atomic_store_explicit(&x->any_region, x->regions != NULL, memory_order_relaxed);
  for (uint32_t i = 0; i < x->room; i++)
    if (x->conns[i] && x->conns[i]->recv) hk_ib_place_min(x, x->conns[i]->recv->link);
  pthread_mutex_unlock(&x->lock);
}

void hk_ib_user_free(hk_ib_ctx *x) {
  while (x->regions) {
    hk_ib_region *r = x->regions;
    x->regions = r->next;
    forget(x, r);
  }
}

bool hk_ib_refer(void *ctx, const void *data, size_t bytes) {
  hk_ib_ctx *x = ctx;
  if (bytes <= HK_IB_SMALL || !atomic_load_explicit(&x->any_region, memory_order_relaxed)) return false; /* see above */
  pthread_mutex_lock(&x->lock);
  bool known = find(x, data, bytes) != NULL;
  pthread_mutex_unlock(&x->lock);
  return known;
}

bool hk_ib_is_registered(const hk_ib_ctx *x, const void *data, size_t bytes) { return find(x, data, bytes) != NULL; }

static void give_gpu_to_device(hk_ib_ctx *x, hk_ib_device *d, hk_ib_region *r, char why[HK_GDR_WHY]) {
  int i = (int)(d - x->devices);
  hk_ib_gpu_memory m;
  hk_ib_gpu_register_as(x->api, d->pd, r->fd, r->offset, (void *)r->begin, r->end - r->begin, &m);
  r->mrs[i] = m.mr;
  r->refused[i] = !m.mr;
  snprintf(why, HK_GDR_WHY, "%s", m.why);
  if (m.mr) hk_ib_count_pinned(x, m.mr);
}

hk_status hk_ib_user_gpu_memory(void *ctx, hk_net_end *e, void *base, size_t bytes, int fd, uint64_t offset) {
  hk_ib_ctx *x = ctx;
  hk_ib_conn *c = e->priv;
  char why[HK_GDR_WHY] = "no memory";
  const char *device = "no device";
  bool taken = true;
  hk_ib_region *r = calloc(1, sizeof *r);
  if (!r) return HK_FAIL_ERRNO("no memory for a registration");
  uintptr_t begin = (uintptr_t)base;
  *r = (hk_ib_region){.begin = begin, .end = begin + bytes, .gpu = true, .fd = -1, .offset = offset};
  if (fd >= 0 &&
      (r->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) { /* the caller closes his; others of our devices may need it */
    free(r);
    return HK_FAIL_ERRNO("cannot keep a dma-buf's file descriptor");
  }
  pthread_mutex_lock(&x->lock);
  for (uint32_t i = 0; i < c->npaths && taken; i++) {
    hk_ib_device *d = c->paths[i].device;
    device = d->name;
    if (!r->mrs[d - x->devices]) give_gpu_to_device(x, d, r, why);
    taken = r->mrs[d - x->devices] != NULL;
  }
  if (taken) {
    r->next = x->regions;
    x->regions = r;
    atomic_store_explicit(&x->any_region, true, memory_order_relaxed); /* as above */
  } else {
    forget(x, r);
  }
  pthread_mutex_unlock(&x->lock);
  return taken ? HK_OK
               : HK_FAIL(HK_ERR_SYSTEM, "%zu bytes of a GPU's memory at %p cannot be registered with %s: %s", bytes,
                         base, device, why);
}

/* Memory that may not be written will do for messages that leave from it. */
static void give_to_device(hk_ib_ctx *x, hk_ib_device *d, hk_ib_region *r) {
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
  hk_ib_region *r = find(x, data, bytes);
  char why[HK_GDR_WHY];
  if (r && !r->mrs[i] && !r->refused[i] && r->gpu) give_gpu_to_device(x, d, r, why);
  if (r && !r->mrs[i] && !r->refused[i]) give_to_device(x, d, r);
  return r && !(writes && r->fixed[i]) ? r->mrs[i] : NULL;
}
