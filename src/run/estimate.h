/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a group of calls by the cost model; nothing is run. */
#pragma once
#include <stddef.h>
#include "../base/status.h"

struct hk_call;

/* *us: microseconds until the last call of the group is complete on this rank. HK_ERR_SYSTEM: no memory. */
hk_status hk_estimate(const struct hk_call *calls, size_t n, double *us);
