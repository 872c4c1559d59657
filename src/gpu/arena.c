/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that lives as long as the communicator. Device memory: for plans, the ends of transfers, and tables. Pinned
 * host memory: for links over the network, and for more tables.
 *
 * The first device memory is the unused rest of the credits' granule. Further device memory is virtual memory, and so
 * is host memory if the driver supports it.  Allocating classic memory or other pinned memory waits for all work on the
 * device. If a kernel waited for a launch of this thread, that would be a deadlock. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "memory.h"

enum { CHUNK_BYTES = 65536, ALIGN = 256, PAGE = 4096 };

static hk_status arena_add_chunk(hk_gpu_memory *m, hk_gpu_chunk **list, size_t bytes, bool host) {
  hk_status rc = HK_OK;
  const hk_device_ops *ops = m->device->ops;
  hk_gpu_chunk *k = calloc(1, sizeof *k);
  if (!k) return HK_FAIL_ERRNO("no memory for plans on device %d", m->device->limits.ordinal);
  if (bytes < CHUNK_BYTES) bytes = CHUNK_BYTES;
  if (m->pooled.pool && !host)
    HK_TRY(hk_gpu_pool_get(&m->pooled, bytes, &k->slice, &k->memory), undo);
  else
    HK_TRY(host ? ops->memory->alloc_host_late(m->device, bytes, &k->memory)
                : ops->memory->alloc_shared(m->device, bytes, 0, true, &k->memory),
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

hk_status hk_gpu_arena_begin(hk_gpu_memory *m, const hk_memory *credits, size_t used) {
  hk_gpu_chunk *k = calloc(1, sizeof *k);
  if (!k) return HK_FAIL_ERRNO("no memory for plans on device %d", m->device->limits.ordinal);
  used = hk_round_up(used, ALIGN);
  k->at = (char *)credits->base + used;
  k->bytes = credits->bytes > used ? credits->bytes - used : 0;
  m->arena = m->first_chunk = k;
  return HK_OK;
}

hk_status hk_gpu_arena_get(hk_gpu_memory *m, size_t bytes, void **out) {
  *out = NULL;
  bytes = hk_round_up(bytes, ALIGN);
  if (m->arena->used + bytes > m->arena->bytes) HK_OR_RETURN(arena_add_chunk(m, &m->arena, bytes, false));
  *out = m->arena->at + m->arena->used;
  m->arena->used += bytes;
  return HK_OK;
}

hk_status hk_gpu_pinned_get(hk_gpu_memory *m, hk_gpu_pinned which, size_t bytes, hk_memory *out) {
  hk_status rc = HK_OK;
  hk_gpu_chunk **list = &m->pinned[which];
  memset(out, 0, sizeof *out);
  bytes = hk_round_up(bytes, PAGE);
  pthread_mutex_lock(&m->pinned_lock); /* the proxy's thread allocates, too */
  if (!*list || (*list)->used + bytes > (*list)->bytes) HK_TRY(arena_add_chunk(m, list, bytes, true), out);
  hk_gpu_chunk *k = *list;
  *out = (hk_memory){.base = k->at + k->used, .host = (char *)k->memory.host + k->used, .bytes = bytes};
  k->used += bytes;
out:
  pthread_mutex_unlock(&m->pinned_lock);
  return rc;
}

void hk_gpu_pinned_unget(hk_gpu_memory *m, hk_gpu_pinned which, hk_memory *piece) {
  pthread_mutex_lock(&m->pinned_lock);
  hk_gpu_chunk *k = m->pinned[which];
  if ((char *)piece->base + piece->bytes == k->at + k->used)
    k->used -= piece->bytes; /* else the proxy has allocated after it */
  pthread_mutex_unlock(&m->pinned_lock);
  memset(piece, 0, sizeof *piece);
}

hk_status hk_gpu_scratch(hk_gpu_memory *m, size_t after, size_t bytes, char **out) {
  hk_memory more;
  if (m->scratch.bytes < after + bytes) {
    size_t wanted = after + bytes < 2 * m->scratch.bytes ? 2 * m->scratch.bytes : after + bytes;
    if (!HK_RESERVE_NEXT(m->old, m->nold)) return HK_FAIL_ERRNO("no memory for scratch");
    HK_OR_RETURN(m->device->ops->memory->alloc_shared(m->device, wanted, 0, true, &more)); /* not classic memory */
    if (m->scratch.base) m->old[m->nold++] = m->scratch;
    m->scratch = more;
  }
  *out = (char *)m->scratch.base + after;
  return HK_OK;
}

static void arena_free_chunks(hk_gpu_memory *m, hk_gpu_chunk **list) {
  while (*list) {
    hk_gpu_chunk *k = *list;
    *list = k->next;
    (void)m->device->ops->memory->release(m->device, &k->memory); /* a failure is logged, and nothing else to do */
    hk_gpu_pool_put(&k->slice);
    free(k);
  }
}

void hk_gpu_arena_free(hk_gpu_memory *m) {
  arena_free_chunks(m, &m->arena);
  for (int i = 0; i < HK_GPU_PINNED; i++) arena_free_chunks(m, &m->pinned[i]);
  hk_gpu_pool_leave(&m->pooled);
  (void)m->device->ops->memory->release(m->device, &m->scratch);
  for (size_t i = 0; i < m->nold; i++) (void)m->device->ops->memory->release(m->device, &m->old[i]);
  free(m->old);
}
