/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that lives as long as the communicator. Device memory: for plans, the ends of transfers, and tables. Pinned
 * host memory: for links over the network, and for more tables.
 *
 * The first device memory is the unused rest of the credits' granule. Further device memory is virtual memory, and so
 * is host memory if the driver supports it.  Allocating classic memory or other pinned memory waits for all work on the
 * device. If a kernel waited for a launch of this thread, that would be a deadlock. */
#include <stdlib.h>
#include <string.h>
#include "../program/program.h"
#include "pool.h"
#include "process_group.h"

enum { CHUNK_BYTES = 65536, ALIGN = 256, PAGE = 4096 };

static hk_status add_chunk(hk_gpu *g, hk_gpu_chunk **list, size_t bytes, bool host) {
  hk_status rc = HK_OK;
  const hk_device_ops *ops = g->device->ops;
  hk_gpu_chunk *k = calloc(1, sizeof *k);
  if (!k) return HK_FAIL_ERRNO("no memory for plans on device %d", g->device->limits.ordinal);
  if (bytes < CHUNK_BYTES) bytes = CHUNK_BYTES;
  if (g->pool && !host)
    HK_TRY(hk_gpu_pool_get(g, bytes, &k->slice, &k->memory), undo);
  else
    HK_TRY(host ? ops->alloc_host_late(g->device, bytes, &k->memory)
                : ops->alloc_shared(g->device, bytes, 0, true, &k->memory),
           undo);
  k->at = k->memory.base;
  k->bytes = k->memory.bytes;
  k->next = *list;
  *list = k;
  return HK_OK;
undo:
  free(k);
  return rc;
}

hk_status hk_gpu_arena_begin(ncclComm_t c) {
  hk_gpu *g = hk_gpu_of(c);
  const hk_memory *credits = &g->group->credits[c->rank];
  const size_t used = hk_round_up(hk_gpu_credit_bytes(c->nranks), ALIGN);
  hk_gpu_chunk *k = calloc(1, sizeof *k);
  if (!k) return HK_FAIL_ERRNO("no memory for plans on device %d", g->device->limits.ordinal);
  k->at = (char *)credits->base + used;
  k->bytes = credits->bytes > used ? credits->bytes - used : 0;
  g->arena = g->first_chunk = k;
  return HK_OK;
}

hk_status hk_gpu_arena_get(hk_gpu *g, size_t bytes, void **out) {
  *out = NULL;
  bytes = hk_round_up(bytes, ALIGN);
  if (g->arena->used + bytes > g->arena->bytes) HK_OR_RETURN(add_chunk(g, &g->arena, bytes, false));
  *out = g->arena->at + g->arena->used;
  g->arena->used += bytes;
  return HK_OK;
}

hk_status hk_gpu_pinned_get(hk_gpu *g, hk_gpu_pinned which, size_t bytes, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_gpu_chunk **list = &g->pinned[which];
  memset(out, 0, sizeof *out);
  bytes = hk_round_up(bytes, PAGE);
  pthread_mutex_lock(&g->pinned_lock); /* the proxy's thread allocates, too */
  if (!*list || (*list)->used + bytes > (*list)->bytes) HK_TRY(add_chunk(g, list, bytes, true), out);
  hk_gpu_chunk *k = *list;
  *out = (hk_memory){.base = k->at + k->used, .host = (char *)k->memory.host + k->used, .bytes = bytes};
  k->used += bytes;
out:
  pthread_mutex_unlock(&g->pinned_lock);
  return rc;
}

void hk_gpu_pinned_unget(hk_gpu *g, hk_gpu_pinned which, hk_memory *m) {
  pthread_mutex_lock(&g->pinned_lock);
  hk_gpu_chunk *k = g->pinned[which];
  if ((char *)m->base + m->bytes == k->at + k->used) k->used -= m->bytes; /* else the proxy has allocated after it */
  pthread_mutex_unlock(&g->pinned_lock);
  memset(m, 0, sizeof *m);
}

static void free_chunks(hk_gpu *g, hk_gpu_chunk **list) {
  while (*list) {
    hk_gpu_chunk *k = *list;
    *list = k->next;
    (void)g->device->ops->release(g->device, &k->memory); /* a failure is logged, and nothing else to do */
    hk_gpu_pool_put(&k->slice);
    free(k);
  }
}

void hk_gpu_arena_free(hk_gpu *g) {
  free_chunks(g, &g->arena);
  for (int i = 0; i < HK_GPU_PINNED; i++) free_chunks(g, &g->pinned[i]);
}
