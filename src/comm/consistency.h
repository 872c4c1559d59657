/* SPDX-License-Identifier: Apache-2.0 */
/* Settings on which decisions depend. If ranks decided differently, they would hang, so init compares these
 * settings. */
#pragma once
#include <nccl.h>
#include "../base/status.h"

struct hk_facts; /* base/facts.h */

/* Size of the fact with these settings that ranks exchange at init. It is part of the wire format. */
enum { HK_AGREE_FACT_BYTES = 224 };

/* Reads this rank's settings into c->selection, and finds its tuner plugin. Fills `fact` (8-aligned). */
hk_status hk_consistency_publish(ncclComm_t c, void *fact);
/* HK_ERR_USAGE if ranks differ. Settings that may differ
 * (measured constants and choices) are made equal. */
hk_status hk_consistency_compare(ncclComm_t c, const struct hk_facts *facts);
