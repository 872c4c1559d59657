/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's graph at init. Ranks on host memory decide without it, and detecting a machine takes longer than
 * their init: the graph is made only if it is asked for (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE). */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_facts; /* base/facts.h */

/* What a rank publishes about its graph. */
typedef struct hk_topology_fact {
  uint64_t file;  /* hash of the topology file's content; 0: none */
  uint64_t graph; /* of the graph; 0: not made */
} hk_topology_fact;

/* Makes the graph if it is asked for, which also checks the file, and dumps it on the rank that
 * NCCL_TOPO_DUMP_FILE_RANK names. `child`: of a split or shrink; those dump nothing. */
hk_status hk_topology_publish(ncclComm_t c, bool child, hk_topology_fact *out);
/* An error if ranks of one host have different files. */
hk_status hk_topology_agree(ncclComm_t c, const struct hk_facts *facts);
