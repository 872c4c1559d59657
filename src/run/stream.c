/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams: their threads, queues and the turns of communicators (stream.h).
 *
 * Batches run one at a time, in order: on the stream's thread, or on a thread that waits for the stream while no batch
 * runs. Otherwise that thread would sleep, and two thread switches cost more than a small operation. If the application
 * repeatedly waits soon after each call (the habit), it also need not wake the stream's thread, which then naps and
 * polls for batches. The end of a nap interrupts a rank that computes, so naps become longer while the habit lasts. The
 * first batch for which no thread waits then begins late, by less time than the habit has saved. */
#include "stream.h"
#include <errno.h>
#include <hocket.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../base/thread.h"
#include "../boot/process.h" /* hk_forks */
#include "../core/api.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../failure/failure.h"
#include "run.h"

enum {
  STREAM_LIVE = 0x7374726d,
  HABIT = 3, /* from this habit on, a thread is expected to wait soon for the next batch, too */
  NAP_NS = 100 * 1000,
  NAP_GROWS = 32, /* at this habit, and at each doubling of it, naps become twice as long */
  NAP_GROWTH = 4, /* doublings at most */
  NAPS = 10       /* naps without a new batch; then the stream's thread sleeps until it is woken */
};

typedef struct batch {
  struct batch *next;
  void (*fn)(void *);
  void *arg;
  uint64_t *turns; /* [n] */
  size_t n;
  hk_call calls[]; /* [n], then the turns */
} batch;

struct hocketStream {
  uint32_t magic;
  unsigned forks;      /* hk_forks at creation: a forked child has no copy of the thread */
  uint32_t modes;      /* arithmetic modes of the thread that created the stream; its batches run with them */
  _Atomic(int) queued; /* calls in open groups that use it */
  pthread_t thread;
  pthread_mutex_t lock; /* protects what is below */
  pthread_cond_t work, progress;
  batch *first, **end;
  uint64_t given, begun, over; /* batches; at most one has begun and is not over */
  uint64_t wanted;             /* the lowest `over` for which a thread sleeps; UINT64_MAX: none does */
  /* number of consecutive batches for which a thread waited before they began and before the next one was enqueued
   * */
  unsigned habit;
  bool napping, stop;
  hk_status status; /* the first failure since the last synchronize */
};

/* ---- modes of arithmetic: rounding, flush to zero. A sum must not depend on which thread makes it. ---- */

#if defined(__x86_64__)
enum { FLAGS = 0x3f }; /* status bits of past operations, not modes */
static uint32_t stream_get_modes(void) { return __builtin_ia32_stmxcsr() & ~(uint32_t)FLAGS; }
static void stream_set_modes(uint32_t modes) { __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & FLAGS) | modes); }
#elif defined(__aarch64__)
static uint32_t stream_get_modes(void) {
  uint64_t fpcr;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  return (uint32_t)fpcr;
}
static void stream_set_modes(uint32_t modes) { __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)modes)); }
#else
static uint32_t stream_get_modes(void) { return 0; }
static void stream_set_modes(uint32_t modes) { (void)modes; }
#endif

/* ---- turns ---- */

hk_status hk_turn_wait(ncclComm_t c, uint64_t turn) {
  hk_wait_env env = c->wait;
  hk_waiter w;
  env.check = NULL; /* the previous call, on its own thread, checks that itself */
  hk_wait_begin(&w, &env);
  /* acquire: pairs with the release in stream_turn_over; the previous batch's work on the links is complete */
  while (atomic_load_explicit(&c->order.served, memory_order_acquire) < turn)
    if (hk_wait_pause(&w) != HK_OK) return hk_failure_resolve(c, NULL);
  return HK_OK;
}

static void stream_turn_over(ncclComm_t c) { atomic_fetch_add_explicit(&c->order.served, 1, memory_order_release); }

static hk_status run_batch(batch *b) {
  hk_status rc = HK_OK;
  for (size_t i = 0; i < b->n && rc == HK_OK; i++)
    if (b->turns[i] != UINT64_MAX) rc = hk_turn_wait(b->calls[i].comm, b->turns[i]);
  if (rc == HK_OK) rc = b->n == 1 ? hk_run_one(b->calls) : hk_run_group(b->calls, b->n);
  for (size_t i = 0; i < b->n; i++) {
    if (b->turns[i] != UINT64_MAX) stream_turn_over(b->calls[i].comm);
    atomic_fetch_sub(&b->calls[i].comm->health.inside, 1);
    hk_call_hold(&b->calls[i], -1);
  }
  return rc;
}

/* Runs the next batch. The lock is held, but not while the batch runs. */
static void run_next(hocketStream_t s) {
  hk_status rc = HK_OK;
  batch *b = s->first;
  s->first = b->next;
  if (!s->first) s->end = &s->first;
  s->begun++;
  pthread_mutex_unlock(&s->lock);
  if (b->fn)
    b->fn(b->arg);
  else
    rc = run_batch(b);
  free(b);
  pthread_mutex_lock(&s->lock);
  if (rc != HK_OK && s->status == HK_OK) s->status = rc;
  s->over++;
  if (s->over < s->wanted) return;
  s->wanted = UINT64_MAX; /* threads that wait for a later batch set it again */
  pthread_cond_broadcast(&s->progress);
}

