/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside the emulated CUDA driver: docs/cudaemu.md says what it emulates.  Everything shared lies under one lock; the
 * work of streams is done by a thread for each stream, outside of it.
 */
#ifndef HK_CUDAEMU_EMU_H
#define HK_CUDAEMU_EMU_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../src/base/cuda_abi.h"
#include "../ptxemu/ptxemu.h"
#include "held.h"
#include "kernel.h"

#define EXPORT __attribute__((visibility("default")))
#define EMU_DECLARE(member, symbol, params) EXPORT CUresult symbol params;
HK_CUDA_CALLS(EMU_DECLARE, EMU_DECLARE)

enum { EMU_DEVICES = 16, EMU_PAGE = 4096, EMU_GRANULE = 2 << 20, EMU_QUEUES = 32, EMU_SM_THREADS = 1024 };

/* What the environment asks for (CUDAEMU_*), read at cuInit. */
typedef struct emu_config {
  int ndevices, sm, sms, max_threads;
  size_t memory, multicast_granule; /* the granule that is recommended */
  bool strict, weak, aliases, apart, resident, sync_alloc, one_context, mig, vmm, late_host, import, captured_words,
      ipc, dmabuf, dmabuf_pci, dmabuf_vmm;
  bool multicast, corrupt_peer;
  int rdma_flush, rdma_order;
  int busy; /* a device that another process has for itself; -1: none */
  bool peer[EMU_DEVICES][EMU_DEVICES];
  unsigned seed, slow_us, slice_us, watchdog, connections, patience;
  unsigned queue;                                            /* operations that wait in a stream, at most */
  int local_bytes;                                           /* of local memory that a kernel's thread needs */
  long fail_alloc, fail_launch, fail_kernel, fail_multicast; /* the n-th fails, from 1; 0: none */
} emu_config;
extern emu_config emu;
extern pthread_mutex_t emu_lock;
extern pthread_cond_t emu_news; /* an operation is done */
bool emu_started(void);
/* Counts what is held (held.h). */
void emu_hold(int kind, int by);
/* Counts down an injected failure; true where this is the one. */
bool emu_fails(long *left);

/* ---- contexts ---- */
typedef struct emu_capture emu_capture;
struct emu_op;
typedef struct emu_queue { /* a hardware queue: what its streams enqueue begins in this order */
  struct emu_op *first, *last;
} emu_queue;
struct CUctx_st {
  int device, refs;
  CUresult error;              /* sticky */
  unsigned peers;              /* bit d: access to device d's memory is enabled */
  struct CUstream_st *streams; /* all, the legacy one included */
  struct CUstream_st *legacy;
  emu_queue queues[EMU_QUEUES]; /* the first emu.connections are in use */
  unsigned nstreams;            /* so far: streams take the queues in turn */
  bool busy;                    /* a call waits inside: the others that enqueue wait for it */
  int local_bytes;              /* of local memory that there is for a thread; 0: as many as at the beginning */
};
CUcontext emu_primary(int device);
/* The caller's context, or NULL with *code. */
CUcontext emu_context(CUresult *code);

/* ---- operations in streams ---- */
typedef struct emu_op emu_op;
typedef struct emu_work { /* what an operation does, immutable once made; shared by a graph's node and its launches */
  int refs;
  bool blocks; /* it begins when it ends: what comes after it in a hardware queue waits for it */
  CUresult (*run)(void *data, CUcontext ctx); /* NULL: nothing, it only orders */
  void (*drop)(void *data);                   /* with the last reference; may be NULL */
  void *data;                                 /* freed after drop */
} emu_work;
emu_work *emu_work_new(CUresult (*run)(void *, CUcontext), void *data, void (*drop)(void *));
void emu_work_unref(emu_work *w);

