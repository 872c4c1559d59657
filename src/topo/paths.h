/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Paths between two ends inside a domain. Classes are NCCL's, nearest first, so that NCCL_P2P_LEVEL and
 * NCCL_NET_GDR_LEVEL mean what users know. The path between two ends is chosen by the best class, then the most
 * bandwidth, then the fewest hops, then the lowest node indices. So all ranks find the same path.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_topo; /* topo.h */

typedef enum hk_path_class {
  HK_PATH_LOC, /* the same device */
  HK_PATH_NVL, /* NVLink */
  HK_PATH_NVB, /* NVLink through another GPU */
  HK_PATH_C2C, /* chip to chip, CPU and GPU */
  HK_PATH_PIX, /* one PCI switch */
  HK_PATH_PXB, /* several PCI switches, no host bridge */
  HK_PATH_P2C, /* from a GPU by C2C to its CPU, then by PCI to a NIC */
  HK_PATH_PXN, /* NVLink to a GPU that is near the NIC, then PCI */
  HK_PATH_PHB, /* through a host bridge: the CPU */
  HK_PATH_SYS, /* through the link between CPUs */
  HK_PATH_NET, /* the network */
  HK_PATH_DIS  /* none */
} hk_path_class;
const char *hk_path_class_name(hk_path_class c); /* "LOC" ... */
/* "PIX", "pxb" or NCCL's old numbers 0..5; false if the text is neither. */
bool hk_path_class_parse(const char *text, hk_path_class *out);

typedef struct hk_path {
  uint8_t cls;   /* hk_path_class */
  uint8_t nhops; /* edges */
  bool host;     /* between GPUs, not peer to peer: staged in a CPU's memory */
  /* index of its first edge in hk_paths.hops, which contains the edges' indices in the topology, in order */
  uint32_t first;
  float gbps; /* the narrowest edge; LOC: a copy in the device's own memory */
  float us;   /* the sum */
} hk_path;

typedef struct hk_paths {
  const struct hk_topo *topo;
  uint32_t n;      /* ends: GPUs, NETs and CPUs */
  uint32_t *ends;  /* [n] their node indices, rising */
  uint32_t *index; /* [topo->nnodes] a node's position in `ends`, UINT32_MAX if it is not an end */
  hk_path *at;     /* [n * n] */
  uint32_t *hops;
} hk_paths;

/* Which paths may be used; zeros are the defaults. */
typedef struct hk_path_rules {
  bool no_pxn; /* NCCL_PXN_DISABLE */
  bool no_nvb;
  bool no_p2p; /* NCCL_P2P_DISABLE: no GPU reaches another one's memory */
  /* NCCL_P2P_LEVEL: GPU to GPU paths of a class beyond it go through host memory. 0 is the default: PXB, or SYS on CPUs
   * that are known to forward peer traffic well. */
  hk_path_class p2p_level;
} hk_path_rules;

hk_status hk_paths_new(hk_paths **out, const struct hk_topo *t, const hk_path_rules *rules /* may be NULL */);
void hk_paths_free(hk_paths *p);
/* Between two nodes that are ends. The reverse path has the same edges in the other direction. */
static inline const hk_path *hk_path_between(const hk_paths *p, uint32_t from, uint32_t to) {
  return &p->at[(size_t)p->index[from] * p->n + p->index[to]];
}
/* True if `a` is of a better class, or of the same one and wider. */
static inline bool hk_path_nearer(const hk_path *a, const hk_path *b) {
  return a->cls != b->cls ? a->cls < b->cls : a->gbps > b->gbps;
}
/* Adds bytes to the load of each edge of the path. */
static inline void hk_path_load(const hk_paths *p, const hk_path *path, double bytes, double *load) {
  for (uint32_t i = 0; i < path->nhops; i++) load[p->hops[path->first + i]] += bytes;
}
/* Microseconds until the fullest edge has carried its load, bytes for each edge of the topology. */
double hk_paths_busiest_us(const hk_paths *p, const double *load);
/* The most NETs of a host that the search considers, and that ranks compare. */
enum { HK_NETS_MOST = 256 };
/* The NETs nearest to a GPU or CPU, best first. Equally near NETs are distributed among the GPUs with the same distance
 * to them. Returns the number (at most `most`). */
uint32_t hk_paths_nets(const hk_paths *p, uint32_t node, uint32_t *nets, uint32_t most);
/* Those of them that are as near as the first one: channels use them in turn. */
uint32_t hk_paths_near_nets(const hk_paths *p, uint32_t node, uint32_t *nets, uint32_t most);
