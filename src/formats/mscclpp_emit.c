/* SPDX-License-Identifier: Apache-2.0 */
/* Makes programs of the events of an MSCCL++ plan. A chunk that an event reads or writes on another rank becomes a
 * message. Every rank does its part of the events in their order, except that a message is received late: when its
 * place is used next. So no rank waits for data before it has sent its own. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/hash.h"
#include "mscclpp.h"

/* What a thread block does on a rank, its own one or another, is an agent. On another rank it is in the lane of the
 * thread block with its number there. Agents of a rank that use a chunk which one of them writes are in one lane. */
typedef struct emit_message {
  int place, next; /* of the receiving rank; the next message of the link, or -1 */
  int when;        /* it was sent, as a number of messages */
  uint16_t block;  /* of the message's chunk */
} emit_message;

/* A link has one lane at either end. Messages that an event writes and those that it reads are in different links, so
 * that a rank can send what others read before it does its own part of these events. */
typedef struct emit_link {
  int from, to; /* agents that stand for the lanes */
  bool reads;
  int channel;
  int send_block, recv_block; /* of the trace */
  int first, last, under_way; /* messages that are sent and not received, except those that an event receives itself */
  int stopped;                /* the round in which no more messages are sent ahead */
  int next;                   /* link of the same sending lane, or -1 */
  int with;                   /* the link whose messages go over this one's, or -1 */
} emit_link;

/* A place of a rank: its pending message's link, or -1; `written`: it does not hold the user's input. */
typedef struct emit_cell {
  int link;
  int round; /* in which it was written last */
  bool written, shared;
  int agent; /* that uses it, or -1 */
} emit_cell;

typedef struct emit_state {
  const hk_mscclpp_events *t;
  const hk_mscclpp_file *f;
  unsigned slots;
  int *lanes; /* by agent: another agent of its lane; its own number: it stands for the lane */
  emit_cell *cells;
  emit_link *links;
  int *first_link; /* by agent */
  int nlinks;
  int *inputs; /* by rank and output chunk: the input chunk at its place, if the call is in place, or -1 */
  emit_message *messages;
  int nmessages;
  int sent;   /* messages */
  int *ahead; /* by place of the events: when its message was sent, or 0 */
  bool joins; /* links are to be joined */
  hk_trace trace;
  int nblocks;     /* of the trace */
  int *lane_block; /* by agent that stands for a lane: a block of the trace */
  bool no_memory;
} emit_state;

static bool emit_no_memory(emit_state *x) {
  x->no_memory = true;
  return false;
}

/* ---- lanes ---- */

static int emit_agent(const emit_state *x, int block, int rank) { return block * x->f->nranks + rank; }
static int emit_lane(const emit_state *x, int agent) {
  while (x->lanes[agent] != agent) agent = x->lanes[agent] = x->lanes[x->lanes[agent]];
  return agent;
}
static void emit_tie(emit_state *x, int a, int b) {
  a = emit_lane(x, a), b = emit_lane(x, b);
  x->lanes[a > b ? a : b] = a < b ? a : b;
}

static emit_cell *emit_cell_at(const emit_state *x, const hk_mscclpp_place *p) {
  return &x->cells[(size_t)p->rank * (size_t)hk_mscclpp_places(x->f) + (size_t)p->at];
}

/* The cell that two chunks share which are at one address if the call is in place. */
static emit_cell *emit_shared_cell(const emit_state *x, hk_mscclpp_place p) {
  const int out = p.at < x->f->nin ? hk_mscclpp_alias(x->f, p.rank, p.at) : -1;
  if (out >= 0) p.at = hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT) + out;
  return emit_cell_at(x, &p);
}

