/* SPDX-License-Identifier: Apache-2.0 */
/* The links of a rank on host memory: opened at first use, by the transport that reaches the peer (wiring.h). */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "../transport/link.h"
#include "comm.h"

typedef struct hk_transfer_run hk_transfer_run;
/* A link with the queue of sends or receives that use it in turn. */
typedef struct hk_wired_link {
  hk_link link;
  uint64_t issued, served;
  hk_transfer_run *transfer; /* runs the sends or receives (transfer.h); NULL: none has used the link */
} hk_wired_link;

typedef struct hk_peer_links {
  hk_wired_link *at[HK_CHANNEL_COUNT][HK_LINK_KINDS]; /* [channel][hk_link_kind] */
} hk_peer_links;

hk_status hk_wire_link(ncclComm_t c, hk_link_key key, hk_wired_link **out);

/* Iterates over all open links; NULL: no more. A walk begins zeroed. After each call it contains the link's channel.
 * The link may be freed before the next call. */
typedef struct hk_link_walk {
  int peer, channel, i;
} hk_link_walk;
hk_wired_link *hk_wire_next(ncclComm_t c, hk_link_walk *walk);
