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
#include "gpu.h"

typedef struct hk_gpu_pool hk_gpu_pool;

/* g->pool: the lender's, or a new one if the communicator may lend; NULL: neither. */
hk_status hk_gpu_pool_begin(ncclComm_t c);
/* Zeroed memory from g->pool.  From any thread. */
hk_status hk_gpu_pool_get(hk_gpu *g, size_t bytes, hk_gpu_slice *slice, hk_memory *out);
/* No kernel of this process uses the piece any more.  Accepts an empty slice. */
void hk_gpu_pool_put(hk_gpu_slice *slice);
/* The allocation that contains the piece, which other processes open; NULL for an empty slice. */
const hk_memory *hk_gpu_pool_whole(const hk_gpu_slice *slice);
void hk_gpu_pool_leave(hk_gpu *g);
#endif
