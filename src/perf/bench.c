/* SPDX-License-Identifier: Apache-2.0 */
/* The measurement of one size, as nccl-tests does it: one operation, a barrier, the timed iterations, the average over
 * ranks, then the iterations that are checked. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "report.h"
#include "worker.h"

/* Iterations use the operations' places in the buffers in turn. With one place there is no division, which would take
 * longer than some libraries' calls. */
static size_t bench_shift_of(const perf_worker *w, long iteration) {
  return w->room_for > 1 ? w->row_bytes * ((size_t)iteration % w->room_for) : 0;
}

static ncclRedOp_t bench_operator_of(const perf_worker *w, const perf_rank *r) {
  return w->op == PERF_OP_MULSUM ? r->mulsum : (ncclRedOp_t)w->op;
}

/* Waits until the streams of all ranks are empty, and checks the communicators meanwhile. */
static void bench_synchronize(perf_worker *w) {
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    if (!r->stream && w->job->mem->direct) continue; /* the call itself waited */
    int done;
    while ((done = w->job->mem->stream_done(r->stream)) == 0) {
      ncclResult_t state = ncclSuccess;
      NCCL(ncclCommGetAsyncError(r->comm, &state));
      if (state != ncclSuccess && state != ncclInProgress) {
        ncclCommAbort(r->comm);
        perf_check_nccl(state, "an operation");
      }
      sched_yield();
    }
    if (done < 0) perf_fail(PERF_INTERNAL, "rank %d: waiting for the stream failed", r->rank);
  }
  atomic_store_explicit(&w->waiting_since, 0, memory_order_relaxed);
}

/* One operation on every rank of the worker. */
static void bench_start(perf_worker *w, bool in_place, long iteration) {
  size_t shift = bench_shift_of(w, iteration);
  perf_job *job = w->job;
  const perf_coll *coll = job->o->coll;
  if (job->o->timeout) atomic_store_explicit(&w->waiting_since, perf_now_ms(), memory_order_relaxed);
  int steps = coll->steps ? coll->steps(job->nranks) : 1;
  for (int step = 0; step < steps; step++) {
    if (w->nranks > 1) NCCL(ncclGroupStart());
    for (int i = 0; i < w->nranks; i++) {
      perf_rank *r = &w->ranks[i];
      size_t send_at = in_place ? w->n.send_in_place * w->elem * (size_t)r->rank : 0;
      size_t recv_at = in_place ? w->n.recv_in_place * w->elem * (size_t)r->rank : 0;
      perf_call c = {.send = (in_place ? r->recv : r->send) + shift + send_at,
                     .recv = r->recv + shift + recv_at,
                     .count = w->n.param,
                     .type = w->type,
                     .op = coll->has_op ? bench_operator_of(w, r) : ncclSum,
                     .root = w->root,
                     .step = step,
                     .rank = r->rank,
                     .nranks = job->nranks,
                     .window = job->o->reg == 2 ? r->recv_handle : NULL,
                     .window_at = (size_t)(r->recv - (char *)r->recv_block) + shift + recv_at,
                     .comm = r->comm,
                     .stream = r->stream,
                     .ramp = &r->ramp};
      perf_check_nccl(coll->run(&c), coll->name);
    }
    if (w->nranks > 1) NCCL(ncclGroupEnd());
  }
  if (job->o->blocking == 1 || job->o->blocking == 2) bench_synchronize(w);
  if (job->o->blocking == 1) perf_team_barrier(&job->team, w->thread);
}

void perf_warm_up(perf_worker *w) {
  for (int i = 0; i < w->job->o->warmup; i++) bench_start(w, false, i);
  bench_synchronize(w);
}

/* ------------------------------------------------------------ data -- */

static perf_data bench_data_of(const perf_worker *w, const perf_rank *r, bool in_place) {
  return (perf_data){.mem = w->job->mem,
                     .type = w->type,
                     .op = w->op,
                     .rank = r->rank,
                     .nranks = w->job->nranks,
                     .root = w->root,
                     .seed = w->seed,
                     .in_place = in_place,
                     .n = w->n};
}

static void bench_fill(perf_worker *w, bool in_place) {
  w->seed++;
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    perf_data d = bench_data_of(w, r, in_place);
    w->job->mem->use(r->device);
    if (w->job->mem->zero(r->recv, w->n.recv * w->elem)) perf_fail(PERF_INTERNAL, "cannot clear the result's buffer");
    d.base = in_place ? r->recv + w->n.send_in_place * w->elem * (size_t)r->rank : r->send;
    w->job->o->coll->input(&d);
  }
}

