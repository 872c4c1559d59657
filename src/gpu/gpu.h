/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Communicators on GPUs: what a rank keeps there, and launches of the kernels (kernels/cuda/work.h) on the user's
 * streams.
 *
 * Calls return when their work is in the stream.  What a launch uses lives as long as the communicator, and the driver
 * copies its parameters: a captured launch can be replayed as it is.
 *
 * Ranks of a group that share a device and a capture go in one launch, which has blocks for each rank.  It is on the
 * first rank's stream, and events join the other streams to it.  So the ranks run at the same time whatever streams the
 * user gave, even the legacy stream for all, and cost one launch.  Ranks of different threads cannot be joined: each
 * launches for itself, with at most its share of the blocks that the device can run at once.
 */
#ifndef HK_GPU_GPU_H
#define HK_GPU_GPU_H
#include "../core/comm.h"
#include "../device/device.h"

struct hk_call;
struct hk_device_env; /* transport/device_links.h */
struct hk_device_links;
struct hk_device_peer;       /* the same */
struct hk_gpu_code;          /* code.h */
struct hk_gpu_endpoint;      /* endpoints.h */
struct hk_gpu_rma_proxy;     /* rma_proxy.h */
struct hk_gpu_granule;       /* pool.c */
struct hk_gpu_import;        /* buffer.h */
struct hk_gpu_launch_item;   /* launch.h */
struct hk_gpu_pool;          /* pool.h */
struct hk_gpu_rma;           /* rma.c */
struct hk_gpu_small;         /* kernels/cuda/work.h */
struct hk_gpu_space;         /* window.c */
struct hk_gpu_buffer;        /* buffer.h */
struct hk_gpu_work;          /* kernels/cuda/work.h */
struct hk_gpu_process_group; /* process_group.h */
struct hk_plan;
struct hk_program;
struct hk_shared; /* transport/cuda/share.h */

/* Channels of a GPU's links: collectives' first, then those that share out one send or receive. */
enum { HK_GPU_CHANNELS = 64, HK_GPU_P2P_CHANNELS = 8 };
enum { HK_GPU_BLOCKS = 32 };        /* of a launch for one rank at most */
enum { HK_GPU_WIDE_BYTES = 65536 }; /* LL128 lines of a slot, if a link has them */

/* A table that a launch reads, in pinned memory.  Reused when the launch has ended, or its graph is destroyed. */
typedef struct hk_gpu_table {
  hk_memory memory;
  hk_queue_order order;
  _Atomic(int) refs; /* the communicator's, a graph's, and that of a call that is being enqueued */
  struct hk_gpu_table *next;
} hk_gpu_table;

/* The links to a peer. */
typedef struct hk_gpu_route {
  const struct hk_device_links *by;
  unsigned can; /* its properties: HK_DEVICE_* */
} hk_gpu_route;

/* A piece's hold of the pool that it is of (pool.h).  NULLs: it is of none. */
typedef struct hk_gpu_slice {
  struct hk_gpu_pool *pool;
  struct hk_gpu_granule *granule;
} hk_gpu_slice;

/* A piece of memory that things of the communicator lie in: arena.c. */
typedef struct hk_gpu_chunk {
  hk_memory memory; /* base NULL: it is the rest of the credits' */
  hk_gpu_slice slice;
  char *at;
  size_t bytes, used;
  struct hk_gpu_chunk *next;
} hk_gpu_chunk;

/* Pinned memory: what stays, and payloads, which a suspended communicator gives back. */
typedef enum hk_gpu_pinned { HK_GPU_PINNED_STAYS, HK_GPU_PINNED_PAYLOADS, HK_GPU_PINNED } hk_gpu_pinned;

/* Tables that are there from the beginning: pinning memory later could wait for kernels that wait for this rank. */
enum { HK_GPU_TABLES = 8, HK_GPU_TABLE_BYTES = 16384, HK_GPU_TABLES_BYTES = HK_GPU_TABLES * HK_GPU_TABLE_BYTES };
enum { HK_GPU_RANGES = 4 };

