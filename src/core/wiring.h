/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of each peer, and the open links. */
#pragma once
#include "../program/program.h" /* hk_link_kind */
#include "../transport/registry.h"
#include "links.h"

typedef struct hk_peer_links {
  hk_wired_link *at[HK_CHANNEL_COUNT][HK_LINK_KINDS]; /* [channel][hk_link_kind] */
} hk_peer_links;

typedef struct hk_wiring {
  hk_transport_env env;
  hk_transport_state *states[HK_TRANSPORT_COUNT];
  bool pumps[HK_TRANSPORT_COUNT]; /* has links whose slots its progress function must move */
  bool any_pump;
  uint8_t *via;          /* [nranks] index into states */
  int sleeper;           /* index of the one transport that reaches all other ranks and can sleep; -1: none */
  hk_peer_links **links; /* [nranks], made at first use */
  /* collnet.h: the transport of links on which the network reduces; NULL: none. Set at the end of init. */
  hk_transport_state *collnet;
  int multicast; /* index of the transport with multicast to all ranks; -1: none */
  int lost;      /* 1 + a rank to which a link could not be opened; 0: none */
} hk_wiring;
_Static_assert(HK_TRANSPORT_COUNT <= UINT8_MAX, "hk_wiring.via holds an index of a transport");

/* Iterates over all open links; NULL: no more. A walk begins zeroed. After each call it contains the link's channel.
 * The link may be freed before the next call. */
typedef struct hk_link_walk {
  int peer, channel, i;
} hk_link_walk;
hk_wired_link *hk_wire_next(ncclComm_t c, hk_link_walk *walk);
/* hk_transport.reads of the transport that reaches all ranks. */
double hk_wire_reads(ncclComm_t c);
