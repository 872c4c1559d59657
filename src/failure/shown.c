/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank shows to other ranks of what it does: on its status page, and in answers to questions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../core/call.h"
#include "../core/comm.h"
#include "../transport/status_page.h"
#include "flight_ring.h"
#include "publish.h"
#include "watch.h"

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

void hk_watch_all_over(ncclComm_t c) {
  hk_watch_over(c);
  hk_watch_transfers_over(c);
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

void hk_watch_show_wait(ncclComm_t c, int peer, uint64_t waited_ns) {
  uint64_t word = (c->order.sequence << 32) | (uint64_t)(peer + 1);
  /* relaxed, both: as above */
  atomic_store_explicit(&c->order.page->waits, word, memory_order_relaxed);
  atomic_store_explicit(&c->order.page->since_ns, hk_now_ns() - waited_ns, memory_order_relaxed);
}

void hk_watch_read_operation(hk_activity *out, const hk_status_page_op *o) {
  out->sequence = o->sequence;
  out->count = o->count;
  out->signature = o->signature;
  out->root = o->root;
  out->coll = o->coll;
  out->dtype = o->dtype;
  out->redop = o->op;
}

_Static_assert((int)HK_ACTIVITY_WAITS == (int)HK_STATUS_PAGE_WAITS, "a page's waits are an activity's");
static void shown_read_waits(const hk_status_page *b, hk_activity *out) {
  /* relaxed, all: each is meaningful alone */
  out->long_waits = atomic_load_explicit(&b->long_waits, memory_order_relaxed);
  out->long_wait_ns = atomic_load_explicit(&b->long_wait_ns, memory_order_relaxed);
  for (int i = 0; i < HK_ACTIVITY_WAITS; i++)
    out->recent_waits[i] = atomic_load_explicit(&b->recent_waits[i], memory_order_relaxed);
}

void hk_watch_read_page(const hk_status_page *b, hk_activity *out) {
  hk_status_page_op o;
  /* relaxed, all: the words are independent */
  uint64_t transfer = atomic_load_explicit(&b->transfer, memory_order_relaxed);
  uint64_t waits = atomic_load_explicit(&b->waits, memory_order_relaxed);
  uint64_t since = atomic_load_explicit(&b->since_ns, memory_order_relaxed);
  uint64_t over = atomic_load_explicit(&b->over, memory_order_relaxed);
  *out = (hk_activity){.waits_for = -1, .device = -1};
  if (hk_status_page_read(b, &o)) hk_watch_read_operation(out, &o);
  shown_read_waits(b, out);
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
  hk_watch_read_page(b, out);
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

void hk_watch_show_end(ncclComm_t c) {
  /* relaxed: for reports only, and independent */
  atomic_store_explicit(&c->order.page->phase, HK_PHASE_DESTROY, memory_order_relaxed);
}
