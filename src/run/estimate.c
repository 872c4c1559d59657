/* SPDX-License-Identifier: Apache-2.0 */
/* Prices a group of calls by the cost model. */
#include "../core/call.h"
#include "../core/comm.h"
#include "../decide/machine.h"
#include "selection.h"

/* The price of one message between two ranks. */
static double estimate_message_us(const hk_call *call) {
  ncclComm_t c = call->comm;
  const hk_machine *m = c->selection->machine;
  const double bytes = (double)(call->count * hk_dtype_size((hk_dtype)call->dtype));
  if (call->root == c->rank) return bytes * m->copy_us_per_b;
  const hk_level *level = hk_wire_near(c, call->root) ? &m->inside : &m->between;
  return level->alpha_us + m->sync_us + bytes * (level->ring_us_per_b + (m->team.overlap ? 0 : 2 * m->copy_us_per_b));
}

/* A communicator's collectives run one after another; its sends and receives run at the same time. */
static hk_status estimate_comm_us(const hk_call *calls, size_t n, ncclComm_t c, double *us) {
  double collectives = 0, sends = 0, receives = 0;
  for (size_t i = 0; i < n; i++) {
    if (calls[i].comm != c) continue;
    if (calls[i].p2p == HK_P2P_WAIT) continue;
    if (calls[i].coll == HK_SENDRECV) {
      *(calls[i].p2p == HK_P2P_RECV ? &receives : &sends) += estimate_message_us(&calls[i]);
      continue;
    }
    double one;
    HK_OR_RETURN(hk_selection_price(c, &calls[i], &one));
    collectives += one;
  }
  *us = collectives + (sends > receives ? sends : receives);
  return HK_OK;
}

hk_status hk_estimate(const hk_call *calls, size_t n, double *out) {
  *out = 0;
  for (size_t i = 0; i < n; i++) {
    bool seen = false;
    for (size_t k = 0; k < i && !seen; k++) seen = calls[k].comm == calls[i].comm;
    if (seen) continue;
    double us;
    HK_OR_RETURN(estimate_comm_us(calls, n, calls[i].comm, &us));
    if (us > *out) *out = us;
  }
  return HK_OK;
}
