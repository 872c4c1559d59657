/* SPDX-License-Identifier: Apache-2.0 */
/* The operation, with the fault in it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "rank.h"

enum { LATE_MS = 5000, WINDOW_MS = 15000, HOLD_MS = 500, AFTER_MS = 300, LIMIT_MS = 20000 };

static const bool asynchronous[] = {
#define ASYNC 1
#define CALL 0
#define SETUP 1
#define FAULT(name, kind, outcome, seconds, what) kind,
#include "faults.def"
};
static const bool repeated[] = {
#define OPERATION(name, repeats, what) repeats,
#include "operations.def"
};

static bool past(int64_t since, int ms) { return now_ns() > since + (int64_t)(ms * 1e6 * slack()); }

ncclResult_t init_comm(run *w, const char *name, int rank, int n, ncclComm_t *c) {
  ncclUniqueId id;
  memset(&id, 0, sizeof id); /* NCCL_COMM_ID takes its place */
  bool given = getenv("NCCL_COMM_ID") != NULL;
  if (!given && (w->rank == 0 || rank == 0)) {
    ncclResult_t rc = ncclGetUniqueId(&id);
    if (rc != ncclSuccess) return rc;
    id_publish(w, name, &id);
  } else if (!given) {
    id_fetch(w, name, &id);
  }
  return ncclCommInitRank(c, n, id, rank);
}

/* The init that the fault happens in. */
static ncclResult_t join(run *w) {
  bool wrong = is_victim(w);
  int n = wrong && w->fault == FAULT_nranks ? w->n + 1 : w->n;
  int rank = wrong && w->fault == FAULT_duplicate ? 0 : w->rank;
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  bool given = getenv("NCCL_COMM_ID") != NULL;
  if (!given && (w->rank == 0)) {
    if (ncclGetUniqueId(&id) != ncclSuccess) return ncclSystemError;
    id_publish(w, "fault", &id);
  } else if (!given) {
    id_fetch(w, "fault", &id);
  }
  call unused;
  if (wrong && w->fault != FAULT_nranks && w->fault != FAULT_duplicate) inject_spoil(w, &unused);
  ncclResult_t rc = ncclCommInitRank(&w->comm, n, id, rank);
  if (rc == ncclSuccess && wrong && w->fault == FAULT_extra) {
    ncclComm_t again = NULL;
    rc = ncclCommInitRank(&again, n, id, rank);
    if (rc == ncclSuccess) return ncclInternalError; /* no rank is left to make it with */
    op_failed(w, NULL, rc, "ncclCommInitRank, again");
  }
  return rc;
}

/* Ranks look for an asynchronous error until the fault is over. */
static ncclResult_t watch(run *w) {
  int64_t begin = now_ns(), over = 0;
  while (!past(begin, LIMIT_MS)) {
    ncclResult_t seen = ncclSuccess, rc = ncclCommGetAsyncError(w->comm, &seen);
    if (rc != ncclSuccess || seen != ncclSuccess) return rc != ncclSuccess ? rc : seen;
    if (!over && (atomic_load(&w->board->over) || !asynchronous[w->fault])) over = now_ns();
    if (over && past(over, 2000)) return ncclSuccess;
    pause_ms(5);
  }
  return ncclSuccess;
}

static ncclResult_t step(run *w, const call *k, int repetition) {
  const char *where = "the operation";
  ncclResult_t rc;
  w->called = now_ns();
  if (w->op == OP_init) {
    rc = join(w);
  } else if (w->op == OP_destroy) {
    ncclComm_t c = w->comm;
    w->comm = NULL;
    rc = ncclCommDestroy(c);
    if (rc == ncclSuccess && is_victim(w) && w->fault == FAULT_extra) {
      rc = ncclCommDestroy(c);
      where = "the second ncclCommDestroy";
    }
  } else if (w->op == OP_idle && !(is_victim(w) && w->fault == FAULT_extra)) {
    rc = watch(w);
    where = "ncclCommGetAsyncError";
  } else {
    rc = op_run(w, w->comm, k, repetition);
  }
  if (rc != ncclSuccess) op_failed(w, w->comm, rc, where);
  return rc;
}

/* May this rank begin the repetition?  Rank 0 decides which is the last, and no rank is ahead of it: without a fault
 * all make the same number.  Once a rank has failed there is nothing to agree on. */
static bool turn(run *w, int repetition, int64_t begin) {
  board *b = w->board;
  bool mortal = w->fault == FAULT_kill || w->fault == FAULT_kill_root || w->fault == FAULT_cancel ||
                w->fault == FAULT_cut || w->fault == FAULT_reset || w->fault == FAULT_control;
  static int64_t over;
  if (w->rank == 0) {
    if (!over && atomic_load(&b->over)) over = now_ns();
    bool enough = (over && past(over, mortal ? 10000 : AFTER_MS)) || past(begin, LIMIT_MS);
    if (enough) atomic_store(&b->last, repetition + 1);
    atomic_store(&b->started, repetition + 1);
    return !enough;
  }
  while (!past(begin, LIMIT_MS + 5000)) {
    if (atomic_load(&b->last) && repetition + 1 >= atomic_load(&b->last)) return false;
    if (atomic_load(&b->failed) || atomic_load(&b->gone[0])) return !(w->op == OP_shrink && w->rank == RANKS - 1);
    if (atomic_load(&b->started) > repetition) return true;
    pause_ms(0);
    sched_yield();
  }
  return false;
}

