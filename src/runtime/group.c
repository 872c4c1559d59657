/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: collects the calls and inits of a thread, and runs them at the end (group.h). */
#include "group.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/thread.h"
#include "call.h"
#include "children.h"
#include "estimate.h"
#include "profiler.h"

/* An init, split or shrink that waits for the group's end or runs in its thread. */
typedef struct hk_job {
  pthread_t thread;
  ncclComm_t comm;
  hk_init how;
  ncclComm_t *handle;
  hk_status status;
  bool started;
  struct hk_job *next, *all; /* all: the first blocking one of the group */
} hk_job;

enum { FIRST_ROOM = 64 }; /* calls */
typedef struct hk_group {
  int depth;
  hk_status error;
  hk_call *calls;
  size_t ncalls, room;
  hk_job *jobs, **jobs_end;
  hk_act *acts;
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

static void watch_thread(void);

hk_status hk_group_remember(hk_status rc) {
  if (rc != HK_OK && group.depth > 0 && group.error == HK_OK) group.error = rc;
  return rc;
}

hk_status hk_group_start(void) {
  group.depth++;
  if (__builtin_expect(!group.watched, 0)) watch_thread();
  return HK_OK;
}

static void free_how(hk_init *how) {
  free(how->ids);
  free(how->exclude);
  how->ids = NULL;
  how->exclude = NULL;
}

/* ---- calls in a group keep the memory of their communicators and streams ---- */

static void hold(const hk_call *call, int by) {
  atomic_fetch_add(&call->comm->health.queued, by);
  if (call->comm->backend->hold) call->comm->backend->hold(call, by);
  hk_call_hold(call, by);
}

static void hold_parent(const hk_job *j, int by) {
  if (j->how.parent) atomic_fetch_add(&j->how.parent->health.queued, by);
}

/* After its calls were queued the communicator may have ended, or the process may have been forked. */
static hk_status still_there(ncclComm_t c) {
  if (c->magic == HK_COMM_LIVE && atomic_load(&c->health.closing) == HK_CLOSING_NO)
    return hk_comm_check(c, "ncclGroupEnd");
  return HK_FAIL(
      HK_ERR_USAGE,
      "ncclGroupEnd: a communicator with calls in this group (rank %d of %d) was destroyed or aborted by another "
      "thread: nothing of the group is run",
      c->rank, c->nranks);
}

hk_status hk_group_refuse(ncclComm_t c, const char *who) {
  int calls = 0, jobs = 0, queued = atomic_load(&c->health.queued);
  for (size_t i = 0; i < group.ncalls; i++) calls += group.calls[i].comm == c;
  for (const hk_job *j = group.jobs; j; j = j->next) jobs += j->comm == c || j->how.parent == c;
  if (calls || jobs)
    return hk_group_remember(HK_FAIL(
        HK_ERR_USAGE,
        "%s: %d operations and %d inits of this communicator (rank %d of %d) wait for ncclGroupEnd: end the group "
        "first; the group fails, and the communicator stays as it is",
        who, calls, jobs, c->rank, c->nranks));
  if (queued == 0) return HK_OK;
  return hk_group_remember(HK_FAIL(
      HK_ERR_USAGE,
      "%s: another thread has %d calls of this communicator (rank %d of %d) in a group that is open: wait for that "
      "thread's ncclGroupEnd, or use ncclCommAbort",
      who, queued, c->rank, c->nranks));
}

/* True if this rank lacks something; a wrong argument is for the caller to correct, while the others wait. */
static bool is_lack(hk_status rc) { return rc == HK_ERR_SYSTEM || rc == HK_ERR_CUDA || rc == HK_ERR_INTERNAL; }

static void drop_jobs(hk_status why);

hk_status hk_group_unborn(const hk_init *given, hk_status rc) {
  hk_init how = *given;
  if (is_lack(rc)) {
    if (how.parent) drop_jobs(rc); /* the group ends here, and the numbers of children follow the order of the calls */
    hk_children_enter(&how);
    hk_children_refuse(&how);
  }
  return hk_group_remember(rc);
}

static void drop_job(hk_job *j) {
  *j->handle = NULL;
  free_how(&j->how);
  hk_comm_release(j->comm);
  hold_parent(j, -1);
  free(j);
}

bool hk_group_drop(ncclComm_t c, const char *who) {
  size_t kept = 0, dropped = 0;
  int rank = c->rank, nranks = c->nranks;
  bool freed = false;
  for (size_t i = 0; i < group.ncalls; i++) {
    if (group.calls[i].comm != c) {
      group.calls[kept++] = group.calls[i];
      continue;
    }
    hold(&group.calls[i], -1);
    dropped++;
  }
  group.ncalls = kept;
  hk_job **at = &group.jobs;
  for (hk_job *j = group.jobs, *next; j; j = next) {
    next = j->next;
    if (j->how.parent != c && j->comm != c) {
      at = &j->next;
      continue;
    }
    *at = next;
    freed = freed || j->comm == c;
    drop_job(j);
    dropped++;
  }
  group.jobs_end = at;
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
static void drop_group(void *arg) {
  (void)arg;
  size_t calls = group.ncalls, jobs = 0;
  for (size_t i = 0; i < calls; i++) hold(&group.calls[i], -1);
  while (group.jobs) {
    hk_job *j = group.jobs;
    ncclComm_t nowhere;
    group.jobs = j->next;
    j->handle = &nowhere; /* the caller's handle may have been on the stack that this function runs on */
    drop_job(j);
    jobs++;
  }
  if (group.depth > 0)
    HK_WARN("a thread ended between ncclGroupStart and ncclGroupEnd: its %zu operations and %zu inits are dropped",
            calls, jobs);
  hk_acts_drop(&group.acts);
  free(group.calls);
  group = (hk_group){0};
}

static void make_key(void) { thread_end.made = pthread_key_create(&thread_end.key, drop_group) == 0; }

static void watch_thread(void) {
  pthread_once(&thread_end.once, make_key);
  /* Without a key or memory an abandoned group is not dropped; there is no other harm. */
  if (thread_end.made) (void)pthread_setspecific(thread_end.key, &group);
  group.watched = true;
}

/* ---- inits ---- */

static void run_job(hk_job *j) {
  ncclComm_t parent = j->how.parent;
  hk_status rc = parent ? still_there(parent) : HK_OK;
  if (rc == HK_OK && parent) rc = hk_children_turn(&j->how);
  if (rc == HK_OK) {
    /* The communicator's owner may destroy it as soon as the init has ended: nothing of it is used after that. */
    j->status = hk_comm_init(j->comm, &j->how);
  } else {
    hk_comm_fail(j->comm, rc, hk_last_error());
    j->status = rc;
    atomic_store(&j->comm->health.progress, (int)rc);
  }
  free_how(&j->how);
  hk_children_leave(parent);
}

/* Before run_job, on the calling thread: the ends of the communicator and of its parent wait for the init. */
static void enter_init(hk_job *j) {
  atomic_fetch_add(&j->comm->health.inside, 1);
  hk_children_enter(&j->how);
}

/* Inits of a group wait for each other: if one fails, perhaps before the others could learn of it, all fail. None of
 * them is freed before all have ended. */
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
  bool no_member = c->nranks == 0; /* a split's rank without color: no other rank knows the communicator */
  atomic_fetch_sub(&c->health.inside, 1);
  if (no_member) hk_comm_destroy(c);
  return NULL;
}

/* After a failed init. Its handle was visible from the beginning, so another thread may have aborted it, and then
 * frees it. */
static void discard(ncclComm_t c) {
  int none = HK_CLOSING_NO;
  bool ours = atomic_compare_exchange_strong(&c->health.closing, &none, (int)HK_CLOSING_DESTROY);
  atomic_fetch_sub(&c->health.inside, 1);
  if (ours) hk_comm_destroy(c);
}

/* After a blocking init: the caller gets no failed communicator, and none for a rank without color. Frees the job. */
static hk_status settle(hk_job *j) {
  hk_status rc = j->status;
  free_how(&j->how);                                                   /* of one that did not run */
  if (rc != HK_OK && j->started) hk_error_adopt(j->comm->health.text); /* logged by the init's own thread */
  if (rc != HK_OK || j->comm->nranks == 0) {
    __atomic_store_n(j->handle, NULL, __ATOMIC_RELAXED); /* as the caller had set it */
    discard(j->comm);
  } else {
    atomic_fetch_sub(&j->comm->health.inside, 1);
  }
  free(j);
  return rc;
}

/* False: the caller still owns the job. */
static bool start_detached(hk_job *j) {
  pthread_t thread;
  if (j->how.parent && !j->how.exclude && j->how.color < 0) *j->handle = NULL;
  int err = hk_thread_start(&thread, 0, detached_job, j);
  if (err == 0)
    pthread_detach(thread);
  else
    j->status = HK_FAIL(HK_ERR_SYSTEM, "no thread for the init of a nonblocking communicator: %s", strerror(err));
  return err == 0;
}

/* Of two lists, in the order of their turns: a child's turn comes after those before it. */
static void refuse_unstarted(hk_job *const lists[2]) {
  for (;;) {
    hk_job *low = NULL;
    for (int i = 0; i < 2; i++)
      for (hk_job *j = lists[i]; j; j = j->next)
        if (!j->started && j->how.parent && (!low || j->how.turn < low->how.turn)) low = j;
    if (!low) return;
    hk_children_refuse(&low->how);
    low->how.parent = NULL;
  }
}

hk_status hk_group_submit_init(ncclComm_t c, const hk_init *how, ncclComm_t *handle) {
  hk_job *j = calloc(1, sizeof *j);
  if (!j) {
    hk_init copy = *how;
    hk_status rc = hk_group_unborn(how, HK_FAIL_ERRNO("no memory for an init"));
    free_how(&copy);
    hk_comm_release(c);
    return rc;
  }
  *j = (hk_job){.comm = c, .how = *how, .handle = handle};
  if (group.depth > 0) {
    *handle = c;
    if (!group.jobs) group.jobs_end = &group.jobs;
    *group.jobs_end = j;
    group.jobs_end = &j->next;
    hold_parent(j, 1);
    return HK_OK;
  }
  enter_init(j);
  /* release: another thread that reads the handle may abort the init, and must find the communicator complete */
  __atomic_store_n(handle, c, __ATOMIC_RELEASE);
  if (c->options.blocking)
    run_job(j);
  else if (start_detached(j))
    return HK_IN_PROGRESS;
  else
    hk_children_refuse(&j->how);
  return settle(j);
}

static void start_joined(hk_job *j) {
  int err = hk_thread_start(&j->thread, 0, joined_job, j);
  j->started = err == 0;
  if (j->started) return;
  j->status =
      HK_FAIL(HK_ERR_SYSTEM,
              "no thread for the init of rank %d in a group (%s): raise the limit of processes (ulimit -u) or of "
              "memory",
              j->comm->rank, strerror(err));
  fail_all(j);
  if (!j->how.parent) hk_children_refuse(&j->how);
}

/* Runs the group's inits in parallel. */
static hk_status run_jobs(void) {
  hk_status first = HK_OK, rc;
  hk_job *blocking = NULL, **end = &blocking, *detached = NULL, **detached_end = &detached, *unborn = NULL;
  for (hk_job *j = group.jobs; j; j = j->next) {
    enter_init(j);
    hold_parent(j, -1);
    hk_job ***at = j->comm->options.blocking ? &end : &detached_end;
    **at = j;
    *at = &j->next;
  }
  *end = *detached_end = group.jobs = NULL;
  for (hk_job *j = blocking; j; j = j->next) j->all = blocking;
  for (hk_job *j = blocking; j; j = j->next) start_joined(j);
  for (hk_job *j = detached, *next; j; j = next) {
    next = j->next;
    if (start_detached(j)) {
      first = HK_IN_PROGRESS;
    } else {
      if (!j->how.parent) hk_children_refuse(&j->how);
      j->next = unborn;
      unborn = j;
    }
  }
  refuse_unstarted((hk_job *const[2]){blocking, unborn});
  for (hk_job *j = blocking; j; j = j->next)
    if (j->started) pthread_join(j->thread, NULL);
  *end = unborn;
  for (hk_job *j = blocking, *next; j; j = next) {
    next = j->next;
    rc = settle(j); /* frees j */
    if (first == HK_OK || (first == HK_IN_PROGRESS && rc != HK_OK)) first = rc;
  }
  return first;
}

/* The group failed before its inits began. */
static void drop_jobs(hk_status why) {
  while (group.jobs) {
    hk_job *j = group.jobs;
    ncclComm_t parent = j->how.parent;
    group.jobs = j->next;
    bool waited_for = !parent ||
                      (parent->magic == HK_COMM_LIVE && atomic_load(&parent->health.closing) == HK_CLOSING_NO);
    if (is_lack(why) && waited_for) {
      hk_children_enter(&j->how);
      hk_children_refuse(&j->how);
    }
    drop_job(j);
  }
}

hk_status hk_group_submit_act(ncclComm_t c, hk_act_run *run, void *arg) {
  HK_UNCANCELLED;
  return group.depth > 0 ? hk_group_remember(hk_acts_add(&group.acts, c, run, arg)) : hk_act_now(c, run, arg);
}

static hk_status submit(const hk_call *call) {
  if (group.depth > 0) {
    if (group.ncalls == group.room) {
      size_t room = group.room ? 2 * group.room : FIRST_ROOM;
      hk_call *more = realloc(group.calls, room * sizeof *more);
      if (!more) { /* the other ranks wait for this call */
        hk_status rc = HK_FAIL_ERRNO("no memory for %zu calls in a group", room);
        return hk_group_remember(hk_comm_failed(call->comm, rc));
      }
      group.calls = more;
      group.room = room;
    }
    hk_call *queued = &group.calls[group.ncalls++];
    *queued = *call;
    hold(queued, 1);
    return HK_OK;
  }
  return call->comm->backend->run_one(call);
}

hk_status hk_group_check_self(const hk_call *call, const char *who) {
  if (call->root != call->comm->rank || group.depth > 0) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE,
                 "%s: rank %d to itself outside of a group never ends: put the ncclSend and the ncclRecv between "
                 "ncclGroupStart and ncclGroupEnd",
                 who, call->root);
}