/* A batch waits, and none is under way. */
static bool stream_ready(const struct hocketStream *s) { return s->first && s->begun == s->over; }

/* Wakes the stream's thread, because no thread seems to wait for the stream. */
static void stream_hasten(hocketStream_t s) {
  s->habit = 0;
  pthread_cond_signal(&s->work);
}

/* `seen`: a batch is ready; it may begin after this nap. */
static void stream_nap(hocketStream_t s, bool seen) {
  struct timespec until;
  unsigned growth = 0;
  while (!seen && growth < NAP_GROWTH && s->habit >> growth >= NAP_GROWS) growth++;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += NAP_NS << growth;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  s->napping = true;
  (void)pthread_cond_timedwait(&s->work, &s->lock, &until);
  s->napping = false;
}

/* On the stream's thread: waits for a batch to run. False: the stream has ended, and no batch is left. */
static bool stream_await_work(hocketStream_t s) {
  uint64_t seen = UINT64_MAX; /* the batch that was ready before the last nap */
  unsigned naps = 0;
  for (;;) {
    bool now = stream_ready(s);
    if (now && (s->habit < HABIT || s->stop || seen == s->begun)) return true;
    if (!s->first && s->stop) return false;
    if (!now && (s->habit < HABIT || naps == NAPS)) {
      pthread_cond_wait(&s->work, &s->lock);
      naps = 0;
      continue;
    }
    uint64_t before = s->begun;
    seen = now ? before : UINT64_MAX;
    stream_nap(s, now);
    naps = s->begun == before ? naps + 1 : 0;
  }
}

static void *stream_thread(void *arg) {
  hocketStream_t s = arg;
  pthread_mutex_lock(&s->lock);
  while (stream_await_work(s)) {
    s->habit = 0;
    run_next(s);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* Waits until `position` batches are over, and runs batches that have not begun. The lock is held. */
static void stream_reach(hocketStream_t s, uint64_t position) {
  while (s->over < position) {
    if (s->begun == s->over) {
      uint32_t modes = stream_get_modes();
      if (modes != s->modes) stream_set_modes(s->modes);
      if (s->habit < UINT_MAX && !s->first->next) s->habit++;
      run_next(s);
      if (modes != s->modes) stream_set_modes(modes);
      continue;
    }
    if (position < s->wanted) s->wanted = position;
    pthread_cond_wait(&s->progress, &s->lock);
  }
  if (stream_ready(s)) stream_hasten(s); /* batches that other threads enqueued meanwhile */
}

/* The same until an absolute time; NULL: does not wait. Does not run batches itself, because it could not return in
 * time then. False: they are not over. */
static bool stream_reach_until(hocketStream_t s, uint64_t position, const struct timespec *until) {
  if (s->over < position && stream_ready(s)) stream_hasten(s);
  while (s->over < position) {
    if (!until) return false;
    if (position < s->wanted) s->wanted = position;
    if (pthread_cond_timedwait(&s->progress, &s->lock, until) == ETIMEDOUT) return s->over >= position;
  }
  return true;
}

static hk_status stream_inherited(hocketStream_t s, const char *who) {
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
    return s->forks == hk_forks ? HK_OK : stream_inherited(s, who);
  return HK_FAIL(
      HK_ERR_ARGUMENT,
      "%s: the stream %p is not a host stream: on host memory pass NULL, or a stream from hocketStreamCreate", who,
      (void *)s);
}

void hk_stream_hold(cudaStream_t stream, int by) { atomic_fetch_add(&((hocketStream_t)(void *)stream)->queued, by); }

static void stream_append(hocketStream_t s, batch *b) {
  pthread_mutex_lock(&s->lock);
  if (s->first) s->habit = 0; /* no thread waits yet for an earlier one */
  *s->end = b;
  s->end = &b->next;
  s->given++;
  if (!s->napping || s->habit < HABIT) pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
}

hk_status hk_stream_enqueue(cudaStream_t stream, const hk_call *calls, size_t n) {
  batch *b = malloc(sizeof *b + n * (sizeof *calls + sizeof *b->turns));
  if (!b) return HK_FAIL_ERRNO("no memory to enqueue %zu calls", n);
  *b = (batch){.n = n, .turns = (uint64_t *)(b->calls + n)};
  memcpy(b->calls, calls, n * sizeof *calls);
  for (size_t i = 0; i < n; i++) {
    bool first = true; /* one turn for each communicator and batch, taken for its first call */
    for (size_t k = 0; k < i && first; k++) first = calls[k].comm != calls[i].comm;
    b->turns[i] = UINT64_MAX;
    if (first) b->turns[i] = atomic_fetch_add(&calls[i].comm->order.issued, 1);
    atomic_fetch_add(&calls[i].comm->health.inside, 1);
    hk_call_hold(&calls[i], 1);
  }
  stream_append((hocketStream_t)(void *)stream, b);
  return HK_OK;
}

HK_EXPORT ncclResult_t hocketStreamCreate(hocketStream_t *stream) {
  HK_UNCANCELLED;
  if (!stream) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "hocketStreamCreate: stream is NULL");
  hocketStream_t s = calloc(1, sizeof *s);
  if (!s) return (ncclResult_t)HK_FAIL_ERRNO("no memory for a stream");
  s->magic = STREAM_LIVE;
  s->forks = hk_forks;
  s->modes = stream_get_modes();
  s->end = &s->first;
  s->wanted = UINT64_MAX;
  pthread_mutex_init(&s->lock, NULL);
  hk_cond_init(&s->work);
  hk_cond_init(&s->progress);
  int err = hk_thread_start(&s->thread, 0, stream_thread, s);
  if (err) {
    free(s);
    return (ncclResult_t)HK_FAIL(HK_ERR_SYSTEM, "no thread for a stream: %s", strerror(err));
  }
  *stream = s;
  return ncclSuccess;
}

static hk_status stream_check_own(hocketStream_t s, const char *who) {
  if (s && s->magic == STREAM_LIVE) return s->forks == hk_forks ? HK_OK : stream_inherited(s, who);
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: not a stream from hocketStreamCreate", who);
}

HK_EXPORT ncclResult_t hocketStreamSynchronize(hocketStream_t s) {
  HK_UNCANCELLED;
  hk_status rc = stream_check_own(s, "hocketStreamSynchronize");
  if (rc != HK_OK) return (ncclResult_t)rc;
  pthread_mutex_lock(&s->lock);
  stream_reach(s, s->given);
  rc = s->status;
  s->status = HK_OK;
  pthread_mutex_unlock(&s->lock);
  return (ncclResult_t)rc;
}

HK_EXPORT ncclResult_t hocketStreamPosition(hocketStream_t s, uint64_t *position) {
  HK_UNCANCELLED;
  hk_status rc = stream_check_own(s, "hocketStreamPosition");
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (!position) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "hocketStreamPosition: position is NULL");
  pthread_mutex_lock(&s->lock);
  *position = s->given;
  pthread_mutex_unlock(&s->lock);
  return ncclSuccess;
}

