/* SPDX-License-Identifier: Apache-2.0 */
/* The overlay on the rank's own thread: connects links, waits for frames, and finds out why a peer does not respond. */
#include <stdio.h>
#include <stdlib.h>
#include "dial.h"
#include "internal.h"

enum {
  GONE_NS = 1000 * 1000 * 1000, /* for a connection of a member that has left the parent, which may be under way */
  LOST_NS = 200 * 1000 * 1000   /* for events about other lost links to arrive: all ranks report the same one */
};

/* ---- waits ---- */

/* True if a future member of this child has aborted or destroyed the parent before it joined. That event may arrive a
 * moment before the member's own connection. Under the lock. */
static bool overlay_wait_never_comes(hk_bootstrap *b, const hk_overlay_link *l) {
  if (!b->parent || l->next || l->end != HK_END_CLOSED) return false;
  int rank = b->members[l->rank];
  if (!hk_event_aborted(b->parent, rank) && !hk_bootstrap_left(b->parent, rank)) return false;
  uint64_t now = hk_now_ns();
  if (!b->failures.gone_ns) b->failures.gone_ns = now;
  return hk_ago_ns(now, b->failures.gone_ns) > GONE_NS;
}

/* A lost link of the parent, or a rank's own failure there, fails the parent: a member whose call has not begun will
 * not join. Under the lock. */
static hk_status overlay_wait_parent_failure(const hk_bootstrap *b) {
  hk_status rc = HK_OK;
  hk_bootstrap *p = b->parent;
  const hk_event *e = &p->failures.first_event;
  if (b->after_failure) return HK_OK;
  pthread_mutex_lock(&p->lock);
  if (p->failures.lost_ns && hk_ago_ns(hk_now_ns(), p->failures.lost_ns) >= LOST_NS) {
    bool link = p->failures.first_event.kind == HK_EVENT_LINK;
    rc = HK_FAIL(HK_ERR_REMOTE, "%s",
                 link ? p->failures.first_event.text : "a control connection of the parent was lost");
  } else if (p->failures.broken && e->kind == HK_EVENT_ERROR) {
    rc = HK_FAIL(HK_ERR_REMOTE, "rank %d of the parent communicator failed: %s", e->rank, e->text);
  }
  pthread_mutex_unlock(&p->lock);
  return rc;
}

/* The error that ends every wait for a peer. Under the lock. */
static hk_status overlay_wait_failure(hk_bootstrap *b, const hk_overlay_link *l) {
  static const char *const kinds[HK_EVENT_KINDS] = {"is gone", "aborted", "failed", "disagrees with the others",
                                                    "cannot go on"};
  const hk_event *e = &b->failures.first_event;
  if (b->failures.broken && e->kind == HK_EVENT_LINK) {
    if (hk_ago_ns(hk_now_ns(), b->failures.lost_ns) < LOST_NS) return HK_OK;
    return HK_FAIL(HK_ERR_REMOTE, "%s", e->text);
  }
  if (b->failures.broken && e->kind == HK_EVENT_ERROR && e->rank == b->rank)
    return HK_FAIL((hk_status)e->code, "%s", e->text);
  if (b->failures.broken && e->kind == HK_EVENT_SUSPECT && e->text[0]) return HK_FAIL(HK_ERR_REMOTE, "%s", e->text);
  if (b->failures.broken)
    return HK_FAIL(HK_ERR_REMOTE, "rank %d of %d %s%s%s", e->rank, b->nranks, kinds[e->kind], e->text[0] ? ": " : "",
                   e->text);
  if (b->parent && hk_event_dead(b->parent, b->members[l->rank]))
    return HK_FAIL(HK_ERR_REMOTE, "rank %d of %d, which is rank %d of the parent communicator, is gone", l->rank,
                   b->nranks, b->members[l->rank]);
  if (b->parent) {
    hk_status rc = overlay_wait_parent_failure(b);
    if (rc != HK_OK) return rc;
  }
  if (overlay_wait_never_comes(b, l))
    return HK_FAIL(
        HK_ERR_REMOTE,
        "rank %d of the parent communicator, which was to become rank %d of %d, has aborted or destroyed the "
        "parent: leave it out (ncclCommShrink)",
        b->members[l->rank], l->rank, b->nranks);
  if (l->end == HK_END_LEFT)
    return HK_FAIL(HK_ERR_REMOTE,
                   "rank %d of %d has left the communicator (ncclCommDestroy) while others wait for it; all ranks must "
                   "make the same calls",
                   l->rank, b->nranks);
  return HK_OK;
}

/* The error of a dial that failed: a peer may not answer because of a failure that is known, perhaps this rank's. */
static hk_status overlay_wait_explain(const hk_overlay_link *l, hk_status rc) {
  hk_bootstrap *b = l->b;
  pthread_mutex_lock(&b->lock);
  const bool own = b->failures.broken && b->failures.first_event.rank == b->rank;
  const hk_status known = rc == HK_ERR_REMOTE || (rc != HK_OK && own) ? overlay_wait_failure(b, l) : HK_OK;
  pthread_mutex_unlock(&b->lock);
  return known != HK_OK ? known : rc;
}

