/* SPDX-License-Identifier: Apache-2.0 */
/* Events: what happened to a rank, sent to all others over the overlay's links. Each rank passes on the first event
 * about a rank and drops the others, so a flood ends after about as many messages as there are links. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "internal.h"

/* A receiver adds words to the text of an event; the result must fit into an error. */
_Static_assert(HK_EVENT_TEXT + 512 <= HK_ERROR_TEXT, "an error that quotes an event holds all of it");
_Static_assert((int)HK_REPLY_TEXT == (int)HK_EVENT_TEXT, "a root's answer holds what an event holds");

void hk_event_encode(uint8_t out[HK_EVENT_BYTES], const hk_event *e) {
  hk_put32(out, (uint32_t)e->kind);
  hk_put32(out + 4, (uint32_t)e->rank);
  hk_put32(out + 8, (uint32_t)e->from);
  hk_put32(out + 12, (uint32_t)e->code);
}

bool hk_event_decode(hk_event *e, const uint8_t *in, size_t bytes, int nranks) {
  if (bytes < HK_EVENT_BYTES || bytes - HK_EVENT_BYTES >= sizeof e->text) return false;
  e->kind = (int32_t)hk_get32(in);
  e->rank = (int32_t)hk_get32(in + 4);
  e->from = (int32_t)hk_get32(in + 8);
  e->code = (int32_t)hk_get32(in + 12);
  memcpy(e->text, in + HK_EVENT_BYTES, bytes - HK_EVENT_BYTES);
  e->text[bytes - HK_EVENT_BYTES] = 0;
  return e->kind >= HK_EVENT_DEAD && e->kind < HK_EVENT_KINDS && e->rank >= 0 && e->rank < nranks && e->from >= 0 &&
         e->from < nranks;
}

bool hk_event_is_notice(const hk_event *e) {
  return e->kind == HK_EVENT_REVOKE || e->kind == HK_EVENT_SHRINK || (e->kind == HK_EVENT_ABORT && e->code != 0);
}

/* True if the lost link takes precedence over those before: all ranks must report the same one. Under the lock. */
static bool event_note_link(hk_bootstrap *b, const hk_event *e) {
  int32_t *best = b->failures.lost;
  if (b->failures.lost_ns && (e->rank > best[0] || (e->rank == best[0] && e->from >= best[1]))) return false;
  if (!b->failures.lost_ns) b->failures.lost_ns = hk_now_ns();
  best[0] = e->rank;
  best[1] = e->from;
  if (b->failures.broken && b->failures.first_event.kind == HK_EVENT_LINK) b->failures.first_event = *e;
  return true;
}

/* True if the event is new: the first of its kind about that rank, a newer shrink, or a lost link that takes
 * precedence. Two verdicts about one rank may differ. */
bool hk_event_note(hk_bootstrap *b, const hk_event *e) {
  int key = e->kind == HK_EVENT_VERDICT ? e->from : e->rank;
  uint64_t bit = (uint64_t)1 << key % 64, *word = &b->failures.seen[e->kind * (b->nranks / 64 + 1) + key / 64];
  pthread_mutex_lock(&b->lock);
  bool first = !(*word & bit);
  *word |= bit;
  if (e->kind == HK_EVENT_SHRINK) {
    first = (uint32_t)e->code > b->failures.shrinks[e->rank];
    if (first) b->failures.shrinks[e->rank] = (uint32_t)e->code;
  }
  if (e->kind == HK_EVENT_LINK) first = event_note_link(b, e);
  if (e->kind == HK_EVENT_DEAD)
    b->failures.dead[e->rank / 64] |= (uint64_t)1 << e->rank % 64; /* even if it is not new: children read it */
  /* The end of a process or rank also ends its links, so a lost link is then not the cause. */
  bool stronger = b->failures.broken && b->failures.first_event.kind == HK_EVENT_LINK && e->kind != HK_EVENT_LINK;
  if (first && (!b->failures.broken || stronger) && !hk_event_is_notice(e)) {
    b->failures.broken = true;
    b->failures.first_event = *e;
    pthread_cond_broadcast(&b->change);
  }
  pthread_mutex_unlock(&b->lock);
  return first;
}

static bool event_bit(hk_bootstrap *b, const uint64_t *words, int rank) {
  pthread_mutex_lock(&b->lock);
  bool set = words[rank / 64] >> rank % 64 & 1;
  pthread_mutex_unlock(&b->lock);
  return set;
}