static uint64_t bench_count_wrong(perf_worker *w, bool in_place) {
  uint64_t wrong = 0;
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    perf_data d = bench_data_of(w, r, in_place);
    w->job->mem->use(r->device);
    d.compare = true;
    d.base = r->recv + (in_place ? w->n.recv_in_place * w->elem * (size_t)r->rank : 0);
    w->job->o->coll->expect(&d);
    wrong += d.wrong;
  }
  return wrong;
}

/* Iterations on new data, with every element compared; stops at the first wrong one. If in place has no meaning, the
 * operation runs all the same. */
static uint64_t bench_check(perf_worker *w, bool in_place, bool compared) {
  uint64_t wrong = 0;
  for (int c = 0; c < w->job->o->check && !wrong; c++) {
    bench_fill(w, in_place);
    /* no rank writes before all are ready for it */
    if (w->job->o->coll->windows) perf_team_barrier(&w->job->team, w->thread);
    bench_start(w, in_place, 0);
    bench_synchronize(w);
    uint64_t mine = compared ? bench_count_wrong(w, in_place) : 0;
    w->errors += mine != 0;
    wrong = (uint64_t)perf_team_reduce(&w->job->team, w->thread, (double)mine, TEAM_SUM);
  }
  return wrong;
}

/* ------------------------------------------------------------ timing -- */

typedef struct times {
  double elapsed, calls; /* seconds of all iterations, with and without the wait at the end */
  double *each;          /* microseconds an operation, one an iteration; NULL without -I */
} times;

/* Writes the inputs, as a program does between its calls: unchanged ones would stay in the readers' caches. Then a sum
 * of one float makes all ranks begin together, as MPI_Barrier does in bench/mpi_perf.c. */
static void bench_rewrite(perf_worker *w, bool in_place) {
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    w->job->mem->use(r->device);
    if (w->job->mem->zero(in_place ? r->recv : r->send, w->n.send * w->elem))
      perf_fail(PERF_INTERNAL, "cannot write a buffer of %zu bytes", w->n.send * w->elem);
  }
  NCCL(ncclGroupStart());
  for (int i = 0; i < w->nranks; i++) {
    const perf_rank *r = &w->ranks[i];
    NCCL(ncclAllReduce(r->fence, r->fence, 1, ncclFloat32, ncclSum, r->comm, r->stream));
  }
  NCCL(ncclGroupEnd());
  bench_synchronize(w);
}

static void bench_timed_iterations(perf_worker *w, bool in_place, times *t) {
  const perf_options *o = w->job->o;
  const bool apart = o->blocking == 3 || o->rewrite; /* iterations have a time of their own */
  double begin = perf_now(), alone = 0;              /* alone: without barriers and writes between iterations */
  for (int i = 0; i < o->iters; i++) {
    if (o->rewrite) bench_rewrite(w, in_place);
    double from = apart || t->each ? perf_now() : 0;
    if (o->agg > 1) NCCL(ncclGroupStart());
    for (int a = 0; a < o->agg; a++) bench_start(w, in_place, (long)i * o->agg + a);
    if (o->agg > 1) NCCL(ncclGroupEnd());
    if (apart || t->each) {
      bench_synchronize(w);
      double spent = perf_now() - from;
      alone += spent;
      if (t->each) t->each[i] = spent * 1e6 / o->agg;
    }
    if (o->blocking == 3) perf_team_barrier(&w->job->team, w->thread);
  }
  t->calls = apart ? alone : perf_now() - begin;
  bench_synchronize(w);
  t->elapsed = apart ? alone : perf_now() - begin;
}

/* The same iterations, captured once and launched as often; no part of the capture is timed. */
static void bench_captured_iterations(perf_worker *w, bool in_place, times *t) {
  const perf_options *o = w->job->o;
  const perf_mem *mem = w->job->mem;
  void **graph = calloc((size_t)w->nranks, sizeof *graph);
  if (!graph) perf_fail(PERF_INTERNAL, "out of memory");
  for (int i = 0; i < w->nranks; i++)
    if (mem->use(w->ranks[i].device) || mem->capture_begin(w->ranks[i].stream))
      perf_fail(PERF_INTERNAL, "rank %d: cannot capture a graph", w->ranks[i].rank);
  for (int i = 0; i < o->iters; i++) {
    if (o->agg > 1) NCCL(ncclGroupStart());
    for (int a = 0; a < o->agg; a++) bench_start(w, in_place, (long)i * o->agg + a);
    if (o->agg > 1) NCCL(ncclGroupEnd());
  }
  for (int i = 0; i < w->nranks; i++)
    if (mem->use(w->ranks[i].device) || !(graph[i] = mem->capture_end(w->ranks[i].stream)))
      perf_fail(PERF_INTERNAL, "rank %d: the captured operations make no graph", w->ranks[i].rank);
  perf_team_barrier(&w->job->team, w->thread);
  double begin = perf_now();
  for (int k = 0; k < o->graph; k++)
    for (int i = 0; i < w->nranks; i++)
      if (mem->use(w->ranks[i].device) || mem->graph_launch(graph[i], w->ranks[i].stream))
        perf_fail(PERF_INTERNAL, "rank %d: cannot launch a graph", w->ranks[i].rank);
  t->calls = (perf_now() - begin) / o->graph;
  bench_synchronize(w);
  t->elapsed = (perf_now() - begin) / o->graph;
  for (int i = 0; i < w->nranks; i++) mem->graph_free(graph[i]);
  free(graph);
}

