/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an MSCCL++ plan with names in place of data: in each round each thread block does one step, which is a chunk of
 * an operation. Clocks show what signals order, so an access that nothing orders is found, whatever the schedule was:
 * clock[b][a] is the last operation of thread block a that is over when thread block b goes on. */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "mscclpp.h"

/* A chunk of memory. The numbers of operations are of the file's list, or -1. */
typedef struct run_cell {
  hk_trace_value data;
  int writer, readers; /* the operation that wrote it; since then: the first of the list of readers */
  int clock;           /* packets: the clock of their writer, which a reader gets */
  bool used, again;    /* again: it was written more than once */
} run_cell;

typedef struct run_reader {
  int op, next;
} run_reader;

/* Clocks of signals that are sent and not yet taken; -1: of a semaphore's start. */
typedef struct run_queue {
  int *clocks, n, taken;
} run_queue;

typedef struct run_state {
  const hk_mscclpp_file *f;
  hk_mscclpp_events *t;
  run_cell *cells;       /* by rank and place */
  uint16_t *known, *got; /* by block: its clock; the same with what a wait has given and no nop has passed on */
  uint16_t *snapshots;
  int nsnapshots;
  size_t snapshots_room;
  run_reader *readers;
  int nreaders;
  run_queue *queues; /* by signal */
  struct run_block {
    int pc, done;    /* the next operation; its chunks that are done */
    uint16_t synced; /* the last operation before the last nop */
    bool arrived;    /* at a barrier */
  } * blocks;
  int *arrived; /* by gpu and barrier: thread blocks */
  int round;
  bool no_memory, wrong;
} run_state;

static int run_block_of(const run_state *x, int op) { /* the thread block that has this operation */
  int low = 0, high = x->f->nblocks;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (x->f->blocks[middle].first <= op)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* The number of an operation in the clocks; 1 is the beginning of its thread block. */
static uint16_t run_tick(const run_state *x, int op) {
  return (uint16_t)(op - x->f->blocks[run_block_of(x, op)].first + 2);
}

static const char *run_describe(const run_state *x, int op, char *text, size_t room) {
  const hk_mscclpp_block *b = &x->f->blocks[run_block_of(x, op)];
  snprintf(text, room, "gpu %d, threadblock %d, op %d (%s)", b->gpu, b->id, x->f->ops[op].number,
           hk_mscclpp_name(&x->f->ops[op]));
  return text;
}

__attribute__((format(printf, 3, 4), cold)) static bool run_wrong(run_state *x, int op, const char *format, ...) {
  char text[400], who[80];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (!x->wrong) (void)HK_FAIL(HK_ERR_ARGUMENT, "%s: %s %s", x->f->name, run_describe(x, op, who, sizeof who), text);
  x->wrong = true;
  return false;
}

static bool run_no_memory(run_state *x) {
  x->no_memory = true;
  return false;
}

/* ---- places ---- */

int hk_mscclpp_begin(const hk_mscclpp_file *f, hk_mscclpp_space s) {
  const int begins[] = {0, f->nin, f->nin + f->nout, f->nin + f->nout + f->scratch};
  return begins[s];
}
int hk_mscclpp_places(const hk_mscclpp_file *f) { return f->nin + f->nout + 2 * f->scratch; }

int hk_mscclpp_alias(const hk_mscclpp_file *f, int rank, int in) {
  if (hk_coll_partition(f->coll) == HK_PART_SPLIT) return in;
  if (f->coll == HK_ALLTOALL) return f->in_place ? in : -1; /* NCCL has no such calls */
  const int message = hk_coll_alias(f->coll, rank, f->nranks, 0, in / f->parts);
  return message < 0 ? message : message * f->parts + in % f->parts;
}

/* In place, an input chunk is the output chunk at its address. */
static int run_place(const run_state *x, const hk_mscclpp_buffer *b, int chunk) {
  const int at = b->at + chunk;
  const int out = b->space == HK_MSCCLPP_IN && x->f->in_place ? hk_mscclpp_alias(x->f, b->rank, at) : -1;
  if (out >= 0) return hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT) + out;
  return hk_mscclpp_begin(x->f, (hk_mscclpp_space)b->space) + at;
}

