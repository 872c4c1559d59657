/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "profiler.h"

enum { FRAME_BYTES = 3072 }; /* lanes and pointers of common plans fit on the stack */

/* Words for a peer's slot that does not fit the call, or a link that broke. */
static hk_status explain(ncclComm_t c, const hk_call *call, const hk_exec *x, hk_status rc) {
  char what[160], sizes[96] = "";
  if (rc == HK_ERR_USAGE && hk_watch_mismatch(c) != HK_OK) return rc;
  hk_watch_describe(call, what, sizeof what);
  if (x->bad_bytes != x->expected_bytes) /* of another type or operator they may be equal */
    snprintf(sizes, sizeof sizes, " (its message carries %u bytes, %u were expected)", x->bad_bytes, x->expected_bytes);
  if (rc == HK_ERR_USAGE && x->bad_signature != x->launch->signature)
    return HK_FAIL(
        HK_ERR_USAGE,
        "rank %d is in %s (operation %llu), but rank %d called something else%s: make the same call with the same count, "
        "type, operator and root on all ranks",
        c->rank, what, (unsigned long long)c->order.sequence, x->bad_peer, sizes);
  if (rc == HK_ERR_USAGE)
    return HK_FAIL(HK_ERR_INTERNAL, "rank %d in %s: rank %d sent %u bytes where %u were expected", c->rank, what,
                   x->bad_peer, x->bad_bytes, x->expected_bytes);
  return rc;
}

/* The failure that ended a wait, in words for this caller. */
static hk_status interrupted(ncclComm_t c, const hk_call *call, hk_status rc) {
  char what[160], text[sizeof c->health.text];
  if (atomic_load(&c->health.failure) == 0) {
    /* A rank of this host set the shared word; the news with its words is on its way to our service thread. */
    hk_wait_env patience = {.deadline_ns = hk_now_ns() + 1000000000u};
    hk_waiter w;
    hk_wait_begin(&w, &patience);
    while (c->wait.shared_failure && atomic_load(c->wait.shared_failure) && atomic_load(&c->health.failure) == 0 &&
           hk_now_ns() < patience.deadline_ns)
      if (hk_wait_pause(&w) != HK_OK) break;
  }
  if (atomic_load(&c->health.failure) == 0) return hk_comm_failed(c, rc);
  hk_watch_describe(call, what, sizeof what);
  pthread_mutex_lock(&c->health.lock);
  memcpy(text, c->health.text, sizeof text);
  pthread_mutex_unlock(&c->health.lock);
  return HK_FAIL((hk_status)atomic_load(&c->health.failure), "rank %d of %d, in %s: %s", c->rank, c->nranks, what,
                 text);
}

/* A connection broke.  Its other end may have closed it only because a third rank is gone: the news of that is on its way
 * to our service thread, and says more. */
static hk_status link_broke(ncclComm_t c, const hk_call *call, hk_status rc) {
  if (rc == HK_ERR_REMOTE) {
    hk_wait_env patience = {.failure = &c->health.failure};
    hk_waiter w;
    uint64_t until = hk_now_ns() + 1000000000u;
    hk_wait_begin(&w, &patience);
    while (hk_now_ns() < until && hk_wait_pause(&w) == HK_OK) continue;
  }
  return atomic_load(&c->health.failure) ? interrupted(c, call, rc) : hk_comm_failed(c, rc);
}

/* The operation is under way: counted, and written where peers that wait can see it. */
static inline void begin(ncclComm_t c, const hk_call *call, const hk_exec *x) {
  c->order.sequence++;
  c->order.current = call;
  c->order.exec = x;
  if (c->order.board) hk_watch_post(c, call, x->launch->signature);
  if (__builtin_expect(c->profiler != NULL, 0)) hk_profile_collective(c->profiler, call, x->plan);
}

static hk_status collective(const hk_call *call) {
  _Alignas(16) char frame[FRAME_BYTES];
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  const hk_plan *plan;
  const hk_launch *launch;
  hk_exec x;
  void *memory = frame, *scratch = NULL;
  HK_TRY(hk_choose(c, call, &plan, &launch), out);
  size_t bytes = hk_exec_bytes(plan);
  if (bytes > sizeof frame && !(memory = malloc(bytes))) {
    rc = HK_FAIL_ERRNO("no memory to run %u lanes", plan->program->nlanes);
    goto out;
  }
  if (plan->program->scratch_blocks)
    HK_TRY(hk_choose_scratch(c, hk_exec_scratch_bytes(plan, launch->chunk), &scratch), out);
  hk_exec_init(&x, plan, launch, call->in, call->out, memory, scratch);
  begin(c, call, &x);
  hk_waiter w;
  hk_wait_begin(&w, &c->wait);
  for (;;) {
    bool moved = false;
    rc = hk_exec_step(&x, &moved);
    if (__builtin_expect(rc != HK_OK, 0)) {
      rc = hk_comm_failed(c, explain(c, call, &x, rc));
      break;
    }
    if (hk_exec_done(&x)) break;
    if (c->wiring.any_pump && (rc = hk_wire_progress(c, &moved)) != HK_OK) {
      rc = link_broke(c, call, rc);
      break;
    }
    if (moved)
      hk_wait_progress(&w);
    else if ((rc = hk_wire_pause(c, &w)) != HK_OK) {
      rc = interrupted(c, call, rc);
      break;
    }
  }
  if (__builtin_expect(rc != HK_OK, 0)) hk_wire_withdraw(c);
  c->order.current = NULL;
  c->order.exec = NULL;
  if (__builtin_expect(c->profiler != NULL, 0)) hk_profile_run_over(c->profiler);
out:
  if (memory != frame) free(memory);
  return rc;
}

