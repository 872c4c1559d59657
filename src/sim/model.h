/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's constants, equal for all machines; the cost model shares those of GPUs. Values that differ between
 * machines (bandwidths, link latencies, memory) are in the topology. docs/simulator.md has this table with the
 * sources. */
#pragma once
#include "../decide/gpu.h"

/* ---- CPU ranks ---- */

#define HK_SIM_CORE_US 0.05     /* an instruction */
#define HK_SIM_MEMORY_US 0.1    /* a cache line to another core */
#define HK_SIM_WAKE_US 1.5      /* handing the core from one rank to another, if ranks outnumber cores */
#define HK_SIM_COPY_GBPS 16.0   /* one core copying */
#define HK_SIM_REDUCE_GBPS 30.0 /* in addition to writing the result */
#define HK_SIM_SOCKET_GBPS 6.0  /* one core through the kernel's TCP, sending or receiving */
#define HK_SIM_SOCKET_US 4.0    /* one message through it */
#define HK_SIM_CACHE (32 << 20) /* bytes of all buffers of a CPU's ranks that its caches hold */
#define HK_SIM_REF_BYTES 16384  /* from this size on a slot may refer to the sender's memory */
