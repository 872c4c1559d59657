/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: says who is waited for, and finds mismatched calls where ranks can see each other's. */
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../transport/shm.h" /* the board */
#include "comm.h"

void hk_watch_describe(const hk_call *call, char *text, size_t bytes) {
  if (!call) {
    snprintf(text, bytes, "no operation");
    return;
  }
  const char *type = hk_dtype_name((hk_dtype)call->dtype);
  if (call->coll == HK_SENDRECV)
    snprintf(text, bytes, "%s(%zu x %s, rank %d)", call->p2p == HK_P2P_SEND ? "Send to" : "Recv from", call->count,
             type, call->root);
  else if (hk_coll_reduces((hk_coll)call->coll) && hk_coll_has_root((hk_coll)call->coll))
    snprintf(text, bytes, "%s(%zu x %s, %s, root %d)", hk_coll_name((hk_coll)call->coll), call->count, type,
             hk_redop_name((hk_redop)call->redop), call->root);
  else if (hk_coll_reduces((hk_coll)call->coll))
    snprintf(text, bytes, "%s(%zu x %s, %s)", hk_coll_name((hk_coll)call->coll), call->count, type,
             hk_redop_name((hk_redop)call->redop));
  else if (hk_coll_has_root((hk_coll)call->coll))
    snprintf(text, bytes, "%s(%zu x %s, root %d)", hk_coll_name((hk_coll)call->coll), call->count, type, call->root);
  else
    snprintf(text, bytes, "%s(%zu x %s)", hk_coll_name((hk_coll)call->coll), call->count, type);
}

/* The peers that the call waits for, some more than once. */
static int waits_for(ncclComm_t c, int *peers, int room) {
  int n = 0;
  if (c->order.exec) n = hk_exec_waits_for(c->order.exec, peers, room);
  if (n == 0 && c->order.current && c->order.current->coll == HK_SENDRECV) peers[n++] = c->order.current->root;
  return n;
}

/* "2, 5, 7": these peers, each once. */
static void list_peers(ncclComm_t c, char *text, size_t bytes) {
  int peers[16], n = waits_for(c, peers, (int)HK_ARRAY_LENGTH(peers));
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < n && used < bytes; i++) {
    bool seen = false;
    for (int k = 0; k < i; k++) seen = seen || peers[k] == peers[i];
    if (!seen) used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "", peers[i]);
  }
}

void hk_watch_post(ncclComm_t c, const hk_call *call, uint32_t signature) {
  hk_board_op op = {.sequence = c->order.sequence,
                    .count = call->count,
                    .signature = signature,
                    .root = call->root,
                    .coll = call->coll,
                    .dtype = call->dtype,
                    .op = call->redop};
  hk_board_post(c->order.board, &op);
}

hk_status hk_watch_mismatch(ncclComm_t c) {
  const hk_call *call = c->order.current;
  hk_transport_state *shm = hk_wire_shm(c);
  if (!shm || !c->order.exec || !call) return HK_OK;
  for (int r = 0; r < c->nranks; r++) {
    hk_board *board = r == c->rank ? NULL : hk_shm_board(shm, r);
    hk_board_op o;
    if (!board || !hk_board_read(board, &o) || o.sequence != c->order.sequence) continue;
    if (o.signature == c->order.exec->launch->signature) continue;
    hk_call other = {.count = o.count, .coll = o.coll, .dtype = o.dtype, .redop = o.op, .root = o.root};
    char mine[160], theirs[160];
    hk_watch_describe(call, mine, sizeof mine);
    hk_watch_describe(&other, theirs, sizeof theirs);
    return HK_FAIL(
        HK_ERR_USAGE,
        "operation %llu: rank %d called %s, rank %d called %s: make the same call with the same count, type, "
        "operator and root on all ranks",
        (unsigned long long)o.sequence, c->rank, mine, r, theirs);
  }
  return HK_OK;
}

/* A rank that destroyed its communicator makes no call any more.  What it wrote into shared memory before its goodbye can
 * be seen once the goodbye is: a wait that was there at one look and still is at the next has looked for it in vain.  What
 * it sent over a network may come later, though not after the time in which a silent host counts as dead. */
static hk_status find_left(ncclComm_t c, const hk_call *call, uint64_t waited_ns) {
  int peers[16], n = waits_for(c, peers, (int)HK_ARRAY_LENGTH(peers)), left = -1;
  for (int i = 0; i < n && left < 0; i++)
    if (hk_bootstrap_left(c->bootstrap, peers[i])) left = peers[i];
  if (left < 0) return HK_OK;
  uint64_t now = hk_now_ns(), patience_ns = 0;
  if (now - waited_ns > c->order.left_seen_ns) c->order.left_seen_ns = now; /* the first look of this wait */
  if (hk_transports[c->wiring.via[left]] != &hk_transport_shm)
    patience_ns = (uint64_t)hk_param_int(HK_P_PEER_TIMEOUT) * 1000000000u;
  if (now <= c->order.left_seen_ns + patience_ns) return HK_OK;
  char what[160];
  hk_watch_describe(call, what, sizeof what);
  return HK_FAIL(
      HK_ERR_REMOTE,
      "rank %d has left the communicator (ncclCommDestroy) while rank %d of %d waits for it in %s, operation "
      "%llu: make the same calls on all ranks before one of them destroys it",
      left, c->rank, c->nranks, what, (unsigned long long)c->order.sequence);
}

hk_status hk_watch(void *comm, uint64_t waited_ns) {
  ncclComm_t c = comm;
  int64_t limit = hk_param_int(HK_P_WATCHDOG);
  const hk_call *call = c->order.current;
  hk_status rc = hk_watch_mismatch(c);
  if (rc == HK_OK && call) rc = find_left(c, call, waited_ns);
  if (rc != HK_OK) return rc;
  if (limit == 0 || !call || waited_ns < (uint64_t)limit * 1000000000u) return HK_OK;
  if (waited_ns < c->order.reported_ns) c->order.reported_ns = 0; /* another wait than the one reported */
  if (waited_ns < 2 * c->order.reported_ns) return HK_OK;         /* again after twice the time */
  c->order.reported_ns = waited_ns;
  char what[160], who[128];
  hk_watch_describe(call, what, sizeof what);
  list_peers(c, who, sizeof who);
  if (hk_param_int(HK_P_WATCHDOG_ABORT))
    return HK_FAIL(HK_ERR_REMOTE, "rank %d of %d has waited %lld s in %s, operation %llu, for rank %s", c->rank,
                   c->nranks, (long long)(waited_ns / 1000000000u), what, (unsigned long long)c->order.sequence, who);
  HK_WARN("rank %d of %d has waited %lld s in %s, operation %llu, for rank %s: has it made this call? "
          "(HOCKET_WATCHDOG_ABORT=1 makes this an error, HOCKET_WATCHDOG=0 silences it)",
          c->rank, c->nranks, (long long)(waited_ns / 1000000000u), what, (unsigned long long)c->order.sequence, who);
  return HK_OK;
}
