/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a group that are launched together on one GPU. */
#pragma once
#include "../kernels/cuda/work.h"
#include "gpu.h"

/* A call of a group. */
typedef struct hk_gpu_launch_item {
  const struct hk_call *call;
  hk_gpu *gpu;
  const struct hk_gpu_executor *by;
  uint64_t comm_id;
  hk_queue_state state;
  hk_gpu_work work;             /* the kernel's arguments of a collective */
  const hk_gpu_small *small;    /* from its plan, if the kernel of small messages runs it; NULL: another kernel does */
  struct hk_gpu_table *table;   /* table that `work` reads; NULL: none */
  struct hk_gpu_buffer *window; /* of its output, if copy engines run it */
  unsigned blocks, threads;
  unsigned stage;                  /* its stage among the communicator's collectives in the group, from 0 */
  struct hk_gpu_launch_item *then; /* next collective of the same stage, which the same blocks run; NULL: none */
  bool chained;                    /* it is another item's `then` */
  bool placed;
  void *event; /* of a profiler; NULL: none */
} hk_gpu_launch_item;

/* The items that are launched together: those on one device, and in the same capture or in none. */
typedef struct hk_gpu_launch_batch {
  hk_gpu_launch_item **at; /* [n], and room for as many */
  size_t n;
  hk_gpu *gpu;
  hk_queue queue; /* the stream of all launches: the first item's, with that item's state */
} hk_gpu_launch_batch;

/* A way to run calls: by kernels, by copy engines, or all sends and receives of a group in one launch. */
typedef struct hk_gpu_executor {
  /* If ranks are in several processes: offers the links that the call needs. NULL: it needs none. */
  hk_status (*offer)(const struct hk_call *call);
  /* Gets links and arguments, for all calls of a group before the group's first launch. */
  hk_status (*arguments)(hk_gpu_launch_item *p);
  /* Launches items of the batch: all that it runs of one stage. */
  hk_status (*launch)(const hk_gpu_launch_batch *s, hk_gpu_launch_item **at, size_t n);
} hk_gpu_executor;
/* ---- stage.c: how a call runs ---- */
/* Makes the call's item; `before`: the item of the call before it, or NULL. */
hk_status hk_gpu_stage_item(const struct hk_call *call, const hk_gpu_launch_item *before, hk_gpu_launch_item *p);
/* Chooses the executor; the result is the same on all ranks. */
hk_status hk_gpu_stage_executor(hk_gpu_launch_item *p);
/* Successive collectives of a communicator with the same plan are one stage: the blocks of the first also run the
 * others, each over its own links.  The stages of all communicators are launched in turn.  All ranks form the same
 * stages, because they agree on plans and on the largest number of ranks on a GPU. */
hk_status hk_gpu_stage_choose(hk_gpu_launch_item *p);

/* ---- batch.c ---- */
/* If it fails, the communicators of its calls have ended. */
hk_status hk_gpu_batch_run(hk_gpu_launch_batch *s);
/* Records work that was put into the queue, and lets the proxy look for it. */
hk_status hk_gpu_end_order(hk_gpu *g, hk_queue q, const hk_queue_state *s);

/* profile.c: starts a profiler's event for an operation that will be put into its stream now. NULL: none. */
void *hk_gpu_profile(const struct hk_call *call, bool by_copies);

/* ---- check.c ---- */
/* An error in the call's arguments changes nothing. A later failure ends the communicator. */
hk_status hk_gpu_check_call(const struct hk_call *call);
/* Publishes the call on the status page, for the other ranks. `alone`: no other call runs together with it, so that it
 * can be timed. */
void hk_gpu_post(const struct hk_call *call, const hk_queue_state *s, bool alone);

extern const hk_gpu_executor hk_gpu_by_kernels, hk_gpu_by_copies, hk_gpu_by_transfers;

/* `call`: its options apply; NULL: the launch of transfers. */
hk_status hk_gpu_launch(hk_gpu *g, const struct hk_call *call, hk_kernel_launch *l, hk_queue q);
/* Records the event of the item's call, if it has one, before its launch. */
hk_status hk_gpu_launch_record(const hk_gpu_launch_item *p, hk_queue q);
/* small.c: launches the items if all are for the kernel of small messages; else *done is false. */
hk_status hk_gpu_small_launch(hk_gpu *g, hk_gpu_launch_item *const *at, size_t n, hk_queue q, bool *done);
/* The same order on all devices, so that a launch that must wait waits for the same communicators on each device. */
void hk_gpu_launch_sort(hk_gpu_launch_item **at, size_t n);
