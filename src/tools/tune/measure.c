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
#include "../../decide/outlines.h"
#include "../../decide/select.h" /* HK_ALGORITHM_LIMIT */
#include "../../program/layout.h"
#include "../../run/choose.h"
#include "../../transport/link.h" /* HK_MCAST_SLOTS */
#include "tune.h"

enum {
  CELLS = 1 << 14,
  FIRST_BYTES = 8,
  TURNS = 3,       /* batches of each algorithm in a round */
  BATCH_US = 1000, /* about how long a batch is */
  LEAST_CALLS = 3, /* calls follow one another, as in programs: lanes run ahead into the next call */
  MOST_CALLS = 2000,
  LONG_US = 30000, /* a call this long is much longer than disturbances: one is enough for a batch */
  SLOW = 4         /* an algorithm that takes this multiple of the best time is not measured again */
};

/* Written by rank 0, except the error. */
typedef struct shared {
  _Atomic(int) failed;
  char error[300]; /* of the first rank that failed */
  hk_machine machine;
  int n;
  hk_tune_cell at[CELLS];
} shared;

typedef struct rank_state {
  shared *s;
  const hk_tune_setup *setup;
  int rank;
  ncclComm_t comm;
  ncclComm_t control; /* for all communication that is not measured */
  char *in, *out;
} rank_state;

/* *most: the largest of the ranks' values. Also the barrier. */
static hk_status measure_largest(rank_state *r, double mine, double *most) {
  return (hk_status)ncclAllReduce(&mine, most, 1, ncclFloat64, ncclMax, r->control, NULL);
}

static hk_status measure_call(rank_state *r, hk_coll coll, size_t bytes) {
  size_t n = (size_t)r->setup->nranks, parts = hk_coll_partition(coll) == HK_PART_WHOLE ? n : 1;
  ncclDataType_t type = bytes / parts % sizeof(float) ? ncclUint8 : ncclFloat32;
  size_t count = bytes / parts / (type == ncclFloat32 ? sizeof(float) : 1);
  return hk_coll_call(coll, r->in, r->out, count, type, ncclSum, 0, r->comm, NULL);
}

/* *us: time of a call on the slowest rank; equal on all ranks. */
static hk_status measure_batch(rank_state *r, hk_coll coll, size_t bytes, int calls, double *us) {
  HK_OR_RETURN(measure_largest(r, 0, us));
  uint64_t begin = hk_now_ns();
  for (int i = 0; i < calls; i++) HK_OR_RETURN(measure_call(r, coll, bytes));
  return measure_largest(r, (double)(hk_now_ns() - begin) / 1e3 / calls, us);
}

typedef struct trial {
  int algorithm, calls;
  double us; /* the least */
} trial;

/* Makes the plan and touches all slots, whose first use pays for their pages. Shows the approximate time. */
static hk_status measure_warm(rank_state *r, hk_coll coll, size_t bytes, trial *t) {
  enum { SMALL = 64 << 10, MIDDLE = 1 << 20, WARMINGS = 2 };
  hk_choose_only(r->comm, (int)coll, 1u << t->algorithm);
  HK_OR_RETURN(measure_batch(r, coll, bytes, 1, &t->us));
  for (int i = 0; i < WARMINGS && t->us < 3 * LONG_US; i++)
    HK_OR_RETURN(measure_batch(r, coll, bytes, bytes <= SMALL ? HK_MCAST_SLOTS : bytes <= MIDDLE ? 8 : 1, &t->us));
  const double calls = BATCH_US / t->us;
  t->calls = calls > MOST_CALLS ? MOST_CALLS : calls > LEAST_CALLS ? (int)calls : t->us < LONG_US ? LEAST_CALLS : 1;
  return HK_OK;
}

/* Batches by turns, so that disturbances affect all algorithms alike. */
static hk_status measure_turns(rank_state *r, hk_coll coll, size_t bytes, trial *t, int n, double best) {
  for (int turn = 0; turn < TURNS; turn++)
    for (int k = 0; k < n; k++) {
      double us;
      if (t[k].us > SLOW * best || (turn && t[k].us > LONG_US)) continue;
      hk_choose_only(r->comm, (int)coll, 1u << t[k].algorithm);
      if (t[k].us < LONG_US) HK_OR_RETURN(measure_call(r, coll, bytes));
      HK_OR_RETURN(measure_batch(r, coll, bytes, t[k].calls, &us));
      if (us < t[k].us) t[k].us = us;
    }
  return HK_OK;
}

