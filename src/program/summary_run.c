/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the programs of all ranks with messages that take one round each (summary.h). */
#include "summary_run.h"
#include <stdlib.h>
#include "../base/array.h"

static const hk_chain_key round_of[] = {
    [HK_INSIDE] = (hk_chain_key)1 << HK_CHAIN_ROUNDS,
    [HK_BETWEEN] = ((hk_chain_key)1 << HK_CHAIN_FAR) + ((hk_chain_key)1 << HK_CHAIN_ROUNDS)};
/* What a message adds to a chain. */
static hk_chain_key run_round(const hk_summary_run *x, const hk_summary_end *e) {
  return e->own && !x->slots ? 0 : round_of[e->reach];
}

/* Notes if the slot was sent before the sender could know that the slot x->slots before it is free. */
static void run_note_ahead(hk_summary_run *x, const hk_summary_end *e, uint32_t slot) {
  if (!x->slots || slot < x->slots || slot >= e->filled || slot - x->slots >= e->taken) return;
  x->ahead |= e->slots[slot] < e->slots[slot - x->slots] + 2 * run_round(x, e);
}

/* Of a slot: instructions one after another before it. */
static uint32_t *run_busy(const hk_summary_run *x, const hk_summary_end *e, uint32_t slot) {
  return &x->busy_of_all[(size_t)(e->slots - x->slots_of_all) + slot];
}

static hk_status run_deliver(hk_summary_run *x, uint32_t receiver, hk_chain_key at, uint32_t busy) {
  hk_summary_end *e = &x->ends[receiver];
  if (e->filled == e->capacity)
    return HK_FAIL(HK_ERR_INTERNAL, "%s: rank %u takes %u slots of a link, and more come: hocket verify says more",
                   x->programs[0]->algorithm, e->rank, e->capacity);
  *run_busy(x, e, e->filled) = busy;
  e->slots[e->filled++] = at;
  run_note_ahead(x, e, e->filled - 1);
  if (e->waiting) x->ready[x->nready++] = e->thread;
  e->waiting = false;
  return HK_OK;
}

/* A slot of a group that all members have sent: see HK_LINK_SUM_SEND and HK_LINK_GATHER_SEND. */
static hk_status run_deliver_group(hk_summary_run *x, const hk_summary_group *g, uint32_t slot, uint32_t busy) {
  const hk_chain_key at = g->slots[slot] + round_of[g->reach];
  const uint32_t each = g->kind == HK_LINK_GATHER_SEND ? g->n : 1;
  for (uint32_t m = 0; m < g->n; m++) {
    if (g->kind == HK_LINK_SCATTER_SEND && m != slot % g->n) continue;
    for (uint32_t k = 0; k < each; k++) HK_OR_RETURN(run_deliver(x, x->receivers[g->first + m], at, busy));
  }
  return HK_OK;
}

static hk_status run_send_group(hk_summary_run *x, hk_summary_group *g, uint32_t slot, hk_chain_key now,
                                uint32_t busy) {
  if (slot >= g->nslots) { /* the first member that sends it */
    if (!HK_RESERVE(g->slots, g->slots_capacity, slot + 1) || !HK_RESERVE(g->sent, g->sent_capacity, slot + 1))
      return hk_summary_memory(x->nranks);
    g->slots[slot] = 0;
    g->sent[slot] = 0;
    g->nslots = slot + 1;
  }
  if (now > g->slots[slot]) g->slots[slot] = now;
  return ++g->sent[slot] == g->n ? run_deliver_group(x, g, slot, busy) : HK_OK;
}

static hk_status run_note(hk_summary_run *x, const hk_summary_end *e, hk_chain_key now) {
  if (x->one_host && e->reach == HK_INSIDE && x->host && x->host[e->rank] != 0) return HK_OK;
  if (!HK_RESERVE(x->messages, x->messages_capacity, x->nmessages + 1)) return hk_summary_memory(x->nranks);
  x->messages[x->nmessages++] = (hk_summary_message){.after = now, .from = e->rank, .to = e->peer};
  return HK_OK;
}

/* Notes, in the first wave, what the lane does with a slot of a receiving end (NULL: it begins an instruction). */
static hk_status run_trace(hk_summary_run *x, const hk_summary_thread *t, const hk_summary_end *e, uint32_t slot) {
  const uint32_t lane = (uint32_t)(t - x->threads), lanes = x->first_thread[x->period];
  if (!x->traces || t->at.offset) return HK_OK;
  if (!HK_RESERVE(x->events, x->events_capacity, x->nevents + 1)) return hk_summary_memory(x->nranks);
  x->events[x->nevents++] = (hk_summary_event){.lane = lane,
                                               .slot = e ? lanes + (uint32_t)(e->slots - x->slots_of_all) + slot : lane,
                                               .from = (uint32_t)t->rank,
                                               .to = e ? e->rank : 0};
  return HK_OK;
}

