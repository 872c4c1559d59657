/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of the event level. A thread waits until all links of its instruction are ready, takes its time to notice
 * that (and on a CPU the rank's core), moves, then signals: as src/kernels/exec.c does. */
#include "run.h"
#include <stdlib.h>
#include "../base/array.h"
#include "../program/summary.h"
#include "model.h"

enum { QUEUE_IDS = 1u << 30 }; /* at the same time, events of network queues are after those of threads */

hk_status hk_times_push(hk_times *q, double at) {
  if (q->count == q->capacity) {
    uint32_t capacity = q->capacity ? 2 * q->capacity : 8;
    double *grown = malloc(capacity * sizeof *grown);
    if (!grown) return HK_FAIL_ERRNO("no memory for %u messages", capacity);
    for (uint32_t i = 0; i < q->count; i++) grown[i] = q->at[(q->head + i) & (q->capacity - 1)];
    free(q->at);
    q->at = grown;
    q->capacity = capacity;
    q->head = 0;
  }
  q->at[(q->head + q->count++) & (q->capacity - 1)] = at;
  return HK_OK;
}

static inline double run_time_of(double stored) { return stored < 0 ? -1 - stored : stored; }
static inline double run_now(const hk_sim *s) { return s->cluster.net.now; }
static hk_status run_proceed(hk_sim *s, hk_lane_state *t);

/* ---- messages and credits ---- */

/* Wakes the thread that waits for this side. */
static hk_status run_wake(hk_sim *s, hk_side *e) {
  if (!e->waiting) return HK_OK;
  hk_lane_state *t = &s->threads[e->thread];
  e->waiting = false;
  t->state = HK_T_READY;
  t->woken = true;
  return run_proceed(s, t);
}

static hk_status run_deliver(hk_sim *s, hk_side *e, double at, bool reference) {
  uint32_t passes = hk_side_passes(e);
  for (uint32_t i = 0; passes && i < e->ntargets; i++) {
    hk_side *r = &s->sides[s->targets[e->first_target + i]];
    for (uint32_t n = 0; n < passes; n++) HK_OR_RETURN(hk_times_push(&r->times, reference ? -1 - at : at));
    HK_OR_RETURN(run_wake(s, r));
  }
  return HK_OK;
}

static hk_status run_start_queue(hk_sim *s, hk_sim_queue *q) {
  double bytes = hk_times_first(&q->bytes), limit = 1e12;
  q->flow.end.id = QUEUE_IDS + q->end;
  if (!s->gpu) limit = HK_SIM_SOCKET_GBPS * 1000 / s->wire;
  return hk_flow_start(&s->cluster.net, &q->flow, bytes > 1 ? bytes : 1, limit);
}

static hk_status run_publish(hk_sim *s, hk_lane_state *t, hk_side *e, size_t bytes) {
  if (e->credits)
    e->credits--;
  else
    hk_times_pop(&e->times);
  e->sent++;
  s->counts.messages[e->queue ? HK_BETWEEN : HK_INSIDE]++;
  s->counts.bytes[e->queue ? HK_BETWEEN : HK_INSIDE] += bytes;
  t->outstanding++;
  if (!e->queue) {
    bool reference = t->refers && !e->multicast && bytes;
    t->lent = t->lent || reference;
    return run_deliver(s, e, run_now(s) + e->us, reference);
  }
  HK_OR_RETURN(hk_times_push(&e->queue->bytes, (double)bytes * e->gives));
  if (e->queue->bytes.count == 1) HK_OR_RETURN(run_start_queue(s, e->queue));
  return HK_OK;
}

/* A message has left for the other host. */
static hk_status run_sent(hk_sim *s, hk_sim_queue *q) {
  hk_side *e = &s->sides[q->end];
  hk_flow_stop(&s->cluster.net, &q->flow);
  hk_times_pop(&q->bytes);
  if (q->bytes.count) HK_OR_RETURN(run_start_queue(s, q));
  return run_deliver(s, e, run_now(s) + e->us, false);
}

static void run_finish_thread(hk_sim *s, hk_lane_state *t, double at) {
  t->state = HK_T_DONE;
  if (at > s->finished) s->finished = at;
}

static hk_status run_release(hk_sim *s, hk_side *e) {
  double at = run_now(s) + e->us;
  hk_times_pop(&e->times);
  e->consumed++;
  uint32_t passes = hk_side_passes(e);
  for (uint32_t i = 0; passes && i < e->ntargets; i++) {
    hk_side *sender = &s->sides[s->targets[e->first_target + i]];
    if (sender->left) {
      uint32_t *left = &sender->left[(e->consumed - 1) % s->nslots];
      if (--*left) continue;
      *left = sender->ntargets;
    }
    for (uint32_t n = 0; n < passes; n++) HK_OR_RETURN(hk_times_push(&sender->times, at));
    hk_lane_state *t = &s->threads[sender->thread];
    t->outstanding -= passes;
    if (t->state == HK_T_DRAINING && !t->outstanding) run_finish_thread(s, t, at);
    HK_OR_RETURN(run_wake(s, sender));
  }
  return HK_OK;
}

/* ---- instructions ---- */

static hk_status run_keep_span(hk_sim *s, const hk_lane_state *t) {
  hk_timeline *l = &s->timeline;
  if (!l->kept) return HK_OK;
  if (!HK_RESERVE(l->spans, l->capacity, l->n + 1))
    return HK_FAIL_ERRNO("no memory for a timeline of %u instructions", l->n + 1);
  l->spans[l->n++] = (hk_sim_span){.begin_us = t->began,
                                   .end_us = run_now(s),
                                   .rank = (uint32_t)t->rank,
                                   .lane = (uint16_t)(t->channel * t->program->nlanes + t->lane),
                                   .instr = t->at.pc,
                                   .wave = (uint32_t)(t->at.offset / (s->sizes.chunk * (size_t)s->all_channels))};
  return HK_OK;
}

static hk_status run_give_core(hk_sim *s, int rank) {
  if (!s->cores) return HK_OK;
  hk_core *c = &s->cores[rank];
  c->busy = false;
  if (c->head == HK_SIM_NONE) return HK_OK;
  hk_lane_state *t = &s->threads[c->head];
  c->head = t->next;
  if (c->head == HK_SIM_NONE) c->tail = HK_SIM_NONE;
  t->next = HK_SIM_NONE;
  c->busy = true;
  t->state = HK_T_STARTING;
  return hk_net_at(&s->cluster.net, &t->flow.end, run_now(s) + s->lane_us);
}

static hk_status run_finish(hk_sim *s, hk_lane_state *t, size_t bytes) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *o = hk_lane_operands(t);
  s->steps++;
  s->counts.written += bytes * i->ndst;
  if (bytes) s->counts.reduced += bytes * (i->nsrc - 1u);
  HK_OR_RETURN(run_keep_span(s, t));
  for (unsigned k = 0; k < i->ndst; k++)
    if (o[k].space == HK_LINK) HK_OR_RETURN(run_publish(s, t, hk_lane_side(s, t, &o[k]), bytes));
  for (unsigned k = i->ndst; k < (unsigned)i->ndst + i->nsrc; k++)
    if (o[k].space == HK_LINK) HK_OR_RETURN(run_release(s, hk_lane_side(s, t, &o[k])));
  t->scan = 0;
  t->state = HK_T_READY;
  if (hk_cursor_next(&t->at, &s->sizes, (unsigned)s->all_channels)) {
    HK_OR_RETURN(run_proceed(s, t));
  } else if (t->lent && t->outstanding) {
    t->state = HK_T_DRAINING;
  } else {
    run_finish_thread(s, t, run_now(s));
  }
  return run_give_core(s, t->rank);
}

