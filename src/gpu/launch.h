/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a group that are launched together on one GPU, and the parts of the launch (run.c, copy.c,
 * transfers.c). */
#ifndef HK_GPU_LAUNCH_H
#define HK_GPU_LAUNCH_H
#include "../kernels/cuda/work.h"
#include "gpu.h"

/* A call of a group. */
typedef struct hk_gpu_launch_item {
  const struct hk_call *call;
  hk_gpu *gpu;
  uint64_t comm_id;
  hk_queue_state state;
  hk_gpu_work work;             /* of a collective */
  const hk_gpu_small *small;    /* of its plan, for the kernel of small messages; NULL: it is not for that one */
  hk_gpu_table *table;          /* which `work` reads; NULL: none */
  struct hk_gpu_buffer *window; /* not NULL: copy engines run it; NULL: a kernel does */
  unsigned blocks, threads;
  unsigned stage;                  /* of the collectives of its communicator in the group, from 0 */
  struct hk_gpu_launch_item *then; /* of the same stage: the blocks of this one run it next; NULL: none */
  bool chained;                    /* it is another piece's `then` */
  bool placed;
  void *event; /* a profiler's; NULL: none */
} hk_gpu_launch_item;

/* The pieces that are launched together: those on one device, and in the same capture or in none. */
typedef struct hk_gpu_launch_batch {
  hk_gpu_launch_item **at;
  size_t n;
  hk_gpu *gpu;
  hk_queue queue; /* on which all is launched: the first piece's, which has its state */
} hk_gpu_launch_batch;

/* table.c */
/* A table that no launch uses.  It is the caller's until hk_gpu_table_put, which accepts NULL. */
hk_status hk_gpu_table_get(hk_gpu *g, size_t bytes, hk_gpu_table **out);
void hk_gpu_table_put(hk_gpu_table *t);
/* A launch in the queue reads the table: keeps it until the launch has ended, or its graph is destroyed. */
hk_status hk_gpu_table_used(hk_gpu *g, hk_gpu_table *t, const hk_queue_state *s, hk_queue q);

/* run.c */
/* `call` has options of its own; NULL: transfers. */
hk_status hk_gpu_launch(hk_gpu *g, const struct hk_call *call, hk_kernel_launch *l, hk_queue q);

/* small.c */
/* Launches the pieces, if all are for that kernel; *done is false if not. */
hk_status hk_gpu_small_launch(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q, bool *done);

/* copy.c */
hk_status hk_gpu_copy_run(const hk_gpu_launch_item *p, hk_queue q);

/* transfers.c */
hk_status hk_gpu_offer_transfer(const struct hk_call *call);
/* Gets the links: to be called for all transfers of a group before its first launch. */
hk_status hk_gpu_ready_transfer(const struct hk_call *call);
/* Launches all sends and receives of the set at once. */
hk_status hk_gpu_launch_transfers(const hk_gpu_launch_batch *s);
#endif
