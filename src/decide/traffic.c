/* SPDX-License-Identifier: Apache-2.0 */
/* The load of programs' messages on the links inside a host, and between hosts (outlines.h). With a switch it depends
 * on the bytes alone; it depends on who sends to whom if paths lead through other GPUs, or if links are shared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../program/layout.h"
#include "../topo/paths.h"
#include "../topo/search.h"
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
  double *joint; /* [2 * nedges] with the messages to and from other hosts: in one step; in all */
  double *own;   /* [orders * wires->n] time of each rank's steps in one round, one after another */
  double *now;   /* likewise, of the longest message in one step */
  double *sent, *received;     /* [nports] bytes over each network port to and from other hosts */
  double *crossing;            /* [2 * nports] the same in all rounds */
  size_t *used, nused;         /* [2 * nports] which of `sent` and `received`, which follow each other, are not 0 */
  size_t nports;               /* of all hosts, traffic_ports of each; one for each rank if ports are not known */
  double hops, hops_us;        /* of all messages so far, the sum of their latencies */
  double far_all;              /* the most of `crossing` */
  int near_rounds, far_rounds; /* those with messages inside hosts so far; between hosts */
  int near_full, far_full;     /* the last of them with the fullest link, with the fullest port */
  double crossed;              /* bytes of all messages between hosts so far */
  double on_rings;             /* those of them over ring orders' own ports */
  hk_chain first_far;          /* before the first round with messages between hosts */
} look;

