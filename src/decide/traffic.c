/* SPDX-License-Identifier: Apache-2.0 */
/* The load of programs' messages on the links inside a host, and between hosts (outlines.h). With a switch it depends
 * on the bytes alone; it depends on who sends to whom if paths lead through other GPUs, or if links are shared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../program/layout.h"
#include "../topo/paths.h"
#include "../topo/topo.h"
#include "outlines.h"

typedef struct look {
  const hk_summary *s;
  const hk_layout *layout;
  const hk_wires *wires;
  uint32_t nedges;
  int orders, period, ways;
  int root;      /* ranks with equal distances to it on two ring orders have equal parts; -1: those at equal places */
  uint32_t at;   /* the next map */
  double *step;  /* [nedges] bytes over each edge in one step, likewise */
  double *round; /* in one round */
  double *all;   /* in all */
  double *own;   /* [wires->n] time of each rank's messages in one round, one after another */
  double *sent, *received; /* [nports] bytes over each network port to and from other hosts */
  size_t nports;           /* of all hosts, traffic_ports of each; one for each rank if ports are not known */
  double hops, hops_us;    /* of all messages so far, the sum of their latencies */
  double crossed;          /* bytes of all messages between hosts so far */
} look;

/* The rank that does on channel k what this rank does on the first one. */
static int traffic_rank_on(const look *l, int k, int rank) {
  k %= l->orders;
  if (k == 0) return rank;
  int place = hk_layout_place(l->layout, 0, rank);
  if (l->root >= 0)
    place += hk_layout_place(l->layout, k, l->root) + l->s->nranks - hk_layout_place(l->layout, 0, l->root);
  return hk_layout_at(l->layout, k, place % l->s->nranks);
}

/* True if the rank is at an end of its host on ring order k: `by` 1: the last, -1: the first. */
static bool traffic_at_end(const look *l, int k, int rank, int by) {
  const int n = l->s->nranks, next = (hk_layout_place(l->layout, k, rank) + n + by) % n;
  return hk_layout_host_of(l->layout, hk_layout_at(l->layout, k, next)) != hk_layout_host_of(l->layout, rank);
}

/* A host's ports, one more for each ring order, and the own links of its GPUs. */
static size_t traffic_ports(const hk_wires *wires, int orders) {
  return wires->nports + (size_t)orders + (size_t)wires->n;
}

/* The network port of a rank's messages to or from another rank of another host, on channel k. The search has given
 * each ring order ports of its own where the ring changes hosts. */
static size_t traffic_port(const look *l, int k, int rank, int other) {
  const int in_period = rank % l->period, order = k % l->orders;
  if (!l->wires->nports) return (size_t)in_period;
  const bool forth = traffic_at_end(l, order, rank, 1) && traffic_at_end(l, order, other, -1);
  const bool back = traffic_at_end(l, order, rank, -1) && traffic_at_end(l, order, other, 1);
  const size_t host = (size_t)hk_layout_host_of(l->layout, in_period),
               first = host * traffic_ports(l->wires, l->orders);
  if (l->orders > 1 && (forth || back)) return first + l->wires->nports + (size_t)order;
  const hk_ports *p = &l->wires->ports[hk_layout_local_of(l->layout, rank) % l->wires->n];
  return first + p->at[(uint32_t)k % p->n];
}

/* Adds bytes to or from another host to the rank's port, and to its own link, which several ports may share. */
static void traffic_cross(const look *l, double *load, int k, int rank, int other, double bytes) {
  load[traffic_port(l, k, rank, other)] += bytes;
  if (!l->wires->nports) return;
  const size_t host = (size_t)hk_layout_host_of(l->layout, rank % l->period);
  const int local = hk_layout_local_of(l->layout, rank) % l->wires->n;
  load[(host + 1) * traffic_ports(l->wires, l->orders) - (size_t)(local + 1)] += bytes * l->wires->ports[local].share;
}

/* Adds one message: between ranks of the first host to the load of its links, between hosts to that of both ranks. */
static void traffic_send(look *l, double *load, int k, int from, int to, double bytes) {
  from = traffic_rank_on(l, k, from);
  to = traffic_rank_on(l, k, to);
  const int host = hk_layout_host_of(l->layout, from);
  if (host != hk_layout_host_of(l->layout, to)) {
    l->crossed += bytes;
    traffic_cross(l, l->sent, k, from, to, bytes);
    traffic_cross(l, l->received, k, to, from, bytes);
    return;
  }
  if (host != 0 || !l->wires->n) return;
  const int a = hk_layout_local_of(l->layout, from), b = hk_layout_local_of(l->layout, to);
  const hk_path *p = hk_path_between(l->wires->paths, l->wires->nodes[a], l->wires->nodes[b]);
  hk_path_load(l->wires->paths, p, bytes, load);
  if (p->gbps > 0) l->own[a] += bytes / (double)p->gbps / 1000;
  l->hops += bytes;
  l->hops_us += bytes * (double)p->us;
}

/* The messages of the map on channel k, if a block has `bytes`. Those of one period stand for those of each: the
 * first host may have several. */
static void traffic_add(look *l, double *load, int k, const hk_map *m, double bytes) {
  const int n = l->s->nranks, by = (int)m->by;
  bytes *= (double)m->times;
  for (int base = 0; base < n && (base == 0 || hk_layout_host_of(l->layout, base) == 0); base += l->period) {
    if (m->kind == HK_MAP_PAIR) traffic_send(l, load, k, (int)m->from + base, (by + base) % n, bytes);
    for (int r = base; m->kind != HK_MAP_PAIR && r < base + l->period; r++)
      traffic_send(l, load, k, r, m->kind == HK_MAP_SHIFT ? (r + by) % n : r ^ by, bytes);
  }
}

