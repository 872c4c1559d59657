/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that lives as long as the communicator. */
#ifndef HK_GPU_ARENA_H
#define HK_GPU_ARENA_H
#include <pthread.h>
#include "pool.h"

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
  struct hk_gpu_table *tables; /* table.h */
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
#endif
