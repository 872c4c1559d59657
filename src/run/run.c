/* SPDX-License-Identifier: Apache-2.0 */
/* Runs calls and groups of calls on host memory: steps executions, waits between the steps, and reports failures
 * (run.h). */
#include "run.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "../base/thread.h"
#include "../core/call.h"
#include "../core/links.h"
#include "../failure/failure.h"
#include "../failure/flight.h"
#include "../failure/flight_ring.h"
#include "../failure/mismatch.h"
#include "../failure/publish.h"
#include "../failure/watch.h"
#include "../kernels/exec.h"
#include "../rma/rma.h"
#include "../transport/status_page.h"
#include "choose.h"
#include "profiler.h"
#include "transfer.h"

enum { FRAME_BYTES = 3072 }; /* the lanes and pointers of common plans, and small groups, fit on the stack */

/* In `call` this rank lost the connection to `peer` (-1: unknown). */
static void run_lost(ncclComm_t c, const hk_call *call, int peer) {
  char text[HK_EVENT_TEXT];
  if (peer < 0) peer = hk_wire_broken(c);
  if (peer >= 0 && hk_watch_left(c, call, peer)) return;
  /* The cause may be that a third rank died. A report of that then arrives soon. */
  snprintf(text, sizeof text, "%s", hk_last_error());
  hk_failure_raise(c, HK_EVENT_SUSPECT, peer >= 0 ? peer : c->rank, HK_ERR_REMOTE, text);
}

/* This rank cannot continue, for the reason in its last error. */
static hk_status run_failed_here(ncclComm_t c, const hk_call *call, hk_status rc) {
  char what[160], text[HK_EVENT_TEXT];
  hk_watch_describe(call, what, sizeof what);
  snprintf(text, sizeof text, "rank %d, in %s: %s", c->rank, what, hk_last_error());
  hk_failure_raise(c, HK_EVENT_ERROR, c->rank, rc, text);
  return hk_failure_resolve(c, NULL);
}

/* An operation ended with `rc`. This rank found the cause (in a message, a link or its own memory), or another rank
 * reported it. Returns the status that all ranks agree on. `x` is NULL for a send or receive. `peer` is the rank that
 * is involved; -1: x has it. */
static hk_status run_ended(ncclComm_t c, const hk_call *call, const hk_exec *x, int peer, hk_status rc) {
  char what[160];
  hk_cancel_hold(); /* the report is sent over sockets */
  if (x && peer < 0) peer = x->bad_peer;
  if (!hk_comm_failing(c)) {
    if (rc == HK_ERR_USAGE && x && x->bad_peer >= 0)
      hk_mismatch_slot(c, call, x);
    else if (rc == HK_ERR_REMOTE)
      run_lost(c, call, peer);
    else
      return run_failed_here(c, call, rc);
  }
  hk_watch_describe(call, what, sizeof what);
  return hk_failure_resolve(c, what);
}

/* Returns the status of a call that could not begin. A wrong argument is found by all ranks or concerns only this one,
 * and changes nothing. If this rank lacks a resource, the other ranks would wait, so the communicator fails. */
static hk_status run_not_begun(ncclComm_t c, const hk_call *call, hk_status rc) {
  return !hk_comm_failing(c) && (rc == HK_ERR_ARGUMENT || rc == HK_ERR_USAGE) ? rc : run_ended(c, call, NULL, -1, rc);
}

/* True if the rank receives nothing in the call, and so cannot notice that another rank's call differs. */
static inline bool run_only_sends(const hk_call *call) {
  bool is_root = call->root == call->comm->rank;
  return hk_coll_in_set(HK_COLLS_IN_ROOT, (hk_coll)call->coll) ? is_root : !is_root;
}

/* True if the call must be compared with other ranks' calls before it runs. */
static inline bool run_compares(const hk_call *call, const hk_plan *plan) {
  return plan->sums || (hk_coll_has_root((hk_coll)call->coll) && run_only_sends(call));
}

/* Two ranks that only send do not notice that their roots differ, and a result reduced by the network does not show a
 * mismatch with other hosts. In shared memory ranks compare at each call. Over a network they compare only at the first
 * call with this plan, because that takes a round trip. */
