/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of each peer. */
#pragma once
#include "../transport/registry.h"
#include "links.h"

typedef struct hk_wiring {
  hk_transport_env env;
  hk_transport_state *states[HK_TRANSPORT_COUNT];
  bool pumps[HK_TRANSPORT_COUNT]; /* has links whose slots its progress function must move */
  uint8_t *via;                   /* [nranks] index into states */
  int sleeper;                    /* index of the one transport that reaches all other ranks and can sleep; -1: none */
  hk_links links;
  /* collnet.h: the transport of links on which the network reduces; NULL: none. Set at the end of init. */
  hk_transport_state *collnet;
  int multicast; /* index of the transport with multicast to all ranks; -1: none */
  int lost;      /* 1 + a rank to which a link could not be opened; 0: none */
} hk_wiring;
_Static_assert(HK_TRANSPORT_COUNT <= UINT8_MAX, "hk_wiring.via holds an index of a transport");
