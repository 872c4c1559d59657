/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's part in the RAS server of its host (ops/ras.h). */
#pragma once
#include <nccl.h>
#include "../base/status.h"

/* Before the ranks meet: a rank that does not come is in the report, too. */
hk_status hk_ras_part_begin(ncclComm_t c);
/* Once c->service exists: takes the server over if the process that has it now goes away. */
void hk_ras_part_watch(ncclComm_t c);
/* A process has ended: it may be the one that answered. */
void hk_ras_part_heard_death(void);
/* Before the service ends. */
void hk_ras_part_end(ncclComm_t c);
