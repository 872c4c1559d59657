/* SPDX-License-Identifier: Apache-2.0 */
/* check: waits timeout=300 notsan
 * Every order of calls that docs/recovery.md allows, after every kind of failure: each call gives the code that its
 * table names, on all ranks, in bounded time; afterwards a new communicator works, and nothing is left over.
 *
 * Ranks are processes.  Without HOCKET_TEST_SECONDS the fixed orders run, and a few random ones; with it random ones
 * for that long, from HOCKET_TEST_SEED. */
#include <dirent.h>
#include <hocket.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "../../src/core/comm.h"
#include "../../src/failure/failure.h"
#include "../support/fuzz.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { RANKS = 4, STEPS = 8, LIMIT_S = 90 };

typedef enum fault { NONE, KILLED, EXITED, STOPPED, ABORTED, LOCAL, MISMATCH, REVOKED, FAULTS } fault;
static const char *const fault_names[] = {"none",    "killed",        "exited",          "stopped",
                                          "aborted", "local failure", "mismatched call", "revoked by one rank"};
/* What the other ranks do meanwhile. */
typedef enum moment { IN_CALL, ON_STREAM, IDLE, MOMENTS } moment;
static const char *const moment_names[] = {"in a call", "on a stream", "idle"};

typedef enum step { OPERATE, SPLIT, SHRINK, SHRINK_ABORT, REVOKE, FINALIZE, DESTROY, ABORT, STEP_KINDS } step;
static const char *const step_names[] = {"operation", "split",    "shrink",  "shrink(abort)",
                                         "revoke",    "finalize", "destroy", "abort"};

/* What a communicator is in for one rank; the columns are the steps. */
typedef enum state { READY, FAILED, QUIET, REVOKED_BY_PEER, FINALIZED, STATES } state;
/* OK: 0.  OWN: the failure's code. ALL: 0 if all ranks are there, else ncclRemoteError. */
enum { OK = 0, OWN = -1, ALL = -2 };
static const int table[STATES][STEP_KINDS] = {
    /*                   operation        split            shrink           shrink(abort)    revoke
     *                                    finalize */
    [READY] = {OK, ALL, OK, OK, OK, OK, OK, OK},
    [FAILED] = {OWN, OWN, OWN, OK, OK, OWN, OK, OK},
    [QUIET] = {ncclInvalidUsage, ALL, OK, OK, OK, ncclInvalidUsage, OK, OK},
    [REVOKED_BY_PEER] = {ncclRemoteError, ALL, OK, OK, OK, ncclRemoteError, OK, OK},
    [FINALIZED] = {ncclInvalidUsage, ncclInvalidUsage, ncclInvalidUsage, ncclInvalidUsage, ncclInvalidArgument,
                   ncclInvalidUsage, OK, OK},
};

typedef struct scenario {
  fault fault;
  moment moment;
  int n, victim;
  bool tcp, nonblocking, grouped, keep; /* keep: children end after their parent */
  int nsteps;
  step steps[STEPS];
} scenario;

typedef struct rank_run {
  const scenario *s;
  int rank;
  state state;
  int failure;
  ncclComm_t comm, children[STEPS];
  int nchildren, faults;
  hocketStream_t stream;
  int pipes[3][2];
  _Atomic(int) *arrived; /* [2] ranks that are so far */
  bool calm_is_over;
} rank_run;

static void describe(const scenario *s, char *text, size_t bytes) {
  int used = snprintf(text, bytes, "%d ranks, %s, %s%s: rank %d %s while the others are %s; then", s->n,
                      s->tcp ? "TCP" : "shared memory", s->nonblocking ? "nonblocking" : "blocking",
                      s->grouped ? ", in groups" : "", s->victim, fault_names[s->fault], moment_names[s->moment]);
  for (int i = 0; i < s->nsteps; i++)
    used += snprintf(text + used, bytes - (size_t)used, " %s%s", step_names[s->steps[i]], i + 1 < s->nsteps ? "," : "");
  snprintf(text + used, bytes - (size_t)used, "%s", s->keep ? "; children end last" : "");
}

static bool victim_is_gone(const scenario *s) { return s->fault >= KILLED && s->fault <= ABORTED; }

