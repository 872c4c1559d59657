/* SPDX-License-Identifier: Apache-2.0 */
/* Threads and sides of all ranks that are simulated, and the connections between sides.
 *
 * If hosts are folded, the other side of a link is that of the peer's representative. A sender gets credits when that
 * side consumes, and a receiver gets that side's messages. So several receivers may get messages from one sender. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../collectives/algorithm.h"
#include "../program/layout.h"
#include "model.h"
#include "run.h"

static bool simulated(const hk_sim *s, int rank) {
  int host = s->cluster.placements[rank].host;
  return s->cluster.rep[host] == (uint32_t)host;
}

static uint32_t wire_side_of(const hk_sim *s, int rank, int channel, uint32_t link) {
  return s->first_side[(size_t)rank * (size_t)s->channels + (size_t)channel] + link;
}

/* ---- counting ---- */

static hk_status wire_count(hk_sim *s) {
  hk_status rc = HK_OK;
  size_t ranks = (size_t)s->cluster.nranks, channels = (size_t)s->channels;
  size_t threads = 0, sides = 0;
  s->first_thread = malloc(ranks * sizeof *s->first_thread);
  s->first_side = malloc(ranks * channels * sizeof *s->first_side);
  if (!s->first_thread || !s->first_side) return HK_FAIL_ERRNO("no memory to simulate %zu ranks", ranks);
  for (int r = 0; r < s->cluster.nranks; r++) {
    s->first_thread[r] = HK_SIM_NONE;
    if (!simulated(s, r)) continue;
    s->first_thread[r] = (uint32_t)threads;
    for (int c = 0; c < s->channels; c++) {
      const hk_program *p;
      HK_OR_RETURN(hk_programs_get(&s->programs, r, c, &p));
      s->first_side[(size_t)r * channels + (size_t)c] = (uint32_t)sides;
      threads += p->nlanes;
      sides += p->nlinks;
    }
    if (sides > HK_SIM_SIDES)
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "%s of %d ranks has more links than the simulator can hold; try another algorithm",
                     s->programs.algorithm->name, s->cluster.nranks);
  }
  s->nthreads = (uint32_t)threads;
  s->nsides = (uint32_t)sides;
  s->threads = calloc(threads, sizeof *s->threads);
  s->sides = calloc(sides, sizeof *s->sides);
  if (!s->gpu) s->cores = malloc(ranks * sizeof *s->cores);
  if (!s->threads || !s->sides || (!s->gpu && !s->cores))
    rc = HK_FAIL_ERRNO("no memory to simulate %zu lanes and %zu links", threads, sides);
  for (size_t r = 0; rc == HK_OK && !s->gpu && r < ranks; r++)
    s->cores[r] = (hk_core){.head = HK_SIM_NONE, .tail = HK_SIM_NONE};
  return rc;
}

/* ---- sides ---- */

static hk_status wire_keep_route(hk_sim *s, hk_side *e, const hk_route *route) {
  if (!HK_RESERVE(s->uses, s->uses_capacity, s->nuses + route->n))
    return HK_FAIL_ERRNO("no memory to simulate %d ranks", s->cluster.nranks);
  if (route->n) memcpy(s->uses + s->nuses, route->uses, route->n * sizeof *s->uses);
  e->first_use = s->nuses;
  e->nuses = route->n;
  s->nuses += route->n;
  return HK_OK;
}

static double wire_latency(const hk_sim *s, const hk_route *route, bool same) {
  if (!s->gpu)
    return route->net ? route->us + HK_SIM_SOCKET_US : same ? HK_SIM_MEMORY_US : HK_SIM_MEMORY_US + route->us;
  const double lane_us = s->sync_us * HK_GPU_SYNC_LANE; /* this part is in s->lane_us */
  return route->us + (route->net ? s->far_sync_us + HK_GPU_PROXY_US : s->sync_us) - lane_us;
}

