/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an MSCCL++ plan with names in place of data: in each round each thread block does one step, which is a chunk of
 * an operation. */
#include "mscclpp_run.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"

static uint64_t run_all(const hk_mscclpp_state *x) { return ~(uint64_t)0 >> (64 - x->f->nranks); }

static bool run_add(hk_mscclpp_state *x, int op, hk_trace_value *sum, const hk_trace_value *v) {
  const uint64_t both = sum->ranks & v->ranks;
  const int slices = x->f->slices;
  if (!hk_coll_reduces(x->f->coll))
    return hk_mscclpp_wrong(x, op, "adds, and %s only copies", hk_coll_name(x->f->coll));
  if (sum->chunk != v->chunk)
    return hk_mscclpp_wrong(x, op, "adds chunk %d of the message to chunk %d", v->chunk / slices, sum->chunk / slices);
  if (both)
    return hk_mscclpp_wrong(x, op, "adds the part of gpu %d of chunk %d, which the sum has already",
                            __builtin_ctzll(both), v->chunk / slices);
  sum->ranks |= v->ranks;
  return true;
}

/* True if the packets that the chunk's sources wait for are there. */
static bool run_packets_there(const hk_mscclpp_state *x, const hk_mscclpp_op *o, int chunk) {
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  for (int i = 0; i < o->nsrc; i++)
    if (b[i].waits && !hk_mscclpp_cell_at(x, b[i].rank, hk_mscclpp_place_of(x, &b[i], chunk))->data.ranks) return false;
  return true;
}

static bool run_keep(hk_mscclpp_state *x, int block, const hk_mscclpp_op *o, int chunk, const hk_trace_value *v) {
  hk_mscclpp_events *t = x->t;
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  const int n = o->nsrc + o->ndst;
  if (t->nplaces + n > HK_MSCCLPP_PLACES)
    return hk_mscclpp_wrong(x, (int)(o - x->f->ops),
                            "and the others read and write more than %d chunks, which is too many", HK_MSCCLPP_PLACES);
  if (!HK_RESERVE(t->events, t->events_capacity, (size_t)t->nevents + 1) ||
      !HK_RESERVE(t->places, t->places_capacity, (size_t)t->nplaces + (size_t)n))
    return hk_mscclpp_no_memory(x);
  t->events[t->nevents++] = (hk_mscclpp_event){.block = block,
                                               .round = x->round,
                                               .first = t->nplaces,
                                               .nsrc = o->nsrc,
                                               .ndst = o->ndst,
                                               .chunk = v->chunk,
                                               .final = o->nsrc > 1 && v->ranks == run_all(x)};
  for (int i = 0; i < n; i++)
    t->places[t->nplaces++] = (hk_mscclpp_place){b[i].rank, hk_mscclpp_place_of(x, &b[i], chunk)};
  return true;
}

/* One chunk of a MOVE. */
static bool run_move(hk_mscclpp_state *x, int block, int op, int chunk) {
  const hk_mscclpp_op *o = &x->f->ops[op];
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  uint16_t *known = hk_mscclpp_clock(x->known, x, block), *got = hk_mscclpp_clock(x->got, x, block);
  const uint16_t *clock = o->port ? got : known; /* a proxy goes on as soon as the thread does that has waited */
  hk_trace_value sum = {0, 0}, v = {0, 0};
  for (int i = 0; i < o->nsrc; i++) { /* who reads a packet knows what its writer knew */
    const hk_mscclpp_cell *c = hk_mscclpp_cell_at(x, b[i].rank, hk_mscclpp_place_of(x, &b[i], chunk));
    if (!b[i].waits || c->clock < 0) continue;
    if (c->again && !hk_mscclpp_ordered(x, clock, block, c->writer)) /* the wait may end with the packet before */
      return hk_mscclpp_unordered(x, op, false, &b[i], chunk, c->writer, true);
    hk_mscclpp_merge(x, known, hk_mscclpp_clock(x->snapshots, x, c->clock));
    hk_mscclpp_merge(x, got, hk_mscclpp_clock(x->snapshots, x, c->clock));
  }
  for (int i = 0; i < o->nsrc; i++) {
    if (!hk_mscclpp_access_read(x, op, clock, &b[i], chunk, &v)) return false;
    if (i == 0)
      sum = v;
    else if (!run_add(x, op, &sum, &v))
      return false;
  }
  for (int i = 0; i < o->ndst; i++)
    if (!hk_mscclpp_access_write(x, op, clock, &b[o->nsrc + i], chunk, &sum)) return false;
  return run_keep(x, block, o, chunk, &sum);
}