static void expect(rank_run *r, const char *what, int got, int want) {
  if (got == want) return;
  fprintf(stderr, "rank %d: %s gave %d instead of %d: %s\n", r->rank, what, got, want, ncclGetLastError(NULL));
  r->faults++;
}

static int async_error(ncclComm_t c) {
  ncclResult_t code = ncclInProgress;
  while (ncclCommGetAsyncError(c, &code) == ncclSuccess && code == ncclInProgress) usleep(200);
  return (int)code;
}

static int await_failure(ncclComm_t c) {
  int code;
  while ((code = async_error(c)) == ncclSuccess) usleep(200);
  return code;
}

/* Waits for what a nonblocking call goes on with. */
static int finish(ncclResult_t rc, ncclComm_t c) { return rc == ncclInProgress ? async_error(c) : (int)rc; }

static int works(ncclComm_t c) {
  int n = 0;
  const int faults = RANK_CHECK(ncclCommCount(c, &n));
  return faults ? faults : rank_works(c, n);
}

/* A communicator of the ranks that are here; rank and n are among those. */
static ncclComm_t meet(rank_run *r, int pipe, int rank, int n) {
  ncclUniqueId id;
  ncclComm_t c = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = !r->s->nonblocking;
  if (ranks_share_id(r->pipes[pipe], rank, n, &id)) _exit(90);
  ncclResult_t begun = ncclCommInitRankConfig(&c, n, id, rank, &config);
  int rc = finish(begun, c);
  if (rc == ncclSuccess) return c;
  fprintf(stderr, "rank %d: init %d gave %d: %s\n", r->rank, pipe, rc, ncclGetLastError(NULL));
  _exit(91);
}

/* ---- the failure ---- */

static void suffer(rank_run *r, float *b) {
  switch (r->s->fault) {
    case KILLED: kill(getpid(), SIGKILL); break;
    case EXITED: exit(0);
    case STOPPED: kill(getpid(), SIGSTOP); _exit(0);
    case ABORTED: _exit(ncclCommAbort(r->comm) != ncclSuccess);
    case REVOKED: expect(r, "revoke", ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT), ncclSuccess); break;
    case LOCAL: hk_comm_failed(r->comm, HK_FAIL(HK_ERR_SYSTEM, "an invented failure")); break;
    case MISMATCH:
      expect(r, "mismatch", ncclAllReduce(b, b, 7, ncclFloat32, ncclSum, r->comm, NULL), ncclInvalidUsage);
      break;
    default: break;
  }
}

/* The code that the failure has for this rank. */
static int failure_code(const rank_run *r) {
  if (r->s->fault == MISMATCH) return ncclInvalidUsage;
  if (r->s->fault == LOCAL && r->rank == r->s->victim) return ncclSystemError;
  return ncclRemoteError;
}

static void strike(rank_run *r) {
  static float b[64]; /* an operation on a stream may outlive this */
  const scenario *s = r->s;
  bool victim = r->rank == s->victim, silent = s->fault == NONE || s->fault == STOPPED;
  if (victim) suffer(r, b);
  if (s->fault == NONE) return;
  r->failure = failure_code(r);
  if (!victim && s->moment == ON_STREAM) { /* the news may be here already */
    hocketStream_t stream = r->stream;
    int rc = (int)ncclAllReduce(b, b, 64, ncclFloat32, ncclSum, r->comm, hocketStreamAsCuda(stream));
    if (rc != r->failure) expect(r, "enqueue", rc, ncclSuccess);
  }
  if (silent) return; /* the operation hangs */
  if (!victim && s->moment == IN_CALL)
    expect(r, "operation", ncclAllReduce(b, b, 64, ncclFloat32, ncclSum, r->comm, NULL), r->failure);
  r->state = s->fault == REVOKED ? (victim ? QUIET : REVOKED_BY_PEER) : FAILED;
  if (r->state != QUIET) expect(r, "asynchronous error", await_failure(r->comm), r->failure);
}

/* ---- the recovery ---- */

