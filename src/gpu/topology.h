/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank knows of the machine's topology. */
#ifndef HK_GPU_TOPOLOGY_H
#define HK_GPU_TOPOLOGY_H
#include "../core/comm.h"

struct hk_facts; /* base/facts.h */
struct hk_gpu_process_group;
struct hk_outlines; /* decide/outlines.h */

typedef struct hk_gpu_topology {
  bool *nvlink;                 /* [nranks] this rank's GPU and the other rank's are joined by NVLink */
  struct hk_gpu_prices *prices; /* rank 0's prices, used by all ranks (decide/machine.h) */
  uint32_t *nodes;              /* [nnodes] of this host's ranks; see nnodes */
  int nnodes;                   /* 0: ranks do not know the same links */
  unsigned char *distances;     /* [nranks] hk_path_class to each peer's GPU; NULL: NCCL_P2P_LEVEL is not set */
} hk_gpu_topology;

/* By all ranks, before hk_gpu_reach: fills `nvlink` and `prices` from the machine's topology, if it can be read. */
hk_status hk_gpu_topology_read(ncclComm_t c, const struct hk_facts *facts);
/* hk_backend.wire: gives the outlines the links of the host, if all ranks of all hosts know the same. */
hk_status hk_gpu_topology_wire(const struct ncclComm *c, struct hk_outlines *o);
/* Fills `distances` if NCCL_P2P_LEVEL is set. */
hk_status hk_gpu_distances(ncclComm_t c, const struct hk_facts *facts);
/* True if a setting forbids direct access to the peer's GPU.  `why` gets the name of the setting. */
bool hk_gpu_too_far(ncclComm_t c, int peer, char *why, size_t why_bytes);
void hk_gpu_topology_free(struct hk_gpu_process_group *w); /* what the ranks of a process share */
void hk_gpu_topology_end(hk_gpu_topology *t);
#endif
