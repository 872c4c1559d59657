/* SPDX-License-Identifier: Apache-2.0 */
/* Networks that add up (CollNet plugins). */
#ifndef HK_RUNTIME_COLLNET_H
#define HK_RUNTIME_COLLNET_H
#include "comm.h"

/* If NCCL_COLLNET_ENABLE or collnetEnable of ncclConfig_t asks for it: finds plugins on all ranks, connects them, and
 * sets the machine's in_network if all went well; otherwise one line of the log says why not. Collective. */
hk_status hk_collnet_agree(ncclComm_t c, int nhosts);
/* Does the network add up values of this hk_dtype with this hk_redop? */
bool hk_collnet_adds(const struct ncclComm *c, int dtype, int op);
#endif
