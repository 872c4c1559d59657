/* SPDX-License-Identifier: Apache-2.0 */
/* Outgoing connections: several addresses raced, hello sent, ack proved. */
#ifndef HK_BOOT_DIAL_H
#define HK_BOOT_DIAL_H
#include "../base/wait.h"
#include "wire.h"

enum { HK_DIAL_ADDRS = HK_BOOT_ADDRS + 1 };

typedef struct hk_dialing {
  const hk_hello *hello; /* nonce included */
  const uint8_t *secret;
  const char *whom; /* in words, for errors */
  uint32_t n;
  hk_addr at[HK_DIAL_ADDRS]; /* in order of preference */
  const hk_wait_env *wait;   /* its deadline ends the whole attempt */
  /* Refusals and connections closed before the ack are tried again for this long (a listener under attack or not yet
   * there), other failures until the deadline. */
  uint64_t patience_ns;
  const char *advice; /* what to do where it fails; ends the error's text */
  /* Not 0: the process may be late or stopped for any time.  While its host accepts connections it is waited for; the deadline
   * moves to this long after the last sign of the host. */
  uint64_t slow_ns;
} hk_dialing;

/* Gives a connected, nonblocking socket whose other end has proved that it knows the secret.  HK_ERR_REMOTE where nobody
 * does, or where the rank that is meant has left. */
hk_status hk_boot_dial(const hk_dialing *d, int *fd);

/* One question to a listener: sends the hello and reads the ack and what follows it, `bytes` of them. */
typedef enum hk_probe {
  HK_PROBE_ANSWERED,   /* `ack` is proved, `answer` is complete and for the caller to prove */
  HK_PROBE_SILENT,     /* a connection was made, and nothing came */
  HK_PROBE_CLOSED,     /* a connection was made and ended without an answer: that process knows no such secret */
  HK_PROBE_REFUSED,    /* nothing listens there */
  HK_PROBE_UNREACHABLE /* the host does not answer */
} hk_probe;
/* Of `d`, the wait's deadline counts; its failure words and `check`, patience and advice do not.  Reports no error. */
hk_probe hk_boot_probe(const hk_dialing *d, hk_ack *ack, void *answer, size_t bytes);
#endif
