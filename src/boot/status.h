/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the ranks of a process do, for operators of the same user on the same host: `hocket ps`. The process answers on
 * a socket without a name in the file system, "@hocket/PID.NONCE". The answer also says how to ask the other ranks, so
 * it has the communicator's secret: the kernel tells who asks, and other users get nothing.
 */
#pragma once
#include <stdatomic.h>
#include "../base/meter.h"
#include "job.h"
#include "wire.h"

struct hk_listener;
struct hk_settings; /* base/param.h */

/* ---- status.c: in the process ---- */
typedef struct hk_status_server hk_status_server;
/* Begins to answer. NULL if that is off (HOCKET_STATUS=0) or not possible here; the log says why. Under the listener's
 * lock. */
hk_status_server *hk_status_serve(struct hk_listener *l);
/* After the listener's service has ended. */
void hk_status_free(hk_status_server *s); /* NULL is fine */

/* ---- status_read.c: for the one who asks ---- */
typedef struct hk_status_member {
  uint64_t comm, key;
  int rank, nranks;
  uint8_t secret[HK_SECRET_BYTES];
  char name[64]; /* of the communicator; empty: none */
  hk_activity activity;
  const uint8_t *contacts; /* [nranks] rows of HK_CONTACT_BYTES; NULL: not known yet */
  uint64_t idle_ns;        /* hk_meter_idle_ns */
  uint64_t repairs, failovers;
  uint32_t ncounters;
  const uint8_t *counters; /* [ncounters] of HK_STATUS_COUNTER_BYTES; hk_status_counter reads one */
} hk_status_member;

typedef struct hk_status_process {
  int pid; /* as this host's /proc/net/unix shows its socket */
  bool answers;
  bool refused;           /* it belongs to another user */
  bool stopped;           /* by a signal or a debugger: it was not asked */
  bool strange;           /* its answer is of another version of the library */
  char job[HK_JOB_NAMES]; /* the names of its job (job.h) */
  uint8_t *bytes;         /* its answer, to which the members point */
  size_t size;
  hk_status_member *members;
  int nmembers;
} hk_status_process;

/* Asks all processes of this host (of this network namespace), for `patience_ns` each. HK_ERR_SYSTEM: there is no
 * memory, or /proc/net/unix cannot be read. Free the list with hk_status_list_free in any case. `stop` (may be NULL):
 * not 0, an hk_status, ends the questions at once. */
hk_status hk_status_list(hk_status_process **out, int *n, uint64_t patience_ns, _Atomic(int) *stop);
bool hk_status_counter(const hk_status_member *m, uint32_t i, hk_meter_value *out); /* false: there is no such one */
void hk_status_list_free(hk_status_process *list, int n);
/* Asks a rank of the member's communicator over the network. *member: the rank is in the communicator; without
 * that, `out` says only that its process runs. */
hk_presence hk_status_ask(const hk_status_member *m, const struct hk_settings *settings, int rank, uint64_t deadline_ns,
                          _Atomic(int) *stop, hk_activity *out, bool *member);
