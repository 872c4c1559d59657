/* SPDX-License-Identifier: Apache-2.0 */
/* One thread and its ranks: communicators, buffers, registration, and the loop over all measurements. */
#include "worker.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "report.h"

/* Older libraries lack these. */
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister

void perf_worker_connect(perf_worker *w) {
  perf_job *job = w->job;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (job->o->cta_policy >= 0) config.CTAPolicy = job->o->cta_policy;
  const double begin = perf_now();
  NCCL(ncclGroupStart());
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    if (job->mem->use(r->device)) perf_fail(PERF_INTERNAL, "rank %d cannot use device %d", r->rank, r->device);
    NCCL(ncclCommInitRankConfig(&r->comm, job->nranks, job->id, r->rank, &config));
  }
  NCCL(ncclGroupEnd());
  w->init_seconds = perf_now() - begin;
}

/* ------------------------------------------------------------ buffers -- */

static void *worker_allocate(const perf_job *job, size_t bytes) {
  void *p = NULL;
  if (job->o->reg) {
    NCCL(ncclMemAlloc(&p, bytes));
    if (job->mem->zero(p, bytes)) perf_fail(PERF_INTERNAL, "cannot clear a buffer of %zu bytes", bytes);
    return p;
  }
  p = job->mem->alloc(bytes);
  if (p && !job->mem->direct && job->mem->zero(p, bytes)) p = NULL;
  if (!p) perf_fail(PERF_INTERNAL, "cannot allocate a buffer of %zu bytes", bytes);
  return p;
}

static void worker_release(const perf_job *job, void *p) {
  if (job->o->reg)
    NCCL(ncclMemFree(p));
  else
    job->mem->free(p);
}

/* Registers or deregisters a buffer. */
static void worker_registration(const perf_job *job, perf_rank *r, void *block, size_t bytes, void **handle, bool on) {
  if (job->o->reg == 2) {
    if (on) /* written at the group's end */
      NCCL(ncclCommWindowRegister(r->comm, block, bytes, (ncclWindow_t *)(void *)handle, NCCL_WIN_COLL_SYMMETRIC));
    else
      NCCL(ncclCommWindowDeregister(r->comm, *handle));
  } else if (on) {
    NCCL(ncclCommRegister(r->comm, block, bytes, handle));
  } else {
    NCCL(ncclCommDeregister(r->comm, *handle));
  }
}

static void worker_register_all(perf_worker *w, size_t bytes, bool on) {
  if (!w->job->o->reg) return;
  /* All ranks create windows together, so the windows of this thread's ranks are in one group. */
  if (on) NCCL(ncclGroupStart());
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    w->job->mem->use(r->device);
    worker_registration(w->job, r, r->send_block, bytes, &r->send_handle, on);
    worker_registration(w->job, r, r->recv_block, bytes, &r->recv_handle, on);
  }
  if (on) NCCL(ncclGroupEnd());
}

static size_t worker_block_bytes(const perf_job *job) {
  /* Room for -u with the widest type. */
  size_t bytes = job->max_bytes + 8 * (size_t)job->o->unalign;
  return (bytes + NCCL_WIN_REQUIRED_ALIGNMENT - 1) / NCCL_WIN_REQUIRED_ALIGNMENT * NCCL_WIN_REQUIRED_ALIGNMENT;
}

static void worker_make_buffers(perf_worker *w) {
  perf_job *job = w->job;
  int null_stream = job->o->stream_null < 0 ? job->mem->direct : job->o->stream_null;
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    job->mem->use(r->device);
    if (!null_stream && job->mem->stream_create(&r->stream))
      perf_fail(PERF_UNSUPPORTED, "rank %d: this library has no streams for %s memory; try -y 1", r->rank,
                job->mem->name);
    r->send_block = worker_allocate(job, worker_block_bytes(job));
    r->recv_block = worker_allocate(job, worker_block_bytes(job));
    if (job->o->rewrite) r->fence = worker_allocate(job, sizeof(float));
  }
  worker_register_all(w, worker_block_bytes(job), true);
}

void perf_worker_free(perf_worker *w) {
  worker_register_all(w, worker_block_bytes(w->job), false);
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    w->job->mem->use(r->device);
    NCCL(ncclCommDestroy(r->comm));
    if (r->stream) w->job->mem->stream_destroy(r->stream);
  }
  for (int i = 0; i < w->nranks; i++) {
    worker_release(w->job, w->ranks[i].send_block), worker_release(w->job, w->ranks[i].recv_block);
    if (w->ranks[i].fence) worker_release(w->job, w->ranks[i].fence);
  }
}

/* ------------------------------------------------------------ a table -- */

static size_t worker_next_size(const perf_options *o, size_t size) {
  if (o->step_factor <= 1) return size + o->step_bytes;
  return size ? size * o->step_factor : 1; /* a factor cannot increase 0 */
}