static void emit_find_lanes(emit_state *x) {
  const hk_mscclpp_events *t = x->t;
  for (int b = 0; b < x->f->nblocks; b++)
    for (int r = 0; r < x->f->nranks; r++) {
      const int first = x->f->gpus[r].first_block, n = x->f->gpus[r + 1].first_block - first;
      const int id = x->f->blocks[b].id;
      if (n) emit_tie(x, emit_agent(x, b, r), emit_agent(x, first + (id < n ? id : n - 1), r));
    }
  for (int write = 1; write >= 0; write--) /* first: which chunks are written at all */
    for (int i = 0; i < t->nevents; i++) {
      const hk_mscclpp_event *e = &t->events[i];
      for (int k = write ? e->nsrc : 0; k < e->nsrc + e->ndst; k++) {
        emit_cell *c = emit_shared_cell(x, t->places[e->first + k]);
        const int agent = emit_agent(x, e->block, t->places[e->first + k].rank);
        if (write) c->shared = true;
        if (write) continue;
        if (c->shared && c->agent >= 0) emit_tie(x, c->agent, agent);
        c->agent = agent;
      }
    }
}

/* One lane for each rank. */
static void emit_one_lane(emit_state *x) {
  for (int b = 0; b < x->f->nblocks; b++)
    for (int r = 0; r < x->f->nranks; r++) emit_tie(x, emit_agent(x, 0, r), emit_agent(x, b, r));
}

/* ---- links ---- */

/* The link between the lanes of two agents; -1: no memory. */
static int emit_link_of(emit_state *x, int from, int to, bool reads) {
  from = emit_lane(x, from), to = emit_lane(x, to);
  for (int i = x->first_link[from]; i >= 0; i = x->links[i].next)
    if (x->links[i].to == to && x->links[i].reads == reads) return i;
  if (!HK_RESERVE_NEXT(x->links, x->nlinks)) return emit_no_memory(x) - 1;
  x->links[x->nlinks] = (emit_link){.from = from,
                                    .to = to,
                                    .reads = reads,
                                    .first = -1,
                                    .last = -1,
                                    .stopped = -1,
                                    .next = x->first_link[from],
                                    .with = -1};
  return x->first_link[from] = x->nlinks++;
}

static bool emit_find_links(emit_state *x) {
  const hk_mscclpp_events *t = x->t;
  x->nlinks = 0;
  memset(x->first_link, -1, (size_t)x->f->nblocks * (size_t)x->f->nranks * sizeof *x->first_link);
  for (int i = 0; i < t->nevents; i++) {
    const hk_mscclpp_event *e = &t->events[i];
    const int rank = x->f->blocks[e->block].gpu, own = emit_agent(x, e->block, rank);
    for (int k = 0; k < e->nsrc + e->ndst; k++) {
      const int other = t->places[e->first + k].rank;
      if (other == rank) continue;
      const int agent = emit_agent(x, e->block, other);
      if (emit_link_of(x, k < e->nsrc ? agent : own, k < e->nsrc ? own : agent, k < e->nsrc) < 0) return false;
    }
  }
  return true;
}

/* Two ranks have at most HK_CHANNELS links. If there are more, lanes become one, so that of each kind, those that read
 * and the others, half of this number is left. Returns false if so. */
static bool emit_few_links(emit_state *x, int *numbers) {
  enum { HALF = HK_CHANNELS / 2 };
  const int n = x->f->nranks;
  int *counts = numbers, *kinds = counts + n * n, *firsts = kinds + 2 * n * n;
  bool good = true;
  memset(numbers, 0, 3 * (size_t)(n * n) * sizeof *numbers);
  for (int i = 0; i < x->nlinks; i++) counts[x->links[i].from % n * n + x->links[i].to % n]++;
  for (int i = 0; i < x->nlinks; i++) {
    const emit_link *l = &x->links[i];
    const int pair = l->from % n * n + l->to % n, kind = 2 * pair + l->reads, turn = kinds[kind]++;
    if (counts[pair] <= HK_CHANNELS) continue;
    good = false;
    if (turn < HALF) {
      firsts[HALF * kind + turn] = i;
      continue;
    }
    const emit_link *first = &x->links[firsts[HALF * kind + turn % HALF]];
    emit_tie(x, first->from, l->from);
    emit_tie(x, first->to, l->to);
  }
  return good;
}

/* The same on all ranks if they do the same: links of one kind come first, and lanes keep the order of their blocks. */
static uint64_t emit_link_order(const emit_state *x, const emit_link *l) {
  const int n = x->f->nranks;
  return (uint64_t)l->reads << 40 | (uint64_t)x->f->blocks[l->from / n].id << 20 | (unsigned)x->f->blocks[l->to / n].id;
}

