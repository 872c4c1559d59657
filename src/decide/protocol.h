/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a link's slots are encoded. A protocol is a property of links, never of a program. The names are NCCL's.
 *
 *   Simple   data, a fence, then a flag: all of the link's bandwidth, the highest latency
 *   LL       a 4-byte flag after every 4 bytes of data: half of the bandwidth, no fence
 *   LL128    a flag in every 128 bytes: 120/128 of the bandwidth; needs stores of 128 bytes that stay whole (NVLink)
 *
 * On the host device there is only Simple: a slot's number is in the payload's cache line already.
 */
#pragma once
#include "../program/limits.h"

typedef struct hk_protocol_info {
  const char *name;  /* as NCCL_PROTO spells it */
  const char *about; /* one line */
  double efficiency; /* bytes of payload to bytes on the link */
  double sync;       /* part of hk_machine.sync_us that is added to a message's link latency */
  /* A lane's bandwidth relative to Simple's. LL128: a warp waits for 4 lines before it asks for the next ones. NCCL's
   * channels reach 7 GB/s with it on A100 (174 GB/s of 24 channels, 55 of 8), of 24 with Simple. */
  double copy;
} hk_protocol_info;
extern const hk_protocol_info hk_protocols[HK_PROTO_COUNT];
