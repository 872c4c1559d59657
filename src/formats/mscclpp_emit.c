/* SPDX-License-Identifier: Apache-2.0 */
/* Makes programs of the events of an MSCCL++ plan. A chunk that an event reads or writes on another rank becomes a
 * message. Every rank does its part of the events in their order, except that a message is received late: when its
 * place is used next. So no rank waits for data before it has sent its own. */
#include "mscclpp_emit.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"

/* ---- the trace: a block for each lane, and one for each end of a link ---- */

static bool emit_begin_trace(hk_mscclpp_emitter *x) {
  const hk_mscclpp_file *f = x->f;
  hk_trace *to = &x->trace;
  const int agents = f->nblocks * f->nranks;
  *to = (hk_trace){.file = f->name,
                   .coll = f->coll,
                   .nranks = f->nranks,
                   .parts = f->parts,
                   .nin = f->nin,
                   .nout = f->nout,
                   .scratch = 2 * f->scratch + f->nin};
  memcpy(to->name, f->algorithm, sizeof to->name);
  to->ranks = calloc((size_t)f->nranks, sizeof *to->ranks);
  to->blocks = calloc((size_t)agents + 2 * (size_t)x->nlinks + 1, sizeof *to->blocks);
  to->links = calloc((size_t)agents + 2 * (size_t)x->nlinks + 1, sizeof *to->links);
  if (!to->ranks || !to->blocks || !to->links) return hk_mscclpp_emit_no_memory(x);
  for (int r = 0; r < f->nranks; r++) {
    to->first_block[r] = x->nblocks;
    for (int b = 0; b < f->nblocks; b++) {
      const int a = hk_mscclpp_agent(x, b, r);
      if (hk_mscclpp_lane(x, a) != a) continue;
      x->lane_block[a] = x->nblocks;
      to->blocks[x->nblocks] = (hk_trace_block){-1, -1, -1, -1, x->nblocks};
      x->nblocks++;
    }
    for (int i = 0; i < x->nlinks; i++) {
      hk_mscclpp_link *l = &x->links[i];
      const int from = l->from % f->nranks, dst = l->to % f->nranks;
      if (from != r && dst != r) continue;
      *(from == r ? &l->send_block : &l->recv_block) = x->nblocks;
      to->blocks[x->nblocks++] = (hk_trace_block){.send = from == r ? dst : -1,
                                                  .recv = from == r ? -1 : from,
                                                  .sender = -1,
                                                  .receiver = -1,
                                                  .lane = x->lane_block[from == r ? l->from : l->to]};
    }
  }
  to->first_block[f->nranks] = x->nblocks;
  for (int i = 0; i < x->nlinks; i++) {
    to->blocks[x->links[i].send_block].receiver = x->links[i].recv_block;
    to->blocks[x->links[i].recv_block].sender = x->links[i].send_block;
  }
  return true;
}

/* ---- records ---- */

static bool emit_keep(hk_mscclpp_emitter *x, int rank, int agent, const hk_trace_record *r) {
  hk_trace_rank *m = &x->trace.ranks[rank];
  if (!HK_RESERVE(m->records, m->capacity, m->nrecords + 1)) return hk_mscclpp_emit_no_memory(x);
  m->records[m->nrecords] = *r;
  m->records[m->nrecords].block = x->lane_block[hk_mscclpp_lane(x, agent)];
  m->records[m->nrecords++].to = -1;
  return true;
}

static hk_trace_operand emit_operand(const hk_mscclpp_emitter *x, const hk_mscclpp_place *p, bool written) {
  const hk_mscclpp_file *f = x->f;
  const int out = hk_mscclpp_begin(f, HK_MSCCLPP_OUT), scratch = hk_mscclpp_begin(f, HK_MSCCLPP_SCRATCH);
  if (p->at >= scratch) return (hk_trace_operand){HK_SCRATCH, (uint16_t)(p->at - scratch), -1};
  if (p->at < out && written) /* an input chunk without a place in the output */
    return (hk_trace_operand){HK_SCRATCH, (uint16_t)(2 * f->scratch + p->at), -1};
  if (p->at < out) return (hk_trace_operand){HK_IN, (uint16_t)p->at, -1};
  if (written) return (hk_trace_operand){HK_OUT, (uint16_t)(p->at - out), -1};
  const int in = x->inputs[p->rank * f->nout + p->at - out];
  return (hk_trace_operand){HK_IN, (uint16_t)(in < 0 ? 0 : in), -1};
}

static hk_trace_operand emit_write(hk_mscclpp_emitter *x, const hk_mscclpp_place *p) {
  hk_mscclpp_emit_cell(x, p)->written = true;
  return emit_operand(x, p, true);
}

