/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two GPUs of a host that cannot access each other's memory. They are in pinned host memory that both can
 * access, on the NUMA node of the receiver's GPU. */
#include <stdio.h>
#include "../device_links.h"
#include "share.h"

static bool staged_reachable(const hk_device_env *e, int peer, char *why, size_t why_bytes) {
  if (e->peers[peer].shares_memory) return true;
  snprintf(why, why_bytes, "rank %d shares no host memory", peer);
  return false;
}

static unsigned staged_properties(const hk_device_env *e, int peer) {
  (void)e;
  (void)peer;
  return HK_DEVICE_CREDITS;
}

static hk_status staged_alloc(hk_device *receiver, size_t bytes, size_t zeroed, hk_memory *out) {
  (void)zeroed; /* all of it is */
  return receiver->ops->memory->alloc_host_late(receiver, bytes, out);
}

static hk_status staged_make(const hk_device_env *e, size_t bytes, size_t zeroed, hk_shared *out,
                             hk_share_offer *offer) {
  (void)zeroed;
  return hk_share_host_make(e->device, bytes, out, &offer->region);
}

static hk_status staged_open(const hk_device_env *e, int peer, const hk_share_offer *offer, hk_shared *out) {
  return hk_share_host_open(e, peer, offer->region, out);
}

const hk_device_links hk_device_links_staged = {
    .name = "staged",
    .reachable = staged_reachable,
    .properties = staged_properties,
    .alloc = staged_alloc,
    .make = staged_make,
    .open = staged_open,
};
