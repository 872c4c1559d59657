/* SPDX-License-Identifier: Apache-2.0 */
/* Flow level, for large machines: there are no events. The programs run as messages with times; a thread continues
 * until it needs a message that is not sent yet. All rates are computed in advance. This is done twice:
 *
 *   - alone: every flow is as fast as the links of its path allow, which it shares with lanes of its channel that do
 *     the same at the same time. This is a lower bound. Another one is the time that the busiest resource needs for its
 *     load, after its first message arrives and before the last one's end.
 *   - shared: if a thread uses a resource for a part of its bytes, and all loads of that resource take a time t, the
 *     thread moves its bytes at the rate at which it would end after t, as if all threads always used the resource at
 *     once. All channels do the same at the same time, so if the links of its instructions differ (in a mesh), the
 *     thread shares each with all channels while others are idle. Its messages to the network are sent one after
 *     another. This is an upper bound.
 *
 * The result is between the two, nearer to the lower one: HK_GPU_SHARED says how near. Waves after the first WAVES
 * are not run: they are assumed to go on at the pace of the last ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../collectives/algorithm.h"
#include "model.h"
#include "run.h"

enum { WAVES = 8 };

typedef struct coarse {
  hk_sim *s;
  double *need;      /* [nresources] microseconds in one wave of all channels */
  double *moved;     /* [nthreads] bytes that a thread moves itself in one wave */
  double *handed;    /* [nthreads] bytes that it hands to the network */
  double *pace;      /* [nthreads' instructions] bytes a microsecond */
  uint32_t *first;   /* [nthreads] of `pace` */
  uint32_t *order;   /* [nthreads] threads by number of instructions, then by channel */
  double *own, *all; /* [nresources] microseconds for a byte of each thread that runs it: of a channel; of all */
  double *by_side;   /* [nsides] bytes sent to another host in one wave */
  double *uplink;    /* [nsides] microseconds that the busiest uplink of the path needs */
  double *free_at;   /* [nsides] when the network has sent all messages handed to it; shared: by the thread */
  double *core_at;   /* [nranks] when a core is free */
  double *head;  /* [nresources] alone: when the first message for another host uses it; INFINITY: no message does */
  double *tail;  /* [nresources] the least remaining time of a message that has passed it */
  double *clock; /* [nthreads] */
  uint32_t *todo, ntodo;
  bool shared;
} coarse;

static hk_side *coarse_side_of(const coarse *c, const hk_lane_state *t, const hk_operand *o) {
  return hk_lane_side(c->s, t, o);
}

/* ---- loads ---- */

/* Adds the load of the current instruction, `times` times. */
static hk_status coarse_add_step(coarse *c, hk_lane_state *t, double times) {
  hk_sim *s = c->s;
  double limit = 0;
  size_t bytes = hk_lane_bytes(s, t), at = (size_t)(t - s->threads);
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *o = hk_lane_operands(t);
  if (!bytes) return HK_OK;
  HK_OR_RETURN(hk_step_uses(s, t, bytes, &limit));
  double all = times * (double)bytes;
  c->moved[at] += all;
  c->pace[c->first[at] + t->at.pc - t->at.first] = limit;
  for (uint32_t k = 0; k < t->flow.n; k++) {
    const hk_flow_entry *e = &t->flow.entries[k];
    c->need[e->resource] += s->alike * e->weight * all / s->cluster.net.resources[e->resource].capacity;
  }
  for (unsigned k = 0; k < i->ndst; k++) {
    if (o[k].space != HK_LINK || !coarse_side_of(c, t, &o[k])->queue) continue;
    hk_side *e = coarse_side_of(c, t, &o[k]);
    const hk_flow *f = &e->queue->flow;
    c->handed[at] += all;
    c->by_side[e - s->sides] += all;
    for (uint32_t u = 0; u < f->n; u++)
      c->need[f->entries[u].resource] += s->alike * f->entries[u].weight * all /
                                         s->cluster.net.resources[f->entries[u].resource].capacity;
  }
  return HK_OK;
}

