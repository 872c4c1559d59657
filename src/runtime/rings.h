/* SPDX-License-Identifier: Apache-2.0 */
/* Ring orders: on GPUs those that the search finds, elsewhere or where asked for those that a user gives (NCCL_GRAPH_FILE); and the dump of
 * what the search finds (NCCL_GRAPH_DUMP_FILE).  Ranks on host memory go in their own order without a file. */
#ifndef HK_RUNTIME_RINGS_H
#define HK_RUNTIME_RINGS_H
#include "../topo/join.h"
#include "comm.h"

/* Collective on GPUs, and where NCCL_GRAPH_FILE is set, which it is on all ranks or none (their overrides were compared).  `cpus`
 * are the first rank's processors (HK_CPU_WORDS) and `facts` what its backend publishes, the next rank's `stride` bytes further.
 * *out is NULL where rings go in the order of ranks. */
hk_status hk_rings_agree(ncclComm_t c, const void *cpus, const void *facts, size_t stride, bool child, hk_joined **out);
#endif
