/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two GPUs that can access each other's memory, over NVLink or PCIe. They are in the receiver's GPU
 * memory. */
#include "p2p.h"
#include <stdio.h>
#include "../device_links.h"

bool hk_p2p_reachable(const hk_device_env *e, int peer, char *why, size_t why_bytes) {
  if (e->peers[peer].reach >= HK_REACH_MEMORY) return true;
  snprintf(why, why_bytes, "the GPUs do not reach each other's memory");
  return false;
}

/* Only NVLink keeps lines whole between devices; PCIe does not. */
static unsigned p2p_properties(const hk_device_env *e, int peer) {
  return HK_DEVICE_READS | (e->peers[peer].reach == HK_REACH_NVLINK ? HK_DEVICE_LINES : 0);
}

hk_status hk_p2p_alloc(hk_device *receiver, size_t bytes, size_t zeroed, hk_memory *out) {
  return receiver->ops->memory->alloc_shared(receiver, bytes, zeroed, true, out);
}

hk_status hk_p2p_make(const hk_device_env *e, size_t bytes, size_t zeroed, hk_shared *out, hk_share_offer *offer) {
  HK_OR_RETURN(hk_share_make(e, bytes, zeroed, &out->memory));
  HK_OR_RETURN(hk_share_offer_memory(e, &out->memory, true, offer));
  out->region = offer->region;
  return HK_OK;
}

hk_status hk_p2p_open(const hk_device_env *e, int peer, const hk_share_offer *offer, hk_shared *out) {
  return hk_share_open(e, peer, offer, &out->memory);
}

const hk_device_links hk_device_links_p2p = {
    .name = "p2p",
    .reachable = hk_p2p_reachable,
    .properties = p2p_properties,
    .alloc = hk_p2p_alloc,
    .make = hk_p2p_make,
    .open = hk_p2p_open,
};
