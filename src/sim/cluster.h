/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A cluster as resources, and the path between two ranks as uses of resources.
 *
 * A host that represents others (fold.c) is the only one of its class with resources. Data for a host of another class
 * goes to that class's representative. Each of `size[a]` senders sends what each of `size[b]` receivers gets, so the
 * receiver's links carry size[a] / size[b] times the flow.
 */
#pragma once
#include "../topo/topo.h"
#include "flow.h"

struct hk_channels; /* topo/search.h */
struct hk_paths;    /* topo/paths.h */

typedef struct hk_sim_cluster {
  const hk_cluster *c;
  hk_net net;
  const hk_placement *placements;
  int nranks;
  uint32_t *first_rank; /* [nhosts + 1] */
  /* [nhosts] rep: the host that represents it; size: number of hosts that a representative represents */
  uint32_t *rep, *size;
  bool folded;
  bool shifted;                     /* folded into the first host; all other hosts are shifted copies of it: fold.c */
  struct hk_paths *const *paths;    /* by kind of host */
  struct hk_channels *const *rings; /* by kind of host; entries may be NULL */
  uint32_t *base;                   /* [nhosts] representatives: index of the first resource */
  uint32_t fabric_base;
  int spines, leaves_per_rail;
  uint64_t seed;
} hk_sim_cluster;

enum { HK_ROUTE_USES = 48 };
typedef struct hk_route {
  hk_use uses[HK_ROUTE_USES];
  uint32_t n;
  bool net;   /* between hosts: a proxy sends from a staging slot */
  bool cross; /* through a spine */
  double us;
} hk_route;

/* Initialises everything except the resources. The caller keeps all pointed-to data. */
hk_status hk_sim_cluster_init(hk_sim_cluster *w, const hk_cluster *c, const hk_placement *placements, int nranks,
                              struct hk_paths *const *paths, struct hk_channels *const *rings, uint64_t seed);
/* Makes the resources, when rep and size are final. */
hk_status hk_sim_cluster_furnish(hk_sim_cluster *w);
void hk_sim_cluster_free(hk_sim_cluster *w);

static inline const hk_topo *hk_sim_cluster_topo(const hk_sim_cluster *w, int host) {
  return hk_cluster_host(w->c, host);
}
static inline int hk_sim_cluster_kind(const hk_sim_cluster *w, int host) { return hk_cluster_kind(w->c, host); }
static inline const hk_node *hk_sim_cluster_node(const hk_sim_cluster *w, int rank) {
  const hk_placement *s = &w->placements[rank];
  return &hk_sim_cluster_topo(w, s->host)->nodes[s->node];
}
static inline bool hk_sim_cluster_gpu(const hk_sim_cluster *w, int rank) {
  return hk_sim_cluster_node(w, rank)->kind == HK_NODE_GPU;
}
/* The rank at the same position of its host's representative. */
static inline int hk_sim_cluster_rep(const hk_sim_cluster *w, int rank) {
  int host = w->placements[rank].host;
  return (int)(w->first_rank[w->rep[host]] + ((uint32_t)rank - w->first_rank[host]));
}

/* `rank`, with all ranks shifted so that `peer`'s host becomes its representative. */
static inline int hk_sim_cluster_shift(const hk_sim_cluster *w, int rank, int peer) {
  int shifted = (rank - (peer - hk_sim_cluster_rep(w, peer))) % w->nranks;
  return shifted < 0 ? shifted + w->nranks : shifted;
}

/* A representative's memory (of a GPU or CPU) and cores (of a CPU). */
static inline uint32_t hk_sim_cluster_memory(const hk_sim_cluster *w, int rank) {
  const hk_placement *s = &w->placements[rank];
  return w->base[s->host] + hk_sim_cluster_topo(w, s->host)->nedges + s->node;
}
static inline uint32_t hk_sim_cluster_cores(const hk_sim_cluster *w, int rank) {
  return hk_sim_cluster_memory(w, rank) + hk_sim_cluster_topo(w, w->placements[rank].host)->nnodes;
}

/* The route from a rank of a representative to any rank, for data of `channel`. */
hk_status hk_sim_cluster_route(const hk_sim_cluster *w, int from, int to, int channel, hk_route *out);
/* The least multiple of `channels` after which all ranks use their nearest NETs again from the first. */
int hk_sim_cluster_turns(const hk_sim_cluster *w, int channels);
/* The NETs at which data between the two ranks leaves one host and enters the other. */
void hk_sim_cluster_nets(const hk_sim_cluster *w, int from, int to, int channel, uint32_t *out, uint32_t *in);
/* The edge between a GPU and its NVSwitch, UINT32_MAX if there is none; `down`: towards the GPU. */
uint32_t hk_sim_cluster_switch_edge(const hk_sim_cluster *w, int rank, bool down);
/* The name of a resource, for people. */
void hk_sim_cluster_name(const hk_sim_cluster *w, uint32_t resource, char *text, size_t capacity);

/* The leaf switch of a host's NET, and the spine that a flow between two NETs takes. */
int hk_sim_cluster_leaf(const hk_sim_cluster *w, int host, const hk_node *net);
int hk_sim_cluster_spine(const hk_sim_cluster *w, int from_host, const hk_node *from, int to_host, const hk_node *to,
                         int channel);
int hk_sim_cluster_leaves(const hk_sim_cluster *w); /* 0: one switch for all hosts, so only ports limit */
/* Bytes a microsecond from a leaf to one spine. */
double hk_sim_cluster_uplink(const hk_sim_cluster *w);
