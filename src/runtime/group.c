/* SPDX-License-Identifier: Apache-2.0 */
#include "group.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/thread.h"
#include "estimate.h"
#include "gpu.h"
#include "profiler.h"
#include "run.h"
#include "stream.h"

/* An init, split or shrink that waits for the group's end or runs in its thread. */
typedef struct hk_job {
  pthread_t thread;
  ncclComm_t comm;
  hk_init how;
  ncclComm_t *handle;
  hk_status status;
  bool started;
  struct hk_job *next, *all; /* all: the first of the group's blocking ones */
} hk_job;

typedef struct hk_group {
  int depth;
  hk_status error;
  hk_call *calls;
  size_t ncalls, room;
  hk_job *jobs, **jobs_end;
  hk_profiler *profiler; /* of the first call whose communicator has one */
  void *event;           /* the group's, for it */
} hk_group;

/* Groups belong to threads by the API's definition. */
static _Thread_local hk_group group;

bool hk_group_open(void) { return group.depth > 0; }

hk_status hk_group_remember(hk_status rc) {
  if (rc != HK_OK && group.depth > 0 && group.error == HK_OK) group.error = rc;
  return rc;
}

hk_status hk_group_start(void) {
  group.depth++;
  return HK_OK;
}

static void free_how(hk_init *how) {
  free(how->ids);
  free(how->exclude);
}

static void run_job(hk_job *j) {
  /* The communicator may be destroyed by its owner as soon as the init is over: nothing of it is used after that. */
  j->status = hk_comm_init(j->comm, &j->how);
  free_how(&j->how);
}

/* Inits of a group wait for each other: where one fails, perhaps before the others could hear of it, all do.  None of them is
 * freed before all have ended. */
static void fail_all(const hk_job *failed) {
  for (hk_job *j = failed->all; j; j = j->next) hk_comm_fail(j->comm, failed->status, hk_last_error());
}

static void *joined_job(void *arg) {
  hk_job *j = arg;
  run_job(j);
  if (j->status != HK_OK) fail_all(j);
  return NULL;
}

static void *detached_job(void *arg) {
  hk_job *j = arg;
  ncclComm_t c = j->comm;
  run_job(j);
  free(j);
  bool nobody = c->nranks == 0; /* a split's rank without color: nobody else knows the communicator */
  atomic_fetch_sub(&c->health.inside, 1);
  if (nobody) hk_comm_destroy(c);
  return NULL;
}

/* After a blocking init: a failed communicator is not handed out; a rank without color gets none.  Frees the job. */
static hk_status settle(hk_job *j) {
  hk_status rc = j->status;
  if (rc != HK_OK || j->comm->nranks == 0) {
    *j->handle = NULL;
    hk_comm_destroy(j->comm);
  }
  free(j);
  return rc;
}

static hk_status start_detached(hk_job *j) {
  pthread_t thread;
  if (j->how.parent && !j->how.exclude && j->how.color < 0) *j->handle = NULL;
  atomic_fetch_add(&j->comm->health.inside, 1); /* the job; destroy and abort wait for it */
  int err = hk_thread_start(&thread, 0, detached_job, j);
  if (err == 0) {
    pthread_detach(thread);
    return HK_IN_PROGRESS;
  }
  atomic_fetch_sub(&j->comm->health.inside, 1);
  free_how(&j->how);
  j->status = HK_FAIL(HK_ERR_SYSTEM, "no thread for the init of a nonblocking communicator: %s", strerror(err));
  return settle(j);
}

hk_status hk_group_submit_init(ncclComm_t c, const hk_init *how, ncclComm_t *handle) {
  hk_job *j = calloc(1, sizeof *j);
  if (!j) {
    hk_init copy = *how;
    free_how(&copy);
    hk_comm_release(c);
    return hk_group_remember(HK_FAIL_ERRNO("no memory for an init"));
  }
  *j = (hk_job){.comm = c, .how = *how, .handle = handle};
  *handle = c;
  if (group.depth > 0) {
    if (!group.jobs) group.jobs_end = &group.jobs;
    *group.jobs_end = j;
    group.jobs_end = &j->next;
    return HK_OK;
  }
  if (!c->options.blocking) return start_detached(j);
  run_job(j);
  return settle(j);
}