static hk_status run_check_calls(const hk_call *call, const hk_exec *x) {
  ncclComm_t c = call->comm;
  hk_plan *plan = (hk_plan *)(uintptr_t)x->plan; /* the communicator's own */
  if (!plan->sums && c->order.call_checks && !hk_claim(c->order.call_checks, c->order.sequence, x->launch->signature)) {
    hk_mismatch_found(c, call, -1);
    return HK_ERR_USAGE;
  }
  if (!x->plan->proxied || plan->compared) return HK_OK;
  plan->compared = true;
  return hk_mismatch_compare(c, call) ? HK_OK : HK_ERR_USAGE;
}

/* Counts the operation and publishes it on the status page, for peers that wait. *began: the time; 0: not taken. */
static inline hk_status run_begin(ncclComm_t c, const hk_call *call, hk_exec *x, uint64_t *began) {
  const hk_launch *launch = x->launch;
  c->order.sequence++;
  c->order.current = call;
  c->order.exec = x;
  /* then left-over slots of an earlier call do not match */
  x->signature = hk_signature_at(x->signature, c->order.sequence);
  hk_watch_publish(c, call, launch->signature);
  const bool sample = hk_meter_count(launch->cell, launch->message);
  *began = __builtin_expect(sample || launch->message >= HK_METER_TIMED_BYTES, 0) ? hk_now_ns() : 0;
  if (__builtin_expect(c->profiler != NULL, 0))
    hk_profile_collective(c->profiler, call, x->plan->program->algorithm, x->plan->channels);
  if (__builtin_expect(!run_compares(call, x->plan), 1)) return HK_OK;
  hk_flight_begin(c, call, x->plan, true); /* the check may wait for other ranks */
  return run_check_calls(call, x);
}

/* The collective is over. `waited`: for other ranks, in its long waits. */
static inline void run_waited(ncclComm_t c, const hk_call *call, uint64_t waited) {
  if (__builtin_expect(waited < HK_WAIT_LONG_NS, 1)) return;
  hk_watch_waited(c, call, waited);
  if (c->profiler) hk_profile_waited(c->profiler, waited);
}

static inline void run_end(ncclComm_t c) {
  hk_watch_over(c);
  c->order.current = NULL;
  c->order.exec = NULL;
}

/* The time of a collective that is over. began 0: it is that of its long waits. `sample`: it stands for others, too. */
static __attribute__((noinline)) void run_time(ncclComm_t c, const hk_launch *launch, uint64_t began, uint64_t waited,
                                               bool sample) {
  const uint64_t now = hk_now_ns(), ns = began ? hk_ago_ns(now, began) : waited;
  if (sample)
    hk_meter_sampled(c->order.meter, launch->cell, ns, now);
  else
    hk_meter_timed(c->order.meter, launch->cell, ns, now);
}

/* Steps the execution to its end. */
static hk_status run_exec(ncclComm_t c, const hk_call *call, hk_exec *x, uint64_t began) {
  hk_waiter w;
  uint64_t waited = 0; /* for other ranks, in long waits */
  bool moved = false;
  hk_wait_begin(&w, &c->wait);
  hk_status rc = hk_exec_step(x, &moved);
  /* After the first step: what this rank sends is on its way, so that the record costs the other ranks no time. */
  hk_flight_begin(c, call, x->plan, !x->launch->brief);
  for (;;) {
    if (__builtin_expect(rc != HK_OK, 0)) return rc;
    if (__builtin_expect(c->profiler != NULL, 0) && hk_exec_computed(x)) hk_profile_computed(c->profiler);
    if (hk_exec_done(x)) break;
    if (c->links->any_pump) HK_OR_RETURN(hk_wire_progress(c, &moved));
    if (moved) {
      waited += hk_wait_long_ns(&w);
      hk_wait_progress(&w);
    } else {
      HK_OR_RETURN(hk_wire_pause(c, &w));
    }
    if (__builtin_expect(w.begin_ns != 0, 0)) hk_flight_collective_waits(c);
    moved = false;
    rc = hk_exec_step(x, &moved);
  }
  hk_flight_collective_over(c, !x->launch->brief || w.begin_ns);
  waited += hk_wait_long_ns(&w);
  run_waited(c, call, waited);
  const bool alone = waited >= HK_WAIT_LONG_NS || x->launch->message >= HK_METER_TIMED_BYTES;
  if (__builtin_expect(began || alone, 0)) run_time(c, x->launch, began, waited, !alone);
  return HK_OK;
}

/* Allocates what the execution needs in addition to the user's memory: scratch, and a copy of the input, to which *in
 * then points. */