static bool run_post(hk_mscclpp_state *x, int block, int op) {
  const hk_mscclpp_op *o = &x->f->ops[op];
  /* A port channel keeps the order of its puts and signals. */
  const int clock = hk_mscclpp_snapshot(x, block, o->port ? hk_mscclpp_tick(x, op) : x->blocks[block].synced);
  for (int i = 0; i < o->nsrc && clock >= 0; i++) {
    hk_mscclpp_queue *q = &x->queues[x->f->signals[x->f->numbers[o->first + i]].other];
    if (!HK_RESERVE_NEXT(q->clocks, q->n)) return hk_mscclpp_no_memory(x);
    q->clocks[q->n++] = clock;
  }
  return clock >= 0;
}

/* The first signal that is not there; -1: all are. */
static int run_lacks(const hk_mscclpp_state *x, const hk_mscclpp_op *o) {
  for (int i = 0; i < o->nsrc; i++) {
    const hk_mscclpp_queue *q = &x->queues[x->f->numbers[o->first + i]];
    int needs = 1; /* a number may be named twice */
    for (int k = 0; k < i; k++) needs += x->f->numbers[o->first + k] == x->f->numbers[o->first + i];
    if (q->n - q->taken < needs) return x->f->numbers[o->first + i];
  }
  return -1;
}

static void run_take(hk_mscclpp_state *x, int block, const hk_mscclpp_op *o) {
  for (int i = 0; i < o->nsrc; i++) {
    hk_mscclpp_queue *q = &x->queues[x->f->numbers[o->first + i]];
    const int clock = q->clocks[q->taken++];
    if (clock >= 0) hk_mscclpp_merge(x, hk_mscclpp_clock(x->got, x, block), hk_mscclpp_clock(x->snapshots, x, clock));
  }
}

static void run_nop(hk_mscclpp_state *x, int block, int op) {
  hk_mscclpp_merge(x, hk_mscclpp_clock(x->known, x, block), hk_mscclpp_clock(x->got, x, block));
  x->blocks[block].synced = hk_mscclpp_tick(x, op);
}

/* Returns true when the barrier is passed. The last thread block that arrives passes it for all. */
static bool run_barrier(hk_mscclpp_state *x, int block, int op) {
  const hk_mscclpp_op *o = &x->f->ops[op];
  const int gpu = x->f->blocks[block].gpu;
  int *arrived = &x->arrived[gpu * HK_MSCCLPP_BLOCKS + o->barrier];
  const int first = x->f->gpus[gpu].first_block, end = x->f->gpus[gpu + 1].first_block;
  if (x->blocks[block].arrived) return false; /* it waits for the last one */
  run_nop(x, block, op);
  x->blocks[block].arrived = true;
  if (++*arrived < o->blocks) return false;
  uint16_t *all = hk_mscclpp_clock(x->got, x, block);
  for (int i = first; i < end; i++) {
    const int at = x->f->blocks[i].first + x->blocks[i].pc;
    if (!x->blocks[i].arrived || x->f->ops[at].barrier != o->barrier) continue;
    hk_mscclpp_merge(x, all, hk_mscclpp_clock(x->got, x, i));
    if (all[i] < hk_mscclpp_tick(x, at)) all[i] = hk_mscclpp_tick(x, at);
  }
  for (int i = first; i < end; i++) {
    const int at = x->f->blocks[i].first + x->blocks[i].pc;
    if (!x->blocks[i].arrived || x->f->ops[at].barrier != o->barrier) continue;
    hk_mscclpp_merge(x, hk_mscclpp_clock(x->got, x, i), all);
    hk_mscclpp_merge(x, hk_mscclpp_clock(x->known, x, i), all);
    x->blocks[i].arrived = false;
    if (i != block) x->blocks[i].pc++;
  }
  *arrived = 0;
  return true;
}

