/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory of a GPU that a communicator and the children to which it lends (splitShare, shrinkShare) have together: each
 * takes small pieces of it, so that not each of them takes whole granules of the driver.
 *
 * A piece is its owner's alone, so what the communicators do on it runs at the same time.  It is not given out again
 * after its end: ranks of other processes may still write to it, as kernels that end do, and find it as they left it.
 * A granule is given back when all its pieces have ended, in whatever order the communicators end.
 */
#ifndef HK_GPU_POOL_H
#define HK_GPU_POOL_H
#include "gpu.h"

typedef struct hk_gpu_pool hk_gpu_pool;

/* g->pool: the lender's, or a new one if the communicator may lend; NULL: neither. */
hk_status hk_gpu_pool_begin(ncclComm_t c);
/* Memory of zeros of g->pool.  From any thread. */
hk_status hk_gpu_pool_get(hk_gpu *g, size_t bytes, hk_gpu_slice *slice, hk_memory *out);
/* No kernel of this process uses the piece any more.  Accepts an empty slice. */
void hk_gpu_pool_put(hk_gpu_slice *slice);
/* What other processes open, in which the piece lies; NULL for an empty slice. */
const hk_memory *hk_gpu_pool_whole(const hk_gpu_slice *slice);
void hk_gpu_pool_leave(hk_gpu *g);
#endif
