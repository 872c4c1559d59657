/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks know of each other's GPUs and of the machine, and how they reach each other. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_facts; /* base/facts.h */
struct hk_gpu_process_group;
struct hk_outlines;   /* decide/outlines.h */
struct hk_constants;  /* decide/constants.h */
struct hk_host_facts; /* decide/machine.h */
struct hk_joined;     /* topo/join.h */
struct hk_machine;    /* decide/machine.h */
struct hk_topo;       /* topo/topo.h */

/* ---- facts.c: what the ranks know of each other's GPUs ---- */
/* What a rank publishes about its GPU. */
typedef struct hk_gpu_fact {
  uint64_t id;     /* of the device: equal on ranks that share it */
  uint64_t blocks; /* blocks that the device runs at once */
  uint64_t sm;
  uint64_t bus;           /* its PCI address: hk_bus_id_parse */
  uint64_t window_stride; /* bytes of address space that a rank's windows need */
  uint8_t copies;         /* the rank requests copy engines and can use them */
  uint8_t by_fd;          /* its memory can go to other processes by file descriptor */
  uint32_t p2p_peers;     /* peers to which the rank sends at once, or from which it receives; 0: all */
  uint8_t multicast;      /* uses of multicast memory that the rank supports: HK_GPU_MULTICAST_* */
} hk_gpu_fact;
enum { HK_GPU_MULTICAST_SUMS = 1, HK_GPU_MULTICAST_WINDOWS = 2 };
const hk_gpu_fact *hk_gpu_fact_of(const struct hk_facts *facts, int rank);
void hk_gpu_fact_fill(ncclComm_t c, hk_gpu_fact *fact);
int hk_gpu_most_equal(uint64_t *ids, int n); /* the count of the most frequent id; sorts them */
/* *most: the largest number of ranks on one device. */
hk_status hk_gpu_count_sharers(const struct hk_facts *facts, int nranks, int *most);
/* The most peers with which any rank communicates at once. A rank that names none means all. */
unsigned hk_gpu_p2p_peers(const struct hk_facts *facts, int nranks);

/* ---- peers.c ---- */
/* An allgather of all ranks of the communicator `c`; with 0 bytes a barrier. */
hk_status hk_gpu_exchange(void *c, void *rows, size_t row_bytes);

/* ---- topology.c: what a rank knows of the machine's topology ---- */
typedef struct hk_gpu_topology {
  bool *nvlink;                 /* [nranks] this rank's GPU and the other rank's are joined by NVLink */
  struct hk_gpu_prices *prices; /* rank 0's prices, used by all ranks (decide/machine.h) */
  uint32_t *nodes;              /* [nnodes] of this host's ranks; see nnodes */
  int nnodes;                   /* 0: ranks do not know the same links */
  unsigned char *distances;     /* [nranks] hk_path_class to each peer's GPU; NULL: NCCL_P2P_LEVEL is not set */
} hk_gpu_topology;

/* By all ranks, before hk_gpu_reach: fills `nvlink` and `prices` from the machine's topology, if it can be read. */
hk_status hk_gpu_topology_read(ncclComm_t c, const struct hk_facts *facts);
/* True if network cards may read this rank's data from its GPU's memory. As NCCL decides it: older GPUs that share
 * their PCI switch's bandwidth with traffic between them are read slowly. */
bool hk_gpu_sends_direct(ncclComm_t c);
/* hk_backend.wire: gives the outlines the links of the host, if all ranks of all hosts know the same. */
hk_status hk_gpu_topology_wire(const struct ncclComm *c, struct hk_outlines *o);
/* Fills `distances` if NCCL_P2P_LEVEL is set. */
hk_status hk_gpu_distances(ncclComm_t c, const struct hk_facts *facts);
/* True if a setting forbids direct access to the peer's GPU.  `why` gets the name of the setting. */
bool hk_gpu_too_far(ncclComm_t c, int peer, char *why, size_t why_bytes);
void hk_gpu_topology_free(struct hk_gpu_process_group *w); /* what the ranks of a process share */
void hk_gpu_topology_end(hk_gpu_topology *t);

/* ---- machine.c: as in hk_backend ---- */
hk_status hk_gpu_machine_topology(ncclComm_t c, struct hk_topo **own, const struct hk_topo **out);
uint32_t hk_gpu_machine_node(const struct hk_topo *t, const void *fact, const uint64_t *cpus);
void hk_gpu_machine(const struct ncclComm *c, const struct hk_host_facts *hosts, const struct hk_joined *rings,
                    const struct hk_constants *constants, struct hk_machine *out);

/* ---- reach.c ---- */
/* Opens the credits of ranks of other processes, tests which ranks' memory can be read, and chooses the links to each
 * peer. */
hk_status hk_gpu_reach(ncclComm_t c, const struct hk_facts *facts);
