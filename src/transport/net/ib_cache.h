/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of registrations of host memory that the user has not registered (HOCKET_IB_CACHE). An entry lasts until its
 * memory is unmapped or dropped (base/unmap.h), or its room is needed. */
#ifndef HK_TRANSPORT_NET_IB_CACHE_H
#define HK_TRANSPORT_NET_IB_CACHE_H
#include "ib.h"

/* Memory of which less is copied is not worth a registration, whose cost is in ib_cache.c. */
enum { HK_IB_CACHE_LEAST = 65536, HK_IB_CACHE_DUE = 4 << 20, HK_IB_CACHE_DUE_MOST = 1 << 30 };

void hk_ib_cache_init(hk_ib_ctx *x); /* x->cache stays NULL if there is to be none */
void hk_ib_cache_free(hk_ib_ctx *x);
/* The provider's `expect`. */
void hk_ib_cache_expect(void *ctx, const void *base, size_t bytes);
/* Under the lock, as all that follow: is the data in an entry, whose memory is still the same? */
bool hk_ib_cache_holds(hk_ib_ctx *x, const void *data, size_t bytes);
/* As hk_ib_user_mr, for data that was in an entry when its operation gave it to the provider. */
hk_ibv_mr *hk_ib_cache_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes);
bool hk_ib_cache_any(const hk_ib_ctx *x);
void hk_ib_cache_sweep(hk_ib_ctx *x);                        /* gives back what is no longer valid and no longer used */
void hk_ib_cache_leave(hk_ib_ctx *x, const hk_ib_device *d); /* as hk_ib_user_leave */
#endif
