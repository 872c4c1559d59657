/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes and links of an MSCCL++ plan's programs (mscclpp_emit.h). */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../base/hash.h"
#include "mscclpp_emit.h"

bool hk_mscclpp_emit_no_memory(hk_mscclpp_emitter *x) {
  x->no_memory = true;
  return false;
}

/* ---- lanes ---- */

int hk_mscclpp_agent(const hk_mscclpp_emitter *x, int block, int rank) { return block * x->f->nranks + rank; }
int hk_mscclpp_lane(const hk_mscclpp_emitter *x, int agent) {
  while (x->lanes[agent] != agent) agent = x->lanes[agent] = x->lanes[x->lanes[agent]];
  return agent;
}
static void lanes_tie(hk_mscclpp_emitter *x, int a, int b) {
  a = hk_mscclpp_lane(x, a), b = hk_mscclpp_lane(x, b);
  x->lanes[a > b ? a : b] = a < b ? a : b;
}

hk_mscclpp_emit_place *hk_mscclpp_emit_cell(const hk_mscclpp_emitter *x, const hk_mscclpp_place *p) {
  return &x->cells[(size_t)p->rank * (size_t)hk_mscclpp_places(x->f) + (size_t)p->at];
}

hk_mscclpp_emit_place *hk_mscclpp_shared_cell(const hk_mscclpp_emitter *x, hk_mscclpp_place p) {
  const int out = p.at < x->f->nin ? hk_mscclpp_alias(x->f, p.rank, p.at) : -1;
  if (out >= 0) p.at = hk_mscclpp_begin(x->f, HK_MSCCLPP_OUT) + out;
  return hk_mscclpp_emit_cell(x, &p);
}

void hk_mscclpp_find_lanes(hk_mscclpp_emitter *x) {
  const hk_mscclpp_events *t = x->t;
  for (int b = 0; b < x->f->nblocks; b++)
    for (int r = 0; r < x->f->nranks; r++) {
      const int first = x->f->gpus[r].first_block, n = x->f->gpus[r + 1].first_block - first;
      const int id = x->f->blocks[b].id;
      if (n) lanes_tie(x, hk_mscclpp_agent(x, b, r), hk_mscclpp_agent(x, first + (id < n ? id : n - 1), r));
    }
  for (int write = 1; write >= 0; write--) /* first: which chunks are written at all */
    for (int i = 0; i < t->nevents; i++) {
      const hk_mscclpp_event *e = &t->events[i];
      for (int k = write ? e->nsrc : 0; k < e->nsrc + e->ndst; k++) {
        hk_mscclpp_emit_place *c = hk_mscclpp_shared_cell(x, t->places[e->first + k]);
        const int agent = hk_mscclpp_agent(x, e->block, t->places[e->first + k].rank);
        if (write) c->shared = true;
        if (write) continue;
        if (c->shared && c->agent >= 0) lanes_tie(x, c->agent, agent);
        c->agent = agent;
      }
    }
}

void hk_mscclpp_one_lane(hk_mscclpp_emitter *x) {
  for (int b = 0; b < x->f->nblocks; b++)
    for (int r = 0; r < x->f->nranks; r++) lanes_tie(x, hk_mscclpp_agent(x, 0, r), hk_mscclpp_agent(x, b, r));
}

/* ---- links ---- */

int hk_mscclpp_link_of(hk_mscclpp_emitter *x, int from, int to, bool reads) {
  from = hk_mscclpp_lane(x, from), to = hk_mscclpp_lane(x, to);
  for (int i = x->first_link[from]; i >= 0; i = x->links[i].next)
    if (x->links[i].to == to && x->links[i].reads == reads) return i;
  if (!HK_RESERVE_NEXT(x->links, x->nlinks)) return hk_mscclpp_emit_no_memory(x) - 1;
  x->links[x->nlinks] = (hk_mscclpp_link){.from = from,
                                          .to = to,
                                          .reads = reads,
                                          .first = -1,
                                          .last = -1,
                                          .stopped = -1,
                                          .next = x->first_link[from],
                                          .with = -1};
  return x->first_link[from] = x->nlinks++;
}

bool hk_mscclpp_find_links(hk_mscclpp_emitter *x) {
  const hk_mscclpp_events *t = x->t;
  x->nlinks = 0;
  memset(x->first_link, -1, (size_t)x->f->nblocks * (size_t)x->f->nranks * sizeof *x->first_link);
  for (int i = 0; i < t->nevents; i++) {
    const hk_mscclpp_event *e = &t->events[i];
    const int rank = x->f->blocks[e->block].gpu, own = hk_mscclpp_agent(x, e->block, rank);
    for (int k = 0; k < e->nsrc + e->ndst; k++) {
      const int other = t->places[e->first + k].rank;
      if (other == rank) continue;
      const int agent = hk_mscclpp_agent(x, e->block, other);
      if (hk_mscclpp_link_of(x, k < e->nsrc ? agent : own, k < e->nsrc ? own : agent, k < e->nsrc) < 0) return false;
    }
  }
  return true;
}

