/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a send or receive. */
#include "../core/call.h"
#include "../decide/select.h"
#include "../transport/link.h"
#include "selection.h"
#include "transfer.h"

enum { REF_MAX_BYTES = 1 << 30 }; /* one reference: a slot counts bytes in 32 bits */

/* The bytes of one slot; 0: not known yet. If the ends share no memory, it is the size of a slot. Otherwise the sender
 * decides: a reference covers as much as possible if the receiver can read the sender's memory. The receiver takes the
 * size from the first slot. */
static size_t transfer_launch_chunk(hk_link *l, const hk_call *call, size_t bytes, hk_payload_mode mode) {
  hk_ref ref;
  if (l->proxied) return l->slot_bytes;
  if (call->p2p == HK_P2P_RECV) {
    if (!hk_link_can_recv(l)) return 0;
    uint32_t first = hk_link_recv_slot(l)->bytes;
    return first ? first : l->slot_bytes;
  }
  if (mode == HK_PAYLOAD_COPIES || !hk_link_refer(l, call->in, bytes, &ref)) return l->slot_bytes;
  /* pieces of about equal size: the last must not be too short for a reference */
  size_t pieces = (bytes - 1) / REF_MAX_BYTES + 1;
  return ((bytes + pieces - 1) / pieces + 63) & ~(size_t)63;
}

bool hk_transfer_launch(hk_transfer_run *r, const hk_call *call, size_t bytes) {
  hk_decision d = {.chunk = r->link->slot_bytes};
  hk_decide_transfer(hk_selection_machine(call->comm), bytes, &d);
  const bool brief = d.executor == HK_EXECUTOR_STEPS && r->plan.steps;
  if (!brief && !(d.chunk = transfer_launch_chunk(r->link, call, bytes, d.payload.mode))) return false;
  r->launch.total = r->launch.block_bytes = bytes;
  r->launch.chunk = d.chunk;
  r->launch.signature = hk_transfer_signature(bytes);
  r->launch.move_flags = d.payload.uncached ? HK_MOVE_UNCACHED : 0;
  r->launch.by_cma = d.payload.by_cma;
  r->launch.brief = brief;
  return true;
}
