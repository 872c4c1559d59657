/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions in the network (CollNet plugins). */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

struct hk_program;

/* If NCCL_COLLNET_ENABLE or collnetEnable of ncclConfig_t asks for it: finds plugins on all ranks, connects them, and
 * sets the machine's in_network if all went well; otherwise one line of the log says why not. Collective. */
hk_status hk_collnet_agree(ncclComm_t c, int nhosts);
/* True if the network can run this hk_coll; if it reduces, with this hk_dtype and hk_redop. */
bool hk_collnet_can(const struct ncclComm *c, int coll, int dtype, int op);
/* The slot size for the program's links: `bytes`, or less if a round of the network has less room. */
size_t hk_collnet_slot_bytes(const struct ncclComm *c, const struct hk_program *p, size_t bytes);