hk_status hk_run_one(const hk_call *call) {
  if (call->coll == HK_SENDRECV) return hk_run_group(call, 1);
  return collective(call);
}

/* ---- groups ---- */

/* A send or receive under way. */
typedef struct transfer {
  const hk_call *call;
  hk_wired_link *wired;
  uint64_t turn; /* in the link's queue */
  size_t bytes, done;
  bool begun, draining;
  void *event; /* a profiler's */
} transfer;

/* The calls of one communicator in the group. */
typedef struct member {
  ncclComm_t comm;
  const hk_call **collectives;
  size_t ncollectives, next;
  transfer *transfers;
  size_t ntransfers;
  hk_exec exec;
  void *memory;
  bool running;
  hk_status status;
} member;

static hk_status wrong_transfer(const transfer *t, const hk_slot *s) {
  ncclComm_t c = t->call->comm;
  return HK_FAIL(HK_ERR_USAGE,
                 "rank %d receives %zu bytes from rank %d, which sends a message of another size (a piece of %u bytes "
                 "came): make count and type of the ncclSend and the ncclRecv equal",
                 c->rank, t->bytes, t->call->root, s->bytes);
}

static void send_piece(transfer *t, const char *data, size_t left) {
  hk_link *l = &t->wired->link;
  uint32_t flags = 0;
  size_t n = left < l->slot_bytes ? left : l->slot_bytes;
  hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  /* A receiver that reads our memory takes any size; one behind a pump only what fits its slots. */
  size_t whole = l->pumped || left < (1u << 30) ? (l->pumped ? n : left) : 1u << 30;
  if (l->by_ref && left >= HK_REF_MIN_BYTES && hk_link_refer(l, data, whole, &s->ref)) {
    flags = HK_SLOT_REF;
    n = whole;
    t->draining = true;
  } else {
    hk_copy(hk_link_send_buffer(l, n), data, n, 0);
  }
  if (l->pumped) t->draining = true;
  hk_link_publish(l, (uint32_t)n, hk_transfer_signature(t->bytes), flags);
  t->done += n;
}

static hk_status receive_piece(transfer *t, char *data, size_t left) {
  hk_link *l = &t->wired->link;
  const hk_slot *s = hk_link_recv_slot(l);
  if (s->signature != hk_transfer_signature(t->bytes) || s->bytes > left) return wrong_transfer(t, s);
  size_t n = s->bytes;
  if (hk_slot_private(s)) {
    if (hk_link_fetch(l, s, data) != HK_OK) return HK_ERR_REMOTE;
    hk_link_release(l);
    t->done += n;
    return HK_OK;
  }
  const void *from = hk_link_recv_data(l);
  if (!from) return HK_ERR_REMOTE;
  if (from != data) hk_copy(data, from, n, n >= (1u << 22) ? HK_MOVE_STREAM : 0);
  hk_link_release(l);
  t->done += n;
  return HK_OK;
}

/* Tells a network where pieces that are to come belong: those that a pumped link's sender makes. */
static void offer_places(const transfer *t) {
  hk_link *l = &t->wired->link;
  if (!hk_link_places(l, t->bytes < l->slot_bytes ? t->bytes : l->slot_bytes)) return;
  if (l->offered < l->done) l->offered = l->done;
  for (; hk_link_may_offer(l); l->offered++) {
    size_t at = t->done + (size_t)(l->offered - l->done) * l->slot_bytes;
    if (at >= t->bytes) return;
    size_t n = t->bytes - at < l->slot_bytes ? t->bytes - at : l->slot_bytes;
    if (hk_link_places(l, n)) hk_link_offer(l, l->offered, (char *)t->call->out + at, (uint32_t)n);
  }
}

