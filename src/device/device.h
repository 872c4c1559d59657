/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A device: it has memory and runs kernels. cuda.c and the other cuda_*.c are the implementation by CUDA's driver.
 *
 * The functions are in groups. A group is NULL if the device has nothing of its kind; in a group that is set, all
 * functions are set that do not say otherwise. All may be called from any thread and do not change the thread's current
 * CUDA context. A failure names the driver's error, the device and the attempted action.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

enum { HK_DEVICE_GRANULE = 2 << 20 }; /* virtual memory begins and ends at multiples of it */
enum { HK_DEVICE_PAGE = 65536 };      /* network cards get a GPU's memory in whole pages of this size */
struct hk_device_ops;

/* What the device can do, asked once. */
typedef struct hk_device_limits {
  int ordinal, sm; /* 90: compute capability 9.0; 0: the host */
  int driver;      /* 12080: for CUDA 12.8; 0: unknown */
  int multiprocessors, threads_per_multiprocessor;
  int host_numa;                     /* NUMA node of the CPU to which it is attached; -1: unknown */
  int priority;                      /* the highest that a stream or launch may have */
  size_t memory_bytes, shared_bytes; /* memory of the device; shared memory of a block */
  bool vmm, multicast, clusters, dmabuf, gdr, integrated;
  bool rdma_ordered;         /* its kernels see a card's writes to its memory before later signals of the host */
  bool rdma_flush;           /* if not ordered: the driver has a call that orders them, card->flush */
  bool stream_words;         /* the driver has the functions of `word` */
  bool fd_handles;           /* its memory can be shared with other processes by file descriptor */
  bool late_host;            /* the driver can allocate pinned memory while kernels run: memory->alloc_host_late */
  char name[64], bus_id[32]; /* a domain may have 32 bits */
  unsigned char uuid[16];
} hk_device_limits;

typedef struct hk_device {
  const struct hk_device_ops *ops;
  hk_device_limits limits;
  void *own; /* stream (hk_queue) for the device's own work; NULL: each piece of work makes one */
} hk_device; /* the implementation's own struct begins with it */

typedef enum hk_memory_kind {
  HK_MEMORY_NONE,
  HK_MEMORY_CLASSIC,    /* cuMemAlloc; on the host device, its memory */
  HK_MEMORY_VMM,        /* physical memory mapped at reserved addresses; host memory if `host` is set */
  HK_MEMORY_PINNED,     /* page-locked host memory near the device, which can access it */
  HK_MEMORY_REGISTERED, /* the same, but the caller's memory */
  HK_MEMORY_OPENED,     /* of another process, opened by a handle */
  HK_MEMORY_MAPPED,     /* of another process, opened by a file descriptor */
  HK_MEMORY_PLACED,     /* of this process or another one, mapped into a space of addresses */
  HK_MEMORY_MULTICAST   /* no memory: the address of a multicast object */
} hk_memory_kind;

typedef struct hk_memory {
  void *base; /* address for the device; NULL: no memory */
  void *host; /* address for the CPU; NULL if the CPU cannot access it */
  size_t bytes;
  uint64_t handle; /* private to the implementation */
  bool parked;     /* the addresses are reserved, without memory */
  hk_memory_kind kind;
} hk_memory;

/* Sent to another process so that it can open memory.  `fd` is passed separately over the unix socket; -1: not
 * needed. */
typedef struct hk_memory_share {
  uint64_t bytes;
  uint32_t kind; /* hk_memory_kind of the shared memory */
  int32_t fd;
  unsigned char handle[64];
} hk_memory_share;

/* Kind and owner of the memory at an address. */
typedef struct hk_pointer {
  enum { HK_POINTER_HOST, HK_POINTER_PINNED, HK_POINTER_DEVICE, HK_POINTER_MANAGED } kind;
  int device;     /* its device; -1 for HK_POINTER_HOST */
  uintptr_t base; /* of the allocation that contains the address; 0: unknown */
  size_t bytes;
  uint64_t id; /* of the allocation, never used for another allocation; 0: unknown */
} hk_pointer;

/* ---- streams: the user's cudaStream_t. NULL is the legacy stream, and CUDA's two special handles mean what they do.
 * ---- */
