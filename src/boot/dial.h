/* SPDX-License-Identifier: Apache-2.0 */
/* Outgoing connections: tries several addresses, sends the hello, checks the ack. */
#pragma once
#include "../base/wait.h"
#include "wire.h"

/* One that the caller names, and each of the peer's; a link-local one once for each interface of this host. */
enum { HK_DIAL_ADDRS = HK_BOOT_ADDRS * HK_BOOT_ADDRS + 1 };

struct hk_settings; /* base/param.h */

typedef struct hk_dialing {
  const struct hk_settings *settings;
  const hk_hello *hello; /* nonce included */
  const char *text;      /* sent after it, without the final zero; NULL: nothing */
  const uint8_t *secret;
  const char *whom; /* the target in words, for errors */
  uint32_t n;
  hk_addr at[HK_DIAL_ADDRS]; /* in order of preference */
  const hk_wait_env *wait;   /* its deadline ends the whole attempt */
  /* Refusals and connections closed before the ack are tried again for this long (the listener may be overloaded or
   * not there yet), other failures until the deadline. */
  uint64_t patience_ns;
  bool reports;       /* a log line after hk_boot_report_ns: what listens there may start later, or never */
  const char *advice; /* what to do if it fails; the end of the error's text */
  /* Not 0: the process may be late or stopped for any time. It is waited for while its host accepts connections: the
   * deadline moves to this long after the last sign of the host. */
  uint64_t slow_ns;
} hk_dialing;

/* Returns a connected, nonblocking socket (base/tcp.h) whose other end has proved that it knows the secret, and the
 * encryption key if there is one. HK_ERR_REMOTE if no address leads to such a process, or if the rank has left;
 * HK_ERR_USAGE if the two processes have no common key. The message says what went wrong with each address. */
hk_status hk_boot_dial(const hk_dialing *d, int *fd);
/* The time until the report that a peer is not there: 10 s, or HOCKET_WATCHDOG if that is less, and no report if 0. */
uint64_t hk_boot_report_ns(const struct hk_settings *settings);

/* The result of one question to a listener: the hello is sent, the ack and the next `bytes` bytes are read. */
typedef enum hk_probe {
  HK_PROBE_ANSWERED,   /* `ack` is proved; `answer` is complete, and the caller checks its proof */
  HK_PROBE_SILENT,     /* a connection was made, and no answer arrived */
  HK_PROBE_CLOSED,     /* a connection was made and ended without an answer: the process does not know the secret */
  HK_PROBE_REFUSED,    /* no process listens there */
  HK_PROBE_UNREACHABLE /* the host does not answer */
} hk_probe;
/* Uses the deadline of d->wait; ignores its failure words and `check`, patience_ns and advice. Reports no error. */
hk_probe hk_boot_probe(const hk_dialing *d, hk_ack *ack, void *answer, size_t bytes);
