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
#include "../device/device.h"
#include "../kernels/cuda/work.h"
#include "../runtime/comm.h"
#include "../transport/cuda/multicast.h"
#include "../transport/device_links.h"

/* Channels of a GPU's links: collectives' first, then those that share out one send or receive. */
enum { HK_GPU_CHANNELS = 64, HK_GPU_P2P_CHANNELS = 8 };
enum { HK_GPU_BLOCKS = 32 };        /* of a launch for one rank at most */
enum { HK_GPU_WIDE_BYTES = 65536 }; /* LL128 lines of a slot, if a link has them */

/* The kernels on a device; the communicators of the process share them. */
typedef struct hk_gpu_code {
  int ordinal, refs;
  hk_device *device;
  void *module, *batch, *transfers;
  unsigned threads, resident; /* of a block; blocks that the device runs at once */
  pthread_mutex_t lock;       /* of the orders, which are of communicators with launchOrderImplicit */
  hk_queue_order order, captured;
  struct hk_gpu_code *next;
} hk_gpu_code;

/* One direction between two ranks on a channel: the receiver's memory. */
typedef struct hk_gpu_fifo {
  uint16_t from, to, channel;
  hk_memory data;
  struct hk_gpu_fifo *next;
} hk_gpu_fifo;

struct hk_gpu_view;

/* What the ranks of a communicator that are threads of one process share. */
typedef struct hk_gpu_world {
  uint64_t comm_id;
  int refs, nranks;
  pthread_mutex_t lock;     /* of the FIFOs, and of `looked` */
  hk_device **devices;      /* [nranks]; NULL: the rank is in another process */
  hk_memory *credits;       /* [nranks]: of the ranks of this process, hk_gpu_credit */
  hk_shared *words;         /* [nranks]: the same, copy.c's */
  hk_gpu_fifo **fifos;      /* [nranks], by sender */
  struct hk_gpu_view *late; /* of ranks that have left: streams of others may still write to what they had open */
  hk_multicast multicast;
  bool looked; /* the machine's topology was read, once for all ranks: topology.c */
  struct hk_cluster *machine;
  struct hk_paths *paths;
  struct hk_gpu_world *next;
} hk_gpu_world;

/* One end of a link. */
typedef struct hk_gpu_end {
  hk_gpu_link link;
  void *device;     /* its copy and the program of transfers over it (transfers.c); NULL: none yet */
  hk_shared shared; /* between processes: the receiver's own memory, or as the sender has opened it */
  struct hk_gpu_end *next;
  uint16_t channel;
} hk_gpu_end;

/* Registered memory, and how the other ranks' GPUs reach it: view.c. */
typedef struct hk_gpu_view {
  uintptr_t begin, end;
  uint64_t key, id; /* ours; the allocation's when it was shared, 0: unknown */
  bool made, unusable;
  bool symmetric;    /* a window that all ranks have registered, in the same order: its key counts those */
  bool shareable;    /* virtual memory, which lives as long as any process has it open */
  uint64_t *theirs;  /* [nranks] where the others' windows of this key begin for this rank; 0: not known yet */
  int64_t *seen;     /* [nranks], as a kernel's table */
  hk_memory *opened; /* [nranks]: by this process, for its ranks on other GPUs */
  hk_memory table;   /* of `seen` in device memory */
  struct hk_gpu_view *next;
} hk_gpu_view;

/* Memory that a rank of another process has registered, opened for this one. */
typedef struct hk_gpu_import {
  int from;
  uint64_t key;
  hk_memory memory;
  uint64_t begin, bytes; /* of what is registered */
  struct hk_gpu_import *next;
} hk_gpu_import;

/* A table of transfers that a launch reads, in pinned memory.  Reused when the launch has ended, or its graph is
 * destroyed. */
typedef struct hk_gpu_table {
  hk_memory memory;
  hk_queue_order order;
  _Atomic(int) refs; /* the communicator's, and a graph's */
  struct hk_gpu_table *next;
} hk_gpu_table;