static run_cell *run_cell_at(const run_state *x, int rank, int place) {
  return &x->cells[(size_t)rank * (size_t)hk_mscclpp_places(x->f) + (size_t)place];
}

/* "chunk 3 of the input of gpu 1", as the file counts chunks. */
static const char *run_name(const run_state *x, const hk_mscclpp_buffer *b, int chunk, char *text, size_t room) {
  static const char *const names[] = {"input", "output", "scratch memory", "scratch memory's packets"};
  snprintf(text, room, "chunk %d of the %s of gpu %d", (b->at + chunk) / x->f->slices, names[b->space], b->rank);
  return text;
}

/* ---- clocks ---- */

static uint16_t *run_clock(uint16_t *clocks, const run_state *x, int block) {
  return clocks + (size_t)block * (size_t)x->f->nblocks;
}
static void run_merge(const run_state *x, uint16_t *into, const uint16_t *from) {
  for (int i = 0; i < x->f->nblocks; i++)
    if (from[i] > into[i]) into[i] = from[i];
}

/* Keeps the clock that a signal of this thread block carries: with its operations up to `own`. -1: no memory. */
static int run_snapshot(run_state *x, int block, uint16_t own) {
  const size_t n = (size_t)x->f->nblocks;
  if (((size_t)x->nsnapshots + 1) * n > HK_MSCCLPP_CLOCKS) {
    run_wrong(x, x->f->blocks[block].first, "and others: the plan has too many signals and thread blocks to be read");
    return -1;
  }
  if (!HK_RESERVE(x->snapshots, x->snapshots_room, ((size_t)x->nsnapshots + 1) * n)) {
    x->no_memory = true;
    return -1;
  }
  uint16_t *s = run_clock(x->snapshots, x, x->nsnapshots);
  memcpy(s, run_clock(x->got, x, block), n * sizeof *s);
  s[block] = own;
  return x->nsnapshots++;
}

/* True if operation `before` is over when the thread block's threads, or one that has waited, go on. */
static bool run_ordered(const run_state *x, const uint16_t *clock, int block, int before) {
  const int other = run_block_of(x, before);
  return other == block || clock[other] >= run_tick(x, before);
}

/* True if a signal shows that the gpu has begun, so that its memory may be used. */
static bool run_has_begun(const run_state *x, const uint16_t *clock, int gpu) {
  for (int b = x->f->gpus[gpu].first_block; b < x->f->gpus[gpu + 1].first_block; b++)
    if (clock[b]) return true;
  return false;
}

/* ---- accesses ---- */

static bool run_unordered(run_state *x, int op, bool writes, const hk_mscclpp_buffer *b, int chunk, int other,
                          bool other_writes) {
  char name[80], who[80];
  const int block = run_block_of(x, op);
  const bool got = run_ordered(x, run_clock(x->got, x, block), block, other);
  return run_wrong(
      x, op, "%s %s, which %s %s: %s", writes ? "writes" : "reads", run_name(x, b, chunk, name, sizeof name),
      run_describe(x, other, who, sizeof who), other_writes ? "writes" : "reads",
      got ? "threads may go on before the wait is over; put a nop after the wait"
          : "nothing orders the two; let the other one be followed by a nop and a signal, and this one come "
            "after the wait for it");
}

static bool run_begun(run_state *x, int op, bool writes, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk) {
  char name[80];
  const int gpu = x->f->blocks[run_block_of(x, op)].gpu;
  if (b->rank == gpu || b->space > HK_MSCCLPP_OUT || run_has_begun(x, clock, b->rank)) return true;
  return run_wrong(x, op, "%s %s before anything shows that gpu %d has begun; wait for a signal of it first",
                   writes ? "writes" : "reads", run_name(x, b, chunk, name, sizeof name), b->rank);
}

