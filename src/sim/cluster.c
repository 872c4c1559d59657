/* SPDX-License-Identifier: Apache-2.0 */
/* Resources of hosts and fabric, and the routes between ranks (cluster.h). */
#include "cluster.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "../topo/paths.h"
#include "../topo/search.h"
#include "model.h"

enum { BYTES_PER_US = 1000 }; /* of 1 GB/s */

/* ---- the fabric ---- */

static int cluster_rail_of(const hk_node *net) { return net->net.rail >= 0 ? net->net.rail : net->net.dev; }

int hk_sim_cluster_leaf(const hk_sim_cluster *w, int host, const hk_node *net) {
  const hk_fabric *f = &w->c->fabric;
  int group = f->hosts_per_leaf > 0 ? host / f->hosts_per_leaf : 0;
  return f->rail ? cluster_rail_of(net) * w->leaves_per_rail + group : group;
}

int hk_sim_cluster_spine(const hk_sim_cluster *w, int from_host, const hk_node *from, int to_host, const hk_node *to,
                         int channel) {
  if (w->spines <= 1) return 0;
  uint64_t h = hk_hash_mix(hk_hash_mix(hk_hash_mix(w->seed + 1, (uint64_t)from_host), from->id), (uint64_t)to_host);
  return (int)(hk_hash_mix(hk_hash_mix(h, to->id), (uint64_t)channel) % (uint64_t)w->spines);
}

double hk_sim_cluster_uplink(const hk_sim_cluster *w) {
  const hk_fabric *f = &w->c->fabric;
  const hk_topo *t = hk_sim_cluster_topo(w, 0);
  double ports = f->hosts_per_leaf > 0 ? f->hosts_per_leaf : w->c->nhosts, gbps = 0;
  uint32_t first = t->first_of[HK_NODE_NET], count = hk_topo_count(t, HK_NODE_NET);
  for (uint32_t i = first; i < first + count; i++) gbps += t->edges[t->nodes[i].first_edge].gbps;
  if (f->rail && count) gbps /= count;
  return ports * gbps * BYTES_PER_US / (f->oversub > 0 ? f->oversub : 1) / w->spines;
}

static uint32_t cluster_fabric_resource(const hk_sim_cluster *w, int leaf, int spine, bool down) {
  return w->fabric_base + 2 * (uint32_t)(leaf * w->spines + spine) + down;
}

/* False: one leaf switch for all hosts, so only ports limit. */
static bool cluster_has_spines(const hk_sim_cluster *w) {
  const hk_fabric *f = &w->c->fabric;
  return (f->hosts_per_leaf > 0 && f->hosts_per_leaf < w->c->nhosts) || f->rail;
}

int hk_sim_cluster_leaves(const hk_sim_cluster *w) {
  int rails = 1;
  if (!cluster_has_spines(w)) return 0;
  if (w->c->fabric.rail) {
    for (int k = 0; k < w->c->nkinds; k++) {
      const hk_topo *t = w->c->kinds[k];
      for (uint32_t i = t->first_of[HK_NODE_NET]; i < t->first_of[HK_NODE_NET + 1]; i++)
        if (cluster_rail_of(&t->nodes[i]) >= rails) rails = cluster_rail_of(&t->nodes[i]) + 1;
    }
  }
  return rails * w->leaves_per_rail;
}

/* ---- resources ---- */

static hk_status cluster_furnish_host(hk_sim_cluster *w, int host) {
  const hk_topo *t = hk_sim_cluster_topo(w, host);
  uint32_t r;
  w->base[host] = w->net.nresources;
  for (uint32_t i = 0; i < t->nedges; i++)
    HK_OR_RETURN(hk_net_add(&w->net, (double)t->edges[i].gbps * BYTES_PER_US, &r));
  for (uint32_t i = 0; i < t->nnodes; i++) {
    const hk_node *n = &t->nodes[i];
    double gbps = n->kind == HK_NODE_GPU ? n->gpu.memory_gbps : n->kind == HK_NODE_CPU ? n->cpu.memory_gbps : 0;
    if (gbps <= 0) gbps = n->kind == HK_NODE_GPU ? HK_GPU_MEMORY_GBPS : HK_CPU_MEMORY_GBPS;
    HK_OR_RETURN(hk_net_add(&w->net, gbps * BYTES_PER_US, &r));
  }
  for (uint32_t i = 0; i < t->nnodes; i++) {
    const hk_node *n = &t->nodes[i];
    HK_OR_RETURN(hk_net_add(&w->net, n->kind == HK_NODE_CPU && n->cpu.cores > 0 ? n->cpu.cores : 1, &r));
  }
  return HK_OK;
}

