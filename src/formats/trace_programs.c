/* SPDX-License-Identifier: Apache-2.0 */
/* Makes programs of the records of a trace (trace.h). Each rank's instructions keep the order of the run. */
#include <stdlib.h>
#include <string.h>
#include "../program/builder.h"
#include "formats.h"
#include "trace.h"

static bool trace_programs_receives(const hk_trace *x, const hk_trace_record *r, int first) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space == HK_LINK && x->links[x->blocks[r->src[k].owner].sender].first == first) return true;
  return false;
}

/* The record that alone uses what record `at` receives into a chunk of scratch memory, if the link's next message is
 * received after it; 0: none. */
static size_t trace_programs_only_use(const hk_trace *x, const hk_trace_rank *m, size_t at) {
  const hk_trace_record *r = &m->records[at];
  const uint16_t chunk = r->dst[0].block;
  const int first = x->links[x->blocks[r->src[0].owner].sender].first;
  size_t use = 0;
  for (size_t i = at + 1; i < m->nrecords; i++) {
    const hk_trace_record *next = &m->records[i];
    const bool reads = hk_trace_reads(next, chunk) >= 0;
    if (use ? reads : (hk_trace_writes(next, chunk) || (next->ndst && trace_programs_receives(x, next, first))))
      return 0;
    if (reads) use = i;
    if (use && hk_trace_writes(next, chunk)) break;
  }
  return use;
}

/* From the last record to the first, so that a message's successor on the link is at its place already. */
static void trace_programs_make_direct(hk_trace *x, int gpu) {
  hk_trace_rank *m = &x->ranks[gpu];
  for (size_t i = m->nrecords; i-- > 0;) {
    hk_trace_record *r = &m->records[i];
    if (r->ndst != 1 || r->nsrc != 1 || r->dst[0].space != HK_SCRATCH || r->src[0].space != HK_LINK) continue;
    const size_t use = trace_programs_only_use(x, m, i);
    if (!use || trace_programs_receives(x, &m->records[use], x->links[x->blocks[r->src[0].owner].sender].first))
      continue;
    m->records[use].src[hk_trace_reads(&m->records[use], r->dst[0].block)] = r->src[0];
    r->ndst = r->nsrc = 0; /* gone */
  }
}

/* Sends of what a record of the lane has just written become destinations of that record. */
static void trace_programs_join_sends(hk_trace *x, int gpu) {
  hk_trace_rank *m = &x->ranks[gpu];
  for (size_t i = 0; i < m->nrecords; i++) {
    hk_trace_record *r = &m->records[i];
    if (r->ndst != 1 || r->nsrc != 1 || r->dst[0].space != HK_LINK || r->src[0].space != HK_OUT) continue;
    const int link = x->links[r->dst[0].owner].first, lane = hk_trace_lane(x, r->block);
    bool may = true;
    for (size_t k = i; k-- > 0 && may;) {
      hk_trace_record *before = &m->records[k];
      bool writes = false;
      for (int d = 0; d < before->ndst; d++) {
        const hk_trace_operand *o = &before->dst[d];
        writes |= o->space == HK_OUT && o->block == r->src[0].block;
        may = may && !(o->space == HK_LINK && x->links[o->owner].first == link); /* messages keep their order */
      }
      if (!writes) continue;
      if (may && before->ndst < HK_TRACE_DESTINATIONS && hk_trace_lane(x, before->block) == lane) {
        before->dst[before->ndst++] = r->dst[0];
        r->ndst = r->nsrc = 0; /* gone */
      }
      break;
    }
  }
}

/* Scratch memory is used from chunk 0 on, without gaps. `number`: of each chunk, plus 1; 0: none so far. */
static void trace_programs_pack_scratch(hk_trace *x, int gpu, unsigned *number) {
  const hk_trace_rank *m = &x->ranks[gpu];
  unsigned next = 0;
  memset(number, 0, (size_t)x->scratch * sizeof *number);
  for (size_t i = 0; i < m->nrecords; i++) {
    hk_trace_record *r = &m->records[i];
    for (int k = 0; k < r->ndst + r->nsrc; k++) {
      hk_trace_operand *o = k < r->ndst ? &r->dst[k] : &r->src[k - r->ndst];
      if (o->space != HK_SCRATCH) continue;
      if (!number[o->block]) number[o->block] = ++next;
      o->block = (uint16_t)(number[o->block] - 1);
    }
  }
  if (next > x->used) x->used = next;
}

