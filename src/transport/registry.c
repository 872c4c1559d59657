/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all transports, made from registry.def. */
#include "transport.h"

const hk_transport *const hk_transports[HK_TRANSPORT_COUNT] = {
#define HK_TRANSPORT(name) &hk_transport_##name,
#include "registry.def"
#undef HK_TRANSPORT
};
