/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks that an operation waits for, and what another rank does. */
#include "../boot/bootstrap.h"
#include "../boot/process.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../kernels/exec.h"
#include "../transport/peer.h"
#include "../transport/status_page.h"
#include "watch.h"

int hk_watch_awaited(ncclComm_t c, int *peers, int capacity) {
  int n = 0;
  if (c->order.exec) n = hk_exec_waits_for(c->order.exec, peers, capacity);
  if (n == 0 && c->order.current && c->order.current->coll == HK_SENDRECV) peers[n++] = c->order.current->root;
  return n;
}

uint32_t hk_watch_own_signature(ncclComm_t c) { return c->order.exec ? c->order.exec->launch->signature : 0; }

hk_presence hk_watch_ask(ncclComm_t c, int rank, uint64_t patience, hk_activity *out) {
  hk_presence p = hk_bootstrap_ask(c->bootstrap, rank, patience, out);
  const hk_peer *peer = &c->peers[rank];
  hk_status_page *b = hk_wire_status_page(c, rank);
  /* On a crowded host it may only be slow to answer. */
  if (p != HK_PRESENCE_STOPPED || !b || peer->host != c->peers[c->rank].host) return p;
  /* In another PID namespace the number names no process or the wrong one. */
  if (!peer->pid_space || peer->pid_space != c->peers[c->rank].pid_space) return p;
  const char state = hk_process_state(peer->pid);
  if (state == 0 || hk_process_stopped(state)) return p;
  hk_watch_read_page(b, out);
  return HK_PRESENCE_ANSWERS;
}

bool hk_watch_call_of(ncclComm_t c, int rank, uint64_t operation, uint64_t patience, hk_activity *out) {
  hk_status_page *b = rank == c->rank ? c->order.page : hk_wire_status_page(c, rank);
  hk_status_page_op o;
  if (!b) return patience && hk_bootstrap_ask(c->bootstrap, rank, patience, out) == HK_PRESENCE_ANSWERS;
  *out = (hk_activity){.waits_for = -1, .device = -1};
  if (hk_status_page_read_at(b, operation, &o))
    hk_watch_read_operation(out, &o);
  else
    hk_watch_read_page(b, out);
  return true;
}

hk_call hk_watch_call(const hk_activity *a) {
  return (hk_call){.count = (size_t)a->count, .coll = a->coll, .dtype = a->dtype, .redop = a->redop, .root = a->root};
}

uint32_t hk_watch_signature(const hk_activity *a, uint64_t operation) {
  if (operation > a->sequence || a->sequence - operation > HK_ACTIVITY_PAST) return 0;
  return operation == a->sequence ? a->signature : a->past[a->sequence - operation - 1];
}
