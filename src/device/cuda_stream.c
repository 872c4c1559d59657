/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device's streams: order, capture, modules, launches. */
#include <stdlib.h>
#include <string.h>
#include "cuda.h"

hk_status hk_cuda_copy(hk_device *base, void *to, const void *from, size_t bytes, hk_queue q) {
  if (bytes == 0) return HK_OK;
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, q),
                    "device %d: a copy of %zu bytes from %p to %p", base->limits.ordinal, bytes, from, to);
  return HK_OK;
}

/* Enqueues a write of a word, or a wait for it. */
static hk_status cuda_stream_word(hk_device *base, CUresult (*call)(CUstream, CUdeviceptr, uint32_t, unsigned),
                                  unsigned flags, const char *doing, void *at, uint32_t value, hk_queue q) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(call(q, (CUdeviceptr)(uintptr_t)at, value, flags), "device %d: %s a word at %p",
                    base->limits.ordinal, doing, at);
  return HK_OK;
}

static hk_status cuda_stream_word_write(hk_device *base, void *at, uint32_t value, hk_queue q) {
  return cuda_stream_word(base, hk_cu.StreamWriteValue32, CU_STREAM_WRITE_VALUE_DEFAULT, "writing", at, value, q);
}

static hk_status cuda_stream_word_wait(hk_device *base, void *at, uint32_t value, hk_queue q) {
  return cuda_stream_word(base, hk_cu.StreamWaitValue32, CU_STREAM_WAIT_VALUE_EQ, "waiting for", at, value, q);
}

static hk_status cuda_stream_word_reach(hk_device *base, void *at, uint32_t value, hk_queue q) {
  return cuda_stream_word(base, hk_cu.StreamWaitValue32, CU_STREAM_WAIT_VALUE_GEQ, "waiting for", at, value, q);
}

static hk_status cuda_stream_word_check(hk_device *base, void *at, hk_queue q) {
  CUdeviceptr p = (CUdeviceptr)(uintptr_t)at;
  CUgraph graph = NULL;
  int ordinal = base->limits.ordinal;
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.StreamBeginCapture(q, CU_STREAM_CAPTURE_MODE_RELAXED), "device %d: a capture", ordinal);
  CUresult code = hk_cu.StreamWriteValue32(q, p, 0, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (code == CUDA_SUCCESS) code = hk_cu.StreamWaitValue32(q, p, 0, CU_STREAM_WAIT_VALUE_EQ);
  CUresult ended = hk_cu.StreamEndCapture(q, &graph);
  if (graph) hk_cu.GraphDestroy(graph);
  HK_CUDA_OR_RETURN(code == CUDA_SUCCESS ? ended : code, "device %d: words that a captured stream writes and waits for",
                    ordinal);
  return HK_OK;
}

hk_status hk_cuda_wait(hk_device *base, hk_queue q) {
  HK_CUDA_ENTER_RELAXED(base);
  HK_CUDA_OR_RETURN(hk_cu.StreamSynchronize(q), "device %d: waiting for a stream", base->limits.ordinal);
  return HK_OK;
}

hk_status hk_cuda_queue_new(hk_device *base, hk_queue *out) {
  CUstream stream = NULL;
  *out = NULL;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, base->limits.priority),
                    "device %d: a stream", base->limits.ordinal);
  *out = stream;
  return HK_OK;
}

static hk_status stream_free(hk_device *base, hk_queue q) {
  if (!q) return HK_OK;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.StreamDestroy(q), "device %d: destroying a stream", base->limits.ordinal);
  return HK_OK;
}

/* ---- calls without a change of context ----
 * A stream's handle names its context. So calls for a piece of work are first made in the current context. If the
 * driver refuses one because another context is current, it is repeated in the device's context.  In a capture, a
 * refused call could break the capture. */

