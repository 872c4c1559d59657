/* SPDX-License-Identifier: Apache-2.0 */
/* Runs inits, splits and shrinks (jobs.h). */
#include "jobs.h"
#include <stdlib.h>
#include <string.h>
#include "../base/thread.h"
#include "../failure/failure.h"
#include "children.h"
#include "group.h"

struct hk_job {
  pthread_t thread;
  ncclComm_t comm;
  hk_init how;
  ncclComm_t *handle;
  hk_status status;
  bool started;
  struct hk_job *next, *all; /* all: the first blocking one of the group */
};

hk_job *hk_job_new(ncclComm_t c, const hk_init *how, ncclComm_t *handle) {
  hk_job *j = calloc(1, sizeof *j);
  if (j) *j = (hk_job){.comm = c, .how = *how, .handle = handle};
  return j;
}

static void jobs_free_how(hk_init *how) {
  if (how->ids) explicit_bzero(how->ids, (size_t)how->nids * sizeof *how->ids); /* they have secrets */
  free(how->ids);
  free(how->exclude);
  how->ids = NULL;
  how->exclude = NULL;
}

static void jobs_hold_parent(const hk_job *j, int by) {
  if (j->how.parent) atomic_fetch_add(&j->how.parent->health.queued, by);
}

/* Frees a job that has not begun. */
static void jobs_drop_job(hk_job *j) {
  jobs_free_how(&j->how);
  hk_comm_release(j->comm);
  jobs_hold_parent(j, -1);
  free(j);
}

static void jobs_run_job(hk_job *j) {
  ncclComm_t parent = j->how.parent;
  hk_status rc = parent ? hk_group_still_there(parent) : HK_OK;
  if (rc == HK_OK && parent) rc = hk_children_turn(&j->how);
  if (rc == HK_OK) {
    /* The communicator's owner may destroy it as soon as the init has ended: nothing of it is used after that. */
    j->status = hk_comm_init(j->comm, &j->how);
  } else {
    hk_comm_fail(j->comm, rc, hk_last_error());
    j->status = rc;
    atomic_store(&j->comm->health.progress, (int)rc);
  }
  jobs_free_how(&j->how);
  hk_children_leave(parent);
}

/* Before run_job, on the calling thread: the ends of the communicator and of its parent wait for the init. */
static void jobs_enter_init(hk_job *j) {
  atomic_fetch_add(&j->comm->health.inside, 1);
  hk_children_enter(&j->how);
}

/* Inits of a group wait for each other. If one fails, perhaps before the others can learn of it, all fail. None is
 * freed before all have ended. */
static void jobs_fail_all(const hk_job *failed) {
  for (hk_job *j = failed->all; j; j = j->next) hk_comm_fail(j->comm, failed->status, hk_last_error());
}

static void *jobs_joined_job(void *arg) {
  hk_job *j = arg;
  jobs_run_job(j);
  if (j->status != HK_OK) jobs_fail_all(j);
  return NULL;
}

static void *jobs_detached_job(void *arg) {
  hk_job *j = arg;
  ncclComm_t c = j->comm;
  jobs_run_job(j);
  free(j);
  bool no_member = c->nranks == 0; /* a split's rank without color: no other rank knows the communicator */
  atomic_fetch_sub(&c->health.inside, 1);
  if (no_member) hk_comm_destroy(c);
  return NULL;
}

/* After a failed init. Its handle was visible from the beginning, so another thread may have aborted it, and then
 * frees it. */
static void jobs_discard(ncclComm_t c) {
  int none = HK_CLOSING_NO;
  bool ours = atomic_compare_exchange_strong(&c->health.closing, &none, (int)HK_CLOSING_DESTROY);
  atomic_fetch_sub(&c->health.inside, 1);
  if (ours) hk_comm_destroy(c);
}

/* After a blocking init: the caller gets no failed communicator, and none for a rank without color. Frees the job. */
static hk_status jobs_settle(hk_job *j) {
  hk_status rc = j->status;
  jobs_free_how(&j->how); /* for a job that did not run */
  if (rc != HK_OK && j->started) {
    (void)hk_failure_settled(j->comm);    /* writes the text */
    hk_error_adopt(j->comm->health.text); /* logged by the init's own thread */
  }
  if (rc != HK_OK || j->comm->nranks == 0) {
    __atomic_store_n(j->handle, NULL, __ATOMIC_RELAXED); /* as the caller had set it */
    jobs_discard(j->comm);
  } else {
    atomic_fetch_sub(&j->comm->health.inside, 1);
  }
  free(j);
  return rc;
}

/* False: the caller still owns the job. */
static bool jobs_start_detached(hk_job *j) {
  pthread_t thread;
  if (j->how.parent && !j->how.exclude && j->how.color < 0) *j->handle = NULL;
  int err = hk_thread_start(&thread, 0, jobs_detached_job, j);
  if (err == 0)
    pthread_detach(thread);
  else
    j->status = HK_FAIL(HK_ERR_SYSTEM, "no thread for the init of a nonblocking communicator: %s", strerror(err));
  return err == 0;
}

