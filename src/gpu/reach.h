/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_REACH_H
#define HK_GPU_REACH_H
#include "../core/comm.h"

struct hk_facts; /* base/facts.h */

/* Opens the credits of ranks of other processes, tests which ranks' memory can be read, and chooses the links to each
 * peer. */
hk_status hk_gpu_reach(ncclComm_t c, const struct hk_facts *facts);
#endif