static bool cuda_stream_refused(hk_device *base, CUresult code) {
  if (code != CUDA_ERROR_INVALID_CONTEXT && code != CUDA_ERROR_INVALID_HANDLE) return false;
  if (!hk_cuda_is_current(base)) /* relaxed: only whether to ask first */
    atomic_store_explicit(&((hk_cuda *)base)->wary, true, memory_order_relaxed);
  return true;
}
#define IN_CONTEXT(base, its_here, code, call)                                                                         \
  do {                                                                                                                 \
    if (its_here) (code) = (call);                                                                                     \
    if (!(its_here) || cuda_stream_refused((base), (code))) {                                                          \
      const CUresult first_ = (code);                                                                                  \
      HK_CUDA_ENTER(base);                                                                                             \
      (code) = (call);                                                                                                 \
      if ((code) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && first_) (code) = first_; /* what ended the capture */     \
    }                                                                                                                  \
  } while (0)

/* Special handles (small numbers) mean streams of the current context. */
static bool cuda_stream_is_special(CUstream q) { return (uintptr_t)q <= (uintptr_t)CU_STREAM_PER_THREAD; }
static bool cuda_stream_is_legacy(CUstream q) { return cuda_stream_is_special(q) && q != CU_STREAM_PER_THREAD; }

/* After a stream is destroyed, its handle may be reused for another stream; its id is not. */
static uint64_t cuda_stream_id_of(CUstream q) {
  unsigned long long id = 0;
  if (cuda_stream_is_special(q)) return cuda_stream_is_legacy(q) ? UINT64_MAX : 0;
  return hk_cu.StreamGetId && hk_cu.StreamGetId(q, &id) == CUDA_SUCCESS ? id : 0;
}

static hk_status stream_state(hk_device *base, hk_queue q, hk_queue_state *out) {
  CUresult code = CUDA_SUCCESS;
  int status = CU_STREAM_CAPTURE_STATUS_NONE, ordinal = base->limits.ordinal;
  CUgraph graph = NULL;
  memset(out, 0, sizeof *out);
  /* relaxed: only whether to ask first */
  const bool asks = cuda_stream_is_special(q) || atomic_load_explicit(&((hk_cuda *)base)->wary, memory_order_relaxed);
  out->here = !asks || hk_cuda_is_current(base);
  IN_CONTEXT(base, out->here, code, hk_cu.StreamGetCaptureInfo(q, &status, &out->capture, &graph, NULL, NULL));
  /* While another stream captures, the driver refuses queries of the legacy stream, which itself captures nothing. */
  if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT && cuda_stream_is_legacy(q)) {
    return HK_FAIL(
        HK_ERR_USAGE,
        "device %d: the legacy default stream cannot be used while a graph is captured in a blocking stream: "
        "give the call the stream that captures, or make that one non-blocking",
        ordinal);
  }
  HK_CUDA_OR_RETURN(code, "device %d: whether the stream %p captures (is it destroyed?)", ordinal, q);
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return HK_FAIL(HK_ERR_USAGE, "device %d: the capture of stream %p is broken by an earlier error: end it first",
                   ordinal, q);
  out->capturing = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  /* In a capture the handle is enough, because it is not reused there. The fewer calls a capture sees, the fewer can
   * end it (docs/results/gpu.md). */
  out->id = out->capturing ? (uintptr_t)q : cuda_stream_id_of(q);
  out->graph = out->capturing ? graph : NULL;
  if (!out->capturing) out->capture = 0;
  if (out->capturing && !asks) out->here = hk_cuda_is_current(base);
  return HK_OK;
}

/* ---- order ---- */

static hk_status cuda_stream_need_event(hk_device *base, hk_queue_order *o) {
  CUevent event = NULL;
  if (o->event) return HK_OK;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), "device %d: an event", base->limits.ordinal);
  o->event = event;
  return HK_OK;
}

static hk_status cuda_stream_order_begin(hk_device *base, hk_queue_order *o, hk_queue q, const hk_queue_state *s) {
  CUresult code = CUDA_SUCCESS;
  /* A stream keeps the order of its own work, but not with graphs that were launched on other streams. */
  if (!o->used || (o->last == s->id && s->id && !o->replays)) return HK_OK;
  /* An event belongs to its capture, or to none. */
  if (s->capture != o->capture) return HK_OK;
  IN_CONTEXT(base, s->here, code, hk_cu.StreamWaitEvent(q, o->event, 0));
  HK_CUDA_OR_RETURN(code, "device %d: order between streams", base->limits.ordinal);
  return HK_OK;
}

