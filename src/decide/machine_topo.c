/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model's machine and the layout, made from a cluster's topologies. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../program/layout.h"
#include "../topo/join.h"
#include "../topo/topo.h"
#include "gpu.h"
#include "machine.h"
#include "outlines.h"
#include "overrides.h"

/* How many channels are worth trying, by hk_gpu_info.sm. RCCL has 28 to 32 on a MI300X. */
static const struct { int sm, channels; } generations[] = {{910, 32}, {900, 16}, {90, 32}, {80, 24}, {70, 16}, {0, 8}};

/* The ranks of one host of a kind. */
typedef struct home {
  const hk_topo *t;
  hk_paths *paths;
  uint32_t *nodes; /* [n] */
  int n;
  double *load; /* [t->nedges] bytes over each edge */
} home;

static void machine_topo_home_free(home *h) {
  hk_paths_free(h->paths);
  free(h->nodes);
  free(h->load);
}

static hk_status machine_topo_home_of(home *h, const hk_cluster *c, const hk_placement *placements, int nranks,
                                      int host, const hk_path_rules *rules) {
  *h = (home){.t = hk_cluster_host(c, host)};
  h->nodes = malloc((size_t)nranks * sizeof *h->nodes);
  h->load = malloc((h->t->nedges + 1) * sizeof *h->load);
  if (!h->nodes || !h->load) return HK_FAIL_ERRNO("no memory for a host's %d ranks", nranks);
  for (int r = 0; r < nranks; r++)
    if (placements[r].host == host) h->nodes[h->n++] = placements[r].node;
  return hk_paths_new(&h->paths, h->t, rules);
}

static void machine_topo_add(home *h, const hk_path *p, double bytes) { hk_path_load(h->paths, p, bytes, h->load); }
static double machine_topo_busiest(const home *h) { return hk_paths_busiest_us(h->paths, h->load); }
static void machine_topo_clear(home *h) { memset(h->load, 0, (h->t->nedges + 1) * sizeof *h->load); }

/* Time if every rank sends one part of a byte, of n - 1 equal parts, to the rank `by` further; by 0: all parts to all
 * others at once. */
static double machine_topo_mesh_us(home *h, int by) {
  machine_topo_clear(h);
  for (int j = by ? by : 1; j <= (by ? by : h->n - 1); j++)
    for (int i = 0; i < h->n; i++)
      machine_topo_add(h, hk_path_between(h->paths, h->nodes[i], h->nodes[(i + j) % h->n]), 1.0 / (h->n - 1));
  return machine_topo_busiest(h);
}

/* The level inside a host: every rank sends a byte to the next rank, or a byte in equal parts to all others. */
static void machine_topo_look_inside(home *h, hk_level *l) {
  double us = 0, in_turn = 0;
  machine_topo_clear(h);
  for (int i = 0; i < h->n; i++) {
    const hk_path *p = hk_path_between(h->paths, h->nodes[i], h->nodes[(i + 1) % h->n]);
    if (h->n > 1) machine_topo_add(h, p, 1);
  }
  l->ring_us_per_b = fmax(l->ring_us_per_b, machine_topo_busiest(h));
  for (int i = 0; i < h->n; i++)
    for (int k = 0; k < h->n; k++) {
      if (i == k) continue;
      const hk_path *p = hk_path_between(h->paths, h->nodes[i], h->nodes[k]);
      us = fmax(us, p->us);
      if (p->gbps > 0) l->one_us_per_b = fmax(l->one_us_per_b, 1 / (double)p->gbps / 1000);
    }
  /* All at once, no rank waits while a link is free; one distance after another, each step waits for the busiest link.
   * With a switch, or one narrow link, both are equal. If paths lead over several GPUs (meshes), programs are between
   * the two. */
  for (int by = 1; by < h->n; by++) in_turn += machine_topo_mesh_us(h, by);
  l->mesh_us_per_b = fmax(l->mesh_us_per_b, sqrt(machine_topo_mesh_us(h, 0) * in_turn));
  l->alpha_us = fmax(l->alpha_us, us);
}

/* Adds the load of bytes from a GPU to the nearest CPU's memory, and from there to the port.  Returns the added
 * latency. */
