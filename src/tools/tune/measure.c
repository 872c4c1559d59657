/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes of this host, or of several hosts, that run every algorithm by turns. */
#include <errno.h>
#include <fcntl.h> /* O_CLOEXEC */
#include <math.h>
#include <nccl.h>
#include <sched.h> /* sched_setaffinity */
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
#include "../../decide/filter.h" /* HK_ALGORITHM_LIMIT */
#include "../../decide/outlines.h"
#include "../../program/layout.h"
#include "../../run/selection.h"
#include "tune.h"

enum {
  CELLS = 1 << 14,
  TURNS = 3,       /* batches of each algorithm in a round */
  WARMINGS = 2,    /* batches before them */
  BATCH_US = 1000, /* about how long a batch is */
  LEAST_CALLS = 3, /* calls follow one another, as in programs: lanes run ahead into the next call */
  MOST_CALLS = 2000,
  LONG_US = 30000, /* a call this long is much longer than most disturbances: one is a batch, in two turns */
  SLOW = 4         /* an algorithm that takes this multiple of the best time is not measured again */
};

/* Written by rank 0, except the error. */
typedef struct shared {
  _Atomic(int) failed;
  char error[300]; /* of the first rank that failed */
  hk_machine machine;
  int n;                  /* cells of this round so far; every round has the same ones in the same order */
  hk_tune_cell at[CELLS]; /* `us`: the mean logarithm of the rounds' times so far */
} shared;

typedef struct rank_state {
  shared *s;
  const hk_tune_setup *setup;
  int rank, round;
  ncclComm_t comm, control; /* control: for all communication that is not measured */
  char *in, *out;
} rank_state;

/* *most: the largest of the ranks' values. Also the barrier. */
static hk_status measure_largest(rank_state *r, double mine, double *most) {
  return (hk_status)ncclAllReduce(&mine, most, 1, ncclFloat64, ncclMax, r->control, NULL);
}

/* *us: time of a call on the slowest rank; equal on all ranks. */
static hk_status measure_batch(rank_state *r, hk_coll coll, size_t bytes, int algorithm, int calls, double *us) {
  const size_t each = bytes / (hk_coll_partition(coll) == HK_PART_WHOLE ? (size_t)r->setup->nranks : 1);
  const bool floats = each % sizeof(float) == 0;
  hk_selection_only(r->comm, (int)coll, 1u << algorithm);
  HK_OR_RETURN(measure_largest(r, 0, us));
  const uint64_t begin = hk_now_ns();
  for (int i = 0; i < calls; i++)
    HK_OR_RETURN(hk_coll_call(coll, r->in, r->out, floats ? each / sizeof(float) : each,
                              floats ? ncclFloat32 : ncclUint8, ncclSum, 0, r->comm, NULL));
  return measure_largest(r, (double)(hk_now_ns() - begin) / 1e3 / calls, us);
}

/* First batches make the plans and touch all slots, whose first use pays for their pages, and show the approximate
 * times. Others follow by turns, so that disturbances affect all algorithms alike. */
static hk_status measure_size(rank_state *r, hk_coll coll, size_t bytes) {
  struct {
    int algorithm, calls;
    double us; /* the least */
  } t[HK_ALGORITHM_LIMIT];
  const int slots = bytes <= 64 << 10 ? HK_MCAST_SLOTS : bytes <= 1 << 20 ? 8 : 1;
  int n = 0;
  double best = INFINITY, us = 0;
  for (int i = 0; hk_algorithms[i]; i++, us = 0) {
    if (!hk_algorithm_supports(hk_algorithms[i], &hk_selection_machine(r->comm)->team, coll)) continue;
    for (int k = 0; k <= WARMINGS && us < 3 * LONG_US; k++)
      HK_OR_RETURN(measure_batch(r, coll, bytes, i, k ? slots : 1, &us));
    t[n].algorithm = i, t[n].us = us;
    t[n++].calls = us > LONG_US ? 1 : (int)fmax(LEAST_CALLS, fmin(BATCH_US / us, MOST_CALLS));
    best = fmin(best, us);
  }
  for (int turn = 0; turn < TURNS; turn++)
    for (int k = 0; k < n; k++) {
      if (t[k].us > SLOW * best || (turn > 1 && t[k].us > LONG_US)) continue;
      if (t[k].us < LONG_US) HK_OR_RETURN(measure_batch(r, coll, bytes, t[k].algorithm, 1, &us));
      HK_OR_RETURN(measure_batch(r, coll, bytes, t[k].algorithm, t[k].calls, &us));
      t[k].us = fmin(t[k].us, us);
    }
  for (int k = 0; k < n && r->rank == 0 && r->s->n < CELLS; k++) {
    hk_tune_cell *c = &r->s->at[r->s->n++];
    c->coll = (uint8_t)coll, c->algorithm = (uint8_t)t[k].algorithm, c->bytes = bytes;
    c->us += log(t[k].us) / r->setup->rounds;
  }
  return HK_OK;
}

