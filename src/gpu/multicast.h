/* SPDX-License-Identifier: Apache-2.0 */
/* Links in multicast memory of an NVSwitch. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include "../base/status.h"

struct hk_call;
struct hk_facts;     /* base/facts.h */
struct hk_gpu_link;  /* kernels/cuda/work.h */
struct hk_link_need; /* program/program.h */

/* After hk_gpu_reach, by all ranks: sets g->in_switch, equal on all ranks.  Logs the reason if there is no multicast
 * memory. */
hk_status hk_gpu_multicast_join(ncclComm_t c, const struct hk_facts *facts);
struct hk_gpu_link hk_gpu_multicast_link(ncclComm_t c, const struct hk_link_need *need, unsigned channel, bool first);
/* True if the switch has the call's operator for its type. */
bool hk_gpu_switch_reduces(const struct hk_call *call);