/* One step of a thread block. Returns false on an error; *moved: it did something. */
static bool run_step(hk_mscclpp_state *x, int block, bool *moved) {
  struct hk_mscclpp_progress *s = &x->blocks[block];
  const int op = x->f->blocks[block].first + s->pc;
  const hk_mscclpp_op *o = &x->f->ops[op];
  switch ((hk_mscclpp_kind)o->kind) {
    case HK_MSCCLPP_MOVE:
      if (!run_packets_there(x, o, s->done)) return true;
      if (!run_move(x, block, op, s->done)) return false;
      *moved = true;
      if (++s->done < x->f->buffers[o->first].size) return true;
      s->done = 0;
      break;
    case HK_MSCCLPP_NOP: run_nop(x, block, op); break;
    case HK_MSCCLPP_POST:
      if (!run_post(x, block, op)) return false;
      break;
    case HK_MSCCLPP_TAKE:
      if (run_lacks(x, o) >= 0) return true;
      run_take(x, block, o);
      break;
    case HK_MSCCLPP_BARRIER:
      if (!s->arrived) *moved = true;
      if (!run_barrier(x, block, op)) return true;
      break;
    case HK_MSCCLPP_FLUSH: break;
  }
  *moved = true;
  s->pc++;
  return true;
}

/* The source for whose packets a MOVE waits. */
static const hk_mscclpp_buffer *run_waits_for(const hk_mscclpp_state *x, const hk_mscclpp_op *o, int chunk) {
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  while (!b->waits || hk_mscclpp_cell_at(x, b->rank, hk_mscclpp_place_of(x, b, chunk))->data.ranks) b++;
  return b;
}

/* Says for what a thread block waits for ever. */
static bool run_stuck(hk_mscclpp_state *x, int block) {
  const int op = x->f->blocks[block].first + x->blocks[block].pc;
  const hk_mscclpp_op *o = &x->f->ops[op];
  char name[80];
  if (o->kind == HK_MSCCLPP_BARRIER)
    return hk_mscclpp_wrong(x, op, "waits for ever: %d of %d thread blocks come to barrier %d",
                            x->arrived[x->f->blocks[block].gpu * HK_MSCCLPP_BLOCKS + o->barrier], o->blocks,
                            o->barrier);
  if (o->kind == HK_MSCCLPP_TAKE) {
    const int lacks = run_lacks(x, o);
    const hk_mscclpp_signal *s = &x->f->signals[lacks];
    if (s->type == HK_MSCCLPP_SEMAPHORE)
      return hk_mscclpp_wrong(x, op, "waits for ever: semaphore %d of gpu %d is released %d times", s->number, s->gpu,
                              x->queues[lacks].n - s->start);
    return hk_mscclpp_wrong(
        x, op, "waits for ever: gpu %d sends %d signals on its %s channel %d, and this is the wait for one more",
        s->peer, x->queues[lacks].n, s->type == HK_MSCCLPP_PORT ? "port" : "memory", x->f->signals[s->other].number);
  }
  const hk_mscclpp_buffer *b = run_waits_for(x, o, x->blocks[block].done);
  return hk_mscclpp_wrong(x, op, "waits for ever for %s, which no operation writes before",
                          hk_mscclpp_place_name(x, b, x->blocks[block].done, name, sizeof name));
}

/* True if the operation could still give what thread block `block` waits for. */
static bool run_gives(const hk_mscclpp_state *x, const hk_mscclpp_op *o, int block) {
  const struct hk_mscclpp_progress *s = &x->blocks[block];
  const hk_mscclpp_op *waits = &x->f->ops[x->f->blocks[block].first + s->pc];
  if (waits->kind == HK_MSCCLPP_TAKE) {
    const int lacks = run_lacks(x, waits);
    for (int i = 0; o->kind == HK_MSCCLPP_POST && i < o->nsrc; i++)
      if (x->f->signals[x->f->numbers[o->first + i]].other == lacks) return true;
    return false;
  }
  if (waits->kind != HK_MSCCLPP_MOVE) return true;
  const hk_mscclpp_buffer *b = run_waits_for(x, waits, s->done);
  for (int i = 0; o->kind == HK_MSCCLPP_MOVE && i < o->ndst; i++) {
    const hk_mscclpp_buffer *d = &x->f->buffers[o->first + o->nsrc + i];
    if (d->space == b->space && d->rank == b->rank && b->at + s->done >= d->at && b->at + s->done < d->at + d->size)
      return true;
  }
  return false;
}

