/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose blocks differ in length: the user's counts become a table. */
#pragma once
#include "../core/call.h"

/* Fills in count, root and blocks of a call whose communicator, collective and type are valid. HK_ERR_ARGUMENT if the
 * counts are not. */
hk_status hk_call_count(hk_call *call, const hk_counts *counts, const char *who);
