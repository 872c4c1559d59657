/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes of this host that run every algorithm by turns and leave the times in shared memory. */
#include <errno.h>
#include <nccl.h>
#include <sched.h> /* sched_yield */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../base/param.h"
#include "../base/wait.h" /* hk_now_ns */
#include "../runtime/comm.h"
#include "tune.h"

enum { CELLS = 1 << 16, SLOW = 4 /* times the best so far: not measured again */, MOST_ITERATIONS = 2000, GLANCES = 4 };

enum { MOST_TURNS = 4 /* times the repeats asked for, where times do not settle */ };
/* Calls follow one another, as programs have them and as the perf binaries measure: the lanes of one run ahead into the next. */
enum { LEAST_ITERATIONS = 3, LONG_US = 30000 /* but no longer than that */ };
#define SETTLED 0.02
#define CONTENDER 1.3 /* times the best so far */

typedef struct shared {
  _Atomic(int) arrived, generation, failed, ready;
  ncclUniqueId id;
  hk_machine machine;
  double elapsed[HK_TUNE_RANKS];
  char error[300];
  int n;
  hk_tune_cell at[CELLS];
} shared;

typedef struct rank_state {
  shared *s;
  const hk_tune_setup *setup;
  int rank;
  ncclComm_t comm;
  char *in, *out;
} rank_state;

/* False where another rank gave up. */
static bool meet(rank_state *r) {
  int generation = atomic_load(&r->s->generation);
  if (atomic_fetch_add(&r->s->arrived, 1) == r->setup->nranks - 1) {
    atomic_store(&r->s->arrived, 0);
    atomic_fetch_add(&r->s->generation, 1);
  }
  while (atomic_load(&r->s->generation) == generation) {
    if (atomic_load(&r->s->failed)) return false;
    sched_yield();
  }
  return true;
}

static hk_status call(rank_state *r, hk_coll coll, size_t bytes) {
  size_t n = (size_t)r->setup->nranks, parts = hk_coll_partition(coll) == HK_PART_WHOLE ? n : 1;
  ncclDataType_t type = bytes / parts % sizeof(float) ? ncclUint8 : ncclFloat32;
  size_t count = bytes / parts / (type == ncclFloat32 ? sizeof(float) : 1);
  ncclComm_t c = r->comm;
  switch (coll) {
    case HK_ALLREDUCE: return (hk_status)ncclAllReduce(r->in, r->out, count, type, ncclSum, c, NULL);
    case HK_BROADCAST: return (hk_status)ncclBroadcast(r->in, r->out, count, type, 0, c, NULL);
    case HK_REDUCE: return (hk_status)ncclReduce(r->in, r->out, count, type, ncclSum, 0, c, NULL);
    case HK_ALLGATHER: return (hk_status)ncclAllGather(r->in, r->out, count, type, c, NULL);
    case HK_REDUCE_SCATTER: return (hk_status)ncclReduceScatter(r->in, r->out, count, type, ncclSum, c, NULL);
    case HK_ALLTOALL: return (hk_status)ncclAlltoAll(r->in, r->out, count, type, c, NULL);
    case HK_GATHER: return (hk_status)ncclGather(r->in, r->out, count, type, 0, c, NULL);
    default: return (hk_status)ncclScatter(r->in, r->out, count, type, 0, c, NULL);
  }
}

/* Every rank takes this algorithm from now on. */
static void force(rank_state *r, hk_coll coll, int algorithm) {
  r->comm->selection.overrides.wish.barred[coll] = ~(1u << algorithm);
  r->comm->plans.last[coll].valid = false;
}

/* Microseconds an operation, the slowest rank's; the same on all ranks. */
static hk_status batch(rank_state *r, hk_coll coll, size_t bytes, int iterations, double *us) {
  hk_status rc = HK_OK;
  if (!meet(r)) return HK_ERR_REMOTE;
  uint64_t begin = hk_now_ns();
  for (int i = 0; i < iterations; i++) HK_TRY(call(r, coll, bytes), out);
  r->s->elapsed[r->rank] = (double)(hk_now_ns() - begin) / 1e3 / iterations;
  if (!meet(r)) return HK_ERR_REMOTE;
  *us = 0;
  for (int i = 0; i < r->setup->nranks; i++)
    if (r->s->elapsed[i] > *us) *us = r->s->elapsed[i];
out:
  return rc;
}

