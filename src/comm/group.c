/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: collects the calls and inits of a thread, and runs them at the end (group.h, jobs.h). */
#include "group.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/thread.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../failure/failure.h"
#include "../run/profiler.h"
#include "../run/selection.h"
#include "../run/stream.h"
#include "jobs.h"

enum { FIRST_CAPACITY = 64 }; /* calls */
typedef struct hk_group {
  int depth;
  hk_status error;
  hk_call *calls;
  size_t ncalls, capacity;
  hk_jobs jobs;
  hk_task *tasks;
  hk_profiler *profiler; /* of the first call whose communicator has a profiler */
  void *event;           /* the group's, for that profiler */
  bool watched;          /* it is dropped at the end of its thread */
} hk_group;

/* Groups belong to threads by the API's definition. */
static _Thread_local hk_group group;

/* The key whose destructor runs when a thread ends that has opened a group. */
static struct {
  pthread_once_t once;
  pthread_key_t key;
  bool made;
} thread_end = {.once = PTHREAD_ONCE_INIT};

static void group_watch_thread(void);

hk_status hk_group_remember(hk_status rc) {
  if (rc != HK_OK && group.depth > 0 && group.error == HK_OK) group.error = rc;
  return rc;
}

hk_status hk_group_start(void) {
  group.depth++;
  if (__builtin_expect(!group.watched, 0)) group_watch_thread();
  return HK_OK;
}

/* ---- calls in a group keep the memory of their communicators and streams ---- */

static inline void group_hold_names(const hk_call *call, int by) {
  if (call->stream && call->comm->backend->hold) call->comm->backend->hold(call, by);
  hk_call_hold(call, by);
}

static inline void group_let_go(const hk_call *call) {
  group_hold_names(call, -1);
  if (call->holds) atomic_fetch_sub(&call->comm->health.queued, 1);
}

/* The calls no longer wait in the group. Starts with the last call, because a call holds the communicator for later
 * calls on it. */
static inline void group_let_all_go(const hk_call *calls, size_t n) {
  while (n) group_let_go(&calls[--n]);
}

hk_status hk_group_still_there(ncclComm_t c) {
  if (atomic_load(&c->magic) == HK_COMM_LIVE && atomic_load(&c->health.closing) == HK_CLOSING_NO)
    return hk_comm_check(c, "ncclGroupEnd");
  return HK_FAIL(
      HK_ERR_USAGE,
      "ncclGroupEnd: a communicator with calls in this group (rank %d of %d) was destroyed or aborted by another "
      "thread: nothing of the group is run",
      c->rank, c->nranks);
}

hk_status hk_group_refuse(ncclComm_t c, const char *who) {
  int calls = 0, jobs = hk_jobs_of(&group.jobs, c), queued = atomic_load(&c->health.queued);
  for (size_t i = 0; i < group.ncalls; i++) calls += group.calls[i].comm == c;
  if (calls || jobs)
    return hk_group_remember(HK_FAIL(
        HK_ERR_USAGE,
        "%s: %d operations and %d inits of this communicator (rank %d of %d) wait for ncclGroupEnd: end the group "
        "first; the group fails, and the communicator stays as it is",
        who, calls, jobs, c->rank, c->nranks));
  if (queued == 0) return HK_OK;
  return hk_group_remember(HK_FAIL(
      HK_ERR_USAGE,
      "%s: another thread has calls of this communicator (rank %d of %d) in a group that is open: wait for that "
      "thread's ncclGroupEnd, or use ncclCommAbort",
      who, c->rank, c->nranks));
}

hk_status hk_group_report_unstarted(const hk_init *how, hk_status rc) {
  hk_jobs_report_unstarted(&group.jobs, how);
  return hk_group_remember(rc);
}