/* Receives the oldest message of a link at its place. */
static bool emit_receive(hk_mscclpp_emitter *x, int link) {
  hk_mscclpp_link *l = &x->links[link];
  const hk_mscclpp_message m = x->messages[l->first];
  const int rank = l->to % x->f->nranks;
  const hk_mscclpp_place p = {rank, m.place};
  hk_trace_record r = {.part = m.block % x->f->parts, .ndst = 1, .nsrc = 1};
  r.src[0] = (hk_trace_operand){HK_LINK, m.block, l->recv_block};
  r.dst[0] = emit_operand(x, &p, true);
  hk_mscclpp_emit_cell(x, &p)->link = -1;
  l->first = m.next;
  if (l->first < 0) l->last = -1;
  l->under_way--;
  return emit_keep(x, rank, l->to, &r);
}

/* The place is used: what is under way to it arrives before. */
static bool emit_arrive(hk_mscclpp_emitter *x, const hk_mscclpp_place *p) {
  const hk_mscclpp_emit_place *c = hk_mscclpp_emit_cell(x, p);
  while (c->link >= 0)
    if (!emit_receive(x, c->link)) return false;
  return true;
}

/* A message is on its way to a place. */
static bool emit_expect(hk_mscclpp_emitter *x, int link, const hk_mscclpp_place *p, uint16_t block) {
  hk_mscclpp_link *l = &x->links[link];
  if (!HK_RESERVE_NEXT(x->messages, x->nmessages)) return hk_mscclpp_emit_no_memory(x);
  x->messages[x->nmessages] = (hk_mscclpp_message){.place = p->at, .next = -1, .when = ++x->sent, .block = block};
  *(l->last < 0 ? &l->first : &x->messages[l->last].next) = x->nmessages;
  l->last = x->nmessages++;
  l->under_way++;
  (void)emit_write(x, p);
  hk_mscclpp_emit_cell(x, p)->link = link;
  return true;
}

/* Leaves room for one more message. */
static bool emit_make_room(hk_mscclpp_emitter *x, int link) {
  while (x->links[link].first >= 0 && (unsigned)x->links[link].under_way >= x->slots)
    if (!emit_receive(x, link)) return false;
  return true;
}

/* Before a message of a link that reads: receives what was sent before it over the link that is joined with it. */
static bool emit_receive_before(hk_mscclpp_emitter *x, int link, int when) {
  int with = x->first_link[x->links[link].from];
  while (with >= 0 && (x->links[with].to != x->links[link].to || x->links[with].reads)) with = x->links[with].next;
  while (with >= 0 && x->links[with].first >= 0 && x->messages[x->links[with].first].when < when)
    if (!emit_receive(x, with)) return false;
  return true;
}

/* ---- events ---- */

static uint16_t emit_block_of(const hk_mscclpp_emitter *x, const hk_mscclpp_event *e) {
  return (uint16_t)(e->chunk % (x->f->nin > x->f->nout ? x->f->nin : x->f->nout));
}

/* Source k of the event is in another rank's memory: that rank sends it. */
static bool emit_send_source(hk_mscclpp_emitter *x, const hk_mscclpp_event *e, int k) {
  const hk_mscclpp_place *p = &x->t->places[e->first + k];
  const int agent = hk_mscclpp_agent(x, e->block, p->rank);
  const int link = hk_mscclpp_link_of(x, agent, hk_mscclpp_agent(x, e->block, x->f->blocks[e->block].gpu), true);
  if (link < 0 || !emit_arrive(x, p)) return false;
  hk_trace_record r = {.part = e->chunk % x->f->parts, .ndst = 1, .nsrc = 1};
  r.src[0] = emit_operand(x, p, hk_mscclpp_emit_cell(x, p)->written);
  r.dst[0] = (hk_trace_operand){HK_LINK, emit_block_of(x, e), x->links[link].send_block};
  x->ahead[e->first + k] = ++x->sent;
  return emit_keep(x, p->rank, agent, &r);
}

/* Before the events of a round: what they read of other ranks is sent, unless an event of the round writes it. One
 * message of a link is sent ahead. */
