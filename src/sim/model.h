/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's constants, equal for all machines; the cost model shares those of GPUs. Values that differ between
 * machines (bandwidths, link latencies, memory) are in the topology. docs/simulator.md has this table with the
 * sources. */
#pragma once
#include "../decide/gpu.h"

/* ---- CPU ranks ---- */

#define HK_SIM_CORE_US 0.05     /* an instruction */
#define HK_SIM_MEMORY_US 0.1    /* a cache line to another core */
#define HK_SIM_SOCKET_GBPS 6.0  /* one core through the kernel's TCP, sending or receiving */
#define HK_SIM_SOCKET_US 4.0    /* one message through it */
#define HK_SIM_CACHE (32 << 20) /* bytes of all buffers of a CPU's ranks that its caches hold */
