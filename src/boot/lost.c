/* SPDX-License-Identifier: Apache-2.0 */
/* Links of the overlay whose peer may be gone.
 *
 * A link ended without a goodbye: has the peer's process ended, or only the connection? The peer's listener answers
 * that: a process that has ended refuses, one that runs accepts the connection. Without the question both ends of a
 * connection that was reset would report each other as gone.
 *
 * A host became silent while data is unacknowledged: the service thread looks once a second, by the rule of
 * base/silence.h. On an idle link the kernel's keepalives find that (hk_watch_silence). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../base/thread.h"
#include "internal.h"

/* The question ends sooner than the time in which a death must reach all ranks. */
enum { PATIENCE_NS = 700 * 1000 * 1000, NAP_NS = 10 * 1000 * 1000 };

/* An answer may take a while, and the service thread has other links to serve: so a separate thread asks, and reports
 * the event. */
struct hk_lost {
  hk_overlay_link *link;
  pthread_t thread;
  hk_contact contact;
  hk_hello hello;
  hk_event dead; /* to report if the process has ended */
};

/* Any proved answer counts: the rank may have left the communicator meanwhile. A stopped process sends nothing, but
 * its kernel accepts the connection. */
static bool lost_is_there(const hk_lost *q) {
  uint64_t deadline_ns = hk_now_ns() + PATIENCE_NS;
  uint8_t activity[HK_ACTIVITY_BYTES];
  hk_ack ack;
  hk_wait_env env = {.spins = 0};
  hk_waiter w;
  /* A stopped process closes no connection. So a process that has closed one, and then is silent, is ending. */
  bool closes = false;
  hk_wait_begin(&w, &env);
  /* The first address is the preferred one; the others matter only if it cannot be reached from here. */
  for (uint32_t most = 1;; most = HK_DIAL_ADDRS) {
    switch (hk_overlay_probe(q->link->b, &q->contact, &q->hello, most, deadline_ns, &ack, activity)) {
      case HK_PROBE_ANSWERED: return true;
      case HK_PROBE_SILENT: return !closes;
      case HK_PROBE_REFUSED: return false;
      case HK_PROBE_CLOSED: closes = true; break; /* it is ending, or has more connections than it admits */
      case HK_PROBE_UNREACHABLE:
      default: break;
    }
    if (hk_now_ns() >= deadline_ns) return false;
    (void)hk_wait_nap(&w, -1, NAP_NS); /* nothing else ends this wait */
  }
}

/* The text is the same on both ends, so that all ranks report one text whichever end they learn it from. */
static void lost_describe(const hk_lost *q, hk_event *e) {
  int a = q->dead.from, b = q->dead.rank, low = a < b ? a : b, high = a < b ? b : a;
  *e = (hk_event){.kind = HK_EVENT_LINK, .rank = low, .from = high, .code = HK_ERR_REMOTE};
  snprintf(
      e->text, sizeof e->text,
      "the control connection between rank %d and rank %d was lost, though both processes are still there: something "
      "between their hosts closed or reset it (a firewall, NAT or proxy)",
      low, high);
}

static void *lost_ask(void *arg) {
  hk_lost *q = arg;
  hk_event e = q->dead;
  if (lost_is_there(q)) lost_describe(q, &e);
  HK_INFO(HK_SUB_BOOTSTRAP, "rank %d: its connection to rank %d ended, and the process %s", q->dead.from, q->dead.rank,
          e.kind == HK_EVENT_DEAD ? "does not listen" : "is still there");
  hk_event_received(q->link->b, &e, q->link);
  return NULL;
}

bool hk_lost_begin(hk_overlay_link *l, const hk_event *dead) {
  hk_bootstrap *b = l->b;
  hk_lost *q = calloc(1, sizeof *q);
  if (!q) return false;
  *q = (hk_lost){.link = l, .dead = *dead};
  pthread_mutex_lock(&b->lock);
  /* A child has all contacts from the start. */
  bool known = (b->known || b->parent) && !l->lost && hk_contact_decode(&q->contact, hk_contact_of(b, l->rank));
  if (known) {
    q->hello = hk_overlay_hello(b, HK_HELLO_ASK, l->rank);
    known = hk_random(q->hello.nonce, sizeof q->hello.nonce) == HK_OK &&
            hk_thread_start(&q->thread, 0, lost_ask, q) == 0;
  }
  if (known) l->lost = q;
  pthread_mutex_unlock(&b->lock);
  if (!known) free(q);
  return known;
}

void hk_lost_end(hk_bootstrap *b) {
  for (int i = 0; i < 2 * b->rounds; i++) {
    pthread_mutex_lock(&b->lock);
    hk_lost *q = b->links[i].lost;
    b->links[i].lost = NULL;
    pthread_mutex_unlock(&b->lock);
    if (q) pthread_join(q->thread, NULL);
    free(q);
  }
}

/* ---- silence ---- */

enum { LOOK_MS = 1000, PROBES_MOST = 127 /* the most that the kernel accepts */ };

/* Checks a link. True if the host of its peer is gone. *pending: data is unacknowledged. */
static bool lost_look_at(hk_overlay_link *l, unsigned limit_s, uint64_t now, bool *pending) {
  unsigned quiet_s;
  if (l->end != HK_END_OPEN || l->local || !hk_silence_pending(l->fd)) return false;
  *pending = true;
  return hk_silence_broken(&l->silence, l->fd, l->limit_s > limit_s ? l->limit_s : limit_s, now, &quiet_s);
}

static void lost_look(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  hk_bootstrap *b = arg;
  unsigned limit_s = (unsigned)b->o.settings->PEER_TIMEOUT;
  hk_overlay_link *gone = NULL;
  bool pending = false;
  pthread_mutex_lock(&b->lock);
  uint64_t now = hk_now_ns();
  for (int i = 0; i < 2 * b->rounds && !gone; i++)
    if (lost_look_at(&b->links[i], limit_s, now, &pending)) gone = &b->links[i];
  /* Under the lock, so that a frame sent from now on starts the tick again. */
  if (!pending) hk_service_tick(b->o.service, &b->look, 0, NULL, NULL);
  pthread_mutex_unlock(&b->lock);
  if (gone) hk_overlay_died(gone, ETIMEDOUT, NULL);
}

void hk_bootstrap_tolerate(hk_bootstrap *b, int rank, unsigned seconds) {
  unsigned limit_s = (unsigned)b->o.settings->PEER_TIMEOUT, quarter_s = limit_s / 4 ? limit_s / 4 : 1;
  unsigned probes = seconds / quarter_s + 1;
  pthread_mutex_lock(&b->lock);
  for (int i = 0; i < 2 * b->rounds; i++) {
    hk_overlay_link *l = &b->links[i];
    if (l->rank != rank || l->end != HK_END_OPEN || l->local) continue;
    l->limit_s = seconds;
    hk_silence_watch(l->fd, limit_s, probes < PROBES_MOST ? (int)probes : PROBES_MOST);
  }
  pthread_mutex_unlock(&b->lock);
}

void hk_silence_begin(hk_bootstrap *b) {
  if (b->o.service) hk_service_tick(b->o.service, &b->look, LOOK_MS, lost_look, b);
}

void hk_silence_end(hk_bootstrap *b) {
  if (b->o.service) hk_service_tick(b->o.service, &b->look, 0, NULL, NULL);
}