static bool emit_ahead(hk_mscclpp_emitter *x, int first, int end) {
  for (int i = first; i < end; i++) {
    const hk_mscclpp_event *e = &x->t->events[i];
    const int rank = x->f->blocks[e->block].gpu, own = hk_mscclpp_agent(x, e->block, rank);
    for (int k = 0; k < e->nsrc; k++) {
      const hk_mscclpp_place *p = &x->t->places[e->first + k];
      if (p->rank == rank) continue;
      const int link = hk_mscclpp_link_of(x, hk_mscclpp_agent(x, e->block, p->rank), own, true);
      if (link < 0) return false;
      const bool good = x->links[link].stopped != e->round && hk_mscclpp_shared_cell(x, *p)->round != e->round;
      x->links[link].stopped = e->round;
      if (good && !emit_send_source(x, e, k)) return false;
    }
    for (int k = e->nsrc; k < e->nsrc + e->ndst; k++)
      hk_mscclpp_shared_cell(x, x->t->places[e->first + k])->round = e->round;
  }
  return true;
}

static bool emit_event(hk_mscclpp_emitter *x, const hk_mscclpp_event *e) {
  const hk_mscclpp_place *p = &x->t->places[e->first], *q = p + e->nsrc;
  const int rank = x->f->blocks[e->block].gpu, own = hk_mscclpp_agent(x, e->block, rank);
  const uint16_t block = emit_block_of(x, e);
  hk_trace_operand src[HK_MSCCLPP_OPERANDS], dst[HK_MSCCLPP_OPERANDS];
  int local = -1, ndst = 0;
  for (int k = 0; k < e->nsrc; k++)
    if (p[k].rank == rank && !emit_arrive(x, &p[k])) return false;
  for (int k = 0; k < e->ndst; k++)
    if (!emit_arrive(x, &q[k])) return false;
  for (int k = 0; k < e->nsrc; k++) {
    if (p[k].rank == rank) {
      src[k] = emit_operand(x, &p[k], hk_mscclpp_emit_cell(x, &p[k])->written);
      continue;
    }
    const int link = hk_mscclpp_link_of(x, hk_mscclpp_agent(x, e->block, p[k].rank), own, true);
    if (link < 0 || (!x->ahead[e->first + k] && !emit_send_source(x, e, k))) return false;
    if (x->joins && !emit_receive_before(x, link, x->ahead[e->first + k])) return false;
    src[k] = (hk_trace_operand){HK_LINK, block, x->links[link].recv_block};
  }
  for (int k = 0; k < e->ndst; k++) {
    if (q[k].rank != rank) continue;
    if (local < 0) local = ndst;
    dst[ndst++] = emit_write(x, &q[k]);
  }
  /* By distance, whatever the plan's order is: so ranks that do the same have programs that are alike. */
  for (int by = 1; by < x->f->nranks; by++)
    for (int k = 0; k < e->ndst; k++) {
      if (q[k].rank != (rank + by) % x->f->nranks) continue;
      const int link = hk_mscclpp_link_of(x, own, hk_mscclpp_agent(x, e->block, q[k].rank), false);
      if (link < 0 || !emit_arrive(x, &q[k]) || !emit_make_room(x, link) || !emit_expect(x, link, &q[k], block))
        return false;
      dst[ndst++] = (hk_trace_operand){HK_LINK, block, x->links[link].send_block};
    }
  if (e->nsrc == 1 && ndst == 1 && local == 0 && src[0].space == dst[0].space && src[0].block == dst[0].block)
    return true; /* a copy to itself */
  /* An instruction has a limited number of operands. A longer sum goes on with what it has written. */
  for (int at = 0, first = 1; at < e->nsrc; first = 0) {
    hk_trace_record r = {.part = e->chunk % x->f->parts};
    if (!first) r.src[r.nsrc++] = dst[local];
    while (at < e->nsrc && r.nsrc < HK_TRACE_SOURCES) r.src[r.nsrc++] = src[at++];
    const bool last = at == e->nsrc;
    if (!last && local < 0) return hk_mscclpp_emit_no_memory(x); /* every sum has a place of its rank */
    if (!last) {
      r.dst[r.ndst++] = dst[local];
      if (!emit_keep(x, rank, own, &r)) return false;
      continue;
    }
    if (e->final) r.flags = HK_INSTR_FINAL;
    for (int k = 0; k < ndst;) {
      while (k < ndst && r.ndst < HK_TRACE_DESTINATIONS) r.dst[r.ndst++] = dst[k++];
      if (!emit_keep(x, rank, own, &r)) return false;
      r.ndst = 0;
      if (local < 0) continue; /* the next record copies from the same place */
      r.nsrc = 1;
      r.src[0] = dst[local];
      r.flags = 0;
    }
  }
  return true;
}