/* A call outside of a group is a group of its own. */
static hk_status submit_profiled(const hk_call *call) {
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
  hk_status rc = submit(&profiled);
  hk_profile_call_over(p, &profiled);
  if (alone) hk_profile_group_closed(p, event);
  return rc;
}

hk_status hk_group_submit(const hk_call *call) {
  return __builtin_expect(call->comm->profiler != NULL, 0) ? submit_profiled(call) : submit(call);
}

static void mark_inside(const hk_call *calls, size_t n, int by) {
  for (size_t i = 0; i < n; i++) atomic_fetch_add(&calls[i].comm->health.inside, by);
}

void hk_group_fail_calls(const hk_call *calls, size_t n, hk_status rc) {
  if (!is_lack(rc)) return;
  mark_inside(calls, n, 1);
  for (size_t i = 0; i < n; i++) {
    ncclComm_t c = calls[i].comm;
    if (c->magic == HK_COMM_LIVE && atomic_load(&c->health.closing) == HK_CLOSING_NO &&
        atomic_load(&c->health.failure) == 0)
      (void)hk_comm_failed(c, rc);
  }
  mark_inside(calls, n, -1);
}

/* Passes to each backend its calls, in the order of the calls. */
static hk_status run_sorted(const hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  size_t begin = 0, end = 0;
  hk_call *sorted = malloc(n * sizeof *sorted);
  if (!sorted) {
    rc = HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
    hk_group_fail_calls(calls, n, rc);
    return rc;
  }
  for (const hk_backend *const *b = hk_backends; *b; b++, begin = end) {
    for (size_t i = 0; i < n; i++)
      if (calls[i].comm->backend == *b) sorted[end++] = calls[i];
    if (begin == end) continue;
    if (rc == HK_OK)
      rc = (*b)->run_group(sorted + begin, end - begin);
    else
      hk_group_fail_calls(sorted + begin, end - begin, rc);
  }
  free(sorted);
  return rc;
}

