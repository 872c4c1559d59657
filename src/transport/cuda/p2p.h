/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that same.c and p2p.c share: links in GPU memory that both ranks' kernels can access. */
#pragma once
#include "../device_links.h"
#include "share.h"

/* The slots of hk_device_links. */
bool hk_p2p_reachable(const hk_device_env *e, int peer, char *why, size_t why_bytes);
hk_status hk_p2p_alloc(hk_device *receiver, size_t bytes, size_t zeroed, hk_memory *out);
hk_status hk_p2p_make(const hk_device_env *e, size_t bytes, size_t zeroed, hk_shared *out, hk_share_offer *offer);
hk_status hk_p2p_open(const hk_device_env *e, int peer, const hk_share_offer *offer, hk_shared *out);