static int make_child(rank_run *r, step what) {
  ncclComm_t *child = &r->children[r->nchildren];
  int excluded = r->s->victim;
  ncclResult_t rc;
  *child = NULL;
  if (r->s->grouped) ncclGroupStart();
  if (what == SPLIT)
    rc = ncclCommSplit(r->comm, 0, r->rank, child, NULL);
  else
    rc = ncclCommShrink(r->comm, &excluded, 1, child, NULL, what == SHRINK ? NCCL_SHRINK_DEFAULT : NCCL_SHRINK_ABORT);
  if (r->s->grouped) rc = ncclGroupEnd();
  int code = finish(rc, *child);
  if (code == ncclSuccess) {
    r->nchildren++;
    if (works(*child)) {
      fprintf(stderr, "rank %d: a child does not work: %s\n", r->rank, ncclGetLastError(NULL));
      r->faults++;
    }
  } else if (rc == ncclInProgress) {
    expect(r, "abort of a child that failed", ncclCommAbort(*child), ncclSuccess);
  }
  return code;
}

static void end_children(rank_run *r) {
  while (r->nchildren) expect(r, "destroy of a child", ncclCommDestroy(r->children[--r->nchildren]), ncclSuccess);
}

static int run_step(rank_run *r, step what) {
  static float b[8];
  ncclResult_t rc;
  switch (what) {
    case OPERATE:
      if (r->s->grouped) ncclGroupStart();
      rc = ncclAllReduce(b, b, 8, ncclFloat32, ncclSum, r->comm, NULL);
      return (int)(r->s->grouped ? ncclGroupEnd() : rc);
    case REVOKE: return (int)ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT);
    case FINALIZE: return (int)ncclCommFinalize(r->comm);
    case DESTROY: return (int)ncclCommDestroy(r->comm);
    case ABORT: return (int)ncclCommAbort(r->comm);
    default: return make_child(r, what);
  }
}

static void await_all(rank_run *r, int stage) {
  atomic_fetch_add(&r->arrived[stage], 1);
  while (atomic_load(&r->arrived[stage]) < r->s->n) usleep(100);
}

/* What ends operations of others comes after these are over, where nothing has ended them yet. */
static void await_others(rank_run *r, step what) {
  if (r->s->fault != NONE || r->calm_is_over || (what != REVOKE && what != SHRINK_ABORT && what != ABORT)) return;
  r->calm_is_over = true;
  await_all(r, 1);
}

static void take_step(rank_run *r, step what) {
  const scenario *s = r->s;
  await_others(r, what);
  bool shrinks = what == SHRINK || what == SHRINK_ABORT;
  if (shrinks && r->rank == s->victim) { /* it is excluded */
    if (what == SHRINK_ABORT && (r->state == READY || r->state == FAILED)) {
      if (r->state == READY) expect(r, "asynchronous error", await_failure(r->comm), ncclRemoteError);
      /* After a failure of its own the news changes nothing that it can see. */
      if (r->state == READY) r->state = REVOKED_BY_PEER;
    }
    return;
  }
  int want = table[r->state][what];
  if (want == OWN) want = r->failure;
  if (want == ALL) want = victim_is_gone(s) ? ncclRemoteError : ncclSuccess;
  expect(r, step_names[what], run_step(r, what), want);
  if (r->state == FINALIZED) return;
  if (what == REVOKE || what == SHRINK_ABORT) r->state = QUIET;
  if (what == FINALIZE && r->state == READY) r->state = FINALIZED;
  if (r->state == QUIET && what != DESTROY && what != ABORT)
    expect(r, "asynchronous error after a revoke", async_error(r->comm), ncclSuccess);
  if (!s->keep) end_children(r);
}

/* ---- what is left over ---- */