typedef struct trial {
  int algorithm, iterations;
  bool rough;
  double us;
} trial;

/* A batch of each.  Settled: none of those that may be the best got faster by more than a little. */
static hk_status take_turns(rank_state *r, hk_coll coll, size_t bytes, trial *t, int n, double *best, bool *settled) {
  hk_status rc = HK_OK;
  double us;
  *settled = true;
  for (int k = 0; k < n; k++) {
    if (t[k].rough) continue;
    force(r, coll, t[k].algorithm);
    HK_TRY(call(r, coll, bytes), out);
    HK_TRY(batch(r, coll, bytes, t[k].iterations, &us), out);
    if (us < (1 - SETTLED) * t[k].us && us < CONTENDER * *best) *settled = false;
    if (us < t[k].us) t[k].us = us;
    if (us < *best) *best = us;
  }
out:
  return rc;
}

/* First a few calls of each, which make its plan and show how long it takes; then batches by turns, so that what disturbs
 * the machine meets all alike, until their times settle. */
static hk_status try_all(rank_state *r, hk_coll coll, size_t bytes, trial *t, int n) {
  hk_status rc = HK_OK;
  double best = 0, us;
  for (int k = 0; k < n; k++) {
    force(r, coll, t[k].algorithm);
    HK_TRY(batch(r, coll, bytes, bytes > 1 << 20 ? 1 : 3, &us), out);
    for (int i = 0; i < GLANCES; i++) { /* a slow one is looked at again: somebody may have disturbed it */
      HK_TRY(batch(r, coll, bytes, bytes > 1 << 20 ? 1 : 5, &us), out);
      if (i == 0 || us < t[k].us) t[k].us = us;
      if (k && t[k].us < 2 * best) break;
    }
    us = t[k].us;
    if (k == 0 || us < best) best = us;
    double iterations = r->setup->batch_us / (us > 0.01 ? us : 0.01);
    if (iterations < LEAST_ITERATIONS && LEAST_ITERATIONS * us < LONG_US) iterations = LEAST_ITERATIONS;
    t[k].iterations = iterations < 1 ? 1 : iterations > MOST_ITERATIONS ? MOST_ITERATIONS : (int)iterations;
  }
  for (int k = 0; k < n; k++) t[k].rough = t[k].us > SLOW * best;
  bool settled = false;
  for (int i = 0; i < r->setup->repeats || (!settled && i < MOST_TURNS * r->setup->repeats); i++)
    HK_TRY(take_turns(r, coll, bytes, t, n, &best, &settled), out);
out:
  return rc;
}

static hk_status measure_size(rank_state *r, hk_coll coll, size_t bytes) {
  trial t[HK_ALGORITHM_LIMIT];
  int n = 0;
  for (int i = 0; hk_algorithms[i]; i++)
    if (hk_algorithm_supports(hk_algorithms[i], &r->comm->selection.machine, coll)) t[n++] = (trial){.algorithm = i};
  hk_status rc = try_all(r, coll, bytes, t, n);
  if (rc != HK_OK || r->rank) return rc;
  for (int k = 0; k < n && r->s->n < CELLS; k++)
    r->s->at[r->s->n++] = (hk_tune_cell){.coll = (uint8_t)coll,
                                         .algorithm = (uint8_t)t[k].algorithm,
                                         .rough = t[k].rough,
                                         .bytes = bytes,
                                         .us = t[k].us};
  return HK_OK;
}

static hk_status measure_all(rank_state *r, void (*tell)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  const hk_tune_setup *s = r->setup;
  for (int c = 0; c < HK_COLL_COUNT; c++) {
    if (!(s->colls >> c & 1u)) continue;
    for (size_t bytes = s->from; bytes <= s->to; bytes *= (size_t)s->step) {
      if (hk_coll_partition((hk_coll)c) == HK_PART_WHOLE && bytes < (size_t)s->nranks) continue;
      if (r->rank == 0 && tell) tell((hk_coll)c, bytes);
      HK_TRY(measure_size(r, (hk_coll)c, bytes), out);
    }
  }
out:
  return rc;
}