static void during(run *w, bool repeats) {
  int64_t begin = now_ns();
  bool held = false;
  for (int i = 0; repeats ? turn(w, i, begin) : i < 1; i++) {
    while (!repeats && w->op != OP_idle && w->rank == RANKS - 1 && !atomic_load(&w->board->hold)) pause_ms(1);
    if (w->rank == RANKS - 1 && !held && atomic_load(&w->board->hold) && w->op != OP_large && w->op != OP_idle) {
      pause_ms(HOLD_MS);
      held = true;
    }
    call k = op_call(w, i);
    if (step(w, &k, i) != ncclSuccess) return;
    pthread_testcancel(); /* a call need not block, and the library does not end in the middle of one */
  }
}

/* The victim's part where it makes no call, or another one; false: it goes on as all do. */
static bool instead(run *w) {
  uint32_t others = (1u << w->n) - 1 - (1u << w->victim);
  if (w->op == OP_shrink) others &= (1u << (w->n - 1)) - 1;
  switch (w->fault) {
    case FAULT_missing:
      for (int64_t begin = now_ns(); !past(begin, LIMIT_MS); pause_ms(5))
        if ((atomic_load(&w->board->failed) & others) == others || w->op == OP_destroy) break;
      if (w->op == OP_destroy) pause_ms(3000);
      w->code = NO_CODE;
      return true;
    case FAULT_leave:
    case FAULT_abort:
      w->code = NO_CODE;
      w->fault == FAULT_leave ? ncclCommDestroy(w->comm) : ncclCommAbort(w->comm);
      w->comm = NULL;
      return true;
    case FAULT_skip: return true;
    default: return false;
  }
}

/* Which repetition has the call that the fault is about: an odd one reduces instead of broadcasting. */
static int repetition_of(const run *w) {
  return w->op == OP_rooted && (w->fault == FAULT_operator || w->fault == FAULT_unmapped);
}

static void at_call(run *w) {
  int i = repetition_of(w);
  call k = op_call(w, i);
  if (is_victim(w)) {
    if (w->fault == FAULT_late) pause_ms(LATE_MS);
    if (w->fault == FAULT_window) pause_ms(WINDOW_MS);
    atomic_store(&w->board->struck, now_ns());
    if (instead(w)) return;
    if (w->op != OP_init) inject_spoil(w, &k);
    if (w->fault == FAULT_extra && w->op == OP_idle) pause_ms(100);
    if (step(w, &k, i) == ncclSuccess && w->fault == FAULT_extra && w->op < OP_idle && w->op != OP_init) step(w, &k, i);
  } else {
    step(w, &k, i);
  }
}

static bool follows(const run *w) {
  bool extra_idle = w->fault == FAULT_extra && (w->op == OP_idle || w->op == OP_init);
  return w->comm && w->code == ncclSuccess && w->op != OP_destroy && !extra_idle;
}

/* All ranks are after their last call, and none has failed: the first that finds this decides it for all. */
static bool all_is_quiet(run *w) {
  uint32_t all = (1u << w->n) - 1, ended = atomic_load(&w->board->ended), none = 0;
  for (int r = 0; r < w->n; r++) ended |= (uint32_t)(atomic_load(&w->board->gone[r]) != 0) << r;
  if (ended != all) return false;
  return atomic_compare_exchange_strong(&w->board->failed, &none, QUIET) || none & QUIET;
}

/* Has another rank failed after this one's last call? Then this rank hears of it. What fails when some ranks may have
 * stopped to listen is no rank's business any more. */
static void listen(run *w) {
  atomic_fetch_or(&w->board->ended, 1u << w->rank);
  for (int64_t begin = now_ns(); w->comm && w->code == ncclSuccess && !past(begin, 2000); pause_ms(2)) {
    ncclResult_t seen = ncclSuccess;
    if (ncclCommGetAsyncError(w->comm, &seen) == ncclSuccess && seen != ncclSuccess &&
        !(atomic_fetch_or(&w->board->failed, 1u << w->rank) & QUIET))
      op_failed(w, w->comm, seen, "later");
    if (all_is_quiet(w)) return;
  }
}

void perform(run *w) {
  pthread_t thread;
  bool started = asynchronous[w->fault] && is_victim(w);
  if (started && pthread_create(&thread, NULL, inject_thread, w)) exit(2);
  if (asynchronous[w->fault])
    during(w, repeated[w->op]);
  else
    at_call(w);
  if (follows(w)) w->called = now_ns();
  ncclResult_t rc = follows(w) ? op_next(w, w->comm) : ncclSuccess;
  if (rc != ncclSuccess) op_failed(w, w->comm, rc, "the next call");
  if (!w->ended) w->ended = now_ns();
  listen(w);
  if (started && w->fault != FAULT_cancel) pthread_join(thread, NULL);
  if (started && w->fault == FAULT_cancel) pthread_detach(thread);
}