/* Packets of a chunk lie where two plain chunks would be. */
static bool run_overlap(run_state *x, int op, const hk_mscclpp_buffer *b, int chunk) {
  const int at = b->at + chunk, n = x->f->scratch;
  bool other = false;
  char name[80];
  if (b->space == HK_MSCCLPP_SCRATCH)
    other = run_cell_at(x, b->rank, hk_mscclpp_begin(x->f, HK_MSCCLPP_PACKETS) + at / 2)->used;
  for (int k = 2 * at; b->space == HK_MSCCLPP_PACKETS && k < 2 * at + 2 && k < n; k++)
    other |= run_cell_at(x, b->rank, hk_mscclpp_begin(x->f, HK_MSCCLPP_SCRATCH) + k)->used;
  if (other)
    return run_wrong(x, op, "uses %s, where the plan also has %s: a chunk's packets take the room of two chunks",
                     run_name(x, b, chunk, name, sizeof name),
                     b->space == HK_MSCCLPP_SCRATCH ? "packets" : "data that is no packets");
  return true;
}

static bool run_read(run_state *x, int op, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk,
                     hk_trace_value *v) {
  char name[80];
  const int block = run_block_of(x, op);
  run_cell *c = run_cell_at(x, b->rank, run_place(x, b, chunk));
  if (b->space >= HK_MSCCLPP_SCRATCH && !run_overlap(x, op, b, chunk)) return false;
  if (!c->data.ranks)
    return run_wrong(x, op, "reads %s, which holds nothing yet", run_name(x, b, chunk, name, sizeof name));
  if (!b->waits && c->writer >= 0 && !run_ordered(x, clock, block, c->writer))
    return run_unordered(x, op, false, b, chunk, c->writer, true);
  if (c->writer < 0 && !run_begun(x, op, false, clock, b, chunk)) return false;
  *v = c->data;
  for (int *at = &c->readers; *at >= 0; at = &x->readers[*at].next)
    if (run_block_of(x, x->readers[*at].op) == block) {
      x->readers[*at].op = op;
      return true;
    }
  if (!HK_RESERVE_NEXT(x->readers, x->nreaders)) return run_no_memory(x);
  x->readers[x->nreaders] = (run_reader){op, c->readers};
  c->readers = x->nreaders++;
  return true;
}

static bool run_write(run_state *x, int op, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk,
                      const hk_trace_value *v) {
  char name[80];
  const int block = run_block_of(x, op), place = run_place(x, b, chunk), out = hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT);
  run_cell *c = run_cell_at(x, b->rank, place);
  if (b->space >= HK_MSCCLPP_SCRATCH && !run_overlap(x, op, b, chunk)) return false;
  if (b->space == HK_MSCCLPP_IN && !x->f->in_place)
    return run_wrong(x, op, "writes %s, and the plan is not in place", run_name(x, b, chunk, name, sizeof name));
  if (place >= out && place < out + x->f->nout && v->chunk % x->f->parts != (place - out) % x->f->parts)
    return run_wrong(x, op, "writes chunk %d of a message to %s, the place of chunk %d",
                     v->chunk % x->f->parts / x->f->slices, run_name(x, b, chunk, name, sizeof name),
                     (place - out) % x->f->parts / x->f->slices);
  if (!run_begun(x, op, true, clock, b, chunk)) return false;
  if (b->space == HK_MSCCLPP_PACKETS && c->data.chunk == v->chunk && c->data.ranks == v->ranks)
    return true; /* a reader gets the same from either */
  if (c->writer >= 0 && !run_ordered(x, clock, block, c->writer))
    return run_unordered(x, op, true, b, chunk, c->writer, true);
  for (int i = c->readers; i >= 0; i = x->readers[i].next)
    if (!run_ordered(x, clock, block, x->readers[i].op))
      return run_unordered(x, op, true, b, chunk, x->readers[i].op, false);
  c->readers = -1;
  c->again = c->writer >= 0;
  c->writer = op;
  c->data = *v;
  c->used = true;
  return b->space != HK_MSCCLPP_PACKETS || (c->clock = run_snapshot(x, block, run_tick(x, op))) >= 0;
}

/* ---- operations ---- */

static uint64_t run_all(const run_state *x) { return ~(uint64_t)0 >> (64 - x->f->nranks); }

static bool run_add(run_state *x, int op, hk_trace_value *sum, const hk_trace_value *v) {
  const uint64_t both = sum->ranks & v->ranks;
  const int slices = x->f->slices;
  if (!hk_coll_reduces(x->f->coll)) return run_wrong(x, op, "adds, and %s only copies", hk_coll_name(x->f->coll));
  if (sum->chunk != v->chunk)
    return run_wrong(x, op, "adds chunk %d of the message to chunk %d", v->chunk / slices, sum->chunk / slices);
  if (both)
    return run_wrong(x, op, "adds the part of gpu %d of chunk %d, which the sum has already", __builtin_ctzll(both),
                     v->chunk / slices);
  sum->ranks |= v->ranks;
  return true;
}