/* Runs the calls, or prices them if `us` is not NULL. Those without a stream run on this thread. */
static hk_status run_calls(const hk_call *calls, size_t n, double *us) {
  hk_status rc = HK_OK;
  /* from here on an abort waits for this thread; an abort that did not see it is found by still_there */
  mark_inside(calls, n, 1);
  for (size_t i = 0; i < n; i++) HK_TRY(still_there(calls[i].comm), out);
  if (us) {
    *us = hk_estimate(calls, n);
    goto out;
  }
  rc = run_sorted(calls, n);
out:
  mark_inside(calls, n, -1);
  return rc;
}

/* Ends the group; its calls run, or are priced if `us` is not NULL. */
static hk_status end(const char *who, double *us) {
  if (group.depth == 0)
    return HK_FAIL(HK_ERR_USAGE, "%s: no group is open in this thread: ncclGroupStart comes first", who);
  if (--group.depth > 0) return HK_OK;
  hk_status rc = group.error;
  hk_call *calls = group.calls;
  size_t n = group.ncalls, room = group.room;
  hk_profiler *profiler = group.profiler;
  void *event = group.event;
  group.profiler = NULL;
  group.event = NULL;
  if (profiler) hk_profile_group_runs(profiler, event);
  group.error = HK_OK;
  group.calls = NULL;
  group.ncalls = group.room = 0;
  if (rc != HK_OK) {
    drop_jobs(rc); /* if one call of a group is wrong, none begins */
    hk_acts_drop(&group.acts);
    hk_group_fail_calls(calls, n, rc);
  } else if (group.jobs)
    rc = run_jobs();
  if (rc == HK_OK && group.acts) rc = hk_acts_run(&group.acts);
  hk_acts_drop(&group.acts);
  if (us) *us = 0;
  if (rc == HK_OK && n) rc = run_calls(calls, n, us);
  for (size_t i = 0; i < n; i++) hold(&calls[i], -1);
  if (profiler) hk_profile_group_closed(profiler, event);
  if (!group.calls && room == FIRST_ROOM) { /* for the thread's next group; drop_group frees it */
    group.calls = calls;
    group.room = room;
  } else {
    free(calls);
  }
  return rc;
}

hk_status hk_group_end(void) { return end("ncclGroupEnd", NULL); }

hk_status hk_group_simulate_end(double *us) {
  if (group.depth > 1) { /* only the outermost end counts */
    (void)hk_group_remember(HK_FAIL(HK_ERR_USAGE, "ncclGroupSimulateEnd: this group is inside another one, whose end "
                                                  "would run its calls: simulate the outermost group"));
    group.depth--;
    return HK_ERR_USAGE;
  }
  return end("ncclGroupSimulateEnd", us);
}
