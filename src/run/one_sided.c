/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on host memory: puts, and waits for signals. */
#include "../failure/publish.h"
#include "../failure/watch.h"
#include "../rma/rma.h"
#include "run.h"

/* Waits for the signals of the call. They may arrive over any transport or none, and this rank's own sends may need
 * progress meanwhile. */
static hk_status one_sided_wait(ncclComm_t c, const hk_call *call) {
  hk_waiter w;
  hk_wait_begin(&w, &c->wait);
  while (!hk_rma_arrived(call)) {
    bool moved = false;
    if (c->links->any_pump) HK_OR_RETURN(hk_wire_progress(c, &moved));
    if (moved)
      hk_wait_progress(&w);
    else
      HK_OR_RETURN(hk_wait_pause(&w));
  }
  return HK_OK;
}

hk_status hk_run_one_sided(const hk_call *call) {
  ncclComm_t c = call->comm;
  bool puts = call->p2p == HK_P2P_PUT;
  if (!puts && hk_rma_arrived(call)) return HK_OK;
  hk_watch_transfer_waits(c, call);
  hk_status rc = puts ? hk_rma_put(call) : one_sided_wait(c, call);
  if (puts) hk_watch_count(c, call);
  if (__builtin_expect(rc != HK_OK, 0))
    rc = puts ? hk_run_not_begun(c, call, rc) : hk_run_ended(c, call, NULL, call->root, rc);
  hk_watch_transfers_over(c);
  return rc;
}

hk_status hk_one_sided_step(ncclComm_t c, hk_one_sided *o, bool *moved, int *peer) {
  for (; o->nputs; o->nputs--, o->puts++, *moved = true) {
    hk_watch_transfer_waits(c, o->puts[0]);
    *peer = o->puts[0]->root;
    HK_OR_RETURN(hk_rma_put(o->puts[0]));
    hk_watch_count(c, o->puts[0]);
    *peer = -1;
    hk_watch_transfer_over(c, o->puts[0]);
  }
  for (size_t i = 0; i < o->nwaits;) {
    const hk_call *call = o->waits[i];
    if (!hk_rma_arrived(call)) {
      hk_watch_transfer_waits(c, call);
      i++;
      continue;
    }
    hk_watch_transfer_over(c, call);
    o->waits[i] = o->waits[--o->nwaits];
    *moved = true;
  }
  return HK_OK;
}