typedef void *hk_queue;

typedef struct hk_queue_state {
  uint64_t id; /* of the stream, never used for another stream; 0: unknown, or a different stream in each thread */
  bool here;   /* the device's context seems to be current: calls for this piece of work need not enter it */
  bool capturing;
  uint64_t capture; /* its id, never 0 while capturing */
  void *graph;
} hk_queue_state;

/* Serialises work that is put into several streams, for example a communicator's. Begin with zeros; call order->begin
 * before and order->end after each piece of work. Work in a captured graph is ordered within the capture.
 * graph->begin and graph->end order the replays of such a graph with work that is not captured. */
typedef struct hk_queue_order {
  void *event;
  uint64_t last;    /* id of the stream of the last piece */
  uint64_t capture; /* of the last piece; 0: not captured */
  bool used;
  bool replays;   /* graphs may record the event at any time, so every piece of work waits for it */
  uint64_t graph; /* the capture into whose graph `node` was inserted */
  void *node;     /* records the event after all pieces of that graph have ended */
} hk_queue_order;

typedef struct hk_kernel_launch {
  void *function;
  unsigned blocks, threads, shared_bytes;
  unsigned cluster;   /* blocks a cluster; 0 and 1: none */
  int priority;       /* 0: the stream's priority */
  bool remote_domain; /* its fences need not wait for other kernels' writes (sm_90) */
  bool here;          /* as in hk_queue_state */
  const void *param;  /* the kernel's one parameter, copied before the call returns */
  size_t param_bytes; /* bytes of `param` that the kernel reads; 0: all */
} hk_kernel_launch;

typedef struct hk_device_memory_ops {
  /* Zeroed. Large allocations can be shared with other processes if the driver allows it. */
  hk_status (*alloc)(hk_device *d, size_t bytes, hk_memory *out);
  /* The same, but only the first `zeroed` bytes are zeros. Peers of the process can access it after `peer`. */
  hk_status (*alloc_open)(hk_device *d, size_t bytes, size_t zeroed, hk_memory *out);
  /* The same, and other processes can open it: by file descriptor if `by_fd` and limits.fd_handles, else by a
   * handle. */
  hk_status (*alloc_shared)(hk_device *d, size_t bytes, size_t zeroed, bool by_fd, hk_memory *out);
  /* pinned and zeroed; host and device can access it */
  hk_status (*alloc_host)(hk_device *d, size_t bytes, hk_memory *out);
  /* The same, with virtual memory of the host.  alloc_host, `pin` and their release may wait for all work on the
   * device; this does not.  Without limits.late_host it is alloc_host. */
  hk_status (*alloc_host_late)(hk_device *d, size_t bytes, hk_memory *out);
  /* pins the caller's memory */
  hk_status (*pin)(hk_device *d, void *host, size_t bytes, hk_memory *out);
  /* Frees or closes `m`, whichever function made it; *m is zeroed. Does nothing if m->base is NULL. */
  hk_status (*release)(hk_device *d, hk_memory *m);
  /* park gives memory back and keeps its addresses: VMM, MAPPED, PINNED, REGISTERED and MULTICAST. unpark gets memory
   * again (for MULTICAST: multicast->again). The first `zeroed` bytes are zeros when the work in `q` has ended.
   * REGISTERED must be whole pages; if its mapping is shared, all lose the content.  `s`: the share to open, for
   * MAPPED.  release accepts parked memory, too. */
  hk_status (*park)(hk_device *d, hk_memory *m);
  hk_status (*unpark)(hk_device *d, hk_memory *m, const hk_memory_share *s, size_t zeroed, hk_queue q);
  hk_status (*pointer)(hk_device *d, const void *p, hk_pointer *out);
} hk_device_memory_ops;

/* Memory that other processes or other devices access. */
typedef struct hk_device_share_ops {
  hk_status (*offer)(hk_device *d, const hk_memory *m, hk_memory_share *out); /* the caller closes out->fd */
  /* The same for the allocation that contains `p`, from any library; it begins at *base. */
  hk_status (*offer_address)(hk_device *d, const void *p, hk_memory_share *out, uintptr_t *base);
  hk_status (*open)(hk_device *d, const hk_memory_share *s, hk_memory *out); /* does not keep s->fd */
  /* Gives d access to the memory of `other`. */
  hk_status (*peer)(hk_device *d, int other, char *why, size_t why_bytes);
} hk_device_share_ops;

