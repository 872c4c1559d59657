/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and clocks of an MSCCL++ plan's run (mscclpp_run.h): each access is checked. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "mscclpp_run.h"

/* The thread block that has this operation. */
static int mscclpp_access_block(const hk_mscclpp_state *x, int op) {
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

uint16_t hk_mscclpp_tick(const hk_mscclpp_state *x, int op) {
  return (uint16_t)(op - x->f->blocks[mscclpp_access_block(x, op)].first + 2);
}

static const char *access_describe(const hk_mscclpp_state *x, int op, char *text, size_t capacity) {
  const hk_mscclpp_block *b = &x->f->blocks[mscclpp_access_block(x, op)];
  snprintf(text, capacity, "gpu %d, threadblock %d, op %d (%s)", b->gpu, b->id, x->f->ops[op].number,
           hk_mscclpp_name(&x->f->ops[op]));
  return text;
}

bool hk_mscclpp_wrong(hk_mscclpp_state *x, int op, const char *format, ...) {
  char text[400], who[80];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (!x->wrong) (void)HK_FAIL(HK_ERR_ARGUMENT, "%s: %s %s", x->f->name, access_describe(x, op, who, sizeof who), text);
  x->wrong = true;
  return false;
}

bool hk_mscclpp_no_memory(hk_mscclpp_state *x) {
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
  if (hk_coll_exchanges(f->coll)) return f->in_place ? in : -1; /* NCCL has no such calls */
  const int message = hk_coll_alias(f->coll, rank, f->nranks, 0, in / f->parts);
  return message < 0 ? message : message * f->parts + in % f->parts;
}

int hk_mscclpp_place_of(const hk_mscclpp_state *x, const hk_mscclpp_buffer *b, int chunk) {
  const int at = b->at + chunk;
  const int out = b->space == HK_MSCCLPP_IN && x->f->in_place ? hk_mscclpp_alias(x->f, b->rank, at) : -1;
  if (out >= 0) return hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT) + out;
  return hk_mscclpp_begin(x->f, (hk_mscclpp_space)b->space) + at;
}

hk_mscclpp_cell *hk_mscclpp_cell_at(const hk_mscclpp_state *x, int rank, int place) {
  return &x->cells[(size_t)rank * (size_t)hk_mscclpp_places(x->f) + (size_t)place];
}

const char *hk_mscclpp_place_name(const hk_mscclpp_state *x, const hk_mscclpp_buffer *b, int chunk, char *text,
                                  size_t capacity) {
  static const char *const names[] = {"input", "output", "scratch memory", "scratch memory's packets"};
  snprintf(text, capacity, "chunk %d of the %s of gpu %d", (b->at + chunk) / x->f->slices, names[b->space], b->rank);
  return text;
}

/* ---- clocks ---- */

uint16_t *hk_mscclpp_clock(uint16_t *clocks, const hk_mscclpp_state *x, int block) {
  return clocks + (size_t)block * (size_t)x->f->nblocks;
}
void hk_mscclpp_merge(const hk_mscclpp_state *x, uint16_t *into, const uint16_t *from) {
  for (int i = 0; i < x->f->nblocks; i++)
    if (from[i] > into[i]) into[i] = from[i];
}

int hk_mscclpp_snapshot(hk_mscclpp_state *x, int block, uint16_t own) {
  const size_t n = (size_t)x->f->nblocks;
  if (((size_t)x->nsnapshots + 1) * n > HK_MSCCLPP_CLOCKS) {
    hk_mscclpp_wrong(x, x->f->blocks[block].first,
                     "and others: the plan has too many signals and thread blocks to be read");
    return -1;
  }
  if (!HK_RESERVE(x->snapshots, x->snapshots_capacity, ((size_t)x->nsnapshots + 1) * n)) {
    x->no_memory = true;
    return -1;
  }
  uint16_t *s = hk_mscclpp_clock(x->snapshots, x, x->nsnapshots);
  memcpy(s, hk_mscclpp_clock(x->got, x, block), n * sizeof *s);
  s[block] = own;
  return x->nsnapshots++;
}

bool hk_mscclpp_ordered(const hk_mscclpp_state *x, const uint16_t *clock, int block, int before) {
  const int other = mscclpp_access_block(x, before);
  return other == block || clock[other] >= hk_mscclpp_tick(x, before);
}

/* True if a signal shows that the gpu has begun, so that its memory may be used. */
static bool access_has_begun(const hk_mscclpp_state *x, const uint16_t *clock, int gpu) {
  for (int b = x->f->gpus[gpu].first_block; b < x->f->gpus[gpu + 1].first_block; b++)
    if (clock[b]) return true;
  return false;
}

/* ---- accesses ---- */

bool hk_mscclpp_unordered(hk_mscclpp_state *x, int op, bool writes, const hk_mscclpp_buffer *b, int chunk, int other,
                          bool other_writes) {
  char name[80], who[80];
  const int block = mscclpp_access_block(x, op);
  const bool got = hk_mscclpp_ordered(x, hk_mscclpp_clock(x->got, x, block), block, other);
  return hk_mscclpp_wrong(
      x, op, "%s %s, which %s %s: %s", writes ? "writes" : "reads",
      hk_mscclpp_place_name(x, b, chunk, name, sizeof name), access_describe(x, other, who, sizeof who),
      other_writes ? "writes" : "reads",
      got ? "threads may go on before the wait is over; put a nop after the wait"
          : "nothing orders the two; let the other one be followed by a nop and a signal, and this one come "
            "after the wait for it");
}