HK_EXPORT ncclResult_t hocketStreamWait(hocketStream_t s, uint64_t position, int64_t ns) {
  HK_UNCANCELLED;
  hk_status rc = stream_check_own(s, "hocketStreamWait");
  if (rc != HK_OK) return (ncclResult_t)rc;
  pthread_mutex_lock(&s->lock);
  if (position > s->given) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "hocketStreamWait: position %llu, and the stream was given %llu operations so far",
                 (unsigned long long)position, (unsigned long long)s->given);
  } else if (ns < 0) {
    stream_reach(s, position);
    rc = s->status;
  } else {
    uint64_t at = ns ? hk_now_ns() + (uint64_t)ns : 0;
    struct timespec until = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
    rc = stream_reach_until(s, position, ns ? &until : NULL) ? s->status : HK_IN_PROGRESS;
  }
  pthread_mutex_unlock(&s->lock);
  return (ncclResult_t)rc;
}

HK_EXPORT ncclResult_t hocketStreamQuery(hocketStream_t s) {
  hk_status rc = stream_check_own(s, "hocketStreamQuery");
  if (rc != HK_OK) return (ncclResult_t)rc;
  pthread_mutex_lock(&s->lock);
  rc = s->status != HK_OK ? s->status : s->over < s->given ? HK_IN_PROGRESS : HK_OK;
  if (stream_ready(s)) stream_hasten(s);
  pthread_mutex_unlock(&s->lock);
  return (ncclResult_t)rc;
}

HK_EXPORT ncclResult_t hocketStreamLaunch(hocketStream_t s, void (*fn)(void *arg), void *arg) {
  HK_UNCANCELLED;
  hk_status rc = stream_check_own(s, "hocketStreamLaunch");
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (!fn) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "hocketStreamLaunch: fn is NULL");
  batch *b = calloc(1, sizeof *b);
  if (!b) return (ncclResult_t)HK_FAIL_ERRNO("no memory to enqueue a function");
  b->fn = fn;
  b->arg = arg;
  stream_append(s, b);
  return ncclSuccess;
}

hk_status hk_stream_destroy(hocketStream_t s) {
  /* it belongs to a parent process; this copy ends with this process */
  if (s && s->magic == STREAM_LIVE && s->forks != hk_forks) return HK_OK;
  HK_OR_RETURN(stream_check_own(s, "hocketStreamDestroy"));
  int queued = atomic_load(&s->queued);
  if (queued)
    return HK_FAIL(
        HK_ERR_USAGE,
        "hocketStreamDestroy: %d calls for this stream wait in a group that is open: call ncclGroupEnd first, then "
        "destroy the stream",
        queued);
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  s->magic = 0;
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->work);
  pthread_cond_destroy(&s->progress);
  free(s);
  return HK_OK;
}
