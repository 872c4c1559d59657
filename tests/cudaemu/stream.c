/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a queue and a thread each.  An operation runs when those before it in the stream and those it depends on
 * are done.  The legacy stream and the blocking streams of a context wait for each other, as the driver's manual
 * tells. With CUDAEMU_CONNECTIONS the streams of a context share so many hardware queues.  A queue is in order: an
 * operation that cannot begin yet holds up all that was enqueued later there, of whichever stream. A stream holds so
 * many operations that are not done; a call that enqueues one more waits inside the context, and holds up all others
 * that enqueue there, as the driver's calls do. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "emu.h"

pthread_cond_t emu_news = PTHREAD_COND_INITIALIZER;

/* ---- work and operations ---- */

emu_work *emu_work_new(CUresult (*run)(void *, CUcontext), void *data, void (*drop)(void *)) {
  emu_work *w = malloc(sizeof *w);
  if (!w) abort();
  *w = (emu_work){.refs = 1, .run = run, .drop = drop, .data = data};
  return w;
}
void emu_work_unref(emu_work *w) {
  if (!w || __atomic_sub_fetch(&w->refs, 1, __ATOMIC_ACQ_REL)) return;
  if (w->drop) w->drop(w->data);
  free(w->data);
  free(w);
}
void emu_op_unref(emu_op *op) {
  while (op && --op->refs == 0) {
    for (size_t i = 0; i < op->ndeps; i++) emu_op_unref(op->deps[i]);
    free(op->deps);
    emu_work_unref(op->work);
    free(op);
    op = NULL;
  }
}

static bool ready(const emu_op *op) {
  for (size_t i = 0; i < op->ndeps; i++)
    if (!op->deps[i]->done) return false;
  return true;
}

/* What an operation depended on is done: it need not be remembered through it. */
static void finish(emu_op *op) {
  for (size_t i = 0; i < op->ndeps; i++) emu_op_unref(op->deps[i]);
  free(op->deps);
  op->deps = NULL;
  op->ndeps = 0;
  op->time_ns = emu_now_ns();
  op->done = true;
  pthread_cond_broadcast(&emu_news);
}

/* ---- hardware queues ---- */

static emu_queue *queue_of(const emu_op *op) { return &op->stream->ctx->queues[op->stream->queue]; }
static bool its_turn(const emu_op *op) { return !emu.connections || queue_of(op)->first == op; }
static void join_queue(emu_op *op) {
  emu_queue *q = queue_of(op);
  if (!emu.connections) return;
  op->refs++;
  if (q->last)
    q->last->queued = op;
  else
    q->first = op;
  q->last = op;
}
/* The next one may begin. */
static void leave_queue(emu_op *op) {
  emu_queue *q = queue_of(op);
  if (!emu.connections) return;
  q->first = op->queued;
  if (!q->first) q->last = NULL;
  pthread_cond_broadcast(&emu_news);
  emu_op_unref(op);
}

static void perform(CUstream s, emu_op *op) {
  emu_work *w = op->work;
  const bool blocks = w && w->blocks;
  if (!blocks) leave_queue(op);
  op->work = NULL;
  if (w && w->run && s->ctx->error == CUDA_SUCCESS) {
    CUcontext ctx = s->ctx;
    pthread_mutex_unlock(&emu_lock);
    if (emu.slow_us) {
      struct timespec t = {emu.slow_us / 1000000, emu.slow_us % 1000000 * 1000};
      nanosleep(&t, NULL);
    }
    CUresult code = w->run(w->data, ctx);
    emu_work_unref(w);
    pthread_mutex_lock(&emu_lock);
    if (code && ctx->error == CUDA_SUCCESS) ctx->error = code;
  } else if (w) {
    pthread_mutex_unlock(&emu_lock);
    emu_work_unref(w); /* may call the user's functions */
    pthread_mutex_lock(&emu_lock);
  }
  if (blocks) leave_queue(op);
}

