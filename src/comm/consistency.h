/* SPDX-License-Identifier: Apache-2.0 */
/* Settings on which decisions depend. All ranks must decide alike, or they hang: so these are compared at init. */
#ifndef HK_COMM_CONSISTENCY_H
#define HK_COMM_CONSISTENCY_H
#include "../core/comm.h"

/* What a rank publishes of them. Part of what ranks exchange at init: its size is part of the format. */
enum { HK_AGREE_FACT_BYTES = 216 };

/* Reads this rank's settings into c->selection, and finds its tuner plugin. Fills `fact` (8-aligned). */
hk_status hk_consistency_publish(ncclComm_t c, void *fact);
/* HK_ERR_USAGE if ranks differ. `facts` has one entry for each rank, `stride` bytes apart. What may differ (measured
 * constants and choices) is made equal. */
hk_status hk_consistency_compare(ncclComm_t c, const void *facts, size_t stride);
#endif
