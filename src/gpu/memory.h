/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a communicator on a GPU, and its users' memory. */
#pragma once
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../device/device.h"

struct hk_gpu_granule;

/* ---- pool.c: device memory that a communicator shares with its children (splitShare, shrinkShare) ----
 * Each takes small pieces, so that each does not round up to the driver's granules.
 *
 * A piece belongs to one communicator, so communicators use their pieces at the same time.  A piece is never handed out
 * again, because kernels of remote ranks may still write to it when they end.  A granule is freed when all its pieces
 * have ended, in any order. */
typedef struct hk_gpu_pool hk_gpu_pool;

/* A communicator's part of a pool. */
typedef struct hk_gpu_pooled {
  hk_device *device; /* the communicator's; its queue zeroes new memory */
  hk_gpu_pool *pool; /* NULL: the communicator shares no memory */
  size_t bytes;      /* of this communicator's pieces */
} hk_gpu_pooled;

/* A piece's references to its pool and granule.  NULL, both: it is not from a pool. */
typedef struct hk_gpu_slice {
  hk_gpu_pool *pool;
  struct hk_gpu_granule *granule;
} hk_gpu_slice;

/* Joins the lender's pool if that is of the same device. */
bool hk_gpu_pool_join(hk_gpu_pooled *own, const hk_gpu_pooled *lender);
/* For a communicator that may lend. */
hk_status hk_gpu_pool_new(hk_gpu_pooled *own);
/* Zeroed memory.  From any thread. */
hk_status hk_gpu_pool_get(hk_gpu_pooled *own, size_t bytes, hk_gpu_slice *slice, hk_memory *out);
/* No kernel of this process uses the piece any more.  Accepts an empty slice. */
void hk_gpu_pool_put(hk_gpu_slice *slice);
/* The allocation that contains the piece, which other processes open; NULL for an empty slice. */
const hk_memory *hk_gpu_pool_whole(const hk_gpu_slice *slice);
void hk_gpu_pool_leave(hk_gpu_pooled *own);

/* ---- arena.c: memory that lives as long as the communicator ---- */
/* A chunk of the arena. */
typedef struct hk_gpu_chunk {
  hk_memory memory; /* base NULL: the chunk is the rest of the credits' memory */
  hk_gpu_slice slice;
  char *at;
  size_t bytes, used;
  struct hk_gpu_chunk *next;
} hk_gpu_chunk;

/* Kinds of pinned memory: kept until the end; payloads, which a suspended communicator gives back. */
typedef enum hk_gpu_pinned { HK_GPU_PINNED_STAYS, HK_GPU_PINNED_PAYLOADS, HK_GPU_PINNED } hk_gpu_pinned;

typedef struct hk_gpu_memory {
  hk_device *device;
  hk_gpu_pooled pooled;
  hk_gpu_chunk *arena, *first_chunk; /* first_chunk: in the credits' memory */
  hk_gpu_chunk *pinned[HK_GPU_PINNED];
  pthread_mutex_t pinned_lock;
  hk_memory scratch, *old; /* old: earlier, smaller scratch, which earlier launches still use */
  size_t nold;
  struct hk_gpu_table *tables;
} hk_gpu_memory;

/* The memory after the first `used` bytes of the credits becomes the first chunk. */
hk_status hk_gpu_arena_begin(hk_gpu_memory *m, const hk_memory *credits, size_t used);
/* Device memory; not zeroed. */
hk_status hk_gpu_arena_get(hk_gpu_memory *m, size_t bytes, void **out);
/* Zeroed pinned memory in whole pages; hk_gpu_arena_free releases it.  unget: returns the result of the last get. */
hk_status hk_gpu_pinned_get(hk_gpu_memory *m, hk_gpu_pinned which, size_t bytes, hk_memory *out);
void hk_gpu_pinned_unget(hk_gpu_memory *m, hk_gpu_pinned which, hk_memory *piece);
/* Returns `bytes` of the scratch from offset `after` on.  Scratch of earlier launches remains valid. */
hk_status hk_gpu_scratch(hk_gpu_memory *m, size_t after, size_t bytes, char **out);
void hk_gpu_arena_free(hk_gpu_memory *m);

/* ---- table.c: tables in pinned memory that launches read ----
 * A table is reused after the launch has ended, or after the launch's graph is destroyed. */
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

/* ---- memory.c: users' memory ---- */
enum { HK_GPU_RANGES = 4 };

/* Memory that passed hk_gpu_check_pointer. */
typedef struct hk_gpu_checked {
  struct {
    uintptr_t begin, end;
  } good[HK_GPU_RANGES];
  unsigned next;
} hk_gpu_checked;

/* Zeroed memory that other processes can open. */
hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out);
/* False if `p` is not from hk_gpu_mem_alloc. */
bool hk_gpu_mem_free(void *p, hk_status *rc);
/* HK_ERR_ARGUMENT if c's device cannot use `p`. */
hk_status hk_gpu_check_pointer(ncclComm_t c, const char *what, const void *p, size_t bytes);
