/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that launches read: transfers of a group, blocks of an uneven call. */
#include <stdatomic.h>
#include <stdlib.h>
#include "memory.h"

static hk_status table_reusable(hk_gpu_memory *m, hk_gpu_table *t, size_t bytes, bool *yes) {
  bool done = false;
  *yes = false;
  if (t->memory.bytes < bytes || atomic_load(&t->refs) > 1) return HK_OK;
  hk_status rc = m->device->ops->order->done(m->device, &t->order, &done);
  *yes = done;
  return rc;
}

static hk_status table_new_table(hk_gpu_memory *m, hk_gpu_table **out) {
  hk_gpu_table *t = calloc(1, sizeof *t);
  if (!t) return HK_FAIL_ERRNO("no memory for a table");
  atomic_store(&t->refs, 1);
  t->next = m->tables;
  m->tables = *out = t;
  return HK_OK;
}

hk_status hk_gpu_tables_begin(hk_gpu_memory *m, const hk_memory *memory, size_t at) {
  hk_gpu_table *t = NULL;
  for (size_t i = 0; i < HK_GPU_TABLES; i++, at += HK_GPU_TABLE_BYTES) {
    HK_OR_RETURN(table_new_table(m, &t));
    t->memory = (hk_memory){.base = (char *)memory->base + at, .host = (char *)memory->host + at};
    t->memory.bytes = HK_GPU_TABLE_BYTES;
  }
  return HK_OK;
}

void hk_gpu_tables_end(hk_gpu_memory *m) {
  while (m->tables) {
    hk_gpu_table *t = m->tables;
    m->tables = t->next;
    (void)m->device->ops->memory->release(m->device, &t->memory);
    (void)m->device->ops->order->free(m->device, &t->order);
    hk_gpu_table_put(t); /* the end of a graph may free it */
  }
}

hk_status hk_gpu_table_get(hk_gpu_memory *m, size_t bytes, hk_gpu_table **out) {
  hk_gpu_table *t = NULL;
  *out = NULL;
  for (t = m->tables; t; t = t->next) {
    bool yes;
    HK_OR_RETURN(table_reusable(m, t, bytes, &yes));
    if (yes) break;
  }
  if (!t) {
    HK_OR_RETURN(table_new_table(m, &t));
    HK_OR_RETURN(hk_gpu_pinned_get(m, HK_GPU_PINNED_STAYS, bytes < HK_GPU_TABLE_BYTES ? HK_GPU_TABLE_BYTES : bytes,
                                   &t->memory)); /* if it fails, the table has no bytes, and no call uses it */
  }
  atomic_fetch_add(&t->refs, 1);
  *out = t;
  return HK_OK;
}

void hk_gpu_table_put(hk_gpu_table *t) {
  if (t && atomic_fetch_sub(&t->refs, 1) == 1) free(t);
}

/* Called on a thread of the driver, which may not call CUDA. */
static void table_graph_gone(void *arg) { hk_gpu_table_put(arg); }

hk_status hk_gpu_table_used(hk_device *d, hk_gpu_table *t, const hk_queue_state *s, hk_queue q) {
  if (!s->capturing) return d->ops->order->end(d, &t->order, q, s);
  atomic_fetch_add(&t->refs, 1);
  return d->ops->graph->keep(d, s, table_graph_gone, t);
}