static __attribute__((noinline)) hk_status run_allocate(const hk_call *call, const hk_plan *plan,
                                                        const hk_launch *launch, const void **in, void **scratch) {
  const size_t own = plan->program->scratch_blocks ? hk_exec_scratch_bytes(plan, launch->chunk) : 0;
  const size_t copied = hk_call_copies_input(call) ? hk_call_in_bytes(call) : 0;
  HK_OR_RETURN(hk_choose_scratch(call->comm, own + copied, scratch));
  if (copied) *in = memcpy((char *)*scratch + own, call->in, copied);
  return HK_OK;
}

/* Most calls need no memory: this is in line for the smallest messages. */
static inline hk_status run_memory(const hk_call *call, const hk_plan *plan, const hk_launch *launch, const void **in,
                                   void **scratch) {
  *in = call->in;
  if (__builtin_expect(!plan->program->scratch_blocks && !hk_call_copies_input(call), 1)) return HK_OK;
  return run_allocate(call, plan, launch, in, scratch);
}

static hk_status run_collective(const hk_call *call) {
  _Alignas(16) char frame[FRAME_BYTES];
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  const hk_plan *plan;
  const hk_launch *launch;
  hk_exec x;
  const void *in;
  void *memory = frame, *scratch = NULL;
  uint64_t began;
  HK_TRY(hk_choose(c, call, &plan, &launch), not_begun);
  size_t bytes = launch->brief ? 0 : hk_exec_bytes(plan);
  if (bytes > sizeof frame && !(memory = malloc(bytes)))
    HK_GIVE_UP(HK_FAIL_ERRNO("no memory to run %u lanes", plan->program->nlanes), not_begun);
  HK_TRY(run_memory(call, plan, launch, &in, &scratch), not_begun);
  hk_exec_init(&x, plan, launch, in, call->out, memory, scratch);
  rc = run_begin(c, call, &x, &began);
  if (__builtin_expect(rc == HK_OK, 1)) rc = run_exec(c, call, &x, began);
  if (__builtin_expect(rc != HK_OK, 0)) {
    rc = run_ended(c, call, &x, -1, rc);
    hk_wire_withdraw(c);
  }
  run_end(c);
  if (__builtin_expect(c->profiler != NULL, 0)) hk_profile_run_over(c->profiler);
  if (memory != frame) free(memory);
  return rc;
not_begun:
  if (memory != frame) free(memory);
  return run_not_begun(c, call, rc);
}

/* ---- one-sided operations ---- */

/* Waits for the signals of the call. They may arrive over any transport or none, and this rank's own sends may need
 * progress meanwhile. */