/* One wave of a thread. The iterations of a repeat differ only in the links of stepping operands. */
static hk_status coarse_add_wave(coarse *c, hk_lane_state *t) {
  hk_status rc = HK_OK;
  hk_scan scan = {.next = t->at.first, .end = t->at.end};
  for (const hk_instr *i; (i = hk_scan_next(&scan, t->instrs));) {
    t->at.pc = scan.at;
    const hk_operand *o = hk_lane_operands(t);
    bool steps = false;
    for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) steps = steps || o[k].flags & HK_OPERAND_STEP;
    for (t->at.iteration = 0; t->at.iteration < (steps ? scan.times : 1); t->at.iteration++)
      HK_TRY(coarse_add_step(c, t, steps ? 1 : scan.times), out);
  }
out:
  t->at.pc = t->at.first;
  t->at.iteration = 0;
  return rc;
}

/* ---- the fabric of folded hosts ---- */

/* A link that crosses spines, on one channel. */
typedef struct crossing {
  int up, down;  /* index of leaf and spine */
  uint32_t side; /* the one that represents it */
} crossing;

typedef struct crossings {
  crossing *at;
  size_t n, capacity;
} crossings;

/* Appends the rank's links that cross spines, on the channels that a simulated one represents. */
static hk_status coarse_find_crossings(const coarse *c, int r, int channel, crossings *out) {
  hk_sim *s = c->s;
  const hk_sim_cluster *w = &s->cluster;
  const hk_program *p;
  HK_OR_RETURN(hk_programs_get(&s->programs, r, channel, &p));
  const hk_link_need *l = hk_program_links(p);
  const size_t first = (size_t)hk_sim_cluster_rep(w, r) * (size_t)s->channels + (size_t)channel;
  for (uint32_t i = 0; i < p->nlinks; i++) {
    int a = w->placements[r].host, b = w->placements[l[i].peer].host;
    uint32_t side = s->first_side[first] + i, leave, enter;
    if (l[i].kind != HK_LINK_SEND || a == b || c->by_side[side] <= 0) continue;
    hk_sim_cluster_nets(w, r, l[i].peer, channel, &leave, &enter);
    if (leave == UINT32_MAX || enter == UINT32_MAX) continue;
    const hk_node *x = &hk_sim_cluster_topo(w, a)->nodes[leave], *y = &hk_sim_cluster_topo(w, b)->nodes[enter];
    int la = hk_sim_cluster_leaf(w, a, x), lb = hk_sim_cluster_leaf(w, b, y);
    if (la == lb) continue;
    for (int k = channel; k < s->all_channels; k += s->channels) {
      int spine = hk_sim_cluster_spine(w, a, x, b, y, k);
      if (!HK_RESERVE(out->at, out->capacity, out->n + 1)) return HK_FAIL_ERRNO("no memory for %zu links", out->n + 1);
      out->at[out->n++] =
          (crossing){.up = 2 * (la * w->spines + spine), .down = 2 * (lb * w->spines + spine) + 1, .side = side};
    }
  }
  return HK_OK;
}

/* Records for each side the largest load of the links that it represents, on any channel. */
static hk_status coarse_load_crossings(coarse *c, double *loads) {
  hk_status rc = HK_OK;
  const hk_sim_cluster *w = &c->s->cluster;
  crossings all = {.n = 0};
  for (int r = 0; r < w->nranks; r++) {
    for (int k = 0; k < c->s->channels; k++) HK_TRY(coarse_find_crossings(c, r, k, &all), out);
    if (hk_sim_cluster_rep(w, r) != r) hk_programs_drop(&c->s->programs, r);
  }
  for (const crossing *x = all.at; x < all.at + all.n; x++) {
    loads[x->up] += c->by_side[x->side];
    loads[x->down] += c->by_side[x->side];
  }
  for (const crossing *x = all.at; x < all.at + all.n; x++) {
    double us = fmax(loads[x->up], loads[x->down]) / hk_sim_cluster_uplink(w);
    c->uplink[x->side] = fmax(c->uplink[x->side], us);
  }
out:
  free(all.at);
  return rc;
}

/* Shifted hosts send many flows over each uplink, so the hash is assumed to spread them evenly over the spines. Returns
 * the number of hosts whose link to the host `by` further, over NETs x and y, crosses the spines. */