hk_status hk_sim_cluster_furnish(hk_sim_cluster *w) {
  uint32_t r;
  for (int h = 0; h < w->c->nhosts; h++)
    if (w->rep[h] == (uint32_t)h) HK_OR_RETURN(cluster_furnish_host(w, h));
  w->fabric_base = w->net.nresources;
  if (!w->folded) {
    double each = hk_sim_cluster_uplink(w);
    for (int i = 0; i < 2 * hk_sim_cluster_leaves(w) * w->spines; i++) HK_OR_RETURN(hk_net_add(&w->net, each, &r));
  }
  return HK_OK;
}

hk_status hk_sim_cluster_init(hk_sim_cluster *w, const hk_cluster *c, const hk_placement *placements, int nranks,
                              hk_paths *const *paths, hk_channels *const *rings, uint64_t seed) {
  const hk_fabric *f = &c->fabric;
  *w = (hk_sim_cluster){
      .c = c, .placements = placements, .nranks = nranks, .paths = paths, .rings = rings, .seed = seed};
  w->spines = f->spines > 1 && !f->adaptive ? f->spines : 1;
  w->leaves_per_rail = f->hosts_per_leaf > 0 ? (c->nhosts + f->hosts_per_leaf - 1) / f->hosts_per_leaf : 1;
  size_t hosts = (size_t)c->nhosts;
  w->first_rank = calloc(hosts + 1, sizeof *w->first_rank);
  w->rep = malloc(hosts * sizeof *w->rep);
  w->size = malloc(hosts * sizeof *w->size);
  w->base = calloc(hosts, sizeof *w->base);
  if (!w->first_rank || !w->rep || !w->size || !w->base)
    return HK_FAIL_ERRNO("no memory to simulate %d hosts", c->nhosts);
  for (int r = 0; r < nranks; r++) w->first_rank[placements[r].host + 1]++;
  for (int h = 0; h < c->nhosts; h++) {
    w->first_rank[h + 1] += w->first_rank[h];
    w->rep[h] = (uint32_t)h;
    w->size[h] = 1;
  }
  return HK_OK;
}

void hk_sim_cluster_free(hk_sim_cluster *w) {
  free(w->first_rank);
  free(w->rep);
  free(w->size);
  free(w->base);
  hk_net_free(&w->net);
  *w = (hk_sim_cluster){0};
}

/* ---- routes ---- */

static void cluster_use(hk_route *out, uint32_t resource, double weight) {
  for (uint32_t i = 0; i < out->n; i++) {
    if (out->uses[i].resource != resource) continue;
    out->uses[i].weight += (float)weight;
    return;
  }
  if (out->n < HK_ROUTE_USES) out->uses[out->n++] = (hk_use){.resource = resource, .weight = (float)weight};
}

/* The hops of a path inside a host, whose resources are those of its representative. */
static void cluster_use_path(const hk_sim_cluster *w, int host, uint32_t from, uint32_t to, double weight,
                             hk_route *out) {
  const hk_topo *t = hk_sim_cluster_topo(w, host);
  const hk_paths *p = w->paths[hk_sim_cluster_kind(w, host)];
  const hk_path *path = hk_path_between(p, from, to);
  uint32_t base = w->base[w->rep[host]];
  for (uint32_t i = 0; i < path->nhops; i++) {
    uint32_t edge = p->hops[path->first + i], node = t->edges[edge].to;
    cluster_use(out, base + edge, weight);
    /* No peer access: the data is written to a CPU's memory and read from there. */
    if (path->host && t->nodes[node].kind == HK_NODE_CPU &&
        (i + 1 == path->nhops || t->edges[p->hops[path->first + i + 1]].kind != HK_EDGE_SYS))
      cluster_use(out, base + t->nedges + node, 2 * weight);
  }
  out->us += path->us;
}

/* A ring leaves a host and enters the next one by its channel's NETs. */
static const hk_channel_order *cluster_ring_hop(const hk_sim_cluster *w, int host, int channel) {
  const hk_channels *rings = w->rings[hk_sim_cluster_kind(w, host)];
  return rings && rings->nchannels ? &rings->at[channel % rings->nchannels] : NULL;
}

