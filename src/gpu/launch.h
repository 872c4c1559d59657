/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a group that are launched together on one GPU, and the parts of the launch (run.c, copy.c,
 * transfers.c). */
#ifndef HK_GPU_LAUNCH_H
#define HK_GPU_LAUNCH_H
#include "../kernels/cuda/work.h"
#include "gpu.h"
#include "table.h"

/* A call of a group. */
typedef struct hk_gpu_launch_item {
  const struct hk_call *call;
  hk_gpu *gpu;
  uint64_t comm_id;
  hk_queue_state state;
  hk_gpu_work work;             /* the kernel's arguments of a collective */
  const hk_gpu_small *small;    /* from its plan, if the kernel of small messages runs it; NULL: another kernel does */
  hk_gpu_table *table;          /* table that `work` reads; NULL: none */
  struct hk_gpu_buffer *window; /* not NULL: copy engines run it; NULL: a kernel does */
  unsigned blocks, threads;
  unsigned stage;                  /* its stage among the communicator's collectives in the group, from 0 */
  struct hk_gpu_launch_item *then; /* next collective of the same stage, which the same blocks run; NULL: none */
  bool chained;                    /* it is another piece's `then` */
  bool placed;
  void *event; /* of a profiler; NULL: none */
} hk_gpu_launch_item;

/* The pieces that are launched together: those on one device, and in the same capture or in none. */
typedef struct hk_gpu_launch_batch {
  hk_gpu_launch_item **at;
  size_t n;
  hk_gpu *gpu;
  hk_queue queue; /* the stream of all launches: the first piece's, with that piece's state */
} hk_gpu_launch_batch;

/* run.c */
/* `call`: its options apply; NULL: the launch of transfers. */
hk_status hk_gpu_launch(hk_gpu *g, const struct hk_call *call, hk_kernel_launch *l, hk_queue q);

/* small.c */
/* Launches the pieces if all are for the kernel of small messages; else *done is false. */
hk_status hk_gpu_small_launch(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q, bool *done);

/* copy.c */
hk_status hk_gpu_copy_run(const hk_gpu_launch_item *p, hk_queue q);

/* transfers.c */
hk_status hk_gpu_offer_transfer(const struct hk_call *call);
/* Gets the links. Call it for all transfers of a group before the group's first launch. */
hk_status hk_gpu_ready_transfer(const struct hk_call *call);
/* Launches all sends and receives of the set at once. */
hk_status hk_gpu_launch_transfers(const hk_gpu_launch_batch *s);
#endif
