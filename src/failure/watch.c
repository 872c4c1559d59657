/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: publishes this rank's activity, and finds out why an awaited peer does not make progress. */
#include "watch.h"
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../boot/inquiry.h"
#include "../boot/process.h"
#include "../kernels/exec.h"
#include "../transport/peer.h"
#include "../transport/status_page.h"
#include "../transport/transport.h"
#include "failure.h"
#include "flight.h"
#include "flight_ring.h"
#include "mismatch.h"
#include "publish.h"

enum { WATCH_AWAITED = HK_FOUND_MOST / 2, WATCH_ASKED = 64 }; /* awaited ranks that are asked; ranks in all */
static const uint64_t watch_first_ask_ns = 200 * 1000000u, watch_patience_ns = 1000 * 1000000u;

void hk_watch_describe(const hk_call *call, char *text, size_t bytes) {
  if (!call) {
    snprintf(text, bytes, "no operation");
    return;
  }
  hk_operation o = {.count = call->count,
                    .root = call->root,
                    .coll = call->coll,
                    .p2p = call->p2p,
                    .dtype = call->dtype,
                    .redop = call->redop};
  hk_operation_describe(&o, text, bytes);
  if (call->options.inplace)
    snprintf(text + strlen(text), bytes - strlen(text), "%s",
             call->options.inplace == HK_INPLACE_YES ? " in place" : " not in place");
  if (!hk_call_is_rma(call)) return;
  size_t used = strlen(text);
  uint32_t signals = (uint32_t)call->comm->options.rma_signals;
  snprintf(text + used, bytes - used, " with signal %u of context %u", call->signal % signals, call->signal / signals);
}

/* The peers that the call waits for, each once. */
static int watch_awaited(ncclComm_t c, int *peers, int room) {
  int n = 0;
  if (c->order.exec) n = hk_exec_waits_for(c->order.exec, peers, room);
  if (n == 0 && c->order.current && c->order.current->coll == HK_SENDRECV) peers[n++] = c->order.current->root;
  return n;
}

/* ---- what this rank does ---- */

hk_status hk_watch_new(ncclComm_t c) {
  c->order.own_page = c->order.page = aligned_alloc(HK_CACHE_LINE, sizeof(hk_status_page));
  if (!c->order.page) return HK_FAIL_ERRNO("no memory for a communicator's status page");
  memset(c->order.page, 0, sizeof *c->order.page);
  c->order.meter = hk_meter_new();
  return c->order.meter ? HK_OK : HK_FAIL_ERRNO("no memory for a communicator's counters");
}

/* A transfer in one word: 3 bits p2p (0: it is over), 5 type, 20 peer, 36 count. */
_Static_assert(HK_P2P_WAIT < 8 && HK_DTYPE_COUNT <= 32, "they fit into their bits");
void hk_watch_transfer(ncclComm_t c, const hk_call *call) {
  uint64_t most = ((uint64_t)1 << 36) - 1, count = call && call->count < most ? call->count : most;
  /* relaxed, both: only this thread writes the word; others read it for reports, independent of other words */
  uint64_t before = atomic_load_explicit(&c->order.page->transfer, memory_order_relaxed);
  uint64_t word = before & ~(uint64_t)7;
  if (call) word = (uint64_t)call->p2p | (uint64_t)call->dtype << 3 | (uint64_t)call->root << 8 | count << 28;
  atomic_store_explicit(&c->order.page->transfer, word, memory_order_relaxed);
}

hk_meter_cell *hk_watch_enqueued(ncclComm_t c, const hk_call *call, bool traceable) {
  hk_meter_cell *sample = hk_watch_count(c, call);
  if (call->coll == HK_SENDRECV) {
    hk_watch_transfer(c, call);
    hk_watch_transfer(c, NULL);
    hk_flight_enqueued(c, call);
    return sample;
  }
  c->order.sequence++;
  hk_flight_enqueued(c, call);
  hk_watch_publish(c, call, traceable ? hk_call_signature(call) : 0);
  hk_watch_over(c); /* over for the calling thread; when the stream completes it is not checked */
  return sample;
}

void hk_watch_waited(ncclComm_t c, const hk_call *call, uint64_t ns) {
  hk_status_page *b = c->order.page;
  const uint64_t us = ns / 1000 < UINT32_MAX ? ns / 1000 : UINT32_MAX;
  if (hk_coll_has_root((hk_coll)call->coll) || hk_coll_uneven((hk_coll)call->coll)) return;
  /* relaxed, all: only this thread writes them; reports read each alone, and a recent wait names its collective */
  const uint64_t n = atomic_load_explicit(&b->long_waits, memory_order_relaxed);
  const uint64_t sum = atomic_load_explicit(&b->long_wait_ns, memory_order_relaxed);
  atomic_store_explicit(&b->recent_waits[n % HK_STATUS_PAGE_WAITS], c->order.sequence << 32 | us, memory_order_relaxed);
  atomic_store_explicit(&b->long_waits, n + 1, memory_order_relaxed);
  atomic_store_explicit(&b->long_wait_ns, sum + ns, memory_order_relaxed);
}

