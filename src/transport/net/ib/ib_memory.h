/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the user has registered with the communicator. */
#ifndef HK_TRANSPORT_NET_IB_MEMORY_H
#define HK_TRANSPORT_NET_IB_MEMORY_H
#include "ib_conn.h"

/* The provider's `memory` and `refer`. */
void hk_ib_user_memory(void *ctx, void *base, size_t bytes, bool there);
bool hk_ib_refer(void *ctx, const void *data, size_t bytes);
bool hk_ib_is_registered(hk_ib_ctx *x, const void *data, size_t bytes);
/* The registration with the device of the user's memory that contains the data. NULL if the device refuses it, or the
 * user has not registered it. `writes`: it must allow writes of the peer's card. */
hk_ibv_mr *hk_ib_user_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes, bool writes);
void hk_ib_user_leave(hk_ib_ctx *x, const hk_ib_device *d); /* deregisters all of it from the device */
void hk_ib_user_free(hk_ib_ctx *x);
void hk_ib_place_min(hk_ib_ctx *x, hk_link *link); /* sets link->place_min */
#endif