static double machine_topo_stage(home *h, uint32_t gpu, uint32_t net, double bytes) {
  const hk_path *best = NULL, *rest = NULL;
  for (uint32_t cpu = h->t->first_of[HK_NODE_CPU]; cpu < h->t->first_of[HK_NODE_CPU + 1]; cpu++) {
    const hk_path *p = hk_path_between(h->paths, gpu, cpu);
    if (best && p->cls >= best->cls) continue;
    best = p;
    rest = hk_path_between(h->paths, cpu, net);
  }
  if (!best) return 0;
  machine_topo_add(h, best, bytes);
  machine_topo_add(h, rest, bytes);
  return 2 * best->us;
}

/* The level between hosts: a host's ranks together send a byte, each by its nearest port; a GPU's channels take turns
 * over equally near ones. */
static hk_status machine_topo_look_out(home *h, const hk_cluster *c, hk_path_class gdr, hk_level *l) {
  double us = 0;
  machine_topo_clear(h);
  for (int i = 0; i < h->n; i++) {
    uint32_t nets[HK_PORTS_MOST];
    const hk_node *placement = &h->t->nodes[h->nodes[i]];
    const uint32_t most = placement->kind == HK_NODE_GPU ? HK_PORTS_MOST : 1;
    const uint32_t near = hk_paths_near_nets(h->paths, h->nodes[i], nets, most);
    if (!near)
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "%s: there are several hosts, but %s has no network port that its ranks can reach: give it one "
                     "(nic=1x100 in a string, a <net> in the XML)",
                     c->name, h->t->name);
    const hk_path *first = hk_path_between(h->paths, h->nodes[i], nets[0]);
    if (first->gbps > 0) l->one_us_per_b = fmax(l->one_us_per_b, 1 / (double)first->gbps / 1000);
    double staged_us = 0;
    for (uint32_t k = 0; k < near; k++) {
      const hk_path *p = hk_path_between(h->paths, h->nodes[i], nets[k]);
      const double bytes = 1.0 / h->n / near;
      bool far = p->cls > gdr && p->cls != HK_PATH_PXN && gdr < HK_PATH_PHB;
      if (placement->kind == HK_NODE_GPU && (far || !placement->gpu.gdr || !h->t->nodes[nets[k]].net.gdr))
        staged_us = machine_topo_stage(h, h->nodes[i], nets[k], bytes); /* no GPUDirect: through host memory */
      else
        machine_topo_add(h, p, bytes);
    }
    us = fmax(us, 2 * first->us + staged_us);
  }
  l->ring_us_per_b = fmax(l->ring_us_per_b, machine_topo_busiest(h));
  l->alpha_us = fmax(l->alpha_us, us);
  return HK_OK;
}

/* Adds the fabric's costs: latency, and less bandwidth for data that goes through the spines. */
static void machine_topo_cross_fabric(hk_machine *m, const hk_cluster *c) {
  const hk_fabric *f = &c->fabric;
  bool spines = f->rail || (f->hosts_per_leaf > 0 && f->hosts_per_leaf < m->team.nhosts);
  double part = 0; /* part of an all-to-all's bytes that goes over spines */
  if (f->hosts_per_leaf > 0 && f->hosts_per_leaf < m->team.nhosts)
    part = (double)(m->team.nhosts - f->hosts_per_leaf) / (m->team.nhosts - 1);
  else if (f->rail && m->team.ranks_per_host > 1)
    part = 1 - 1.0 / m->team.ranks_per_host;
  m->between.alpha_us += f->base_us + (spines ? 3 : 1) * f->hop_us;
  m->between.mesh_us_per_b = m->team.overlap ? m->ports_us_per_b : m->between.ring_us_per_b;
  if (f->oversub > 1 && part * f->oversub > 1) m->between.mesh_us_per_b *= part * f->oversub;
}

