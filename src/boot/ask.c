/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a rank what it does. The listener's thread of the rank's process answers, so a rank that computes, waits or
 * hangs answers like an idle one; only a process that is stopped or gone does not. */
#include "dial.h"
#include "internal.h"

enum {
  ASK_TRIES = 3, /* a listener with more connections than it admits closes some without reading the hello */
  ASK_DEATH_NS = 1000 * 1000 * 1000 /* a death reaches all ranks sooner than this, if the overlay is whole */
};

/* Which rank to ask, and in which communicator. */
typedef struct question {
  hk_bootstrap *b; /* the communicator itself, or the parent of a child that is being made */
  int rank;
  const hk_contact *contact;
  uint64_t deadline_ns;
  bool left_means_left; /* the communicator is complete: a rank that is not in it has left it */
  bool *member;
} question;

static hk_presence ask_of_ack(const question *q, hk_ack ack, hk_activity *out) {
  *q->member = ack == HK_ACK_OK;
  if (ack == HK_ACK_OK) return HK_PRESENCE_ANSWERS;
  if (ack == HK_ACK_GONE || q->left_means_left) return HK_PRESENCE_LEFT;
  *out = (hk_activity){.phase = HK_PHASE_INIT, .waits_for = -1, .device = -1}; /* it is about to join */
  return HK_PRESENCE_ANSWERS;
}

/* No process listens at the rank's address. The rank's process has ended, which the overlay reports within a moment,
 * or it runs on without a communicator. */
static hk_presence ask_without_listener(const question *q) {
  hk_bootstrap *b = q->b;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  uint64_t news = hk_now_ns() + ASK_DEATH_NS, until = news < q->deadline_ns ? news : q->deadline_ns;
  if (!q->left_means_left) return HK_PRESENCE_GONE;
  hk_wait_begin(&w, &env);
  pthread_mutex_lock(&b->lock);
  while (!(b->failures.dead[q->rank / 64] >> q->rank % 64 & 1) && hk_now_ns() < until)
    (void)hk_wait_cond(&w, &b->change, &b->lock);
  pthread_mutex_unlock(&b->lock);
  return hk_event_dead(b, q->rank) ? HK_PRESENCE_GONE : HK_PRESENCE_LEFT;
}

static hk_presence ask_by_connection(const question *q, hk_activity *out) {
  hk_bootstrap *b = q->b;
  hk_hello h = hk_overlay_hello(b, HK_HELLO_ASK, q->rank);
  uint8_t bytes[HK_ACTIVITY_BYTES];
  hk_ack ack = HK_ACK_UNKNOWN;
  hk_probe probe = HK_PROBE_CLOSED;
  if (hk_random(h.nonce, sizeof h.nonce) != HK_OK) return HK_PRESENCE_UNKNOWN;
  for (int i = 0; i < ASK_TRIES && probe == HK_PROBE_CLOSED && hk_now_ns() < q->deadline_ns; i++)
    probe = hk_overlay_probe(b, q->contact, &h, HK_DIAL_ADDRS, q->deadline_ns, &ack, bytes);
  switch (probe) {
    case HK_PROBE_ANSWERED:
      if (hk_activity_decode(out, bytes, h.nonce, b->family->secret)) return ask_of_ack(q, ack, out);
      return HK_PRESENCE_UNKNOWN;
    case HK_PROBE_SILENT: return HK_PRESENCE_STOPPED;
    case HK_PROBE_CLOSED:
    case HK_PROBE_REFUSED: return ask_without_listener(q);
    case HK_PROBE_UNREACHABLE:
    default: return HK_PRESENCE_UNREACHABLE;
  }
}

static hk_presence ask_here(const question *q, hk_activity *out) {
  hk_listener_lock();
  hk_ack ack = hk_member_activity(q->b->listener, q->b->family, q->b->comm, q->rank, out);
  hk_listener_unlock();
  return ask_of_ack(q, ack, out);
}

/* *member: the rank is in the communicator. */
static hk_presence ask_one(hk_bootstrap *b, int rank, uint64_t deadline_ns, bool known, hk_activity *out,
                           bool *member) {
  hk_contact c;
  question q = {
      .b = b, .rank = rank, .contact = &c, .deadline_ns = deadline_ns, .left_means_left = known, .member = member};
  *out = (hk_activity){.waits_for = -1, .device = -1};
  *member = false;
  if (hk_event_dead(b, rank)) return HK_PRESENCE_GONE;
  if (hk_bootstrap_left(b, rank)) return HK_PRESENCE_LEFT;
  if (rank == b->rank) return ask_here(&q, out);
  if (!hk_contact_decode(&c, hk_contact_of(b, rank))) return HK_PRESENCE_UNKNOWN;
  return c.process == b->listener->contact.process ? ask_here(&q, out) : ask_by_connection(&q, out);
}

/* For a rank of a child during its creation: asks for its activity in the child, or in the parent if it has not begun
 * to create the child. The parent always knows the rank. */
static hk_presence ask_of_child(hk_bootstrap *b, hk_bootstrap *parent, int rank, uint64_t deadline_ns,
                                hk_activity *out) {
  bool member;
  hk_presence p = ask_one(b, rank, deadline_ns, false, out, &member);
  if (member || p == HK_PRESENCE_STOPPED || p == HK_PRESENCE_UNREACHABLE) return p;
  p = ask_one(parent, b->members[rank], deadline_ns, true, out, &member);
  int waits_for = b->nranks; /* in the child's numbers */
  while (--waits_for >= 0 && b->members[waits_for] != out->waits_for) continue;
  out->waits_for = waits_for;
  return p;
}

hk_presence hk_bootstrap_ask(hk_bootstrap *b, int rank, uint64_t patience_ns, hk_activity *out) {
  uint64_t deadline_ns = hk_now_ns() + patience_ns;
  bool member;
  pthread_mutex_lock(&b->lock);
  hk_bootstrap *parent = b->parent; /* set only while its thread, which is then this one, is inside the join */
  bool known = b->known;
  pthread_mutex_unlock(&b->lock);
  if (rank < 0 || rank >= b->nranks) {
    *out = (hk_activity){.waits_for = -1, .device = -1};
    return HK_PRESENCE_UNKNOWN;
  }
  return parent ? ask_of_child(b, parent, rank, deadline_ns, out) : ask_one(b, rank, deadline_ns, known, out, &member);
}
