/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's graph at init.  Ranks on host memory decide without it, and looking at a machine takes longer than their
 * init: it is made only where somebody asks for it (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE). */
#ifndef HK_RUNTIME_TOPOLOGY_H
#define HK_RUNTIME_TOPOLOGY_H
#include "comm.h"

/* What a rank tells the others of it. */
typedef struct hk_topology_fact {
  uint64_t file;  /* hash of the topology file's content; 0: none */
  uint64_t graph; /* of the graph; 0: not made */
} hk_topology_fact;

/* Makes the graph where it is asked for, which checks the file, and dumps it on the rank that is to. `child`: of a split or
 * shrink; these dump nothing. */
hk_status hk_topology_tell(ncclComm_t c, bool child, hk_topology_fact *out);
/* Ranks of one host must have equal files. `facts` has one entry a rank, `stride` bytes apart. */
hk_status hk_topology_agree(ncclComm_t c, const void *facts, size_t stride);
#endif