static void machine_topo_count_placements(hk_machine *m, const hk_cluster *c, const hk_placement *placements,
                                          int nranks, int *of_host) {
  m->team.nranks = nranks;
  m->team.least_per_host = nranks;
  for (int r = 0; r < nranks; r++) of_host[placements[r].host]++;
  for (int h = 0; h < c->nhosts; h++) {
    if (!of_host[h]) continue;
    m->team.nhosts++;
    if (of_host[h] > m->team.ranks_per_host) m->team.ranks_per_host = of_host[h];
    if (of_host[h] < m->team.least_per_host) m->team.least_per_host = of_host[h];
  }
}

/* GPUs: links move bytes by themselves, and protocols and channels can be chosen. */
static void machine_topo_describe_gpus(hk_machine *m, const home *h, const hk_settings *s) {
  const hk_gpu_info *g = &h->t->nodes[h->nodes[0]].gpu;
  bool nvlink = h->n > 1, switched = hk_topo_count(h->t, HK_NODE_NVS) > 0, reduces = switched;
  double memory = g->memory_gbps > 0 ? g->memory_gbps : HK_GPU_MEMORY_GBPS;
  size_t k = 0;
  for (int i = 0; i < h->n; i++) {
    reduces = reduces && h->t->nodes[h->nodes[i]].gpu.mcast;
    for (int j = 0; j < i; j++)
      nvlink = nvlink && hk_path_between(h->paths, h->nodes[j], h->nodes[i])->cls <= HK_PATH_NVL;
  }
  while (generations[k].sm > g->sm) k++;
  m->team.overlap = true;
  m->copy_us_per_b = fmax(m->copy_us_per_b, 2 / memory / 1000); /* read and written */
  m->gamma_us_per_b = fmax(m->gamma_us_per_b, 1 / memory / 1000);
  m->launch_us = hk_gpu_launch_us(g->sm);
  m->sync_us = m->far_sync_us = HK_GPU_SYNC_US;
  m->channel_us = HK_GPU_CHANNEL_US;
  m->channel_us_per_b = fmax(m->channel_us_per_b, 1 / hk_gpu_lane_gbps(g->sm) / 1000);
  m->switch_wire = fmax(m->switch_wire, 1 / hk_gpu_in_switch(g->sm));
  int channels = generations[k].channels;
  if (m->team.nhosts > 1 && channels > HK_GPU_NET_CHANNELS) channels = HK_GPU_NET_CHANNELS;
  if (!m->max_channels || m->max_channels > channels) m->max_channels = channels;
  m->protocols &= 1u << HK_PROTO_SIMPLE | 1u << HK_PROTO_LL | (nvlink && g->sm >= 70 ? 1u << HK_PROTO_LL128 : 0);
  m->team.multicast = m->team.multicast && reduces && m->team.nhosts == 1;
  m->team.in_switch = m->team.in_switch && reduces;
  m->slot_bytes = (size_t)s->SLOT_BYTES;
  m->nslots = (uint32_t)s->SLOTS;
}

hk_status hk_gpu_prices_of(hk_gpu_prices *out, const hk_cluster *c, const hk_placement *placements, int nranks,
                           const hk_overrides *o) {
  hk_machine m;
  hk_status rc = hk_machine_of(&m, c, placements, nranks, NULL, o);
  *out = (hk_gpu_prices){.known = 0};
  if (rc != HK_OK || nranks < 2) return rc;
  *out = (hk_gpu_prices){.inside = m.inside,
                         .between = m.between,
                         .gamma_us_per_b = m.gamma_us_per_b,
                         .copy_us_per_b = m.copy_us_per_b,
                         .ports_us_per_b = m.ports_us_per_b,
                         .known = 1};
  return HK_OK;
}

/* Guesses for an unknown topology: NVLink between GPUs, and a GPU's memory for the ranks that share one. */
#define GUESSED_LINK_US 0.9
#define GUESSED_LINK_GBPS 300
#define GUESSED_MEMORY_GBPS 2000
/* The least cost of data through pinned host memory: a write and a read over PCI. */
#define STAGED_US 1.5
#define STAGED_GBPS 20

