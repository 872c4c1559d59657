/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stdbool.h>

struct hk_device;   /* device/device.h */
struct hk_settings; /* base/param.h */

/* How data that a card has written to a GPU's memory and reported as complete becomes visible to the GPU. */
typedef enum hk_ib_flushing {
  HK_IB_NO_FLUSH,     /* it is visible at once */
  HK_IB_DRIVER_FLUSH, /* by a call to its driver */
  HK_IB_READ_FLUSH    /* by a read of the card from there, after its writes */
} hk_ib_flushing;

/* What this GPU needs. `split`: hk_gdr_is_split; the call of its driver relies on its order, and does nothing then. */
hk_ib_flushing hk_ib_flushing_of(const struct hk_settings *set, const struct hk_device *gpu, bool split);
const char *hk_ib_flushing_words(const struct hk_settings *set, hk_ib_flushing f); /* "needs no flush" */
