/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes operations on this rank's status page. Inline, if each call does it. */
#pragma once
#include "../base/meter.h"
#include "../base/wait.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../transport/status_page.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && offsetof(hk_status_page_op, root) == 20 &&
                   offsetof(hk_status_page_op, coll) == 24 && offsetof(hk_status_page_op, op) == 26,
               "hk_watch_publish packs an hk_status_page_op");
_Static_assert((int)HK_COLL_COUNT + (int)HK_P2P_WAIT <= (int)HK_METER_KINDS, "a counter for each kind");
/* Publishes the operation that this rank begins, for peers that wait. */
static inline void hk_watch_publish(ncclComm_t c, const struct hk_call *call, uint32_t signature) {
  hk_status_page_put(c->order.page, c->order.sequence, call->count, signature | (uint64_t)(uint32_t)call->root << 32,
                     call->coll | (uint64_t)call->dtype << 8 | (uint64_t)call->redop << 16);
}
/* Publishes that the operation has ended: the rank is in no call any more. */
static inline void hk_watch_over(ncclComm_t c) {
  /* relaxed: read only for reports, and independent of other words */
  atomic_store_explicit(&c->order.page->over, c->order.sequence, memory_order_relaxed);
  c->order.current = NULL;
  c->order.exec = NULL;
}
/* Counts an operation whose end is not known here. Returns where it was counted if it is a sample, which the caller may
 * time (hk_meter_sampled); else NULL. */
static inline hk_meter_cell *hk_watch_count(ncclComm_t c, const struct hk_call *call) {
  const uint64_t bytes = hk_call_message(call, c->nranks);
  hk_meter_cell *cell = hk_meter_at(c->order.meter, hk_call_counts_as(call), bytes);
  if (!hk_meter_count(cell, bytes)) return NULL;
  hk_meter_note(c->order.meter, cell, hk_now_ns());
  return cell;
}
/* shown.c: the call was over after this rank had waited for others, for HK_WAIT_LONG_NS or longer. Counts it, if all
 * ranks end such calls nearly together: then those that waited less than others came late. */
void hk_watch_waited(ncclComm_t c, const struct hk_call *call, uint64_t ns);
