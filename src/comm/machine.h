/* SPDX-License-Identifier: Apache-2.0 */
/* What decisions follow from, at init, from what the ranks published: ring orders, layout, prices, tuner, programs. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include "../base/status.h"

struct hk_channels;  /* topo/search.h */
struct hk_host_rows; /* hosts.h */
struct hk_joined;    /* topo/join.h */

/* Collective. Finds the ring orders and fills in c->selection and the spins of c->wait. *nhosts: the number of hosts.
 * `child`: of a split or shrink. */
hk_status hk_machine_agree(ncclComm_t c, const struct hk_host_rows *rows, bool child, int *nhosts);
/* After the last barrier of the init: sets values that are equal on all ranks only from then on. */
void hk_machine_joined(ncclComm_t c);
/* tuner.c: a tuner plugin that refuses on one rank is used on none. */
hk_status hk_machine_begin_tuner(ncclComm_t c);
/* rings.c: ring orders. A user may give them (NCCL_GRAPH_FILE). Otherwise the search finds them on GPUs, and ranks on
 * host memory keep their own order. NCCL_GRAPH_DUMP_FILE writes what the search finds. Collective on GPUs, and if
 * NCCL_GRAPH_FILE is set; it is set on all ranks or none (checked before). *out is NULL if rings follow the order of
 * ranks. *each: the channels of each host, if all hosts have the same; else it stays NULL. */
hk_status hk_rings_agree(ncclComm_t c, const struct hk_host_rows *rows, bool child, struct hk_joined **out,
                         struct hk_channels **each);
/* programs.c: loads those of HOCKET_PROGRAMS, once all ranks' facts are known. HK_ERR_USAGE: ranks have different
 * ones. */
hk_status hk_programs_load(ncclComm_t c);