/* Names a thread block that waits for what no other can still give, if there is one. */
static bool run_all_stuck(hk_mscclpp_state *x) {
  enum { LOOKED_AT = 64 }; /* so that it does not take long */
  int found = -1, looked_at = 0;
  for (int i = 0; i < x->f->nblocks && looked_at < LOOKED_AT; i++) {
    bool can = false;
    if (x->blocks[i].pc == x->f->blocks[i].n) continue;
    if (found < 0) found = i;
    looked_at++;
    for (int k = 0; k < x->f->nblocks && !can; k++)
      for (int at = x->blocks[k].pc; at < x->f->blocks[k].n && !can; at++)
        can = run_gives(x, &x->f->ops[x->f->blocks[k].first + at], i);
    if (!can) return run_stuck(x, i);
  }
  return run_stuck(x, found);
}

static bool run_blocks(hk_mscclpp_state *x) {
  for (bool left = true, moved = true; left; x->round++) {
    if (!moved) return run_all_stuck(x);
    left = moved = false;
    for (int i = 0; i < x->f->nblocks; i++) {
      if (x->blocks[i].pc == x->f->blocks[i].n) continue;
      left = true;
      if (!run_step(x, i, &moved)) return false;
    }
  }
  return true;
}

/* ---- the end ---- */

/* True if a thread block of the gpu ends after the operation. */
static bool run_over(const hk_mscclpp_state *x, int gpu, int op) {
  for (int b = x->f->gpus[gpu].first_block; b < x->f->gpus[gpu + 1].first_block; b++)
    if (hk_mscclpp_ordered(x, hk_mscclpp_clock(x->got, x, b), b, op)) return true;
  return false;
}

static bool run_check_output(hk_mscclpp_state *x, int gpu, int out) {
  const hk_mscclpp_file *f = x->f;
  const hk_trace_value is = hk_mscclpp_cell_at(x, gpu, hk_mscclpp_begin(f, HK_MSCCLPP_OUT) + out)->data;
  const bool split = hk_coll_partition(f->coll) == HK_PART_SPLIT;
  const int chunk = out / f->slices;
  int from, part;
  hk_coll_source(f->coll, gpu, f->nranks, 0, split ? out : out / f->parts, &from, &part);
  if (!split) part = part * f->parts + out % f->parts;
  const bool sum = hk_coll_reduces(f->coll);
  const hk_trace_value should = {sum ? part : from * f->nin + part, sum ? run_all(x) : (uint64_t)1 << from};
  if (is.chunk == should.chunk && is.ranks == should.ranks) return true;
  x->wrong = true;
  if (!is.ranks)
    (void)HK_FAIL(HK_ERR_ARGUMENT, "%s: gpu %d: chunk %d of its output holds nothing when all thread blocks have ended",
                  f->name, gpu, chunk);
  else if (sum && is.chunk == should.chunk)
    (void)HK_FAIL(HK_ERR_ARGUMENT, "%s: gpu %d: chunk %d of its output lacks the part of gpu %d", f->name, gpu, chunk,
                  __builtin_ctzll(should.ranks & ~is.ranks));
  else
    (void)HK_FAIL(HK_ERR_ARGUMENT, "%s: gpu %d: chunk %d of its output holds chunk %d of gpu %d", f->name, gpu, chunk,
                  is.chunk % f->nin / f->slices, __builtin_ctzll(is.ranks));
  return false;
}

