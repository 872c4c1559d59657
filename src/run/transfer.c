/* SPDX-License-Identifier: Apache-2.0 */
/* Binds the programs of sends and receives to links, and runs them (transfer.h). */
#include "transfer.h"
#include <stdlib.h>
#include "../collectives/transfer.h"
#include "../core/call.h"
#include "../core/links.h"
#include "../decide/machine.h"
#include "../decide/select.h"
#include "../failure/flight.h"
#include "../failure/flight_ring.h"
#include "../failure/mismatch.h"
#include "../failure/publish.h"
#include "../kernels/steps.h"
#include "run.h"
#include "selection.h"

enum { REF_MAX_BYTES = 1 << 30 }; /* one reference: a slot counts bytes in 32 bits */
/* For the flight recorder: transfers have times if they have so many elements, or take so many steps. */
enum { TIMED_COUNT = 4096, TIMED_STEPS = 32 };

/* The execution of transfers over one link; one transfer runs at a time. */
struct hk_transfer_run {
  hk_plan plan;
  hk_link *link; /* the plan's only one */
  hk_launch launch;
  hk_exec exec;
  _Alignas(16) char memory[]; /* hk_exec_bytes */
};

static hk_status transfer_make_run(ncclComm_t c, const hk_call *call, hk_link *l, hk_transfer_run **out) {
  hk_program *program;
  hk_status rc = hk_transfer_build(c->rank, c->nranks, call->root, call->p2p == HK_P2P_SEND, &program);
  if (rc != HK_OK) return rc;
  hk_plan plan = {.program = program, .channels = 1, .orders = 1, .max_operands = 1, .proxied = l->proxied};
  hk_transfer_run *r = malloc(sizeof *r + hk_exec_bytes(&plan));
  if (!r) {
    hk_program_free(program);
    return HK_FAIL_ERRNO("no memory for transfers with rank %d", call->root);
  }
  *r = (hk_transfer_run){.plan = plan, .link = l, .launch.unit = 1};
  r->plan.links = &r->link;
  r->plan.steps = hk_steps_make(&r->plan);
  hk_run_spread(c);
  *out = r;
  return HK_OK;
}

void hk_transfers_free(ncclComm_t c) {
  hk_link_walk walk = {0};
  for (hk_wired_link *l; (l = hk_wire_next(c, &walk));) {
    hk_transfer_run *run = l->transfer;
    l->transfer = NULL;
    if (!run) continue;
    hk_program_free((hk_program *)(uintptr_t)run->plan.program);
    free(run->plan.steps);
    free(run);
  }
}

static __attribute__((noinline)) hk_status transfer_open_first(const hk_call *call, hk_link_kind kind,
                                                               hk_wired_link **out) {
  hk_link_key key = {.peer = call->root, .kind = (uint8_t)kind, .channel = HK_CHANNEL_P2P};
  hk_status rc = hk_wire_link(call->comm, key, out);
  if (rc == HK_OK && !(*out)->transfer) rc = transfer_make_run(call->comm, call, &(*out)->link, &(*out)->transfer);
  return rc;
}

hk_status hk_transfer_open(const hk_call *call, hk_transfer *t) {
  hk_link_kind kind = call->p2p == HK_P2P_SEND ? HK_LINK_SEND : HK_LINK_RECV;
  const hk_peer_links *links = call->comm->links->to[call->root];
  t->call = call;
  t->wired = links ? links->at[HK_CHANNEL_P2P][kind] : NULL;
  t->begun = false;
  t->event = t->kernel = NULL;
  t->steps = 0;
  t->flight = hk_flight_transfer(call->comm, call, call->count >= TIMED_COUNT);
  if (__builtin_expect(!t->wired || !t->wired->transfer, 0)) HK_OR_RETURN(transfer_open_first(call, kind, &t->wired));
  t->turn = t->wired->issued++;
  hk_watch_count(call->comm, call);
  return HK_OK;
}

/* The bytes of one slot; 0: not known yet. If the ends share no memory, it is the size of a slot. Otherwise the sender
 * decides: a reference covers as much as possible if the receiver can read the sender's memory. The receiver takes the
 * size from the first slot. */
static size_t transfer_chunk_of(hk_link *l, const hk_call *call, size_t bytes, hk_payload_mode mode) {
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

/* Sets the launch. False: the chunk is not known yet. */
static bool transfer_set_launch(hk_transfer_run *r, const hk_call *call, size_t bytes) {
  const hk_machine *m = hk_selection_machine(call->comm);
  const hk_request request = {.coll = HK_SENDRECV, .bytes = bytes, .unit = 1};
  hk_decision d = {.chunk = r->link->slot_bytes};
  hk_decide_payload(m, NULL, &request, bytes, &d);
  hk_decide_executor(m, NULL, &request, bytes, &d);
  const bool brief = d.executor == HK_EXECUTOR_STEPS && r->plan.steps;
  if (!brief && !(d.chunk = transfer_chunk_of(r->link, call, bytes, d.payload.mode))) return false;
  r->launch.total = r->launch.block_bytes = bytes;
  r->launch.chunk = d.chunk;
  r->launch.signature = hk_transfer_signature(bytes);
  r->launch.move_flags = d.payload.uncached ? HK_MOVE_UNCACHED : 0;
  r->launch.by_cma = d.payload.by_cma;
  r->launch.brief = brief;
  return true;
}

static inline bool transfer_begin(hk_transfer *t) {
  hk_transfer_run *r = t->wired->transfer;
  const hk_call *call = t->call;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  if (__builtin_expect(r->launch.brief && bytes == r->launch.total, 1)) {
    hk_steps_again(&r->exec, call->in, call->out);
  } else {
    if (!transfer_set_launch(r, call, bytes)) return false;
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
  if (rc == HK_ERR_USAGE) hk_mismatch_transfer(t->call->comm, t->call, w->transfer->launch.total, x->bad_bytes);
  if (rc != HK_OK || !hk_exec_done(x)) {
    transfer_waits(t);
    return rc;
  }
  w->served++;
  hk_flight_over(t->call->comm, t->flight, !w->transfer->launch.brief || t->steps > TIMED_STEPS);
  *over = *moved = true;
  return HK_OK;
}