/* Publishes the awaited peer, and since when this rank waits. */
static void watch_publish_wait(ncclComm_t c, int peer, uint64_t waited_ns) {
  uint64_t word = (c->order.sequence << 32) | (uint64_t)(peer + 1);
  /* relaxed, both: as above */
  atomic_store_explicit(&c->order.page->waits, word, memory_order_relaxed);
  atomic_store_explicit(&c->order.page->since_ns, hk_now_ns() - waited_ns, memory_order_relaxed);
}

/* Sets the fields of an operation. */
static void watch_read_operation(hk_activity *out, const hk_status_page_op *o) {
  out->sequence = o->sequence;
  out->count = o->count;
  out->signature = o->signature;
  out->root = o->root;
  out->coll = o->coll;
  out->dtype = o->dtype;
  out->redop = o->op;
}

_Static_assert((int)HK_ACTIVITY_WAITS == (int)HK_STATUS_PAGE_WAITS, "a page's waits are an activity's");
static void watch_read_waits(const hk_status_page *b, hk_activity *out) {
  /* relaxed, all: each is meaningful alone */
  out->long_waits = atomic_load_explicit(&b->long_waits, memory_order_relaxed);
  out->long_wait_ns = atomic_load_explicit(&b->long_wait_ns, memory_order_relaxed);
  for (int i = 0; i < HK_ACTIVITY_WAITS; i++)
    out->recent_waits[i] = atomic_load_explicit(&b->recent_waits[i], memory_order_relaxed);
}

static void watch_read_page(const hk_status_page *b, hk_activity *out) {
  hk_status_page_op o;
  /* relaxed, all: the words are independent */
  uint64_t transfer = atomic_load_explicit(&b->transfer, memory_order_relaxed);
  uint64_t waits = atomic_load_explicit(&b->waits, memory_order_relaxed);
  uint64_t since = atomic_load_explicit(&b->since_ns, memory_order_relaxed);
  uint64_t over = atomic_load_explicit(&b->over, memory_order_relaxed);
  *out = (hk_activity){.waits_for = -1, .device = -1};
  if (hk_status_page_read(b, &o)) watch_read_operation(out, &o);
  watch_read_waits(b, out);
  for (uint64_t i = 0; i < HK_ACTIVITY_PAST; i++) /* operations before the first one do not exist */
    if (hk_status_page_read_at(b, out->sequence - 1 - i, &o)) out->past[i] = o.signature;
  uint32_t newest = (uint32_t)out->sequence;
  out->moves = (transfer >> 28) * hk_dtype_size((hk_dtype)(transfer >> 3 & 31));
  if (out->sequence > over || transfer & 7) out->phase = HK_PHASE_OPERATION;
  if (out->sequence <= over && transfer & 7) {
    out->coll = HK_SENDRECV;
    out->p2p = transfer & 7;
    out->dtype = transfer >> 3 & 31;
    out->root = (int32_t)(transfer >> 8 & 0xfffff);
    out->count = transfer >> 28;
  }
  if (out->phase != HK_PHASE_OPERATION || (uint32_t)(waits >> 32) != newest) return;
  out->waits_for = (int32_t)(waits & 0xffffffff) - 1;
  out->phase_ms = hk_ago_ns(hk_now_ns(), since) / 1000000u;
}

void hk_watch_report(void *comm, hk_activity *out) {
  ncclComm_t c = comm;
  pthread_mutex_lock(&c->health.lock); /* keeps the status page mapped; all threads hold this lock only briefly */
  hk_status_page *b = c->order.page;
  watch_read_page(b, out);
  uint64_t phase = atomic_load_explicit(&b->phase, memory_order_relaxed); /* relaxed: independent */
  pthread_mutex_unlock(&c->health.lock);
  const int closing = atomic_load(&c->health.closing);
  for (unsigned i = 0; i < HK_COLL_COUNT; i++) out->calls[i] = hk_meter_calls(c->order.meter, i);
  out->failure = (uint8_t)atomic_load(&c->health.failure);
  if (atomic_load(&c->health.finalized)) out->ended |= HK_ACTIVITY_FINALIZED;
  if (closing == HK_CLOSING_DESTROY) out->ended |= HK_ACTIVITY_DESTROYED;
  if (closing == HK_CLOSING_ABORT) out->ended |= HK_ACTIVITY_ABORTED;
  out->device = c->device;
  if (atomic_load(&c->health.progress) == HK_IN_PROGRESS)
    out->phase = HK_PHASE_INIT;
  else if (phase)
    out->phase = (uint8_t)phase;
  else if (out->phase == HK_PHASE_IDLE && atomic_load(&c->health.finalized))
    out->phase = HK_PHASE_FINALIZE;
}