static hk_status measure_size(rank_state *r, hk_coll coll, size_t bytes) {
  trial t[HK_ALGORITHM_LIMIT];
  int n = 0;
  double best = INFINITY;
  for (int i = 0; hk_algorithms[i]; i++) {
    if (!hk_algorithm_supports(hk_algorithms[i], &hk_choose_machine(r->comm)->team, coll)) continue;
    t[n] = (trial){.algorithm = i};
    HK_OR_RETURN(measure_warm(r, coll, bytes, &t[n]));
    if (t[n].us < best) best = t[n].us;
    n++;
  }
  HK_OR_RETURN(measure_turns(r, coll, bytes, t, n, best));
  for (int k = 0; k < n && r->rank == 0 && r->s->n < CELLS; k++)
    r->s->at[r->s->n++] =
        (hk_tune_cell){.coll = (uint8_t)coll, .algorithm = (uint8_t)t[k].algorithm, .bytes = bytes, .us = t[k].us};
  return HK_OK;
}

static hk_status measure_all(rank_state *r, void (*progress)(hk_coll, size_t)) {
  for (int c = 0; c < HK_COLL_COUNT; c++)
    for (size_t bytes = FIRST_BYTES; (r->setup->colls >> c & 1u) && bytes <= r->setup->to;
         bytes *= (size_t)r->setup->step) {
      if (hk_coll_partition((hk_coll)c) == HK_PART_WHOLE && bytes < (size_t)r->setup->nranks) continue;
      if (r->rank == 0) progress((hk_coll)c, bytes);
      HK_OR_RETURN(measure_size(r, (hk_coll)c, bytes));
    }
  return HK_OK;
}

/* Removes the user's settings for jobs, which must not affect the measurement. */
static void measure_set_environment(const hk_tune_setup *s) {
  static const char *const gone[] = {"NCCL_ALGO",          "NCCL_PROTO",         "HOCKET_TUNING_FILE",
                                     "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "HOCKET_BATCH_INVARIANT",
                                     "NCCL_COMM_ID"};
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

/* Rank 0 sends the id through the pipe once for each other rank; the kernel keeps these short messages whole. */
static hk_status measure_share_id(const rank_state *r, const int ids[2], ncclUniqueId *id) {
  bool good = true;
  if (r->rank == 0 || r->setup->between) HK_OR_RETURN((hk_status)ncclGetUniqueId(id));
  if (r->setup->between) return HK_OK;
  for (int p = 1; p < r->setup->nranks && r->rank == 0 && good; p++) good = write(ids[1], id, sizeof *id) == sizeof *id;
  close(ids[1]); /* so that the others notice the end of rank 0 */
  if (r->rank) good = read(ids[0], id, sizeof *id) == sizeof *id;
  close(ids[0]);
  return good ? HK_OK : HK_FAIL(HK_ERR_REMOTE, "rank 0 ended before it gave its id");
}

static size_t measure_room(const rank_state *r) { return r->setup->to + 4096; } /* of each buffer */

static hk_status measure_join(rank_state *r, const int ids[2]) {
  ncclUniqueId id;
  const size_t bytes = measure_room(r);
  HK_OR_RETURN(measure_share_id(r, ids, &id));
  HK_OR_RETURN((hk_status)ncclCommInitRank(&r->comm, r->setup->nranks, id, r->rank));
  HK_OR_RETURN((hk_status)ncclCommSplit(r->comm, 0, r->rank, &r->control, NULL));
  if (r->rank == 0) r->s->machine = *hk_choose_machine(r->comm);
  void *both = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (both == MAP_FAILED) return HK_FAIL_ERRNO("no memory for two buffers of %zu bytes a rank", bytes);
  r->in = both;
  r->out = r->in + bytes;
  memset(r->in, 0, 2 * bytes); /* zeros: sums stay finite after any number of calls */
  return HK_OK;
}

/* Ranks that outnumber cores run where the kernel places them, for an unknown time. Which ranks share a core decides
 * which algorithm is faster, by up to a half. So the ranks are placed here: in turn, in blocks, and to and fro. For 4
 * ranks on 2 cores these are all placements that exist. */
static void measure_place(const rank_state *r, int round) {
  cpu_set_t all, one;
  int cpu = 0, nranks = r->setup->nranks;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || nranks <= CPU_COUNT(&all))
    return; /* the kernel places them well */
  const int cores = CPU_COUNT(&all), turn = r->rank % (2 * cores);
  int left = round % 3 == 0   ? r->rank % cores
             : round % 3 == 1 ? r->rank * cores / nranks
             : turn < cores   ? turn
                              : 2 * cores - 1 - turn;
  while (!CPU_ISSET(cpu, &all) || left-- > 0) cpu++;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  (void)sched_setaffinity(0, sizeof one, &one); /* refused: then the kernel decides */
}