/* A sender's path to its peer. */
static hk_status wire_open_sender(hk_sim *s, hk_side *e, int rank, int channel, const hk_link_need *need) {
  hk_route route;
  e->credits = hk_side_credits(e, s->nslots);
  e->peer = hk_sim_cluster_rep(&s->cluster, need->peer);
  HK_OR_RETURN(hk_sim_cluster_route(&s->cluster, rank, need->peer, channel, &route));
  HK_OR_RETURN(wire_keep_route(s, e, &route));
  e->us = (float)wire_latency(s, &route, true);
  if (route.net) {
    e->queue = calloc(1, sizeof *e->queue);
    if (!e->queue) return HK_FAIL_ERRNO("no memory for a link between hosts");
    hk_sim_queue *q = e->queue;
    q->end = (uint32_t)(e - s->sides);
    for (uint32_t i = 0; i < route.n; i++)
      HK_OR_RETURN(hk_flow_use(&s->cluster.net, &q->flow, route.uses[i].resource, route.uses[i].weight * s->wire));
    if (!s->gpu) { /* the operating system's copies are work of the ranks' cores */
      double us = 1e-3 / HK_SIM_SOCKET_GBPS;
      HK_OR_RETURN(hk_flow_use(&s->cluster.net, &q->flow, hk_sim_cluster_cores(&s->cluster, rank), us));
      HK_OR_RETURN(hk_flow_use(&s->cluster.net, &q->flow, hk_sim_cluster_cores(&s->cluster, e->peer), us));
    }
  }
  return HK_OK;
}

/* A receiver inside a host: the path from its sender's memory, for messages that are references. */
static hk_status wire_open_receiver(hk_sim *s, hk_side *e, int rank, int channel, const hk_link_need *need) {
  hk_route route = {.n = 0};
  e->peer = hk_sim_cluster_rep(&s->cluster, need->peer);
  if (s->cluster.placements[rank].host == s->cluster.placements[need->peer].host) {
    HK_OR_RETURN(hk_sim_cluster_route(&s->cluster, need->peer, rank, channel, &route));
    HK_OR_RETURN(wire_keep_route(s, e, &route));
    e->us = (float)wire_latency(s, &route, true);
  } else {
    HK_OR_RETURN(hk_sim_cluster_route(&s->cluster, rank, need->peer, channel, &route));
    e->us = (float)wire_latency(s, &route, true);
  }
  return HK_OK;
}

static void wire_set_round(const hk_sim *s, hk_side *e, hk_link_kind kind) {
  uint32_t hosts = (uint32_t)hk_layout_hosts(s->programs.what.layout);
  bool many_in = kind == HK_LINK_SCATTER_SEND || kind == HK_LINK_GATHER_RECV;
  bool many_out = kind == HK_LINK_GATHER_SEND || kind == HK_LINK_SCATTER_RECV;
  e->needs = many_in ? hosts : 1;
  e->gives = many_out ? hosts : 1;
}

