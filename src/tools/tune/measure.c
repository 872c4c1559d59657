/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes of this host that run every algorithm by turns and leave the times in shared memory. */
#include <errno.h>
#include <math.h>
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
#include "../../base/param.h"
#include "../../base/wait.h" /* hk_now_ns */
#include "../../collectives/algorithm.h"
#include "../../core/call.h"
#include "../../decide/outlines.h"
#include "../../program/layout.h"
#include "../../run/choose.h"
#include "../../transport/link.h" /* HK_MCAST_SLOTS */
#include "tune.h"

enum {
  CELLS = 1 << 16,
  SLOW = 4 /* an algorithm that takes this multiple of the best time is not measured again */,
  MOST_ITERATIONS = 2000,
  GLANCES = 4
};

enum { MOST_TURNS = 4 /* limit, as a multiple of the requested repeats, if times do not settle */ };
/* Calls follow one another, as in programs and in the perf binaries: lanes run ahead into the next call. */
enum { LEAST_ITERATIONS = 3, LONG_US = 30000 /* limit of a batch's time */ };
/* Calls longer than LONG_US are much longer than disturbances, so one or two calls are enough. */
enum { WARMINGS = 2, LONG_SLOW = 2, REST_AFTER_US = 500000 };
/* far longer than making a plan and connecting, so the first call shows the call's own time */
enum { FAR_LONGER_US = 3 * LONG_US };
enum { STEADY_US = LONG_US / 6 }; /* longer calls get only the requested turns */
#define SETTLED 0.02
#define CONTENDER 1.3 /* as a multiple of the best time so far */

typedef struct shared {
  _Atomic(int) arrived, generation, failed, ready;
  ncclUniqueId id;
  hk_machine machine;
  double elapsed[HK_TUNE_RANKS], pause_us;
  char error[300];
  int n;
  hk_tune_cell at[CELLS];
} shared;

typedef struct rank_state {
  shared *s;
  const hk_tune_setup *setup;
  int rank, round;
  uint64_t busy_since;
  ncclComm_t comm;
  ncclComm_t control; /* between hosts: for all communication that is not measured; else NULL */
  char *in, *out;
} rank_state;

/* Between hosts: the largest of the ranks' values. */
static bool measure_largest(rank_state *r, double mine, double *most) {
  return ncclAllReduce(&mine, most, 1, ncclFloat64, ncclMax, r->control, NULL) == ncclSuccess;
}

