/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-sided operations for a peer whose memory neither this rank nor its network card can write to: each is a message
 * over a TCP connection of its own (one for each pair of ranks and direction, made at the first message). The service
 * thread of the receiver's communicator stores the data and counts the signal, so the receiver makes no call for it.
 * The messages of one rank are carried out in their order.
 *
 * On the wire: a header (hk_message_header in messages.c) and its data; a hk_window_answer if one is asked for.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_transport_env; /* transport.h */

typedef enum hk_window_state {
  HK_WINDOW_LATER, /* the rank has not registered it yet */
  HK_WINDOW_OPEN,
  HK_WINDOW_GONE /* it was deregistered */
} hk_window_state;

/* Memory of this rank into which other ranks write. */
typedef struct hk_window {
  char *base;
  size_t bytes;
} hk_window;

/* What a rank says about a window of its own. */
typedef struct hk_window_answer {
  uint64_t state; /* hk_window_state; the rest is for OPEN */
  uint64_t address, bytes;
  uint64_t region, offset; /* the place in memory that other processes can map (device/host.h); region 0: none */
  uint64_t proof_at;       /* the address in that rank's process of... */
  uint8_t proof[16];       /* ...these bytes */
} hk_window_answer;

typedef struct hk_messages_options {
  /* This rank's window of that number. On the service thread. */
  hk_window_state (*window)(void *arg, uint64_t number, hk_window *out);
  /* Counts a signal of rank `from`; false: no such signal exists. On the service thread. */
  bool (*signal)(void *arg, int from, uint32_t signal);
  /* Rank `from` has opened a connection for writes by its card (remote.h): accepts it, or continues the handshake for
   * which the peer waits. LATER: it has not arrived; GONE: that is not possible. On the service thread. */
  hk_window_state (*join)(void *arg, int from);
  /* A message of rank `from` cannot be carried out, for the reason `text`. On the service thread. */
  void (*refused)(void *arg, int from, const char *text);
  void *arg;
} hk_messages_options;

enum { HK_NO_SIGNAL = UINT32_MAX };

typedef struct hk_put {
  uint64_t window, offset;
  const void *data;
  size_t bytes;
  uint32_t signal; /* counted after the data is stored; HK_NO_SIGNAL: none */
} hk_put;

typedef struct hk_messages hk_messages;
hk_status hk_messages_new(hk_messages **out, const struct hk_transport_env *env, const hk_messages_options *o);
/* From here on messages of other ranks are processed, including those that have already arrived. */
void hk_messages_serve(hk_messages *m);
/* After it returns, nothing of this rank's memory is written. May be NULL. */
void hk_messages_free(hk_messages *m);

/* This rank's answer, from any thread. */
hk_window_answer hk_messages_describe(const hk_messages *m, uint64_t window);

/* The rest is for the rank's thread; it blocks until the peer's service thread has taken the bytes. */

/* Asks rank `peer` for its window of that number. All earlier puts are carried out before the
 * answer. */
hk_status hk_messages_ask(hk_messages *m, int peer, uint64_t window, hk_window_answer *out);
/* Makes rank `peer` call its `join`. */
hk_status hk_messages_join(hk_messages *m, int peer, hk_window_state *state);
hk_status hk_messages_put(hk_messages *m, int peer, const hk_put *put);