/* Removes the user's settings for jobs, which must not affect the measurement. */
static void measure_set_environment(const hk_tune_setup *s) {
  static const char *const gone[] = {
      "NCCL_ALGO",          "NCCL_PROTO",       "HOCKET_TUNING_FILE",     "NCCL_MIN_NCHANNELS",
      "NCCL_MAX_NCHANNELS", "HOCKET_QUANTISED", "HOCKET_BATCH_INVARIANT", "NCCL_COMM_ID"};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(gone); i++) unsetenv(gone[i]);
  setenv("HOCKET_TUNE_FILE", "none", 1);
  setenv("NCCL_TUNER_PLUGIN", "none", 1);
  if (s->between) {
    setenv("NCCL_COMM_ID", s->between, 1);
  } else {
    unsetenv("NCCL_HOSTID");
    setenv("NCCL_SHM_DISABLE", s->tcp ? "1" : "0", 1);
    setenv("NCCL_P2P_DISABLE", s->tcp ? "1" : "0", 1);
  }
  hk_param_reload();
}

/* Ranks that outnumber cores run where the kernel places them, for an unknown time. Which ranks share a core decides
 * which algorithm is faster, by up to a half. So the ranks are placed here: in turn, in blocks, and to and fro. For 4
 * ranks on 2 cores these are all placements that exist. */
static void measure_place(const rank_state *r) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || r->setup->nranks <= CPU_COUNT(&all)) return;
  const int cores = CPU_COUNT(&all), turn = r->rank % (2 * cores);
  const int places[] = {turn % cores, r->rank * cores / r->setup->nranks, turn < cores ? turn : 2 * cores - 1 - turn};
  int cpu = 0;
  for (int left = places[r->round % 3]; !CPU_ISSET(cpu, &all) || left-- > 0;) cpu++;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  (void)sched_setaffinity(0, sizeof one, &one); /* refused: then the kernel decides */
}

/* One rank's part of a round. Rank 0 makes the id, and sends it through a pipe if the ranks are processes of this
 * host. */
static hk_status measure_rank(rank_state *r, ncclUniqueId id, int pipe) {
  hk_status rc = HK_OK;
  const size_t bytes = r->setup->to + 4096; /* of each buffer */
  measure_set_environment(r->setup);
  if (r->rank == 0 || r->setup->between) HK_TRY((hk_status)ncclGetUniqueId(&id), out);
  if (r->rank == 0 && pipe >= 0 && write(pipe, &id, sizeof id) != sizeof id)
    HK_GIVE_UP(HK_FAIL_ERRNO("the id cannot be sent to the other ranks"), out);
  HK_TRY((hk_status)ncclCommInitRank(&r->comm, r->setup->nranks, id, r->rank), out);
  HK_TRY((hk_status)ncclCommSplit(r->comm, 0, r->rank, &r->control, NULL), out);
  if (r->rank == 0) r->s->machine = *hk_selection_machine(r->comm);
  r->in = malloc(2 * bytes);
  if (!r->in) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for two buffers of %zu bytes a rank", bytes), out);
  r->out = r->in + bytes;
  memset(r->in, 0, 2 * bytes);              /* zeros: sums stay finite after any number of calls */
  if (!r->setup->between) measure_place(r); /* after init, so that the communicator has seen all cores */
  for (int c = 0; c < HK_COLL_COUNT; c++)
    for (size_t n = 8; (r->setup->colls >> c & 1u) && n <= r->setup->to; n *= (size_t)r->setup->step)
      if (hk_coll_partition((hk_coll)c) != HK_PART_WHOLE || n >= (size_t)r->setup->nranks)
        HK_TRY(measure_size(r, (hk_coll)c, n), out);
out:
  if (r->control) (void)(rc == HK_OK ? ncclCommDestroy(r->control) : ncclCommAbort(r->control));
  if (r->comm) (void)(rc == HK_OK ? ncclCommDestroy(r->comm) : ncclCommAbort(r->comm));
  free(r->in);
  return rc;
}