static bool access_begun(hk_mscclpp_state *x, int op, bool writes, const uint16_t *clock, const hk_mscclpp_buffer *b,
                         int chunk) {
  char name[80];
  const int gpu = x->f->blocks[mscclpp_access_block(x, op)].gpu;
  if (b->rank == gpu || b->space > HK_MSCCLPP_OUT || access_has_begun(x, clock, b->rank)) return true;
  return hk_mscclpp_wrong(x, op, "%s %s before anything shows that gpu %d has begun; wait for a signal of it first",
                          writes ? "writes" : "reads", hk_mscclpp_place_name(x, b, chunk, name, sizeof name), b->rank);
}

/* Packets of a chunk lie where two plain chunks would be. */
static bool access_overlap(hk_mscclpp_state *x, int op, const hk_mscclpp_buffer *b, int chunk) {
  const int at = b->at + chunk, n = x->f->scratch;
  bool other = false;
  char name[80];
  if (b->space == HK_MSCCLPP_SCRATCH)
    other = hk_mscclpp_cell_at(x, b->rank, hk_mscclpp_begin(x->f, HK_MSCCLPP_PACKETS) + at / 2)->used;
  for (int k = 2 * at; b->space == HK_MSCCLPP_PACKETS && k < 2 * at + 2 && k < n; k++)
    other |= hk_mscclpp_cell_at(x, b->rank, hk_mscclpp_begin(x->f, HK_MSCCLPP_SCRATCH) + k)->used;
  if (other)
    return hk_mscclpp_wrong(x, op, "uses %s, where the plan also has %s: a chunk's packets take the room of two chunks",
                            hk_mscclpp_place_name(x, b, chunk, name, sizeof name),
                            b->space == HK_MSCCLPP_SCRATCH ? "packets" : "data that is no packets");
  return true;
}

bool hk_mscclpp_access_read(hk_mscclpp_state *x, int op, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk,
                            hk_trace_value *v) {
  char name[80];
  const int block = mscclpp_access_block(x, op);
  hk_mscclpp_cell *c = hk_mscclpp_cell_at(x, b->rank, hk_mscclpp_place_of(x, b, chunk));
  if (b->space >= HK_MSCCLPP_SCRATCH && !access_overlap(x, op, b, chunk)) return false;
  if (!c->data.ranks)
    return hk_mscclpp_wrong(x, op, "reads %s, which holds nothing yet",
                            hk_mscclpp_place_name(x, b, chunk, name, sizeof name));
  if (!b->waits && c->writer >= 0 && !hk_mscclpp_ordered(x, clock, block, c->writer))
    return hk_mscclpp_unordered(x, op, false, b, chunk, c->writer, true);
  if (c->writer < 0 && !access_begun(x, op, false, clock, b, chunk)) return false;
  *v = c->data;
  for (int *at = &c->readers; *at >= 0; at = &x->readers[*at].next)
    if (mscclpp_access_block(x, x->readers[*at].op) == block) {
      x->readers[*at].op = op;
      return true;
    }
  if (!HK_RESERVE_NEXT(x->readers, x->nreaders)) return hk_mscclpp_no_memory(x);
  x->readers[x->nreaders] = (hk_mscclpp_access){op, c->readers};
  c->readers = x->nreaders++;
  return true;
}

bool hk_mscclpp_access_write(hk_mscclpp_state *x, int op, const uint16_t *clock, const hk_mscclpp_buffer *b, int chunk,
                             const hk_trace_value *v) {
  char name[80];
  const int block = mscclpp_access_block(x, op), place = hk_mscclpp_place_of(x, b, chunk),
            out = hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT);
  hk_mscclpp_cell *c = hk_mscclpp_cell_at(x, b->rank, place);
  if (b->space >= HK_MSCCLPP_SCRATCH && !access_overlap(x, op, b, chunk)) return false;
  if (b->space == HK_MSCCLPP_IN && !x->f->in_place)
    return hk_mscclpp_wrong(x, op, "writes %s, and the plan is not in place",
                            hk_mscclpp_place_name(x, b, chunk, name, sizeof name));
  if (place >= out && place < out + x->f->nout && v->chunk % x->f->parts != (place - out) % x->f->parts)
    return hk_mscclpp_wrong(
        x, op, "writes chunk %d of a message to %s, the place of chunk %d", v->chunk % x->f->parts / x->f->slices,
        hk_mscclpp_place_name(x, b, chunk, name, sizeof name), (place - out) % x->f->parts / x->f->slices);
  if (!access_begun(x, op, true, clock, b, chunk)) return false;
  if (b->space == HK_MSCCLPP_PACKETS && c->data.chunk == v->chunk && c->data.ranks == v->ranks)
    return true; /* a reader gets the same from either */
  if (c->writer >= 0 && !hk_mscclpp_ordered(x, clock, block, c->writer))
    return hk_mscclpp_unordered(x, op, true, b, chunk, c->writer, true);
  for (int i = c->readers; i >= 0; i = x->readers[i].next)
    if (!hk_mscclpp_ordered(x, clock, block, x->readers[i].op))
      return hk_mscclpp_unordered(x, op, true, b, chunk, x->readers[i].op, false);
  c->readers = -1;
  c->again = c->writer >= 0;
  c->writer = op;
  c->data = *v;
  c->used = true;
  return b->space != HK_MSCCLPP_PACKETS || (c->clock = hk_mscclpp_snapshot(x, block, hk_mscclpp_tick(x, op))) >= 0;
}
