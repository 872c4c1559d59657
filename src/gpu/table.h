/* SPDX-License-Identifier: Apache-2.0 */
/* Tables in pinned memory that launches read.  A table is reused after the launch has ended, or after the launch's
 * graph is destroyed. */
#ifndef HK_GPU_TABLE_H
#define HK_GPU_TABLE_H
#include "../device/device.h"

struct hk_gpu_memory;

typedef struct hk_gpu_table {
  hk_memory memory;
  hk_queue_order order;
  _Atomic(int) refs; /* held by the communicator, a graph, and a call that is being enqueued */
  struct hk_gpu_table *next;
} hk_gpu_table;

/* Tables that are allocated at init: pinning memory later could wait for kernels that wait for this rank. */
enum { HK_GPU_TABLES = 8, HK_GPU_TABLE_BYTES = 16384, HK_GPU_TABLES_BYTES = HK_GPU_TABLES * HK_GPU_TABLE_BYTES };

/* Makes the first tables in `memory`, from offset `at` on. */
hk_status hk_gpu_tables_begin(struct hk_gpu_memory *m, const hk_memory *memory, size_t at);
void hk_gpu_tables_end(struct hk_gpu_memory *m);
/* A table that no launch uses.  It is the caller's until hk_gpu_table_put, which accepts NULL. */
hk_status hk_gpu_table_get(struct hk_gpu_memory *m, size_t bytes, hk_gpu_table **out);
void hk_gpu_table_put(hk_gpu_table *t);
/* Keeps the table until the launch in the queue that reads it has ended, or its graph is destroyed. */
hk_status hk_gpu_table_used(hk_device *d, hk_gpu_table *t, const hk_queue_state *s, hk_queue q);
#endif
