/* SPDX-License-Identifier: Apache-2.0 */
/* Runs collectives on host memory: begins them, steps their executions, waits between the steps, and records them. */
#include "collective.h"
#include <stdlib.h>
#include <string.h>
#include "../failure/flight_ring.h"
#include "../failure/mismatch.h"
#include "../failure/publish.h"
#include "profiler.h"
#include "run.h"

enum { FRAME_BYTES = 3072 }; /* the lanes and pointers of common plans fit on the stack */

/* True if the rank receives nothing in the call, and so cannot notice that another rank's call differs. */
static inline bool collective_only_sends(const hk_call *call) {
  bool is_root = call->root == call->comm->rank;
  return hk_coll_in_set(HK_COLLS_IN_ROOT, (hk_coll)call->coll) ? is_root : !is_root;
}

/* True if the call must be compared with other ranks' calls before it runs. */
static inline bool collective_compares(const hk_call *call, const hk_plan *plan) {
  return plan->sums || (hk_coll_has_root((hk_coll)call->coll) && collective_only_sends(call));
}

/* Two ranks that only send do not notice that their roots differ, and a result reduced by the network does not show a
 * mismatch with other hosts. In shared memory ranks compare at each call. Over a network they compare only at the first
 * call with this plan, because that takes a round trip. */
static hk_status collective_check_calls(const hk_call *call, const hk_exec *x) {
  ncclComm_t c = call->comm;
  hk_plan *plan = (hk_plan *)(uintptr_t)x->plan; /* the communicator's own */
  if (!plan->sums && c->order.call_checks && !hk_claim(c->order.call_checks, c->order.sequence, x->launch->signature))
    return hk_mismatch_found(c, call, -1);
  if (!x->plan->proxied || plan->compared) return HK_OK;
  plan->compared = true;
  return hk_mismatch_compare(c, call);
}

/* Counts the operation and publishes it on the status page, for peers that wait. *began: the time; 0: not taken. */
static inline hk_status collective_begin(ncclComm_t c, const hk_call *call, hk_exec *x, uint64_t *began) {
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
  if (__builtin_expect(!collective_compares(call, x->plan), 1)) return HK_OK;
  hk_flight_begin(c, call, x->plan, true); /* the check may wait for other ranks */
  return collective_check_calls(call, x);
}

static __attribute__((noinline)) void collective_waited_long(ncclComm_t c, const hk_call *call, uint64_t waited) {
  hk_watch_waited(c, call, waited);
  if (c->profiler) hk_profile_waited(c->profiler, waited);
}

static inline void collective_waited(ncclComm_t c, const hk_call *call, uint64_t waited) {
  if (__builtin_expect(waited >= HK_WAIT_LONG_NS, 0)) collective_waited_long(c, call, waited);
}

/* The time of a collective that is over. began 0: it is that of its long waits. `sample`: it stands for others, too. */
static __attribute__((noinline)) void collective_time(ncclComm_t c, const hk_launch *launch, uint64_t began,
                                                      uint64_t waited, bool sample) {
  const uint64_t now = hk_now_ns(), ns = began ? hk_ago_ns(now, began) : waited;
  if (sample)
    hk_meter_sampled(c->order.meter, launch->cell, ns, now);
  else
    hk_meter_timed(c->order.meter, launch->cell, ns, now);
}

/* Steps the execution to its end. */
static hk_status collective_exec(ncclComm_t c, const hk_call *call, hk_exec *x, uint64_t began) {
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
  collective_waited(c, call, waited);
  const bool alone = waited >= HK_WAIT_LONG_NS || x->launch->message >= HK_METER_TIMED_BYTES;
  if (__builtin_expect(began || alone, 0)) collective_time(c, x->launch, began, waited, !alone);
  return HK_OK;
}

/* Allocates what the execution needs in addition to the user's memory: scratch, and a copy of the input, to which *in
 * then points. */
static __attribute__((noinline)) hk_status collective_allocate(const hk_call *call, const hk_plan *plan,
                                                               const hk_launch *launch, const void **in,
                                                               void **scratch) {
  const size_t own = plan->program->scratch_blocks ? hk_exec_scratch_bytes(plan, launch->chunk) : 0;
  const size_t copied = hk_call_copies_input(call) ? hk_call_in_bytes(call) : 0;
  HK_OR_RETURN(hk_choose_scratch(call->comm, own + copied, scratch));
  if (copied) *in = memcpy((char *)*scratch + own, call->in, copied);
  return HK_OK;
}

/* Most calls need no memory: this is in line for the smallest messages. */
static inline hk_status collective_memory(const hk_call *call, const hk_plan *plan, const hk_launch *launch,
                                          const void **in, void **scratch) {
  *in = call->in;
  if (__builtin_expect(!plan->program->scratch_blocks && !hk_call_copies_input(call), 1)) return HK_OK;
  return collective_allocate(call, plan, launch, in, scratch);
}

hk_status hk_run_collective(const hk_call *call) {
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
  HK_TRY(collective_memory(call, plan, launch, &in, &scratch), not_begun);
  hk_exec_init(&x, plan, launch, in, call->out, memory, scratch);
  rc = collective_begin(c, call, &x, &began);
  if (__builtin_expect(rc == HK_OK, 1)) rc = collective_exec(c, call, &x, began);
  if (__builtin_expect(rc != HK_OK, 0)) {
    rc = hk_run_ended(c, call, &x, -1, rc);
    hk_wire_withdraw(c);
  }
  hk_watch_over(c);
  if (__builtin_expect(c->profiler != NULL, 0)) hk_profile_run_over(c->profiler);
  if (memory != frame) free(memory);
  return rc;
not_begun:
  if (memory != frame) free(memory);
  return hk_run_not_begun(c, call, rc);
}

/* ---- in a group ---- */

static hk_status collective_begin_next(ncclComm_t c, hk_collectives *l) {
  const hk_call *call = l->calls[l->next];
  const hk_plan *plan;
  const hk_launch *launch;
  const void *in;
  void *scratch = NULL;
  HK_OR_RETURN(hk_choose(c, call, &plan, &launch));
  free(l->memory);
  if (!(l->memory = malloc(hk_exec_bytes(plan)))) {
    return HK_FAIL_ERRNO("no memory to run %u lanes", plan->program->nlanes);
  }
  HK_OR_RETURN(collective_memory(call, plan, launch, &in, &scratch));
  hk_exec_init(&l->exec, plan, launch, in, call->out, l->memory, scratch);
  l->running = l->fresh = true;
  l->waited = 0;
  HK_OR_RETURN(collective_begin(c, call, &l->exec, &l->began));
  if (!l->began) l->began = hk_now_ns();
  hk_flight_begin(c, call, plan, true);
  return HK_OK;
}

hk_status hk_collectives_step(ncclComm_t c, hk_collectives *l, const hk_waiter *w, bool *moved) {
  while (l->next < l->n) {
    if (!l->running) HK_OR_RETURN(collective_begin_next(c, l));
    HK_OR_RETURN(hk_exec_step(&l->exec, moved));
    if (c->profiler && hk_exec_computed(&l->exec)) hk_profile_computed(c->profiler);
    if (!hk_exec_done(&l->exec)) return HK_OK;
    l->running = false;
    collective_waited(c, l->calls[l->next++], l->waited + (l->fresh ? 0 : hk_wait_long_ns(w)));
    if (c->profiler) hk_profile_collective_over(c->profiler);
    hk_flight_collective_over(c, true);
    collective_time(c, l->exec.launch, l->began, 0, false);
    hk_watch_over(c);
  }
  return HK_OK;
}
