/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of all transports, made from registry.def. */
#include "registry.h"
#include <stdio.h>
#include "device_links.h"
#include "transport.h"

#define HK_TRANSPORT(name) &hk_transport_##name,
#define HK_DEVICE_LINKS(name)
const hk_transport *const hk_transports[HK_TRANSPORT_COUNT] = {
#include "registry.def"
};
#undef HK_TRANSPORT
#undef HK_DEVICE_LINKS

#define HK_TRANSPORT(name)
#define HK_DEVICE_LINKS(name) &hk_device_links_##name,
const hk_device_links *const hk_device_links_all[HK_DEVICE_LINKS_COUNT] = {
#include "registry.def"
};
#undef HK_TRANSPORT
#undef HK_DEVICE_LINKS

const hk_device_links *hk_device_links_to(const hk_device_env *e, int peer, char *why, size_t why_bytes) {
  size_t used = 0;
  why[0] = 0;
  for (int i = 0; i < HK_DEVICE_LINKS_COUNT; i++) {
    const hk_device_links *l = hk_device_links_all[i];
    char reason[120] = "";
    if (l->reachable(e, peer, reason, sizeof reason)) return l;
    if (used < why_bytes)
      used += (size_t)snprintf(why + used, why_bytes - used, "%s%s (%s)", used ? ", " : "", l->name, reason);
  }
  return NULL;
}