/* Runs the transfer until it must wait; *over when it is complete. */
static hk_status step_transfer(transfer *t, bool *moved, bool *over) {
  hk_wired_link *w = t->wired;
  hk_link *l = &w->link;
  hk_status rc = HK_OK;
  if (w->served != t->turn) return HK_OK; /* an earlier one has the link */
  bool sends = t->call->p2p == HK_P2P_SEND;
  while (!t->begun || t->done < t->bytes) {
    size_t left = t->bytes - t->done;
    if (sends) {
      if (!hk_link_can_send(l, left)) return HK_OK;
      send_piece(t, (const char *)t->call->in + t->done, left);
    } else {
      if (l->pumped) offer_places(t);
      if (!hk_link_can_recv(l)) {
        l->waiting = HK_LINK_WAITS;
        l->want = (char *)t->call->out + t->done;
        l->want_bytes = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
        return HK_OK;
      }
      rc = receive_piece(t, (char *)t->call->out + t->done, left);
      if (rc != HK_OK) return rc;
    }
    t->begun = true; /* an empty message is one empty slot */
    *moved = true;
  }
  if (t->draining && !hk_link_drained(l)) return HK_OK;
  w->served++;
  *over = *moved = true;
  return HK_OK;
}

static hk_status begin_collective(member *m) {
  hk_status rc = HK_OK;
  const hk_call *call = m->collectives[m->next];
  ncclComm_t c = m->comm;
  const hk_plan *plan;
  const hk_launch *launch;
  void *scratch = NULL;
  HK_TRY(hk_choose(c, call, &plan, &launch), out);
  free(m->memory);
  if (!(m->memory = malloc(hk_exec_bytes(plan)))) {
    rc = HK_FAIL_ERRNO("no memory to run %u lanes", plan->program->nlanes);
    goto out;
  }
  if (plan->program->scratch_blocks)
    HK_TRY(hk_choose_scratch(c, hk_exec_scratch_bytes(plan, launch->chunk), &scratch), out);
  hk_exec_init(&m->exec, plan, launch, call->in, call->out, m->memory, scratch);
  begin(c, call, &m->exec);
  m->running = true;
out:
  return rc;
}

static hk_status step_collectives(member *m, bool *moved) {
  hk_status rc = HK_OK;
  ncclComm_t c = m->comm;
  while (m->next < m->ncollectives) {
    if (!m->running) HK_TRY(begin_collective(m), out);
    rc = hk_exec_step(&m->exec, moved);
    if (rc != HK_OK) {
      rc = explain(c, m->collectives[m->next], &m->exec, rc);
      goto out;
    }
    if (!hk_exec_done(&m->exec)) goto out;
    m->running = false;
    m->next++;
    if (c->profiler) hk_profile_collective_over(c->profiler);
    c->order.current = NULL;
    c->order.exec = NULL;
  }
out:
  return rc;
}

static bool member_done(const member *m) {
  return m->status != HK_OK || (m->next == m->ncollectives && m->ntransfers == 0);
}

/* The call that the member waits in, or the first of them. */
static const hk_call *member_waits_in(const member *m) {
  return m->next < m->ncollectives ? m->collectives[m->next] : m->transfers[0].call;
}

static void step_member(member *m, bool *moved) {
  hk_status rc = HK_OK;
  ncclComm_t c = m->comm;
  HK_TRY(step_collectives(m, moved), out);
  for (size_t i = 0; i < m->ntransfers;) {
    bool over = false;
    if (!c->order.current) c->order.current = m->transfers[i].call;
    HK_TRY(step_transfer(&m->transfers[i], moved, &over), out);
    if (over) {
      if (c->order.current == m->transfers[i].call) c->order.current = NULL;
      if (c->profiler) hk_profile_over(c->profiler, m->transfers[i].event);
      m->transfers[i] = m->transfers[--m->ntransfers];
    } else {
      i++;
    }
  }
  if (c->wiring.any_pump && (rc = hk_wire_progress(c, moved)) != HK_OK && !member_done(m))
    rc = link_broke(c, member_waits_in(m), rc);
out:
  if (rc != HK_OK) {
    hk_comm_failed(c, rc);
    m->status = rc;
  }
}

static hk_status open_transfer(const hk_call *call, transfer *t) {
  hk_link_key key = {.peer = (uint16_t)call->root,
                     .kind = call->p2p == HK_P2P_SEND ? HK_LINK_SEND : HK_LINK_RECV,
                     .channel = HK_CHANNEL_P2P};
  *t = (transfer){.call = call, .bytes = call->count * hk_dtype_size((hk_dtype)call->dtype)};
  hk_status rc = hk_wire_link(call->comm, key, &t->wired);
  if (rc == HK_OK) t->turn = t->wired->issued++;
  if (rc == HK_OK && call->comm->profiler) t->event = hk_profile_transfer(call->comm->profiler, call);
  return rc;
}

typedef struct group_run {
  member *members;
  size_t n;
} group_run;