/* The rank that does on channel k what this rank does on the summary's ring order. */
static int traffic_rank_on(const look *l, int k, int rank) {
  k %= l->orders;
  return k == l->s->order ? rank : hk_layout_moved(l->layout, l->s->order, k, l->root, rank);
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

/* The rank of the host, by its number there, over whose ports a rank's messages to another host leave: on rails that of
 * the receiver, which NVLink reaches. */
static int traffic_leaves_by(const look *l, int k, int rank, int other) {
  const hk_wires *w = l->wires;
  const int own = hk_layout_local_of(l->layout, rank) % w->n, to = hk_layout_local_of(l->layout, other) % w->n;
  const hk_ports *p = &w->ports[to];
  const uint32_t net = w->paths->topo->first_of[HK_NODE_NET] + p->at[(uint32_t)k % p->n];
  return w->rails && hk_path_between(w->paths, w->nodes[own], net)->cls <= HK_PATH_PXN ? to : own;
}

/* The port that the search has given to the ring order for messages between the ranks, which `leave` the host or enter
 * it; -1: none. If the search's ports are not known, it is one of its own. */
static int traffic_ring_port(const look *l, int order, int rank, int other, bool leave) {
  const hk_wires *w = l->wires;
  const int end = leave ? 1 : -1;
  const bool forth = traffic_at_end(l, order, rank, end) && traffic_at_end(l, order, other, -end);
  const bool back = traffic_at_end(l, order, rank, -end) && traffic_at_end(l, order, other, end);
  if (l->orders <= 1 || !(forth || back)) return -1;
  if (!w->rings) return (int)w->nports + order;
  const hk_channel_order *o = &w->rings->at[order % w->rings->nchannels];
  const uint32_t net = forth == leave ? o->net_out : o->net_in;
  return net == UINT32_MAX ? -1 : (int)(net - w->paths->topo->first_of[HK_NODE_NET]);
}

/* The time of a byte at a port, in parts of that on the slowest way to one. */
static double traffic_port_share(const hk_wires *w, uint32_t port) {
  const hk_topo *t = w->paths->topo;
  const double gbps = (double)t->edges[t->nodes[t->first_of[HK_NODE_NET] + port].first_edge].gbps;
  return gbps > 0 ? w->slowest / gbps : 1;
}

static void traffic_add(look *l, double *load, double bytes) {
  if (*load <= 0) l->used[l->nused++] = (size_t)(load - l->sent);
  *load += bytes;
}

/* Adds bytes to the load of the links between a GPU of the first host, by its number there, and a port. */
static void traffic_reach(look *l, int own, uint32_t port, double bytes, bool leave) {
  const hk_wires *w = l->wires;
  const uint32_t gpu = w->nodes[own], net = w->paths->topo->first_of[HK_NODE_NET] + port;
  hk_path_load(w->paths, leave ? hk_path_between(w->paths, gpu, net) : hk_path_between(w->paths, net, gpu), bytes,
               l->joint);
}

/* Adds bytes to or from another host, on channel k, to the load of the network port, and of the GPU's own link to it,
 * which several ports may share. The link to a ring order's own port is one that the search has reserved for it. */
static void traffic_cross(look *l, double *load, int k, int rank, int other, double bytes) {
  const int in_period = rank % l->period, order = k % l->orders;
  if (!l->wires->nports) {
    traffic_add(l, &load[in_period], bytes);
    return;
  }
  const size_t ports = traffic_ports(l->wires, l->orders);
  const int number = hk_layout_host_of(l->layout, in_period);
  double *host = load + (size_t)number * ports;
  const bool leave = load == l->sent;
  const int own = hk_layout_local_of(l->layout, rank) % l->wires->n;
  const int ring = traffic_ring_port(l, order, rank, other, leave);
  if (ring >= 0) {
    const bool known = (uint32_t)ring < l->wires->nports;
    traffic_add(l, &host[ring], known ? bytes * traffic_port_share(l->wires, (uint32_t)ring) : bytes);
    if (known && number == 0) traffic_reach(l, own, (uint32_t)ring, bytes, leave);
    l->on_rings += bytes / 2;
    return;
  }
  const int by = leave ? traffic_leaves_by(l, k, rank, other) : own;
  const hk_ports *p = &l->wires->ports[by];
  const uint32_t port = p->at[(uint32_t)k % p->n];
  traffic_add(l, &host[port], bytes * traffic_port_share(l->wires, port));
  traffic_add(l, &host[ports - (size_t)(by + 1)], bytes * p->share);
  for (uint32_t i = 0; number == 0 && i < p->n; i++) traffic_reach(l, own, p->at[i], bytes / p->n, leave);
}

/* Adds one message: between ranks of the first host to the load of its links, between hosts to that of both ranks. */
static void traffic_send(look *l, double *load, int k, int from, int to, double bytes) {
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
  hk_path_load(l->wires->paths, p, bytes, l->joint);
  l->hops += bytes;
  l->hops_us += bytes * (double)p->us;
}

/* Notes the time of one message inside the first host among those of the same step: that of its fullest link. */
static void traffic_time(look *l, double *load, int k, int from, int to, double bytes) {
  (void)bytes;
  if (!l->wires->n || hk_layout_host_of(l->layout, from) != 0 || hk_layout_host_of(l->layout, to) != 0) return;
  const int a = hk_layout_local_of(l->layout, from), b = hk_layout_local_of(l->layout, to);
  const hk_paths *paths = l->wires->paths;
  const hk_path *p = hk_path_between(paths, l->wires->nodes[a], l->wires->nodes[b]);
  double *now = &l->now[k * l->wires->n + a];
  for (uint32_t i = p->first; i < p->first + p->nhops; i++) {
    const double gbps = (double)paths->topo->edges[paths->hops[i]].gbps;
    if (gbps > 0) *now = fmax(*now, load[paths->hops[i]] / gbps / 1000);
  }
}

/* Looks at the messages of the map on channel k, if a block has `bytes`. Those of one period stand for those of each:
 * the first host may have several. */
static void traffic_each(look *l, void (*at)(look *, double *load, int k, int from, int to, double bytes), double *load,
                         int k, const hk_map *m, double bytes) {
  const int n = l->s->nranks, by = (int)m->by;
  bytes *= (double)m->times;
  for (int base = 0; base < n && (base == 0 || hk_layout_host_of(l->layout, base) == 0); base += l->period) {
    const int first = m->kind == HK_MAP_PAIR ? (int)m->from + base : base;
    const int end = m->kind == HK_MAP_PAIR ? first + 1 : base + l->period;
    for (int r = first; r < end; r++) {
      const int to = m->kind == HK_MAP_FLIP ? r ^ by : m->kind == HK_MAP_SHIFT ? (r + by) % n : (by + base) % n;
      at(l, load, k, traffic_rank_on(l, k, r), traffic_rank_on(l, k, to), bytes);
    }
  }
}

/* Microseconds until the fullest edge has carried its load. */
static double traffic_carry(const look *l, const double *load) {
  return l->nedges ? hk_paths_busiest_us(l->wires->paths, load) : 0;
}

/* By rounds, then by steps. Ranks at different places of a ring send a round's messages after different numbers of
 * messages between hosts. */
static int traffic_by_round(const void *a, const void *b) {
  const hk_chain *x = &((const hk_map *)a)->after, *y = &((const hk_map *)b)->after;
  return x->rounds != y->rounds ? (x->rounds > y->rounds) - (x->rounds < y->rounds)
                                : (x->instrs > y->instrs) - (x->instrs < y->instrs);
}

/* The next messages are of the same round as m. */
static bool traffic_same_round(const look *l, const hk_map *m) {
  return l->at < l->s->nmaps && l->s->maps[l->at].after.rounds == m->after.rounds;
}

/* The next messages of the round are of the same step as m. */
static bool traffic_same_step(const look *l, const hk_map *m) {
  return traffic_same_round(l, m) && l->s->maps[l->at].after.instrs == m->after.instrs;
}

/* The messages of one step, on all channels at the same time. */
static void traffic_step(look *l, hk_traffic *out) {
  const uint32_t at = l->at;
  const hk_map *first = &l->s->maps[at];
  const double hops = l->hops;
  for (; traffic_same_step(l, first); l->at++)
    for (int k = 0; k < l->orders; k++) traffic_each(l, traffic_send, l->step, k, &l->s->maps[l->at], 1.0 / l->orders);
  if (l->hops > hops) {
    for (uint32_t i = at; i < l->at; i++)
      for (int k = 0; k < l->orders; k++) traffic_each(l, traffic_time, l->step, k, &l->s->maps[i], 1);
    for (int i = 0; i < l->orders * l->wires->n; i++) {
      l->own[i] += l->now[i];
      l->now[i] = 0;
    }
  }
  const double us = traffic_carry(l, l->joint);
  if (at == 0) out->first_step_us = us;
  out->joint_step_us = fmax(out->joint_step_us, us);
  for (uint32_t e = 0; e < l->nedges; e++) {
    l->round[e] += l->step[e];
    l->joint[l->nedges + e] += l->joint[e];
  }
  memset(l->step, 0, l->nedges * sizeof *l->step);
  memset(l->joint, 0, l->nedges * sizeof *l->joint);
}

/* The most bytes that a port has sent to other hosts so far, or received from there. */
static double traffic_far(const look *l) {
  double most = 0;
  for (size_t i = 0; i < l->nused; i++) most = fmax(most, l->sent[l->used[i]]);
  return most;
}

/* Adds the bytes of the round to those of all rounds. */
static void traffic_end_round(look *l) {
  for (size_t i = 0; i < l->nused; i++) {
    const size_t at = l->used[i];
    l->crossing[at] += l->sent[at];
    if (l->crossing[at] > l->far_all * (1 + 1e-6)) l->far_full = l->far_rounds;
    l->far_all = fmax(l->far_all, l->crossing[at]);
    l->sent[at] = 0;
  }
  l->nused = 0;
}

/* The messages of the next round, in which none waits for another one. A rank that has sent one begins with the next:
 * the slowest rank counts. */
static double traffic_round(look *l, hk_traffic *out) {
  const hk_map *first = &l->s->maps[l->at];
  const double hops = l->hops, crossed = l->crossed;
  double us = 0;
  int steps = 0;
  memset(l->own, 0, (size_t)l->orders * (size_t)l->wires->n * sizeof *l->own);
  for (; traffic_same_round(l, first); steps++) {
    const bool before = l->crossed <= 0;
    const hk_map *step = &l->s->maps[l->at];
    traffic_step(l, out);
    if (before && l->crossed > 0) out->head = step->after;
  }
  for (int i = 0; i < l->orders * l->wires->n; i++) us = fmax(us, l->own[i]);
  const double once = traffic_carry(l, l->round);
  for (uint32_t e = 0; e < l->nedges; e++) l->all[e] += l->round[e];
  memset(l->round, 0, l->nedges * sizeof *l->round);
  out->once_us += once;
  l->near_rounds += once > 0;
  l->far_rounds += l->nused > 0;
  const double all = once > 0 ? traffic_carry(l, l->all) : 0;
  if (all > out->all_us * (1 + 1e-6)) l->near_full = l->near_rounds;
  out->all_us = fmax(out->all_us, all);
  if (l->nused) {
    const double far = traffic_far(l);
    if (out->far_once <= 0) l->first_far = first->after;
    out->early =
        (hk_chain){.rounds = first->after.rounds - l->first_far.rounds, .far = first->after.far - l->first_far.far};
    out->far_early = out->far_once;
    out->far_once += far;
  }
  traffic_end_round(l);
  if (us > out->round_us) {
    out->round_us = us;
    out->round_once_us = once;
    out->step_us = us / steps;
  }
  /* The next round begins when the first step is over. */
  if (l->crossed == crossed) out->near_alone += us / steps;
  if (l->hops == hops) out->far_alone += (l->crossed - crossed) / steps;
  return us;
}

/* The channels one after another, each alone, and their sum between hosts. */
static void traffic_channels(look *l, hk_traffic *out) {
  for (int k = 0, bit = 0; k < l->ways; k++) {
    for (uint32_t i = 0; i < l->s->nmaps; i++) traffic_each(l, traffic_send, l->step, k, &l->s->maps[i], 1);
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
  const size_t lanes = (size_t)orders * (size_t)wires->n;
  l.step = calloc(5 * (size_t)edges + 2 * lanes + 4 * l.nports, sizeof *l.step);
  *out = (hk_traffic){.alpha_us = 0};
  l.used = malloc(2 * l.nports * sizeof *l.used);
  if (!l.step || !l.used) {
    free(l.step);
    free(l.used);
    return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the traffic of %d ranks", s->nranks);
  }
  l.round = l.step + edges;
  l.all = l.round + edges;
  l.joint = l.all + edges;
  l.own = l.joint + 2 * (size_t)edges;
  l.now = l.own + lanes;
  l.sent = l.now + lanes;
  l.received = l.sent + l.nports;
  l.crossing = l.received + l.nports;
  qsort(s->maps, s->nmaps, sizeof *s->maps, traffic_by_round);
  while (l.at < s->nmaps) out->turns_us += traffic_round(&l, out);
  if (out->turns_us > 0) out->near_alone /= out->turns_us;
  if (l.crossed > 0) out->far_alone /= l.crossed;
  out->on_rings = l.crossed > 0 && wires->nports ? l.on_rings / l.crossed : 1;
  if (out->all_us > 0) out->near_once = out->once_us / (out->all_us * l.near_rounds);
  out->near_after = 1 - (double)l.near_full / fmax(1, l.near_rounds);
  out->far_after = 1 - (double)l.far_full / fmax(1, l.far_rounds);
  out->joint_us = traffic_carry(&l, l.joint + edges);
  if (out->far_once > 0) {
    out->far_early = out->far_once > l.far_all * (1 + 1e-6) ? 0 : out->far_early / l.far_all;
    out->far_once /= l.far_all * l.far_rounds;
  }
  if (l.hops > 0) out->alpha_us = l.hops_us / l.hops;
  traffic_channels(&l, out);
  free(l.used);
  free(l.step);
  return HK_OK;
}