static void *work(void *arg) {
  CUstream s = arg;
  pthread_mutex_lock(&emu_lock);
  for (;;) {
    while (!s->first && !s->closing) pthread_cond_wait(&s->wake, &emu_lock);
    emu_op *op = s->first;
    if (!op) break;
    while (!ready(op) || !its_turn(op)) pthread_cond_wait(&emu_news, &emu_lock);
    perform(s, op);
    s->first = op->next;
    if (!s->first) s->queue_end = NULL;
    s->queued -= op->counts;
    finish(op);
    emu_op_unref(op);
  }
  emu_op_unref(s->last);
  pthread_cond_destroy(&s->wake);
  free(s->tips);
  free(s);
  pthread_mutex_unlock(&emu_lock);
  return NULL;
}

static void depend(emu_op *op, emu_op *on) {
  if (!on || on->done) return;
  op->deps = realloc(op->deps, sizeof(emu_op *) * (op->ndeps + 1));
  if (!op->deps) abort();
  op->deps[op->ndeps++] = on;
  on->refs++;
}

static void enter(CUcontext ctx) {
  while (ctx->busy) pthread_cond_wait(&emu_news, &emu_lock);
  ctx->busy = true;
}
static void leave(CUcontext ctx) {
  ctx->busy = false;
  pthread_cond_broadcast(&emu_news);
}
void emu_await(CUcontext ctx) {
  for (CUstream s = ctx ? ctx->streams : NULL; s;) {
    bool waits = s->last && !s->last->done;
    emu_wait(s->last);
    s = waits ? ctx->streams : s->next; /* the list may have changed */
  }
}
void emu_drain(CUcontext ctx) {
  enter(ctx);
  emu_await(ctx);
  leave(ctx);
}

static emu_op *put(CUstream s, emu_work *w, emu_op **deps, size_t ndeps, bool counts) {
  emu_op *op = calloc(1, sizeof *op);
  if (!op) abort();
  for (size_t i = 0; i < ndeps; i++) depend(op, deps[i]); /* before it waits: the caller's may be gone afterwards */
  if (counts) enter(s->ctx);
  while (counts && s->queued >= emu.queue) pthread_cond_wait(&emu_news, &emu_lock);
  if (counts) leave(s->ctx);
  s->queued += counts;
  op->counts = counts;
  op->refs = 3; /* the queue's, the stream's, the caller's */
  op->work = w;
  op->stream = s;
  if (s->legacy) {
    for (CUstream other = s->ctx->streams; other; other = other->next)
      if (other != s && !(other->flags & CU_STREAM_NON_BLOCKING)) depend(op, other->last);
  } else if (!(s->flags & CU_STREAM_NON_BLOCKING)) {
    depend(op, s->ctx->legacy->last);
  }
  if (s->queue_end)
    s->queue_end->next = op;
  else
    s->first = op;
  s->queue_end = op;
  join_queue(op);
  emu_op_unref(s->last);
  s->last = op;
  if (!s->started) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    s->started = pthread_create(&s->worker, &attr, work, s) == 0;
    pthread_attr_destroy(&attr);
    if (!s->started) abort();
  }
  pthread_cond_signal(&s->wake);
  return op;
}

emu_op *emu_enqueue(CUstream s, emu_work *w, emu_op **deps, size_t ndeps) { return put(s, w, deps, ndeps, true); }
emu_op *emu_enqueue_node(CUstream s, emu_work *w, emu_op **deps, size_t ndeps) { return put(s, w, deps, ndeps, false); }

void emu_wait(emu_op *op) {
  if (!op) return;
  op->refs++;
  while (!op->done) pthread_cond_wait(&emu_news, &emu_lock);
  emu_op_unref(op);
}

/* ---- streams ---- */