static hk_gpu_prices machine_topo_guessed_prices(void) {
  const double link = 1.0 / GUESSED_LINK_GBPS / 1000;
  return (hk_gpu_prices){.inside = {.alpha_us = GUESSED_LINK_US + HK_GPU_INSTR_US,
                                    .ring_us_per_b = link,
                                    .mesh_us_per_b = link,
                                    .one_us_per_b = link},
                         .copy_us_per_b = 2.0 / GUESSED_MEMORY_GBPS / 1000,
                         .gamma_us_per_b = 1.0 / GUESSED_MEMORY_GBPS / 1000};
}

hk_machine hk_machine_of_gpus(const hk_gpu_facts *f, const hk_constants *constants) {
  size_t k = 0;
  while (generations[k].sm > f->sm) k++;
  hk_gpu_prices p = f->prices.known ? f->prices : machine_topo_guessed_prices();
  const double sharers = f->ranks_per_gpu, link = sharers > 1 ? sharers * 2 * p.copy_us_per_b : 0;
  const double least = f->staged ? 1.0 / STAGED_GBPS / 1000 : 0;
  hk_level inside = p.inside;
  if (f->staged) inside.alpha_us = fmax(inside.alpha_us, STAGED_US + HK_GPU_INSTR_US);
  inside.ring_us_per_b = fmax(fmax(inside.ring_us_per_b, link), least);
  inside.mesh_us_per_b = fmax(fmax(inside.mesh_us_per_b, link), least);
  inside.one_us_per_b = fmax(inside.one_us_per_b, least);
  /* What was measured between these hosts (hocket tune --between) is nearer to the truth than what their ports show. */
  if (p.ports_us_per_b <= 0 || constants->net_measured) {
    p.ports_us_per_b = constants->net_us_per_b;
    p.between = (hk_level){.alpha_us = constants->net_alpha_us + HK_GPU_INSTR_US + HK_GPU_PROXY_US,
                           .ring_us_per_b = constants->net_us_per_b,
                           .mesh_us_per_b = constants->net_us_per_b,
                           .one_us_per_b = constants->net_us_per_b};
  }
  hk_machine m = {.team = f->team,
                  .inside = inside,
                  .between = f->team.nhosts > 1 ? p.between : inside,
                  .copy_us_per_b = sharers * p.copy_us_per_b,
                  .gamma_us_per_b = sharers * p.gamma_us_per_b,
                  .launch_us = hk_gpu_launch_us(f->sm),
                  .sync_us = HK_GPU_SYNC_US,
                  .far_sync_us = HK_GPU_SYNC_US,
                  .channel_us = HK_GPU_CHANNEL_US,
                  .channel_us_per_b = 1 / hk_gpu_lane_gbps(f->sm) / 1000,
                  .ports_us_per_b = p.ports_us_per_b,
                  .wire = 1,
                  .switch_wire = 1 / hk_gpu_in_switch(f->sm),
                  .channels = 1,
                  .max_channels = f->max_channels < generations[k].channels ? f->max_channels : generations[k].channels,
                  .protocols = 1u << HK_PROTO_SIMPLE | 1u << HK_PROTO_LL |
                               (f->wide && f->team.ranks_per_host > 1 ? 1u << HK_PROTO_LL128 : 0),
                  .slot_bytes = f->slot_bytes,
                  .nslots = f->nslots};
  m.team.multicast = f->team.in_switch && f->team.nhosts == 1;
  m.team.overlap = true;
  return m;
}

hk_status hk_outlines_of(hk_outlines **out, const hk_cluster *c, const hk_placement *placements, const hk_machine *m,
                         const hk_layout *layout, const hk_channels *rings, const hk_path_rules *rules) {
  hk_status rc = HK_OK;
  const int nranks = m->team.nranks;
  uint32_t *nodes = malloc((size_t)nranks * sizeof *nodes);
  int n = 0;
  *out = NULL;
  if (!nodes) return HK_FAIL_ERRNO("no memory for a host's %d ranks", nranks);
  for (int r = 0; r < nranks; r++) {
    if (hk_layout_host_of(layout, r) != 0) continue;
    nodes[hk_layout_local_of(layout, r)] = placements[r].node;
    n++;
  }
  const hk_topo *t = hk_cluster_host(c, placements[hk_layout_rank(layout, 0, 0)].host);
  HK_TRY(hk_outlines_new(out, nranks, layout, hk_machine_held_slots(m)), out);
  if (c->nkinds > 1 || (rings && rings->nranks != n)) rings = NULL; /* the orders are joined from several searches */
  if (t->nodes[nodes[0]].kind == HK_NODE_GPU)
    HK_TRY(hk_outlines_wire(*out, t, nodes, n, c->fabric.rail, rings, rules), out);
out:
  free(nodes);
  if (rc != HK_OK) {
    hk_outlines_free(*out);
    *out = NULL;
  }
  return rc;
}

