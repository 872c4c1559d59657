/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Links through a third rank, for two ranks that no rail joins (NCCL calls it PXN). The *relay* R shares memory with
 * one of the two, the *near* rank, and its network card reaches the other one, the *far* rank.
 *
 * The near end and R have one FIFO, in a file that the near rank makes. For R it is the FIFO of an ordinary end of the
 * network: its card sends from it, or writes to it, and R copies nothing. The far end is an ordinary end of the
 * network, too, with R as the peer and a channel number that no other link has. So a message costs one copy at the near
 * rank, as a direct one from memory that is not registered does.
 *
 * The near rank opens a connection to R's process for each link. It carries a request, then a byte to wake R when a
 * slot is filled while R sleeps. When the near rank ends the connection, R moves the remaining slots, flushes, and
 * closes. R reports its failures as text. R's part runs on a thread of its own, whatever R's calls do, with another
 * state of the net transport (relay_server.c).
 */
#pragma once
#include "transport.h"

#define HK_RELAY_TAG UINT64_C(0x72656c6179) /* of these connections */
enum {
  HK_RELAY_CHANNELS = 256, /* more than any link's channel */
  HK_RELAY_NEAR = 127,     /* this many ranks of a host may have links through other ranks */
  HK_RELAY_TEXT = 300
};
_Static_assert((2 * HK_RELAY_NEAR + 1) * HK_RELAY_CHANNELS <= UINT16_MAX + 1, "hk_relay_channel fits");

/* The channel of the network's link that carries the near rank's channel `channel`; `local` is the near rank's index in
 * its host. `relay < far` is a part of it, because the far rank may be a relay for which R is the far rank. */
static inline uint16_t hk_relay_channel(int relay, int far, int local, unsigned channel) {
  return (uint16_t)((2 * local + (relay < far) + 1) * HK_RELAY_CHANNELS + (int)channel);
}

typedef struct hk_relay_request {
  uint64_t region; /* of the FIFO (hk_host_lend) */
  uint32_t far;    /* rank */
  uint16_t channel;
  uint8_t kind; /* of R's end */
  uint8_t reserved;
} hk_relay_request;
_Static_assert(sizeof(hk_relay_request) == 16, "part of the wire format");

/* A FIFO, mapped. One page for `asleep`, then headers and head, then payloads. */
typedef struct hk_relay_fifo {
  char *base; /* NULL: it is not mapped */
  size_t bytes;
  _Atomic(uint32_t) *asleep; /* R sleeps until a byte arrives */
  hk_slot *slots;
  char *payload;
} hk_relay_fifo;
size_t hk_relay_fifo_bytes(const hk_transport_env *e);
/* Maps a file of that size. Returns false with errno. */
bool hk_relay_fifo_map(const hk_transport_env *e, int fd, hk_relay_fifo *f);
void hk_relay_fifo_unmap(hk_relay_fifo *f);

/* ---- relay_server.c ---- */
typedef struct hk_relay_server hk_relay_server;
/* From here on this rank serves as relay. Failures are logged, and reported to near ranks when they ask. */
hk_relay_server *hk_relay_server_new(const hk_transport_env *e);
/* Waits until the near ranks have closed their links, or have not used them for a while, and ends. May be NULL. */
void hk_relay_server_end(hk_relay_server *s);