static hk_status cuda_stream_order_end(hk_device *base, hk_queue_order *o, hk_queue q, const hk_queue_state *s) {
  CUresult code = CUDA_SUCCESS;
  HK_OR_RETURN(cuda_stream_need_event(base, o));
  IN_CONTEXT(base, s->here, code, hk_cu.EventRecord(o->event, q));
  HK_CUDA_OR_RETURN(code, "device %d: order between streams", base->limits.ordinal);
  o->last = s->id;
  o->capture = s->capture;
  o->used = true;
  return HK_OK;
}

/* The driver's support for ordering replays: since CUDA 11.1. */
static bool cuda_stream_orders_replays(void) { return hk_cu.GraphAddEventRecordNode && hk_cu.GraphAddDependencies; }

/* Moves the event, with the work that it marks, to a stream that never captures. A graph's wait for an event that was
 * never recorded, or was last recorded in the stream that now captures, is suspected to end the capture
 * (docs/results/gpu.md). NCCL records its event on a stream of its own, too. */
static hk_status cuda_stream_own_record(hk_device *base, hk_queue_order *o) {
  CUstream own = NULL;
  HK_CUDA_ENTER_RELAXED(base);
  CUresult code = hk_cu.StreamCreateWithPriority(&own, CU_STREAM_NON_BLOCKING, base->limits.priority);
  if (code == CUDA_SUCCESS && o->used) code = hk_cu.StreamWaitEvent(own, o->event, 0);
  if (code == CUDA_SUCCESS) code = hk_cu.EventRecord(o->event, own);
  if (own) (void)hk_cu.StreamDestroy(own);
  HK_CUDA_OR_RETURN(code, "device %d: recording an event before a graph waits for it", base->limits.ordinal);
  return HK_OK;
}

static hk_status cuda_stream_graph_begin(hk_device *base, hk_queue_order *o, hk_queue q, const hk_queue_state *s) {
  CUresult code = CUDA_SUCCESS;
  if (!cuda_stream_orders_replays()) return HK_OK;
  HK_OR_RETURN(cuda_stream_need_event(base, o));
  if (o->graph == s->capture) return HK_OK; /* an earlier piece of the graph waits */
  HK_OR_RETURN(cuda_stream_own_record(base, o));
  IN_CONTEXT(base, s->here, code, hk_cu.StreamWaitEvent(q, o->event, CU_EVENT_WAIT_EXTERNAL));
  HK_CUDA_OR_RETURN(code, "device %d: a node of a graph that waits for an event", base->limits.ordinal);
  return HK_OK;
}

/* One event node for the whole graph: it gets the end of each piece as a dependency, so it delays no piece. */
static hk_status cuda_stream_graph_end(hk_device *base, hk_queue_order *o, hk_queue q, const hk_queue_state *s) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = NULL;
  const CUgraphNode *ends = NULL;
  size_t n = 0;
  uint64_t id;
  if (!cuda_stream_orders_replays()) return HK_OK;
  HK_CUDA_ENTER(base);
  CUresult code = hk_cu.StreamGetCaptureInfo(q, &status, &id, &graph, &ends, &n);
  if (code == CUDA_SUCCESS && o->graph != s->capture) {
    code = hk_cu.GraphAddEventRecordNode((CUgraphNode *)&o->node, graph, ends, n, o->event);
    o->graph = s->capture;
  } else {
    for (size_t i = 0; code == CUDA_SUCCESS && i < n; i++) {
      const CUgraphNode node = o->node;
      code = hk_cu.GraphAddDependencies(graph, &ends[i], &node, 1);
    }
  }
  HK_CUDA_OR_RETURN(code, "device %d: a node of a graph that records an event", base->limits.ordinal);
  o->used = o->replays = true;
  return HK_OK;
}

static hk_status cuda_stream_order_done(hk_device *base, const hk_queue_order *o, bool *done) {
  *done = true;
  if (!o->used) return HK_OK;
  HK_CUDA_ENTER_RELAXED(base);
  CUresult code = hk_cu.EventQuery(o->event);
  *done = code != CUDA_ERROR_NOT_READY;
  if (*done) HK_CUDA_OR_RETURN(code, "device %d: the work in its streams failed", base->limits.ordinal);
  return HK_OK;
}

