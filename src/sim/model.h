/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's constants, the same for all machines; those of GPUs are the cost model's, too.  What is a machine's own (bandwidths, link latencies, memory) comes
 * from its topology.  docs/simulator.md repeats this table in words, with the sources. */
#ifndef HK_SIM_MODEL_H
#define HK_SIM_MODEL_H
#include "../collectives/gpu.h"

/* ---- CPU ranks ---- */

#define HK_SIM_CORE_US 0.05         /* an instruction */
#define HK_SIM_MEMORY_US 0.1        /* a cache line to another core */
#define HK_SIM_WAKE_US 1.5          /* the core from one rank to another, where ranks outnumber cores */
#define HK_SIM_COPY_GBPS 16.0       /* one core copying */
#define HK_SIM_REDUCE_GBPS 30.0     /* beside the writing of the result */
#define HK_SIM_SOCKET_GBPS 6.0      /* one core through the kernel's TCP, sending or receiving */
#define HK_SIM_SOCKET_US 4.0        /* one message through it */
#define HK_SIM_CACHE (32 << 20)     /* bytes of all buffers of a CPU's ranks that its caches still hold */
#define HK_SIM_CPU_MEMORY_GBPS 60.0 /* where the topology does not know */
#define HK_SIM_CPU_SLOT (128 << 10)
#define HK_SIM_REF_BYTES 16384 /* from here on a slot may refer to the sender's memory */
#endif
