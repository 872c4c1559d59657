/* SPDX-License-Identifier: Apache-2.0 */
/* The table of protocols (protocol.h). */
#include "protocol.h"

const hk_protocol_info hk_protocols[HK_PROTO_COUNT] = {
    [HK_PROTO_SIMPLE] = {.name = "Simple",
                         .about = "data, fence, flag: all of the bandwidth, the most latency",
                         .efficiency = 1,
                         .sync = 1,
                         .copy = 1},
    [HK_PROTO_LL] = {.name = "LL",
                     .about = "a flag with every 4 bytes: the least latency, half of the bandwidth",
                     .efficiency = 0.5,
                     .sync = 0,
                     .copy = 0.5},
    [HK_PROTO_LL128] = {.name = "LL128",
                        .about = "a flag in every 128 bytes: little latency, 120/128 of the bandwidth",
                        .efficiency = 120.0 / 128,
                        .sync = 0.35,
                        .copy = 1.0 / 3},
};