static hk_status cuda_stream_order_free(hk_device *base, hk_queue_order *o) {
  const CUevent event = o->event;
  memset(o, 0, sizeof *o);
  if (!event) return HK_OK;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.EventDestroy(event), "device %d: an event", base->limits.ordinal);
  return HK_OK;
}

/* ---- times ---- */

static hk_status cuda_stream_time_mark(hk_device *base, void **event, hk_queue q, const hk_queue_state *s) {
  CUresult code = CUDA_SUCCESS;
  if (!*event) {
    HK_CUDA_ENTER(base);
    code = hk_cu.EventCreate((CUevent *)event, 0);
  }
  if (code == CUDA_SUCCESS) IN_CONTEXT(base, s->here, code, hk_cu.EventRecord(*event, q));
  HK_CUDA_OR_RETURN(code, "device %d: the time of an operation", base->limits.ordinal);
  return HK_OK;
}

static hk_status cuda_stream_time_between(hk_device *base, void *begin, void *end, bool *done, uint64_t *ns) {
  float ms = 0;
  HK_CUDA_ENTER(base);
  CUresult code = hk_cu.EventQuery(end);
  *done = code != CUDA_ERROR_NOT_READY;
  if (!*done) return HK_OK;
  if (code == CUDA_SUCCESS) code = hk_cu.EventElapsedTime(&ms, begin, end);
  HK_CUDA_OR_RETURN(code, "device %d: the time of an operation", base->limits.ordinal);
  *ns = (uint64_t)((double)ms * 1e6);
  return HK_OK;
}

static hk_status cuda_stream_time_free(hk_device *base, void *event) {
  if (!event) return HK_OK;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.EventDestroy(event), "device %d: an event", base->limits.ordinal);
  return HK_OK;
}

static hk_status stream_record(hk_device *base, void *event, hk_queue q, const hk_queue_state *s) {
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(s->capturing && hk_cu.EventRecordWithFlags
                        ? hk_cu.EventRecordWithFlags(event, q, CU_EVENT_RECORD_EXTERNAL)
                        : hk_cu.EventRecord(event, q),
                    "device %d: recording the event %p", base->limits.ordinal, event);
  return HK_OK;
}

static hk_status cuda_stream_graph_keep(hk_device *base, const hk_queue_state *s, void (*done)(void *), void *arg) {
  hk_status rc = HK_OK;
  CUuserObject object = NULL;
  if (!hk_cu.UserObjectCreate || !hk_cu.GraphRetainUserObject || !hk_cu.UserObjectRelease)
    return HK_FAIL(HK_ERR_CUDA, "device %d: the driver is too old to report when a captured graph ends (CUDA 11.3)",
                   base->limits.ordinal);
  HK_CUDA_OR_RETURN(hk_cu.UserObjectCreate(&object, arg, done, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                    "device %d: an object for a graph", base->limits.ordinal);
  HK_CUDA_TRY(hk_cu.GraphRetainUserObject(s->graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), undo,
              "device %d: an object in a graph", base->limits.ordinal);
  return HK_OK;
undo:
  hk_cu.UserObjectRelease(object, 1); /* runs `done` */
  return rc;
}

/* ---- kernels ---- */

static hk_status cuda_stream_kernel_load(hk_device *base, const void *image, void **module) {
  CUmodule m;
  *module = NULL;
  HK_CUDA_ENTER_RELAXED(base); /* loading must not break another thread's capture */
  HK_CUDA_OR_RETURN(hk_cu.ModuleLoadData(&m, image), "device %d, sm_%d: the kernels", base->limits.ordinal,
                    base->limits.sm);
  *module = m;
  return HK_OK;
}

static hk_status cuda_stream_kernel_unload(hk_device *base, void *module) {
  if (!module) return HK_OK;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.ModuleUnload(module), "device %d: unloading the kernels", base->limits.ordinal);
  return HK_OK;
}

static hk_status cuda_stream_kernel_function(hk_device *base, void *module, const char *name, void **out) {
  CUfunction f;
  *out = NULL;
  HK_CUDA_ENTER_RELAXED(base); /* the driver may load the kernel at this call */
  HK_CUDA_OR_RETURN(hk_cu.ModuleGetFunction(&f, module, name), "device %d: the kernel %s", base->limits.ordinal, name);
  *out = f;
  return HK_OK;
}

