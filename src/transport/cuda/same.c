/* SPDX-License-Identifier: Apache-2.0 */
/* Links between ranks that share a GPU, in that GPU's memory. As p2p.c, but lines stay whole, and memory has one
 * address for all ranks of a process. */
#include <stdio.h>
#include "../device_links.h"
#include "p2p.h"

static bool same_reachable(const hk_device_env *e, int peer, char *why, size_t why_bytes) {
  if (e->peers[peer].same_device) return hk_p2p_reachable(e, peer, why, why_bytes);
  snprintf(why, why_bytes, "rank %d is on another GPU", peer);
  return false;
}

static unsigned same_properties(const hk_device_env *e, int peer) {
  (void)e;
  (void)peer;
  return HK_DEVICE_LINES | HK_DEVICE_READS | HK_DEVICE_LOCAL;
}

const hk_device_links hk_device_links_same = {
    .name = "same",
    .reachable = same_reachable,
    .properties = same_properties,
    .alloc = hk_p2p_alloc,
    .make = hk_p2p_make,
    .open = hk_p2p_open,
};