/* Links carry copies of memory that is written later. */
static void trace_programs_mark_copies(const hk_trace *x, int gpu, int *last_write) {
  hk_trace_rank *m = &x->ranks[gpu];
  for (int i = 0; i < x->nout; i++) last_write[i] = -1;
  for (size_t i = 0; i < m->nrecords; i++)
    for (int k = 0; k < m->records[i].ndst; k++)
      if (m->records[i].dst[k].space == HK_OUT) last_write[m->records[i].dst[k].block] = (int)i;
  for (size_t i = 0; i < m->nrecords; i++) {
    hk_trace_record *r = &m->records[i];
    const hk_trace_operand *ops[HK_TRACE_DESTINATIONS + HK_TRACE_SOURCES];
    int n = 0;
    for (int k = 0; k < r->ndst; k++) ops[n++] = &r->dst[k];
    for (int k = 0; k < r->nsrc; k++) ops[n++] = &r->src[k];
    for (int k = 0; k < n; k++) {
      const int out = ops[k]->space == HK_OUT  ? ops[k]->block
                      : ops[k]->space == HK_IN ? hk_trace_alias(x, gpu, ops[k]->block)
                                               : -1;
      if (out >= 0 && last_write[out] > (int)i) r->flags |= HK_INSTR_COPY;
    }
  }
}

static hk_operand trace_programs_operand(const hk_trace *x, hk_builder *b, const hk_trace_operand *o, bool source) {
  if (o->space == HK_IN) return hk_in(o->block, 0);
  if (o->space == HK_OUT) return hk_out(o->block, 0);
  if (o->space == HK_SCRATCH) return hk_scratch(o->block, 0);
  const hk_trace_block *block = &x->blocks[o->owner];
  hk_build_channel(b, (unsigned)x->links[source ? block->sender : o->owner].channel);
  return source ? hk_recv_from(b, block->recv, o->block, 0) : hk_send_to(b, block->send, o->block, 0);
}

static void trace_programs_build_lane(const hk_trace *x, hk_builder *b, int gpu, int lane) {
  const hk_trace_rank *m = &x->ranks[gpu];
  bool begun = false;
  for (size_t i = 0; i < m->nrecords; i++) {
    const hk_trace_record *r = &m->records[i];
    hk_operand dst[HK_TRACE_DESTINATIONS], src[HK_TRACE_SOURCES];
    if (!r->ndst || hk_trace_lane(x, r->block) != lane) continue;
    if (!begun) hk_build_lane(b);
    begun = true;
    for (int k = 0; k < r->ndst; k++) dst[k] = trace_programs_operand(x, b, &r->dst[k], false);
    for (int k = 0; k < r->nsrc; k++) src[k] = trace_programs_operand(x, b, &r->src[k], true);
    hk_build_move(b, r->flags, dst, r->ndst, src, r->nsrc);
  }
}

static hk_status trace_programs_build(const hk_trace *x, int gpu, hk_program **out) {
  const hk_build what = {.coll = x->coll, .rank = gpu, .nranks = x->nranks};
  hk_builder *b;
  HK_OR_RETURN(hk_builder_new(&b, &what));
  if (hk_coll_partition(x->coll) == HK_PART_SPLIT)
    hk_build_split(b, (unsigned)x->parts);
  else
    hk_build_parts(b, (unsigned)x->parts);
  hk_build_scratch(b, x->used);
  for (int i = x->first_block[gpu]; i < x->first_block[gpu + 1]; i++)
    if (x->blocks[i].lane == i) trace_programs_build_lane(x, b, gpu, i);
  return hk_builder_finish(b, x->name, out);
}

hk_status hk_trace_programs(hk_trace *x, hk_program_set *s) {
  hk_status rc = HK_OK;
  int *last_write = NULL;
  unsigned *number = NULL;
  for (int r = 0; r < x->nranks; r++) {
    hk_program_free(s->programs[r]);
    s->programs[r] = NULL;
  }
  HK_TRY(hk_trace_fold(x), out);
  last_write = calloc((size_t)x->nout, sizeof *last_write);
  number = calloc((size_t)x->scratch + 1, sizeof *number);
  if (!last_write || !number) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to run %s", x->file), out);
  for (int r = 0; r < x->nranks; r++) {
    hk_trace_spread_sums(x, r);
    if (x->how & HK_TRACE_DIRECT) trace_programs_make_direct(x, r);
    if (x->how & HK_TRACE_DIRECT) trace_programs_join_sends(x, r);
    if (x->how & HK_TRACE_COPIES) trace_programs_mark_copies(x, r, last_write);
    trace_programs_pack_scratch(x, r, number);
  }
  for (int r = 0; r < x->nranks; r++) HK_TRY(trace_programs_build(x, r, &s->programs[r]), out);
  hk_program_set_span(s);
out:
  free(last_write);
  free(number);
  return rc;
}
