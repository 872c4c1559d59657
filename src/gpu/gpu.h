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
#ifndef HK_GPU_GPU_H
#define HK_GPU_GPU_H
#include "../core/comm.h"
#include "../device/device.h"

struct hk_call;
struct hk_gpu_code;          /* code.h */
struct hk_gpu_rma_proxy;     /* rma_proxy.h */
struct hk_gpu_rma;           /* rma.c */
struct hk_gpu_small;         /* kernels/cuda/work.h */
struct hk_gpu_buffer;        /* buffer.h */
struct hk_gpu_work;          /* kernels/cuda/work.h */
struct hk_gpu_process_group; /* process_group.h */
struct hk_plan;
struct hk_program;

enum { HK_GPU_BLOCKS = 32 }; /* the most blocks of a launch for one rank */

enum { HK_GPU_RANGES = 4 };

typedef struct hk_gpu {
  hk_device *device;
  struct hk_gpu_process_group *group;
  struct hk_gpu_code *code;
  hk_memory state;                  /* an hk_gpu_state, then the first tables */
  hk_queue queue;                   /* the communicator's own stream: uploads, and waits for work */
  struct hk_gpu_order *order;       /* order.h */
  struct hk_gpu_health *health;     /* health.h */
  unsigned cluster;                 /* blocks a cluster; 0: no clusters */
  unsigned blocks;                  /* the most blocks of a launch for this rank; equal on all ranks */
  struct hk_gpu_split *split;       /* transfers.h */
  struct hk_gpu_links *links;       /* links.h */
  struct hk_gpu_topology *topology; /* topology.h */
  int sm;                           /* compute capability of the oldest of the ranks' devices: 90 for 9.0 */
  int sharers;                      /* the largest number of ranks on one device; equal on all ranks */
  bool in_switch;                   /* the process group has multicast memory */
  struct hk_gpu_windows *windows;   /* window.h */
  bool lost;                        /* its work will not end soon: memory that a kernel may use is not freed */
  struct hk_gpu *next_lost;
  struct hk_gpu_memory *memory;   /* arena.h */
  struct hk_gpu_buffers *buffers; /* buffer.h */
  struct hk_gpu_copies *copies;   /* copy.h */
  struct hk_gpu_rma *rma;         /* one-sided operations; NULL: no window yet */
  struct hk_gpu_rma_proxy *far;   /* one-sided operations with ranks outside the LSA team; NULL: no such rank */
  struct hk_gpu_parked *parked;   /* [nparked]: memory that is given back while the communicator is suspended */
  size_t nparked;
  ncclComm_t comm;
  struct {
    uintptr_t begin, end;
  } good[HK_GPU_RANGES]; /* user memory that passed hk_gpu_check_pointer */
  unsigned next_good;
  struct hk_gpu_stage *stage; /* launch.h */
} hk_gpu;
/* The state of a communicator on a GPU. */
static inline hk_gpu *hk_gpu_of(const struct ncclComm *c) { return c->backend_state; }

/* A plan's data in device memory. */
typedef struct hk_gpu_plan {
  char *image;               /* the programs, then their links; NULL: not uploaded yet */
  struct hk_gpu_link *links; /* used by new launches: in `image`, or a newer copy with memory for large slots */
  bool grown;                /* the links take messages of all sizes */
  size_t program_bytes;
  unsigned span, lanes, nlinks,
      scratch_blocks;         /* the maximum over the programs, except span: channels of one copy of the lanes */
  bool in_switch;             /* hk_gpu_uses_switch */
  bool many;                  /* hk_gpu_work.many */
  struct hk_gpu_small *small; /* [channels]: the links of a one-shot program; NULL: the interpreter runs the plan */
} hk_gpu_plan;

/* ---- code.c; the rest is in code.h ---- */
/* The device for a communicator that this thread creates; -1: host memory. */
int hk_gpu_choose(void);
int hk_gpu_count(void); /* devices that communicators can use */