/* The time when all links of the instruction are ready; -1: not known yet, and the thread will be woken. */
static double run_ready_at(hk_sim *s, hk_lane_state *t) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *o = hk_lane_operands(t);
  double at = run_now(s);
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (o[k].space != HK_LINK) continue;
    hk_side *e = hk_lane_side(s, t, &o[k]);
    if (e->sends && e->credits) continue;
    if (!e->times.count) {
      e->waiting = true;
      t->state = HK_T_BLOCKED;
      return -1;
    }
    double there = run_time_of(hk_times_first(&e->times));
    if (there > at) at = there;
  }
  return at;
}

static hk_status run_take_core(hk_sim *s, hk_lane_state *t) {
  hk_core *c = &s->cores[t->rank];
  uint32_t me = (uint32_t)(t - s->threads);
  if (!c->busy) {
    c->busy = true;
    t->state = HK_T_STARTING;
    return hk_net_at(&s->cluster.net, &t->flow.end, run_now(s) + s->lane_us);
  }
  t->state = HK_T_QUEUED;
  t->next = HK_SIM_NONE;
  if (c->tail == HK_SIM_NONE)
    c->head = me;
  else
    s->threads[c->tail].next = me;
  c->tail = me;
  return HK_OK;
}

static hk_status run_proceed(hk_sim *s, hk_lane_state *t) {
  hk_cursor_move(&t->at, t->instrs);
  double at = run_ready_at(s, t);
  if (at < 0) return HK_OK;
  if (t->woken) {
    at += s->wake_us;
    t->woken = false;
  }
  if (!s->cores) {
    t->state = HK_T_STARTING;
    return hk_net_at(&s->cluster.net, &t->flow.end, at + hk_step_us(s, t));
  }
  if (at <= run_now(s)) return run_take_core(s, t);
  t->state = HK_T_READY;
  return hk_net_at(&s->cluster.net, &t->flow.end, at);
}

