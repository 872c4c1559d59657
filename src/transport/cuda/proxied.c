/* SPDX-License-Identifier: Apache-2.0 */
/* Links between GPUs whose ranks share no memory. Each end has its own memory, and the communicator's proxy moves the
 * slots with a transport of host ranks (gpu/proxy.h). */
#include "../device_links.h"

static bool proxied_reachable(const hk_device_env *e, int peer, char *why, size_t why_bytes) {
  (void)e;
  (void)peer;
  (void)why;
  (void)why_bytes;
  return true; /* a transport reaches every peer, or init has failed */
}

static unsigned proxied_properties(const hk_device_env *e, int peer) {
  (void)e;
  (void)peer;
  return HK_DEVICE_PROXIED;
}

const hk_device_links hk_device_links_proxied = {
    .name = "proxied",
    .reachable = proxied_reachable,
    .properties = proxied_properties,
};
