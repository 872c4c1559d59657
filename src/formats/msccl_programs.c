/* SPDX-License-Identifier: Apache-2.0 */
/* Makes programs of what the blocks of an MSCCL file did (msccl_run.h). Each rank's instructions keep the order of the
 * run. */
#include <stdlib.h>
#include "../program/builder.h"
#include "msccl_run.h"

/* The source of the record that is this chunk of scratch memory; -1: none. */
static int msccl_programs_source(const hk_msccl_record *r, uint16_t chunk) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space == HK_SCRATCH && r->src[k].block == chunk) return k;
  return -1;
}

static bool msccl_programs_writes(const hk_msccl_record *r, uint16_t chunk) {
  for (int k = 0; k < r->ndst; k++)
    if (r->dst[k].space == HK_SCRATCH && r->dst[k].block == chunk) return true;
  return false;
}

static bool msccl_programs_receives(const hk_msccl_state *x, const hk_msccl_record *r, int first) {
  for (int k = 0; k < r->nsrc; k++)
    if (r->src[k].space == HK_LINK && x->links[x->f->blocks[r->src[k].owner].sender].first == first) return true;
  return false;
}

/* The record that alone uses what record `at` receives into a chunk of scratch memory, if the link's next message is
 * received after it; 0: none. */
static size_t msccl_programs_only_use(const hk_msccl_state *x, const hk_msccl_memory *m, size_t at) {
  const hk_msccl_record *r = &m->records[at];
  const uint16_t chunk = r->dst[0].block;
  const int first = x->links[x->f->blocks[r->src[0].owner].sender].first;
  size_t use = 0;
  for (size_t i = at + 1; i < m->nrecords; i++) {
    const hk_msccl_record *next = &m->records[i];
    const bool reads = msccl_programs_source(next, chunk) >= 0;
    if (use ? reads : (msccl_programs_writes(next, chunk) || (next->ndst && msccl_programs_receives(x, next, first))))
      return 0;
    if (reads) use = i;
    if (use && msccl_programs_writes(next, chunk)) break;
  }
  return use;
}

/* From the last record to the first, so that a message's successor on the link is at its place already. */
static void msccl_programs_make_direct(hk_msccl_state *x, int gpu) {
  hk_msccl_memory *m = &x->ranks[gpu];
  for (size_t i = m->nrecords; i-- > 0;) {
    hk_msccl_record *r = &m->records[i];
    if (r->ndst != 1 || r->nsrc != 1 || r->dst[0].space != HK_SCRATCH || r->src[0].space != HK_LINK) continue;
    const size_t use = msccl_programs_only_use(x, m, i);
    if (!use || msccl_programs_receives(x, &m->records[use], x->links[x->f->blocks[r->src[0].owner].sender].first))
      continue;
    m->records[use].src[msccl_programs_source(&m->records[use], r->dst[0].block)] = r->src[0];
    r->ndst = r->nsrc = 0; /* gone */
  }
}

/* Sends of what a record of the lane has just written become destinations of that record. */
static void msccl_programs_join_sends(hk_msccl_state *x, int gpu) {
  hk_msccl_memory *m = &x->ranks[gpu];
  for (size_t i = 0; i < m->nrecords; i++) {
    hk_msccl_record *r = &m->records[i];
    if (r->ndst != 1 || r->nsrc != 1 || r->dst[0].space != HK_LINK || r->src[0].space != HK_OUT) continue;
    const int link = x->links[r->dst[0].owner].first, lane = hk_msccl_lane(x, r->block);
    bool may = true;
    for (size_t k = i; k-- > 0 && may;) {
      hk_msccl_record *before = &m->records[k];
      bool writes = false;
      for (int d = 0; d < before->ndst; d++) {
        const hk_msccl_operand *o = &before->dst[d];
        writes |= o->space == HK_OUT && o->block == r->src[0].block;
        may = may && !(o->space == HK_LINK && x->links[o->owner].first == link); /* messages keep their order */
      }
      if (!writes) continue;
      if (may && before->ndst < HK_MSCCL_DESTINATIONS && hk_msccl_lane(x, before->block) == lane) {
        before->dst[before->ndst++] = r->dst[0];
        r->ndst = r->nsrc = 0; /* gone */
      }
      break;
    }
  }
}

static void msccl_programs_count_scratch(hk_msccl_state *x, int gpu) {
  const hk_msccl_memory *m = &x->ranks[gpu];
  for (size_t i = 0; i < m->nrecords; i++)
    for (int k = 0; k < m->records[i].ndst; k++)
      if (m->records[i].dst[k].space == HK_SCRATCH && m->records[i].dst[k].block >= x->scratch)
        x->scratch = m->records[i].dst[k].block + 1u;
}