/* How far the calls are ahead of the GPU, if ranks of one process share it. The driver's queue of launches is bounded:
 * about 1000 entries, some two for each launch. A call that waits for space in it keeps back the launches of the very
 * ranks that it waits for. So a rank's calls wait earlier, outside the driver: at most 2 * HK_GPU_AHEAD launches are
 * ahead. */
enum { HK_GPU_AHEAD = 100 };
typedef struct hk_gpu_ahead {
  bool bounded;
  bool due;               /* a mark has been set since the last look */
  unsigned entries, turn; /* since the newest mark: launches and events; the place of the oldest */
  hk_queue_order mark[2];
} hk_gpu_ahead;

typedef struct hk_gpu {
  hk_device *device;
  struct hk_gpu_process_group *group;
  struct hk_gpu_code *code;
  hk_memory state; /* an hk_gpu_state, then the first tables */
  hk_queue queue;  /* the communicator's own: uploads, and waits for work */
  hk_queue_order order, captured;
  pthread_mutex_t lock;    /* of `order`, which any thread that asks for errors reads */
  uint64_t launches, seen; /* so far; and when their end was last asked for */
  hk_gpu_ahead ahead;
  uint64_t seen_ns, reported_ns;
  unsigned cluster;                 /* blocks of a cluster; 0: none */
  unsigned blocks;                  /* of a launch for this rank, at most; equal on all ranks */
  unsigned parts, net_parts;        /* channels that a large send or receive may use; equal on all ranks */
  size_t part_bytes;                /* that each of them carries at least */
  struct hk_gpu_endpoint **ends[2]; /* [receives, sends][peer] */
  hk_memory *opened;                /* [nranks]: what the credits of ranks of other processes lie in */
  size_t *opened_at;                /* [nranks]: how far from its beginning */
  struct hk_device_env *links;      /* for the device links */
  struct hk_device_peer *peers;     /* [nranks]: links.peers */
  hk_gpu_route *routes;             /* [nranks] */
  unsigned char *distances;         /* [nranks] hk_path_class to each peer's GPU; NULL: no level is set */
  bool staged;                      /* some pair of ranks of one host goes through host memory */
  bool proxied;      /* some of this rank's links are proxied: among the ranks of one host on all ranks, or on none */
  bool sends_direct; /* network cards may read what this rank sends from its GPU's memory */
  bool wide;         /* all pairs' links keep lines of 128 bytes whole */
  bool *nvlink;      /* [nranks] between this rank's GPU and each other's */
  struct hk_gpu_prices *prices;       /* rank 0's, on all ranks (collectives/machine.h) */
  int sm;                             /* the oldest generation of the ranks' devices */
  int sharers;                        /* ranks of the device that has most; equal on all ranks */
  struct hk_gpu_proxy *_Atomic proxy; /* NULL: no link over the network yet */
  bool in_switch;                     /* the process group has multicast memory */
  bool windows;                       /* this rank's memory can be a window */
  bool multimem;                      /* windows can have multicast memory */
  size_t window_stride;               /* of the ranks' parts of a space, on all ranks */
  struct hk_gpu_space *space;         /* of windows; NULL: there has been none */
  bool lost;                          /* its work will not end soon: nothing that a kernel may use is freed */
  struct hk_gpu *next_lost;
  hk_memory page;          /* for networks to try: hk_transport_env.gpu_page */
  hk_memory scratch, *old; /* outgrown scratch: earlier launches use it */
  size_t nold;
  hk_gpu_chunk *arena, *first_chunk; /* first_chunk: in the credits' memory */
  struct hk_gpu_pool *pool;          /* of small memory, with its parent or children; NULL: it has none (pool.h) */
  size_t pooled;                     /* bytes of its pieces */
  hk_gpu_chunk *pinned[HK_GPU_PINNED];
  pthread_mutex_t pinned_lock;
  hk_gpu_table *tables;
  struct hk_gpu_buffer *views, *dropped; /* dropped: launches may be reading their tables */
  struct hk_gpu_import *imports;         /* changed by the service thread, until no rank asks any more */
  pthread_mutex_t imports_lock;
  uint64_t last_view, last_window;
  bool captures; /* a call was captured: replays of its graph are not counted, so numbers of operations differ */
  bool copies;   /* copy engines are asked for, and possible */
  struct hk_shared *words;      /* [nranks]: of copy engines; opened, if the rank is in another process */
  char **words_at;              /* [nranks]: their addresses for the GPU */
  _Atomic(bool) copied;         /* and have been used */
  struct hk_gpu_rma *rma;       /* one-sided operations; NULL: no window yet */
  struct hk_gpu_rma_proxy *far; /* those with ranks that are not in the LSA team; NULL: there are none */
  bool apart;                   /* this rank reaches ranks on other GPUs or in other processes */
  struct hk_gpu_parked *parked; /* [nparked]: what is given back while the communicator is suspended */
  size_t nparked;
  ncclComm_t comm;
  struct hk_gpu *next; /* of those that may have views */
  struct {
    uintptr_t begin, end;
  } good[HK_GPU_RANGES]; /* memory that was checked and may be used */
  unsigned next_good;
  struct {
    struct hk_gpu_launch_item *last; /* the newest collective of the current group; NULL: none */
    unsigned stages;                 /* of the group so far */
    unsigned length;                 /* collectives in the newest stage */
    size_t scratch;                  /* bytes that they use */
  } stage;
  struct {
    unsigned links;
    struct hk_gpu_work *last[HK_GPU_BLOCKS]; /* of each block */
  } turn;                                    /* while a table of transfers is filled */
} hk_gpu;
/* The state of a communicator on a GPU. */
static inline hk_gpu *hk_gpu_of(const struct ncclComm *c) { return c->backend_state; }