/* On the rank's thread: publishes which rank it waits for, for ranks that ask. -1: none. */
static void overlay_wait_note_awaited(hk_bootstrap *b, int rank) {
  /* relaxed: the value is independent */
  atomic_store_explicit(&b->call.awaited, rank, memory_order_relaxed);
  atomic_store_explicit(&b->call.gave_up_ns, 0, memory_order_relaxed); /* as above */
  if (b->parent)
    atomic_store_explicit(&b->parent->call.awaited, rank < 0 ? -1 : b->members[rank], memory_order_relaxed);
}

/* Keeps the wait that this rank has just given up: ranks that wait for this rank give up at about the same time, and
 * ask it for that wait. */
static void overlay_wait_end_awaiting(hk_bootstrap *b, hk_status rc) {
  if (rc == HK_OK) {
    overlay_wait_note_awaited(b, -1);
    return;
  }
  /* relaxed: an answer at this moment may mix two waits */
  atomic_store_explicit(&b->call.gave_up_in, atomic_load_explicit(&b->call.phase, memory_order_relaxed),
                        memory_order_relaxed);
  atomic_store_explicit(&b->call.gave_up_ns, hk_now_ns(), memory_order_relaxed);
}

/* A split that failed leaves messages of its collective here. A peer that is ahead has given up the collective that
 * this rank is in, and its notice of that is on the way. Under the lock. */
static hk_message *overlay_wait_take_message(hk_bootstrap *b, const hk_overlay_link *l, hk_frame_type type,
                                             uint64_t seq) {
  for (hk_message **at = &b->inbox; *at;) {
    hk_message *m = *at;
    bool fits = m->frame.type == type && m->frame.round == l->round && m->towards_next != l->next;
    if (!fits || m->frame.seq > seq) {
      at = &m->next;
      continue;
    }
    *at = m->next;
    if (!m->next) b->inbox_end = at;
    if (m->frame.seq == seq) return m;
    free(m);
  }
  return NULL;
}

hk_status hk_overlay_await(hk_overlay_link *l, hk_frame_type type, uint64_t seq, const hk_wait_env *env,
                           hk_message **out) {
  hk_status rc = HK_OK;
  hk_bootstrap *b = l->b;
  hk_waiter w;
  hk_wait_begin(&w, env);
  pthread_mutex_lock(&b->lock);
  overlay_wait_note_awaited(b, l->rank);
  while (!(*out = overlay_wait_take_message(b, l, type, seq))) {
    HK_TRY(overlay_wait_failure(b, l), out);
    HK_TRY(hk_wait_cond(&w, &b->change, &b->lock), out);
  }
out:
  overlay_wait_end_awaiting(b, rc);
  pthread_mutex_unlock(&b->lock);
  return rc;
}

/* ---- opening links ---- */

static hk_status overlay_wait_open_to_next(hk_overlay_link *l, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  hk_bootstrap *b = l->b;
  int fd;
  if (hk_contact_process(hk_contact_of(b, l->rank)) == b->listener->contact.process) {
    pthread_mutex_lock(&b->lock);
    l->local = true;
    l->end = HK_END_OPEN;
    pthread_mutex_unlock(&b->lock);
    return hk_overlay_send(l, HK_FRAME_OPEN, 0, NULL, 0, NULL, 0);
  }
  hk_hello h = hk_overlay_hello(b, HK_HELLO_OVERLAY, l->rank);
  hk_wait_env until = *env;
  h.round = l->round;
  until.deadline_ns = b->call.deadline_ns; /* the error of a failed connection names its addresses */
  b->call.dialing = true;
  overlay_wait_note_awaited(b, l->rank);
  rc = hk_overlay_dial(b, &h, NULL, &until, "see that rank's output, and check that its host can be reached", &fd);
  overlay_wait_end_awaiting(b, rc);
  b->call.dialing = false;
  HK_OR_RETURN(overlay_wait_explain(l, rc));
  rc = hk_overlay_open(l, fd);
  if (rc == HK_OK) return rc;
  hk_overlay_decline(l, fd);
  hk_boot_close(fd);
  return rc;
}

hk_status hk_overlay_connect(hk_bootstrap *b, int round, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  hk_overlay_link *previous = hk_link_to(b, false, round);
  hk_waiter w;
  HK_TRY(overlay_wait_open_to_next(hk_link_to(b, true, round), env), done);
  hk_wait_begin(&w, env);
  pthread_mutex_lock(&b->lock);
  overlay_wait_note_awaited(b, previous->rank);
  while (previous->end == HK_END_CLOSED) {
    HK_TRY(overlay_wait_failure(b, previous), out);
    HK_TRY(hk_wait_cond(&w, &b->change, &b->lock), out);
  }
out:
  overlay_wait_end_awaiting(b, rc);
  pthread_mutex_unlock(&b->lock);
done:
  return rc;
}
