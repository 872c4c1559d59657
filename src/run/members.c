/* SPDX-License-Identifier: Apache-2.0 */
/* Runs groups of calls on host memory: the calls of each communicator, in turn, until all are over. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "../failure/watch.h"
#include "collective.h"
#include "profiler.h"
#include "run.h"
#include "transfer.h"

enum { FRAME_BYTES = 3072 }; /* small groups fit on the stack */

/* The calls of one communicator in the group. */
typedef struct member {
  ncclComm_t comm;
  hk_transfer *transfers;
  size_t ntransfers;
  hk_one_sided one_sided;
  int peer; /* of the transfer that is stepped; -1: none */
  hk_status status;
  hk_collectives collectives;
} member;

/* Ends the member's part of the group with the status that all ranks agree on after `rc`. */
static void members_ended(member *m, hk_status rc) {
  const hk_call *call = m->collectives.next < m->collectives.n ? m->collectives.calls[m->collectives.next]
                        : m->ntransfers                        ? m->transfers[0].call
                        : m->one_sided.nputs                   ? m->one_sided.puts[0]
                                                               : m->one_sided.waits[0];
  m->status = hk_run_ended(m->comm, call, m->collectives.running ? &m->collectives.exec : NULL, m->peer, rc);
}

static bool members_done(const member *m) {
  return m->status != HK_OK || (m->collectives.next == m->collectives.n && m->ntransfers == 0 &&
                                m->one_sided.nputs == 0 && m->one_sided.nwaits == 0);
}

/* Steps each of the *n transfers, and removes completed ones. A transfer that fails is moved to index 0 for the report,
 * and *peer is set to its other rank. */
static inline hk_status members_step_transfers(ncclComm_t c, hk_transfer *t, size_t *n, bool *moved, int *peer) {
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
      hk_watch_transfer_waits(c, t[i++].call);
      continue;
    }
    hk_watch_transfer_over(c, t[i].call);
    if (__builtin_expect(c->profiler != NULL, 0)) hk_profile_transfer_over(c->profiler, t[i].event, t[i].kernel);
    if (i != --*n) t[i] = t[*n];
  }
  return HK_OK;
}

static void members_step(member *m, const hk_waiter *w, bool *moved) {
  hk_status rc = HK_OK;
  ncclComm_t c = m->comm;
  if (m->one_sided.nputs || m->one_sided.nwaits) HK_TRY(hk_one_sided_step(c, &m->one_sided, moved, &m->peer), out);
  if (m->collectives.next < m->collectives.n) HK_TRY(hk_collectives_step(c, &m->collectives, w, moved), out);
  HK_TRY(members_step_transfers(c, m->transfers, &m->ntransfers, moved, &m->peer), out);
  if (c->links->any_pump && !members_done(m)) rc = hk_wire_progress(c, moved);
out:
  if (rc != HK_OK) members_ended(m, rc);
}

typedef struct members_group {
  member *members;
  size_t n;
  bool running;
} members_group;

/* The check of the group's wait: checks the health of every communicator in the group. */
static hk_status members_check(void *arg, uint64_t waited_ns) {
  members_group *g = arg;
  for (size_t i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    if (members_done(m)) continue;
    hk_status rc = hk_watch(m->comm, waited_ns);
    if (rc != HK_OK) members_ended(m, rc);
  }
  return HK_OK;
}

/* Ends the waits of communicators that have failed since (abort, a dead peer). */
static void members_drop_failed(members_group *g) {
  for (size_t i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    if (members_done(m)) continue;
    int code = atomic_load_explicit(&m->comm->health.failure, memory_order_relaxed); /* read again at each poll */
    if (!code && m->comm->wait.shared_failure)
      code = atomic_load_explicit(m->comm->wait.shared_failure, memory_order_relaxed);
    if (!code) continue;
    members_ended(m, (hk_status)code);
  }
}

/* The group's wait is over: it was one of the collectives that run. */
static inline void members_progress(members_group *g, hk_waiter *w) {
  const uint64_t waited = hk_wait_long_ns(w);
  for (size_t i = 0; i < g->n; i++) {
    g->members[i].collectives.waited += g->members[i].collectives.fresh ? 0 : waited;
    g->members[i].collectives.fresh = false;
  }
  hk_wait_progress(w);
}

static hk_status members_run(members_group *g) {
  const hk_wait_env *own = &g->members[0].comm->wait;
  hk_wait_env env = {.check = members_check,
                     .arg = g,
                     .spins = own->spins,
                     .patience_ns = own->patience_ns,
                     .crowded_until_ns = own->crowded_until_ns};
  hk_status rc = HK_OK;
  hk_waiter w;
  g->running = true;
  hk_wait_begin(&w, &env);
  for (;;) {
    bool moved = false, done = true;
    for (size_t i = 0; i < g->n; i++) {
      member *m = &g->members[i];
      if (members_done(m)) continue;
      members_step(m, &w, &moved);
      done = done && members_done(m);
    }
    if (done) break;
    if (moved) {
      members_progress(g, &w);
    } else {
      members_drop_failed(g);
      HK_OR_RETURN(g->n == 1 ? hk_wire_pause(g->members[0].comm, &w) : hk_wait_pause(&w));
    }
  }
  for (size_t i = 0; i < g->n; i++) {
    hk_watch_all_over(g->members[i].comm);
    if (rc == HK_OK) rc = g->members[i].status;
  }
  return rc;
}

