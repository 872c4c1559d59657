/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams: their threads, queues and the turns of communicators (stream.h). */
#include "stream.h"
#include <hocket.h>
#include <stdlib.h>
#include <string.h>
#include "../base/thread.h"
#include "../boot/process.h" /* hk_forks */
#include "api.h"
#include "call.h"
#include "group.h"
#include "run.h"

enum { STREAM_LIVE = 0x7374726d };

typedef struct batch {
  struct batch *next;
  void (*fn)(void *);
  void *arg;
  uint64_t *turns; /* [n] */
  size_t n;
  hk_call calls[];
} batch;

struct hocketStream {
  uint32_t magic;
  unsigned forks;      /* hk_forks at its making: a forked child has no copy of the thread */
  _Atomic(int) queued; /* calls in open groups that use it */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t work, idle;
  batch *first, **end;
  bool busy, stop;
  hk_status status; /* the first failure since the last synchronize */
};

void hk_turn_take(ncclComm_t c, uint64_t *turn) { *turn = atomic_fetch_add(&c->order.issued, 1); }

hk_status hk_turn_wait(ncclComm_t c, uint64_t turn) {
  hk_wait_env env = c->wait;
  hk_waiter w;
  env.check = NULL; /* the previous call, on its own thread, checks that itself */
  hk_wait_begin(&w, &env);
  /* acquire: pairs with the release in hk_turn_over; the previous batch's work on the links is complete */
  while (atomic_load_explicit(&c->order.served, memory_order_acquire) < turn)
    if (hk_wait_pause(&w) != HK_OK) return hk_comm_settle(c, NULL);
  return HK_OK;
}

void hk_turn_over(ncclComm_t c) { atomic_fetch_add_explicit(&c->order.served, 1, memory_order_release); }

static hk_status run_batch(batch *b) {
  hk_status rc = HK_OK;
  for (size_t i = 0; i < b->n && rc == HK_OK; i++)
    if (b->turns[i] != UINT64_MAX) rc = hk_turn_wait(b->calls[i].comm, b->turns[i]);
  if (rc == HK_OK) rc = b->n == 1 ? hk_run_one(b->calls) : hk_run_group(b->calls, b->n);
  for (size_t i = 0; i < b->n; i++) {
    if (b->turns[i] != UINT64_MAX) hk_turn_over(b->calls[i].comm);
    atomic_fetch_sub(&b->calls[i].comm->health.inside, 1);
    hk_call_hold(&b->calls[i], -1);
  }
  return rc;
}

static void *stream_thread(void *arg) {
  hocketStream_t s = arg;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->first && !s->stop) pthread_cond_wait(&s->work, &s->lock);
    batch *b = s->first;
    if (!b) break; /* stopped, and nothing is left */
    s->first = b->next;
    if (!s->first) s->end = &s->first;
    s->busy = true;
    pthread_mutex_unlock(&s->lock);
    hk_status rc = HK_OK;
    if (b->fn)
      b->fn(b->arg);
    else
      rc = run_batch(b);
    free(b->turns);
    free(b);
    pthread_mutex_lock(&s->lock);
    if (rc != HK_OK && s->status == HK_OK) s->status = rc;
    s->busy = false;
    if (!s->first) pthread_cond_broadcast(&s->idle);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static hk_status inherited(hocketStream_t s, const char *who) {
  return HK_FAIL(
      HK_ERR_USAGE,
      "%s: the stream %p is of the process that forked this one, and its thread is there: make one here, after "
      "the fork",
      who, (void *)s);
}

hk_status hk_stream_check(cudaStream_t stream, const char *who) {
  hocketStream_t s = (hocketStream_t)(void *)stream;
  if (hk_stream_is_null(stream)) return HK_OK;
  if ((uintptr_t)s % _Alignof(struct hocketStream) == 0 && s->magic == STREAM_LIVE)
    return s->forks == hk_forks ? HK_OK : inherited(s, who);
  return HK_FAIL(
      HK_ERR_ARGUMENT,
      "%s: the stream %p is not a host stream: on host memory pass NULL, or a stream from hocketStreamCreate", who,
      (void *)s);
}

void hk_stream_hold(cudaStream_t stream, int by) { atomic_fetch_add(&((hocketStream_t)(void *)stream)->queued, by); }

static void append(hocketStream_t s, batch *b) {
  pthread_mutex_lock(&s->lock);
  *s->end = b;
  s->end = &b->next;
  pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
}

