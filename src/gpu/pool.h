/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A pool of device memory that a communicator shares with its children (splitShare, shrinkShare). Each takes small
 * pieces, so that each does not round up to the driver's granules.
 *
 * A piece belongs to one communicator, so communicators use their pieces at the same time.  A piece is never handed out
 * again, because kernels of remote ranks may still write to it when they end.  A granule is freed when all its pieces
 * have ended, in any order.
 */
#ifndef HK_GPU_POOL_H
#define HK_GPU_POOL_H
#include "../device/device.h"

struct hk_gpu_granule;
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
#endif