/* The group's wait looks at the health of every communicator in it. */
static hk_status check_group(void *arg, uint64_t waited_ns) {
  group_run *g = arg;
  for (size_t i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    if (member_done(m)) continue;
    hk_status rc = hk_watch(m->comm, waited_ns);
    if (rc != HK_OK) m->status = hk_comm_failed(m->comm, rc);
  }
  return HK_OK;
}

/* Ends the waits of communicators that failed meanwhile (abort, a dead peer). */
static void drop_failed(group_run *g) {
  for (size_t i = 0; i < g->n; i++) {
    member *m = &g->members[i];
    if (member_done(m)) continue;
    int code = atomic_load_explicit(&m->comm->health.failure, memory_order_relaxed); /* looked at again and again */
    if (!code && m->comm->wait.shared_failure)
      code = atomic_load_explicit(m->comm->wait.shared_failure, memory_order_relaxed);
    if (!code) continue;
    m->status = interrupted(m->comm, member_waits_in(m), (hk_status)code);
  }
}

static hk_status run_members(group_run *g) {
  hk_wait_env env = {.check = check_group, .arg = g, .spins = g->members[0].comm->wait.spins};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (;;) {
    bool moved = false, done = true;
    for (size_t i = 0; i < g->n; i++) {
      member *m = &g->members[i];
      if (member_done(m)) continue;
      step_member(m, &moved);
      done = done && member_done(m);
    }
    if (done) break;
    if (moved) {
      hk_wait_progress(&w);
    } else {
      drop_failed(g);
      hk_status rc = g->n == 1 ? hk_wire_pause(g->members[0].comm, &w) : hk_wait_pause(&w);
      if (rc != HK_OK) return rc;
    }
  }
  for (size_t i = 0; i < g->n; i++) {
    g->members[i].comm->order.current = NULL;
    g->members[i].comm->order.exec = NULL;
    if (g->members[i].status != HK_OK) return g->members[i].status;
  }
  return HK_OK;
}

static member *find_member(group_run *g, ncclComm_t c, size_t hint) {
  if (hint < g->n && g->members[hint].comm == c) return &g->members[hint];
  for (size_t i = 0; i < g->n; i++)
    if (g->members[i].comm == c) return &g->members[i];
  g->members[g->n] = (member){.comm = c};
  return &g->members[g->n++];
}

/* Sorts the calls by communicator; `collectives` and `transfers` have room for n each. */
static hk_status distribute(group_run *g, const hk_call *calls, size_t n, const hk_call **collectives,
                            transfer *transfers) {
  size_t hint = 0;
  for (size_t i = 0; i < n; i++) {
    member *m = find_member(g, calls[i].comm, hint);
    hint = (size_t)(m - g->members);
    if (calls[i].coll == HK_SENDRECV)
      m->ntransfers++;
    else
      m->ncollectives++;
  }
  for (size_t k = 0; k < g->n; k++) {
    member *m = &g->members[k];
    m->collectives = collectives;
    m->transfers = transfers;
    collectives += m->ncollectives;
    transfers += m->ntransfers;
    m->ncollectives = m->ntransfers = 0;
  }
  for (size_t i = 0; i < n; i++) {
    member *m = find_member(g, calls[i].comm, hint);
    hint = (size_t)(m - g->members);
    if (calls[i].coll != HK_SENDRECV) {
      m->collectives[m->ncollectives++] = &calls[i];
      continue;
    }
    hk_status rc = open_transfer(&calls[i], &m->transfers[m->ntransfers]);
    if (rc != HK_OK) return hk_comm_failed(m->comm, rc);
    m->ntransfers++;
  }
  return HK_OK;
}

/* What a failure left open ends too. */
static void close_events(member *m) {
  for (size_t i = 0; i < m->ntransfers; i++) hk_profile_over(m->comm->profiler, m->transfers[i].event);
  hk_profile_run_over(m->comm->profiler);
}

hk_status hk_run_group(const hk_call *calls, size_t n) {
  hk_status rc = HK_OK;
  group_run g = {0};
  if (n == 0) return HK_OK;
  g.members = calloc(n, sizeof *g.members);
  const hk_call **collectives = malloc(n * sizeof *collectives);
  transfer *transfers = malloc(n * sizeof *transfers);
  if (!g.members || !collectives || !transfers) {
    rc = HK_FAIL_ERRNO("no memory for a group of %zu calls", n);
    goto out;
  }
  HK_TRY(distribute(&g, calls, n, collectives, transfers), out);
  HK_TRY(run_members(&g), out);
out:
  for (size_t i = 0; g.members && i < g.n; i++) {
    if (rc != HK_OK) hk_wire_withdraw(g.members[i].comm);
    if (g.members[i].comm->profiler) close_events(&g.members[i]);
    free(g.members[i].memory);
  }
  free(g.members);
  free(collectives);
  free(transfers);
  return rc;
}