static hk_status wire_open_sides(hk_sim *s, int rank, int channel) {
  const hk_program *p;
  HK_OR_RETURN(hk_programs_get(&s->programs, rank, channel, &p));
  const hk_link_need *needs = hk_program_links(p);
  uint32_t thread = s->first_thread[rank];
  for (int c = 0; c < channel; c++) {
    const hk_program *other;
    HK_OR_RETURN(hk_programs_get(&s->programs, rank, c, &other));
    thread += other->nlanes;
  }
  for (uint32_t i = 0; i < p->nlinks; i++) {
    hk_side *e = &s->sides[wire_side_of(s, rank, channel, i)];
    e->thread = thread + needs[i].lane;
    e->sends = hk_link_sends((hk_link_kind)needs[i].kind);
    wire_set_round(s, e, (hk_link_kind)needs[i].kind);
    e->switched = s->gpu && hk_program_link_in_switch(p, i) &&
                  s->cluster.placements[needs[i].peer].host == s->cluster.placements[rank].host;
    e->multicast = needs[i].kind == HK_LINK_MCAST_SEND || needs[i].kind == HK_LINK_MCAST_RECV;
    e->summed = s->gpu && (needs[i].kind == HK_LINK_SUM_SEND || needs[i].kind == HK_LINK_SUM_RECV);
    /* A sum in the network loads a rank's links like a message to the next rank of the group. A gather loads them like
     * the data that each rank then receives. */
    if (e->sends && needs[i].kind != HK_LINK_MCAST_SEND) HK_OR_RETURN(wire_open_sender(s, e, rank, channel, &needs[i]));
    if (!e->sends) HK_OR_RETURN(wire_open_receiver(s, e, rank, channel, &needs[i]));
    if (needs[i].kind == HK_LINK_MCAST_SEND) {
      e->credits = hk_side_credits(e, s->nslots);
      e->peer = rank;
      e->us = (float)(s->gpu ? s->sync_us * (1 - HK_GPU_SYNC_LANE) + 0.7 : HK_SIM_MEMORY_US);
    }
  }
  return HK_OK;
}

/* ---- which side gets whose messages ---- */

typedef struct tie {
  uint32_t from, to; /* sides: messages and credits of `from` go to `to` */
} tie;

typedef struct ties {
  tie *at;
  uint32_t n, capacity;
} ties;

static hk_status wire_add_tie(hk_sim *s, ties *t, uint32_t from, uint32_t to) {
  if (!HK_RESERVE(t->at, t->capacity, t->n + 1))
    return HK_FAIL_ERRNO("no memory to simulate %d ranks", s->cluster.nranks);
  t->at[t->n++] = (tie){.from = from, .to = to};
  return HK_OK;
}

/* The other side of a rank's link; HK_SIM_NONE if the peer has none. `near`: in, where it may be; out, where it was. */
static hk_status wire_other_side(hk_sim *s, int rank, int channel, const hk_link_need *l, int peer, uint32_t *near,
                                 uint32_t *out) {
  const hk_program *p;
  int rep = hk_sim_cluster_rep(&s->cluster, peer);
  int named = l->kind == HK_LINK_MCAST_RECV ? peer : rank; /* a multicast sender's peer is itself */
  if (s->cluster.shifted) {
    named = hk_sim_cluster_shift(&s->cluster, named, peer);
    peer = rep;
  }
  HK_OR_RETURN(hk_programs_get(&s->programs, peer, channel, &p));
  uint32_t link = hk_link_find(p, hk_link_other_end((hk_link_kind)l->kind), named, l->channel, *near);
  if (link != HK_SIM_NONE) *near = link + 1; /* the links of both ranks are in similar orders */
  *out = link == HK_SIM_NONE ? HK_SIM_NONE : wire_side_of(s, rep, channel, link);
  return HK_OK;
}

static hk_status wire_tie_links(hk_sim *s, ties *t, int rank, int channel) {
  const hk_program *p;
  HK_OR_RETURN(hk_programs_get(&s->programs, rank, channel, &p));
  const hk_link_need *needs = hk_program_links(p);
  uint32_t near = 0;
  for (uint32_t i = 0; i < p->nlinks; i++) {
    uint32_t mine = wire_side_of(s, rank, channel, i), other;
    bool all = needs[i].kind == HK_LINK_MCAST_SEND;
    const uint32_t *first = &s->cluster.first_rank[s->cluster.placements[rank].host]; /* a multicast is for the host */
    for (int peer = all ? (int)first[0] : needs[i].peer; peer < (all ? (int)first[1] : needs[i].peer + 1); peer++) {
      if (all && peer == rank) continue;
      HK_OR_RETURN(wire_other_side(s, rank, channel, &needs[i], peer, &near, &other));
      if (other == HK_SIM_NONE && all) continue;
      if (other == HK_SIM_NONE)
        return HK_FAIL(HK_ERR_INTERNAL, "%s: rank %d has no other side of rank %d's link %u", p->algorithm, peer, rank,
                       i);
      HK_OR_RETURN(wire_add_tie(s, t, other, mine));
    }
  }
  return HK_OK;
}