/* True if the packets that the chunk's sources wait for are there. */
static bool run_packets_there(const run_state *x, const hk_mscclpp_op *o, int chunk) {
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  for (int i = 0; i < o->nsrc; i++)
    if (b[i].waits && !run_cell_at(x, b[i].rank, run_place(x, &b[i], chunk))->data.ranks) return false;
  return true;
}

static bool run_keep(run_state *x, int block, const hk_mscclpp_op *o, int chunk, const hk_trace_value *v) {
  hk_mscclpp_events *t = x->t;
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  const int n = o->nsrc + o->ndst;
  if (t->nplaces + n > HK_MSCCLPP_PLACES)
    return run_wrong(x, (int)(o - x->f->ops), "and the others read and write more than %d chunks, which is too many",
                     HK_MSCCLPP_PLACES);
  if (!HK_RESERVE(t->events, t->events_room, (size_t)t->nevents + 1) ||
      !HK_RESERVE(t->places, t->places_room, (size_t)t->nplaces + (size_t)n))
    return run_no_memory(x);
  t->events[t->nevents++] = (hk_mscclpp_event){.block = block,
                                               .round = x->round,
                                               .first = t->nplaces,
                                               .nsrc = o->nsrc,
                                               .ndst = o->ndst,
                                               .chunk = v->chunk,
                                               .final = o->nsrc > 1 && v->ranks == run_all(x)};
  for (int i = 0; i < n; i++) t->places[t->nplaces++] = (hk_mscclpp_place){b[i].rank, run_place(x, &b[i], chunk)};
  return true;
}

/* One chunk of a MOVE. */
static bool run_move(run_state *x, int block, int op, int chunk) {
  const hk_mscclpp_op *o = &x->f->ops[op];
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  uint16_t *known = run_clock(x->known, x, block), *got = run_clock(x->got, x, block);
  const uint16_t *clock = o->port ? got : known; /* a proxy goes on as soon as the thread does that has waited */
  hk_trace_value sum = {0, 0}, v = {0, 0};
  for (int i = 0; i < o->nsrc; i++) { /* who reads a packet knows what its writer knew */
    const run_cell *c = run_cell_at(x, b[i].rank, run_place(x, &b[i], chunk));
    if (!b[i].waits || c->clock < 0) continue;
    if (c->again && !run_ordered(x, clock, block, c->writer)) /* the wait may end with the packet before */
      return run_unordered(x, op, false, &b[i], chunk, c->writer, true);
    run_merge(x, known, run_clock(x->snapshots, x, c->clock));
    run_merge(x, got, run_clock(x->snapshots, x, c->clock));
  }
  for (int i = 0; i < o->nsrc; i++) {
    if (!run_read(x, op, clock, &b[i], chunk, &v)) return false;
    if (i == 0)
      sum = v;
    else if (!run_add(x, op, &sum, &v))
      return false;
  }
  for (int i = 0; i < o->ndst; i++)
    if (!run_write(x, op, clock, &b[o->nsrc + i], chunk, &sum)) return false;
  return run_keep(x, block, o, chunk, &sum);
}

static bool run_post(run_state *x, int block, int op) {
  const hk_mscclpp_op *o = &x->f->ops[op];
  /* A port channel keeps the order of its puts and signals. */
  const int clock = run_snapshot(x, block, o->port ? run_tick(x, op) : x->blocks[block].synced);
  for (int i = 0; i < o->nsrc && clock >= 0; i++) {
    run_queue *q = &x->queues[x->f->signals[x->f->numbers[o->first + i]].other];
    if (!HK_RESERVE_NEXT(q->clocks, q->n)) return run_no_memory(x);
    q->clocks[q->n++] = clock;
  }
  return clock >= 0;
}

