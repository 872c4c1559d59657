/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' hosts at init: how many ranks and cores each has. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../base/facts.h"
#include "../base/status.h"

struct hk_host_facts; /* decide/machine.h */
struct hk_wait_env;   /* base/wait.h */

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
/* The facts about hosts that the cost model needs. They are the same on all ranks, because they depend only on what all
 * ranks have exchanged. Sets how long waits spin. */
struct hk_host_facts hk_hosts_count(ncclComm_t c, const hk_host_rows *rows, struct hk_wait_env *wait);