static hk_status run_wait_signals(ncclComm_t c, const hk_call *call) {
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

static hk_status run_one_sided(const hk_call *call) {
  ncclComm_t c = call->comm;
  bool puts = call->p2p == HK_P2P_PUT;
  if (!puts && hk_rma_arrived(call)) return HK_OK;
  c->order.current = call;
  hk_watch_transfer(c, call);
  hk_status rc = puts ? hk_rma_put(call) : run_wait_signals(c, call);
  if (puts) hk_watch_count(c, call);
  if (__builtin_expect(rc != HK_OK, 0))
    rc = puts ? run_not_begun(c, call, rc) : run_ended(c, call, NULL, call->root, rc);
  c->order.current = NULL;
  hk_watch_transfer(c, NULL);
  return rc;
}

hk_status hk_run_one(const hk_call *call) {
  if (call->coll != HK_SENDRECV) return run_collective(call);
  return hk_call_is_rma(call) ? run_one_sided(call) : hk_run_group(call, 1);
}

/* ---- groups ---- */

/* The calls of one communicator in the group. */
typedef struct member {
  ncclComm_t comm;
  const hk_call **collectives;
  size_t ncollectives, next;
  hk_transfer *transfers;
  size_t ntransfers;
  const hk_call **puts, **waits; /* one-sided operations */
  size_t nputs, nwaits;
  uint64_t waited; /* in the collective that runs, before the group's current wait */
  bool fresh;      /* it began after that wait */
  hk_exec exec;
  void *memory;
  uint64_t began; /* the collective that runs */
  bool running;
  int peer; /* of the transfer that is stepped; -1: none */
  hk_status status;
} member;

static hk_status run_begin_collective(member *m) {
  const hk_call *call = m->collectives[m->next];
  ncclComm_t c = m->comm;
  const hk_plan *plan;
  const hk_launch *launch;
  const void *in;
  void *scratch = NULL;
  HK_OR_RETURN(hk_choose(c, call, &plan, &launch));
  free(m->memory);
  if (!(m->memory = malloc(hk_exec_bytes(plan)))) {
    return HK_FAIL_ERRNO("no memory to run %u lanes", plan->program->nlanes);
  }
  HK_OR_RETURN(run_memory(call, plan, launch, &in, &scratch));
  hk_exec_init(&m->exec, plan, launch, in, call->out, m->memory, scratch);
  m->running = m->fresh = true;
  m->waited = 0;
  HK_OR_RETURN(run_begin(c, call, &m->exec, &m->began));
  if (!m->began) m->began = hk_now_ns();
  hk_flight_begin(c, call, plan, true);
  return HK_OK;
}

/* `w`: the group's wait. */
static hk_status run_step_collectives(member *m, const hk_waiter *w, bool *moved) {
  ncclComm_t c = m->comm;
  while (m->next < m->ncollectives) {
    if (!m->running) HK_OR_RETURN(run_begin_collective(m));
    HK_OR_RETURN(hk_exec_step(&m->exec, moved));
    if (c->profiler && hk_exec_computed(&m->exec)) hk_profile_computed(c->profiler);
    if (!hk_exec_done(&m->exec)) return HK_OK;
    m->running = false;
    run_waited(c, m->collectives[m->next++], m->waited + (m->fresh ? 0 : hk_wait_long_ns(w)));
    if (c->profiler) hk_profile_collective_over(c->profiler);
    hk_flight_collective_over(c, true);
    run_time(c, m->exec.launch, m->began, 0, false);
    run_end(c);
  }
  return HK_OK;
}

/* Publishes the transfer in which the rank waits, if it is in no other operation. */
static void run_watch(ncclComm_t c, const hk_call *call) {
  if (c->order.current) return;
  c->order.current = call;
  hk_watch_transfer(c, call);
}

/* Ends the member's part of the group with the status that all ranks agree on after `rc`. */
static void run_member_ended(member *m, hk_status rc) {
  const hk_call *call = m->next < m->ncollectives ? m->collectives[m->next]
                        : m->ntransfers           ? m->transfers[0].call
                        : m->nputs                ? m->puts[0]
                                                  : m->waits[0];
  m->status = run_ended(m->comm, call, m->running ? &m->exec : NULL, m->peer, rc);
}

static bool run_member_done(const member *m) {
  return m->status != HK_OK || (m->next == m->ncollectives && m->ntransfers == 0 && m->nputs == 0 && m->nwaits == 0);
}

/* Puts do not depend on calls of other ranks, so they run first, in order. */
static hk_status run_step_one_sided(member *m, bool *moved) {
  ncclComm_t c = m->comm;
  for (; m->nputs; m->nputs--, m->puts++, *moved = true) {
    run_watch(c, m->puts[0]);
    m->peer = m->puts[0]->root;
    HK_OR_RETURN(hk_rma_put(m->puts[0]));
    hk_watch_count(c, m->puts[0]);
    m->peer = -1;
    if (c->order.current == m->puts[0]) c->order.current = NULL;
  }
  for (size_t i = 0; i < m->nwaits;) {
    const hk_call *call = m->waits[i];
    if (!hk_rma_arrived(call)) {
      run_watch(c, call);
      i++;
      continue;
    }
    if (c->order.current == call) c->order.current = NULL;
    m->waits[i] = m->waits[--m->nwaits];
    *moved = true;
  }
  return HK_OK;
}

/* Steps each of the *n transfers, and removes completed ones. A transfer that fails is moved to index 0 for the report,
 * and *peer is set to its other rank. */
static inline hk_status run_step_transfers(ncclComm_t c, hk_transfer *t, size_t *n, bool *moved, int *peer) {
  for (size_t i = 0; i < *n;) {
    bool over = false;
    hk_status rc = hk_transfer_step(&t[i], moved, &over);
    if (__builtin_expect(rc != HK_OK, 0)) {
      const hk_transfer failed = t[i];
      t[i] = t[0];
      t[0] = failed;
      *peer = failed.call->root;
      return rc;
    }
    if (!over) {
      run_watch(c, t[i++].call);
      continue;
    }
    if (c->order.current == t[i].call) c->order.current = NULL;
    if (__builtin_expect(c->profiler != NULL, 0)) hk_profile_transfer_over(c->profiler, t[i].event, t[i].kernel);
    if (i != --*n) t[i] = t[*n];
  }
  return HK_OK;
}

static void run_step_member(member *m, const hk_waiter *w, bool *moved) {
  hk_status rc = HK_OK;
  ncclComm_t c = m->comm;
  if (m->nputs || m->nwaits) HK_TRY(run_step_one_sided(m, moved), out);
  HK_TRY(run_step_collectives(m, w, moved), out);
  HK_TRY(run_step_transfers(c, m->transfers, &m->ntransfers, moved, &m->peer), out);
  if (c->links->any_pump && !run_member_done(m)) rc = hk_wire_progress(c, moved);
out:
  if (rc != HK_OK) run_member_ended(m, rc);
}

typedef struct group_run {
  member *members;
  size_t n;
  bool running;
} group_run;

/* The check of the group's wait: checks the health of every communicator in the group. */
static hk_status run_check_group(void *arg, uint64_t waited_ns) {
  group_run *g = arg;
  for (size_t i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    if (run_member_done(m)) continue;
    hk_status rc = hk_watch(m->comm, waited_ns);
    if (rc != HK_OK) run_member_ended(m, rc);
  }
  return HK_OK;
}

/* Ends the waits of communicators that have failed since (abort, a dead peer). */
static void run_drop_failed(group_run *g) {
  for (size_t i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    if (run_member_done(m)) continue;
    int code = atomic_load_explicit(&m->comm->health.failure, memory_order_relaxed); /* read again at each poll */
    if (!code && m->comm->wait.shared_failure)
      code = atomic_load_explicit(m->comm->wait.shared_failure, memory_order_relaxed);
    if (!code) continue;
    run_member_ended(m, (hk_status)code);
  }
}

/* The group's wait is over: it was one of the collectives that run. */
static inline void run_progress(group_run *g, hk_waiter *w) {
  const uint64_t waited = hk_wait_long_ns(w);
  for (size_t i = 0; i < g->n; i++) {
    g->members[i].waited += g->members[i].fresh ? 0 : waited;
    g->members[i].fresh = false;
  }
  hk_wait_progress(w);
}

static hk_status run_members(group_run *g) {
  const hk_wait_env *own = &g->members[0].comm->wait;
  hk_wait_env env = {.check = run_check_group,
                     .arg = g,
                     .spins = own->spins,
                     .patience_ns = own->patience_ns,
                     .crowded_until_ns = own->crowded_until_ns};
  hk_waiter w;
  g->running = true;
  hk_wait_begin(&w, &env);
  for (;;) {
    bool moved = false, done = true;
    for (size_t i = 0; i < g->n; i++) {
      member *m = &g->members[i];
      if (run_member_done(m)) continue;
      run_step_member(m, &w, &moved);
      done = done && run_member_done(m);
    }
    if (done) break;
    if (moved) {
      run_progress(g, &w);
    } else {
      run_drop_failed(g);
      hk_status rc = g->n == 1 ? hk_wire_pause(g->members[0].comm, &w) : hk_wait_pause(&w);
      if (rc != HK_OK) return rc;
    }
  }
  for (size_t i = 0; i < g->n; i++) {
    run_end(g->members[i].comm);
    hk_watch_transfer(g->members[i].comm, NULL);
    if (g->members[i].status != HK_OK) return g->members[i].status;
  }
  return HK_OK;
}

/* `last`: the member of the previous call, or NULL. */
static inline member *run_find_member(group_run *g, ncclComm_t c, member *last) {
  if (last && last->comm == c) return last;
  for (size_t i = 0; i < g->n; i++)
    if (g->members[i].comm == c) return &g->members[i];
  member *m = &g->members[g->n++];
  memset(m, 0, offsetof(member, exec)); /* an execution is begun before it is used */
  m->comm = c;
  m->memory = NULL;
  m->running = false;
  m->peer = -1;
  m->status = HK_OK;
  return m;
}

static size_t *run_count_of(member *m, const hk_call *call) {
  if (call->coll != HK_SENDRECV) return &m->ncollectives;
  return call->p2p == HK_P2P_PUT ? &m->nputs : call->p2p == HK_P2P_WAIT ? &m->nwaits : &m->ntransfers;
}

/* Sorts the calls by communicator and kind; `others` and `transfers` have room for n each. */
static hk_status run_distribute(group_run *g, const hk_call *calls, size_t n, const hk_call **others,
                                hk_transfer *transfers) {
  member *m = NULL;
  for (size_t i = 0; i < n; i++) {
    m = run_find_member(g, calls[i].comm, m);
    *run_count_of(m, &calls[i]) += 1;
  }
  for (size_t k = 0; k < g->n; k++) {
    m = &g->members[k];
    m->collectives = others;
    others += m->ncollectives;
    m->puts = others;
    others += m->nputs;
    m->waits = others;
    others += m->nwaits;
    m->transfers = transfers;
    transfers += m->ntransfers;
    m->ncollectives = m->ntransfers = m->nputs = m->nwaits = 0;
  }
  for (size_t i = 0; i < n; i++) {
    m = run_find_member(g, calls[i].comm, m);
    size_t *of_kind = run_count_of(m, &calls[i]);
    if (of_kind != &m->ntransfers) {
      const hk_call **list = of_kind == &m->ncollectives ? m->collectives : of_kind == &m->nputs ? m->puts : m->waits;
      list[(*of_kind)++] = &calls[i];
      continue;
    }
    hk_status rc = hk_transfer_open(&calls[i], &m->transfers[m->ntransfers]);
    if (rc != HK_OK) return run_ended(m->comm, &calls[i], NULL, calls[i].root, rc);
    hk_transfer *t = &m->transfers[m->ntransfers++];
    if (m->comm->profiler) t->event = hk_profile_transfer(m->comm->profiler, &calls[i], &t->kernel);
  }
  return HK_OK;
}

/* Ends the profiler's events that a failure left open. */
static void run_close_events(member *m) {
  for (size_t i = 0; i < m->ntransfers; i++)
    hk_profile_transfer_over(m->comm->profiler, m->transfers[i].event, m->transfers[i].kernel);
  hk_profile_run_over(m->comm->profiler);
}

/* ---- a few sends and receives of one communicator: without members ---- */

enum { FEW = 8 };
static inline bool run_few_transfers(const hk_call *calls, size_t n) {
  if (n > FEW || calls->comm->profiler) return false;
  for (size_t i = 0; i < n; i++)
    if (calls[i].coll != HK_SENDRECV || hk_call_is_rma(&calls[i]) || calls[i].comm != calls->comm) return false;
  return true;
}

static hk_status run_transfers(const hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  ncclComm_t c = calls->comm;
  hk_transfer open[FEW];
  hk_waiter w;
  size_t left = 0;
  int peer = -1;
  for (size_t i = 0; i < n; i++) HK_TRY(hk_transfer_open(&calls[i], &open[i]), failed);
  left = n;
  hk_wait_begin(&w, &c->wait);
  for (;;) {
    bool moved = false;
    HK_TRY(run_step_transfers(c, open, &left, &moved, &peer), failed);
    if (!left) break;
    if (c->links->any_pump) HK_TRY(hk_wire_progress(c, &moved), failed);
    if (moved)
      hk_wait_progress(&w);
    else
      HK_TRY(hk_wire_pause(c, &w), failed);
  }
  hk_watch_transfer(c, NULL);
  c->order.direct++;
  return HK_OK;
failed:
  rc = run_ended(c, left ? open[0].call : calls, NULL, left ? peer : calls->root, rc);
  c->order.current = NULL;
  hk_watch_transfer(c, NULL);
  hk_wire_withdraw(c);
  return rc;
}

hk_status hk_run_group(const hk_call *calls, size_t n) {
  _Alignas(16) char frame[FRAME_BYTES];
  hk_status rc = HK_OK;
  if (n == 0) return HK_OK;
  if (run_few_transfers(calls, n)) return run_transfers(calls, n);
  size_t bytes = n * (sizeof(member) + sizeof(hk_transfer) + sizeof(hk_call *));
  group_run g = {.members = bytes <= sizeof frame ? (void *)frame : malloc(bytes)};
  if (!g.members) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a group of %zu calls", n), out);
  hk_transfer *transfers = (hk_transfer *)(g.members + n);
  HK_TRY(run_distribute(&g, calls, n, (const hk_call **)(transfers + n), transfers), out);
  HK_TRY(run_members(&g), out);
out:
  /* their calls were not begun, so their other ranks would wait */
  for (size_t i = 0; i < n && rc != HK_OK && !g.running; i++)
    if (rc != HK_ERR_ARGUMENT && rc != HK_ERR_USAGE) (void)hk_comm_failed(calls[i].comm, rc);
  for (size_t i = 0; i < g.n; i++) {
    if (rc != HK_OK) hk_wire_withdraw(g.members[i].comm);
    if (g.members[i].comm->profiler) run_close_events(&g.members[i]);
    free(g.members[i].memory);
  }
  if (g.members != (void *)frame) free(g.members);
  return rc;
}
