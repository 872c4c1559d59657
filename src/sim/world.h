/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A cluster as resources, and the path between two ranks as uses of them.
 *
 * A host that represents others (fold.c) is the only one of its class with resources. What goes to a host of another
 * class goes to that class's representative. Each of `size[a]` senders sends what each of `size[b]` receivers gets, so
 * the receiver's links carry size[a] / size[b] times the flow.
 */
#ifndef HK_SIM_WORLD_H
#define HK_SIM_WORLD_H
#include "../topo/search.h"
#include "flow.h"

typedef struct hk_world {
  const hk_cluster *c;
  hk_net net;
  const hk_seat *seats;
  int nranks;
  uint32_t *first_rank; /* [nhosts + 1] */
  uint32_t *rep, *size; /* [nhosts] the host that represents it; how many hosts a representative represents */
  bool folded;
  bool shifted;              /* folded into the first host, of which all others are shifted copies: fold.c */
  hk_paths *const *paths;    /* by kind of host */
  hk_channels *const *rings; /* by kind of host; entries may be NULL */
  uint32_t *base;            /* [nhosts] of representatives: the first resource */
  uint32_t fabric_base;
  int spines, leaves_per_rail;
  uint64_t seed;
} hk_world;

enum { HK_ROUTE_USES = 48 };
typedef struct hk_route {
  hk_use uses[HK_ROUTE_USES];
  uint32_t n;
  bool net;   /* between hosts: a proxy sends from a staging slot */
  bool cross; /* through a spine */
  double us;
} hk_route;

/* Everything but the resources. What it points to remains the caller's. */
hk_status hk_world_init(hk_world *w, const hk_cluster *c, const hk_seat *seats, int nranks, hk_paths *const *paths,
                        hk_channels *const *rings, uint64_t seed);
/* Makes the resources, when rep and size are final. */
hk_status hk_world_furnish(hk_world *w);
void hk_world_free(hk_world *w);

static inline const hk_topo *hk_world_topo(const hk_world *w, int host) { return hk_cluster_host(w->c, host); }
static inline int hk_world_kind(const hk_world *w, int host) { return w->c->kind_of ? w->c->kind_of[host] : 0; }
static inline const hk_node *hk_world_node(const hk_world *w, int rank) {
  const hk_seat *s = &w->seats[rank];
  return &hk_world_topo(w, s->host)->nodes[s->node];
}
static inline bool hk_world_gpu(const hk_world *w, int rank) { return hk_world_node(w, rank)->kind == HK_NODE_GPU; }
/* The rank at the same position of its host's representative. */
static inline int hk_world_rep(const hk_world *w, int rank) {
  int host = w->seats[rank].host;
  return (int)(w->first_rank[w->rep[host]] + ((uint32_t)rank - w->first_rank[host]));
}

/* `rank`, with all ranks shifted so that `peer`'s host becomes its representative. */
static inline int hk_world_shift(const hk_world *w, int rank, int peer) {
  int shifted = (rank - (peer - hk_world_rep(w, peer))) % w->nranks;
  return shifted < 0 ? shifted + w->nranks : shifted;
}

/* A representative's memory (of a GPU or CPU) and cores (of a CPU). */
static inline uint32_t hk_world_memory(const hk_world *w, int rank) {
  const hk_seat *s = &w->seats[rank];
  return w->base[s->host] + hk_world_topo(w, s->host)->nedges + s->node;
}
static inline uint32_t hk_world_cores(const hk_world *w, int rank) {
  return hk_world_memory(w, rank) + hk_world_topo(w, w->seats[rank].host)->nnodes;
}

/* From a rank of a representative to any rank, for data of `channel`. */
hk_status hk_world_route(const hk_world *w, int from, int to, int channel, hk_route *out);
/* The NETs by which it leaves and enters. */
void hk_world_nets(const hk_world *w, int from, int to, int channel, uint32_t *out, uint32_t *in);
/* The edge between a GPU and its NVSwitch, UINT32_MAX if there is none; `down`: towards the GPU. */
uint32_t hk_world_switch_edge(const hk_world *w, int rank, bool down);
/* The name of a resource, for people. */
void hk_world_name(const hk_world *w, uint32_t resource, char *text, size_t room);

/* The leaf switch of a host's NET, and the spine that a flow between two NETs takes. */
int hk_world_leaf(const hk_world *w, int host, const hk_node *net);
int hk_world_spine(const hk_world *w, int from_host, const hk_node *from, int to_host, const hk_node *to, int channel);
int hk_world_leaves(const hk_world *w); /* 0: one switch for all, only ports limit */
/* Bytes a microsecond from a leaf to one spine. */
double hk_world_uplink(const hk_world *w);
#endif