/* Microseconds until the fullest edge has carried its load. */
static double traffic_carry(const look *l, const double *load) {
  return l->nedges ? hk_paths_busiest_us(l->wires->paths, load) : 0;
}

/* Moves the load into the sum. */
static void traffic_pour(const look *l, double *load, double *sum) {
  for (uint32_t e = 0; e < l->nedges; e++) sum[e] += load[e];
  memset(load, 0, l->nedges * sizeof *load);
}

/* The next messages are of the same round as m. */
static bool traffic_same_round(const look *l, const hk_map *m) {
  const hk_map *next = &l->s->maps[l->at];
  return l->at < l->s->nmaps && next->after.far == m->after.far && next->after.rounds == m->after.rounds;
}

/* The messages of the next round, in which none waits for another one. A rank that has sent one begins with the next,
 * and ranks drift apart: the time is between that of all messages at once and that of one step after another. */
static double traffic_round(look *l, hk_traffic *out) {
  const hk_map *first = &l->s->maps[l->at];
  const double hops = l->hops, crossed = l->crossed;
  double in_turn = 0, own = 0, senders = 0;
  int steps = 0;
  memset(l->own, 0, (size_t)l->wires->n * sizeof *l->own);
  for (; traffic_same_round(l, first); steps++) {
    const int32_t instrs = l->s->maps[l->at].after.instrs;
    for (; traffic_same_round(l, first) && l->s->maps[l->at].after.instrs == instrs; l->at++)
      for (int k = 0; k < l->orders; k++) traffic_add(l, l->step, k, &l->s->maps[l->at], 1.0 / l->orders);
    in_turn += traffic_carry(l, l->step);
    traffic_pour(l, l->step, l->round);
  }
  for (int i = 0; i < l->wires->n; i++) {
    own += l->own[i];
    senders += l->own[i] > 0;
  }
  const double at_once = traffic_carry(l, l->round);
  traffic_pour(l, l->round, l->all);
  const double us = steps > 1 ? sqrt(fmax(at_once, own / fmax(1, senders)) * in_turn) : in_turn;
  /* The next round begins when the first step is over. */
  if (l->crossed == crossed) out->near_alone += us / steps;
  if (l->crossed > crossed && crossed <= 0) out->head = first->after.rounds;
  if (l->hops == hops) out->far_alone += (l->crossed - crossed) / steps;
  return us;
}

/* The most bytes that a port has sent to other hosts so far, or received from there. */
static double traffic_far(const look *l) {
  double most = 0;
  for (size_t r = 0; r < l->nports; r++) most = fmax(most, fmax(l->sent[r], l->received[r]));
  return most;
}

/* The channels one after another, each alone, and their sum between hosts. */
static void traffic_channels(look *l, hk_traffic *out) {
  memset(l->sent, 0, 2 * l->nports * sizeof *l->sent);
  for (int k = 0, bit = 0; k < l->ways; k++) {
    for (uint32_t i = 0; i < l->s->nmaps; i++) traffic_add(l, l->step, k, &l->s->maps[i], 1);
    out->one_us = fmax(out->one_us, traffic_carry(l, l->step));
    memset(l->step, 0, l->nedges * sizeof *l->step);
    if (k + 1 == 1 << bit && bit < HK_TRAFFIC_ORDERS) out->far[bit++] = traffic_far(l) / (k + 1);
  }
  out->far[HK_TRAFFIC_ORDERS] = traffic_far(l) / l->ways;
  out->ways = l->ways;
}

/* The least multiple of the ring orders after which each rank uses its ports again from the first. */
static int traffic_ways(int orders, const hk_wires *wires) {
  int ways = orders;
  for (int i = 0; wires->nports && i < wires->n; i++)
    for (const int step = ways; (uint32_t)ways % wires->ports[i].n;) ways += step;
  return ways;
}

hk_status hk_traffic_of(hk_traffic *out, const hk_summary *s, int orders, int root, const hk_layout *layout,
                        const hk_wires *wires) {
  const uint32_t edges = wires->n ? wires->paths->topo->nedges : 0;
  look l = {
      .s = s,
      .layout = layout,
      .wires = wires,
      .nedges = edges,
      .orders = orders,
      .ways = traffic_ways(orders, wires),
      .period = s->period,
      .root = root,
      .nports = wires->nports ? (size_t)hk_layout_hosts(layout) * traffic_ports(wires, orders) : (size_t)s->period};
  l.step = calloc(3 * (size_t)edges + (size_t)wires->n + 2 * l.nports, sizeof *l.step);
  *out = (hk_traffic){.alpha_us = 0};
  if (!l.step) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the traffic of %d ranks", s->nranks);
  l.round = l.step + edges;
  l.all = l.round + edges;
  l.own = l.all + edges;
  l.sent = l.own + wires->n;
  l.received = l.sent + l.nports;
  while (l.at < s->nmaps) out->turns_us += traffic_round(&l, out);
  if (out->turns_us > 0) out->near_alone /= out->turns_us;
  if (l.crossed > 0) out->far_alone /= l.crossed;
  out->all_us = traffic_carry(&l, l.all);
  if (l.hops > 0) out->alpha_us = l.hops_us / l.hops;
  traffic_channels(&l, out);
  free(l.step);
  return HK_OK;
}
