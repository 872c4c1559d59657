/* SPDX-License-Identifier: Apache-2.0 */
/* How calls on host memory end in an error. */
#include <stdio.h>
#include "../base/thread.h"
#include "../failure/failure.h"
#include "../failure/mismatch.h"
#include "../failure/watch.h"
#include "../kernels/exec.h"
#include "run.h"

/* In `call` this rank lost the connection to `peer` (-1: unknown). */
static void ended_lost(ncclComm_t c, const hk_call *call, int peer) {
  char text[HK_EVENT_TEXT];
  if (peer < 0) peer = hk_wire_broken(c);
  if (peer >= 0 && hk_watch_left(c, call, peer)) return;
  /* The cause may be that a third rank died. A report of that then arrives soon. */
  snprintf(text, sizeof text, "%s", hk_last_error());
  hk_failure_raise(c, HK_EVENT_SUSPECT, peer >= 0 ? peer : c->rank, HK_ERR_REMOTE, text);
}

/* This rank cannot continue, for the reason in its last error. */
static hk_status ended_here(ncclComm_t c, const hk_call *call, hk_status rc) {
  char what[160], text[HK_EVENT_TEXT];
  hk_watch_describe(call, what, sizeof what);
  snprintf(text, sizeof text, "rank %d, in %s: %s", c->rank, what, hk_last_error());
  hk_failure_raise(c, HK_EVENT_ERROR, c->rank, rc, text);
  return hk_failure_resolve(c, NULL);
}

hk_status hk_run_ended(ncclComm_t c, const hk_call *call, const hk_exec *x, int peer, hk_status rc) {
  char what[160];
  hk_cancel_hold(); /* the report is sent over sockets */
  if (x && peer < 0) peer = x->bad_peer;
  if (!hk_comm_failing(c)) {
    if (rc == HK_ERR_USAGE && x && x->bad_peer >= 0)
      hk_mismatch_slot(c, call, x);
    else if (rc == HK_ERR_REMOTE)
      ended_lost(c, call, peer);
    else
      return ended_here(c, call, rc);
  }
  hk_watch_describe(call, what, sizeof what);
  return hk_failure_resolve(c, what);
}

hk_status hk_run_not_begun(ncclComm_t c, const hk_call *call, hk_status rc) {
  return !hk_comm_failing(c) && (rc == HK_ERR_ARGUMENT || rc == HK_ERR_USAGE) ? rc
                                                                              : hk_run_ended(c, call, NULL, -1, rc);
}