static hk_status wire_lay_out_ties(hk_sim *s, const ties *t) {
  s->targets = malloc(t->n * sizeof *s->targets);
  if (!s->targets) return HK_FAIL_ERRNO("no memory for %u links", t->n);
  for (uint32_t i = 0; i < t->n; i++) s->sides[t->at[i].from].ntargets++;
  uint32_t at = 0;
  for (uint32_t i = 0; i < s->nsides; i++) {
    s->sides[i].first_target = at;
    at += s->sides[i].ntargets;
    s->sides[i].ntargets = 0;
  }
  for (uint32_t i = 0; i < t->n; i++) {
    hk_side *e = &s->sides[t->at[i].from];
    s->targets[e->first_target + e->ntargets++] = t->at[i].to;
  }
  for (uint32_t i = 0; i < s->nsides; i++) {
    hk_side *e = &s->sides[i];
    if (!e->multicast || !e->sends) continue;
    e->left = malloc(s->nslots * sizeof *e->left);
    if (!e->left) return HK_FAIL_ERRNO("no memory for %u slots", s->nslots);
    for (uint32_t k = 0; k < s->nslots; k++) e->left[k] = e->ntargets;
  }
  return HK_OK;
}

/* ---- threads ---- */

static hk_status wire_open_threads(hk_sim *s, int rank) {
  uint32_t at = s->first_thread[rank];
  for (int c = 0; c < s->channels; c++) {
    const hk_program *p;
    HK_OR_RETURN(hk_programs_get(&s->programs, rank, c, &p));
    const hk_lane *lanes = hk_program_lanes(p);
    for (unsigned l = 0; l < p->nlanes; l++, at++) {
      hk_lane_state *t = &s->threads[at];
      t->program = p;
      t->instrs = hk_program_instrs(p);
      t->side = wire_side_of(s, rank, c, 0);
      t->rank = rank;
      t->channel = (uint16_t)c;
      t->lane = (uint16_t)l;
      t->next = HK_SIM_NONE;
      t->flow.end.id = at;
      t->state = hk_cursor_begin(&t->at, &lanes[l], (unsigned)c, &s->sizes) ? HK_T_READY : HK_T_DONE;
    }
  }
  return HK_OK;
}

hk_status hk_sim_wire(hk_sim *s) {
  hk_status rc = HK_OK;
  ties t = {.n = 0};
  HK_TRY(wire_count(s), out);
  for (int r = 0; r < s->cluster.nranks; r++) {
    if (!simulated(s, r)) continue;
    for (int c = 0; c < s->channels; c++) HK_TRY(wire_open_sides(s, r, c), out);
    for (int c = 0; c < s->channels; c++) HK_TRY(wire_tie_links(s, &t, r, c), out);
    HK_TRY(wire_open_threads(s, r), out);
  }
  rc = wire_lay_out_ties(s, &t);
out:
  free(t.at);
  return rc;
}

void hk_sim_clear(hk_sim *s) {
  for (uint32_t i = 0; s->threads && i < s->nthreads; i++) hk_flow_clear(&s->threads[i].flow);
  for (uint32_t i = 0; s->sides && i < s->nsides; i++) {
    hk_side *e = &s->sides[i];
    free(e->times.at);
    free(e->left);
    if (!e->queue) continue;
    hk_flow_clear(&e->queue->flow);
    free(e->queue->bytes.at);
    free(e->queue);
  }
  free(s->threads);
  free(s->sides);
  free(s->first_thread);
  free(s->first_side);
  free(s->targets);
  free(s->uses);
  free(s->cores);
  free(s->timeline.spans);
  hk_programs_free(&s->programs);
  hk_sim_cluster_free(&s->cluster);
  *s = (hk_sim){.nthreads = 0};
}