enum { NEAR_NETS = 16 };
static uint32_t cluster_near_nets(const hk_sim_cluster *w, int rank, uint32_t nets[NEAR_NETS]) {
  const hk_placement *s = &w->placements[rank];
  return hk_paths_near_nets(w->paths[hk_sim_cluster_kind(w, s->host)], s->node, nets, NEAR_NETS);
}

/* One of the nearest NETs; channels take turns over equal ones. */
static uint32_t cluster_near_net(const hk_sim_cluster *w, int rank, int channel) {
  uint32_t nets[NEAR_NETS], n = cluster_near_nets(w, rank, nets);
  return n ? nets[(uint32_t)channel % n] : UINT32_MAX;
}

int hk_sim_cluster_turns(const hk_sim_cluster *w, int channels) {
  uint32_t nets[NEAR_NETS];
  int turns = channels;
  for (int h = 0; h < w->c->nhosts; h++) {
    if (h && hk_sim_cluster_kind(w, h) == hk_sim_cluster_kind(w, h - 1)) continue; /* it has the same */
    for (uint32_t r = w->first_rank[h]; r < w->first_rank[h + 1]; r++) {
      const int n = (int)cluster_near_nets(w, (int)r, nets);
      for (const int step = turns; n && turns % n;) turns += step;
    }
  }
  return turns;
}

/* The NET of a host on a rail. */
static uint32_t cluster_net_on_rail(const hk_sim_cluster *w, int host, int rail) {
  const hk_topo *t = hk_sim_cluster_topo(w, host);
  for (uint32_t i = t->first_of[HK_NODE_NET]; i < t->first_of[HK_NODE_NET + 1]; i++)
    if (cluster_rail_of(&t->nodes[i]) == rail) return i;
  return UINT32_MAX;
}

void hk_sim_cluster_nets(const hk_sim_cluster *w, int from, int to, int channel, uint32_t *out, uint32_t *in) {
  const hk_placement *a = &w->placements[from], *b = &w->placements[to];
  uint32_t la = (uint32_t)from - w->first_rank[a->host], lb = (uint32_t)to - w->first_rank[b->host];
  const hk_channel_order *x = cluster_ring_hop(w, a->host, channel), *y = cluster_ring_hop(w, b->host, channel);
  if (x && y) {
    uint32_t na = w->first_rank[a->host + 1] - w->first_rank[a->host];
    uint32_t nb = w->first_rank[b->host + 1] - w->first_rank[b->host];
    bool forth = x->order[na - 1] == la && y->order[0] == lb, back = x->order[0] == la && y->order[nb - 1] == lb;
    *out = forth ? x->net_out : x->net_in;
    *in = forth ? y->net_in : y->net_out;
    if ((forth || back) && *out != UINT32_MAX && *in != UINT32_MAX) return;
  }
  *in = cluster_near_net(w, to, channel);
  *out = cluster_near_net(w, from, channel);
  if (*in == UINT32_MAX || *out == UINT32_MAX || !w->c->fabric.rail) return;
  /* Rails: first to the receiver's rail inside the sender's host, because NVLink is faster than a path over spines. */
  int rail = cluster_rail_of(&hk_sim_cluster_topo(w, b->host)->nodes[*in]);
  uint32_t same = cluster_net_on_rail(w, a->host, rail);
  const hk_paths *p = w->paths[hk_sim_cluster_kind(w, a->host)];
  if (same != UINT32_MAX && hk_path_between(p, a->node, same)->cls <= HK_PATH_PXN) *out = same;
}