/* `last`: the member of the previous call, or NULL. */
static inline member *members_find(members_group *g, ncclComm_t c, member *last) {
  if (last && last->comm == c) return last;
  for (size_t i = 0; i < g->n; i++)
    if (g->members[i].comm == c) return &g->members[i];
  member *m = &g->members[g->n++];
  memset(m, 0, offsetof(member, collectives.exec)); /* an execution is begun before it is used */
  m->comm = c;
  m->peer = -1;
  return m;
}

static size_t *members_count_of(member *m, const hk_call *call) {
  if (call->coll != HK_SENDRECV) return &m->collectives.n;
  return call->p2p == HK_P2P_PUT    ? &m->one_sided.nputs
         : call->p2p == HK_P2P_WAIT ? &m->one_sided.nwaits
                                    : &m->ntransfers;
}

/* Sorts the calls by communicator and kind; `others` and `transfers` have room for n each. */
static hk_status members_distribute(members_group *g, const hk_call *calls, size_t n, const hk_call **others,
                                    hk_transfer *transfers) {
  member *m = NULL;
  for (size_t i = 0; i < n; i++) {
    m = members_find(g, calls[i].comm, m);
    *members_count_of(m, &calls[i]) += 1;
  }
  for (size_t k = 0; k < g->n; k++) {
    m = &g->members[k];
    m->collectives.calls = others;
    others += m->collectives.n;
    m->one_sided.puts = others;
    others += m->one_sided.nputs;
    m->one_sided.waits = others;
    others += m->one_sided.nwaits;
    m->transfers = transfers;
    transfers += m->ntransfers;
    m->collectives.n = m->ntransfers = m->one_sided.nputs = m->one_sided.nwaits = 0;
  }
  for (size_t i = 0; i < n; i++) {
    m = members_find(g, calls[i].comm, m);
    size_t *of_kind = members_count_of(m, &calls[i]);
    if (of_kind != &m->ntransfers) {
      const hk_call **list = of_kind == &m->collectives.n     ? m->collectives.calls
                             : of_kind == &m->one_sided.nputs ? m->one_sided.puts
                                                              : m->one_sided.waits;
      list[(*of_kind)++] = &calls[i];
      continue;
    }
    hk_status rc = hk_transfer_open(&calls[i], &m->transfers[m->ntransfers]);
    if (rc != HK_OK) return hk_run_ended(m->comm, &calls[i], NULL, calls[i].root, rc);
    hk_transfer *t = &m->transfers[m->ntransfers++];
    if (m->comm->profiler) t->event = hk_profile_transfer(m->comm->profiler, &calls[i], &t->kernel);
  }
  return HK_OK;
}

/* Ends the profiler's events that a failure left open. */
static void members_close_events(member *m) {
  for (size_t i = 0; i < m->ntransfers; i++)
    hk_profile_transfer_over(m->comm->profiler, m->transfers[i].event, m->transfers[i].kernel);
  hk_profile_run_over(m->comm->profiler);
}

/* ---- a few sends and receives of one communicator: without members ---- */

enum { FEW = 8 };
static inline bool members_few_transfers(const hk_call *calls, size_t n) {
  if (n > FEW || calls->comm->profiler) return false;
  for (size_t i = 0; i < n; i++)
    if (calls[i].coll != HK_SENDRECV || hk_call_is_rma(&calls[i]) || calls[i].comm != calls->comm) return false;
  return true;
}

static hk_status members_transfers(const hk_call *calls, size_t n) {
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
    HK_TRY(members_step_transfers(c, open, &left, &moved, &peer), failed);
    if (!left) break;
    if (c->links->any_pump) HK_TRY(hk_wire_progress(c, &moved), failed);
    if (moved)
      hk_wait_progress(&w);
    else
      HK_TRY(hk_wire_pause(c, &w), failed);
  }
  hk_watch_transfers_over(c);
  c->order.direct++;
  return HK_OK;
failed:
  rc = hk_run_ended(c, left ? open[0].call : calls, NULL, left ? peer : calls->root, rc);
  hk_watch_transfers_over(c);
  hk_wire_withdraw(c);
  return rc;
}

hk_status hk_run_group(const hk_call *calls, size_t n) {
  _Alignas(16) char frame[FRAME_BYTES];
  hk_status rc = HK_OK;
  if (n == 0) return HK_OK;
  if (members_few_transfers(calls, n)) return members_transfers(calls, n);
  size_t bytes = n * (sizeof(member) + sizeof(hk_transfer) + sizeof(hk_call *));
  members_group g = {.members = bytes <= sizeof frame ? (void *)frame : malloc(bytes)};
  if (!g.members) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a group of %zu calls", n), out);
  hk_transfer *transfers = (hk_transfer *)(g.members + n);
  HK_TRY(members_distribute(&g, calls, n, (const hk_call **)(transfers + n), transfers), out);
  HK_TRY(members_run(&g), out);
out:
  /* their calls were not begun, so their other ranks would wait */
  for (size_t i = 0; i < n && rc != HK_OK && !g.running; i++)
    if (rc != HK_ERR_ARGUMENT && rc != HK_ERR_USAGE) (void)hk_comm_failed(calls[i].comm, rc);
  for (size_t i = 0; i < g.n; i++) {
    if (rc != HK_OK) hk_wire_withdraw(g.members[i].comm);
    if (g.members[i].comm->profiler) members_close_events(&g.members[i]);
    free(g.members[i].collectives.memory);
  }
  if (g.members != (void *)frame) free(g.members);
  return rc;
}
