/* SPDX-License-Identifier: Apache-2.0 */
/* Runs tasks, at once or at the end of a group (tasks.h). */
#include "tasks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../failure/failure.h"
#include "children.h"

struct hk_task {
  pthread_t thread;
  ncclComm_t comm;
  hk_task_run *run;
  void *arg;
  hk_status status;
  bool started; /* the thread, which runs the communicator's later ones, too */
  char text[HK_ERROR_TEXT];
  hk_task *next;
};

/* ---- all ranks take part, or none ---- */

typedef struct agreeing {
  ncclComm_t comm;
  bool refused;
} agreeing;

static hk_status tasks_check_refusals(void *arg) {
  agreeing *a = arg;
  char words[HK_EVENT_TEXT];
  a->refused = hk_children_refused_call(a->comm, HK_CALL_TASK, a->comm->order.tasks, words);
  return a->refused ? HK_FAIL(HK_ERR_REMOTE, "%s", words) : HK_OK;
}

hk_status hk_task_agree(ncclComm_t c, const char *who) {
  hk_status rc = HK_OK;
  agreeing a = {.comm = c};
  char *rows = calloc((size_t)c->nranks, 1);
  c->order.tasks++;
  if (!rows) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for %s of %d ranks", who, c->nranks), out);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, who);
  hk_bootstrap_also(c->bootstrap, tasks_check_refusals, &a);
  /* no barrier: hk_bootstrap_skip, by which a rank passes the task over, counts gathers */
  rc = hk_bootstrap_allgather(c->bootstrap, rows, 1);
  hk_bootstrap_also(c->bootstrap, NULL, NULL);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_IDLE, NULL);
out:
  free(rows);
  return a.refused ? rc : hk_comm_failed(c, rc);
}

/* Counts a task that this rank does not run. */
static void tasks_pass(ncclComm_t c) {
  if (!c->bootstrap) return;
  c->order.tasks++;
  hk_bootstrap_skip(c->bootstrap);
}

void hk_task_refuse(ncclComm_t c) {
  hk_children_refuse_call(c, HK_CALL_TASK, c->order.tasks + 1);
  tasks_pass(c);
}

/* ---- runs ---- */

hk_status hk_task_now(ncclComm_t c, hk_task_run *run, void *arg) {
  atomic_fetch_add(&c->health.inside, 1); /* an abort waits until this thread has left */
  hk_status rc = run(c, arg);
  atomic_fetch_sub(&c->health.inside, 1);
  free(arg);
  return rc;
}

hk_status hk_tasks_add(hk_task **list, ncclComm_t c, hk_task_run *run, void *arg) {
  while (*list) list = &(*list)->next;
  hk_task *a = calloc(1, sizeof *a);
  if (!a) {
    free(arg);
    return HK_FAIL_ERRNO("no memory for a call of a group");
  }
  *a = (hk_task){.comm = c, .run = run, .arg = arg};
  atomic_fetch_add(&c->health.queued, 1);
  *list = a;
  return HK_OK;
}

static void *tasks_in_thread(void *arg) {
  hk_task *first = arg;
  for (hk_task *a = first; a; a = a->next) {
    if (a->comm != first->comm) continue;
    if (first->status != HK_OK) {
      tasks_pass(a->comm); /* all ranks skip it, because the one before has failed on all of them */
      continue;
    }
    first->status = hk_task_now(a->comm, a->run, a->arg);
    a->arg = NULL;
  }
  if (first->status != HK_OK) snprintf(first->text, sizeof first->text, "%s", hk_last_error());
  return NULL;
}

static bool tasks_is_first(const hk_task *list, const hk_task *a) {
  while (list->comm != a->comm) list = list->next;
  return list == a;
}

/* The communicator may have ended while its call waited in the group. */
static hk_status tasks_start(hk_task *a) {
  hk_status rc = hk_comm_check_usable(a->comm, "ncclGroupEnd");
  if (rc != HK_OK) return rc;
  int err = hk_thread_start(&a->thread, 0, tasks_in_thread, a);
  if (err) return HK_FAIL(HK_ERR_SYSTEM, "no thread for a call of a group: %s", strerror(err));
  a->started = true;
  return HK_OK;
}

hk_status hk_tasks_run(hk_task *list) {
  hk_status first = HK_OK;
  for (hk_task *a = list; a; a = a->next) {
    hk_status rc = tasks_is_first(list, a) ? tasks_start(a) : HK_OK;
    if (rc == HK_OK) continue;
    a->status = rc;
    snprintf(a->text, sizeof a->text, "%s", hk_last_error());
    (void)hk_comm_failed(a->comm, rc); /* its other ranks wait */
  }
  for (hk_task *a = list; a; a = a->next) {
    if (a->started) pthread_join(a->thread, NULL);
    if (first != HK_OK || a->status == HK_OK) continue;
    first = a->status;
    hk_error_adopt(a->text); /* logged by its own thread */
  }
  return first;
}

void hk_tasks_refuse(hk_task *list) {
  for (const hk_task *a = list; a; a = a->next)
    if (a->comm->bootstrap && atomic_load(&a->comm->magic) == HK_COMM_LIVE && !atomic_load(&a->comm->health.failure) &&
        atomic_load(&a->comm->health.closing) == HK_CLOSING_NO)
      hk_task_refuse(a->comm);
}

void hk_tasks_drop(hk_task **list) {
  while (*list) {
    hk_task *a = *list;
    *list = a->next;
    atomic_fetch_sub(&a->comm->health.queued, 1);
    free(a->arg);
    free(a);
  }
}