static int coarse_count_crossing(const hk_sim_cluster *w, const hk_node *x, const hk_node *y, int by) {
  int count = 0, n = w->c->nhosts;
  for (int a = 0; a < n; a++) count += hk_sim_cluster_leaf(w, a, x) != hk_sim_cluster_leaf(w, (a + by) % n, y);
  return count;
}

static hk_status coarse_load_shifted(coarse *c, int leaves) {
  hk_sim *s = c->s;
  const hk_sim_cluster *w = &s->cluster;
  const hk_topo *t = hk_sim_cluster_topo(w, 0);
  const hk_node *x = NULL, *y = NULL;
  int by = 0, hosts = 0;
  double bytes = 0;
  for (size_t at = 0; at < (size_t)w->first_rank[1] * (size_t)s->channels; at++) {
    const int r = (int)at / s->channels, channel = (int)at % s->channels;
    const hk_program *p;
    HK_OR_RETURN(hk_programs_get(&s->programs, r, channel, &p));
    const hk_link_need *l = hk_program_links(p);
    for (uint32_t i = 0; i < p->nlinks; i++) {
      uint32_t side = s->first_side[at] + i, leave, enter;
      int host = w->placements[l[i].peer].host;
      if (l[i].kind != HK_LINK_SEND || host == 0 || c->by_side[side] <= 0) continue;
      hk_sim_cluster_nets(w, r, l[i].peer, channel, &leave, &enter);
      if (leave == UINT32_MAX || enter == UINT32_MAX) continue;
      if (&t->nodes[leave] != x || &t->nodes[enter] != y || by != host) /* consecutive links often use the same NETs */
        hosts = coarse_count_crossing(w, x = &t->nodes[leave], y = &t->nodes[enter], by = host);
      bytes += c->by_side[side] * s->alike * hosts;
      c->uplink[side] = hosts;
    }
  }
  double us = bytes / leaves / w->spines / hk_sim_cluster_uplink(w);
  for (uint32_t i = 0; i < s->nsides; i++)
    if (c->uplink[i] > 0) c->uplink[i] = us;
  return HK_OK;
}

static hk_status coarse_load_fabric(coarse *c) {
  const hk_sim_cluster *w = &c->s->cluster;
  int leaves = hk_sim_cluster_leaves(w);
  if (!leaves) return HK_OK;
  if (w->shifted) return coarse_load_shifted(c, leaves);
  double *loads = calloc(2 * (size_t)leaves * (size_t)w->spines, sizeof *loads);
  if (!loads) return HK_FAIL_ERRNO("no memory for %d leaf switches", leaves);
  hk_status rc = coarse_load_crossings(c, loads);
  free(loads);
  return rc;
}

/* ---- rates ---- */

static double coarse_waves_of(const hk_sim *s) {
  double waves = (double)s->sizes.longest / (double)(s->sizes.chunk * (size_t)s->all_channels);
  return waves > 1 ? waves : 1;
}

/* Microseconds a byte on a used resource: alone, or (shared) with all other loads of the resource. */
static double coarse_use_us(const coarse *c, const hk_flow_entry *e, double bytes) {
  if (!c->shared) return e->weight / c->s->cluster.net.resources[e->resource].capacity;
  return bytes > 0 ? c->need[e->resource] / bytes : 0;
}

static uint32_t coarse_length(const hk_lane_state *t) { return t->at.end - t->at.first; }

/* Adds the uses of the current instruction to the loads, or (by 0) clears these. */
static void coarse_load(const coarse *c, const uint32_t *threads, uint32_t n, double by, double *loads) {
  for (uint32_t k = 0; k < n; k++) {
    const hk_flow *f = &c->s->threads[threads[k]].flow;
    for (uint32_t u = 0; u < f->n; u++) {
      const hk_flow_entry *e = &f->entries[u];
      double *load = &loads[e->resource];
      *load = by > 0 ? *load + by * e->weight / c->s->cluster.net.resources[e->resource].capacity : 0;
    }
  }
}