/* False if another rank gave up. */
static bool measure_meet(rank_state *r) {
  double none;
  if (r->control) return measure_largest(r, 0, &none);
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

static hk_status measure_call(rank_state *r, hk_coll coll, size_t bytes) {
  size_t n = (size_t)r->setup->nranks, parts = hk_coll_partition(coll) == HK_PART_WHOLE ? n : 1;
  ncclDataType_t type = bytes / parts % sizeof(float) ? ncclUint8 : ncclFloat32;
  size_t count = bytes / parts / (type == ncclFloat32 ? sizeof(float) : 1);
  return hk_coll_call(coll, r->in, r->out, count, type, ncclSum, 0, r->comm, NULL);
}

/* Makes every rank use this algorithm from now on. */
static void measure_force(rank_state *r, hk_coll coll, int algorithm) {
  hk_choose_only(r->comm, (int)coll, 1u << algorithm);
}

/* Meets the other ranks and, if the user wants it, sleeps: all ranks together, in proportion to the time since the last
 * sleep. */
static bool measure_meet_and_rest(rank_state *r) {
  shared *s = r->s;
  uint64_t now = hk_now_ns();
  double busy = (double)(now - r->busy_since) / 1e3;
  if (r->rank == 0)
    s->pause_us = busy > REST_AFTER_US ? busy * r->setup->rest : 0; /* the other ranks read it between two meetings */
  if (!measure_meet(r)) return false;
  if (s->pause_us <= 0) return true;
  usleep((useconds_t)s->pause_us);
  r->busy_since = hk_now_ns();
  return measure_meet(r);
}

static bool measure_slowest(rank_state *r, double mine, double *us) {
  if (r->control) return measure_largest(r, mine, us);
  r->s->elapsed[r->rank] = mine;
  if (!measure_meet(r)) return false;
  *us = 0;
  for (int i = 0; i < r->setup->nranks; i++)
    if (r->s->elapsed[i] > *us) *us = r->s->elapsed[i];
  return true;
}

/* *us: time of an operation on the slowest rank; equal on all ranks. */
static hk_status measure_batch(rank_state *r, hk_coll coll, size_t bytes, int iterations, double *us) {
  if (!measure_meet_and_rest(r)) return HK_ERR_REMOTE;
  uint64_t begin = hk_now_ns();
  for (int i = 0; i < iterations; i++) HK_OR_RETURN(measure_call(r, coll, bytes));
  if (!measure_slowest(r, (double)(hk_now_ns() - begin) / 1e3 / iterations, us)) return HK_ERR_REMOTE;
  return HK_OK;
}

typedef struct trial {
  int algorithm, iterations;
  bool rough;
  double us;
} trial;

/* Runs a batch of each algorithm. *settled: no candidate for the best became notably faster. */
static hk_status measure_take_turns(rank_state *r, hk_coll coll, size_t bytes, trial *t, int n, double *best,
                                    bool *settled) {
  double us;
  *settled = true;
  for (int k = 0; k < n; k++) {
    if (t[k].rough) continue;
    measure_force(r, coll, t[k].algorithm);
    if (t[k].us < LONG_US) HK_OR_RETURN(measure_call(r, coll, bytes));
    HK_OR_RETURN(measure_batch(r, coll, bytes, t[k].iterations, &us));
    if (us < STEADY_US && us < (1 - SETTLED) * t[k].us && us < CONTENDER * *best) *settled = false;
    if (us < t[k].us) t[k].us = us;
    if (us < *best) *best = us;
  }
  return HK_OK;
}

/* The number of calls that use all slots of any link: the first use of a slot pays for its pages. */
static int measure_first_calls(size_t bytes) {
  return bytes <= (64 << 10) ? HK_MCAST_SLOTS : bytes <= (1 << 20) ? 8 : 1;
}

/* First calls, which make the plan and touch the slots, and some more. */
static hk_status measure_glance(rank_state *r, hk_coll coll, size_t bytes, trial *t, double best) {
  double us;
  measure_force(r, coll, t->algorithm);
  HK_OR_RETURN(measure_batch(r, coll, bytes, 1, &us));
  for (int i = 0; us < LONG_US && i < WARMINGS; i++)
    HK_OR_RETURN(measure_batch(r, coll, bytes, measure_first_calls(bytes), &us));
  t->us = us;
  for (int i = 0; i < GLANCES; i++) { /* a slow algorithm is tried again: another process may have disturbed it */
    if (us > (i ? LONG_US : FAR_LONGER_US)) break;
    HK_OR_RETURN(measure_batch(r, coll, bytes, bytes > 1 << 20 ? 1 : 5, &us));
    if (i == 0 || us < t->us) t->us = us;
    if (t->us < 2 * best) break;
  }
  double iterations = r->setup->batch_us / (t->us > 0.01 ? t->us : 0.01);
  if (iterations < LEAST_ITERATIONS && LEAST_ITERATIONS * t->us < LONG_US) iterations = LEAST_ITERATIONS;
  t->iterations = iterations < 1 ? 1 : iterations > MOST_ITERATIONS ? MOST_ITERATIONS : (int)iterations;
  return HK_OK;
}

/* First a few calls of each algorithm, which make its plan and show its approximate time. Then batches by turns until
 * the times settle, so that disturbances affect all algorithms alike. */
static hk_status measure_try_all(rank_state *r, hk_coll coll, size_t bytes, trial *t, int n) {
  double best = 0;
  for (int k = 0; k < n; k++) {
    HK_OR_RETURN(measure_glance(r, coll, bytes, &t[k], best));
    if (k == 0 || t[k].us < best) best = t[k].us;
  }
  for (int k = 0; k < n; k++) t[k].rough = t[k].us > (best > LONG_US ? LONG_SLOW : SLOW) * best;
  bool settled = false;
  for (int i = 0; i < (best > LONG_US ? 1 : r->setup->repeats) || (!settled && i < MOST_TURNS * r->setup->repeats); i++)
    HK_OR_RETURN(measure_take_turns(r, coll, bytes, t, n, &best, &settled));
  return HK_OK;
}

static hk_status measure_point(rank_state *r, const hk_tune_point *p) {
  trial t[HK_ALGORITHM_LIMIT];
  int n = 0;
  for (int i = 0; hk_algorithms[i]; i++)
    if ((p->algorithms >> i & 1u) &&
        hk_algorithm_supports(hk_algorithms[i], &hk_choose_machine(r->comm)->team, p->coll))
      t[n++] = (trial){.algorithm = i};
  hk_status rc = measure_try_all(r, p->coll, p->bytes, t, n);
  if (rc != HK_OK || r->rank) return rc;
  for (int k = 0; k < n && r->s->n < CELLS; k++)
    r->s->at[r->s->n++] = (hk_tune_cell){.coll = (uint8_t)p->coll,
                                         .algorithm = (uint8_t)t[k].algorithm,
                                         .rough = t[k].rough,
                                         .bytes = p->bytes,
                                         .us = t[k].us};
  return HK_OK;
}

static hk_status measure_all(rank_state *r, void (*progress)(hk_coll, size_t)) {
  for (int i = 0; i < r->setup->npoints; i++) {
    const hk_tune_point *p = &r->setup->points[i];
    if (r->rank == 0 && progress) progress(p->coll, p->bytes);
    HK_OR_RETURN(measure_point(r, p));
  }
  return HK_OK;
}

/* Removes the user's settings for jobs, which must not affect the measurement. */
static void measure_settle_environment(const hk_tune_setup *s) {
  static const char *const gone[] = {"NCCL_ALGO",          "NCCL_PROTO",         "HOCKET_TUNING_FILE",
                                     "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "HOCKET_BATCH_INVARIANT"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(gone); i++) unsetenv(gone[i]);
  setenv("HOCKET_TUNE_FILE", "none", 1);
  setenv("NCCL_TUNER_PLUGIN", "none", 1);
  if (s->between) {
    setenv("NCCL_COMM_ID", s->between, 1);
  } else {
    unsetenv("NCCL_COMM_ID");
    unsetenv("NCCL_HOSTID");
    setenv("NCCL_SHM_DISABLE", s->tcp ? "1" : "0", 1);
    setenv("NCCL_P2P_DISABLE", s->tcp ? "1" : "0", 1);
  }
  hk_param_reload();
}

static hk_status measure_share_id(rank_state *r) {
  if (r->rank == 0) {
    HK_OR_RETURN((hk_status)ncclGetUniqueId(&r->s->id));
    atomic_store(&r->s->ready, 1);
  }
  while (!atomic_load(&r->s->ready)) {
    if (atomic_load(&r->s->failed)) return HK_ERR_REMOTE;
    usleep(1000);
  }
  return HK_OK;
}

static hk_status measure_join(rank_state *r) {
  if (r->setup->between)
    HK_OR_RETURN((hk_status)ncclGetUniqueId(&r->s->id));
  else
    HK_OR_RETURN(measure_share_id(r));
  HK_OR_RETURN((hk_status)ncclCommInitRank(&r->comm, r->setup->nranks, r->s->id, r->rank));
  if (r->setup->between) HK_OR_RETURN((hk_status)ncclCommSplit(r->comm, 0, r->rank, &r->control, NULL));
  if (r->rank == 0) r->s->machine = *hk_choose_machine(r->comm);
  size_t bytes = r->setup->to + 4096;
  r->in = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  r->out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (r->in == MAP_FAILED || r->out == MAP_FAILED) {
    return HK_FAIL_ERRNO("no memory for two buffers of %zu bytes a rank", bytes);
  }
  memset(r->in, 0, bytes); /* zeros: sums stay finite after any number of calls */
  memset(r->out, 0, bytes);
  return HK_OK;
}

/* Measures in this process. It ends soon, so the operating system frees the communicators' memory. */
static hk_status measure_between(shared *s, const hk_tune_setup *setup, void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  rank_state r = {.s = s, .setup = setup, .rank = setup->rank, .busy_since = hk_now_ns()};
  measure_settle_environment(setup);
  HK_TRY(measure_join(&r), out);
  HK_TRY(measure_all(&r, progress), out);
out:
  if (r.control) (void)(rc == HK_OK ? ncclCommDestroy(r.control) : ncclCommAbort(r.control));
  if (r.comm) (void)(rc == HK_OK ? ncclCommDestroy(r.comm) : ncclCommAbort(r.comm));
  return rc;
}

/* Ranks that outnumber cores run where the kernel places them, for an unknown time. Which ranks share a core decides
 * which algorithm is faster, by up to a half. So the ranks are placed here: in turn, in blocks, and to and fro. For 4
 * ranks on 2 cores these are all placements that exist. */
static int measure_core_of(int place, int rank, int nranks, int cores) {
  int turn = rank % (2 * cores);
  if (place == 0) return rank % cores;
  return place == 1 ? rank * cores / nranks : turn < cores ? turn : 2 * cores - 1 - turn;
}

/* If ranks do not outnumber the cores that they may use, the kernel places them well. */
static int measure_place_of(int nranks, int round) {
  cpu_set_t all;
  return sched_getaffinity(0, sizeof all, &all) == 0 && nranks > CPU_COUNT(&all) ? round % HK_TUNE_PLACES : -1;
}

static void measure_settle_place(const rank_state *r) {
  cpu_set_t all, one;
  int place = measure_place_of(r->setup->nranks, r->round), left, cpu = 0;
  if (place < 0 || sched_getaffinity(0, sizeof all, &all) != 0) return;
  left = measure_core_of(place, r->rank, r->setup->nranks, CPU_COUNT(&all));
  while (!CPU_ISSET(cpu, &all) || left-- > 0) cpu++;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  (void)sched_setaffinity(0, sizeof one, &one); /* refused: then the kernel decides */
}

/* In the child process; does not return. */
static void measure_run_rank(shared *s, const hk_tune_setup *setup, int round, int rank,
                             void (*progress)(hk_coll, size_t)) {
  rank_state r = {.s = s, .setup = setup, .rank = rank, .round = round, .busy_since = hk_now_ns()};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  measure_settle_environment(setup);
  hk_status rc = measure_join(&r);
  measure_settle_place(&r); /* after init, so that the communicator has seen all cores */
  if (rc == HK_OK) rc = measure_all(&r, progress);
  if (rc != HK_OK && atomic_exchange(&s->failed, 1) == 0)
    snprintf(s->error, sizeof s->error, "rank %d: %s", rank, hk_last_error());
  if (rc == HK_OK && r.comm) ncclCommDestroy(r.comm);
  _exit(rc != HK_OK);
}

static hk_status measure_wait_for(shared *s, const pid_t *children, int n) {
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

static hk_status measure_round(shared *s, const hk_tune_setup *setup, int round, void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  pid_t children[HK_TUNE_RANKS];
  int n = 0;
  atomic_store(&s->ready, 0);
  s->n = 0;
  fflush(NULL);
  for (; n < setup->nranks; n++) {
    children[n] = fork();
    if (children[n] == 0) measure_run_rank(s, setup, round, n, progress);
    if (children[n] > 0) continue;
    atomic_store(&s->failed, 1);
    rc = HK_FAIL_ERRNO("no process for rank %d of %d", n, setup->nranks);
    break;
  }
  hk_status ended = measure_wait_for(s, children, n);
  return rc == HK_OK ? ended : rc;
}

/* Computes the times of the cells [first, first + n), which have one collective and size. The rounds of each placement
 * are combined (polish.c); then the placements, which are equally likely, are averaged (as logarithms, because times
 * are compared by ratio). */
static void measure_settle_group(hk_tune_table *t, const double *us, const int *place, int first, int n) {
  double ln[HK_TUNE_ROWS * HK_ALGORITHM_LIMIT], one[HK_ALGORITHM_LIMIT], sum[HK_ALGORITHM_LIMIT] = {0};
  int places = 0;
  for (int p = 0; p < HK_TUNE_PLACES; p++) {
    int rows = 0;
    for (int round = 0; round < t->setup.rounds; round++) {
      if (place[round] != p) continue;
      for (int c = 0; c < n; c++) ln[rows * n + c] = log(us[(size_t)round * (size_t)t->n + (size_t)(first + c)]);
      rows++;
    }
    if (!rows) continue;
    hk_tune_polish(ln, rows, n, one);
    for (int c = 0; c < n; c++) sum[c] += one[c];
    places++;
  }
  for (int c = 0; c < n; c++) t->at[first + c].us = exp(sum[c] / places);
}

static void measure_settle_times(hk_tune_table *t, const double *us) {
  int place[HK_TUNE_ROWS] = {0};
  for (int round = 0; round < t->setup.rounds && !t->setup.between; round++)
    place[round] = measure_place_of(t->setup.nranks, round) < 0 ? 0 : measure_place_of(t->setup.nranks, round);
  for (int i = 0, n; i < t->n; i += n) {
    for (n = 1; i + n < t->n && t->at[i + n].coll == t->at[i].coll && t->at[i + n].bytes == t->at[i].bytes;) n++;
    measure_settle_group(t, us, place, i, n);
  }
}

/* All points of a setup that has no list of points; NULL if out of memory. */
static hk_tune_point *measure_points_of(const hk_tune_setup *s, int *n) {
  hk_tune_point *out = malloc(HK_COLL_COUNT * 64 * sizeof *out); /* a size has 64 bits, and at least doubles */
  *n = 0;
  for (int c = 0; out && c < HK_COLL_COUNT; c++)
    for (size_t bytes = s->from; (s->colls >> c & 1u) && bytes <= s->to; bytes *= (size_t)s->step)
      if (hk_coll_partition((hk_coll)c) != HK_PART_WHOLE || bytes >= (size_t)s->nranks)
        out[(*n)++] = (hk_tune_point){.coll = (hk_coll)c, .bytes = bytes, .algorithms = ~0u};
  return out;
}

/* The programs of ranks that were started host after host. */
static hk_status measure_make_outlines(hk_tune_table *out) {
  hk_status rc = HK_OK;
  const size_t n = (size_t)out->machine.team.nranks, hosts = (size_t)out->machine.team.nhosts;
  uint64_t *host = calloc(n, sizeof *host);
  out->machine.outlines = NULL; /* it was in the memory of another process */
  if (!host) return HK_FAIL_ERRNO("no memory for %zu ranks", n);
  for (size_t r = 0; r < n; r++) host[r] = r * hosts / n;
  if (hosts > 1) HK_TRY(hk_layout_new(&out->layout, (int)n, host, NULL, NULL, 1), out);
  rc = hk_outlines_new(&out->machine.outlines, (int)n, out->layout);
out:
  free(host);
  return rc;
}

/* Makes the table from the first round; every round has the same cells in the same order. */
static hk_status measure_make_table(hk_tune_table *out, const shared *s, int rounds, double **us) {
  out->machine = s->machine;
  out->at = malloc(((size_t)s->n + 1) * sizeof *out->at);
  *us = malloc(((size_t)s->n + 1) * (size_t)rounds * sizeof **us);
  if (!out->at || !*us) return HK_FAIL_ERRNO("no memory for %d results", s->n);
  out->n = s->n;
  memcpy(out->at, s->at, (size_t)s->n * sizeof *out->at);
  return measure_make_outlines(out);
}

static hk_status measure_rounds(hk_tune_table *out, shared *s, const hk_tune_setup *setup,
                                void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  double *us = NULL;
  for (int round = 0; round < setup->rounds; round++) {
    HK_TRY(setup->between ? measure_between(s, setup, progress) : measure_round(s, setup, round, progress), out);
    if (round == 0) HK_TRY(measure_make_table(out, s, setup->rounds, &us), out);
    for (int i = 0; i < out->n && i < s->n; i++) {
      us[(size_t)round * (size_t)out->n + (size_t)i] = s->at[i].us;
      out->at[i].rough = out->at[i].rough && s->at[i].rough;
    }
  }
  measure_settle_times(out, us);
out:
  free(us);
  return rc;
}

hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *setup, void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  hk_tune_setup what = *setup;
  hk_tune_point *points = NULL;
  *out = (hk_tune_table){.setup = *setup};
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) return HK_FAIL_ERRNO("no shared memory for %zu bytes of results", sizeof *s);
  if (!what.points) {
    points = measure_points_of(setup, &what.npoints);
    what.points = points;
    if (!points) rc = HK_FAIL_ERRNO("no memory for a list of sizes");
  }
  if (rc == HK_OK) rc = measure_rounds(out, s, &what, progress);
  free(points);
  munmap(s, sizeof *s);
  return rc;
}