static hk_status cluster_far_route(const hk_sim_cluster *w, int from, int to, int channel, hk_route *out) {
  const hk_placement *a = &w->placements[from], *b = &w->placements[to];
  const hk_topo *ta = hk_sim_cluster_topo(w, a->host), *tb = hk_sim_cluster_topo(w, b->host);
  const hk_fabric *f = &w->c->fabric;
  uint32_t leave, enter;
  hk_sim_cluster_nets(w, from, to, channel, &leave, &enter);
  if (leave == UINT32_MAX || enter == UINT32_MAX)
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "rank %d on host %d has no network port to reach rank %d on host %d; give the machine one (nic=)",
                   leave == UINT32_MAX ? from : to, leave == UINT32_MAX ? a->host : b->host,
                   leave == UINT32_MAX ? to : from, leave == UINT32_MAX ? b->host : a->host);
  double there = w->folded ? (double)w->size[w->rep[a->host]] / w->size[w->rep[b->host]] : 1;
  cluster_use_path(w, a->host, a->node, leave, 1, out);
  cluster_use_path(w, b->host, enter, b->node, there, out);
  int la = hk_sim_cluster_leaf(w, a->host, &ta->nodes[leave]), lb = hk_sim_cluster_leaf(w, b->host, &tb->nodes[enter]);
  out->net = true;
  out->cross = la != lb;
  out->us += f->base_us + f->hop_us * (out->cross ? 3 : 1);
  if (out->cross && !w->folded && cluster_has_spines(w)) {
    int spine = hk_sim_cluster_spine(w, a->host, &ta->nodes[leave], b->host, &tb->nodes[enter], channel);
    cluster_use(out, cluster_fabric_resource(w, la, spine, false), 1);
    cluster_use(out, cluster_fabric_resource(w, lb, spine, true), 1);
  }
  return HK_OK;
}

hk_status hk_sim_cluster_route(const hk_sim_cluster *w, int from, int to, int channel, hk_route *out) {
  const hk_placement *a = &w->placements[from], *b = &w->placements[to];
  out->n = 0;
  out->us = 0;
  out->net = out->cross = false;
  if (a->host != b->host) return cluster_far_route(w, from, to, channel, out);
  const hk_path *path = hk_path_between(w->paths[hk_sim_cluster_kind(w, a->host)], a->node, b->node);
  if (path->cls == HK_PATH_DIS)
    return HK_FAIL(HK_ERR_ARGUMENT, "rank %d cannot reach rank %d on host %d: its topology has no path", from, to,
                   a->host);
  if (a->node != b->node) cluster_use_path(w, a->host, a->node, b->node, 1, out);
  return HK_OK;
}

uint32_t hk_sim_cluster_switch_edge(const hk_sim_cluster *w, int rank, bool down) {
  const hk_placement *s = &w->placements[rank];
  const hk_topo *t = hk_sim_cluster_topo(w, s->host);
  const hk_node *n = &t->nodes[s->node];
  for (uint32_t i = n->first_edge; i < n->first_edge + n->nedges; i++)
    if (t->nodes[t->edges[i].to].kind == HK_NODE_NVS) return w->base[w->rep[s->host]] + (down ? t->edges[i].back : i);
  return UINT32_MAX;
}

/* ---- names ---- */

static void cluster_name_in_host(const hk_sim_cluster *w, int host, uint32_t at, char *text, size_t capacity) {
  const hk_topo *t = hk_sim_cluster_topo(w, host);
  char from[HK_NODE_LABEL], to[HK_NODE_LABEL], others[32] = "";
  if (w->size[host] > 1) snprintf(others, sizeof others, " (and %u like it)", w->size[host] - 1);
  if (at < t->nedges) {
    hk_node_label(&t->nodes[t->edges[at].from], from);
    hk_node_label(&t->nodes[t->edges[at].to], to);
    snprintf(text, capacity, "host %d%s: %s -> %s", host, others, from, to);
    return;
  }
  bool cores = at >= t->nedges + t->nnodes;
  hk_node_label(&t->nodes[at - t->nedges - (cores ? t->nnodes : 0)], from);
  snprintf(text, capacity, "host %d%s: %s of %s", host, others, cores ? "cores" : "memory", from);
}

void hk_sim_cluster_name(const hk_sim_cluster *w, uint32_t resource, char *text, size_t capacity) {
  if (resource < w->fabric_base) { /* it belongs to the last host whose first resource is not after it */
    int h = w->c->nhosts - 1;
    while (w->rep[h] != (uint32_t)h || resource < w->base[h]) h--;
    cluster_name_in_host(w, h, resource - w->base[h], text, capacity);
    return;
  }
  if (w->folded) {
    snprintf(text, capacity, "the fabric's uplinks");
    return;
  }
  uint32_t at = resource - w->fabric_base;
  int leaf = (int)(at / 2) / w->spines, spine = (int)(at / 2) % w->spines;
  if (at % 2)
    snprintf(text, capacity, "spine %d -> leaf %d", spine, leaf);
  else
    snprintf(text, capacity, "leaf %d -> spine %d", leaf, spine);
}