/* Nothing of a gpu's input and output is in use when it ends. */
static bool run_check_end(hk_mscclpp_state *x, int gpu) {
  const int out = hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT);
  for (int place = 0; place < out + x->f->nout; place++) {
    const hk_mscclpp_cell *c = hk_mscclpp_cell_at(x, gpu, place);
    const hk_mscclpp_buffer b = {.space = place < out ? HK_MSCCLPP_IN : HK_MSCCLPP_OUT,
                                 .rank = (int16_t)gpu,
                                 .at = place < out ? place : place - out};
    char name[80];
    if (c->writer >= 0 && !run_over(x, gpu, c->writer))
      return hk_mscclpp_wrong(
          x, c->writer,
          "writes %s, which may end before: let a signal follow, for which a thread block of gpu %d waits",
          hk_mscclpp_place_name(x, &b, 0, name, sizeof name), gpu);
    for (int i = c->readers; i >= 0; i = x->readers[i].next)
      if (!run_over(x, gpu, x->readers[i].op))
        return hk_mscclpp_wrong(
            x, x->readers[i].op,
            "reads %s, which may end before: let a signal follow, for which a thread block of gpu %d waits",
            hk_mscclpp_place_name(x, &b, 0, name, sizeof name), gpu);
  }
  return true;
}

static bool run_begin(hk_mscclpp_state *x) {
  const hk_mscclpp_file *f = x->f;
  const size_t places = (size_t)hk_mscclpp_places(f), n = (size_t)f->nblocks + 1;
  const bool sum = hk_coll_reduces(f->coll);
  x->cells = calloc((size_t)f->nranks * places, sizeof *x->cells);
  x->known = calloc(n * n, sizeof *x->known);
  x->got = calloc(n * n, sizeof *x->got);
  x->queues = calloc((size_t)f->nsignals + 1, sizeof *x->queues);
  x->blocks = calloc(n, sizeof *x->blocks);
  x->arrived = calloc((size_t)f->nranks * HK_MSCCLPP_BLOCKS, sizeof *x->arrived);
  if (!x->cells || !x->known || !x->got || !x->queues || !x->blocks || !x->arrived) return hk_mscclpp_no_memory(x);
  for (size_t i = 0; i < (size_t)f->nranks * places; i++)
    x->cells[i] = (hk_mscclpp_cell){.writer = -1, .readers = -1, .clock = -1};
  for (int r = 0; r < f->nranks; r++)
    for (int in = 0; in < f->nin; in++) {
      const hk_mscclpp_buffer b = {.space = HK_MSCCLPP_IN, .rank = (int16_t)r, .at = in};
      hk_mscclpp_cell_at(x, r, hk_mscclpp_place_of(x, &b, 0))->data =
          (hk_trace_value){sum ? in : r * f->nin + in, (uint64_t)1 << r};
    }
  for (int i = 0; i < f->nblocks; i++) x->blocks[i].synced = 1;
  for (int i = 0; i < f->nsignals; i++)
    for (int k = 0; k < f->signals[i].start; k++) {
      if (!HK_RESERVE_NEXT(x->queues[i].clocks, x->queues[i].n)) return hk_mscclpp_no_memory(x);
      x->queues[i].clocks[x->queues[i].n++] = -1;
    }
  return true;
}

hk_status hk_mscclpp_run(const hk_mscclpp_file *f, hk_mscclpp_events *t) {
  hk_mscclpp_state x = {.f = f, .t = t};
  t->f = f;
  bool good = run_begin(&x) && run_blocks(&x);
  for (int r = 0; r < f->nranks && good; r++)
    for (int out = 0; out < f->nout && good; out++) good = run_check_output(&x, r, out);
  for (int r = 0; r < f->nranks && good; r++) good = run_check_end(&x, r);
  for (int i = 0; x.queues && i < f->nsignals; i++) free(x.queues[i].clocks);
  free(x.queues);
  free(x.cells);
  free(x.known);
  free(x.got);
  free(x.snapshots);
  free(x.readers);
  free(x.blocks);
  free(x.arrived);
  if (x.no_memory) return HK_FAIL_ERRNO("no memory to run %s", f->name);
  return good ? HK_OK : HK_ERR_ARGUMENT;
}
