/* SPDX-License-Identifier: Apache-2.0 */
/* The failure of a communicator: what ends it, and the text that all ranks give (failure.h, precedence.h). */
#include "failure.h"
#include <stdio.h>
#include "../base/log.h"
#include "../boot/bootstrap.h"
#include "../core/call.h"
#include "flight.h"
#include "precedence.h"

/* Time for the event of a failure that another rank of this host has seen. */
static const uint64_t failure_event_ns = 1000000000u;

/* Under the lock: ends all waits. */
static void failure_stop_waits(ncclComm_t c, hk_status code) {
  atomic_store(&c->health.failure, (int)code);
  if (c->wait.shared_failure) atomic_store(c->wait.shared_failure, (int)code);
  /* relaxed: the value is independent */
  if (c->health.stop_kernels) __atomic_store_n(c->health.stop_kernels, 1, __ATOMIC_RELAXED);
}

bool hk_comm_fail(ncclComm_t c, hk_status code, const char *text) {
  hk_health *h = &c->health;
  pthread_mutex_lock(&h->lock);
  bool first = atomic_load(&h->failure) == 0;
  if (first) {
    /* The text is written before the code is published: a thread that sees the failure may read its text. */
    snprintf(h->text, sizeof h->text, "%s", text);
    atomic_store(&h->settled, true);
    failure_stop_waits(c, code);
  }
  pthread_mutex_unlock(&h->lock);
  if (first) hk_flight_aborted(c);
  return first;
}

void hk_failure_record(ncclComm_t c, const hk_event *e) {
  hk_health *h = &c->health;
  bool own = e->kind == HK_EVENT_ERROR && e->rank == c->rank;
  uint64_t at = hk_now_ns() +
                (own ? 0 : hk_failure_collect_ns(e)); /* no event is stronger than this rank's own failure */
  pthread_mutex_lock(&h->lock);
  if (!atomic_load(&h->settled)) {
    if (!h->settle_ns || own || hk_failure_precedes(e, h->cause)) *h->cause = *e;
    if (!h->settle_ns || at < h->settle_ns) h->settle_ns = at;
    failure_stop_waits(c, hk_failure_code(h->cause, c->rank));
  }
  pthread_mutex_unlock(&h->lock);
  hk_flight_await(c);
}

void hk_failure_received(void *comm, const hk_event *e) {
  ncclComm_t c = comm;
  char text[sizeof c->health.text];
  hk_failure_text(e, c->rank, text, sizeof text);
  if (e->kind == HK_EVENT_SUSPECT || atomic_load(&c->health.settled)) /* usually a consequence of another event */
    HK_INFO(HK_SUB_INIT, "rank %d of %d: rank %d reports: %s", c->rank, c->nranks, e->from, text);
  else
    HK_WARN("rank %d of %d: %s", c->rank, c->nranks, text);
  hk_failure_record(c, e);
}

void hk_failure_raise(ncclComm_t c, hk_event_kind kind, int rank, hk_status code, const char *text) {
  hk_event e = {.kind = kind, .rank = rank, .from = c->rank, .code = (int32_t)code};
  snprintf(e.text, sizeof e.text, "%s", text);
  hk_failure_record(c, &e);
  if (c->bootstrap) hk_bootstrap_announce(c->bootstrap, &e);
}

hk_status hk_failure_settled(ncclComm_t c) {
  hk_health *h = &c->health;
  if (atomic_load(&h->failure) == 0) return HK_OK;
  pthread_mutex_lock(&h->lock);
  if (!atomic_load(&h->settled) && h->settle_ns && hk_now_ns() >= h->settle_ns) {
    hk_failure_text(h->cause, c->rank, h->text, sizeof h->text);
    atomic_store(&h->settled, true);
  }
  bool settled = atomic_load(&h->settled);
  pthread_mutex_unlock(&h->lock);
  return settled ? (hk_status)atomic_load(&h->failure) : HK_OK;
}

hk_status hk_failure_resolve(ncclComm_t c, const char *where) {
  hk_status rc;
  hk_wait_env patience = {.spins = 0};
  hk_waiter w;
  uint64_t until = hk_now_ns() + failure_event_ns;
  hk_wait_begin(&w, &patience);
  while ((rc = hk_failure_settled(c)) == HK_OK) {
    /* Another rank of this host set the shared word; the event that it saw is on the way to our service thread. */
    if (atomic_load(&c->health.failure) == 0 && hk_now_ns() >= until)
      hk_failure_raise(c, HK_EVENT_SUSPECT, c->rank, HK_ERR_REMOTE,
                       "a rank of this host reported a failure in shared memory, but what it was did not arrive");
    (void)hk_wait_pause(&w);
  }
  hk_flight_failed(c);
  return HK_FAIL(rc, "rank %d of %d%s%s: %s", c->rank, c->nranks, where ? ", in " : "", where ? where : "",
                 c->health.text);
}

hk_status hk_comm_failed(ncclComm_t c, hk_status rc) {
  if (rc == HK_OK) return rc;
  /* else `rc` may be another rank's failure, and the thread's error may be a different one */
  if (!hk_comm_failing(c)) {
    char text[HK_EVENT_TEXT];
    snprintf(text, sizeof text, "%s", hk_last_error());
    hk_failure_raise(c, rc == HK_ERR_REMOTE ? HK_EVENT_SUSPECT : HK_EVENT_ERROR, c->rank, rc, text);
    if (rc != HK_ERR_REMOTE) { /* the thread's error already has the right text */
      rc = hk_failure_settled(c);
      hk_flight_failed(c);
      return rc;
    }
  }
  return hk_failure_resolve(c, NULL);
}

/* Consecutive calls of one communicator count once. */
void hk_calls_mark_inside(const hk_call *calls, size_t n, int by) {
  for (size_t i = 0; i < n; i++)
    if (i == 0 || calls[i].comm != calls[i - 1].comm) atomic_fetch_add(&calls[i].comm->health.inside, by);
}

void hk_calls_fail(const hk_call *calls, size_t n, hk_status rc) {
  if (!hk_lacks(rc)) return;
  hk_calls_mark_inside(calls, n, 1);
  for (size_t i = 0; i < n; i++) {
    ncclComm_t c = calls[i].comm;
    if (atomic_load(&c->magic) == HK_COMM_LIVE && atomic_load(&c->health.closing) == HK_CLOSING_NO &&
        atomic_load(&c->health.failure) == 0)
      (void)hk_comm_failed(c, rc);
  }
  hk_calls_mark_inside(calls, n, -1);
}