/* The links to a peer. */
typedef struct hk_gpu_route {
  const hk_device_links *by;
  unsigned can; /* its properties: HK_DEVICE_* */
} hk_gpu_route;

enum { HK_GPU_RANGES = 4 };
typedef struct hk_gpu {
  hk_device *device;
  hk_gpu_world *world;
  hk_gpu_code *code;
  hk_memory state; /* an hk_gpu_state */
  hk_queue queue;  /* the communicator's own: uploads, and waits for work */
  hk_queue_order order, captured;
  pthread_mutex_t lock;    /* of `order`, which any thread that asks for errors reads */
  uint64_t launches, seen; /* so far; and when their end was last asked for */
  uint64_t seen_ns, reported_ns;
  unsigned cluster;                   /* blocks of a cluster; 0: none */
  unsigned blocks;                    /* of a launch for this rank, at most; equal on all ranks */
  unsigned parts, net_parts;          /* channels that a large send or receive may use; equal on all ranks */
  hk_gpu_end **ends[2];               /* [receives, sends][peer] */
  hk_memory *opened;                  /* [nranks]: the credits of ranks of other processes */
  hk_device_env links;                /* for the device links */
  hk_device_peer *peers;              /* [nranks]: links.peers */
  hk_gpu_route *routes;               /* [nranks] */
  unsigned char *distances;           /* [nranks] hk_path_class to each peer's GPU; NULL: no level is set */
  bool staged;                        /* some pair of ranks of one host goes through host memory */
  bool sends_direct;                  /* network cards may read what this rank sends from its GPU's memory */
  bool wide;                          /* all pairs' links keep lines of 128 bytes whole */
  bool *nvlink;                       /* [nranks] between this rank's GPU and each other's */
  struct hk_gpu_prices *prices;       /* rank 0's, on all ranks (collectives/machine.h) */
  int sm;                             /* the oldest generation of the ranks' devices */
  int sharers;                        /* ranks of the device that has most; equal on all ranks */
  struct hk_gpu_proxy *_Atomic proxy; /* NULL: no link over the network yet */
  bool in_switch;                     /* the world has multicast memory */
  bool lost;                          /* its work will not end soon: nothing that a kernel may use is freed */
  struct hk_gpu *next_lost;
  hk_memory page;          /* for networks to try: hk_transport_env.gpu_page */
  hk_memory scratch, *old; /* outgrown scratch: earlier launches use it */
  size_t nold;
  hk_gpu_table *tables;
  hk_gpu_view *views, *dropped; /* dropped: launches may be reading their tables */
  hk_gpu_import *imports;       /* changed by the service thread, until no rank asks any more */
  pthread_mutex_t imports_lock;
  uint64_t last_view, last_window;
  bool captures;        /* a call was captured: replays of its graph are not counted, so numbers of operations differ */
  bool copies;          /* copy engines are asked for, and possible */
  hk_shared *words;     /* [nranks]: of copy engines; opened, if the rank is in another process */
  char **words_at;      /* [nranks]: their addresses for the GPU */
  _Atomic(bool) copied; /* and have been used */
  bool apart;           /* this rank reaches ranks on other GPUs or in other processes */
  struct hk_gpu_parked *parked; /* [nparked]: what is given back while the communicator is suspended */
  size_t nparked;
  ncclComm_t comm;
  struct hk_gpu *next; /* of those that may have views */
  struct {
    uintptr_t begin, end;
  } good[HK_GPU_RANGES]; /* memory that was checked and may be used */
  unsigned next_good;
  unsigned round;           /* collectives of the current group so far */
  hk_memory ends_on_device; /* room for links that transfers use */
  size_t ends_used;
  struct {
    unsigned links;
    hk_gpu_work *last[HK_GPU_BLOCKS]; /* of each block */
  } turn;                             /* while a table of transfers is filled */
} hk_gpu;
/* The state of a communicator on a GPU. */
static inline hk_gpu *hk_gpu_of(const struct ncclComm *c) { return c->backend_state; }