/* Microseconds a byte on a resource that threads use at the same time: those of one channel (`own`), and all of them.
 * `steady`: as if all loads of the resource came evenly, while a thread moves `moved` bytes in a wave. If it is
 * not shorter, the thread uses the resource all the time (a port), and meeting changes nothing; it is shorter by the
 * number of links that the thread uses in turn. */
static double coarse_step_us(const coarse *c, double own, double all, double steady, double moved) {
  const double bytes = fmin((double)c->s->sizes.chunk, (double)c->s->sizes.longest);
  if (steady <= 0 || all <= steady) return own;
  const double times = coarse_waves_of(c->s) * moved / bytes * steady / all;
  const double met = hk_gpu_spread(all / own, own * bytes, times, all, steady);
  const double port = (steady / all) * (steady / all);
  return pow(own, port) * pow(fmax(own, met), 1 - port);
}

/* Sets the pace of one instruction of n threads that run it at the same time. */
static hk_status coarse_set_pace(coarse *c, const uint32_t *threads, uint32_t n, uint32_t instr) {
  hk_sim *s = c->s;
  double *pace;
  for (uint32_t k = 0; k < n; k++) {
    hk_lane_state *t = &s->threads[threads[k]];
    double limit = 0;
    pace = &c->pace[c->first[threads[k]] + instr];
    hk_flow_reset(&t->flow);
    t->at.pc = t->at.first + instr;
    if (t->instrs[t->at.pc].op == HK_OP_REPEAT || *pace <= 0) continue;
    HK_OR_RETURN(hk_step_uses(s, t, s->sizes.chunk, &limit));
    *pace = limit;
  }
  coarse_load(c, threads, n, s->alike, c->all);
  for (uint32_t k = 0, m; k < n; k += m) {
    const hk_lane_state *t = &s->threads[threads[k]];
    for (m = 1; k + m < n && s->threads[threads[k + m]].channel == t->channel;) m++;
    coarse_load(c, &threads[k], m, 1, c->own);
    for (uint32_t j = k; j < k + m; j++) {
      const hk_flow *f = &s->threads[threads[j]].flow;
      pace = &c->pace[c->first[threads[j]] + instr];
      double us = *pace > 0 ? 1 / *pace : 0;
      for (uint32_t u = 0; u < f->n; u++) {
        const hk_flow_entry *e = &f->entries[u];
        const double moved = c->moved[threads[j]], steady = moved > 0 ? c->need[e->resource] / moved : 0;
        us = fmax(us, coarse_use_us(c, e, moved));
        if (s->gpu) us = fmax(us, coarse_step_us(c, c->own[e->resource], c->all[e->resource], steady, moved));
      }
      *pace = us > 0 ? 1 / us : 0;
    }
    coarse_load(c, &threads[k], m, 0, c->own);
  }
  coarse_load(c, threads, n, 0, c->all);
  return HK_OK;
}

/* Sets the pace of each thread's instructions. Threads with equally many instructions run them at the same time. */
static hk_status coarse_set_paces(coarse *c) {
  hk_sim *s = c->s;
  for (uint32_t k = 0, n; k < s->nthreads; k += n) {
    const uint32_t length = coarse_length(&s->threads[c->order[k]]);
    for (n = 1; k + n < s->nthreads && coarse_length(&s->threads[c->order[k + n]]) == length;) n++;
    for (uint32_t i = 0; i < length; i++) HK_OR_RETURN(coarse_set_pace(c, &c->order[k], n, i));
  }
  for (uint32_t k = 0; k < s->nthreads; k++) {
    s->threads[k].at.pc = s->threads[k].at.first;
    hk_flow_clear(&s->threads[k].flow);
  }
  return HK_OK;
}

/* Sets the pace of the sides that send to other hosts. */
static void coarse_set_queues(coarse *c) {
  for (uint32_t i = 0; i < c->s->nsides; i++) {
    hk_side *e = &c->s->sides[i];
    if (!e->queue) continue;
    const hk_flow *f = &e->queue->flow;
    double handed = c->handed[e->thread], us = c->shared && handed > 0 ? c->uplink[i] / handed : 0;
    for (uint32_t u = 0; u < f->n; u++) us = fmax(us, coarse_use_us(c, &f->entries[u], handed));
    e->us_per_byte = us;
  }
}

