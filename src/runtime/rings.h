/* SPDX-License-Identifier: Apache-2.0 */
/* Ring orders that a user gives (NCCL_GRAPH_FILE), and the dump of those that the search would find
 * (NCCL_GRAPH_DUMP_FILE).  Without either nothing is done: rings go in the order of ranks. */
#ifndef HK_RUNTIME_RINGS_H
#define HK_RUNTIME_RINGS_H
#include "../topo/join.h"
#include "comm.h"

/* Collective where NCCL_GRAPH_FILE is set, which it is on all ranks or none (their overrides were compared).  `cpus` are the
 * first rank's processors (HK_CPU_WORDS), the next rank's `stride` bytes further.  *out is NULL where no file is given or the
 * host's ranks are too many for it. */
hk_status hk_rings_agree(ncclComm_t c, const void *cpus, size_t stride, bool child, hk_joined **out);
#endif