/* ---- gpu.c ---- */
/* What a rank publishes about its GPU. */
typedef struct hk_gpu_fact {
  uint64_t id;     /* of the device: equal on ranks that share it */
  uint64_t blocks; /* blocks that the device runs at once */
  uint64_t sm;
  uint64_t bus;           /* its PCI address: hk_bus_id_parse */
  uint64_t window_stride; /* bytes of address space that a rank's windows need */
  uint8_t copies;         /* the rank requests copy engines and can use them */
  uint8_t by_fd;          /* its memory can go to other processes by file descriptor */
  uint32_t p2p_peers;     /* peers to which the rank sends at once, or from which it receives; 0: all */
  uint8_t multicast;      /* uses of multicast memory that the rank supports: HK_GPU_MULTICAST_* */
} hk_gpu_fact;
enum { HK_GPU_MULTICAST_SUMS = 1, HK_GPU_MULTICAST_WINDOWS = 2 };
static inline const hk_gpu_fact *hk_gpu_fact_of(const hk_gpu_fact *facts, size_t stride, int rank) {
  return (const hk_gpu_fact *)(const void *)((const char *)facts + (size_t)rank * stride);
}
/* Opens c->device; before the ranks' exchange. */
hk_status hk_gpu_attach(ncclComm_t c, hk_gpu_fact *fact);
/* After the exchange; the ranks' facts are `stride` bytes apart. */
hk_status hk_gpu_join(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
void hk_gpu_detach(ncclComm_t c);
/* ---- share.c ---- */
/* Facts about the ranks' GPUs from which a rank computes its share; equal on all ranks. */
typedef struct hk_gpu_share_facts {
  uint64_t resident; /* blocks that the smallest of the GPUs runs at once; registers and shared memory limit them */
  uint64_t ranks;    /* the largest number of the communicator's ranks on one GPU */
  uint64_t wished;   /* limit by the user's maxCTAs or by the network; 0: none */
  uint64_t sm;       /* compute capability of the oldest GPU */
} hk_gpu_share_facts;
/* The most blocks of one rank's launch. */
unsigned hk_gpu_share(const hk_gpu_share_facts *room);
/* How many communicators like this one may run their kernels at the same time, in any order.  At least four if the GPU
 * has a block for each of their ranks. */
unsigned hk_gpu_overlap(const hk_gpu_share_facts *room);
/* Warns, once a process, if the device has too few hardware queues for the streams of `ranks` ranks of this process. */
void hk_gpu_check_queues(int ranks, int device);

/* ---- park.c ---- */
hk_status hk_gpu_suspend(ncclComm_t c);
hk_status hk_gpu_resume(ncclComm_t c);
void hk_gpu_memory_held(ncclComm_t c, uint64_t *may, uint64_t *stays);
void hk_gpu_parked_free(hk_gpu *g);

/* ---- memory.c ---- */
/* Zeroed memory that other processes can open. */
hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out);
/* False if `p` is not from hk_gpu_mem_alloc. */
bool hk_gpu_mem_free(void *p, hk_status *rc);
/* HK_ERR_ARGUMENT if c's device cannot use `p`. */
hk_status hk_gpu_check_pointer(ncclComm_t c, const char *what, const void *p, size_t bytes);

/* ---- plan.c ---- */
/* True if some links of the program are in a switch. */
bool hk_gpu_uses_switch(const struct hk_program *p);
/* The most copies of a program's lanes that a launch may have. One copy uses `span` channels. */
unsigned hk_gpu_most_channels(const struct ncclComm *c, const struct hk_program *p, unsigned span);
/* `span`: channels of one copy of the lanes.  Offers the plan's links to the peers; hk_gpu_work_of gets them. */
hk_status hk_gpu_bind(ncclComm_t c, struct hk_plan *plan, unsigned span, const struct hk_call *call);
void hk_gpu_plan_free(ncclComm_t c, struct hk_plan *plan);
/* The kernel's arguments for the call. *small: the plan's arguments for the kernel of small messages
 * (kernels/gpu_small.h); NULL: the interpreter runs the call. */
hk_status hk_gpu_work_of(ncclComm_t c, const struct hk_call *call, struct hk_gpu_work *work, unsigned *blocks,
                         unsigned *threads, const struct hk_gpu_small **small);

/* ---- run.c ---- */
/* Enqueues calls, all of communicators on GPUs. */
hk_status hk_gpu_run(const struct hk_call *calls, size_t n);
#endif