static void start_joined(hk_job *j) {
  int err = hk_thread_start(&j->thread, 0, joined_job, j);
  j->started = err == 0;
  if (j->started) return;
  free_how(&j->how);
  j->status =
      HK_FAIL(HK_ERR_SYSTEM,
              "no thread for the init of rank %d in a group (%s): raise the limit of processes (ulimit -u) or of "
              "memory",
              j->comm->rank, strerror(err));
  fail_all(j);
}

/* Runs the group's inits side by side. */
static hk_status run_jobs(void) {
  hk_status first = HK_OK, rc;
  hk_job *blocking = NULL, **end = &blocking, *detached = NULL, **detached_end = &detached;
  for (hk_job *j = group.jobs; j; j = j->next) {
    hk_job ***at = j->comm->options.blocking ? &end : &detached_end;
    **at = j;
    *at = &j->next;
  }
  *end = *detached_end = group.jobs = NULL;
  for (hk_job *j = blocking; j; j = j->next) j->all = blocking;
  for (hk_job *j = blocking; j; j = j->next) start_joined(j);
  for (hk_job *j = detached, *next; j; j = next) {
    next = j->next;
    rc = start_detached(j); /* frees j */
    if (first == HK_OK || (first == HK_IN_PROGRESS && rc != HK_OK)) first = rc;
  }
  for (hk_job *j = blocking; j; j = j->next)
    if (j->started) pthread_join(j->thread, NULL);
  for (hk_job *j = blocking, *next; j; j = next) {
    next = j->next;
    rc = settle(j); /* frees j */
    if (first == HK_OK || (first == HK_IN_PROGRESS && rc != HK_OK)) first = rc;
  }
  return first;
}

static void drop_jobs(void) {
  while (group.jobs) {
    hk_job *j = group.jobs;
    group.jobs = j->next;
    *j->handle = NULL;
    free_how(&j->how);
    hk_comm_release(j->comm);
    free(j);
  }
}

static hk_status submit_gpu(const hk_call *call) {
  hk_health *h = &call->comm->health;
  atomic_store_explicit(&h->calling, true, memory_order_relaxed); /* as in hk_group_submit */
  hk_status rc = hk_gpu_run(call, 1);
  atomic_store_explicit(&h->calling, false, memory_order_release); /* whoever sees false may free what we used */
  return rc;
}

static hk_status submit(const hk_call *call) {
  if (group.depth > 0) {
    if (group.ncalls == group.room) {
      size_t room = group.room ? 2 * group.room : 64;
      hk_call *more = realloc(group.calls, room * sizeof *more);
      if (!more) return hk_group_remember(HK_FAIL_ERRNO("no memory for %zu calls in a group", room));
      group.calls = more;
      group.room = room;
    }
    group.calls[group.ncalls++] = *call;
    return HK_OK;
  }
  ncclComm_t c = call->comm;
  hk_status rc = HK_OK;
  if (c->gpu) return submit_gpu(call);
  if (!hk_stream_is_null(call->stream)) return hk_stream_enqueue(call->stream, call, 1);
  /* relaxed: only this thread issues turns for this call; a stream's batch still under way shows as issued != served */
  uint64_t issued = atomic_load_explicit(&c->order.issued, memory_order_relaxed);
  if (__builtin_expect(issued != atomic_load_explicit(&c->order.served, memory_order_acquire), 0))
    rc = hk_turn_wait(c, issued);
  /* A store is enough: one thread at a time may call.  relaxed: an abort from another thread that does not see it yet
   * races with the call itself, which no library can help; one that begins during the call's waits does see it. */
  atomic_store_explicit(&c->health.calling, true, memory_order_relaxed);
  if (rc == HK_OK) rc = hk_run_one(call);
  /* release: whoever sees false may free what we used */
  atomic_store_explicit(&c->health.calling, false, memory_order_release);
  return rc;
}

/* A call outside of a group is a group of its own. */
static hk_status submit_told(const hk_call *call) {
  hk_profiler *p = call->comm->profiler;
  hk_call told = *call;
  bool alone = group.depth == 0;
  void *event = alone ? hk_profile_group_open(p, 0) : NULL;
  if (alone) {
    hk_profile_group_runs(p, event);
  } else if (!group.profiler) {
    group.profiler = p;
    group.event = hk_profile_group_open(p, group.depth);
  }
  hk_profile_call(p, &told, alone ? event : group.event);
  hk_status rc = submit(&told);
  hk_profile_call_over(p, &told);
  if (alone) hk_profile_group_closed(p, event);
  return rc;
}

