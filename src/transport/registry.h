/* SPDX-License-Identifier: Apache-2.0 */
/* All transports, in the order of registry.def. */
#pragma once
#include "transport.h"

#define HK_DEVICE_LINKS(name)
#define HK_TRANSPORT(name) extern const hk_transport hk_transport_##name;
#include "registry.def"
#undef HK_TRANSPORT
#define HK_TRANSPORT(name) HK_TRANSPORT_##name,
enum hk_transport_index {
#include "registry.def"
  HK_TRANSPORT_COUNT
};
#undef HK_TRANSPORT
#undef HK_DEVICE_LINKS
extern const hk_transport *const hk_transports[HK_TRANSPORT_COUNT];