static hk_status cuda_stream_kernel_resident(hk_device *base, void *function, unsigned threads, unsigned shared_bytes,
                                             unsigned *out) {
  int blocks = 0;
  *out = 0;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, (int)threads, shared_bytes),
                    "device %d: how many blocks of %u threads run at once", base->limits.ordinal, threads);
  *out = (unsigned)blocks * (unsigned)base->limits.multiprocessors;
  return HK_OK;
}

static hk_status cuda_stream_kernel_block_threads(hk_device *base, void *function, unsigned *out) {
  int most = 0;
  *out = 0;
  HK_CUDA_ENTER(base);
  HK_CUDA_OR_RETURN(hk_cu.FuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
                    "device %d: how many threads a kernel's blocks can have", base->limits.ordinal);
  *out = (unsigned)most;
  return HK_OK;
}

static hk_status cuda_stream_kernel_launch(hk_device *base, const hk_kernel_launch *l, hk_queue q) {
  void *params[] = {(void *)(uintptr_t)l->param};
  CUlaunchAttribute attributes[3];
  CUlaunchConfig c = {.gridDimX = l->blocks,
                      .gridDimY = 1,
                      .gridDimZ = 1,
                      .blockDimX = l->threads,
                      .blockDimY = 1,
                      .blockDimZ = 1,
                      .sharedMemBytes = l->shared_bytes,
                      .hStream = q,
                      .attrs = attributes};
  if (l->cluster > 1 && base->limits.clusters) {
    attributes[c.numAttrs] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    attributes[c.numAttrs].value.clusterDim.x = l->cluster;
    attributes[c.numAttrs].value.clusterDim.y = attributes[c.numAttrs].value.clusterDim.z = 1;
    c.numAttrs++;
  }
  if (l->remote_domain && base->limits.sm >= 90) {
    attributes[c.numAttrs] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN};
    attributes[c.numAttrs++].value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  }
  if (l->priority) {
    attributes[c.numAttrs] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
    attributes[c.numAttrs++].value.priority = l->priority;
  }
  size_t bytes = l->param_bytes;
  void *buffer[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, params[0], CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                    CU_LAUNCH_PARAM_END};
  void **list = bytes ? NULL : params, **extra = bytes ? buffer : NULL;
  CUresult code = CUDA_SUCCESS;
  if (c.numAttrs && hk_cu.LaunchKernelEx)
    IN_CONTEXT(base, l->here, code, hk_cu.LaunchKernelEx(&c, l->function, list, extra));
  else
    IN_CONTEXT(base, l->here, code,
               hk_cu.LaunchKernel(l->function, l->blocks, 1, 1, l->threads, 1, 1, l->shared_bytes, q, list, extra));
  HK_CUDA_OR_RETURN(code, "device %d: launching %u blocks of %u threads", base->limits.ordinal, l->blocks, l->threads);
  return HK_OK;
}

const hk_device_stream_ops hk_cuda_stream = {
    .create = hk_cuda_queue_new, .free = stream_free, .state = stream_state, .record = stream_record};

const hk_device_order_ops hk_cuda_order = {.begin = cuda_stream_order_begin,
                                           .end = cuda_stream_order_end,
                                           .free = cuda_stream_order_free,
                                           .done = cuda_stream_order_done};

const hk_device_time_ops hk_cuda_time = {
    .mark = cuda_stream_time_mark, .between = cuda_stream_time_between, .free = cuda_stream_time_free};

const hk_device_graph_ops hk_cuda_graph = {
    .begin = cuda_stream_graph_begin, .end = cuda_stream_graph_end, .keep = cuda_stream_graph_keep};

const hk_device_word_ops hk_cuda_word = {.write = cuda_stream_word_write,
                                         .wait = cuda_stream_word_wait,
                                         .reach = cuda_stream_word_reach,
                                         .check = cuda_stream_word_check};

const hk_device_kernel_ops hk_cuda_kernel = {.load = cuda_stream_kernel_load,
                                             .unload = cuda_stream_kernel_unload,
                                             .function = cuda_stream_kernel_function,
                                             .resident = cuda_stream_kernel_resident,
                                             .block_threads = cuda_stream_kernel_block_threads,
                                             .launch = cuda_stream_kernel_launch};
