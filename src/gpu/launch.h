/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a group that are launched together on one GPU. */
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
  hk_gpu_work work;             /* the kernel's arguments of a collective */
  const hk_gpu_small *small;    /* from its plan, if the kernel of small messages runs it; NULL: another kernel does */
  struct hk_gpu_table *table;   /* table that `work` reads; NULL: none */
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

/* The stages of a communicator's collectives in the current group. */
typedef struct hk_gpu_stage {
  hk_gpu_launch_item *last; /* the newest collective; NULL: none */
  unsigned stages;          /* stages so far */
  unsigned length;          /* collectives in the newest stage */
  size_t scratch;           /* bytes of scratch that the newest stage uses */
} hk_gpu_stage;

/* `call`: its options apply; NULL: the launch of transfers. */
hk_status hk_gpu_launch(hk_gpu *g, const struct hk_call *call, hk_kernel_launch *l, hk_queue q);
#endif