hk_status hk_stream_enqueue(cudaStream_t stream, const hk_call *calls, size_t n) {
  batch *b = calloc(1, sizeof *b + n * sizeof *calls);
  uint64_t *turns = malloc(n * sizeof *turns);
  if (!b || !turns) {
    free(b);
    free(turns);
    return HK_FAIL_ERRNO("no memory to enqueue %zu calls", n);
  }
  b->turns = turns;
  b->n = n;
  memcpy(b->calls, calls, n * sizeof *calls);
  for (size_t i = 0; i < n; i++) {
    bool first = true; /* one turn for each communicator and batch, taken for its first call */
    for (size_t k = 0; k < i && first; k++) first = calls[k].comm != calls[i].comm;
    turns[i] = UINT64_MAX;
    if (first) hk_turn_take(calls[i].comm, &turns[i]);
    atomic_fetch_add(&calls[i].comm->health.inside, 1);
    hk_call_hold(&calls[i], 1);
  }
  append((hocketStream_t)(void *)stream, b);
  return HK_OK;
}

HK_EXPORT ncclResult_t hocketStreamCreate(hocketStream_t *stream) {
  HK_UNCANCELLED;
  if (!stream) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "hocketStreamCreate: stream is NULL");
  hocketStream_t s = calloc(1, sizeof *s);
  if (!s) return (ncclResult_t)HK_FAIL_ERRNO("no memory for a stream");
  s->magic = STREAM_LIVE;
  s->forks = hk_forks;
  s->end = &s->first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->idle, NULL);
  int err = hk_thread_start(&s->thread, 0, stream_thread, s);
  if (err) {
    free(s);
    return (ncclResult_t)HK_FAIL(HK_ERR_SYSTEM, "no thread for a stream: %s", strerror(err));
  }
  *stream = s;
  return ncclSuccess;
}

static hk_status check_own(hocketStream_t s, const char *who) {
  if (s && s->magic == STREAM_LIVE) return s->forks == hk_forks ? HK_OK : inherited(s, who);
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: not a stream from hocketStreamCreate", who);
}

HK_EXPORT ncclResult_t hocketStreamSynchronize(hocketStream_t s) {
  HK_UNCANCELLED;
  hk_status rc = check_own(s, "hocketStreamSynchronize");
  if (rc != HK_OK) return (ncclResult_t)rc;
  pthread_mutex_lock(&s->lock);
  while (s->first || s->busy) pthread_cond_wait(&s->idle, &s->lock);
  rc = s->status;
  s->status = HK_OK;
  pthread_mutex_unlock(&s->lock);
  return (ncclResult_t)rc;
}

HK_EXPORT ncclResult_t hocketStreamQuery(hocketStream_t s) {
  hk_status rc = check_own(s, "hocketStreamQuery");
  if (rc != HK_OK) return (ncclResult_t)rc;
  pthread_mutex_lock(&s->lock);
  rc = s->status != HK_OK ? s->status : s->first || s->busy ? HK_IN_PROGRESS : HK_OK;
  pthread_mutex_unlock(&s->lock);
  return (ncclResult_t)rc;
}

HK_EXPORT ncclResult_t hocketStreamLaunch(hocketStream_t s, void (*fn)(void *arg), void *arg) {
  HK_UNCANCELLED;
  hk_status rc = check_own(s, "hocketStreamLaunch");
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (!fn) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "hocketStreamLaunch: fn is NULL");
  batch *b = calloc(1, sizeof *b);
  if (!b) return (ncclResult_t)HK_FAIL_ERRNO("no memory to enqueue a function");
  b->fn = fn;
  b->arg = arg;
  append(s, b);
  return ncclSuccess;
}

HK_EXPORT ncclResult_t hocketStreamDestroy(hocketStream_t s) {
  HK_UNCANCELLED;
  /* a parent process's: the copy ends with this process */
  if (s && s->magic == STREAM_LIVE && s->forks != hk_forks) return ncclSuccess;
  hk_status rc = check_own(s, "hocketStreamDestroy");
  if (rc != HK_OK) return (ncclResult_t)rc;
  int queued = atomic_load(&s->queued);
  if (queued)
    return (ncclResult_t)hk_group_remember(HK_FAIL(
        HK_ERR_USAGE,
        "hocketStreamDestroy: %d calls for this stream wait in a group that is open: call ncclGroupEnd first, then "
        "destroy the stream",
        queued));
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  s->magic = 0;
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->work);
  pthread_cond_destroy(&s->idle);
  free(s);
  return ncclSuccess;
}
