/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: finds out why an awaited peer does not make progress. */
#include "watch.h"
#include <stdlib.h>
#include "../base/param.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../boot/inquiry.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "failure.h"
#include "mismatch.h"

enum { WATCH_AWAITED = HK_FOUND_MOST / 2, WATCH_ASKED = 64 }; /* awaited ranks that are asked; ranks in all */
static const uint64_t watch_first_ask_ns = 200 * 1000000u, watch_patience_ns = 1000 * 1000000u;

/* ---- inquiries ---- */

static hk_presence watch_ask(void *comm, int rank, uint64_t patience, hk_activity *out) {
  return hk_watch_ask(comm, rank, patience, out);
}

static hk_inquiry watch_inquiry(ncclComm_t c, uint64_t operation, uint64_t patience) {
  return (hk_inquiry){.ask = watch_ask,
                      .arg = c,
                      .rank = c->rank,
                      .nranks = c->nranks,
                      .phase = HK_PHASE_OPERATION,
                      .sequence = operation,
                      .patience_ns = patience};
}

/* An answer may take a while, and the waiting thread must make network progress meanwhile. So a thread of its own
 * asks. */
struct hk_watch_inquiry {
  hk_inquiry q;
  pthread_t thread;
  _Atomic(bool) done;
};

static void *watch_inquire(void *arg) {
  struct hk_watch_inquiry *i = arg;
  hk_inquiry_follow(&i->q);
  atomic_store(&i->done, true);
  return NULL;
}

/* Nothing is lost if it fails: the next report tries again. */
static void watch_begin_inquiry(ncclComm_t c, const int *awaited, int n, bool chain) {
  struct hk_watch_inquiry *i = n ? calloc(1, sizeof *i) : NULL;
  if (!i) return;
  i->q = watch_inquiry(c, c->order.sequence, watch_patience_ns);
  i->q.chain = chain;
  for (int k = 0; k < n && k < WATCH_AWAITED; k++) hk_inquiry_add(&i->q, awaited[k]);
  if (hk_thread_start(&i->thread, 0, watch_inquire, i) == 0)
    c->order.inquiry = i;
  else
    free(i);
}

static void watch_drop_inquiry(ncclComm_t c) {
  if (!c->order.inquiry) return;
  pthread_join(c->order.inquiry->thread, NULL);
  free(c->order.inquiry);
  c->order.inquiry = NULL;
}

void hk_watch_end(ncclComm_t c) {
  watch_drop_inquiry(c);
  hk_watch_show_end(c);
}

/* ---- reports ---- */

/* True if the rank made another call as this operation. */
static bool watch_differs(ncclComm_t c, const hk_inquiry *q, const hk_found *f) {
  uint32_t theirs = f->presence == HK_PRESENCE_ANSWERS ? hk_watch_signature(&f->activity, q->sequence) : 0;
  return theirs && hk_watch_own_signature(c) && theirs != hk_watch_own_signature(c);
}

static hk_status watch_report_wait(ncclComm_t c, const hk_call *call, const hk_inquiry *q, uint64_t waited_ns) {
  char what[160], operation[200], text[HK_EVENT_TEXT];
  hk_watch_describe(call, what, sizeof what);
  snprintf(operation, sizeof operation, "%s, operation %llu,", what, (unsigned long long)c->order.sequence);
  hk_long_wait w = {c->rank, c->nranks, waited_ns, hk_bootstrap_comm_id(c->bootstrap), c->options.name, operation};
  hk_inquiry_report(q, &w, text, sizeof text);
  if (hk_inquiry_give(c->settings, text, "") == HK_OK) return HK_OK;
  int blocker = hk_inquiry_blocker(q);
  hk_failure_raise(c, HK_EVENT_VERDICT, blocker >= 0 ? blocker : c->rank, HK_ERR_REMOTE, text);
  return HK_ERR_REMOTE;
}

/* Uses the answers once the inquiry's thread has all. */
static hk_status watch_use_answers(ncclComm_t c, const hk_call *call, uint64_t waited_ns) {
  hk_status rc = HK_OK;
  if (!c->order.inquiry || !atomic_load(&c->order.inquiry->done)) return HK_OK;
  const hk_inquiry *q = &c->order.inquiry->q;
  if (q->sequence == c->order.sequence) {
    for (int i = 0; i < q->n && rc == HK_OK; i++)
      if (watch_differs(c, q, &q->at[i])) rc = hk_mismatch_found(c, call, q->at[i].rank);
    if (rc == HK_OK && q->chain) rc = watch_report_wait(c, call, q, waited_ns);
  }
  watch_drop_inquiry(c);
  return rc;
}

static bool watch_not_in_step(const hk_inquiry *q, const hk_found *f) {
  return f->presence != HK_PRESENCE_ANSWERS || f->activity.sequence != q->sequence;
}