/* ---- what another rank does ---- */

hk_presence hk_watch_ask(ncclComm_t c, int rank, uint64_t patience, hk_activity *out) {
  hk_presence p = hk_bootstrap_ask(c->bootstrap, rank, patience, out);
  const hk_peer *peer = &c->peers[rank];
  hk_status_page *b = hk_wire_status_page(c, rank);
  /* On a crowded host it may only be slow to answer. */
  if (p != HK_PRESENCE_STOPPED || !b || peer->host != c->peers[c->rank].host) return p;
  /* In another PID namespace the number names no process or the wrong one. */
  if (!peer->pid_space || peer->pid_space != c->peers[c->rank].pid_space) return p;
  const char state = hk_process_state(peer->pid);
  if (state == 0 || hk_process_stopped(state)) return p;
  watch_read_page(b, out);
  return HK_PRESENCE_ANSWERS;
}

bool hk_watch_call_of(ncclComm_t c, int rank, uint64_t operation, uint64_t patience, hk_activity *out) {
  hk_status_page *b = rank == c->rank ? c->order.page : hk_wire_status_page(c, rank);
  hk_status_page_op o;
  if (!b) return patience && hk_bootstrap_ask(c->bootstrap, rank, patience, out) == HK_PRESENCE_ANSWERS;
  *out = (hk_activity){.waits_for = -1, .device = -1};
  if (hk_status_page_read_at(b, operation, &o))
    watch_read_operation(out, &o);
  else
    watch_read_page(b, out);
  return true;
}

hk_call hk_watch_call(const hk_activity *a) {
  return (hk_call){.count = (size_t)a->count, .coll = a->coll, .dtype = a->dtype, .redop = a->redop, .root = a->root};
}

uint32_t hk_watch_signature(const hk_activity *a, uint64_t operation) {
  if (operation > a->sequence || a->sequence - operation > HK_ACTIVITY_PAST) return 0;
  return operation == a->sequence ? a->signature : a->past[a->sequence - operation - 1];
}

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
  /* relaxed: for reports only, and independent */
  atomic_store_explicit(&c->order.page->phase, HK_PHASE_DESTROY, memory_order_relaxed);
}

/* ---- reports ---- */

/* True if the rank made another call as this operation. */
static bool watch_differs(ncclComm_t c, const hk_inquiry *q, const hk_found *f) {
  uint32_t theirs = f->presence == HK_PRESENCE_ANSWERS ? hk_watch_signature(&f->activity, q->sequence) : 0;
  return theirs && c->order.exec && theirs != c->order.exec->launch->signature;
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
static hk_status watch_hear(ncclComm_t c, const hk_call *call, uint64_t waited_ns) {
  hk_status rc = HK_OK;
  if (!c->order.inquiry || !atomic_load(&c->order.inquiry->done)) return HK_OK;
  const hk_inquiry *q = &c->order.inquiry->q;
  if (q->sequence == c->order.sequence) {
    for (int i = 0; i < q->n && rc == HK_OK; i++) {
      if (!watch_differs(c, q, &q->at[i])) continue;
      hk_mismatch_found(c, call, q->at[i].rank);
      rc = HK_ERR_USAGE;
    }
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

static void watch_blame_left(ncclComm_t c, const hk_call *call, int left) {
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
  watch_blame_left(c, call, rank);
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
  watch_blame_left(c, call, left);
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
  int n = watch_awaited(c, peers, (int)HK_ARRAY_LENGTH(peers));
  watch_publish_wait(c, n ? peers[0] : -1, waited_ns);
  if (hk_mismatch_look(c)) return HK_ERR_USAGE;
  hk_status rc = hk_bootstrap_check_listener(c->bootstrap);
  if (rc == HK_OK) rc = watch_find_left(c, call, peers, n, waited_ns);
  if (rc == HK_OK) rc = watch_hear(c, call, waited_ns);
  if (rc == HK_OK && !c->order.inquiry && watch_is_due(c, peers, n, waited_ns, &chain))
    watch_begin_inquiry(c, peers, n, chain);
  return rc;
}