/* The channels of two ranks' links, from 0 on. */
static bool emit_number_links(emit_state *x) {
  const int n = x->f->nranks;
  int *turns = calloc((size_t)(n * n) * (1 + HK_CHANNELS), sizeof *turns), *others = turns + n * n;
  if (!turns) return emit_no_memory(x);
  for (int i = 0; i < x->nlinks; i++) {
    emit_link *l = &x->links[i];
    const int pair = l->from % n * n + l->to % n;
    l->channel = 0;
    if (l->with >= 0) continue;
    for (int k = 0; k < turns[pair]; k++) {
      emit_link *o = &x->links[others[HK_CHANNELS * pair + k]];
      *(emit_link_order(x, o) > emit_link_order(x, l) ? &o->channel : &l->channel) += 1;
    }
    others[HK_CHANNELS * pair + turns[pair]++] = i;
  }
  for (int i = 0; i < x->nlinks; i++) {
    const emit_link *l = &x->links[i], *first = l->with < 0 ? l : &x->links[l->with];
    x->trace.links[l->send_block] = (hk_trace_link){.first = first->send_block, .channel = first->channel};
  }
  free(turns);
  return true;
}

/* ---- the trace: a block for each lane, and one for each end of a link ---- */

static bool emit_begin_trace(emit_state *x) {
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
  if (!to->ranks || !to->blocks || !to->links) return emit_no_memory(x);
  for (int r = 0; r < f->nranks; r++) {
    to->first_block[r] = x->nblocks;
    for (int b = 0; b < f->nblocks; b++) {
      const int a = emit_agent(x, b, r);
      if (emit_lane(x, a) != a) continue;
      x->lane_block[a] = x->nblocks;
      to->blocks[x->nblocks] = (hk_trace_block){-1, -1, -1, -1, x->nblocks};
      x->nblocks++;
    }
    for (int i = 0; i < x->nlinks; i++) {
      emit_link *l = &x->links[i];
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

static bool emit_keep(emit_state *x, int rank, int agent, const hk_trace_record *r) {
  hk_trace_rank *m = &x->trace.ranks[rank];
  if (!HK_RESERVE(m->records, m->room, m->nrecords + 1)) return emit_no_memory(x);
  m->records[m->nrecords] = *r;
  m->records[m->nrecords].block = x->lane_block[emit_lane(x, agent)];
  m->records[m->nrecords++].to = -1;
  return true;
}

static hk_trace_operand emit_operand(const emit_state *x, const hk_mscclpp_place *p, bool written) {
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

static hk_trace_operand emit_write(emit_state *x, const hk_mscclpp_place *p) {
  emit_cell_at(x, p)->written = true;
  return emit_operand(x, p, true);
}

/* Receives the oldest message of a link at its place. */
static bool emit_receive(emit_state *x, int link) {
  emit_link *l = &x->links[link];
  const emit_message m = x->messages[l->first];
  const int rank = l->to % x->f->nranks;
  const hk_mscclpp_place p = {rank, m.place};
  hk_trace_record r = {.part = m.block % x->f->parts, .ndst = 1, .nsrc = 1};
  r.src[0] = (hk_trace_operand){HK_LINK, m.block, l->recv_block};
  r.dst[0] = emit_operand(x, &p, true);
  emit_cell_at(x, &p)->link = -1;
  l->first = m.next;
  if (l->first < 0) l->last = -1;
  l->under_way--;
  return emit_keep(x, rank, l->to, &r);
}

/* The place is used: what is under way to it arrives before. */
static bool emit_arrive(emit_state *x, const hk_mscclpp_place *p) {
  const emit_cell *c = emit_cell_at(x, p);
  while (c->link >= 0)
    if (!emit_receive(x, c->link)) return false;
  return true;
}

/* A message is on its way to a place. */
static bool emit_expect(emit_state *x, int link, const hk_mscclpp_place *p, uint16_t block) {
  emit_link *l = &x->links[link];
  if (!HK_RESERVE_NEXT(x->messages, x->nmessages)) return emit_no_memory(x);
  x->messages[x->nmessages] = (emit_message){.place = p->at, .next = -1, .when = ++x->sent, .block = block};
  *(l->last < 0 ? &l->first : &x->messages[l->last].next) = x->nmessages;
  l->last = x->nmessages++;
  l->under_way++;
  (void)emit_write(x, p);
  emit_cell_at(x, p)->link = link;
  return true;
}

/* Leaves room for one more message. */
static bool emit_make_room(emit_state *x, int link) {
  while (x->links[link].first >= 0 && (unsigned)x->links[link].under_way >= x->slots)
    if (!emit_receive(x, link)) return false;
  return true;
}

/* Before a message of a link that reads: receives what was sent before it over the link that is joined with it. */
static bool emit_receive_before(emit_state *x, int link, int when) {
  int with = x->first_link[x->links[link].from];
  while (with >= 0 && (x->links[with].to != x->links[link].to || x->links[with].reads)) with = x->links[with].next;
  while (with >= 0 && x->links[with].first >= 0 && x->messages[x->links[with].first].when < when)
    if (!emit_receive(x, with)) return false;
  return true;
}

/* ---- events ---- */

static uint16_t emit_block_of(const emit_state *x, const hk_mscclpp_event *e) {
  return (uint16_t)(e->chunk % (x->f->nin > x->f->nout ? x->f->nin : x->f->nout));
}

/* Source k of the event is in another rank's memory: that rank sends it. */
static bool emit_send_source(emit_state *x, const hk_mscclpp_event *e, int k) {
  const hk_mscclpp_place *p = &x->t->places[e->first + k];
  const int agent = emit_agent(x, e->block, p->rank);
  const int link = emit_link_of(x, agent, emit_agent(x, e->block, x->f->blocks[e->block].gpu), true);
  if (link < 0 || !emit_arrive(x, p)) return false;
  hk_trace_record r = {.part = e->chunk % x->f->parts, .ndst = 1, .nsrc = 1};
  r.src[0] = emit_operand(x, p, emit_cell_at(x, p)->written);
  r.dst[0] = (hk_trace_operand){HK_LINK, emit_block_of(x, e), x->links[link].send_block};
  x->ahead[e->first + k] = ++x->sent;
  return emit_keep(x, p->rank, agent, &r);
}

/* Before the events of a round: what they read of other ranks is sent, unless an event of the round writes it. One
 * message of a link is sent ahead. */
static bool emit_ahead(emit_state *x, int first, int end) {
  for (int i = first; i < end; i++) {
    const hk_mscclpp_event *e = &x->t->events[i];
    const int rank = x->f->blocks[e->block].gpu, own = emit_agent(x, e->block, rank);
    for (int k = 0; k < e->nsrc; k++) {
      const hk_mscclpp_place *p = &x->t->places[e->first + k];
      if (p->rank == rank) continue;
      const int link = emit_link_of(x, emit_agent(x, e->block, p->rank), own, true);
      if (link < 0) return false;
      const bool good = x->links[link].stopped != e->round && emit_shared_cell(x, *p)->round != e->round;
      x->links[link].stopped = e->round;
      if (good && !emit_send_source(x, e, k)) return false;
    }
    for (int k = e->nsrc; k < e->nsrc + e->ndst; k++) emit_shared_cell(x, x->t->places[e->first + k])->round = e->round;
  }
  return true;
}

static bool emit_event(emit_state *x, const hk_mscclpp_event *e) {
  const hk_mscclpp_place *p = &x->t->places[e->first], *q = p + e->nsrc;
  const int rank = x->f->blocks[e->block].gpu, own = emit_agent(x, e->block, rank);
  const uint16_t block = emit_block_of(x, e);
  hk_trace_operand src[HK_MSCCLPP_OPERANDS], dst[HK_MSCCLPP_OPERANDS];
  int local = -1, ndst = 0;
  for (int k = 0; k < e->nsrc; k++)
    if (p[k].rank == rank && !emit_arrive(x, &p[k])) return false;
  for (int k = 0; k < e->ndst; k++)
    if (!emit_arrive(x, &q[k])) return false;
  for (int k = 0; k < e->nsrc; k++) {
    if (p[k].rank == rank) {
      src[k] = emit_operand(x, &p[k], emit_cell_at(x, &p[k])->written);
      continue;
    }
    const int link = emit_link_of(x, emit_agent(x, e->block, p[k].rank), own, true);
    if (link < 0 || (!x->ahead[e->first + k] && !emit_send_source(x, e, k))) return false;
    if (x->joins && !emit_receive_before(x, link, x->ahead[e->first + k])) return false;
    src[k] = (hk_trace_operand){HK_LINK, block, x->links[link].recv_block};
  }
  for (int k = 0; k < e->ndst; k++) {
    if (q[k].rank != rank) continue;
    if (local < 0) local = ndst;
    dst[ndst++] = emit_write(x, &q[k]);
  }
  for (int k = 0; k < e->ndst; k++) {
    if (q[k].rank == rank) continue;
    const int link = emit_link_of(x, own, emit_agent(x, e->block, q[k].rank), false);
    if (link < 0 || !emit_make_room(x, link) || !emit_expect(x, link, &q[k], block)) return false;
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
    if (!last && local < 0) return emit_no_memory(x); /* every sum has a place of its rank */
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
static bool emit_copies(emit_state *x) {
  for (int r = 0; r < x->f->nranks; r++)
    for (int out = 0; out < x->f->nout; out++) {
      const hk_mscclpp_place p = {r, hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT) + out};
      hk_trace_record record = {.part = out % x->f->parts, .ndst = 1, .nsrc = 1};
      if (emit_cell_at(x, &p)->written) continue;
      record.src[0] = emit_operand(x, &p, false);
      record.dst[0] = emit_operand(x, &p, true);
      const int agent = emit_cell_at(x, &p)->agent; /* that reads it; -1: none */
      if (!emit_keep(x, r, agent < 0 ? emit_agent(x, 0, r) : agent, &record)) return false;
    }
  return true;
}

static bool emit_events(emit_state *x) {
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

/* The messages of a pair of links, one of each kind, in the order of either end: a hash. */
typedef struct emit_pair {
  uint64_t sent, received;
  bool twice; /* an instruction has both */
} emit_pair;

/* Adds an operand's message to its pair. `last`: of each pair, the record before. */
static void emit_note(const int *link_of, const emit_state *x, emit_pair *pairs, size_t *last,
                      const hk_trace_operand *o, bool sent, size_t record) {
  if (o->space != HK_LINK) return;
  const int link = link_of[o->owner], pair = x->links[link].next;
  if (pair < 0) return;
  uint64_t *hash = sent ? &pairs[pair].sent : &pairs[pair].received;
  *hash = hk_hash_mix(*hash, (uint64_t)x->links[link].reads + 1);
  pairs[pair].twice |= last[2 * pair + sent] == record;
  last[2 * pair + sent] = record;
}

/* If both kinds of messages between two lanes have one order at both ends, they go over one link. */
static bool emit_join_links(emit_state *x) {
  bool good = false;
  emit_pair *pairs = calloc((size_t)x->nlinks + 1, sizeof *pairs);
  size_t *last = calloc(2 * (size_t)x->nlinks + 1, sizeof *last);
  int *link_of = calloc((size_t)x->nblocks + 1, sizeof *link_of);
  if (!pairs || !last || !link_of) goto out;
  for (int i = 0; i < x->nlinks; i++) { /* `next` becomes the pair: the number of its link that writes */
    emit_link *l = &x->links[i];
    link_of[l->send_block] = link_of[l->recv_block] = i;
    for (int k = x->first_link[l->from]; k >= 0 && l->with < 0; k = x->links[k].next)
      if (l->reads && x->links[k].to == l->to && !x->links[k].reads) l->with = k;
  }
  for (int i = 0; i < x->nlinks; i++) x->links[i].next = x->links[i].reads ? x->links[i].with : i;
  for (int r = 0; r < x->f->nranks; r++) {
    const hk_trace_rank *m = &x->trace.ranks[r];
    for (size_t i = 0; i < m->nrecords; i++) {
      for (int k = 0; k < m->records[i].ndst; k++)
        emit_note(link_of, x, pairs, last, &m->records[i].dst[k], true, i + 1);
      for (int k = 0; k < m->records[i].nsrc; k++)
        emit_note(link_of, x, pairs, last, &m->records[i].src[k], false, i + 1);
    }
  }
  for (int i = 0; i < x->nlinks; i++) {
    emit_link *l = &x->links[i];
    if (l->with >= 0 && (pairs[l->with].sent != pairs[l->with].received || pairs[l->with].twice)) l->with = -1;
  }
  good = true;
out:
  free(pairs);
  free(last);
  free(link_of);
  return good || emit_no_memory(x);
}

/* Scratch memory is used from chunk 0 on, without gaps. */
static bool emit_pack_scratch(emit_state *x) {
  const size_t n = (size_t)(2 * x->f->scratch + x->f->nin) + 1;
  int *number = malloc(n * sizeof *number);
  if (!number) return emit_no_memory(x);
  for (int r = 0; r < x->f->nranks; r++) {
    hk_trace_rank *m = &x->trace.ranks[r];
    int next = 0;
    memset(number, -1, n * sizeof *number);
    for (size_t i = 0; i < m->nrecords; i++)
      for (int k = 0; k < m->records[i].ndst + m->records[i].nsrc; k++) {
        hk_trace_operand *o = k < m->records[i].ndst ? &m->records[i].dst[k]
                                                     : &m->records[i].src[k - m->records[i].ndst];
        if (o->space != HK_SCRATCH) continue;
        if (number[o->block] < 0) number[o->block] = next++;
        o->block = (uint16_t)number[o->block];
      }
  }
  free(number);
  return true;
}

static bool emit_begin(emit_state *x, unsigned how) {
  const hk_mscclpp_file *f = x->f;
  const size_t agents = (size_t)f->nblocks * (size_t)f->nranks,
               cells = (size_t)hk_mscclpp_places(f) * (size_t)f->nranks;
  x->lanes = calloc(agents + 1, sizeof *x->lanes);
  x->lane_block = calloc(agents + 1, sizeof *x->lane_block);
  x->cells = calloc(cells + 1, sizeof *x->cells);
  x->ahead = calloc((size_t)x->t->nplaces + 1, sizeof *x->ahead);
  x->first_link = calloc(agents + 1, sizeof *x->first_link);
  x->inputs = malloc((size_t)f->nranks * (size_t)f->nout * sizeof *x->inputs);
  if (!x->lanes || !x->lane_block || !x->cells || !x->ahead || !x->first_link || !x->inputs) return emit_no_memory(x);
  memset(x->inputs, -1, (size_t)f->nranks * (size_t)f->nout * sizeof *x->inputs);
  for (int r = 0; r < f->nranks; r++)
    for (int in = 0; in < f->nin; in++) {
      const int out = hk_mscclpp_alias(f, r, in);
      if (out >= 0) x->inputs[r * f->nout + out] = in;
    }
  for (size_t i = 0; i < agents; i++) x->lanes[i] = (int)i;
  for (size_t i = 0; i < cells; i++) x->cells[i] = (emit_cell){.link = -1, .round = -1, .agent = -1};
  emit_find_lanes(x);
  if (!(how & HK_MSCCLPP_LANES)) emit_one_lane(x);
  int *numbers = calloc((size_t)(f->nranks * f->nranks) * (3 + HK_CHANNELS), sizeof *numbers);
  if (!numbers) return emit_no_memory(x);
  bool good;
  do good = emit_find_links(x);
  while (good && !emit_few_links(x, numbers));
  free(numbers);
  return good && emit_begin_trace(x);
}

hk_status hk_mscclpp_emit(const hk_mscclpp_events *t, unsigned how, unsigned slots, hk_program **programs) {
  hk_status rc = HK_ERR_SYSTEM;
  emit_state x = {.t = t, .f = t->f, .slots = slots, .joins = how & HK_MSCCLPP_JOIN};
  if (emit_begin(&x, how) && emit_events(&x) && (!x.joins || emit_join_links(&x)) && emit_number_links(&x) &&
      emit_pack_scratch(&x)) {
    x.trace.how = how;
    rc = hk_trace_fold(&x.trace);
    if (rc == HK_OK) rc = hk_trace_programs(&x.trace, programs);
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