/* What a device has of a plan. */
typedef struct hk_gpu_plan {
  hk_memory memory; /* the programs, then their links */
  size_t links_at, program_bytes;
  unsigned span, lanes, nlinks, scratch_blocks; /* but for the span: of the program that has most */
  bool in_switch;                               /* HK_INSTR_IN_SWITCH of some instruction */
} hk_gpu_plan;

/* ---- gpu.c ---- */
/* The device that a communicator made by this thread works on; -1: host memory. */
int hk_gpu_choose(void);
int hk_gpu_count(void); /* devices that communicators can use */
/* What a rank publishes about its GPU. */
typedef struct hk_gpu_fact {
  uint64_t id;     /* of the device: equal for ranks that share it */
  uint64_t blocks; /* that it runs at once */
  uint64_t sm;
  uint64_t bus;       /* its PCI address: hk_bus_id_parse */
  uint64_t copies;    /* it asks for copy engines, and can */
  uint64_t by_fd;     /* its memory can go to other processes by file descriptor */
  uint64_t multicast; /* it can have memory that a switch copies to and adds up from, and NCCL_NVLS_ENABLE is not 0 */
} hk_gpu_fact;
/* Opens c->device; before the ranks' exchange. */
hk_status hk_gpu_attach(ncclComm_t c, hk_gpu_fact *fact);
/* After it; facts are `stride` bytes apart. */
hk_status hk_gpu_join(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
int hk_gpu_most_equal(uint64_t *ids, int n); /* the count of the most frequent id; sorts them */
void hk_gpu_detach(ncclComm_t c);
/* Have all launches ended?  An error if one failed.  From any thread. */
hk_status hk_gpu_over(hk_gpu *g, bool *done);
/* Waits until all launches have ended, also with an error.  A failed communicator's work may be queued after other work
 * that never ends: it is given up after some seconds. */
void hk_gpu_drain(ncclComm_t c);
/* After work was put into the queue: notes it in `order` or `captured`. */
hk_status hk_gpu_order_end(hk_gpu *g, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
/* Reports launches that do not end, as hk_watch does for the host's waits; an error if a kernel has failed, or if the
 * watchdog is to end the communicator.  From any thread. */
hk_status hk_gpu_watch(ncclComm_t c);
/* Notices what kernels report; with `ask` also what the driver knows, which takes a call to it. */
hk_status hk_gpu_look(ncclComm_t c, bool ask);
/* HK_ERR_ARGUMENT if c's device cannot use `p`. */
hk_status hk_gpu_check_pointer(ncclComm_t c, const char *what, const void *p, size_t bytes);

/* ---- share.c ---- */
/* What a rank must know about the ranks' GPUs to compute its share; equal on all ranks. */
typedef struct hk_gpu_room {
  uint64_t resident; /* blocks that the smallest of the GPUs runs at once, by its registers and shared memory */
  uint64_t ranks;    /* of the communicator on the GPU that has most of them */
  uint64_t wished;   /* the user's maxCTAs, or the network's limit; 0: none */
  uint64_t sm;       /* of the oldest GPU */
} hk_gpu_room;
/* Blocks of one rank's launch at most. */
unsigned hk_gpu_share(const hk_gpu_room *room);
/* Communicators like this one whose kernels run at the same time in any order.  At least four, if the GPU has a block
 * for each rank of them. */
unsigned hk_gpu_overlap(const hk_gpu_room *room);
/* Warns, once a process, if `ranks` of this process are on the device and it has too few hardware queues for their
 * streams. */
void hk_gpu_check_queues(int ranks, int device);

/* ---- code.c ---- */
hk_status hk_gpu_code_get(int ordinal, hk_gpu_code **out);
void hk_gpu_code_put(hk_gpu_code *code);

/* ---- world.c ---- */
/* Makes this rank's credits, too. */
hk_status hk_gpu_world_join(ncclComm_t c);
void hk_gpu_world_leave(hk_gpu_world *w);
/* Makes this rank's credits anew, as links.by_file has changed. */
hk_status hk_gpu_credits_again(ncclComm_t c);

/* A rank's credits, in its GPU's memory: for each link on which it sends the head, which the receiver writes, and its
 * counter; for pumped links the counters of both directions.  After them a pattern that the other ranks try to read,
 * and room for what this rank reads of theirs. */
enum { HK_GPU_CREDIT_BYTES = 128, HK_GPU_SENT_AT = 64, HK_GPU_RECEIVED_AT = 96, HK_GPU_PROBE_BYTES = 4096 };
static inline size_t hk_gpu_probe_at(int nranks) { return (size_t)nranks * HK_GPU_CHANNELS * HK_GPU_CREDIT_BYTES; }
static inline uint64_t hk_gpu_probe_word(uint64_t comm_id, int rank, unsigned i) {
  return (comm_id + (uint64_t)rank * 64 + i + 1) * 0x9e3779b97f4a7c15u;
}
static inline bool hk_gpu_is_remote(ncclComm_t c, int peer) {
  return c->peers[peer].process != c->peers[c->rank].process;
}
static inline char *hk_gpu_credits_of(ncclComm_t c, int rank) {
  hk_gpu *g = hk_gpu_of(c);
  return hk_gpu_is_remote(c, rank) ? g->opened[rank].base : g->world->credits[rank].base;
}
/* Of `rank`'s link to `peer`. */
static inline char *hk_gpu_credit(ncclComm_t c, int rank, int peer, unsigned channel) {
  return hk_gpu_credits_of(c, rank) + ((size_t)peer * HK_GPU_CHANNELS + channel) * HK_GPU_CREDIT_BYTES;
}

/* ---- reach.c ---- */
/* Opens the credits of ranks of other processes, tries which ranks' memory can be read, and chooses the links to each
 * peer. */
hk_status hk_gpu_reach(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);

/* ---- ends.c ---- */
/* Links are made in two steps, so that ranks of one thread need not wait for each other: all receivers offer their
 * memory to their senders before any of them waits for an offer. */
hk_status hk_gpu_end_offer(ncclComm_t c, int peer, bool sends, unsigned channel);
hk_status hk_gpu_end_get(ncclComm_t c, int peer, bool sends, unsigned channel, hk_gpu_end **out);
/* Ends the proxy (proxy.h), after it has sent what is still to be sent; no kernel runs any more, or g->lost. */
void hk_gpu_proxy_stop(ncclComm_t c);
void hk_gpu_ends_free(ncclComm_t c);

/* Bytes at the beginning of a link's memory that are counters and words; and that begin with zeros. */
size_t hk_gpu_link_counters(void);
size_t hk_gpu_link_zeros(ncclComm_t c, int peer);

/* ---- park.c ---- */
hk_status hk_gpu_suspend(ncclComm_t c);
hk_status hk_gpu_resume(ncclComm_t c);
void hk_gpu_memory_held(ncclComm_t c, uint64_t *may, uint64_t *stays);
void hk_gpu_parked_free(hk_gpu *g);

/* ---- distance.c ---- */
/* g->distances, if NCCL_P2P_LEVEL is set. */
hk_status hk_gpu_distances(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
/* Do the settings forbid to reach the peer's GPU directly?  `why` gets the setting. */
bool hk_gpu_too_far(ncclComm_t c, int peer, char *why, size_t why_bytes);

/* ---- topology.c ---- */
/* By all ranks, before hk_gpu_reach: g->nvlink and g->prices from the machine's topology, as far as it can be read. */
hk_status hk_gpu_topology(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
void hk_gpu_topology_free(hk_gpu_world *w);

/* ---- multicast.c ---- */
/* After hk_gpu_reach, by all ranks: g->in_switch, the same on all.  What prevents it is logged. */
hk_status hk_gpu_multicast_join(ncclComm_t c, const hk_gpu_fact *facts, size_t stride);
hk_gpu_link hk_gpu_multicast_link(ncclComm_t c, const hk_link_need *need, unsigned channel, bool first);
/* Can the switch do the call's operator for its type? */
bool hk_gpu_switch_reduces(const hk_call *call);

/* ---- memory.c ---- */
/* Memory that other processes can open; zeros. */
hk_status hk_gpu_mem_alloc(int device, size_t bytes, void **out);
/* False if hk_gpu_mem_alloc did not give it. */
bool hk_gpu_mem_free(void *p, hk_status *rc);

/* ---- view.c ---- */
/* Zero copy between GPUs, and between processes: registered memory is opened for the ranks that reach this rank's
 * memory when a call first uses it.  Tables that the kernels read say what each rank adds to an address. */
void hk_gpu_views_begin(ncclComm_t c);
void hk_gpu_views_free_late(hk_gpu_world *w); /* frees w->late */
void hk_gpu_views_end(ncclComm_t c);          /* no rank asks any more, and no launch runs */
/* From any thread. */
hk_status hk_gpu_view_add(ncclComm_t c, const void *base, size_t bytes, bool symmetric, hk_gpu_view **out);
void hk_gpu_view_drop(ncclComm_t c, hk_gpu_view *v);
/* Memory of this process is freed: registrations that still name it become void. */
void hk_gpu_views_forget(const void *base, size_t bytes);
/* The tables for a collective's buffers; NULL: none. */
hk_status hk_gpu_views_of(ncclComm_t c, const hk_call *call, const int64_t **in, const int64_t **out);
/* Whether `peer` reads that memory itself, and the table that says where; NULL: at the same address. */
hk_status hk_gpu_view_for(ncclComm_t c, int peer, const void *p, size_t bytes, bool *reads, const int64_t **table);

/* The symmetric window that contains all of it, open for the others; NULL: there is none. */
hk_status hk_gpu_view_window(ncclComm_t c, const void *p, size_t bytes, hk_gpu_view **out);
/* Waits until the others' windows are known to this rank: they open theirs in the same call. */
hk_status hk_gpu_view_meet(ncclComm_t c, hk_gpu_view *v);

/* ---- copy.c ---- */
/* By all ranks.  asked: this rank asks for it; all: all ranks do, and can; alone: no two ranks share a GPU. */
hk_status hk_gpu_copy_choose(ncclComm_t c, bool asked, bool all, bool alone);
/* The window into which copy engines are to write; NULL: kernels do it.  The same on all ranks, if all use symmetric
 * windows as they must: the same window and the same offset in it. */
hk_status hk_gpu_copy_window(const hk_call *call, hk_gpu_view **out);
/* Releases the streams of a failed communicator that wait for others.  To be repeated until they have ended. */
void hk_gpu_copy_free(ncclComm_t c);
void hk_gpu_copy_end(ncclComm_t c); /* its streams have ended */

/* ---- plan.c ---- */
/* How many copies of a program's lanes, which use `span` channels, a launch may have. */
unsigned hk_gpu_most_channels(const struct ncclComm *c, const hk_program *p, unsigned span);
/* `span`: channels of one copy of the lanes.  The plan's links are offered; hk_gpu_work_of gets them. */
hk_status hk_gpu_bind(ncclComm_t c, struct hk_plan *plan, unsigned span, const hk_call *call);
void hk_gpu_plan_free(ncclComm_t c, struct hk_plan *plan);
hk_status hk_gpu_work_of(ncclComm_t c, const hk_call *call, hk_gpu_work *work, unsigned *blocks, unsigned *threads);

/* ---- run.c ---- */
/* Enqueues calls, all of communicators on GPUs. */
hk_status hk_gpu_run(const hk_call *calls, size_t n);
#endif