/* What a device has of a plan. */
typedef struct hk_gpu_plan {
  char *image;               /* the programs, then their links; NULL: not there yet */
  struct hk_gpu_link *links; /* of launches from now on: there, or a copy of them, grown */
  bool grown;                /* the links take messages of all sizes */
  size_t program_bytes;
  unsigned span, lanes, nlinks, scratch_blocks; /* but for the span: of the program that has most */
  bool in_switch;                               /* hk_gpu_uses_switch */
  bool many;                                    /* hk_gpu_work.many */
  struct hk_gpu_small *small; /* [channels]: of a one-shot program, its links; NULL: the interpreter runs it */
} hk_gpu_plan;

/* ---- code.c; the rest is in code.h ---- */
/* The device that a communicator made by this thread works on; -1: host memory. */
int hk_gpu_choose(void);
int hk_gpu_count(void); /* devices that communicators can use */

/* ---- gpu.c ---- */
/* What a rank publishes about its GPU. */
typedef struct hk_gpu_fact {
  uint64_t id;     /* of the device: equal for ranks that share it */
  uint64_t blocks; /* that it runs at once */
  uint64_t sm;
  uint64_t bus;           /* its PCI address: hk_bus_id_parse */
  uint64_t window_stride; /* bytes of addresses that it needs for a rank's windows */
  uint8_t copies;         /* it asks for copy engines, and can */
  uint8_t by_fd;          /* its memory can go to other processes by file descriptor */
  uint32_t p2p_peers;     /* that it sends to or receives from at once; 0: all */
  uint8_t multicast;      /* for what it can have memory that a switch copies to and adds up from: HK_GPU_MULTICAST_ */
} hk_gpu_fact;
enum { HK_GPU_MULTICAST_SUMS = 1, HK_GPU_MULTICAST_WINDOWS = 2 };
static inline const hk_gpu_fact *hk_gpu_fact_of(const hk_gpu_fact *facts, size_t stride, int rank) {
  return (const hk_gpu_fact *)(const void *)((const char *)facts + (size_t)rank * stride);
}
/* Opens c->device; before the ranks' exchange. */
hk_status hk_gpu_attach(ncclComm_t c, hk_gpu_fact *fact);
/* After it; facts are `stride` bytes apart. */
hk_status hk_gpu_join(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
void hk_gpu_detach(ncclComm_t c);
/* Are replays of what is captured ordered with the communicator's other work? */
bool hk_gpu_mixes(const hk_gpu *g, const hk_queue_state *s);
/* After work was put into the queue: notes it in `order` or `captured`. */
hk_status hk_gpu_order_end(hk_gpu *g, hk_queue_order *o, hk_queue q, const hk_queue_state *s);

/* ---- health.c ---- */
/* Have all launches ended?  An error if one failed.  From any thread. */
hk_status hk_gpu_over(hk_gpu *g, bool *done);
/* Before a call that is not captured: waits until the GPU has followed the calls before it. */
hk_status hk_gpu_keep_near(ncclComm_t c);
/* Waits until all launches have ended, also with an error.  A failed communicator's work may be queued after other work
 * that never ends: it is given up after some seconds. */
void hk_gpu_drain(ncclComm_t c);
/* Reports launches that do not end, as hk_watch does for the host's waits; an error if a kernel has failed, or if the
 * watchdog is to end the communicator.  From any thread. */
hk_status hk_gpu_watch(ncclComm_t c);
/* Notices what kernels report; with `ask` also what the driver knows, which takes a call to it. */
hk_status hk_gpu_poll_health(ncclComm_t c, bool ask);

/* ---- process_group.c; the rest is in process_group.h ---- */
void hk_gpu_lose(hk_gpu *g); /* sets g->lost, and keeps it for as long as the process lives */

/* ---- share.c ---- */
/* What a rank must know about the ranks' GPUs to compute its share; equal on all ranks. */
typedef struct hk_gpu_share_facts {
  uint64_t resident; /* blocks that the smallest of the GPUs runs at once, by its registers and shared memory */
  uint64_t ranks;    /* of the communicator on the GPU that has most of them */
  uint64_t wished;   /* the user's maxCTAs, or the network's limit; 0: none */
  uint64_t sm;       /* of the oldest GPU */
} hk_gpu_share_facts;
/* Blocks of one rank's launch at most. */
unsigned hk_gpu_share(const hk_gpu_share_facts *room);
/* Communicators like this one whose kernels run at the same time in any order.  At least four, if the GPU has a block
 * for each rank of them. */
unsigned hk_gpu_overlap(const hk_gpu_share_facts *room);
/* Warns, once a process, if `ranks` of this process are on the device and it has too few hardware queues for their
 * streams. */
void hk_gpu_check_queues(int ranks, int device);

/* ---- reach.c ---- */
/* Opens the credits of ranks of other processes, tries which ranks' memory can be read, and chooses the links to each
 * peer. */
hk_status hk_gpu_reach(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);

/* ---- endpoints.c ---- */
/* After a failure: true if no proxy's thread is in a transport any more. */
bool hk_gpu_proxy_left(ncclComm_t c);
/* Ends the proxy (proxy.h), after it has sent what is still to be sent; no kernel runs any more, or g->lost. */
void hk_gpu_proxy_stop(ncclComm_t c);
void hk_gpu_endpoints_free(ncclComm_t c);
/* After hk_gpu_reach: what links over the network need and must not be allocated later. */
hk_status hk_gpu_proxied_begin(ncclComm_t c);

/* Bytes at the beginning of a link's memory that are counters and words; and that begin with zeros. */
size_t hk_gpu_link_counters(void);
size_t hk_gpu_link_zeros(ncclComm_t c, int peer);

/* ---- park.c ---- */
hk_status hk_gpu_suspend(ncclComm_t c);
hk_status hk_gpu_resume(ncclComm_t c);
void hk_gpu_memory_held(ncclComm_t c, uint64_t *may, uint64_t *stays);
void hk_gpu_parked_free(hk_gpu *g);

/* ---- topology.c ---- */
/* By all ranks, before hk_gpu_reach: g->nvlink and g->prices from the machine's topology, as far as it can be read. */
hk_status hk_gpu_topology(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
void hk_gpu_topology_free(struct hk_gpu_process_group *w);
/* g->distances, if NCCL_P2P_LEVEL is set. */
hk_status hk_gpu_distances(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
/* Do the settings forbid to reach the peer's GPU directly?  `why` gets the setting. */
bool hk_gpu_too_far(ncclComm_t c, int peer, char *why, size_t why_bytes);

/* ---- window.c ---- */
extern const struct hk_window_ops hk_gpu_windows;
/* After hk_gpu_reach and hk_gpu_multicast_join: c->lsa, and the stride. */
void hk_gpu_windows_begin(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
void hk_gpu_windows_end(ncclComm_t c); /* no kernel runs any more */
size_t hk_gpu_windows_held(hk_gpu *g); /* bytes of the library's own memory in windows */

/* ---- memory.c ---- */
/* Memory that other processes can open; zeros. */
hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out);
/* False if hk_gpu_mem_alloc did not give it. */
bool hk_gpu_mem_free(void *p, hk_status *rc);
/* HK_ERR_ARGUMENT if c's device cannot use `p`. */
hk_status hk_gpu_check_pointer(ncclComm_t c, const char *what, const void *p, size_t bytes);

/* ---- copy.c ---- */
/* By all ranks.  asked: this rank asks for it; all: all ranks do, and can; alone: no two ranks share a GPU. */
hk_status hk_gpu_copy_choose(ncclComm_t c, bool asked, bool all, bool alone);
/* The window into which copy engines are to write; NULL: kernels do it.  The same on all ranks, if all use symmetric
 * windows as they must: the same window and the same offset in it. */
hk_status hk_gpu_copy_window(const struct hk_call *call, struct hk_gpu_buffer **out);
/* Releases the streams of a failed communicator that wait for others.  To be repeated until they have ended. */
void hk_gpu_copy_free(ncclComm_t c);
void hk_gpu_copy_end(ncclComm_t c); /* its streams have ended */

/* ---- plan.c ---- */
/* Are some of its links in a switch? */
bool hk_gpu_uses_switch(const struct hk_program *p);
/* How many copies of a program's lanes, which use `span` channels, a launch may have. */
unsigned hk_gpu_most_channels(const struct ncclComm *c, const struct hk_program *p, unsigned span);
/* `span`: channels of one copy of the lanes.  The plan's links are offered; hk_gpu_work_of gets them. */
hk_status hk_gpu_bind(ncclComm_t c, struct hk_plan *plan, unsigned span, const struct hk_call *call);
void hk_gpu_plan_free(ncclComm_t c, struct hk_plan *plan);
/* *small: of the plan (kernels/gpu_small.h); NULL: the interpreter runs the call. */
hk_status hk_gpu_work_of(ncclComm_t c, const struct hk_call *call, struct hk_gpu_work *work, unsigned *blocks,
                         unsigned *threads, const struct hk_gpu_small **small);

/* Scratch of `bytes` at `after` in the communicator's.  What earlier launches use stays. */
hk_status hk_gpu_scratch(ncclComm_t c, size_t after, size_t bytes, char **out);

/* ---- table.c; the rest is in launch.h ---- */
hk_status hk_gpu_tables_begin(hk_gpu *g); /* in g->state */

/* ---- arena.c ---- */
/* When the credits are there. */
hk_status hk_gpu_arena_begin(ncclComm_t c);
/* Device memory that stays as long as the communicator; not zeroed. */
hk_status hk_gpu_arena_get(hk_gpu *g, size_t bytes, void **out);
/* Pinned memory, zeros, in whole pages, which hk_gpu_arena_free releases.  unget: what the last get gave. */
hk_status hk_gpu_pinned_get(hk_gpu *g, hk_gpu_pinned which, size_t bytes, hk_memory *out);
void hk_gpu_pinned_unget(hk_gpu *g, hk_gpu_pinned which, hk_memory *m);
void hk_gpu_arena_free(hk_gpu *g);

/* ---- run.c ---- */
/* Enqueues calls, all of communicators on GPUs. */
hk_status hk_gpu_run(const struct hk_call *calls, size_t n);
#endif
