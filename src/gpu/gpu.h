/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Communicators on GPUs: the state of a rank on its GPU, and launches of the kernels (kernels/cuda/work.h) on the
 * user's streams.
 *
 * Calls return when their work is in the stream.  The memory of a launch lives as long as the communicator, and the
 * driver copies the launch's parameters. So a captured launch can be replayed as it is.
 *
 * Ranks of a group that share a device and a capture share one launch, which has blocks for each rank.  The launch is
 * on the first rank's stream, and events join the other streams to it.  So these ranks always run at the same time,
 * even if the user gave the legacy stream for all of them, and cost one launch.  Ranks of different threads cannot
 * share a launch: each launches for itself, with at most its share of the blocks that the device can run at once.
 */
#pragma once
#include "../core/comm.h"
#include "../device/device.h"

struct hk_facts;    /* base/facts.h */
struct hk_gpu_fact; /* peers.h */

enum { HK_GPU_BLOCKS = 32 }; /* the most blocks of a launch for one rank */

/* The facts that all parts need, then the parts. */
typedef struct hk_gpu {
  ncclComm_t comm;
  hk_device *device;
  hk_queue queue;   /* the communicator's own stream: uploads, and waits for work */
  hk_memory state;  /* an hk_gpu_state, then the first tables */
  unsigned blocks;  /* the most blocks of a launch for this rank; equal on all ranks */
  unsigned cluster; /* blocks a cluster; 0: no clusters */
  int sm;           /* compute capability of the oldest of the ranks' devices: 90 for 9.0 */
  int sharers;      /* the largest number of ranks on one device; equal on all ranks */
  bool in_switch;   /* the process group has multicast memory */
  bool lost;        /* its work will not end soon: memory that a kernel may use is not freed */
  struct hk_gpu *next_lost;
  struct hk_gpu_code *code;
  struct hk_gpu_process_group *group;
  struct hk_gpu_memory *memory;   /* memory.h */
  struct hk_gpu_checked *checked; /* memory.h */
  struct hk_gpu_links *links;
  struct hk_gpu_topology *topology;
  struct hk_gpu_order *order;
  struct hk_gpu_health *health;
  struct hk_gpu_stage *stage; /* run.h */
  struct hk_gpu_split *split; /* run.h */
  struct hk_gpu_buffers *buffers;
  struct hk_gpu_copies *copies;
  struct hk_gpu_windows *windows;
  struct hk_gpu_rma *rma;             /* one-sided operations; NULL: no window yet */
  struct hk_gpu_rma_proxy *far;       /* one-sided operations with ranks outside the LSA team; NULL: no such rank */
  struct hk_gpu_suspended *suspended; /* park.c; NULL: the communicator is not suspended */
} hk_gpu;
/* The state of a communicator on a GPU. */
static inline hk_gpu *hk_gpu_of(const struct ncclComm *c) { return c->backend_state; }

/* Opens c->device, and fills an hk_gpu_fact; before the ranks' exchange. */
hk_status hk_gpu_attach(ncclComm_t c, void *fact);
/* After the exchange. */
hk_status hk_gpu_join(ncclComm_t c, const struct hk_facts *facts);
void hk_gpu_detach(ncclComm_t c);

extern const struct hk_suspension_ops hk_gpu_suspension; /* park.c */
/* Ends the suspension of a communicator that is freed, or has its memory again.  NULL: it is not suspended. */
void hk_gpu_suspended_free(struct hk_gpu_suspended **suspended);