CUstream emu_stream_new(CUcontext ctx, unsigned flags, int priority) {
  static uint64_t ids;
  CUstream s = calloc(1, sizeof *s);
  if (!s) abort();
  s->ctx = ctx;
  s->id = ++ids;
  s->flags = flags;
  s->priority = priority;
  if (emu.connections) s->queue = ctx->nstreams++ % emu.connections;
  s->next = ctx->streams;
  ctx->streams = s;
  pthread_cond_init(&s->wake, NULL);
  return s;
}

void emu_stream_close(CUstream s) {
  for (CUstream *at = &s->ctx->streams; *at; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  if (s->started) { /* what is queued still runs; then the thread frees it */
    s->closing = true;
    pthread_cond_signal(&s->wake);
    return;
  }
  pthread_cond_destroy(&s->wake);
  free(s->tips);
  free(s);
}

static bool known(CUcontext ctx, CUstream s) {
  for (CUstream at = ctx->streams; at; at = at->next)
    if (at == s) return true;
  return false;
}

CUstream emu_stream(CUstream handle, CUresult *code) {
  CUcontext ctx = emu_context(code);
  if ((uintptr_t)handle <= 2) {
    if (!ctx) return NULL;
    if (handle != CU_STREAM_PER_THREAD) return ctx->legacy;
    for (CUstream s = ctx->streams; s; s = s->next)
      if (s->per_thread && pthread_equal(s->owner, pthread_self())) return s;
    CUstream s = emu_stream_new(ctx, CU_STREAM_DEFAULT, 0);
    s->per_thread = true;
    s->owner = pthread_self();
    return s;
  }
  if (ctx && known(ctx, handle)) return handle;
  for (int d = 0; d < emu.ndevices; d++) { /* a stream says its context itself */
    CUcontext other = emu_primary(d);
    if (other && known(other, handle)) {
      *code = other->error;
      return other->error ? NULL : handle;
    }
  }
  *code = emu_started() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_INITIALIZED;
  return NULL;
}

bool emu_foreign(CUstream handle) {
  CUresult code;
  if (!emu.one_context || (uintptr_t)handle <= 2) return false;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  const bool foreign = !ctx || !known(ctx, handle);
  pthread_mutex_unlock(&emu_lock);
  return foreign;
}

CUresult emu_submit(CUstream handle, emu_work *w) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(handle, &code);
  if (s && s->legacy) code = emu_capture_implicit(s->ctx);
  if (!s || code) {
    pthread_mutex_unlock(&emu_lock);
    emu_work_unref(w);
    return code;
  }
  if (s->capture) return emu_unlock(emu_capture_add(s, w));
  emu_op_unref(emu_enqueue(s, w, NULL, 0));
  return emu_unlock(CUDA_SUCCESS);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  CUresult code = CUDA_SUCCESS;
  if (!stream || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (ctx) *stream = emu_stream_new(ctx, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
  if (ctx) emu_hold(CUDAEMU_STREAMS, 1);
  return emu_unlock(code);
}
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cuStreamDestroy_v2(CUstream stream) {
  CUresult code = CUDA_SUCCESS;
  if ((uintptr_t)stream <= 2) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->capture) code = emu_capture_break(s);
  if (s) emu_hold(CUDAEMU_STREAMS, -1);
  if (s) emu_stream_close(s);
  return emu_unlock(code);
}
CUresult cuStreamQuery(CUstream stream) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->legacy) code = emu_capture_implicit(s->ctx);
  if (s && s->capture) code = emu_capture_break(s);
  if (!code && s && s->last && !s->last->done) code = CUDA_ERROR_NOT_READY;
  if (!code && s) code = s->ctx->error;
  return emu_unlock(code);
}
CUresult cuStreamSynchronize(CUstream stream) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->legacy) code = emu_capture_implicit(s->ctx);
  if (s && s->capture) code = emu_capture_break(s);
  if (!s || code) return emu_unlock(code);
  CUcontext ctx = s->ctx;
  if (s->legacy) /* it waits for what it would be ordered after */
    for (CUstream other = ctx->streams; other;) {
      emu_op *last = other->flags & CU_STREAM_NON_BLOCKING || other == s ? NULL : other->last;
      bool waits = last && !last->done;
      emu_wait(last);
      other = waits ? ctx->streams : other->next; /* the list may have changed */
    }
  emu_wait(s->last);
  return emu_unlock(ctx->error);
}
CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s) *flags = s->flags;
  return emu_unlock(code);
}
CUresult cuStreamGetPriority(CUstream stream, int *priority) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s) *priority = s->priority;
  return emu_unlock(code);
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s) *ctx = s->ctx;
  return emu_unlock(code);
}
CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s) *id = s->id;
  return emu_unlock(code);
}
CUresult cuCtxSynchronize(void) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (ctx) code = emu_capture_forbids();
  if (!ctx || code) return emu_unlock(code);
  emu_await(ctx);
  return emu_unlock(ctx->error);
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUcontext ctx = emu_context(&code);
  if (ctx && !(*event = calloc(1, sizeof **event))) code = CUDA_ERROR_OUT_OF_MEMORY;
  if (!code) (*event)->flags = flags;
  if (!code) emu_hold(CUDAEMU_EVENTS, 1);
  return emu_unlock(code);
}
CUresult cuEventDestroy_v2(CUevent event) {
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  emu_event_reset(event);
  free(event);
  emu_hold(CUDAEMU_EVENTS, -1);
  return emu_unlock(CUDA_SUCCESS);
}
void emu_event_reset(CUevent e) {
  emu_op_unref(e->op);
  free(e->tips);
  e->op = NULL;
  e->tips = NULL;
  e->ntips = 0;
  e->capture = NULL;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  CUresult code = CUDA_SUCCESS;
  if (!event || emu_foreign(stream)) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->legacy) code = emu_capture_implicit(s->ctx);
  if (!s || code) return emu_unlock(code);
  if (s->capture) return emu_unlock(emu_capture_event(s, event));
  emu_event_reset(event);
  event->op = emu_enqueue(s, NULL, NULL, 0);
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  if (!event || flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->capture && flags) return emu_unlock(emu_capture_record_external(s, event));
  pthread_mutex_unlock(&emu_lock);
  return code ? code : cuEventRecord(event, stream);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->legacy) code = emu_capture_implicit(s->ctx);
  if (!s || code) return emu_unlock(code);
  if (s->capture && flags & CU_EVENT_WAIT_EXTERNAL) return emu_unlock(emu_capture_wait_external(s, event));
  if (s->capture || event->capture) return emu_unlock(emu_capture_wait(s, event));
  if (event->op && !event->op->done) emu_op_unref(emu_enqueue(s, NULL, &event->op, 1));
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuEventQuery(CUevent event) {
  CUresult code = CUDA_SUCCESS;
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  code = event->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : emu_capture_forbids();
  if (!code) (void)emu_context(&code); /* reports an earlier failure */
  if (!code && event->op) code = event->op->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  return emu_unlock(code);
}
CUresult cuEventSynchronize(CUevent event) {
  CUresult code = CUDA_SUCCESS;
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  code = event->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : emu_capture_forbids();
  if (!code) emu_wait(event->op);
  CUcontext ctx = code ? NULL : emu_context(&code);
  if (ctx && ctx->error) code = ctx->error;
  return emu_unlock(code);
}
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end) {
  if (!begin || !end || (begin->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&emu_lock);
  if (!begin->op || !end->op) return emu_unlock(CUDA_ERROR_INVALID_HANDLE);
  if (!begin->op->done || !end->op->done) return emu_unlock(CUDA_ERROR_NOT_READY);
  *ms = (float)((double)(int64_t)(end->op->time_ns - begin->op->time_ns) / 1e6);
  return emu_unlock(CUDA_SUCCESS);
}