/* ---- the run ---- */

static void coarse_again(coarse *c, uint32_t thread) { c->todo[c->ntodo++] = thread; }

static hk_status coarse_notify(coarse *c, hk_side *e, double at) {
  uint32_t passes = hk_side_passes(e);
  for (uint32_t i = 0; passes && i < e->ntargets; i++) {
    hk_side *to = &c->s->sides[c->s->targets[e->first_target + i]];
    if (to->left) {
      uint32_t *left = &to->left[(e->consumed - 1) % c->s->nslots];
      if (--*left) continue;
      *left = to->ntargets;
    }
    for (uint32_t n = 0; n < passes; n++) HK_OR_RETURN(hk_times_push(&to->times, at));
    if (to->waiting) {
      to->waiting = false;
      coarse_again(c, to->thread);
    }
  }
  return HK_OK;
}

/* Records a message for another host that is handed to the network, for the bound `alone`. */
static void coarse_note_ask(coarse *c, const hk_side *e, size_t bytes, double at) {
  const hk_sim *s = c->s;
  double taken = e->us + s->lane_us + (double)bytes * (s->gpu ? 1 / s->lane_rate : s->core_copy);
  for (uint32_t i = 0; i < e->queue->flow.n; i++) {
    uint32_t r = e->queue->flow.entries[i].resource;
    c->head[r] = fmin(c->head[r], at);
    c->tail[r] = fmin(c->tail[r], taken);
  }
}

static hk_status coarse_send(coarse *c, hk_side *e, size_t bytes, double at) {
  if (e->credits)
    e->credits--;
  else
    hk_times_pop(&e->times);
  if (e->queue) {
    double *free_at = &c->free_at[c->shared ? e->thread : e - c->s->sides],
           us = e->us_per_byte * (double)bytes * e->gives;
    if (!c->shared) coarse_note_ask(c, e, bytes, at);
    if (*free_at < at) *free_at = at;
    at = *free_at += us;
  }
  return coarse_notify(c, e, at + e->us);
}

/* The time when the instruction's links are ready; -1: not known yet. */
static double coarse_ready_at(coarse *c, hk_lane_state *t, double at) {
  const hk_instr *i = &t->instrs[t->at.pc];
  const hk_operand *o = hk_lane_operands(t);
  for (unsigned k = 0; k < (unsigned)i->ndst + i->nsrc; k++) {
    if (o[k].space != HK_LINK) continue;
    hk_side *e = coarse_side_of(c, t, &o[k]);
    if (e->sends && e->credits) continue;
    if (!e->times.count) {
      e->waiting = true;
      return -1;
    }
    if (hk_times_first(&e->times) > at) at = hk_times_first(&e->times);
  }
  return at;
}

static hk_status coarse_run_thread(coarse *c, uint32_t k) {
  hk_sim *s = c->s;
  hk_lane_state *t = &s->threads[k];
  for (;;) {
    hk_cursor_move(&t->at, t->instrs);
    double at = coarse_ready_at(c, t, c->clock[k]);
    if (at < 0) return HK_OK;
    if (s->cores && c->core_at[t->rank] > at) at = c->core_at[t->rank];
    size_t bytes = hk_lane_bytes(s, t);
    double pace = c->pace[c->first[k] + t->at.pc - t->at.first];
    at += hk_step_us(s, t) + (pace > 0 ? (double)bytes / pace : 0);
    c->clock[k] = at;
    if (s->cores) c->core_at[t->rank] = at;
    s->steps++;
    const hk_instr *i = &t->instrs[t->at.pc];
    const hk_operand *o = hk_lane_operands(t);
    for (unsigned n = 0; n < i->ndst; n++)
      if (o[n].space == HK_LINK) HK_OR_RETURN(coarse_send(c, coarse_side_of(c, t, &o[n]), bytes, at));
    for (unsigned n = i->ndst; n < (unsigned)i->ndst + i->nsrc; n++) {
      if (o[n].space != HK_LINK) continue;
      hk_side *e = coarse_side_of(c, t, &o[n]);
      hk_times_pop(&e->times);
      e->consumed++;
      HK_OR_RETURN(coarse_notify(c, e, at + e->us));
    }
    if (hk_cursor_next(&t->at, &s->sizes, (unsigned)s->all_channels)) continue;
    t->state = HK_T_DONE;
    s->live--;
    if (at > s->finished) s->finished = at;
    return HK_OK;
  }
  return HK_OK;
}