bool hk_group_drop(ncclComm_t c, const char *who) {
  size_t kept = 0, dropped = 0;
  int rank = c->rank, nranks = c->nranks, held = 0;
  bool freed = false;
  for (size_t i = 0; i < group.ncalls; i++) {
    if (group.calls[i].comm != c) {
      group.calls[kept++] = group.calls[i];
      continue;
    }
    group_hold_names(&group.calls[i], -1);
    held += group.calls[i].holds;
    dropped++;
  }
  group.ncalls = kept;
  atomic_fetch_sub(&c->health.queued, held);
  dropped += hk_jobs_drop(&group.jobs, c, &freed);
  if (dropped)
    (void)hk_group_remember(HK_FAIL(
        HK_ERR_USAGE,
        "%s: %zu calls of this communicator (rank %d of %d) waited for ncclGroupEnd and are dropped: the group's end "
        "gives this error and runs nothing",
        who, dropped, rank, nranks));
  return freed;
}

/* A thread that ends (or is cancelled) between ncclGroupStart and ncclGroupEnd drops what it queued, which would keep
 * communicators from being destroyed. */
static void group_drop_group(void *arg) {
  (void)arg;
  size_t calls = group.ncalls, jobs = hk_jobs_abandon(&group.jobs);
  group_let_all_go(group.calls, calls);
  if (group.depth > 0)
    HK_WARN("a thread ended between ncclGroupStart and ncclGroupEnd: its %zu operations and %zu inits are dropped",
            calls, jobs);
  hk_tasks_drop(&group.tasks);
  free(group.calls);
  group = (hk_group){0};
}

static void group_make_key(void) { thread_end.made = pthread_key_create(&thread_end.key, group_drop_group) == 0; }

static void group_watch_thread(void) {
  pthread_once(&thread_end.once, group_make_key);
  /* Without a key or memory an abandoned group is not dropped; there is no other harm. */
  if (thread_end.made) (void)pthread_setspecific(thread_end.key, &group);
  group.watched = true;
}

hk_status hk_group_submit_init(ncclComm_t c, const hk_init *how, ncclComm_t *handle) {
  hk_job *j = hk_job_new(c, how, handle);
  if (!j) {
    hk_status rc = hk_group_report_unstarted(how, HK_FAIL_ERRNO("no memory for an init"));
    free(how->ids);
    free(how->exclude);
    hk_comm_release(c);
    return rc;
  }
  if (group.depth == 0) return hk_job_run(j);
  hk_jobs_add(&group.jobs, j);
  return HK_OK;
}

hk_status hk_group_submit_task(ncclComm_t c, hk_task_run *run, void *arg) {
  HK_UNCANCELLED;
  return group.depth > 0 ? hk_group_remember(hk_tasks_add(&group.tasks, c, run, arg)) : hk_task_now(c, run, arg);
}

hk_status hk_group_refuse_task(ncclComm_t c, hk_status rc) {
  (void)hk_group_remember(rc);
  if (group.depth == 0 || hk_tasks_add(&group.tasks, c, NULL, NULL) != HK_OK) hk_task_refuse(c);
  return rc;
}

static __attribute__((noinline)) hk_status group_make_room(hk_group *g, const hk_call *call) {
  size_t capacity = g->capacity ? 2 * g->capacity : FIRST_CAPACITY;
  hk_call *more = realloc(g->calls, capacity * sizeof *more);
  if (!more) { /* the other ranks wait for this call */
    hk_status rc = HK_FAIL_ERRNO("no memory for %zu calls in a group", capacity);
    return hk_group_remember(hk_comm_failed(call->comm, rc));
  }
  g->calls = more;
  g->capacity = capacity;
  return HK_OK;
}

static inline hk_status group_queue(hk_group *g, const hk_call *call) {
  if (__builtin_expect(g->ncalls == g->capacity, 0)) HK_OR_RETURN(group_make_room(g, call));
  hk_call *queued = &g->calls[g->ncalls++];
  *queued = *call;
  queued->holds = g->ncalls == 1 || queued[-1].comm != call->comm;
  if (queued->holds) atomic_fetch_add(&call->comm->health.queued, 1);
  group_hold_names(queued, 1);
  return HK_OK;
}