/* What the user has set for jobs must not change what is measured. */
static void settle_environment(const hk_tune_setup *s) {
  static const char *const gone[] = {"NCCL_ALGO",          "NCCL_PROTO",         "NCCL_TUNER_PLUGIN",
                                     "HOCKET_TUNING_FILE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
                                     "NCCL_HOSTID",        "NCCL_COMM_ID"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(gone); i++) unsetenv(gone[i]);
  setenv("HOCKET_TUNE_FILE", "none", 1);
  setenv("NCCL_TUNER_PLUGIN", "none", 1);
  setenv("NCCL_SHM_DISABLE", s->tcp ? "1" : "0", 1);
  setenv("NCCL_P2P_DISABLE", s->tcp ? "1" : "0", 1);
  hk_param_reload();
}

static hk_status join(rank_state *r) {
  hk_status rc = HK_OK;
  if (r->rank == 0) {
    HK_TRY((hk_status)ncclGetUniqueId(&r->s->id), out);
    atomic_store(&r->s->ready, 1);
  }
  while (!atomic_load(&r->s->ready)) {
    if (atomic_load(&r->s->failed)) return HK_ERR_REMOTE;
    usleep(1000);
  }
  HK_TRY((hk_status)ncclCommInitRank(&r->comm, r->setup->nranks, r->s->id, r->rank), out);
  if (r->rank == 0) r->s->machine = r->comm->selection.machine;
  size_t bytes = r->setup->to + 4096;
  r->in = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  r->out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (r->in == MAP_FAILED || r->out == MAP_FAILED) {
    rc = HK_FAIL_ERRNO("no memory for two buffers of %zu bytes a rank", bytes);
    goto out;
  }
  memset(r->in, 0, bytes); /* zeros: sums stay finite however often they are taken */
  memset(r->out, 0, bytes);
out:
  return rc;
}

/* In the child process; does not return. */
static void run_rank(shared *s, const hk_tune_setup *setup, int rank, void (*tell)(hk_coll, size_t)) {
  rank_state r = {.s = s, .setup = setup, .rank = rank};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  settle_environment(setup);
  hk_status rc = join(&r);
  if (rc == HK_OK) rc = measure_all(&r, tell);
  if (rc != HK_OK && atomic_exchange(&s->failed, 1) == 0)
    snprintf(s->error, sizeof s->error, "rank %d: %s", rank, hk_last_error());
  if (rc == HK_OK && r.comm) ncclCommDestroy(r.comm);
  _exit(rc != HK_OK);
}

static hk_status wait_for(shared *s, const pid_t *children, int n) {
  hk_status rc = HK_OK;
  for (int i = 0; i < n; i++) {
    int state;
    while (waitpid(children[i], &state, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) continue;
    atomic_store(&s->failed, 1);
    if (rc == HK_OK)
      rc = HK_FAIL(HK_ERR_SYSTEM, "measuring failed: %s", s->error[0] ? s->error : "a rank's process was ended");
  }
  return rc;
}

hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *setup, void (*tell)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  pid_t children[HK_TUNE_RANKS];
  int n = 0;
  *out = (hk_tune_table){.setup = *setup};
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) return HK_FAIL_ERRNO("no shared memory for %zu bytes of results", sizeof *s);
  fflush(NULL);
  for (; n < setup->nranks; n++) {
    children[n] = fork();
    if (children[n] == 0) run_rank(s, setup, n, tell);
    if (children[n] > 0) continue;
    atomic_store(&s->failed, 1);
    rc = HK_FAIL_ERRNO("no process for rank %d of %d", n, setup->nranks);
    break;
  }
  hk_status ended = wait_for(s, children, n);
  if (rc == HK_OK) rc = ended;
  if (rc != HK_OK) goto out;
  out->machine = s->machine;
  out->at = malloc(((size_t)s->n + 1) * sizeof *out->at);
  if (!out->at) {
    rc = HK_FAIL_ERRNO("no memory for %d results", s->n);
    goto out;
  }
  out->n = s->n;
  memcpy(out->at, s->at, (size_t)s->n * sizeof *out->at);
out:
  munmap(s, sizeof *s);
  return rc;
}

void hk_tune_table_clear(hk_tune_table *t) {
  free(t->at);
  *t = (hk_tune_table){.n = 0};
}