/* For network cards that access the device's memory. */
typedef struct hk_device_card_ops {
  /* `pci`: for access over PCI, not over the CPU's link to the device, if the driver knows the difference. Needs
   * limits.dmabuf. */
  hk_status (*dmabuf)(hk_device *d, const void *p, size_t bytes, bool pci, int *fd);
  /* After it, kernels see the completed writes of network cards to the device's memory. Needs
   * limits.rdma_flush. */
  hk_status (*flush)(hk_device *d);
} hk_device_card_ops;

/* Multicast memory. Needs limits.multicast. */
typedef struct hk_device_multicast_ops {
  /* An object for this number of devices. All of them join (`add`) before any of them binds memory. *bytes is rounded
   * up. */
  hk_status (*create)(hk_device *d, unsigned devices, size_t *bytes, uint64_t *object);
  /* For another process. share: a file descriptor, which the caller closes; open: that object in the other process, to
   * be freed by `free`. */
  hk_status (*share)(hk_device *d, uint64_t object, int *fd);
  hk_status (*open)(hk_device *d, int fd, uint64_t *object);
  hk_status (*add)(hk_device *d, uint64_t object);
  /* `own`: d's memory, whose first `zeroed` bytes are zeros; `all`: the multicast address of all devices' memory.
   * Release `all`, then `own`, then free the object. No device may use `all` before all devices have bound their
   * memory. */
  hk_status (*bind)(hk_device *d, uint64_t object, size_t bytes, size_t zeroed, hk_memory *own, hk_memory *all);
  /* Binds the memory of `bind` again, after both were parked and `own` was unparked. */
  hk_status (*again)(hk_device *d, const hk_memory *own, hk_memory *all);
  hk_status (*free)(hk_device *d, uint64_t object);
  /* map: the object's address, without memory of d; its release also frees the object. attach, detach: add and remove
   * memory from space->place at that offset. */
  hk_status (*map)(hk_device *d, uint64_t object, size_t bytes, hk_memory *all);
  hk_status (*attach)(hk_device *d, uint64_t object, size_t at, const hk_memory *m);
  hk_status (*detach)(hk_device *d, uint64_t object, size_t at, size_t bytes);
} hk_device_multicast_ops;

/* Addresses without memory. Needs limits.fd_handles. */
typedef struct hk_device_space_ops {
  hk_status (*create)(hk_device *d, size_t bytes, void **out);
  hk_status (*free)(hk_device *d, void *at, size_t bytes);
  /* Maps an allocation at `at` in such a space: this process's allocation that contains `p` or, if p is NULL, that of
   * the file descriptor, which the caller keeps.  Only d gets access. */
  hk_status (*place)(hk_device *d, void *at, size_t bytes, const void *p, int fd, hk_memory *out);
} hk_device_space_ops;

typedef struct hk_device_stream_ops {
  hk_status (*create)(hk_device *d, hk_queue *out); /* a new stream: non-blocking, highest priority */
  hk_status (*free)(hk_device *d, hk_queue q);
  hk_status (*state)(hk_device *d, hk_queue q, hk_queue_state *out);
  /* Records a user's event; in a capture, at each replay. */
  hk_status (*record)(hk_device *d, void *event, hk_queue q, const hk_queue_state *s);
} hk_device_stream_ops;

/* The order of work in several streams: hk_queue_order. */
typedef struct hk_device_order_ops {
  /* `s` is what stream->state returned for `q`: called once for each piece of work. */
  hk_status (*begin)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  hk_status (*end)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  hk_status (*free)(hk_device *d, hk_queue_order *o);
  /* Is the last piece of work done?  It was not captured. */
  hk_status (*done)(hk_device *d, const hk_queue_order *o, bool *done);
} hk_device_order_ops;