static int machine_topo_cores_of(const hk_topo *t) {
  int cores = 0;
  for (uint32_t i = t->first_of[HK_NODE_CPU]; i < t->first_of[HK_NODE_CPU + 1]; i++) cores += t->nodes[i].cpu.cores;
  return cores;
}

/* CPUs: memory connects a host's ranks, sockets connect hosts. */
static void machine_topo_describe_cpus(hk_machine *m, const home *h, const hk_constants *constants,
                                       const hk_settings *s) {
  int cores = machine_topo_cores_of(h->t), had = m->cores_per_host;
  hk_host_facts f = {.team = {.nranks = m->team.nranks,
                              .nhosts = m->team.nhosts,
                              .ranks_per_host = m->team.ranks_per_host,
                              .least_per_host = m->team.least_per_host,
                              .multicast = m->team.nhosts == 1},
                     .cores_per_host = cores > 0 ? cores : h->n,
                     .memory = true,
                     .slot_bytes = (size_t)s->SLOT_BYTES,
                     .nslots = (uint32_t)s->SLOTS};
  hk_machine host = hk_machine_of_hosts(&f, constants);
  if (had && had < host.cores_per_host) host.cores_per_host = had;
  host.between.ring_us_per_b = fmax(host.between.ring_us_per_b, m->between.ring_us_per_b);
  host.between.mesh_us_per_b = host.between.ring_us_per_b;
  *m = host;
}

/* Uses the rings of the search. In a mixed cluster the slowest host counts. */
static hk_status machine_topo_use_rings(hk_machine *m, const hk_cluster *c, const hk_placement *placements, int nranks,
                                        const hk_channels *rings, const hk_path_rules *rules) {
  int n = rings->nchannels;
  double inside = (double)rings->intra_gbps, between = (double)rings->inter_gbps;
  if (c->nkinds > 1) {
    hk_search what = {.pattern = HK_PATTERN_RING, .max_channels = rings->nchannels};
    hk_joined *all;
    hk_status rc = hk_join_cluster(&all, c, placements, nranks, &what, rules);
    if (rc != HK_OK) return rc;
    n = all->nchannels;
    inside = (double)all->intra_gbps;
    between = (double)all->inter_gbps;
    hk_joined_free(all);
  }
  m->rings = n;
  hk_level_use_rings(&m->inside, n, inside);
  if (m->team.nhosts > 1) hk_level_use_rings(&m->between, n, between);
  return HK_OK;
}

