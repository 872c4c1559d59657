/* SPDX-License-Identifier: Apache-2.0 */
/* The programs that users bring. A proof may take seconds of a core, and a host may have more ranks than cores. So one
 * rank of each host proves them, and tells the others in which way it made them from the files. The others make the
 * same programs without a proof. Then all ranks compare hashes: ranks with equal programs have proved ones. */
#pragma once
#include <nccl.h>
#include "../base/status.h"

/* Loads those of HOCKET_PROGRAMS, once all ranks' facts are known. HK_ERR_USAGE: ranks have different ones. */
hk_status hk_programs_load(ncclComm_t c);