/* A chunk of the output that nothing writes is in its place if the call is in place: this adds the copy for others. */
static bool emit_copies(hk_mscclpp_emitter *x) {
  for (int r = 0; r < x->f->nranks; r++)
    for (int out = 0; out < x->f->nout; out++) {
      const hk_mscclpp_place p = {r, hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT) + out};
      hk_trace_record record = {.part = out % x->f->parts, .ndst = 1, .nsrc = 1};
      if (hk_mscclpp_emit_cell(x, &p)->written) continue;
      record.src[0] = emit_operand(x, &p, false);
      record.dst[0] = emit_operand(x, &p, true);
      const int agent = hk_mscclpp_emit_cell(x, &p)->agent; /* that reads it; -1: none */
      if (!emit_keep(x, r, agent < 0 ? hk_mscclpp_agent(x, 0, r) : agent, &record)) return false;
    }
  return true;
}

static bool emit_events(hk_mscclpp_emitter *x) {
  const hk_mscclpp_events *t = x->t;
  for (int i = 0, end; i < t->nevents; i = end) {
    for (end = i; end < t->nevents && t->events[end].round == t->events[i].round;) end++;
    if (!emit_ahead(x, i, end)) return false;
    for (int k = i; k < end; k++)
      if (!emit_event(x, &t->events[k])) return false;
  }
  for (bool more = true; more;) { /* in turn, so that no rank waits for one link only */
    more = false;
    for (int i = 0; i < x->nlinks; i++) {
      if (x->links[i].first < 0) continue;
      if (!emit_receive(x, i)) return false;
      more = true;
    }
  }
  return emit_copies(x);
}

static bool emit_begin(hk_mscclpp_emitter *x, unsigned how) {
  const hk_mscclpp_file *f = x->f;
  const size_t agents = (size_t)f->nblocks * (size_t)f->nranks,
               cells = (size_t)hk_mscclpp_places(f) * (size_t)f->nranks;
  x->lanes = calloc(agents + 1, sizeof *x->lanes);
  x->lane_block = calloc(agents + 1, sizeof *x->lane_block);
  x->cells = calloc(cells + 1, sizeof *x->cells);
  x->ahead = calloc((size_t)x->t->nplaces + 1, sizeof *x->ahead);
  x->first_link = calloc(agents + 1, sizeof *x->first_link);
  x->inputs = malloc((size_t)f->nranks * (size_t)f->nout * sizeof *x->inputs);
  if (!x->lanes || !x->lane_block || !x->cells || !x->ahead || !x->first_link || !x->inputs)
    return hk_mscclpp_emit_no_memory(x);
  memset(x->inputs, -1, (size_t)f->nranks * (size_t)f->nout * sizeof *x->inputs);
  for (int r = 0; r < f->nranks; r++)
    for (int in = 0; in < f->nin; in++) {
      const int out = hk_mscclpp_alias(f, r, in);
      if (out >= 0) x->inputs[r * f->nout + out] = in;
    }
  for (size_t i = 0; i < agents; i++) x->lanes[i] = (int)i;
  for (size_t i = 0; i < cells; i++) x->cells[i] = (hk_mscclpp_emit_place){.link = -1, .round = -1, .agent = -1};
  hk_mscclpp_find_lanes(x);
  if (!(how & HK_MSCCLPP_LANES)) hk_mscclpp_one_lane(x);
  int *numbers = calloc((size_t)(f->nranks * f->nranks) * (3 + HK_CHANNELS), sizeof *numbers);
  if (!numbers) return hk_mscclpp_emit_no_memory(x);
  bool good;
  do good = hk_mscclpp_find_links(x);
  while (good && !hk_mscclpp_few_links(x, numbers));
  free(numbers);
  return good && emit_begin_trace(x);
}

hk_status hk_mscclpp_emit(const hk_mscclpp_events *t, unsigned how, unsigned slots, hk_program_set *s) {
  hk_status rc = HK_ERR_SYSTEM;
  hk_mscclpp_emitter x = {
      .t = t, .f = t->f, .slots = how & HK_MSCCLPP_LATE ? UINT_MAX : slots, .joins = how & HK_MSCCLPP_JOIN};
  if (emit_begin(&x, how) && emit_events(&x) && (!x.joins || hk_mscclpp_join_links(&x)) &&
      hk_mscclpp_number_links(&x)) {
    x.trace.how = how;
    rc = hk_trace_programs(&x.trace, s);
  }
  hk_trace_free(&x.trace);
  free(x.lanes);
  free(x.lane_block);
  free(x.cells);
  free(x.ahead);
  free(x.links);
  free(x.first_link);
  free(x.inputs);
  free(x.messages);
  return x.no_memory ? HK_FAIL_ERRNO("no memory for the programs of %s", t->f->name) : rc;
}
