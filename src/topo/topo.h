/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The machine as a graph. A topology is one scale-up domain: usually a host, for an NVL72 the rack. Nodes are CPUs (one
 * for each NUMA node), PCI switches, GPUs, NVSwitches, NICs and their network ports. Edges are links with a bandwidth
 * for each direction. A cluster is several topologies (equal ones are kept once) joined by a fabric.
 *
 * Topologies come from detection (detect.h), NCCL's XML (xml.h) or machine strings (synth.h). They are read by
 * paths.h, search.h, the simulator, the selector and `hocket topo`. A topology is built by hk_topo_add and
 * hk_topo_link, then finished, then never changed. Everything computed from it is a pure function of it, so equal
 * topologies give equal decisions on all ranks.
 *
 * Bandwidths are GB/s (1e9 bytes) in one direction, as a large copy reaches them: after encoding and protocol overhead.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

typedef enum hk_node_kind {
  HK_NODE_CPU, /* a NUMA node: cores, memory, the root of its PCI trees */
  HK_NODE_PCI, /* a switch or bridge that more than one device shares */
  HK_NODE_GPU,
  HK_NODE_NVS, /* the NVSwitches of a domain, as one node */
  HK_NODE_NIC, /* the PCI function */
  HK_NODE_NET, /* a network port of a NIC, or ports merged into one */
  HK_NODE_KINDS
} hk_node_kind;
const char *hk_node_kind_name(hk_node_kind k); /* "CPU", "PCI", "GPU", "NVS", "NIC", "NET" */

typedef enum hk_edge_kind {
  HK_EDGE_PCI,
  HK_EDGE_NVLINK,
  HK_EDGE_C2C, /* CPU to GPU on Grace machines */
  HK_EDGE_SYS, /* between CPUs: UPI, Infinity Fabric, QPI */
  HK_EDGE_PORT /* a NIC's function to its port */
} hk_edge_kind;

enum { HK_NODE_NAME = 48, HK_CPU_MASK_WORDS = 16, HK_NODE_LABEL = 40, HK_TOPO_NODES = 4096, HK_TOPO_LINKS = 65536 };

typedef struct hk_cpu_info {
  char arch[16], vendor[24];
  int family, model;
  int cores;                        /* that this process may use; 0: unknown */
  float memory_gbps;                /* read + write of its memory, all cores together; 0: unknown */
  float cache_mib;                  /* of its last-level caches together; 0: unknown */
  uint64_t mask[HK_CPU_MASK_WORDS]; /* bit i: CPU number i */
} hk_cpu_info;
typedef struct hk_pci_info {
  uint32_t class_code;                           /* 24 bits: 0x060400 a bridge, 0x030200 a GPU, 0x020000 a NIC */
  uint16_t vendor, device, subvendor, subdevice; /* 0: unknown */
  float gts;                                     /* link speed now, GT/s a lane; 0: unknown */
  int width;                                     /* lanes now */
  float max_gts;                                 /* the best that both ends can do; above gts: the link is downgraded */
  int max_width;
} hk_pci_info;
typedef struct hk_gpu_info {
  int dev;           /* CUDA's number, or the position in a synthetic machine */
  int sm;            /* 90: compute capability 9.0; from 900 on AMD's: 942 is gfx942, 910 gfx90a; 0: unknown */
  float memory_gbps; /* read + write of device memory */
  bool gdr;          /* a NIC may read and write its memory */
  bool mcast;        /* NVLS: the switch can multicast and reduce */
  uint64_t fabric;   /* hosts whose GPUs carry the same number share NVLinks (MNNVL: cluster and clique); 0: none */
} hk_gpu_info;
typedef struct hk_net_info {
  int dev, port;
  float mbps;       /* Mb/s as the port reports; the edge's bandwidth follows from it */
  float latency_us; /* 0: unknown */
  uint64_t guid;
  bool gdr, ethernet;
  int rail; /* ports of equal rail on different hosts share a leaf switch of a rail-optimised fabric; -1: unknown */
} hk_net_info;

typedef struct hk_node {
  uint8_t kind; /* hk_node_kind */
  int16_t numa; /* of the CPU it belongs to; -1: unknown */
  uint64_t id;  /* CPU: NUMA id; PCI, GPU, NIC: bus id (hk_bus_id); NET: dev; NVS: 0.  Unique within its kind */
  char name[HK_NODE_NAME]; /* "mlx5_0", "H100"; may be empty */
  hk_pci_info pci;         /* PCI, GPU, NIC; zero elsewhere */
  union {
    hk_cpu_info cpu;
    hk_gpu_info gpu;
    hk_net_info net;
  };
  uint32_t first_edge, nedges; /* the edges that leave this node; set by hk_topo_finish */
} hk_node;
/* "GPU 3", "NET 0", "CPU 1", "NVS", "PCI 0000:17:00.0"; text needs HK_NODE_LABEL bytes. */
void hk_node_label(const hk_node *n, char *text);

typedef struct hk_edge {
  uint32_t from, to; /* node indices */
  uint8_t kind;      /* hk_edge_kind */
  uint16_t count;    /* NVLinks: how many make this edge; 1 elsewhere */
  float gbps;        /* from -> to; the way back is an edge of its own */
  float us;          /* latency added by crossing */
  uint32_t back;     /* index of the edge to -> from; set by hk_topo_finish */
} hk_edge;

