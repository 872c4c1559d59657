/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A device: it has memory and runs kernels. cuda.c and the other cuda_*.c are the implementation by CUDA's driver.
 *
 * A slot of the table that may be NULL says so; the others are always there. All may be called from any thread, and
 * leave the thread's current CUDA context as it was. A failure names the driver's error, the device and what was tried.
 */
#ifndef HK_DEVICE_DEVICE_H
#define HK_DEVICE_DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

enum { HK_DEVICE_GRANULE = 2 << 20 }; /* virtual memory begins and ends at multiples of it */
enum { HK_DEVICE_PAGE = 65536 };      /* what network cards are given of a GPU's memory is whole ones */
struct hk_device_ops;

/* What the device can do, asked once. */
typedef struct hk_device_limits {
  int ordinal, sm; /* 90: compute capability 9.0; 0: the host */
  int driver;      /* 12080: for CUDA 12.8; 0: unknown */
  int multiprocessors, threads_per_multiprocessor;
  int host_numa;                     /* node of the CPU that it hangs on; -1: unknown */
  int priority;                      /* the highest that a stream or launch may have */
  size_t memory_bytes, shared_bytes; /* of the device; of a block */
  bool vmm, multicast, clusters, dmabuf, gdr, integrated;
  bool rdma_ordered; /* what a card has written to its memory its kernels see before later signals of the host */
  bool rdma_flush;   /* else: the driver has a call for that, rdma_flush */
  bool stream_words; /* the driver knows word_write, word_wait and word_reach */
  bool fd_handles;   /* its memory can go to other processes by file descriptor */
  bool late_host;    /* the driver gives pinned memory while kernels run: alloc_host_late */
  char name[64], bus_id[32]; /* a domain may have 32 bits */
  unsigned char uuid[16];
} hk_device_limits;

typedef struct hk_device {
  const struct hk_device_ops *ops;
  hk_device_limits limits;
  void *own; /* an hk_queue of the user's, for the device's own work; NULL: each piece of work makes one */
} hk_device; /* the implementation's own struct begins with it */

typedef enum hk_memory_kind {
  HK_MEMORY_NONE,
  HK_MEMORY_CLASSIC,    /* cuMemAlloc, or the host's */
  HK_MEMORY_VMM,        /* of physical memory mapped into reserved addresses; of the host's memory, if `host` is set */
  HK_MEMORY_PINNED,     /* of the host, page-locked, that the device reaches too, near it */
  HK_MEMORY_REGISTERED, /* the same, but the caller's own */
  HK_MEMORY_OPENED,     /* of another process, by a handle */
  HK_MEMORY_MAPPED,     /* of another process, by a file descriptor */
  HK_MEMORY_PLACED,     /* of this process or another one, mapped into a space of addresses */
  HK_MEMORY_MULTICAST   /* no memory: the address of a multicast object */
} hk_memory_kind;

typedef struct hk_memory {
  void *base; /* for the device; NULL: nothing */
  void *host; /* for the CPU; NULL if it cannot access it */
  size_t bytes;
  uint64_t handle; /* the implementation's */
  bool parked;     /* its addresses are there, without memory */
  hk_memory_kind kind;
} hk_memory;

/* What another process needs to open memory.  `fd` travels beside it over a unix socket; -1: none is needed. */
typedef struct hk_memory_share {
  uint64_t bytes;
  uint32_t kind; /* hk_memory_kind of what is shared */
  int32_t fd;
  unsigned char handle[64];
} hk_memory_share;

/* Whose memory an address is. */
typedef struct hk_pointer {
  enum { HK_POINTER_HOST, HK_POINTER_PINNED, HK_POINTER_DEVICE, HK_POINTER_MANAGED } kind;
  int device;     /* of the kinds but the first; -1 */
  uintptr_t base; /* of its allocation; 0: unknown */
  size_t bytes;
  uint64_t id; /* of the allocation, another one's never; 0: unknown */
} hk_pointer;

/* ---- streams: the user's cudaStream_t. NULL is the legacy stream, and CUDA's two special handles mean what they do.
 * ---- */
typedef void *hk_queue;

typedef struct hk_queue_state {
  uint64_t id; /* the stream's, never another one's; 0: unknown, or another stream in each thread */
  bool here;   /* the device's context seems to be the thread's: calls for this piece of work need not enter it */
  bool capturing;
  uint64_t capture; /* its id, never 0 while capturing */
  void *graph;
} hk_queue_state;

/* Work that must run one after another though it comes by several streams, such as a communicator's. Zeroed, then
 * `order_begin` before and `order_end` after each piece of work; work in a captured graph is ordered within the
 * capture.  `replay_begin` and `replay_end` order the replays of such a graph with the work that is not captured. */