static hk_status run_start(hk_sim *s, hk_lane_state *t) {
  size_t bytes = hk_lane_bytes(s, t);
  double limit = 0;
  t->began = run_now(s);
  t->refers = false;
  if (bytes) HK_OR_RETURN(hk_step_uses(s, t, bytes, &limit));
  if (limit <= 0) return run_finish(s, t, bytes);
  t->state = HK_T_MOVING;
  return hk_flow_start(&s->cluster.net, &t->flow, (double)bytes, limit);
}

static hk_status run_stuck(const hk_sim *s) {
  for (uint32_t i = 0; i < s->nthreads; i++)
    if (s->threads[i].state != HK_T_DONE)
      return HK_FAIL(HK_ERR_INTERNAL,
                     "%s of %d ranks: rank %d lane %u waits at instruction %u for ever; verify the program",
                     s->threads[i].program->algorithm, s->cluster.nranks, s->threads[i].rank, s->threads[i].lane,
                     s->threads[i].at.pc);
  return HK_OK;
}

hk_status hk_sim_loop(hk_sim *s) {
  for (uint32_t i = 0; i < s->nthreads; i++)
    if (s->threads[i].state == HK_T_READY)
      HK_OR_RETURN(
          s->cores ? run_proceed(s, &s->threads[i])
                   : hk_net_at(&s->cluster.net, &s->threads[i].flow.end, HK_GPU_STAGGER_US * s->threads[i].channel));
  for (;;) {
    hk_sim_event *e;
    HK_OR_RETURN(hk_net_next(&s->cluster.net, &e));
    if (!e) break;
    if (e->id >= QUEUE_IDS) {
      HK_OR_RETURN(run_sent(s, s->sides[e->id - QUEUE_IDS].queue));
      continue;
    }
    hk_lane_state *t = &s->threads[e->id];
    switch (t->state) {
      case HK_T_READY: HK_OR_RETURN(s->cores ? run_take_core(s, t) : run_proceed(s, t)); break;
      case HK_T_STARTING: HK_OR_RETURN(run_start(s, t)); break;
      default:
        hk_flow_stop(&s->cluster.net, &t->flow);
        HK_OR_RETURN(run_finish(s, t, hk_lane_bytes(s, t)));
        break;
    }
  }
  return run_stuck(s);
}
