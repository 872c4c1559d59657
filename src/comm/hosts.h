/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' hosts at init: how many ranks and cores each has, the ring orders, and the machine of the cost model that
 * follows. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/facts.h"
#include "../base/status.h"

/* Data that the ranks published. */
typedef struct hk_host_rows {
  hk_facts cpus;    /* HK_CPU_WORDS words: processors that the rank may use */
  hk_facts shm_off; /* a word: NCCL_SHM_DISABLE */
  hk_facts backend; /* its backend's fact */
} hk_host_rows;

int hk_hosts_first(const struct ncclComm *c, int rank); /* the first rank on that rank's host */
/* Fills in this rank's row. */
void hk_hosts_publish(ncclComm_t c, uint64_t *cpus, uint64_t *shm_off);
/* Fills in the `cores` of c->peers. A launcher may bind each rank to one core; together they may have enough. */
void hk_hosts_count_cores(ncclComm_t c, const hk_host_rows *rows);
/* Collective. Finds the ring orders and fills in c->selection and the spins of c->wait. *nhosts: the number of hosts.
 * `child`: of a split or shrink. */
hk_status hk_hosts_agree(ncclComm_t c, const hk_host_rows *rows, bool child, int *nhosts);
/* After the last barrier of the init: sets values that are equal on all ranks only from then on. */
void hk_hosts_joined(ncclComm_t c);
