/* SPDX-License-Identifier: Apache-2.0 */
/* Ring orders. A user may give them (NCCL_GRAPH_FILE). Otherwise the search finds them on GPUs, and ranks on
 * host memory keep their own order. NCCL_GRAPH_DUMP_FILE writes what the search finds. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include "../base/status.h"

struct hk_channels;   /* topo/search.h */
struct hk_host_rows;  /* hosts.h */
struct hk_joined;     /* topo/join.h */
struct hk_path_rules; /* topo/paths.h */

/* The user's settings for ring orders. */
typedef struct hk_ring_settings {
  const struct hk_path_rules *paths;
  int cross_nic; /* hk_cross_nic */
  int min_channels, max_channels;
  const char *graph_file, *dump_file; /* NULL or empty: none */
} hk_ring_settings;

/* Collective on GPUs, and if NCCL_GRAPH_FILE is set; it is set on all ranks or none (checked before). *out is
 * NULL if rings follow the order of ranks. *each: the channels of each host, if all hosts have the same; else it stays
 * NULL. */
hk_status hk_rings_agree(ncclComm_t c, const hk_ring_settings *set, const struct hk_host_rows *rows, bool child,
                         struct hk_joined **out, struct hk_channels **each);