/* Links carry copies of memory that is written later. */
static void msccl_programs_mark_copies(const hk_msccl_state *x, int gpu, int *last_write) {
  hk_msccl_memory *m = &x->ranks[gpu];
  for (int i = 0; i < x->nout; i++) last_write[i] = -1;
  for (size_t i = 0; i < m->nrecords; i++)
    for (int k = 0; k < m->records[i].ndst; k++)
      if (m->records[i].dst[k].space == HK_OUT) last_write[m->records[i].dst[k].block] = (int)i;
  for (size_t i = 0; i < m->nrecords; i++) {
    hk_msccl_record *r = &m->records[i];
    const hk_msccl_operand *ops[HK_MSCCL_DESTINATIONS + HK_MSCCL_SOURCES];
    int n = 0;
    for (int k = 0; k < r->ndst; k++) ops[n++] = &r->dst[k];
    for (int k = 0; k < r->nsrc; k++) ops[n++] = &r->src[k];
    for (int k = 0; k < n; k++) {
      const int out = ops[k]->space == HK_OUT  ? ops[k]->block
                      : ops[k]->space == HK_IN ? hk_msccl_alias(x, gpu, ops[k]->block)
                                               : -1;
      if (out >= 0 && last_write[out] > (int)i) r->flags |= HK_INSTR_COPY;
    }
  }
}

static hk_operand msccl_programs_operand(const hk_msccl_state *x, hk_builder *b, const hk_msccl_operand *o,
                                         bool source) {
  if (o->space == HK_IN) return hk_in(o->block, 0);
  if (o->space == HK_OUT) return hk_out(o->block, 0);
  if (o->space == HK_SCRATCH) return hk_scratch(o->block);
  const hk_msccl_block *block = &x->f->blocks[o->owner];
  hk_build_channel(b, (unsigned)x->links[source ? block->sender : o->owner].channel);
  return source ? hk_recv_from(b, block->recv, o->block, 0) : hk_send_to(b, block->send, o->block, 0);
}

static void msccl_programs_build_lane(const hk_msccl_state *x, hk_builder *b, int gpu, int lane) {
  const hk_msccl_memory *m = &x->ranks[gpu];
  bool begun = false;
  for (size_t i = 0; i < m->nrecords; i++) {
    const hk_msccl_record *r = &m->records[i];
    hk_operand dst[HK_MSCCL_DESTINATIONS], src[HK_MSCCL_SOURCES];
    if (!r->ndst || hk_msccl_lane(x, r->block) != lane) continue;
    if (!begun) hk_build_lane(b);
    begun = true;
    for (int k = 0; k < r->ndst; k++) dst[k] = msccl_programs_operand(x, b, &r->dst[k], false);
    for (int k = 0; k < r->nsrc; k++) src[k] = msccl_programs_operand(x, b, &r->src[k], true);
    hk_build_move(b, r->flags, dst, r->ndst, src, r->nsrc);
  }
}

static hk_status msccl_programs_build(const hk_msccl_state *x, int gpu, hk_program **out) {
  const hk_build what = {.coll = x->f->coll, .rank = gpu, .nranks = x->f->nranks};
  hk_builder *b;
  HK_OR_RETURN(hk_builder_new(&b, &what));
  if (hk_coll_partition(x->f->coll) == HK_PART_SPLIT)
    hk_build_split(b, (unsigned)x->parts);
  else
    hk_build_parts(b, (unsigned)x->parts);
  hk_build_scratch(b, x->scratch);
  for (int i = x->f->first_block[gpu]; i < x->f->first_block[gpu + 1]; i++)
    if (x->f->blocks[i].lane == i) msccl_programs_build_lane(x, b, gpu, i);
  return hk_builder_finish(b, x->f->name, out);
}

hk_status hk_msccl_programs(hk_msccl_state *x, hk_program **programs) {
  hk_status rc = HK_OK;
  const int nranks = x->f->nranks;
  int *last_write = calloc((size_t)x->nout, sizeof *last_write);
  if (!last_write) return HK_FAIL_ERRNO("no memory to run %s", x->f->report.file);
  for (int r = 0; r < nranks; r++) {
    hk_msccl_spread_sums(x, r);
    if (x->how & HK_MSCCL_DIRECT) msccl_programs_make_direct(x, r);
    if (x->how & HK_MSCCL_DIRECT) msccl_programs_join_sends(x, r);
    if (x->how & HK_MSCCL_COPIES) msccl_programs_mark_copies(x, r, last_write);
    msccl_programs_count_scratch(x, r);
  }
  for (int r = 0; r < nranks; r++) HK_TRY(msccl_programs_build(x, r, &programs[r]), out);
  /* Copies of the lanes use channels from k * span on: the same on all ranks. */
  uint16_t span = 0;
  for (int r = 0; r < nranks; r++)
    if (programs[r]->traits.span > span) span = programs[r]->traits.span;
  for (int r = 0; r < nranks; r++) programs[r]->traits.span = span;
out:
  free(last_write);
  return rc;
}
