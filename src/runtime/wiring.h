/* SPDX-License-Identifier: Apache-2.0 */
/* How this rank reaches the other ranks: which transport for which peer, and the links made of them. */
#ifndef HK_RUNTIME_WIRING_H
#define HK_RUNTIME_WIRING_H
#include "../transport/transport.h"
#include "comm.h"

typedef struct hk_transfer_run hk_transfer_run;
/* A link with the queue of sends or receives that use it in turn. */
typedef struct hk_wired_link {
  hk_link link;
  uint64_t issued, served;
  hk_transfer_run *transfer; /* runs them (transfer.h); NULL: none has used the link */
} hk_wired_link;
typedef struct hk_peer_links {
  hk_wired_link *at[HK_CHANNEL_COUNT][4]; /* [channel][hk_link_kind] */
} hk_peer_links;

typedef struct hk_wiring {
  hk_transport_env env;
  hk_transport_state *states[HK_TRANSPORT_COUNT];
  bool pumps[HK_TRANSPORT_COUNT]; /* has links that its progress function must move */
  bool any_pump;
  uint8_t *via;          /* [nranks] index into states */
  int sleeper;           /* index of the one transport that reaches all other ranks and can sleep; -1: none */
  hk_peer_links **links; /* [nranks], made at first use */
  int multicast;         /* index of the transport with multicast to all ranks; -1: none */
  int lost;              /* a rank that could not be reached when a link to it was opened, plus 1; 0: none */
} hk_wiring;
_Static_assert(HK_TRANSPORT_COUNT <= UINT8_MAX, "hk_wiring.via holds an index of a transport");

hk_status hk_wire_link(ncclComm_t c, hk_link_key key, hk_wired_link **out);
void hk_transfer_free(hk_transfer_run *run); /* of a link; NULL: does nothing.  transfer.c */
#endif