/* What a message inside the host moves over the sender's port. */
static void run_count_port(const hk_summary_run *x, hk_volume *v, const hk_summary_end *e, uint64_t blocks) {
  const hk_summary_group *g = e->group ? &x->groups[e->group - 1] : NULL;
  v->port_out += blocks * (g ? g->n : 1);
  if (!g && e->n > 1) v->port_in += blocks;
}

/* `count`: the first wave, which is counted. */
static hk_status run_send(hk_summary_run *x, hk_summary_thread *t, hk_summary_end *e, uint64_t blocks, bool count) {
  hk_volume *v = &x->volumes[t->rank];
  if (count) {
    v->sent[e->reach]++;
    v->carried[e->reach] += blocks;
    t->carried[e->reach] += blocks;
    if (e->crosses) v->crossing += blocks;
    if (e->reach == HK_INSIDE) run_count_port(x, v, e, blocks);
  }
  if (e->group) return run_send_group(x, &x->groups[e->group - 1], e->filled++, t->now, t->busy);
  if (count && e->n == 1 && blocks && !x->bounded) HK_OR_RETURN(run_note(x, e, t->now));
  for (const uint32_t *r = &x->receivers[e->first], *end = r + e->n; r < end; r++) {
    const hk_summary_end *to = &x->ends[*r];
    HK_OR_RETURN(run_trace(x, t, to, to->filled));
    HK_OR_RETURN(run_deliver(x, *r, t->now + run_round(x, e), t->busy));
  }
  return HK_OK;
}

/* The end of the operand's link. */
static hk_summary_end *run_end(hk_summary_run *x, const hk_summary_thread *t, const hk_operand *o) {
  return &x->ends[x->first_end[t->rank] + hk_cursor_link(&t->at, o)];
}

/* False if the lane has to wait for a slot; else t->now is when all have arrived. */
static bool run_take(hk_summary_run *x, hk_summary_thread *t, const hk_operand *sources, unsigned n) {
  hk_chain_key now = t->now;
  uint32_t busy = t->busy;
  for (unsigned k = 0; k < n; k++) {
    if (sources[k].space != HK_LINK) continue;
    hk_summary_end *e = run_end(x, t, &sources[k]);
    if (e->taken == e->filled) {
      e->waiting = true;
      return false;
    }
    const uint32_t before = *run_busy(x, e, e->taken);
    if (e->slots[e->taken] > now) now = e->slots[e->taken];
    if (before > busy) busy = before;
  }
  if (now > t->now) t->tail = 0;
  t->now = now;
  t->busy = busy;
  return true;
}

/* False if the lane has to wait until a receiver has taken a slot; else *now is when all links have a free one. */
static bool run_has_room(hk_summary_run *x, const hk_summary_thread *t, const hk_operand *o, unsigned n,
                         hk_chain_key *now) {
  for (unsigned k = 0; x->bounded && k < n; k++) {
    if (o[k].space != HK_LINK) continue;
    const hk_summary_end *e = run_end(x, t, &o[k]);
    if (e->group || e->n != 1) continue;
    hk_summary_end *to = &x->ends[x->receivers[e->first]];
    if (to->filled < x->slots) continue;
    const uint32_t before = to->filled - x->slots;
    if (before >= to->taken) {
      to->full = true;
      to->sender = (uint32_t)(t - x->threads);
      return false;
    }
    const hk_chain_key free = to->slots[before] + run_round(x, e);
    if (free > *now) *now = free;
  }
  return true;
}

/* The lane takes the end's next slot. */
static void run_free_slot(hk_summary_run *x, const hk_summary_thread *t, hk_summary_end *e) {
  e->slots[e->taken++] = t->now;
  run_note_ahead(x, e, e->taken - 1 + x->slots);
  if (e->full) x->ready[x->nready++] = e->sender;
  e->full = false;
}

/* *last: the end of the instruction's last message. */
static void run_count_burst(hk_volume *v, const hk_summary_thread *t, const hk_summary_end *e,
                            const hk_summary_end **last) {
  if (e->own) return;
  v->bursts[e->reach] += e != t->last;
  *last = e;
}