static void worker_set_size(perf_worker *w, size_t bytes) {
  w->job->o->coll->sizes(bytes / w->elem, w->elem, (size_t)w->job->nranks, &w->n);
  w->row_bytes = (w->n.send > w->n.recv ? w->n.send : w->n.recv) * w->elem;
  w->room_for = w->row_bytes ? w->job->max_bytes / w->row_bytes : 1;
}

static const char *worker_op_name(const perf_worker *w) {
  const char *none = w->job->o->coll->no_op;
  return none ? none : perf_op_names[w->op];
}

static void worker_progress(perf_worker *w, const char *what) {
  if (w->main) perf_report_progress(w->steps_done++, w->job->steps, what, w->row_bytes);
}

static void worker_make_mulsum(perf_worker *w, bool on) {
  if (!w->job->o->coll->has_op || w->op != PERF_OP_MULSUM) return;
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    uint64_t scalar = perf_type_small(w->type, r->rank % 2 ? 2 : 1);
    if (on)
      NCCL(ncclRedOpCreatePreMulSum(&r->mulsum, &scalar, w->type, ncclScalarHostImmediate, r->comm));
    else
      NCCL(ncclRedOpDestroy(r->mulsum, r->comm));
  }
}

static void worker_half(perf_worker *w, bool in_place) {
  if (w->job->o->places == (in_place ? PERF_PLACES_OUT : PERF_PLACES_IN)) {
    if (w->main) perf_report_half(NULL, in_place);
    return;
  }
  worker_progress(w, in_place ? "in place" : "out of place");
  perf_bench(w, in_place);
}

/* All sizes of one type, operator and root. */
static void worker_run_table(perf_worker *w, int type, int op, int root) {
  const perf_options *o = w->job->o;
  w->type = (ncclDataType_t)type, w->op = op, w->root = root;
  w->elem = perf_type_size(w->type);
  perf_team_barrier(&w->job->team, w->thread);
  for (int i = 0; i < w->nranks; i++) {
    perf_rank *r = &w->ranks[i];
    r->send = (char *)r->send_block + (size_t)o->unalign * w->elem;
    r->recv = (char *)r->recv_block + (size_t)o->unalign * w->elem;
  }
  worker_make_mulsum(w, true);
  for (size_t size = o->min_bytes; size <= w->job->max_bytes; size = size ? 2 * size : 1) {
    worker_set_size(w, size);
    if (w->main) perf_report_progress(w->steps_done, w->job->steps, "warm-up", w->row_bytes);
    perf_warm_up(w);
  }
  int cycle = 0;
  do {
    for (size_t size = o->min_bytes; size <= w->job->max_bytes; size = worker_next_size(o, size)) {
      worker_set_size(w, size);
      if (w->main) perf_report_row(w->row_bytes, w->n.param, perf_type_names[type], worker_op_name(w), root);
      worker_half(w, false);
      worker_half(w, true);
      if (w->main) perf_report_row_end();
    }
  } while (++cycle != o->cycles);
  worker_make_mulsum(w, false);
}

/* Calls `each` for every type, operator and root that the options ask for. */
static size_t worker_for_all(const perf_job *job, void (*each)(perf_worker *, int, int, int), perf_worker *w) {
  const perf_options *o = job->o;
  bool ops = o->coll->has_op || !o->coll->no_op;
  int type0 = o->type == PERF_ALL ? 0 : o->type, type1 = o->type == PERF_ALL ? ncclNumTypes - 1 : o->type;
  int op0 = !ops || o->op == PERF_ALL ? 0 : o->op, op1 = !ops ? 0 : o->op == PERF_ALL ? PERF_NUM_OPS - 1 : o->op;
  int root0 = !o->coll->has_root ? -1 : o->root == PERF_ALL ? 0 : o->root;
  int root1 = o->coll->has_root && o->root == PERF_ALL ? job->nranks - 1 : root0;
  size_t n = 0;
  for (int type = type0; type <= type1; type++)
    for (int op = op0; op <= op1; op++)
      for (int root = root0; root <= root1; root++, n++)
        if (each) each(w, type, op, root);
  return n;
}

size_t perf_count_steps(const perf_job *job) {
  const perf_options *o = job->o;
  size_t sizes = 0;
  for (size_t size = o->min_bytes; size <= job->max_bytes && sizes < 1 << 20; size = worker_next_size(o, size)) sizes++;
  return worker_for_all(job, NULL, NULL) * sizes * (o->places == PERF_PLACES_BOTH ? 2 : 1) * (size_t)o->cycles;
}

void perf_worker_run(perf_worker *w) {
  const perf_mem *mem = w->job->mem;
  int device = w->ranks[0].device;
  double before = (double)mem->used(device);
  worker_make_buffers(w);
  perf_team_barrier(&w->job->team, w->thread);
  double buffers = (double)mem->used(device);
  w->buffer_bytes = buffers - before;
  int n = w->job->nranks;
  if (w->job->o->coll->only_pow2 && (n & (n - 1))) {
    if (w->main) printf("nRanks %d is not a power of 2, skipping\n", n);
  } else {
    worker_for_all(w->job, worker_run_table, w);
  }
  w->run_bytes = (double)mem->used(device) - buffers;
}
