/* SPDX-License-Identifier: Apache-2.0 */
/* Links in multicast memory of an NVSwitch. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include "../base/status.h"

struct hk_call;
struct hk_facts; /* base/facts.h */
struct hk_gpu;
struct hk_gpu_link;  /* kernels/cuda/work.h */
struct hk_link_need; /* program/program.h */
struct hk_program;   /* the same */

/* After hk_gpu_reach, by all ranks: sets g->in_switch, equal on all ranks.  Logs the reason if there is no multicast
 * memory. */
hk_status hk_gpu_multicast_join(ncclComm_t c, const struct hk_facts *facts);
struct hk_gpu_link hk_gpu_multicast_link(ncclComm_t c, const struct hk_link_need *need, unsigned channel, bool first);
void hk_gpu_multicast_end(struct hk_gpu *g); /* its kernels have ended */
/* True if some links of the program are in a switch. */
bool hk_gpu_uses_switch(const struct hk_program *p);
/* The most copies of a program's lanes that a launch may have. One copy uses `span` channels. */
unsigned hk_gpu_most_channels(const struct ncclComm *c, const struct hk_program *p, unsigned span);
/* Bytes of a slot of the program's links, if slots outside of the switch have `bytes`. */
size_t hk_gpu_slot_bytes(const struct ncclComm *c, const struct hk_program *p, size_t bytes);
/* True if the switch has the call's operator for its type. */
bool hk_gpu_switch_reduces(const struct hk_call *call);