static int bench_by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The nearest-rank percentile. */
static double bench_percentile(const double *sorted, int n, int percent) {
  int i = (n * percent + 99) / 100 - 1;
  return sorted[i < 0 ? 0 : i < n ? i : n - 1];
}

static void bench_summarize(perf_iter_stats *s) {
  int n = s->count - s->skipped;
  double *sorted = malloc(sizeof *sorted * (size_t)n), sum = 0, squares = 0;
  if (!sorted) perf_fail(PERF_INTERNAL, "out of memory");
  memcpy(sorted, s->times + s->skipped, sizeof *sorted * (size_t)n);
  qsort(sorted, (size_t)n, sizeof *sorted, bench_by_value);
  for (int i = 0; i < n; i++) sum += sorted[i];
  s->min = sorted[0], s->max = sorted[n - 1], s->average = sum / n, s->p50 = sorted[n / 2];
  s->p95 = bench_percentile(sorted, n, 95), s->p99 = bench_percentile(sorted, n, 99);
  for (int i = 0; i < n; i++) squares += (sorted[i] - s->average) * (sorted[i] - s->average);
  s->deviation = sqrt(squares / n);
  free(sorted);
}

/* The slowest rank of each iteration, by process and over all. The arrays live until free_stats. */
static void bench_gather_stats(perf_worker *w, double *each, perf_iter_stats *s) {
  int n = w->job->o->iters, procs = w->job->oob_procs;
  double *all = malloc(sizeof *all * (size_t)n * (size_t)(procs + 1)), *most = all + (size_t)n * (size_t)procs;
  if (!all) perf_fail(PERF_INTERNAL, "out of memory");
  perf_team_gather(&w->job->team, w->thread, each, n, all);
  for (int i = 0; i < n; i++) {
    most[i] = all[i];
    for (int p = 1; p < procs; p++) most[i] = fmax(most[i], all[(size_t)p * (size_t)n + (size_t)i]);
  }
  *s = (perf_iter_stats){
      .times = most, .by_process = all, .count = n, .skipped = w->job->o->per_iter_skip, .processes = procs};
  bench_summarize(s);
}

void perf_bench(perf_worker *w, bool in_place) {
  const perf_options *o = w->job->o;
  perf_team *team = &w->job->team;
  if (o->check) bench_fill(w, in_place);
  bench_start(w, in_place, 0);
  bench_synchronize(w);
  times t = {0};
  if (o->per_iter && !(t.each = calloc((size_t)o->iters, sizeof *t.each))) perf_fail(PERF_INTERNAL, "out of memory");
  perf_team_barrier(team, w->thread);
  if (o->graph)
    bench_captured_iterations(w, in_place, &t);
  else
    bench_timed_iterations(w, in_place, &t);

  double operations = (double)o->iters * o->agg;
  double seconds = perf_team_reduce(team, w->thread, t.elapsed / operations, o->average);
  double bytes = (double)w->n.param * (double)w->elem * o->coll->alg_factor(w->job->nranks);
  perf_result r = {.usec = (o->cputime ? t.calls / operations : seconds) * 1e6,
                   .alg_bw = bytes / 1e9 / seconds,
                   .checked = o->check && !(in_place && o->coll->unchecked_in_place),
                   .has_stats = o->per_iter};
  r.bus_bw = r.alg_bw * o->coll->bus_factor(w->job->nranks);
  perf_team_barrier(team, w->thread);
  r.wrong = bench_check(w, in_place, r.checked);
  if (t.each) bench_gather_stats(w, t.each, &r.stats);
  if (w->main) perf_report_half(&r, in_place);
  if (t.each) free((void *)r.stats.by_process), free(t.each);
  w->bandwidth += r.bus_bw;
  w->measured++;
}