typedef struct hk_queue_order {
  void *event;
  uint64_t last;    /* id of the stream of the last piece */
  uint64_t capture; /* of the last piece; 0: not captured */
  bool used;
  bool replays;   /* graphs may record the event, at any time: so it is always waited for */
  uint64_t graph; /* the capture whose graph has had `node` */
  void *node;     /* records the event when all pieces of that graph are over */
} hk_queue_order;

typedef struct hk_kernel_launch {
  void *function;
  unsigned blocks, threads, shared_bytes;
  unsigned cluster;   /* blocks a cluster; 0 and 1: none */
  int priority;       /* 0: the stream's */
  bool remote_domain; /* its fences need not wait for other kernels' writes (sm_90) */
  bool here;          /* as in hk_queue_state */
  const void *param;  /* the kernel's one parameter, copied before the call returns */
  size_t param_bytes; /* that the kernel reads of it; 0: all */
} hk_kernel_launch;

typedef struct hk_device_ops {
  const char *name;
  void (*close)(hk_device *d);

  /* Zeroed. Large allocations can be shared with other processes if the driver allows it. */
  hk_status (*alloc)(hk_device *d, size_t bytes, hk_memory *out);
  /* The same, but only the first `zeroed` bytes are zeros, and peers of the process reach it too once `peer` lets
   * them. */
  hk_status (*alloc_open)(hk_device *d, size_t bytes, size_t zeroed, hk_memory *out);
  /* The same, for other processes too: with a file descriptor if `by_fd` and limits.fd_handles, else with a
   * handle. */
  hk_status (*alloc_shared)(hk_device *d, size_t bytes, size_t zeroed, bool by_fd, hk_memory *out);
  hk_status (*alloc_host)(hk_device *d, size_t bytes, hk_memory *out); /* pinned, zeroed, both reach it */
  /* The same, by virtual memory of the host.  Other allocations of pinned memory, `pin` and their release may wait for
   * all work on the device; this does not.  With limits.late_host; else it is alloc_host. */
  hk_status (*alloc_host_late)(hk_device *d, size_t bytes, hk_memory *out);
  hk_status (*pin)(hk_device *d, void *host, size_t bytes, hk_memory *out); /* the caller's memory; NULL: no need */
  /* Undoes what made `m`, whichever slot it was; *m is zeroed. Does nothing if m->base is NULL. */
  hk_status (*release)(hk_device *d, hk_memory *m);
  /* Gives back the memory at the addresses of VMM, MAPPED, PINNED, REGISTERED and MULTICAST memory, and gets it again
   * (the last: multicast_again); `zeroed` bytes at its beginning are zeros when `q` has come so far.  REGISTERED is
   * whole pages; if the mapping is shared, all lose the content.  `s`: what to open, for MAPPED.  release takes parked
   * memory, too. */
  hk_status (*park)(hk_device *d, hk_memory *m);
  hk_status (*unpark)(hk_device *d, hk_memory *m, const hk_memory_share *s, size_t zeroed, hk_queue q);
  hk_status (*share)(hk_device *d, const hk_memory *m, hk_memory_share *out); /* out->fd is the caller's to close */
  /* The allocation that holds `p`, whichever library made it; it begins at *base. */
  hk_status (*share_address)(hk_device *d, const void *p, hk_memory_share *out, uintptr_t *base);
  hk_status (*open)(hk_device *d, const hk_memory_share *s, hk_memory *out); /* keeps no hold of s->fd */
  hk_status (*peer)(hk_device *d, int other, char *why,
                    size_t why_bytes); /* lets d reach other's memory; NULL: it can */
  hk_status (*pointer)(hk_device *d, const void *p, hk_pointer *out);
  /* `pci`: for access over PCI beside the CPU's way to it, if the driver knows the difference. NULL: never. */
  hk_status (*dmabuf)(hk_device *d, const void *p, size_t bytes, bool pci, int *fd);
  /* Afterwards its kernels see what cards have written to its memory and reported. With limits.rdma_flush; else NULL,
   * or refused. */
  hk_status (*rdma_flush)(hk_device *d);

  /* Multicast (limits.multicast; else NULL together): an object for this number of devices. All of them join before
   * any of them binds memory. *bytes is rounded up. */
  hk_status (*multicast_new)(hk_device *d, unsigned devices, size_t *bytes, uint64_t *object);
  /* For another process: a file descriptor, the caller's to close; and the object that it means there, for
   * multicast_free. */
  hk_status (*multicast_share)(hk_device *d, uint64_t object, int *fd);
  hk_status (*multicast_open)(hk_device *d, int fd, uint64_t *object);
  hk_status (*multicast_add)(hk_device *d, uint64_t object);
  /* `own`: d's memory, whose first `zeroed` bytes are zeros; `all`: the address that means all devices'. Both are
   * released, `all` first, before the object is freed; no device may use `all` before every one has bound. */
  hk_status (*multicast_bind)(hk_device *d, uint64_t object, size_t bytes, size_t zeroed, hk_memory *own,
                              hk_memory *all);
  /* Binds what multicast_bind made, after both were parked and `own` is there again. */
  hk_status (*multicast_again)(hk_device *d, const hk_memory *own, hk_memory *all);
  hk_status (*multicast_free)(hk_device *d, uint64_t object);
  /* The object's address without memory of d's; its release frees the object, too.  Then memory of `place`, which takes
   * part at that offset. */
  hk_status (*multicast_map)(hk_device *d, uint64_t object, size_t bytes, hk_memory *all);
  hk_status (*multicast_attach)(hk_device *d, uint64_t object, size_t at, const hk_memory *m);
  hk_status (*multicast_detach)(hk_device *d, uint64_t object, size_t at, size_t bytes);

  /* Addresses without memory (limits.fd_handles; else NULL together). */
  hk_status (*space_new)(hk_device *d, size_t bytes, void **out);
  hk_status (*space_free)(hk_device *d, void *at, size_t bytes);
  /* Maps at `at` in them the allocation that holds `p`, of this process; or, if p is NULL, that of the file descriptor,
   * which stays the caller's.  Only d gets access. */
  hk_status (*place)(hk_device *d, void *at, size_t bytes, const void *p, int fd, hk_memory *out);

  /* A NULL queue of the host device: at once. */
  hk_status (*copy)(hk_device *d, void *to, const void *from, size_t bytes, hk_queue q);
  hk_status (*wait)(hk_device *d, hk_queue q); /* until all in the queue is done */
  hk_status (*finish)(hk_device *d);           /* until all on the device is done */

  /* All that follows is NULL together if there are no streams. */
  hk_status (*queue_new)(hk_device *d, hk_queue *out); /* of our own, non-blocking, highest priority */
  hk_status (*queue_free)(hk_device *d, hk_queue q);
  hk_status (*queue_state)(hk_device *d, hk_queue q, hk_queue_state *out);
  /* `s` is what queue_state returned for `q`: called once for each piece of work. */
  hk_status (*order_begin)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  hk_status (*order_end)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  hk_status (*order_free)(hk_device *d, hk_queue_order *o);
  /* In a capture, around a piece of work: each replay of the graph runs after what was in the order before, its earlier
   * replays included, and what comes into the order later runs after the replay.  NULL together: the driver cannot. */
  hk_status (*replay_begin)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  hk_status (*replay_end)(hk_device *d, hk_queue_order *o, hk_queue q, const hk_queue_state *s);
  /* Records an event of the user's; in a capture, at each replay. */
  hk_status (*record)(hk_device *d, void *event, hk_queue q, const hk_queue_state *s);
  /* Is the last piece of work done?  It was not captured. */
  hk_status (*order_done)(hk_device *d, const hk_queue_order *o, bool *done);
  /* A word of device memory, here or of a peer: written after what is in the queue, and waited for. May be
   * captured. */
  hk_status (*word_write)(hk_device *d, void *at, uint32_t value, hk_queue q);
  hk_status (*word_wait)(hk_device *d, void *at, uint32_t value, hk_queue q);
  /* Waits for the value or a later one; values are cyclic. */
  hk_status (*word_reach)(hk_device *d, void *at, uint32_t value, hk_queue q);
  /* Whether the driver takes both in a capture too; `q` is ours, and not used by others now. */
  hk_status (*word_check)(hk_device *d, void *at, hk_queue q);
  /* `done(arg)` once, when no replay of the graph under capture can come any more: what its launches use lives as
   * long. */
  hk_status (*graph_keep)(hk_device *d, const hk_queue_state *s, void (*done)(void *), void *arg);
  hk_status (*load)(hk_device *d, const void *image, void **module);
  hk_status (*unload)(hk_device *d, void *module); /* no launch of its kernels may be under way; NULL: nothing to do */
  hk_status (*function)(hk_device *d, void *module, const char *name, void **out);
  /* Blocks of this number of threads that run at the same time on the whole device. */
  hk_status (*resident)(hk_device *d, void *function, unsigned threads, unsigned shared_bytes, unsigned *out);
  hk_status (*block_threads)(hk_device *d, void *function,
                             unsigned *out); /* the most threads that its blocks can have */
  hk_status (*launch)(hk_device *d, const hk_kernel_launch *l, hk_queue q);
} hk_device_ops;

/* ---- the implementations ---- */
/* True if the CUDA driver starts and shows a device, and HOCKET_DEVICE is not "host". */
bool hk_cuda_here(int *devices);
/* The device of the calling thread's current context; 0 if it has none. Only if hk_cuda_here is true. */
int hk_cuda_current(void);
hk_status hk_cuda_open(int ordinal, hk_device **out);
/* Is this the memory of a GPU? Costs nothing if the process has not loaded the driver; loads nothing itself. */
bool hk_cuda_owns(const void *p, int *device);
#endif