/* Runs all threads from the beginning, with `longest` bytes of a block. */
static hk_status coarse_run_all(coarse *c, size_t longest) {
  hk_status rc = HK_OK;
  hk_sim *s = c->s;
  size_t before = s->sizes.longest;
  s->sizes.longest = longest;
  s->finished = 0;
  for (uint32_t i = 0; i < s->nsides + s->nthreads; i++) c->free_at[i] = 0;
  for (uint32_t i = 0; i < s->nsides; i++) {
    hk_side *e = &s->sides[i];
    e->times.head = e->times.count = 0;
    e->credits = hk_side_credits(e, s->nslots);
    e->waiting = false;
    if (e->left)
      for (uint32_t k = 0; k < s->nslots; k++) e->left[k] = e->ntargets;
  }
  for (uint32_t k = 0; k < s->nthreads; k++) {
    hk_lane_state *t = &s->threads[k];
    const hk_lane *lane = &hk_program_lanes(t->program)[t->lane];
    t->state = hk_cursor_begin(&t->at, lane, t->channel, &s->sizes) ? HK_T_READY : HK_T_DONE;
    c->clock[k] = HK_GPU_STAGGER_US * t->channel;
    if (t->state == HK_T_DONE) continue;
    s->live++;
    coarse_again(c, k);
  }
  for (int r = 0; s->cores && r < s->cluster.nranks; r++) c->core_at[r] = 0;
  while (c->ntodo) HK_TRY(coarse_run_thread(c, c->todo[--c->ntodo]), out);
  if (s->live)
    rc = HK_FAIL(HK_ERR_INTERNAL, "%s of %d ranks: lanes wait for ever; verify the program",
                 s->programs.algorithm->name, s->cluster.nranks);
out:
  s->sizes.longest = before;
  return rc;
}