/* The time of work in a queue, not captured. */
typedef struct hk_device_time_ops {
  /* Marks the point that the queue has reached; makes *event if it is NULL. */
  hk_status (*mark)(hk_device *d, void **event, hk_queue q, const hk_queue_state *s);
  /* *done: both points have been passed, and *ns is the time between them. */
  hk_status (*between)(hk_device *d, void *begin, void *end, bool *done, uint64_t *ns);
  hk_status (*free)(hk_device *d, void *event); /* NULL: nothing to do */
} hk_device_time_ops;

/* Work in captured graphs. */
typedef struct hk_device_graph_ops {
  /* In a capture, around a piece of work: each replay of the graph runs after all earlier work of the order, including
   * earlier replays, and later work of the order runs after the replay.  Drivers before CUDA 11.1 do not order them. */
  hk_status (*begin)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  hk_status (*end)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  /* Calls `done(arg)` once, when the graph under capture can no longer be replayed. Memory of its launches must live
   * until then. */
  hk_status (*keep)(hk_device *d, const hk_queue_state *s, void (*done)(void *), void *arg);
} hk_device_graph_ops;

/* Words in memory of this device or of a peer, which streams write and wait for. Needs limits.stream_words. */
typedef struct hk_device_word_ops {
  /* write: after the earlier work in the queue; wait: until the word has the value. May be captured. */
  hk_status (*write)(hk_device *d, void *at, uint32_t value, hk_queue q);
  hk_status (*wait)(hk_device *d, void *at, uint32_t value, hk_queue q);
  /* Waits for the value or a later one; values are cyclic. */
  hk_status (*reach)(hk_device *d, void *at, uint32_t value, hk_queue q);
  /* Fails if the driver refuses `write` or `wait` in a capture; `q` is the library's, and unused at this time. */
  hk_status (*check)(hk_device *d, void *at, hk_queue q);
} hk_device_word_ops;

typedef struct hk_device_kernel_ops {
  hk_status (*load)(hk_device *d, const void *image, void **module);
  hk_status (*unload)(hk_device *d, void *module); /* no launch of its kernels may be under way; NULL: nothing to do */
  hk_status (*function)(hk_device *d, void *module, const char *name, void **out);
  /* The number of blocks of `threads` threads that run at the same time on the whole device. */
  hk_status (*resident)(hk_device *d, void *function, unsigned threads, unsigned shared_bytes, unsigned *out);
  hk_status (*block_threads)(hk_device *d, void *function,
                             unsigned *out); /* the most threads that its blocks can have */
  hk_status (*launch)(hk_device *d, const hk_kernel_launch *l, hk_queue q);
} hk_device_kernel_ops;

typedef struct hk_device_ops {
  const char *name;
  void (*close)(hk_device *d);
  /* On the host device, with a NULL queue: at once. */
  hk_status (*copy)(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q);
  hk_status (*wait)(hk_device *d, hk_queue q); /* until all work in the queue has ended */
  hk_status (*finish)(hk_device *d);           /* until all work on the device has ended */
  const hk_device_memory_ops *memory;
  const hk_device_share_ops *share;
  const hk_device_card_ops *card;
  const hk_device_multicast_ops *multicast;
  const hk_device_space_ops *space;
  const hk_device_stream_ops *stream;
  const hk_device_order_ops *order;
  const hk_device_time_ops *time;
  const hk_device_graph_ops *graph;
  const hk_device_word_ops *word;
  const hk_device_kernel_ops *kernel;
} hk_device_ops;

/* Copies, and waits until all work in the queue has ended. */
static inline hk_status hk_device_copy(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q) {
  HK_OR_RETURN(d->ops->copy(d, to, from, bytes, q));
  return d->ops->wait(d, q);
}

/* ---- the implementations ---- */
/* True if the CUDA driver starts and shows a device, and HOCKET_DEVICE is not "host". */
bool hk_cuda_here(int *devices);
/* The device of the calling thread's current context; 0 if it has none. Only if hk_cuda_here is true. */
int hk_cuda_current(void);
hk_status hk_cuda_open(int ordinal, hk_device **out);
/* Is this the memory of a GPU? Costs nothing if the process has not loaded the driver; loads nothing itself. */
bool hk_cuda_owns(const void *p, int *device);
