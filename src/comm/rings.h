/* SPDX-License-Identifier: Apache-2.0 */
/* Ring orders. A user may give them (NCCL_GRAPH_FILE). Otherwise the search finds them on GPUs, and ranks on
 * host memory keep their own order. NCCL_GRAPH_DUMP_FILE writes what the search finds. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include "../base/status.h"

struct hk_channels;  /* topo/search.h */
struct hk_host_rows; /* hosts.h */
struct hk_joined;    /* topo/join.h */

/* Collective on GPUs, and if NCCL_GRAPH_FILE is set; it is set on all ranks or none (checked before). *out is
 * NULL if rings follow the order of ranks. *each: the channels of each host, if all hosts have the same; else it stays
 * NULL. */
hk_status hk_rings_agree(ncclComm_t c, const struct hk_host_rows *rows, bool child, struct hk_joined **out,
                         struct hk_channels **each);