hk_status hk_group_submit(const hk_call *call) {
  return __builtin_expect(call->comm->profiler != NULL, 0) ? submit_told(call) : submit(call);
}

static void mark_inside(const hk_call *calls, size_t n, int by) {
  for (size_t i = 0; i < n; i++) atomic_fetch_add(&calls[i].comm->health.inside, by);
}

/* Takes the calls of communicators on GPUs out of the group and enqueues them; gives how many are left. */
static hk_status run_gpu_calls(hk_call *calls, size_t n, size_t *left) {
  hk_status rc = HK_OK;
  size_t gpu = 0;
  *left = n;
  for (size_t i = 0; i < n; i++) gpu += calls[i].comm->gpu != NULL;
  if (gpu == 0) return HK_OK;
  hk_call *all = malloc(n * sizeof *all);
  if (!all) return HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
  size_t mine = 0, others = gpu;
  for (size_t i = 0; i < n; i++) all[calls[i].comm->gpu ? mine++ : others++] = calls[i];
  *left = n - gpu;
  memcpy(calls, all + gpu, *left * sizeof *calls);
  mark_inside(all, gpu, 1);
  rc = hk_gpu_run(all, gpu);
  mark_inside(all, gpu, -1);
  free(all);
  return rc;
}

/* The calls without a stream run here; the others go to their streams, each stream's calls as one batch. */
static hk_status run_calls(hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  size_t here = 0;
  hk_call *batch = NULL;
  HK_TRY(run_gpu_calls(calls, n, &n), out);
  if (n == 0) goto out;
  batch = malloc(n * sizeof *batch);
  if (!batch) return HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
  for (size_t i = 0; i < n; i++) {
    if (hk_stream_is_null(calls[i].stream)) {
      calls[here++] = calls[i];
      continue;
    }
    cudaStream_t stream = calls[i].stream;
    size_t m = 0, kept = i;
    for (size_t k = i; k < n; k++) {
      if (calls[k].stream == stream)
        batch[m++] = calls[k];
      else
        calls[kept++] = calls[k];
    }
    HK_TRY(hk_stream_enqueue(stream, batch, m), out);
    n = kept;
    i--; /* another call stands here now */
  }
  for (size_t i = 0; i < here; i++) HK_TRY(hk_turn_wait(calls[i].comm, atomic_load(&calls[i].comm->order.issued)), out);
  mark_inside(calls, here, 1);
  rc = here == 1 ? hk_run_one(calls) : hk_run_group(calls, here);
  mark_inside(calls, here, -1);
out:
  free(batch);
  return rc;
}

/* Ends the group; its calls run, or are priced where `us` is there. */
static hk_status end(const char *who, double *us) {
  if (group.depth == 0)
    return HK_FAIL(HK_ERR_USAGE, "%s: no group is open in this thread: ncclGroupStart comes first", who);
  if (--group.depth > 0) return HK_OK;
  hk_status rc = group.error;
  hk_call *calls = group.calls;
  size_t n = group.ncalls;
  hk_profiler *profiler = group.profiler;
  void *event = group.event;
  group.profiler = NULL;
  group.event = NULL;
  if (profiler) hk_profile_group_runs(profiler, event);
  group.error = HK_OK;
  group.calls = NULL;
  group.ncalls = group.room = 0;
  if (rc != HK_OK)
    drop_jobs(); /* nothing of a group with a wrong call is begun */
  else if (group.jobs)
    rc = run_jobs();
  if (rc == HK_OK && us)
    *us = hk_estimate(calls, n);
  else if (rc == HK_OK && n)
    rc = run_calls(calls, n);
  if (profiler) hk_profile_group_closed(profiler, event);
  free(calls);
  return rc;
}

hk_status hk_group_end(void) { return end("ncclGroupEnd", NULL); }

hk_status hk_group_simulate_end(double *us) {
  if (group.depth > 1) { /* the outermost end counts */
    (void)hk_group_remember(HK_FAIL(HK_ERR_USAGE, "ncclGroupSimulateEnd: this group is inside another one, whose end "
                                                  "would run its calls: simulate the outermost group"));
    group.depth--;
    return HK_ERR_USAGE;
  }
  return end("ncclGroupSimulateEnd", us);
}