hk_status hk_watch_launch(ncclComm_t c, const hk_long_launch *l) {
  char newest[160] = "a send or receive", others[800], text[HK_ERROR_TEXT - 256];
  hk_activity here;
  hk_watch_report(c, &here); /* from any thread, unlike c->order */
  hk_call call = hk_watch_call(&here);
  hk_inquiry q = watch_inquiry(c, here.sequence, watch_patience_ns / 4);
  q.blocks = watch_not_in_step;
  hk_inquiry_ask_all(&q, WATCH_ASKED);
  hk_inquiry_describe(&q, others, sizeof others);
  if (here.sequence) hk_watch_describe(&call, newest, sizeof newest);
  snprintf(text, sizeof text, "rank %d of %d: its last call on GPU %d (%s%s) has not ended for %llu s%s%s%s%s", c->rank,
           c->nranks, c->device, newest, l->captured ? "; or a replay of a graph that it is in" : "",
           (unsigned long long)(l->waited_ns / 1000000000u),
           l->peers[0] ? "; it waits for data over the network from rank " : "", l->peers, others, l->links);
  return hk_inquiry_give(c->settings, text, ": have all ranks made it, or is other work in its stream?");
}

static void watch_raise_left(ncclComm_t c, const hk_call *call, int left) {
  char what[160], text[HK_EVENT_TEXT];
  hk_watch_describe(call, what, sizeof what);
  snprintf(text, sizeof text,
           "rank %d has left the communicator (ncclCommDestroy) while rank %d of %d waits for it in %s, operation "
           "%llu: make the same calls on all ranks before one of them destroys it",
           left, c->rank, c->nranks, what, (unsigned long long)c->order.sequence);
  hk_failure_raise(c, HK_EVENT_VERDICT, left, HK_ERR_REMOTE, text);
}

bool hk_watch_left(ncclComm_t c, const hk_call *call, int rank) {
  hk_activity a;
  if (hk_bootstrap_ask(c->bootstrap, rank, watch_patience_ns, &a) != HK_PRESENCE_LEFT) return false;
  watch_raise_left(c, call, rank);
  return true;
}

/* A rank that has destroyed its communicator makes no more calls. Its writes to shared memory are visible once its
 * goodbye is visible. So if a wait continues from one check to the next, the awaited data was never written. Data over
 * a network may arrive later, but not later than the time after which a silent host counts as dead. */
static hk_status watch_find_left(ncclComm_t c, const hk_call *call, const int *peers, int n, uint64_t waited_ns) {
  int left = -1;
  for (int i = 0; i < n && left < 0; i++)
    if (hk_bootstrap_left(c->bootstrap, peers[i])) left = peers[i];
  if (left < 0) return HK_OK;
  uint64_t now = hk_now_ns(), patience = 0;
  if (now - waited_ns > c->order.left_seen_ns) c->order.left_seen_ns = now; /* the first look of this wait */
  if (hk_wire_proxied(c, left)) patience = (uint64_t)c->settings->PEER_TIMEOUT * 1000000000u;
  if (now <= c->order.left_seen_ns + patience) return HK_OK;
  watch_raise_left(c, call, left);
  return HK_ERR_REMOTE;
}

/* True if it is time to ask the awaited ranks. *chain: the answers are for a report. */
static bool watch_is_due(ncclComm_t c, const int *peers, int n, uint64_t waited_ns, bool *chain) {
  hk_comm_order *o = &c->order;
  *chain = hk_inquiry_due(&o->reported_ns, waited_ns, (uint64_t)c->settings->WATCHDOG * 1000000000u, 0);
  if (*chain) return true;
  /* Once in each wait, because a peer without a status page on this host may be in another call. */
  if (waited_ns < watch_first_ask_ns || o->asked_in == o->sequence || !o->exec) return false;
  bool far = false;
  for (int i = 0; i < n; i++) far = far || !hk_wire_status_page(c, peers[i]);
  o->asked_in = o->sequence;
  return far;
}

hk_status hk_watch(void *comm, uint64_t waited_ns) {
  ncclComm_t c = comm;
  const hk_call *call = c->order.current;
  int peers[64]; /* with more readers of a multicast, those that only lag are left out first */
  bool chain;
  hk_status reachable = c->bootstrap ? hk_bootstrap_check(c->bootstrap) : HK_OK;
  if (reachable != HK_OK || !call) return reachable;
  int n = hk_watch_awaited(c, peers, (int)HK_ARRAY_LENGTH(peers));
  hk_watch_show_wait(c, n ? peers[0] : -1, waited_ns);
  HK_OR_RETURN(hk_mismatch_look(c));
  hk_status rc = hk_bootstrap_check_listener(c->bootstrap);
  if (rc == HK_OK) rc = watch_find_left(c, call, peers, n, waited_ns);
  if (rc == HK_OK) rc = watch_use_answers(c, call, waited_ns);
  if (rc == HK_OK && !c->order.inquiry && watch_is_due(c, peers, n, waited_ns, &chain))
    watch_begin_inquiry(c, peers, n, chain);
  return rc;
}