/* The first signal that is not there; -1: all are. */
static int run_lacks(const run_state *x, const hk_mscclpp_op *o) {
  for (int i = 0; i < o->nsrc; i++) {
    const run_queue *q = &x->queues[x->f->numbers[o->first + i]];
    int needs = 1; /* a number may be named twice */
    for (int k = 0; k < i; k++) needs += x->f->numbers[o->first + k] == x->f->numbers[o->first + i];
    if (q->n - q->taken < needs) return x->f->numbers[o->first + i];
  }
  return -1;
}

static void run_take(run_state *x, int block, const hk_mscclpp_op *o) {
  for (int i = 0; i < o->nsrc; i++) {
    run_queue *q = &x->queues[x->f->numbers[o->first + i]];
    const int clock = q->clocks[q->taken++];
    if (clock >= 0) run_merge(x, run_clock(x->got, x, block), run_clock(x->snapshots, x, clock));
  }
}

static void run_nop(run_state *x, int block, int op) {
  run_merge(x, run_clock(x->known, x, block), run_clock(x->got, x, block));
  x->blocks[block].synced = run_tick(x, op);
}

/* Returns true when the barrier is passed. The last thread block that arrives passes it for all. */
static bool run_barrier(run_state *x, int block, int op) {
  const hk_mscclpp_op *o = &x->f->ops[op];
  const int gpu = x->f->blocks[block].gpu;
  int *arrived = &x->arrived[gpu * HK_MSCCLPP_BLOCKS + o->barrier];
  const int first = x->f->gpus[gpu].first_block, end = x->f->gpus[gpu + 1].first_block;
  if (x->blocks[block].arrived) return false; /* it waits for the last one */
  run_nop(x, block, op);
  x->blocks[block].arrived = true;
  if (++*arrived < o->blocks) return false;
  uint16_t *all = run_clock(x->got, x, block);
  for (int i = first; i < end; i++) {
    const int at = x->f->blocks[i].first + x->blocks[i].pc;
    if (!x->blocks[i].arrived || x->f->ops[at].barrier != o->barrier) continue;
    run_merge(x, all, run_clock(x->got, x, i));
    if (all[i] < run_tick(x, at)) all[i] = run_tick(x, at);
  }
  for (int i = first; i < end; i++) {
    const int at = x->f->blocks[i].first + x->blocks[i].pc;
    if (!x->blocks[i].arrived || x->f->ops[at].barrier != o->barrier) continue;
    run_merge(x, run_clock(x->got, x, i), all);
    run_merge(x, run_clock(x->known, x, i), all);
    x->blocks[i].arrived = false;
    if (i != block) x->blocks[i].pc++;
  }
  *arrived = 0;
  return true;
}