struct emu_op {
  int refs;
  bool done, counts; /* counts: it is an entry of the stream's queue */
  uint64_t time_ns;  /* when it was done */
  emu_work *work;
  emu_op **deps; /* done before it runs, in addition to what stands before it in the stream */
  size_t ndeps;
  struct CUstream_st *stream;
  emu_op *next, *queued; /* in its stream, in its hardware queue */
};
struct CUstream_st {
  CUcontext ctx;
  uint64_t id; /* never another stream's */
  unsigned flags, queue;
  int priority;
  bool legacy, closing, started;
  pthread_t worker, owner; /* owner: of a per-thread stream */
  bool per_thread;
  pthread_cond_t wake;
  emu_op *first, *queue_end, *last; /* last: holds a reference; may be done */
  unsigned queued;                  /* operations that are not done */
  emu_capture *capture;
  CUgraphNode *tips; /* of the capture: what the next node depends on */
  size_t ntips;
  struct CUstream_st *next;
};
struct CUevent_st {
  unsigned flags;
  emu_op *op; /* of the last record */
  emu_capture *capture;
  CUgraphNode *tips; /* of a record in a capture */
  size_t ntips;
};
/* All with the lock held. */
CUstream emu_stream(CUstream handle, CUresult *code); /* the object that a handle means */
CUstream emu_stream_new(CUcontext ctx, unsigned flags, int priority);
void emu_stream_close(CUstream s);
/* CUDAEMU_ONE_CONTEXT: the stream is of another context than the current one. Takes the lock. */
bool emu_foreign(CUstream handle);
emu_op *emu_enqueue(CUstream s, emu_work *work, emu_op **deps, size_t ndeps); /* a reference for the caller */
/* Of a graph, whose launch is one entry of the stream's queue. */
emu_op *emu_enqueue_node(CUstream s, emu_work *work, emu_op **deps, size_t ndeps);
void emu_op_unref(emu_op *op);
void emu_wait(emu_op *op);
/* Waits for all work of the context, if it is one; emu_drain: calls that enqueue in it wait meanwhile. */
void emu_await(CUcontext ctx);
void emu_drain(CUcontext ctx);
/* Takes the lock: enqueues on or captures into the stream; takes the caller's reference to the work. */
CUresult emu_submit(CUstream handle, emu_work *work);

/* ---- capture (lock held) ---- */
CUresult emu_capture_add(CUstream s, emu_work *work);
/* A call that captures do not allow is about to be made by this thread: an error where one goes on. */
CUresult emu_capture_forbids(void);
CUresult emu_capture_implicit(CUcontext ctx); /* the legacy stream is used */
CUresult emu_capture_break(CUstream s);       /* the stream is synchronised or queried */
CUresult emu_capture_event(CUstream s, CUevent e);
CUresult emu_capture_wait(CUstream s, CUevent e);
CUresult emu_capture_wait_external(CUstream s, CUevent e);
CUresult emu_capture_record_external(CUstream s, CUevent e);
void emu_event_reset(CUevent e);

/* ---- memory ---- */
void emu_memory_start(void);
bool emu_memory_is_device(uint64_t at);
/* Around everything that touches device memory on behalf of a stream. */
void emu_memory_open(void);
void emu_memory_close(void);
int emu_memory_device(uint64_t at); /* -1: host */
/* What memory is there, from *begin on: addresses of the same memory have the same key. */
void emu_memory_area(uint64_t at, uint64_t *begin, uint64_t *bytes, uint64_t *key);
/* How many devices have memory at a multicast address, and where; 0: it is none, or not all have. */
unsigned emu_multicast_views(const void *address, size_t bytes, char *views[EMU_DEVICES]);

/* ---- kernels ---- */
typedef struct emu_grid {
  cudaemu_entry entry;
  const char *name;
  unsigned blocks, threads;
  size_t dynamic_shared;
  void *params;
  ptx_launch launch; /* .kernel: it is PTX */
} emu_grid;
/* Runs it in the caller's thread.  False: its threads wait for each other for ever. */
bool emu_grid_run(const emu_grid *g, int device);
extern const cudaemu_driver_calls emu_kernel_calls;
cudaemu_driver_calls *emu_kernel_table(void);
uint64_t emu_now_ns(void);
/* Memory for a launch, perhaps of a past one; at least *bytes, which becomes what it is. */
void *emu_take_pages(size_t *bytes);
void emu_give_pages(void *memory, size_t bytes);

/* Takes the lock, for functions with one exit. */
static inline CUresult emu_unlock(CUresult code) {
  pthread_mutex_unlock(&emu_lock);
  return code;
}
#endif
