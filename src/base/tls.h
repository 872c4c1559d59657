/* SPDX-License-Identifier: Apache-2.0 */
/**
 * TLS 1.3 with a pre-shared key for the connections of tcp.h, by OpenSSL 3, which is found at run time. A process has
 * one key, or none; with a key it sends nothing in plain text but a rank's report that it cannot join. The two ends
 * prove the key to each other in the handshake. No certificate is accepted. docs/encryption.md says more.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "status.h"

struct hk_settings; /* param.h */

enum { HK_TLS_KEY_LEAST = 32, HK_TLS_KEY_MOST = 512, HK_TLS_FIRST_BYTE = 0x16 };

/* The next two are called under a lock of the caller. */

/* The key of ncclSetEncryption, NULL: none. Goes before HOCKET_ENCRYPTION_KEY_FILE from now on. HK_ERR_ARGUMENT for a
 * length that is not allowed; HK_ERR_USAGE if it is another key than before and that one is in use. */
hk_status hk_tls_set_key(const char *key, bool in_use);
/* Before the process's first connection: takes the key that is set, and OpenSSL. HK_ERR_USAGE if there is a key that
 * cannot be used: then no connection may be made. */
hk_status hk_tls_prepare(const struct hk_settings *settings);
bool hk_tls_on(void); /* the process has a key: each connection must be TLS */

typedef enum hk_tls_state {
  HK_TLS_OPEN,    /* the handshake is over, or this process has no key */
  HK_TLS_WAITS,   /* for the peer: call again when the descriptor is readable */
  HK_TLS_PLAIN,   /* the peer that has connected speaks plain text */
  HK_TLS_CLOSED,  /* the peer closed the connection, or the network did */
  HK_TLS_REFUSED, /* the two have no common key; `why` says more */
} hk_tls_state;
enum { HK_TLS_WHY = 160 };
/* The next step of the handshake, on the side that connected or that accepted. */
hk_tls_state hk_tls_connect(int fd, char why[HK_TLS_WHY]);
hk_tls_state hk_tls_accept(int fd, char why[HK_TLS_WHY]);
/* The part of a peer's first TLS record that a process without a key has read; all zeros at first. */
typedef struct hk_tls_stranger {
  uint32_t have;     /* bytes read of the record */
  uint16_t bytes;    /* of the record without its header */
  uint8_t key_bytes; /* consecutive bytes found of the name of Hocket's keys; all: the name was found */
} hk_tls_stranger;
/* For a process without a key: reads the rest of a peer's first record, whose first `n` bytes are at `begin`. If the
 * record names one of Hocket's keys, the peer gets the answer that there is no key; any other peer gets none. False:
 * the record is not complete; call again with n = 0 when the descriptor is readable. */
bool hk_tls_refuse(int fd, hk_tls_stranger *s, const void *begin, size_t n);

/* After this many records a connection changes its sending key. */
extern unsigned hk_tls_records;

/* For `hocket doctor`: OpenSSL's version, or NULL and the reason in `why`. */
const char *hk_tls_library(char *why, size_t bytes);
/* Reads HOCKET_ENCRYPTION_KEY_FILE. HK_OK with an empty `key` if it is not set. */
hk_status hk_tls_key_file(const struct hk_settings *settings, char key[HK_TLS_KEY_MOST + 1]);