/* One step of a thread block. Returns false on an error; *moved: it did something. */
static bool run_step(run_state *x, int block, bool *moved) {
  struct run_block *s = &x->blocks[block];
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
static const hk_mscclpp_buffer *run_waits_for(const run_state *x, const hk_mscclpp_op *o, int chunk) {
  const hk_mscclpp_buffer *b = &x->f->buffers[o->first];
  while (!b->waits || run_cell_at(x, b->rank, run_place(x, b, chunk))->data.ranks) b++;
  return b;
}

/* Says for what a thread block waits for ever. */
static bool run_stuck(run_state *x, int block) {
  const int op = x->f->blocks[block].first + x->blocks[block].pc;
  const hk_mscclpp_op *o = &x->f->ops[op];
  char name[80];
  if (o->kind == HK_MSCCLPP_BARRIER)
    return run_wrong(x, op, "waits for ever: %d of %d thread blocks come to barrier %d",
                     x->arrived[x->f->blocks[block].gpu * HK_MSCCLPP_BLOCKS + o->barrier], o->blocks, o->barrier);
  if (o->kind == HK_MSCCLPP_TAKE) {
    const int lacks = run_lacks(x, o);
    const hk_mscclpp_signal *s = &x->f->signals[lacks];
    if (s->type == HK_MSCCLPP_SEMAPHORE)
      return run_wrong(x, op, "waits for ever: semaphore %d of gpu %d is released %d times", s->number, s->gpu,
                       x->queues[lacks].n - s->start);
    return run_wrong(
        x, op, "waits for ever: gpu %d sends %d signals on its %s channel %d, and this is the wait for one more",
        s->peer, x->queues[lacks].n, s->type == HK_MSCCLPP_PORT ? "port" : "memory", x->f->signals[s->other].number);
  }
  const hk_mscclpp_buffer *b = run_waits_for(x, o, x->blocks[block].done);
  return run_wrong(x, op, "waits for ever for %s, which nobody writes before",
                   run_name(x, b, x->blocks[block].done, name, sizeof name));
}

/* True if the operation could still give what thread block `block` waits for. */
static bool run_gives(const run_state *x, const hk_mscclpp_op *o, int block) {
  const struct run_block *s = &x->blocks[block];
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
static bool run_all_stuck(run_state *x) {
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

static bool run_blocks(run_state *x) {
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
static bool run_over(const run_state *x, int gpu, int op) {
  for (int b = x->f->gpus[gpu].first_block; b < x->f->gpus[gpu + 1].first_block; b++)
    if (run_ordered(x, run_clock(x->got, x, b), b, op)) return true;
  return false;
}

static bool run_check_output(run_state *x, int gpu, int out) {
  const hk_mscclpp_file *f = x->f;
  const hk_trace_value is = run_cell_at(x, gpu, hk_mscclpp_begin(f, HK_MSCCLPP_OUT) + out)->data;
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
static bool run_check_end(run_state *x, int gpu) {
  const int out = hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT);
  for (int place = 0; place < out + x->f->nout; place++) {
    const run_cell *c = run_cell_at(x, gpu, place);
    const hk_mscclpp_buffer b = {.space = place < out ? HK_MSCCLPP_IN : HK_MSCCLPP_OUT,
                                 .rank = (int16_t)gpu,
                                 .at = place < out ? place : place - out};
    char name[80];
    if (c->writer >= 0 && !run_over(x, gpu, c->writer))
      return run_wrong(x, c->writer,
                       "writes %s, which may end before: let a signal follow, for which a thread block of gpu %d waits",
                       run_name(x, &b, 0, name, sizeof name), gpu);
    for (int i = c->readers; i >= 0; i = x->readers[i].next)
      if (!run_over(x, gpu, x->readers[i].op))
        return run_wrong(
            x, x->readers[i].op,
            "reads %s, which may end before: let a signal follow, for which a thread block of gpu %d waits",
            run_name(x, &b, 0, name, sizeof name), gpu);
  }
  return true;
}

static bool run_begin(run_state *x) {
  const hk_mscclpp_file *f = x->f;
  const size_t places = (size_t)hk_mscclpp_places(f), n = (size_t)f->nblocks + 1;
  const bool sum = hk_coll_reduces(f->coll);
  x->cells = calloc((size_t)f->nranks * places, sizeof *x->cells);
  x->known = calloc(n * n, sizeof *x->known);
  x->got = calloc(n * n, sizeof *x->got);
  x->queues = calloc((size_t)f->nsignals + 1, sizeof *x->queues);
  x->blocks = calloc(n, sizeof *x->blocks);
  x->arrived = calloc((size_t)f->nranks * HK_MSCCLPP_BLOCKS, sizeof *x->arrived);
  if (!x->cells || !x->known || !x->got || !x->queues || !x->blocks || !x->arrived) return run_no_memory(x);
  for (size_t i = 0; i < (size_t)f->nranks * places; i++)
    x->cells[i] = (run_cell){.writer = -1, .readers = -1, .clock = -1};
  for (int r = 0; r < f->nranks; r++)
    for (int in = 0; in < f->nin; in++) {
      const hk_mscclpp_buffer b = {.space = HK_MSCCLPP_IN, .rank = (int16_t)r, .at = in};
      run_cell_at(x, r, run_place(x, &b, 0))->data = (hk_trace_value){sum ? in : r * f->nin + in, (uint64_t)1 << r};
    }
  for (int i = 0; i < f->nblocks; i++) x->blocks[i].synced = 1;
  for (int i = 0; i < f->nsignals; i++)
    for (int k = 0; k < f->signals[i].start; k++) {
      if (!HK_RESERVE_NEXT(x->queues[i].clocks, x->queues[i].n)) return run_no_memory(x);
      x->queues[i].clocks[x->queues[i].n++] = -1;
    }
  return true;
}

hk_status hk_mscclpp_run(const hk_mscclpp_file *f, hk_mscclpp_events *t) {
  run_state x = {.f = f, .t = t};
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
