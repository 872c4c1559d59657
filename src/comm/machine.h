/* SPDX-License-Identifier: Apache-2.0 */
/* The machine of the cost model at init, from what the ranks published: ring orders, layout, prices, tuner. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include "../base/status.h"

struct hk_host_rows; /* hosts.h */

/* Collective. Finds the ring orders and fills in c->selection and the spins of c->wait. *nhosts: the number of hosts.
 * `child`: of a split or shrink. */
hk_status hk_machine_agree(ncclComm_t c, const struct hk_host_rows *rows, bool child, int *nhosts);
/* After the last barrier of the init: sets values that are equal on all ranks only from then on. */
void hk_machine_joined(ncclComm_t c);
/* tuner.c: a tuner plugin that refuses on one rank is used on none. */
hk_status hk_machine_begin_tuner(ncclComm_t c);