static inline __attribute__((always_inline)) hk_status group_submit(const hk_call *call) {
  hk_group *g = &group;
  /* the address of a thread-local variable costs a function call: computed once, not at each use */
  __asm__("" : "+r"(g));
  return g->depth > 0 ? group_queue(g, call) : call->comm->backend->run_one(call);
}

hk_status hk_group_check_self(const hk_call *call, const char *who) {
  if (call->root != call->comm->rank || group.depth > 0) return HK_OK;
  if (call->comm->device < 0 && !hk_stream_is_null(call->stream)) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE,
                 "%s: rank %d to itself outside of a group never ends: put the ncclSend and the ncclRecv between "
                 "ncclGroupStart and ncclGroupEnd",
                 who, call->root);
}

/* A call outside of a group is a group of its own. */
static __attribute__((noinline)) hk_status group_submit_profiled(const hk_call *call) {
  HK_UNCANCELLED;
  hk_profiler *p = call->comm->profiler;
  hk_call profiled = *call;
  bool alone = group.depth == 0;
  void *event = alone ? hk_profile_group_open(p, 0) : NULL;
  if (alone) {
    hk_profile_group_runs(p, event);
  } else if (!group.profiler) {
    group.profiler = p;
    group.event = hk_profile_group_open(p, group.depth);
  }
  hk_profile_call(p, &profiled, alone ? event : group.event);
  hk_status rc = group_submit(&profiled);
  hk_profile_over(p, profiled.event);
  if (alone) hk_profile_over(p, event);
  return rc;
}

hk_status hk_group_submit(const hk_call *call) {
  return __builtin_expect(call->comm->profiler != NULL, 0) ? group_submit_profiled(call) : group_submit(call);
}

/* Passes to each backend its calls, in the order of the calls. */
static hk_status group_run_sorted(const hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  size_t same = 1;
  while (same < n && calls[same].comm->backend == calls[0].comm->backend) same++;
  if (same == n) return calls[0].comm->backend->run_group(calls, n);
  size_t begin = 0, end = 0;
  hk_call *sorted = malloc(n * sizeof *sorted);
  if (!sorted) {
    rc = HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
    hk_calls_fail(calls, n, rc);
    return rc;
  }
  for (const hk_backend *const *b = hk_backends; *b; b++, begin = end) {
    for (size_t i = 0; i < n; i++)
      if (calls[i].comm->backend == *b) sorted[end++] = calls[i];
    if (begin == end) continue;
    if (rc == HK_OK)
      rc = (*b)->run_group(sorted + begin, end - begin);
    else
      hk_calls_fail(sorted + begin, end - begin, rc);
  }
  free(sorted);
  return rc;
}

/* Runs the calls, or prices them if `us` is not NULL. Those without a stream run on this thread. */
static hk_status group_run_calls(const hk_call *calls, size_t n, double *us) {
  hk_status rc = HK_OK;
  /* from here on an abort waits for this thread; an abort that did not see it is found by hk_group_still_there */
  hk_calls_mark_inside(calls, n, 1);
  for (size_t i = 0; i < n; i++)
    if (i == 0 || calls[i].comm != calls[i - 1].comm) HK_TRY(hk_group_still_there(calls[i].comm), out);
  if (us) {
    rc = hk_estimate(calls, n, us);
    goto out;
  }
  rc = group_run_sorted(calls, n);
out:
  hk_calls_mark_inside(calls, n, -1);
  return rc;
}

/* group_run_calls for calls of one communicator. Only one thread at a time makes them, so a flag is enough. */
static inline hk_status group_run_same(const hk_call *calls, size_t n) {
  ncclComm_t c = calls->comm;
  atomic_store(&c->health.calling, true); /* before hk_group_still_there looks, as in group_run_calls */
  hk_status rc = hk_group_still_there(c);
  if (rc == HK_OK) rc = c->backend->run_group(calls, n);
  atomic_store_explicit(&c->health.calling, false, memory_order_release); /* as in host_backend.c */
  return rc;
}