static int entries(const char *folder) {
  DIR *d = opendir(folder);
  int n = 0;
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

static int shared_areas(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  char line[512];
  int n = 0;
  while (fgets(line, sizeof line, f)) n += strstr(line, "memfd:") || strstr(line, "/dev/shm");
  fclose(f);
  return n;
}

typedef struct holdings {
  int files, threads, areas;
} holdings;

static holdings count(void) {
  return (holdings){.files = entries("/proc/self/fd"), .threads = entries("/proc/self/task"), .areas = shared_areas()};
}

/* Threads of roots and of nonblocking inits end by themselves: that they do is the condition, not how soon. */
static void compare(rank_run *r, holdings before) {
  holdings now = count();
  for (int i = 0; i < 5000 && (now.files > before.files || now.threads > before.threads); i++)
    usleep(1000), now = count();
  if (now.files <= before.files && now.threads <= before.threads && now.areas <= before.areas) return;
  fprintf(stderr, "rank %d: descriptors %d -> %d, threads %d -> %d, shared areas %d -> %d\n", r->rank, before.files,
          now.files, before.threads, now.threads, before.areas, now.areas);
  r->faults++;
}

/* ---- one rank, one scenario ---- */

static int run_rank(rank_run *r) {
  const scenario *s = r->s;
  bool gone = victim_is_gone(s);
  alarm(LIMIT_S); /* its signal ends a rank that hangs */
  setenv("NCCL_DEBUG", getenv("HOCKET_TEST_DEBUG") ? getenv("HOCKET_TEST_DEBUG") : "NONE", 1);
  if (s->tcp) setenv("NCCL_SHM_DISABLE", "1", 1), setenv("NCCL_P2P_DISABLE", "1", 1);
  ncclComm_t first = meet(r, 0, r->rank, s->n); /* what a process makes once is made */
  expect(r, "first destroy", ncclCommDestroy(first), ncclSuccess);
  holdings before = count();
  if (hocketStreamCreate(&r->stream)) return 92;
  r->comm = meet(r, 1, r->rank, s->n);
  r->faults += works(r->comm);
  await_all(r, 0);
  strike(r);
  for (int i = 0; i < s->nsteps; i++) take_step(r, s->steps[i]);
  end_children(r);
  (void)hocketStreamDestroy(r->stream);
  int rank = r->rank - (gone && r->rank > s->victim);
  ncclComm_t last = meet(r, 2, rank, s->n - gone);
  r->faults += works(last);
  expect(r, "last destroy", ncclCommDestroy(last), ncclSuccess);
  compare(r, before);
  return r->faults;
}

#ifdef __SANITIZE_ADDRESS__
int __lsan_do_recoverable_leak_check(void);
/* Memory that nothing refers to any more. */
static int leaked(void) { return __lsan_do_recoverable_leak_check(); }
#else
static int leaked(void) { return 0; }
#endif

static int run_scenario(const scenario *s) {
  rank_run r = {.s = s};
  pid_t pids[RANKS];
  int faults = 0;
  char text[512];
  for (int i = 0; i < 3; i++) ck_assert_int_eq(pipe(r.pipes[i]), 0);
  r.arrived = mmap(NULL, 2 * sizeof *r.arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(r.arrived, MAP_FAILED);
  fflush(NULL);
  for (r.rank = 0; r.rank < s->n; r.rank++) {
    pids[r.rank] = fork();
    ck_assert_int_ge(pids[r.rank], 0);
    if (pids[r.rank]) continue;
    int n = run_rank(&r) + leaked();
    fflush(NULL);
    _exit(n > 80 ? 80 : n);
  }
  for (int i = 0; i < s->n; i++) {
    int status;
    bool victim = i == s->victim;
    if (victim && s->fault == STOPPED) continue;
    waitpid(pids[i], &status, 0);
    if (victim && s->fault == KILLED ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    fprintf(stderr, "rank %d ended with status 0x%x%s\n", i, status,
            WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it hung" : "");
    faults++;
  }
  if (s->fault == STOPPED) kill(pids[s->victim], SIGKILL), waitpid(pids[s->victim], NULL, 0);
  for (int i = 0; i < 3; i++) close(r.pipes[i][0]), close(r.pipes[i][1]);
  munmap(r.arrived, 2 * sizeof *r.arrived);
  describe(s, text, sizeof text);
  if (faults || getenv("HOCKET_TEST_VERBOSE")) fprintf(stderr, "%s: %s\n", faults ? "FAILED" : "passed", text);
  return faults;
}

/* ---- orders ---- */

/* May this step come next?  What hangs must be ended first, and the last step ends the communicator. */
static bool allowed(const scenario *s, step what) {
  bool ended = false, finalized = false, hangs = s->fault == STOPPED;
  for (int i = 0; i < s->nsteps; i++) {
    ended = ended || s->steps[i] == REVOKE || s->steps[i] == SHRINK_ABORT;
    finalized = finalized || s->steps[i] == FINALIZE;
  }
  if (hangs && !ended) return what == REVOKE || what == SHRINK_ABORT || what == ABORT;
  if (hangs) return what != SPLIT; /* it would wait for a rank that may come yet */
  /* A live rank that failed by itself and is excluded goes on from its own failure: its next call would be another. */
  if (what == SHRINK_ABORT && !victim_is_gone(s) && (s->fault == LOCAL || s->fault == MISMATCH)) return false;
  return !finalized || what != SPLIT;
}

static step random_step(const scenario *s, bool last) {
  for (;;) {
    step what = last ? (step)(DESTROY + rnd(2)) : (step)rnd(DESTROY);
    if (allowed(s, what)) return what;
  }
}

static scenario random_scenario(void) {
  scenario s = {.fault = (fault)rnd(FAULTS), .n = 2 + (int)rnd(RANKS - 1)};
  s.victim = (int)rnd((uint32_t)s.n);
  s.moment = s.fault == STOPPED ? ON_STREAM : s.fault == MISMATCH ? IN_CALL : (moment)rnd(MOMENTS);
  s.tcp = rnd(2);
  s.nonblocking = rnd(2);
  s.grouped = rnd(2);
  s.keep = rnd(2);
  int steps = (int)rnd(STEPS - 1);
  for (int i = 0; i < steps; i++) {
    s.steps[s.nsteps] = random_step(&s, false);
    s.nsteps++;
  }
  s.steps[s.nsteps] = random_step(&s, true);
  s.nsteps++;
  return s;
}

/* What people do, on both transports. */
static const scenario fixed[] = {
    {NONE, IDLE, 3, 2, .nsteps = 5, .steps = {SPLIT, SHRINK, OPERATE, FINALIZE, DESTROY}, .keep = true},
    {NONE, IDLE, 3, 1, .nsteps = 5, .steps = {REVOKE, OPERATE, SPLIT, SHRINK, DESTROY}},
    {KILLED, IN_CALL, 4, 1, .nsteps = 3, .steps = {REVOKE, SHRINK, ABORT}},
    {KILLED, ON_STREAM, 3, 0, .nsteps = 2, .steps = {SHRINK_ABORT, DESTROY}, .keep = true},
    {KILLED, IDLE, 3, 2, .nsteps = 4, .steps = {SPLIT, REVOKE, SPLIT, ABORT}},
    {EXITED, IN_CALL, 2, 1, .nsteps = 2, .steps = {SHRINK_ABORT, ABORT}},
    {STOPPED, ON_STREAM, 3, 2, .nsteps = 3, .steps = {REVOKE, SHRINK, DESTROY}},
    {STOPPED, ON_STREAM, 3, 0, .nsteps = 2, .steps = {SHRINK_ABORT, ABORT}, .nonblocking = true},
    {ABORTED, IN_CALL, 3, 1, .nsteps = 4, .steps = {OPERATE, REVOKE, SHRINK, ABORT}, .grouped = true},
    {LOCAL, IN_CALL, 3, 1, .nsteps = 4, .steps = {OPERATE, REVOKE, SPLIT, DESTROY}},
    {MISMATCH, IN_CALL, 3, 0, .nsteps = 4, .steps = {FINALIZE, REVOKE, SPLIT, ABORT}, .nonblocking = true},
    {REVOKED, IN_CALL, 3, 1, .nsteps = 3, .steps = {SPLIT, OPERATE, DESTROY}},
    {REVOKED, ON_STREAM, 4, 3, .nsteps = 4, .steps = {SHRINK, REVOKE, SPLIT, ABORT}, .nonblocking = true,
     .grouped = true},
};

TEST_LOOP(fixed_orders, 2 * (int)(sizeof fixed / sizeof *fixed)) {
  const char *only = getenv("HOCKET_TEST_ORDER"); /* its number, to look at one alone */
  if (only && atoi(only) != _i) return;
  scenario s = fixed[_i / 2];
  s.tcp = _i % 2;
  ck_assert_int_eq(run_scenario(&s), 0);
}

TEST(random_orders) {
  fuzz_begin(2);
  do {
    scenario s = random_scenario();
    ck_assert_msg(run_scenario(&s) == 0, "HOCKET_TEST_SEED=%llu, order %u", (unsigned long long)fuzz_seed, fuzz_case);
  } while (fuzz_goes_on());
}

int main(void) { return suite_main("recovery", .timeout = 0); }