/* One instruction. *waits: it could not run. */
static hk_status run_step(hk_summary_run *x, hk_summary_thread *t, bool *waits) {
  const hk_program *p = x->programs[t->rank];
  const hk_instr *i = hk_cursor_move(&t->at, hk_program_instrs(p));
  const hk_operand *o = hk_instr_operands(p, i), *sources = o + i->ndst;
  const bool count = t->at.offset == 0;
  const uint64_t blocks = i->ndst && i->nsrc;
  hk_volume *v = &x->volumes[t->rank];
  uint64_t near = 0; /* blocks received inside the host */
  unsigned sends = 0, receives = 0;
  const hk_summary_end *last = NULL; /* of the instruction's messages */
  hk_chain_key capacity = 0;
  *waits = !run_has_room(x, t, o, i->ndst, &capacity) || !run_take(x, t, sources, i->nsrc);
  if (*waits) return HK_OK;
  if (capacity > t->now) t->now = capacity;
  t->now++;
  t->tail++;
  t->busy++;
  HK_OR_RETURN(run_trace(x, t, NULL, 0));
  for (unsigned k = 0; k < i->nsrc; k++) {
    if (sources[k].space != HK_LINK) continue;
    hk_summary_end *e = run_end(x, t, &sources[k]);
    HK_OR_RETURN(run_trace(x, t, e, e->taken));
    run_free_slot(x, t, e);
    if (!count) continue;
    v->received[e->reach]++;
    v->taken[e->reach] += blocks;
    run_count_burst(v, t, e, &last);
    near += blocks && e->reach == HK_INSIDE;
    receives++;
  }
  for (unsigned k = 0; k < i->ndst; k++) {
    if (o[k].space != HK_LINK) continue;
    hk_summary_end *e = run_end(x, t, &o[k]);
    HK_OR_RETURN(run_send(x, t, e, blocks, count));
    if (count) run_count_burst(v, t, e, &last);
    sends++;
  }
  if (!count) return HK_OK;
  const bool adds = near > 0 && i->nsrc > 1 && i->flags & HK_INSTR_IN_SWITCH;
  v->port_in += adds ? 1 : near;
  v->port_out += adds;
  t->instrs++;
  t->last = last;
  v->instrs++;
  v->moved += blocks * (sends + receives);
  v->kept += blocks * (i->ndst - sends);
  v->written += blocks * i->ndst;
  if (blocks) v->reduced += i->nsrc - 1u;
  return HK_OK;
}

static void run_end_wave(hk_summary_run *x, const hk_summary_thread *t, uint64_t wave) {
  if (wave == 0 && t->busy > x->busy) x->busy = t->busy;
  if (t->now < x->wave_ends[wave]) return;
  /* Lanes run in no certain order, so of equal chains the longer tail counts. */
  if (wave == 0 && (t->now > x->wave_ends[0] || t->tail > x->tail)) x->tail = t->tail;
  x->wave_ends[wave] = t->now;
}

/* Runs a lane until it waits or ends. */
static hk_status run_thread(hk_summary_run *x, hk_summary_thread *t) {
  for (;;) {
    const uint64_t wave = t->at.offset;
    bool waits;
    HK_OR_RETURN(run_step(x, t, &waits));
    if (waits) return HK_OK;
    t->ended = !hk_cursor_next(&t->at, &x->sizes, 1);
    if (t->ended || t->at.offset != wave) run_end_wave(x, t, wave);
    if (t->ended) return HK_OK;
  }
}

static hk_status run_ended(const hk_summary_run *x) {
  for (uint32_t k = 0; k < x->first_thread[x->period]; k++)
    if (!x->threads[k].ended)
      return HK_FAIL(HK_ERR_INTERNAL, "%s: rank %d waits at instruction %u for ever: hocket verify says more",
                     x->programs[0]->algorithm, x->threads[k].rank, x->threads[k].at.pc);
  return HK_OK;
}

hk_status hk_summary_go(hk_summary_run *x) {
  for (int r = 0; r < x->period; r++)
    for (unsigned l = 0; l < x->programs[r]->nlanes; l++) {
      hk_summary_thread *t = &x->threads[x->first_thread[r] + l];
      t->rank = r;
      t->ended = !hk_cursor_begin(&t->at, &hk_program_lanes(x->programs[r])[l], 0, &x->sizes);
      if (!t->ended) x->ready[x->nready++] = x->first_thread[r] + l;
    }
  while (x->nready) HK_OR_RETURN(run_thread(x, &x->threads[x->ready[--x->nready]]));
  return run_ended(x);
}

hk_status hk_summary_first_on(hk_chain *out, const hk_summary *s, const int32_t *host) {
  const hk_summary_event *end = s->events + s->nevents;
  size_t n = 1;
  for (const hk_summary_event *e = s->events; e < end; e++)
    if (e->slot >= n) n = (size_t)e->slot + 1;
  hk_chain_key most = 0, *at = calloc(n, sizeof *at); /* when a lane is at this point, or a slot has arrived */
  if (!at) return hk_summary_memory(s->nranks);
  for (const hk_summary_event *e = s->events; e < end; e++) {
    hk_chain_key *lane = &at[e->lane], *slot = &at[e->slot];
    if (lane == slot)
      ++*lane;
    else if (e->from != e->to)
      *slot = *lane + round_of[host[e->from] == host[e->to] ? HK_INSIDE : HK_BETWEEN];
    else if (*lane <= *slot)
      *lane = *slot + 1;
    if (*lane > most) most = *lane;
  }
  free(at);
  *out = hk_summary_chain_of(most);
  return HK_OK;
}

void hk_summary_run_free(hk_summary_run *x) {
  for (uint32_t k = 0; k < x->ngroups; k++) {
    free(x->groups[k].slots);
    free(x->groups[k].sent);
  }
  free(x->first_end);
  free(x->first_thread);
  free(x->ends);
  free(x->slots_of_all);
  free(x->busy_of_all);
  free(x->receivers);
  free(x->groups);
  free(x->threads);
  free(x->ready);
  free(x->volumes);
  free(x->local);
  free(x->messages);
  free(x->events);
}
