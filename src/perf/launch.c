/* SPDX-License-Identifier: Apache-2.0 */
/* How processes are started or found, and how they exchange data. --procs forks them; launchers are known by their
 * variables. Then the processes meet as the ranks of a communicator do. The code for that is linked into the program,
 * so any library can be measured. */
#include "launch.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../base/service.h"
#include "../boot/bootstrap.h"
#include "../boot/meet.h"

/* The survivors of a dead process get this time to report their own error before they are ended. */
enum { GRACE_SECONDS = 5 };

/* ------------------------------------------------------------ --procs -- */

static void launch_report_end(const pid_t *pids, int n, pid_t pid, int status) {
  int p = 0;
  while (p < n && pids[p] != pid) p++;
  if (WIFSIGNALED(status))
    fprintf(
        stderr,
        "# process %d of %d (pid %d) was killed by signal %d (%s); the others have %d s to report what they noticed\n",
        p, n, (int)pid, WTERMSIG(status), strsignal(WTERMSIG(status)), GRACE_SECONDS);
  else
    fprintf(stderr, "# process %d of %d (pid %d) ended with code %d\n", p, n, (int)pid, WEXITSTATUS(status));
}

static void launch_signal_all(const pid_t *pids, int n, int sig) {
  for (int p = 0; p < n; p++)
    if (pids[p] > 0) kill(pids[p], sig);
}

/* The parent's data about its children. */
typedef struct brood {
  pid_t *pids; /* -1: has ended */
  int n, left;
  int code; /* of the first failure, or of the first killed process: the cause of all others */
  bool signalled, ending;
} brood;

/* Reaps processes that have ended. Reports the first failure and every killed process; the others report their errors
 * themselves. */
static void launch_reap(brood *b) {
  int status;
  pid_t pid;
  while (b->left && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
    bool killed = WIFSIGNALED(status), good = !killed && WEXITSTATUS(status) == 0;
    if (!b->ending && !good && (killed || !b->code)) launch_report_end(b->pids, b->n, pid, status);
    if (!b->ending && killed && !b->signalled) b->code = 128 + WTERMSIG(status), b->signalled = true;
    if (!good && !b->code) b->code = WEXITSTATUS(status);
    for (int p = 0; p < b->n; p++)
      if (b->pids[p] == pid) b->pids[p] = -1, b->left--;
  }
}

/* The parent's main loop. `watched`: SIGCHLD and the signals that a user sends; they are blocked. */
static void __attribute__((noreturn)) launch_watch(pid_t *pids, int n, const sigset_t *watched) {
  brood b = {.pids = pids, .n = n, .left = n};
  int interrupted = 0;
  double deadline = 0;
  for (;;) {
    launch_reap(&b);
    if (!b.left) break;
    if (b.code && !deadline) deadline = perf_now() + GRACE_SECONDS;
    if (deadline && !b.ending && perf_now() > deadline) {
      fprintf(stderr, "# ending the %d processes that are left\n", b.left);
      b.ending = true;
      launch_signal_all(pids, n, SIGKILL);
    }
    struct timespec tick = {.tv_nsec = 200000000};
    int sig = sigtimedwait(watched, NULL, &tick);
    if (sig > 0 && sig != SIGCHLD) interrupted = sig, b.ending = true, launch_signal_all(pids, n, SIGKILL);
  }
  free(pids);
  exit(interrupted ? 128 + interrupted : b.code);
}