/* The first rank that fails ends the others, which would wait for it. */
static hk_status measure_wait_for(const shared *s, const pid_t *children, int n, hk_status rc) {
  for (int left = n; left > 0;) {
    int state = 0;
    for (int i = 0; rc != HK_OK && i < n; i++) kill(children[i], SIGKILL);
    const pid_t pid = waitpid(-1, &state, 0);
    if (pid < 0 && errno == EINTR) continue;
    left--;
    if ((pid < 0 || !WIFEXITED(state) || WEXITSTATUS(state) != 0) && rc == HK_OK)
      rc = HK_FAIL(HK_ERR_SYSTEM, "measuring failed: %s", s->error[0] ? s->error : "a rank's process was ended");
  }
  return rc;
}

static hk_status measure_processes(rank_state r) {
  hk_status rc = HK_OK;
  pid_t children[HK_TUNE_RANKS];
  ncclUniqueId id = {{0}};
  int ids[2];
  if (pipe2(ids, O_CLOEXEC)) return HK_FAIL_ERRNO("no pipe for %d ranks", r.setup->nranks);
  fflush(NULL);
  for (bool begun = true; begun && r.rank < r.setup->nranks; r.rank++) {
    const pid_t child = children[r.rank] = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      rc = measure_rank(&r, id, ids[1]);
      if (rc != HK_OK && atomic_exchange(&r.s->failed, 1) == 0)
        snprintf(r.s->error, sizeof r.s->error, "rank %d: %s", r.rank, hk_last_error());
      _exit(rc != HK_OK);
    }
    if (child < 0) {
      rc = HK_FAIL_ERRNO("no process for rank %d of %d", r.rank, r.setup->nranks);
      break;
    }
    if (r.rank == 0) close(ids[1]); /* so that the read ends with rank 0 */
    if (r.rank == 0) begun = read(ids[0], &id, sizeof id) == sizeof id;
  }
  close(ids[0]);
  return measure_wait_for(r.s, children, r.rank, rc);
}

hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *setup) {
  hk_status rc = HK_OK;
  *out = (hk_tune_table){.setup = *setup};
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) return HK_FAIL_ERRNO("no shared memory for %zu bytes of results", sizeof *s);
  for (int round = 0; round < setup->rounds; round++) {
    rank_state r = {.s = s, .setup = setup, .rank = setup->rank, .round = round};
    s->n = 0;
    HK_TRY(setup->between ? measure_rank(&r, (ncclUniqueId){{0}}, -1) : measure_processes(r), out);
  }
  if (setup->rank) goto out;
  out->at = calloc((size_t)s->n + 1, sizeof *out->at);
  if (!out->at) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for %d results", s->n), out);
  memcpy(out->at, s->at, (size_t)s->n * sizeof *out->at);
  for (; out->n < s->n; out->n++) out->at[out->n].us = exp(s->at[out->n].us);
  out->machine = s->machine; /* its outlines were in the memory of another process */
  out->machine.outlines = NULL;
  HK_TRY(hk_layout_even(&out->layout, s->machine.team.nranks, s->machine.team.nhosts), out);
  rc = hk_outlines_new(&out->machine.outlines, s->machine.team.nranks, out->layout, hk_machine_held_slots(&s->machine));
out:
  munmap(s, sizeof *s);
  return rc;
}