typedef struct hk_topo {
  char name[64]; /* for people: "dgx-h100", the name of a file or a host */
  uint32_t nnodes, nedges;
  hk_node *nodes;                       /* after hk_topo_finish in canonical order: by kind, then id */
  hk_edge *edges;                       /* after hk_topo_finish grouped by `from`, then by `to` */
  uint32_t first_of[HK_NODE_KINDS + 1]; /* nodes of kind k: [first_of[k], first_of[k + 1]) */
  /* Hash of all data on which decisions depend: equal topologies have equal hashes. Names, masks and cores are left
   * out, because two processes on one host may see them differently. */
  uint64_t hash;
  char *remarks; /* NULL, or lines of text: what detection could not see, links that are slower than they could be */
} hk_topo;

hk_status hk_topo_new(hk_topo **out, const char *name);
void hk_topo_free(hk_topo *t); /* NULL is fine */
/* Appends a node with every field zero but kind, id and numa (-1); *out is its index until hk_topo_finish. */
hk_status hk_topo_add(hk_topo *t, hk_node_kind kind, uint64_t id, uint32_t *out);
/* Both directions of a link. */
hk_status hk_topo_link(hk_topo *t, uint32_t a, uint32_t b, hk_edge_kind kind, unsigned count, float gbps, float us);
hk_status hk_topo_remark(hk_topo *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sorts, joins parallel edges, checks (connected, ids unique, bandwidths positive: HK_ERR_ARGUMENT names the fault),
 * hashes. Afterwards the topology is constant. */
hk_status hk_topo_finish(hk_topo *t);
/* The edges that leave a node, n->nedges of them; sorted by hk_topo_finish. */
static inline const hk_edge *hk_topo_edges(const hk_topo *t, const hk_node *n) { return t->edges + n->first_edge; }
static inline uint32_t hk_topo_count(const hk_topo *t, hk_node_kind k) { return t->first_of[k + 1] - t->first_of[k]; }
/* Index of the node, or UINT32_MAX. Before hk_topo_finish, too. */
uint32_t hk_topo_find(const hk_topo *t, hk_node_kind kind, uint64_t id);

/* "0000:1b:00.0" or "1b:00.0" to domain << 20 | bus << 12 | device << 4 | function and back; text needs 24 bytes. */
bool hk_bus_id_parse(const char *text, uint64_t *out);
void hk_bus_id_format(uint64_t id, char *text);

/* Bandwidth of a link in GB/s, one direction, as a large copy sees it; 0 for what is unknown. */
float hk_pci_gbps(float gts, int width);
float hk_nvlink_gbps(int sm); /* one NVLink or xGMI link of such a GPU */

/* GB/s of memory, read and write, for nodes that do not have it. */
#define HK_GPU_MEMORY_GBPS 1000.0
#define HK_CPU_MEMORY_GBPS 60.0
/* Adds remarks about defaults that this finished topology uses, and about links and ports that it may lack. `file`: it
 * was read from a file, which may leave them to detection. */
hk_status hk_topo_remark_guesses(hk_topo *t, bool file);

/* How domains are joined. */
typedef struct hk_fabric {
  bool rail;          /* leaf switches take one rail (port number i of every host), not whole hosts */
  int hosts_per_leaf; /* 0: one switch for all */
  int spines;         /* parallel paths between two leaves; a flow uses one, chosen by hash (ECMP), unless `adaptive` */
  bool adaptive;      /* flows spread over the spines packet by packet */
  /* bandwidth between hosts and leaf, divided by bandwidth between leaf and spines; 1: full bisection */
  float oversub;
  float hop_us;  /* of one switch */
  float base_us; /* of both NICs and their drivers together, one message */
} hk_fabric;

typedef struct hk_cluster {
  char name[64];
  int nhosts, nkinds;
  hk_topo **kinds;   /* [nkinds], owned */
  uint16_t *kind_of; /* [nhosts] index into kinds; NULL if nkinds == 1 */
  hk_fabric fabric;
} hk_cluster;
/* Takes ownership of `t`, also on error. */
hk_status hk_cluster_of(hk_cluster **out, hk_topo *t, int nhosts);
void hk_cluster_free(hk_cluster *c);
static inline int hk_cluster_kind(const hk_cluster *c, int host) { return c->kind_of ? c->kind_of[host] : 0; }
static inline const hk_topo *hk_cluster_host(const hk_cluster *c, int host) {
  return c->kinds[hk_cluster_kind(c, host)];
}

/* Where a rank is: on a GPU, or on a CPU whose memory it uses. */
typedef struct hk_placement {
  int host;
  uint32_t node; /* in the host's topology */
} hk_placement;
/* One rank for each GPU, host after host in CUDA's order. Without GPUs `per_host` ranks divided among the CPUs (0: one
 * for each core), neighbours on one CPU. *out has *n entries; free() it. */
hk_status hk_cluster_placements(const hk_cluster *c, int per_host, hk_placement **out, int *n);