/* One rank's part of a round. */
static hk_status measure_rank(rank_state *r, int round, const int ids[2], void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  measure_set_environment(r->setup);
  HK_TRY(measure_join(r, ids), out);
  if (!r->setup->between) measure_place(r, round); /* after init, so that the communicator has seen all cores */
  HK_TRY(measure_all(r, progress), out);
out:
  if (r->control) (void)(rc == HK_OK ? ncclCommDestroy(r->control) : ncclCommAbort(r->control));
  if (r->comm) (void)(rc == HK_OK ? ncclCommDestroy(r->comm) : ncclCommAbort(r->comm));
  if (r->in) munmap(r->in, 2 * measure_room(r));
  return rc;
}

/* The first rank that fails ends the others, which would wait for it. */
static hk_status measure_wait_for(const shared *s, const pid_t *children, int n, hk_status rc) {
  for (int left = n; left > 0;) {
    int state = 0;
    if (rc != HK_OK)
      for (int i = 0; i < n; i++) kill(children[i], SIGKILL);
    const pid_t pid = waitpid(-1, &state, 0);
    if (pid < 0 && errno == EINTR) continue;
    left--;
    if ((pid < 0 || !WIFEXITED(state) || WEXITSTATUS(state) != 0) && rc == HK_OK)
      rc = HK_FAIL(HK_ERR_SYSTEM, "measuring failed: %s", s->error[0] ? s->error : "a rank's process was ended");
  }
  return rc;
}

static hk_status measure_round(shared *s, const hk_tune_setup *setup, int round, void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  pid_t children[HK_TUNE_RANKS];
  int n = 0, ids[2];
  if (pipe2(ids, O_CLOEXEC)) return HK_FAIL_ERRNO("no pipe for %d ranks", setup->nranks);
  fflush(NULL);
  for (; n < setup->nranks && rc == HK_OK; n++) {
    rank_state r = {.s = s, .setup = setup, .rank = n};
    children[n] = fork();
    if (children[n] < 0) {
      rc = HK_FAIL_ERRNO("no process for rank %d of %d", n, setup->nranks);
      break;
    }
    if (children[n]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rc = measure_rank(&r, round, ids, progress);
    if (rc != HK_OK && atomic_exchange(&s->failed, 1) == 0)
      snprintf(s->error, sizeof s->error, "rank %d: %s", n, hk_last_error());
    _exit(rc != HK_OK);
  }
  close(ids[0]), close(ids[1]);
  return measure_wait_for(s, children, n, rc);
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

/* Adds a round's times to the logarithms of the table's; every round has the same cells in the same order. */
static hk_status measure_add(hk_tune_table *out, const shared *s, int round) {
  if (round == 0) {
    out->machine = s->machine;
    out->at = calloc((size_t)s->n + 1, sizeof *out->at);
    if (!out->at) return HK_FAIL_ERRNO("no memory for %d results", s->n);
    HK_OR_RETURN(measure_make_outlines(out));
    out->n = s->n;
    memcpy(out->at, s->at, (size_t)s->n * sizeof *out->at);
    for (int i = 0; i < out->n; i++) out->at[i].us = 0;
  }
  for (int i = 0; i < out->n && i < s->n; i++) out->at[i].us += log(s->at[i].us) / out->setup.rounds;
  return HK_OK;
}

hk_status hk_tune_measure(hk_tune_table *out, const hk_tune_setup *setup, void (*progress)(hk_coll, size_t)) {
  hk_status rc = HK_OK;
  *out = (hk_tune_table){.setup = *setup};
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) return HK_FAIL_ERRNO("no shared memory for %zu bytes of results", sizeof *s);
  for (int round = 0; round < setup->rounds; round++) {
    rank_state r = {.s = s, .setup = setup, .rank = setup->rank};
    s->n = 0;
    HK_TRY(setup->between ? measure_rank(&r, round, NULL, progress) : measure_round(s, setup, round, progress), out);
    HK_TRY(measure_add(out, s, round), out);
  }
  for (int i = 0; i < out->n; i++) out->at[i].us = exp(out->at[i].us);
out:
  munmap(s, sizeof *s);
  return rc;
}