/* The calls have run or were dropped. Keeps their memory for the thread's next group; drop_group frees it. */
static inline void group_over(hk_group *g, hk_call *calls, size_t n, size_t capacity) {
  group_let_all_go(calls, n);
  if (g->calls || capacity != FIRST_CAPACITY) {
    free(calls);
    return;
  }
  g->calls = calls;
  g->capacity = capacity;
}

/* Ends the group; its calls run, or are priced if `us` is not NULL. */
static __attribute__((noinline)) hk_status group_end(hk_group *g, double *us) {
  HK_UNCANCELLED;
  hk_status rc = g->error;
  hk_call *calls = g->calls;
  size_t n = g->ncalls, capacity = g->capacity;
  hk_profiler *profiler = g->profiler;
  void *event = g->event;
  g->profiler = NULL;
  g->event = NULL;
  if (profiler) hk_profile_group_runs(profiler, event);
  g->error = HK_OK;
  g->calls = NULL;
  g->ncalls = g->capacity = 0;
  if (rc != HK_OK) {
    hk_jobs_refuse(&g->jobs); /* if one call of a group is wrong, none begins */
    hk_tasks_refuse(g->tasks);
    hk_calls_fail(calls, n, rc);
  } else if (g->jobs.first)
    rc = hk_jobs_run(&g->jobs);
  if (rc == HK_OK && g->tasks) rc = hk_tasks_run(g->tasks);
  hk_tasks_drop(&g->tasks);
  if (us) *us = 0;
  if (rc == HK_OK && n) rc = group_run_calls(calls, n, us);
  group_over(g, calls, n, capacity);
  if (profiler) hk_profile_over(profiler, event);
  return rc;
}

/* The same for a group that contains only calls, which run. They may never wait for the kernel (thread.h). */
static inline hk_status group_end_calls(hk_group *g) {
  hk_call *calls = g->calls;
  size_t n = g->ncalls, capacity = g->capacity;
  g->calls = NULL;
  g->ncalls = g->capacity = 0;
  bool *holds = &hk_cancel_held;
  __asm__("" : "+r"(holds)); /* as in host_backend.c */
  bool held = *holds;
  size_t same = 1;
  while (same < n && calls[same].comm == calls->comm) same++;
  hk_status rc = same == n ? group_run_same(calls, n) : group_run_calls(calls, n, NULL);
  group_over(g, calls, n, capacity);
  if (__builtin_expect(*holds, 0) && !held) hk_cancel_release();
  return rc;
}

static hk_status group_not_open(const char *who) {
  return HK_FAIL(HK_ERR_USAGE, "%s: no group is open in this thread: ncclGroupStart comes first", who);
}

hk_status hk_group_end(void) {
  hk_group *g = &group;
  __asm__("" : "+r"(g)); /* as in submit */
  if (g->depth == 0) return group_not_open("ncclGroupEnd");
  if (--g->depth > 0) return HK_OK;
  bool special = g->error != HK_OK || g->jobs.first || g->tasks || g->profiler || g->ncalls == 0;
  return __builtin_expect(special, 0) ? group_end(g, NULL) : group_end_calls(g);
}

hk_status hk_group_simulate_end(double *us) {
  hk_group *g = &group;
  if (g->depth > 1) { /* only the outermost end counts */
    (void)hk_group_remember(HK_FAIL(HK_ERR_USAGE, "ncclGroupSimulateEnd: this group is inside another one, whose end "
                                                  "would run its calls: simulate the outermost group"));
    g->depth--;
    return HK_ERR_USAGE;
  }
  if (g->depth == 0) return group_not_open("ncclGroupSimulateEnd");
  g->depth = 0;
  return group_end(g, us);
}