static int coarse_by_value(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Sorts the threads by number of instructions, then by channel. */
static hk_status coarse_sort_threads(coarse *c) {
  enum { LENGTH = 44, CHANNEL = 32 };
  const hk_sim *s = c->s;
  uint64_t *keys = malloc(s->nthreads * sizeof *keys);
  if (!keys) return HK_FAIL_ERRNO("no memory for %u lanes", s->nthreads);
  for (uint32_t k = 0; k < s->nthreads; k++)
    keys[k] = (uint64_t)coarse_length(&s->threads[k]) << LENGTH | (uint64_t)s->threads[k].channel << CHANNEL | k;
  qsort(keys, s->nthreads, sizeof *keys, coarse_by_value);
  for (uint32_t k = 0; k < s->nthreads; k++) c->order[k] = (uint32_t)keys[k];
  free(keys);
  return HK_OK;
}

static hk_status coarse_make_room(coarse *c) {
  const hk_sim *s = c->s;
  size_t instrs = 0;
  c->first = malloc(s->nthreads * sizeof *c->first);
  if (!c->first) return HK_FAIL_ERRNO("no memory for %u lanes", s->nthreads);
  for (uint32_t k = 0; k < s->nthreads; k++) {
    c->first[k] = (uint32_t)instrs;
    instrs += s->threads[k].at.end - s->threads[k].at.first;
  }
  c->need = calloc(s->cluster.net.nresources, sizeof *c->need);
  c->own = calloc(s->cluster.net.nresources, sizeof *c->own);
  c->all = calloc(s->cluster.net.nresources, sizeof *c->all);
  c->order = malloc(s->nthreads * sizeof *c->order);
  c->moved = calloc(s->nthreads, sizeof *c->moved);
  c->handed = calloc(s->nthreads, sizeof *c->handed);
  c->clock = calloc(s->nthreads, sizeof *c->clock);
  c->todo = malloc(2 * (size_t)s->nthreads * sizeof *c->todo);
  c->pace = calloc(instrs, sizeof *c->pace);
  c->by_side = calloc(s->nsides, sizeof *c->by_side);
  c->uplink = calloc(s->nsides, sizeof *c->uplink);
  c->free_at = calloc((size_t)s->nsides + s->nthreads, sizeof *c->free_at);
  c->core_at = calloc((size_t)s->cluster.nranks, sizeof *c->core_at);
  c->head = malloc(s->cluster.net.nresources * sizeof *c->head);
  c->tail = malloc(s->cluster.net.nresources * sizeof *c->tail);
  bool all = c->need && c->own && c->all && c->order && c->moved && c->handed && c->clock && c->todo && c->pace &&
             c->by_side && c->uplink && c->free_at && c->core_at && c->head && c->tail;
  for (uint32_t i = 0; all && i < s->cluster.net.nresources; i++) c->head[i] = c->tail[i] = INFINITY;
  return all ? HK_OK : HK_FAIL_ERRNO("no memory to simulate %u lanes and %u links", s->nthreads, s->nsides);
}

static hk_status coarse_run_waves(coarse *c, bool shared, double *us) {
  hk_sim *s = c->s;
  size_t wave = s->sizes.chunk * (size_t)s->all_channels;
  double waves = coarse_waves_of(s);
  c->shared = shared;
  HK_OR_RETURN(coarse_set_paces(c));
  coarse_set_queues(c);
  if (waves <= WAVES) {
    HK_OR_RETURN(coarse_run_all(c, s->sizes.longest));
    *us = s->finished;
  } else {
    HK_OR_RETURN(coarse_run_all(c, WAVES / 2 * wave));
    double half = s->finished;
    HK_OR_RETURN(coarse_run_all(c, WAVES * wave));
    *us = s->finished + (waves - WAVES) * (s->finished - half) / (WAVES / 2);
  }
  return HK_OK;
}

/* The time of the busiest resource, including the times before its first and after its last message. Stores the load of
 * each resource for the report. */
static double coarse_busiest(coarse *c) {
  hk_net *net = &c->s->cluster.net;
  double waves = coarse_waves_of(c->s), most = 0;
  for (uint32_t i = 0; i < net->nresources; i++) {
    net->resources[i].carried = c->need[i] * waves * net->resources[i].capacity;
    most = fmax(most, c->need[i] * waves + (c->head[i] < INFINITY ? c->head[i] + c->tail[i] : 0));
  }
  for (uint32_t i = 0; i < c->s->nsides; i++) most = fmax(most, c->uplink[i] * waves);
  return most;
}

hk_status hk_sim_coarse(hk_sim *s) {
  hk_status rc = HK_OK;
  coarse c = {.s = s};
  double alone = 0, shared = 0, last;
  HK_TRY(coarse_make_room(&c), out);
  HK_TRY(coarse_sort_threads(&c), out);
  for (uint32_t k = 0; k < s->nthreads; k++) HK_TRY(coarse_add_wave(&c, &s->threads[k]), out);
  if (s->cluster.folded) HK_TRY(coarse_load_fabric(&c), out);
  HK_TRY(coarse_run_waves(&c, false, &alone), out);
  HK_TRY(coarse_run_waves(&c, true, &shared), out);
  /* The last of the channels that the simulated one represents begins later by this time. */
  last = alone + (s->gpu ? HK_GPU_STAGGER_US * (s->all_channels - s->channels) : 0);
  alone = fmax(alone, coarse_busiest(&c));
  s->finished = fmax(last, pow(alone, 1 - HK_GPU_SHARED) * pow(fmax(shared, alone), HK_GPU_SHARED));
out:
  free(c.need);
  free(c.own);
  free(c.all);
  free(c.order);
  free(c.moved);
  free(c.handed);
  free(c.pace);
  free(c.first);
  free(c.by_side);
  free(c.uplink);
  free(c.free_at);
  free(c.core_at);
  free(c.head);
  free(c.tail);
  free(c.clock);
  free(c.todo);
  return rc;
}
