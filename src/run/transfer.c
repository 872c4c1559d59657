/* SPDX-License-Identifier: Apache-2.0 */
/* Runs sends and receives over their links (transfer.h). */
#include "transfer.h"
#include "../core/call.h"
#include "../core/links.h"
#include "../failure/flight_ring.h"
#include "../failure/publish.h"
#include "../kernels/steps.h"

/* For the flight recorder: transfers have times if they have so many elements, or take so many steps. */
enum { TIMED_COUNT = 4096, TIMED_STEPS = 32 };

hk_status hk_transfer_open(const hk_call *call, hk_transfer *t) {
  hk_link_kind kind = call->p2p == HK_P2P_SEND ? HK_LINK_SEND : HK_LINK_RECV;
  const hk_peer_links *links = call->comm->links->to[call->root];
  t->call = call;
  t->wired = links ? links->at[HK_CHANNEL_P2P][kind] : NULL;
  t->begun = false;
  t->event = t->kernel = NULL;
  t->steps = 0;
  t->flight = hk_flight_transfer(call->comm, call, call->count >= TIMED_COUNT);
  if (__builtin_expect(!t->wired || !t->wired->transfer, 0)) HK_OR_RETURN(hk_transfer_first(call, kind, &t->wired));
  t->turn = t->wired->issued++;
  hk_watch_count(call->comm, call);
  return HK_OK;
}

static inline bool transfer_begin(hk_transfer *t) {
  hk_transfer_run *r = t->wired->transfer;
  const hk_call *call = t->call;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  if (__builtin_expect(r->launch.brief && bytes == r->launch.total, 1)) {
    hk_steps_again(&r->exec, call->in, call->out);
  } else {
    if (!hk_transfer_launch(r, call, bytes)) return false;
    hk_exec_init(&r->exec, &r->plan, &r->launch, call->in, call->out, r->memory, NULL);
  }
  return t->begun = true;
}

static inline void transfer_waits(hk_transfer *t) {
  if (t->steps++ == TIMED_STEPS) hk_flight_waits(t->call->comm, t->flight);
}

hk_status hk_transfer_step(hk_transfer *t, bool *moved, bool *over) {
  hk_wired_link *w = t->wired;
  if (w->served != t->turn || (!t->begun && !transfer_begin(t))) { /* an earlier transfer uses the link */
    transfer_waits(t);
    return HK_OK;
  }
  hk_exec *x = &w->transfer->exec;
  hk_status rc = hk_exec_step(x, moved);
  if (rc == HK_ERR_USAGE) hk_transfer_differs(t);
  if (rc != HK_OK || !hk_exec_done(x)) {
    transfer_waits(t);
    return rc;
  }
  w->served++;
  hk_flight_over(t->call->comm, t->flight, !w->transfer->launch.brief || t->steps > TIMED_STEPS);
  *over = *moved = true;
  return HK_OK;
}
