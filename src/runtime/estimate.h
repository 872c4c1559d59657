/* SPDX-License-Identifier: Apache-2.0 */
/* What a group of calls would take, by the cost model; nothing is run. */
#ifndef HK_RUNTIME_ESTIMATE_H
#define HK_RUNTIME_ESTIMATE_H
#include "call.h"

/* Microseconds until the last call of the group is over on this rank. */
double hk_estimate(const hk_call *calls, size_t n);
#endif
