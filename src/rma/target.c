/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of other ranks, as a rank's thread finds them. */
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/thread.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../transport/messages.h"
#include "../transport/peer.h"
#include "../transport/remote.h"
#include "../transport/transport.h"
#include "rma_internal.h"

/* True if this rank can write to the memory of the peer's process. For packets, which are in the library's own memory,
 * NCCL_P2P_DISABLE alone does not forbid it. */
static bool target_is_near(ncclComm_t c, int rank) {
  const hk_peer *it = &c->peers[rank], *me = &c->peers[c->rank];
  if (c->settings->P2P_DISABLE && (!c->rma->inbox_at || c->settings->SHM_DISABLE)) return rank == c->rank;
  return it->process == me->process || (it->host == me->host && !hk_wire_no_files(c));
}

/* How this rank writes to a window of its host. */
static hk_status target_reach(ncclComm_t c, int rank, const hk_window_answer *a, hk_rma_target *t) {
  t->way = HK_RMA_BY_STORES;
  t->base = (char *)(uintptr_t)a->address;
  if (c->peers[rank].process == c->peers[c->rank].process) return HK_OK;
  hk_transport_state *s = hk_wire_host(c);
  const hk_transport_host *host = s->transport->host;
  if (!a->region) {
    t->way = host->writable(s, rank, a->proof_at, a->proof, sizeof a->proof) ? HK_RMA_BY_COPY : HK_RMA_BY_MESSAGES;
    return HK_OK;
  }
  HK_OR_RETURN(host->map(s, rank, a->region, &t->base));
  t->base += a->offset;
  return HK_OK;
}

static hk_status target_ask(ncclComm_t c, int rank, uint64_t number, hk_rma_target *t, hk_window_state *state) {
  hk_rma_peer *p = &c->rma->peers[rank];
  unsigned char payload[HK_QUESTION_BYTES] = {0};
  const bool near = target_is_near(c, rank);
  hk_window_answer a;
  memcpy(payload, &number, sizeof number);
  if (rank == c->rank) {
    a = hk_messages_describe(c->rma->messages, number);
  } else if (near && !c->rma->inbox_at) {
    HK_OR_RETURN(hk_wire_ask(c, rank, -1, payload));
    memcpy(&a, payload, sizeof a);
  } else {
    HK_OR_RETURN(hk_messages_ask(c->rma->messages, rank, number, &a));
  }
  *state = (hk_window_state)a.state;
  *t = (hk_rma_target){.known = true, .way = HK_RMA_BY_MESSAGES, .address = a.address, .bytes = a.bytes};
  if (*state != HK_WINDOW_OPEN) return HK_OK;
  if (near) return target_reach(c, rank, &a, t);
  if (number == 0 && (p->remote = hk_wire_remote(c, rank, &p->network)))
    HK_OR_RETURN(p->remote->open(p->network, rank, c->rma->row));
  if (p->remote) t->way = HK_RMA_BY_CARD;
  return HK_OK;
}

/* Looks the window up; waits if its rank has not registered it yet. */
static hk_status target_look_up(const hk_call *call, uint64_t number, hk_rma_target *t) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  hk_window_state state = HK_WINDOW_LATER;
  hk_waiter w;
  hk_cancel_hold();
  hk_wait_begin(&w, &c->wait);
  for (;;) {
    HK_TRY(target_ask(c, call->root, number, t, &state), out);
    if (state != HK_WINDOW_LATER) break;
    HK_TRY(hk_wait_nap(&w, -1, HK_RMA_NAP_NS), out);
  }
  if (state != HK_WINDOW_OPEN) rc = hk_rma_is_gone(call, number);
out:
  t->known = rc == HK_OK;
  return rc;
}

hk_status hk_rma_find_target(const hk_call *call, uint64_t number, hk_rma_target **out) {
  hk_rma_peer *p = &call->comm->rma->peers[call->root];
  if (number >= p->n) {
    hk_rma_target *more = realloc(p->windows, (number + 1) * sizeof *more);
    if (!more) return HK_FAIL_ERRNO("no memory for %llu windows", (unsigned long long)number);
    memset(more + p->n, 0, (number + 1 - p->n) * sizeof *more);
    p->windows = more;
    p->n = number + 1;
  }
  if (!p->windows[number].known) HK_OR_RETURN(target_look_up(call, number, &p->windows[number]));
  *out = &p->windows[number];
  return HK_OK;
}

/* Finds the peer's signal table. Drops the cached data about its windows if it has deregistered any. */
hk_status hk_rma_find_table(const hk_call *call, hk_rma_target *out) {
  ncclComm_t c = call->comm;
  hk_rma_peer *p = &c->rma->peers[call->root];
  hk_rma_target *t;
  HK_OR_RETURN(hk_rma_find_target(call, 0, &t));
  *out = *t;
  if (__builtin_expect(t->bytes != c->rma->table_bytes, 0)) {
    return HK_FAIL(HK_ERR_USAGE,
                   "rank %d has other numbers of contexts and signals than rank %d: set numRmaCtx and numRmaSig "
                   "(NCCL_NUM_RMA_CTX) equally on all ranks",
                   call->root, c->rank);
  }
  if (t->way != HK_RMA_BY_STORES) return HK_OK;
  /* acquire: pairs with the release in hk_rma_dropped */
  uint64_t dropped = atomic_load_explicit(&((hk_rma_table *)(void *)t->base)->dropped, memory_order_acquire);
  if (__builtin_expect(dropped != p->dropped, 0)) memset(p->windows + 1, 0, (p->n - 1) * sizeof *p->windows);
  p->dropped = dropped;
  return HK_OK;
}