bool hk_event_dead(hk_bootstrap *b, int rank) { return event_bit(b, b->failures.dead, rank); }

bool hk_event_aborted(hk_bootstrap *b, int rank) {
  return event_bit(b, &b->failures.seen[HK_EVENT_ABORT * (b->nranks / 64 + 1)], rank);
}

static void event_pass_on(hk_bootstrap *b, const hk_event *e, const hk_overlay_link *from) {
  uint8_t bytes[HK_EVENT_BYTES];
  hk_event_encode(bytes, e);
  for (int i = 0; i < 2 * b->rounds; i++) {
    hk_overlay_link *l = &b->links[i];
    if (l != from)
      (void)hk_overlay_send(l, HK_FRAME_EVENT, 0, bytes, sizeof bytes, e->text, strnlen(e->text, sizeof e->text - 1));
  }
}

void hk_event_repeat(hk_bootstrap *b) {
  pthread_mutex_lock(&b->lock);
  bool broken = b->failures.broken;
  hk_event e = b->failures.first_event;
  pthread_mutex_unlock(&b->lock);
  if (broken) event_pass_on(b, &e, NULL);
}

bool hk_bootstrap_left(hk_bootstrap *b, int rank) {
  bool left = false;
  pthread_mutex_lock(&b->lock);
  for (int i = 0; i < 2 * b->rounds; i++) left |= b->links[i].rank == rank && b->links[i].end == HK_END_LEFT;
  pthread_mutex_unlock(&b->lock);
  return left;
}

static void event_tell(const hk_bootstrap *b, const hk_event *e) {
  if (b->o.on_event) b->o.on_event(b->o.arg, e);
  if (b->o.on_failure && !hk_event_is_notice(e)) b->o.on_failure(b->o.arg, e);
}

/* The other ranks of a dead rank's process are dead, too; some of them may have had links only among themselves. */
static void event_infer_deaths(hk_bootstrap *b, const hk_event *dead) {
  pthread_mutex_lock(&b->lock);
  bool known = b->known;
  pthread_mutex_unlock(&b->lock);
  if (!known) return;
  uint64_t process = hk_contact_process(hk_contact_of(b, dead->rank));
  if (process == b->listener->contact.process) return; /* another rank has lost this process, not the reverse */
  for (int r = 0; r < b->nranks; r++) {
    if (r == dead->rank || hk_contact_process(hk_contact_of(b, r)) != process) continue;
    hk_event e = *dead;
    e.rank = r;
    if (!hk_bootstrap_left(b, r) && hk_event_note(b, &e)) event_tell(b, &e);
  }
}

static void event_spread(hk_bootstrap *b, const hk_event *e, const hk_overlay_link *from) {
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "rank %d of %d: event %d about rank %d: %s", b->rank, b->nranks, e->kind,
          e->rank, e->text);
  event_pass_on(b, e, from); /* before the callbacks, so that the other ranks do not wait for them */
  event_tell(b, e);
  if (e->kind == HK_EVENT_DEAD) event_infer_deaths(b, e);
}

void hk_event_received(hk_bootstrap *b, const hk_event *e, const hk_overlay_link *from) {
  if (hk_event_note(b, e)) event_spread(b, e, from);
}

void hk_event_work(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_bootstrap *b = arg;
  for (;;) {
    pthread_mutex_lock(&b->lock);
    hk_message *m = b->events;
    if (m) b->events = m->next;
    if (!b->events) b->events_end = &b->events;
    pthread_mutex_unlock(&b->lock);
    if (!m) return;
    hk_event e;
    const hk_overlay_link *from = hk_link_to(b, !m->towards_next, m->frame.round);
    const bool own = m->from == b->rank;
    if (hk_event_decode(&e, m->data, m->frame.bytes, b->nranks) && (own || hk_event_note(b, &e)))
      event_spread(b, &e, own ? NULL : from); /* this rank's own event goes to all neighbours */
    free(m);
  }
}

void hk_bootstrap_announce(hk_bootstrap *b, const hk_event *event) {
  hk_event e = *event;
  e.from = b->rank;
  if (e.rank < 0 || e.rank >= b->nranks || !hk_event_note(b, &e)) return;
  event_pass_on(b, &e, NULL);
}