hk_status hk_machine_of(hk_machine *out, const hk_cluster *c, const hk_placement *placements, int nranks,
                        const hk_channels *rings, const hk_overrides *o) {
  hk_status rc = HK_OK;
  const hk_settings *s = o ? o->settings : hk_settings_now();
  hk_machine m = {.wire = 1, .channels = 1, .protocols = ~0u, .team.multicast = true, .team.in_switch = true};
  int *of_host = calloc((size_t)c->nhosts, sizeof *of_host);
  bool *seen = calloc((size_t)c->nkinds, sizeof *seen);
  home h = {.t = NULL};
  if (!of_host || !seen) {
    rc = HK_FAIL_ERRNO("no memory for %d hosts", c->nhosts);
    goto out;
  }
  machine_topo_count_placements(&m, c, placements, nranks, of_host);
  for (int host = 0; host < c->nhosts; host++) {
    int kind = hk_cluster_kind(c, host);
    if (seen[kind] || !of_host[host]) continue; /* one host represents all of its kind */
    seen[kind] = true;
    machine_topo_home_free(&h);
    HK_TRY(machine_topo_home_of(&h, c, placements, nranks, host, o ? &o->paths : NULL), out);
    if (h.t->nodes[h.nodes[0]].kind == HK_NODE_GPU) machine_topo_look_inside(&h, &m.inside);
    if (m.team.nhosts > 1) HK_TRY(machine_topo_look_out(&h, c, o ? o->gdr_level : HK_PATH_PXB, &m.between), out);
    if (h.t->nodes[h.nodes[0]].kind == HK_NODE_GPU)
      machine_topo_describe_gpus(&m, &h, s);
    else
      machine_topo_describe_cpus(&m, &h, o ? &o->constants : NULL, s);
  }
  if (m.team.overlap) {
    m.inside.alpha_us += HK_GPU_INSTR_US;
    m.between.alpha_us += HK_GPU_INSTR_US + HK_GPU_PROXY_US;
    m.ports_us_per_b = m.between.ring_us_per_b;
    if (rings && rings->nchannels > 0)
      HK_TRY(machine_topo_use_rings(&m, c, placements, nranks, rings, o ? &o->paths : NULL), out);
  }
  if (m.team.nhosts > 1) machine_topo_cross_fabric(&m, c);
  m.team.in_network = !m.team.overlap && m.team.nhosts > 1 && s->COLLNET_ENABLE == 1 &&
                      m.team.nhosts >= s->COLLNET_NODE_THRESHOLD;
  *out = m;
out:
  machine_topo_home_free(&h);
  free(of_host);
  free(seen);
  return rc;
}

HK_ASSERT((int)HK_JOIN_RANKS == (int)HK_RANKS_MOST, "programs can be for all ranks that are joined");

/* For equal hosts with all placements used: repeats the first host's order of ranks on each host. */
static hk_status machine_topo_repeat_orders(const hk_layout *plain, const hk_channels *rings, int32_t **out) {
  size_t n = (size_t)plain->nranks;
  int32_t *order = *out = malloc((size_t)rings->nchannels * n * sizeof *order);
  if (!order) return HK_FAIL_ERRNO("no memory for the ring orders of %d ranks", plain->nranks);
  for (int k = 0; k < rings->nchannels; k++)
    for (int at = 0; at < plain->nranks; at++)
      order[(size_t)k * n + (size_t)at] = hk_layout_rank(plain, at / plain->most, rings->at[k].order[at % plain->most]);
  return HK_OK;
}

hk_status hk_layout_of(hk_layout **out, const hk_cluster *c, const hk_placement *placements, int nranks,
                       const hk_channels *rings) {
  hk_status rc = HK_OK;
  hk_layout *plain = NULL;
  hk_joined *joined = NULL;
  int32_t *order = NULL;
  uint64_t *host = malloc((size_t)nranks * sizeof *host);
  int *local = malloc((size_t)nranks * sizeof *local);
  *out = NULL;
  if (!host || !local) {
    rc = HK_FAIL_ERRNO("no memory for the layout of %d ranks", nranks);
    goto out;
  }
  for (int r = 0; r < nranks; r++) {
    const hk_node *n = &hk_cluster_host(c, placements[r].host)->nodes[placements[r].node];
    host[r] = (uint64_t)placements[r].host;
    local[r] = n->kind == HK_NODE_GPU ? n->gpu.dev : (int)placements[r].node;
  }
  HK_TRY(hk_layout_new(&plain, nranks, host, local, NULL, 1), out);
  if (!rings || rings->nchannels < 1) {
    *out = plain;
    plain = NULL;
  } else if (c->nkinds == 1 && plain->most == plain->least && plain->most == rings->nranks) {
    HK_TRY(machine_topo_repeat_orders(plain, rings, &order), out);
    rc = hk_layout_new(out, nranks, host, local, order, rings->nchannels);
  } else {
    hk_search what = {.pattern = HK_PATTERN_RING, .max_channels = rings->nchannels};
    HK_TRY(hk_join_cluster(&joined, c, placements, nranks, &what, NULL), out);
    rc = hk_layout_new(out, nranks, host, local, joined->order, joined->nchannels);
  }
out:
  hk_layout_free(plain);
  hk_joined_free(joined);
  free(order);
  free(host);
  free(local);
  return rc;
}