/* Refuses the children in two lists that have not begun, in the order of their turns. */
static void jobs_refuse_unstarted(hk_job *const lists[2]) {
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

hk_status hk_job_run(hk_job *j) {
  jobs_enter_init(j);
  /* release: another thread that reads the handle may abort the init, and must find the communicator complete */
  __atomic_store_n(j->handle, j->comm, __ATOMIC_RELEASE);
  if (j->comm->options.blocking)
    jobs_run_job(j);
  else if (jobs_start_detached(j))
    return HK_IN_PROGRESS;
  else
    hk_children_refuse(&j->how);
  return jobs_settle(j);
}

void hk_jobs_add(hk_jobs *list, hk_job *j) {
  *j->handle = j->comm;
  if (!list->first) list->end = &list->first;
  *list->end = j;
  list->end = &j->next;
  jobs_hold_parent(j, 1);
}

int hk_jobs_of(const hk_jobs *list, ncclComm_t c) {
  int n = 0;
  for (const hk_job *j = list->first; j; j = j->next) n += j->comm == c || j->how.parent == c;
  return n;
}

size_t hk_jobs_drop(hk_jobs *list, ncclComm_t c, bool *freed) {
  size_t dropped = 0;
  hk_job **at = &list->first;
  for (hk_job *j = list->first, *next; j; j = next) {
    next = j->next;
    if (j->how.parent != c && j->comm != c) {
      at = &j->next;
      continue;
    }
    *at = next;
    *freed = *freed || j->comm == c;
    *j->handle = NULL;
    jobs_drop_job(j);
    dropped++;
  }
  list->end = at;
  return dropped;
}

size_t hk_jobs_abandon(hk_jobs *list) {
  size_t dropped = 0;
  for (hk_job *j; (j = list->first); dropped++) {
    list->first = j->next;
    jobs_drop_job(j);
  }
  return dropped;
}

static void jobs_start_joined(hk_job *j) {
  int err = hk_thread_start(&j->thread, 0, jobs_joined_job, j);
  j->started = err == 0;
  if (j->started) return;
  j->status =
      HK_FAIL(HK_ERR_SYSTEM,
              "no thread for the init of rank %d in a group (%s): raise the limit of processes (ulimit -u) or of "
              "memory",
              j->comm->rank, strerror(err));
  jobs_fail_all(j);
  if (!j->how.parent) hk_children_refuse(&j->how);
}

hk_status hk_jobs_run(hk_jobs *list) {
  hk_status first = HK_OK, rc;
  hk_job *blocking = NULL, **end = &blocking, *detached = NULL, **detached_end = &detached, *unstarted = NULL;
  for (hk_job *j = list->first; j; j = j->next) {
    jobs_enter_init(j);
    jobs_hold_parent(j, -1);
    hk_job ***at = j->comm->options.blocking ? &end : &detached_end;
    **at = j;
    *at = &j->next;
  }
  *end = *detached_end = list->first = NULL;
  for (hk_job *j = blocking; j; j = j->next) j->all = blocking;
  for (hk_job *j = blocking; j; j = j->next) jobs_start_joined(j);
  for (hk_job *j = detached, *next; j; j = next) {
    next = j->next;
    if (jobs_start_detached(j)) {
      first = HK_IN_PROGRESS;
    } else {
      if (!j->how.parent) hk_children_refuse(&j->how);
      j->next = unstarted;
      unstarted = j;
    }
  }
  jobs_refuse_unstarted((hk_job *const[2]){blocking, unstarted});
  for (hk_job *j = blocking; j; j = j->next)
    if (j->started) pthread_join(j->thread, NULL);
  *end = unstarted;
  for (hk_job *j = blocking, *next; j; j = next) {
    next = j->next;
    rc = jobs_settle(j); /* frees j */
    if (first == HK_OK || (first == HK_IN_PROGRESS && rc != HK_OK)) first = rc;
  }
  return first;
}

void hk_jobs_refuse(hk_jobs *list) {
  while (list->first) {
    hk_job *j = list->first;
    ncclComm_t parent = j->how.parent;
    list->first = j->next;
    bool waited_for = !parent ||
                      (parent->magic == HK_COMM_LIVE && atomic_load(&parent->health.closing) == HK_CLOSING_NO);
    if (waited_for) {
      hk_children_enter(&j->how);
      hk_children_refuse(&j->how);
    }
    *j->handle = NULL;
    jobs_drop_job(j);
  }
}

void hk_jobs_report_unstarted(hk_jobs *list, const hk_init *given) {
  hk_init how = *given;
  if (how.parent) hk_jobs_refuse(list);
  hk_children_enter(&how);
  hk_children_refuse(&how);
}
