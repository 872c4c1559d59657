/* SPDX-License-Identifier: Apache-2.0 */
/* How processes are started or found: --procs forks them, launchers are recognised by their variables. */
#include "launch.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The survivors of a dead process get this time to report their own error before they are ended. */
enum { GRACE_SECONDS = 5 };

static const struct {
  const char *name, *rank, *size, *other_size, *local_size;
} launchers[] = {
#define HK_LAUNCHER(name, rank, size, other_size, local_size) {name, rank, size, other_size, local_size},
#include "../base/launchers.def" /* the rows */
};
enum { LAUNCHERS = sizeof launchers / sizeof launchers[0] };

static bool number_of(const char *variable, int *out) {
  const char *text = getenv(variable);
  if (!text || !*text) return false;
  char *end;
  long v = strtol(text, &end, 10);
  if (*end || v < 0 || v > 1 << 24)
    perf_fail(PERF_USAGE, "the environment's %s=%s is not a rank or count", variable, text);
  *out = (int)v;
  return true;
}

static void from_environment(perf_launch *l, const char *wanted) {
  bool automatic = !strcmp(wanted, "auto"), known = automatic;
  for (int i = 0; i < LAUNCHERS; i++) {
    bool named = !strcmp(wanted, launchers[i].name);
    known |= named;
    if (!automatic && !named) continue;
    int rank, size;
    if (!number_of(launchers[i].rank, &rank) ||
        !(number_of(launchers[i].size, &size) || number_of(launchers[i].other_size, &size))) {
      if (named)
        perf_fail(PERF_USAGE, "--launcher %s: %s or %s is not set", wanted, launchers[i].rank, launchers[i].size);
      continue;
    }
    if (rank >= size)
      perf_fail(PERF_USAGE, "%s=%d is not below %s=%d", launchers[i].rank, rank, launchers[i].size, size);
    l->kind = launchers[i].name, l->proc = rank, l->nprocs = size;
    if (!number_of(launchers[i].local_size, &l->local_procs)) l->local_procs = 0;
    return;
  }
  if (!known) perf_fail(PERF_USAGE, "--launcher: unknown name '%s'", wanted);
}

/* ------------------------------------------------------------ --procs -- */

static void report_end(const pid_t *pids, int n, pid_t pid, int status) {
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

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void signal_all(const pid_t *pids, int n, int sig) {
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
static void reap(brood *b) {
  int status;
  pid_t pid;
  while (b->left && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
    bool killed = WIFSIGNALED(status), good = !killed && WEXITSTATUS(status) == 0;
    if (!b->ending && !good && (killed || !b->code)) report_end(b->pids, b->n, pid, status);
    if (!b->ending && killed && !b->signalled) b->code = 128 + WTERMSIG(status), b->signalled = true;
    if (!good && !b->code) b->code = WEXITSTATUS(status);
    for (int p = 0; p < b->n; p++)
      if (b->pids[p] == pid) b->pids[p] = -1, b->left--;
  }
}

/* The parent's main loop. `watched`: SIGCHLD and the signals that a user sends; they are blocked. */
static void __attribute__((noreturn)) watch(pid_t *pids, int n, const sigset_t *watched) {
  brood b = {.pids = pids, .n = n, .left = n};
  int interrupted = 0;
  double deadline = 0;
  for (;;) {
    reap(&b);
    if (!b.left) break;
    if (b.code && !deadline) deadline = seconds() + GRACE_SECONDS;
    if (deadline && !b.ending && seconds() > deadline) {
      fprintf(stderr, "# ending the %d processes that are left\n", b.left);
      b.ending = true;
      signal_all(pids, n, SIGKILL);
    }
    struct timespec tick = {.tv_nsec = 200000000};
    int sig = sigtimedwait(watched, NULL, &tick);
    if (sig > 0 && sig != SIGCHLD) interrupted = sig, b.ending = true, signal_all(pids, n, SIGKILL);
  }
  free(pids);
  exit(interrupted ? 128 + interrupted : b.code);
}

static void become_child(perf_launch *l, int proc, int n, int (*pairs)[2], pid_t parent) {
  /* If the parent is killed, its children are killed too. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(PERF_INTERNAL);
  l->proc = proc;
  l->oob.fds = malloc(sizeof(int) * (size_t)n);
  if (!l->oob.fds) perf_fail(PERF_INTERNAL, "out of memory");
  for (int p = 1; p < n; p++) {
    close(pairs[p][proc == 0]);
    if (proc == 0)
      l->oob.fds[p] = pairs[p][0];
    else if (proc != p)
      close(pairs[p][1]);
  }
  if (proc) l->oob.fds[0] = pairs[proc][1];
}

static void fork_processes(perf_launch *l, int n) {
  int(*pairs)[2] = calloc((size_t)n, sizeof *pairs);
  pid_t *pids = calloc((size_t)n, sizeof *pids), parent = getpid();
  if (!pairs || !pids) perf_fail(PERF_INTERNAL, "out of memory");
  for (int p = 1; p < n; p++)
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[p]))
      perf_fail(PERF_INTERNAL, "--procs %d: socketpair: %s", n, strerror(errno));
  sigset_t watched, before;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD), sigaddset(&watched, SIGINT), sigaddset(&watched, SIGTERM), sigaddset(&watched, SIGHUP);
  sigprocmask(SIG_BLOCK, &watched, &before);
  fflush(NULL);
  l->kind = "procs", l->nprocs = l->local_procs = n;
  for (int p = 0; p < n; p++) {
    pids[p] = fork();
    if (pids[p] < 0) {
      int error = errno;
      signal_all(pids, p, SIGKILL);
      perf_fail(PERF_INTERNAL, "--procs %d: fork: %s", n, strerror(error));
    }
    if (pids[p]) continue;
    sigprocmask(SIG_SETMASK, &before, NULL);
    become_child(l, p, n, pairs, parent);
    free(pairs), free(pids);
    return;
  }
  for (int p = 1; p < n; p++) close(pairs[p][0]), close(pairs[p][1]);
  free(pairs);
  watch(pids, n, &watched);
}

void perf_launch_begin(perf_launch *l, const perf_options *o) {
  *l = (perf_launch){.kind = "none", .nprocs = 1};
  if (o->procs > 0)
    fork_processes(l, o->procs);
  else if (strcmp(o->launcher, "none"))
    from_environment(l, o->launcher);
  l->oob.nprocs = l->nprocs, l->oob.proc = l->proc;
  if (l->nprocs > 1 && !l->oob.fds) perf_meet(l);
}
