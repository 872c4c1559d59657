/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of the backend for host memory (core/backend.h). */
#pragma once
#include <nccl.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;
struct hk_constants;  /* decide/constants.h */
struct hk_host_facts; /* decide/machine.h */
struct hk_joined;     /* topo/join.h */
struct hk_machine;    /* decide/machine.h */
struct hk_plan;       /* kernels/plan.h */
struct hk_program;    /* program/program.h */
struct hk_topo;       /* topo/topo.h */

/* ---- host_init.c ---- */
hk_status hk_host_topology(ncclComm_t c, struct hk_topo **own, const struct hk_topo **out);
/* The CPU with the most processors that the rank may use; the lowest such CPU. */
uint32_t hk_host_node_of(const struct hk_topo *t, const void *fact, const uint64_t *cpus);
void hk_host_machine(const struct ncclComm *c, const struct hk_host_facts *hosts, const struct hk_joined *rings,
                     const struct hk_constants *constants, struct hk_machine *out);

/* ---- host_bind.c ---- */
unsigned hk_host_most_channels(const struct ncclComm *c, const struct hk_program *p, unsigned span);
hk_status hk_host_bind(ncclComm_t c, struct hk_plan *plan, unsigned span, const struct hk_call *call);
/* HK_ERR_USAGE if a buffer is a GPU's. */
hk_status hk_host_refuse_gpu_memory(const struct hk_call *call);