static void launch_become_child(pid_t parent) {
  /* If the parent is killed, its children are killed too. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(PERF_INTERNAL);
}

/* The children share the pipe `ids`, through which process 0 sends the id once for each of the others. The kernel
 * takes and gives each of these short messages as one. */
static void launch_pass_id(const perf_launch *l, int ids[2], ncclUniqueId *id) {
  bool good = true;
  if (l->proc == 0) {
    good = hk_bootstrap_new_id(id) == HK_OK;
    for (int p = 1; p < l->nprocs && good; p++) good = write(ids[1], id, sizeof *id) == sizeof *id;
  }
  close(ids[1]); /* so that the others notice the end of process 0 */
  if (l->proc) good = read(ids[0], id, sizeof *id) == sizeof *id;
  close(ids[0]);
  if (!good) perf_fail(PERF_INTERNAL, "process %d of %d has no id of process 0: see its output", l->proc, l->nprocs);
}

static void launch_fork_processes(perf_launch *l, int n, ncclUniqueId *id) {
  int ids[2];
  pid_t *pids = calloc((size_t)n, sizeof *pids), parent = getpid();
  if (!pids) perf_fail(PERF_INTERNAL, "out of memory");
  if (pipe2(ids, O_CLOEXEC)) perf_fail(PERF_INTERNAL, "--procs %d: pipe: %s", n, strerror(errno));
  sigset_t watched, before;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD), sigaddset(&watched, SIGINT), sigaddset(&watched, SIGTERM), sigaddset(&watched, SIGHUP);
  sigprocmask(SIG_BLOCK, &watched, &before);
  fflush(NULL);
  l->kind = "procs", l->nprocs = n;
  for (int p = 0; p < n; p++) {
    pids[p] = fork();
    if (pids[p] < 0) {
      int error = errno;
      launch_signal_all(pids, p, SIGKILL);
      perf_fail(PERF_INTERNAL, "--procs %d: fork: %s", n, strerror(error));
    }
    if (pids[p]) continue;
    sigprocmask(SIG_SETMASK, &before, NULL);
    launch_become_child(parent);
    free(pids);
    l->proc = p;
    if (n > 1) launch_pass_id(l, ids, id);
    return;
  }
  close(ids[0]), close(ids[1]);
  launch_watch(pids, n, &watched);
}

/* ------------------------------------------------------ launchers -- */

/* The error's text is in the log. */
static void __attribute__((noreturn)) launch_fail(const perf_launch *l, hk_status rc, const char *what) {
  perf_fail(rc == HK_ERR_USAGE || rc == HK_ERR_ARGUMENT ? PERF_USAGE : PERF_INTERNAL, "process %d of %d %s: %s",
            l->proc, l->nprocs, what, hk_last_error());
}

static hk_launched launch_from_launcher(perf_launch *l, const char *wanted) {
  hk_launched place;
  const char *folder = getenv("HOCKET_PERF_DIR");
  if (folder) setenv("HOCKET_JOB_DIR", folder, 0);
  hk_status rc = hk_launched_find(&place, strcmp(wanted, "auto") ? wanted : NULL);
  if (rc != HK_OK) launch_fail(l, rc, "(--launcher)");
  l->kind = place.launcher, l->proc = place.rank, l->nprocs = place.nranks;
  return place;
}

void perf_launch_begin(perf_launch *l, const perf_options *o) {
  static const hk_wait_env wait;
  ncclUniqueId id;
  hk_launched place = {.nranks = 0};
  hk_service *service;
  hk_status rc;
  *l = (perf_launch){.kind = "none", .nprocs = 1};
  hk_log_for_second_copy();
  if (o->procs > 0)
    launch_fork_processes(l, o->procs, &id);
  else if (strcmp(o->launcher, "none"))
    place = launch_from_launcher(l, o->launcher);
  if (l->nprocs > 1) {
    const hk_settings *settings = hk_settings_now();
    if (place.nranks && (rc = hk_meet(settings, &id, &place, NULL)) != HK_OK)
      launch_fail(l, rc, "did not find process 0");
    rc = hk_service_new(&service, "perf-service");
    hk_bootstrap_options join = {.rank = l->proc,
                                 .nranks = l->nprocs,
                                 .settings = settings,
                                 .name = "the processes of the run",
                                 .wait = &wait,
                                 .service = service};
    if (rc == HK_OK) rc = hk_bootstrap_join(&l->others, &id, 1, &join);
    if (rc != HK_OK) launch_fail(l, rc, "did not meet the others");
    l->service = service;
  }
}

void perf_launch_end(perf_launch *l) {
  hk_bootstrap_leave(l->others);
  hk_service_free(l->service);
}

void perf_allgather(perf_launch *l, const void *mine, size_t bytes, void *all) {
  memmove((char *)all + bytes * (size_t)l->proc, mine, bytes);
  if (l->nprocs == 1) return;
  hk_status rc = hk_bootstrap_allgather(l->others, all, bytes);
  if (rc != HK_OK) launch_fail(l, rc, "lost a process of this run");
}