/* Of each kind of links, those that read and the others, half of HK_CHANNELS is left. */
bool hk_mscclpp_few_links(hk_mscclpp_emitter *x, int *numbers) {
  enum { HALF = HK_CHANNELS / 2 };
  const int n = x->f->nranks;
  int *counts = numbers, *kinds = counts + n * n, *firsts = kinds + 2 * n * n;
  bool good = true;
  memset(numbers, 0, 3 * (size_t)(n * n) * sizeof *numbers);
  for (int i = 0; i < x->nlinks; i++) counts[x->links[i].from % n * n + x->links[i].to % n]++;
  for (int i = 0; i < x->nlinks; i++) {
    const hk_mscclpp_link *l = &x->links[i];
    const int pair = l->from % n * n + l->to % n, kind = 2 * pair + l->reads, turn = kinds[kind]++;
    if (counts[pair] <= HK_CHANNELS) continue;
    good = false;
    if (turn < HALF) {
      firsts[HALF * kind + turn] = i;
      continue;
    }
    const hk_mscclpp_link *first = &x->links[firsts[HALF * kind + turn % HALF]];
    lanes_tie(x, first->from, l->from);
    lanes_tie(x, first->to, l->to);
  }
  return good;
}

/* The same on all ranks if they do the same: links of one kind come first, and lanes keep the order of their blocks. */
static uint64_t lanes_link_order(const hk_mscclpp_emitter *x, const hk_mscclpp_link *l) {
  const int n = x->f->nranks;
  return (uint64_t)l->reads << 40 | (uint64_t)x->f->blocks[l->from / n].id << 20 | (unsigned)x->f->blocks[l->to / n].id;
}

bool hk_mscclpp_number_links(hk_mscclpp_emitter *x) {
  const int n = x->f->nranks;
  int *turns = calloc((size_t)(n * n) * (1 + HK_CHANNELS), sizeof *turns), *others = turns + n * n;
  if (!turns) return hk_mscclpp_emit_no_memory(x);
  for (int i = 0; i < x->nlinks; i++) {
    hk_mscclpp_link *l = &x->links[i];
    const int pair = l->from % n * n + l->to % n;
    l->channel = 0;
    if (l->with >= 0) continue;
    for (int k = 0; k < turns[pair]; k++) {
      hk_mscclpp_link *o = &x->links[others[HK_CHANNELS * pair + k]];
      *(lanes_link_order(x, o) > lanes_link_order(x, l) ? &o->channel : &l->channel) += 1;
    }
    others[HK_CHANNELS * pair + turns[pair]++] = i;
  }
  for (int i = 0; i < x->nlinks; i++) {
    const hk_mscclpp_link *l = &x->links[i], *first = l->with < 0 ? l : &x->links[l->with];
    x->trace.links[l->send_block] = (hk_trace_link){.first = first->send_block, .channel = first->channel};
  }
  free(turns);
  return true;
}

/* The messages of a pair of links, one of each kind, in the order of either end: a hash. */
typedef struct lanes_pair {
  uint64_t sent, received;
  bool twice; /* an instruction has both */
} lanes_pair;

/* Adds an operand's message to its pair. `last`: of each pair, the record before. */
static void lanes_note(const int *link_of, const hk_mscclpp_emitter *x, lanes_pair *pairs, size_t *last,
                       const hk_trace_operand *o, bool sent, size_t record) {
  if (o->space != HK_LINK) return;
  const int link = link_of[o->owner], pair = x->links[link].next;
  if (pair < 0) return;
  uint64_t *hash = sent ? &pairs[pair].sent : &pairs[pair].received;
  *hash = hk_hash_mix(*hash, (uint64_t)x->links[link].reads + 1);
  pairs[pair].twice |= last[2 * pair + sent] == record;
  last[2 * pair + sent] = record;
}

bool hk_mscclpp_join_links(hk_mscclpp_emitter *x) {
  bool good = false;
  lanes_pair *pairs = calloc((size_t)x->nlinks + 1, sizeof *pairs);
  size_t *last = calloc(2 * (size_t)x->nlinks + 1, sizeof *last);
  int *link_of = calloc((size_t)x->nblocks + 1, sizeof *link_of);
  if (!pairs || !last || !link_of) goto out;
  for (int i = 0; i < x->nlinks; i++) { /* `next` becomes the pair: the number of its link that writes */
    hk_mscclpp_link *l = &x->links[i];
    link_of[l->send_block] = link_of[l->recv_block] = i;
    for (int k = x->first_link[l->from]; k >= 0 && l->with < 0; k = x->links[k].next)
      if (l->reads && x->links[k].to == l->to && !x->links[k].reads) l->with = k;
  }
  for (int i = 0; i < x->nlinks; i++) x->links[i].next = x->links[i].reads ? x->links[i].with : i;
  for (int r = 0; r < x->f->nranks; r++) {
    const hk_trace_rank *m = &x->trace.ranks[r];
    for (size_t i = 0; i < m->nrecords; i++) {
      for (int k = 0; k < m->records[i].ndst; k++)
        lanes_note(link_of, x, pairs, last, &m->records[i].dst[k], true, i + 1);
      for (int k = 0; k < m->records[i].nsrc; k++)
        lanes_note(link_of, x, pairs, last, &m->records[i].src[k], false, i + 1);
    }
  }
  for (int i = 0; i < x->nlinks; i++) {
    hk_mscclpp_link *l = &x->links[i];
    if (l->with >= 0 && (pairs[l->with].sent != pairs[l->with].received || pairs[l->with].twice)) l->with = -1;
  }
  good = true;
out:
  free(pairs);
  free(last);
  free(link_of);
  return good || hk_mscclpp_emit_no_memory(x);
}
