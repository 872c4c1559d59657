/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Writes into the memory of a rank of another host, by the network card: one-sided operations (rma/rma.c).
 *
 * A connection goes one way. The origin opens it, and the target, which makes no call for it, accepts it on its service
 * thread. Each put ends with a signal, a counter of the target that the card writes after the data. The counters of a
 * connection are written by it alone, to absolute values: a put that is repeated after a fault counts once.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

/* A piece of the peer's memory that its user has registered. */
typedef struct hk_remote_window {
  uint64_t number; /* never used for another window */
  uint64_t at, bytes;
} hk_remote_window;

typedef struct hk_remote_put {
  hk_remote_window window;
  uint64_t offset;
  const void *data;
  size_t bytes; /* 0: a signal alone */
  uint32_t signal;
} hk_remote_put;

typedef enum hk_remote_state {
  HK_REMOTE_BUSY, /* call again */
  /* call again; the target's service thread must accept or answer, and its `accept` makes it do so */
  HK_REMOTE_PEER,
  HK_REMOTE_DONE,     /* data and signal have arrived; the data may be changed */
  HK_REMOTE_NOWHERE,  /* nothing was written: a card cannot register memory of that window */
  HK_REMOTE_UNUSABLE, /* nothing was or can be written on this connection: use another way */
  HK_REMOTE_DENIED    /* the target has ended the window's registration; the connection is lost */
} hk_remote_state;

/* The functions of a network. The function that returns this table also returns `ctx`. */
typedef struct hk_remote {
  /* Target, on the service thread, any number of times: takes the connection that `peer` has opened, and continues its
   * handshake. Its signals count in counters[n]. *came is false if it has not arrived yet. */
  hk_status (*accept)(void *ctx, int peer, _Atomic uint64_t *counters, size_t n, bool *came);
  /* Origin, once for each peer, which has n counters for it. */
  hk_status (*open)(void *ctx, int peer, size_t n);
  /* Origin: carries a put out, over several calls with the same `p`. Never blocks. The next put may begin after any
   * state but BUSY and PEER. */
  hk_status (*put)(void *ctx, int peer, const hk_remote_put *p, hk_remote_state *state);
} hk_remote;
