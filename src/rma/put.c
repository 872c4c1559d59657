/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on host memory (rma.h). A window of another rank is written to in one of these ways, the first
 * that is possible: stores, if its memory is in this process or can be mapped; a copy by the kernel; writes by the
 * network card; messages that the peer's service thread carries out. The signal of a put goes the same way as the data
 * or after it has arrived. */
#include "../base/thread.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../kernels/reduce.h"
#include "../transport/messages.h"
#include "../transport/remote.h"
#include "../transport/transport.h"
#include "rma_internal.h"

static hk_status put_send_message(const hk_call *call, size_t bytes, uint32_t signal) {
  hk_put put = {.window = call->window, .offset = call->offset, .data = call->in, .bytes = bytes, .signal = signal};
  hk_messages *m = call->comm->rma->messages;
  hk_window_answer a;
  HK_OR_RETURN(hk_messages_put(m, call->root, &put));
  if (signal != HK_NO_SIGNAL) return HK_OK;
  /* The signal goes another way, and must not overtake the data. */
  HK_OR_RETURN(hk_messages_ask(m, call->root, call->window, &a));
  if (a.state == HK_WINDOW_OPEN) return HK_OK;
  return HK_FAIL(HK_ERR_USAGE, "rank %d has deregistered window %llu, or it is smaller than the put", call->root,
                 (unsigned long long)call->window);
}

static hk_status put_run_on_card(const hk_call *call, const hk_remote_put *put, hk_remote_state *state) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  hk_rma_peer *p = &c->rma->peers[call->root];
  hk_window_state joined;
  hk_waiter w;
  hk_wait_begin(&w, &c->wait);
  for (;;) {
    HK_TRY(p->remote->put(p->network, call->root, put, state), out);
    if (*state > HK_REMOTE_PEER) goto out;
    if (*state == HK_REMOTE_BUSY) {
      HK_TRY(hk_wait_pause(&w), out);
      continue;
    }
    hk_cancel_hold();
    HK_TRY(hk_messages_join(c->rma->messages, call->root, &joined), out);
    if (joined == HK_WINDOW_GONE)
      HK_GIVE_UP(
          HK_FAIL(HK_ERR_REMOTE,
                  "rank %d lost the connection to rank %d for one-sided operations, which cannot accept it or has "
                  "given it up: see that rank's output",
                  c->rank, call->root),
          out);
    HK_TRY(hk_wait_nap(&w, -1, HK_RMA_NAP_NS), out);
  }
out:
  return rc;
}

/* `t`: the window; NULL: a signal alone. */
static hk_status put_by_card(const hk_call *call, const hk_rma_target *t, size_t bytes) {
  hk_status rc = HK_OK;
  hk_rma_peer *p = &call->comm->rma->peers[call->root];
  hk_remote_state state;
  hk_remote_put put = {.offset = call->offset, .data = call->in, .bytes = bytes, .signal = call->signal};
  if (t) put.window = (hk_remote_window){call->window, t->address, t->bytes};
  HK_TRY(put_run_on_card(call, &put, &state), out);
  if (state == HK_REMOTE_NOWHERE) {
    put.bytes = 0;
    HK_TRY(put_send_message(call, bytes, HK_NO_SIGNAL), out);
    rc = put_run_on_card(call, &put, &state);
  } else if (state == HK_REMOTE_UNUSABLE) {
    for (size_t i = 0; i < p->n; i++) p->windows[i].way = HK_RMA_BY_MESSAGES;
    p->remote = NULL;
    rc = put_send_message(call, bytes, call->signal);
  } else if (state == HK_REMOTE_DENIED) {
    rc = hk_rma_is_gone(call, call->window);
    /* no other put can reach that rank, so the communicator ends on all ranks */
    hk_rma_on_refusal(call->comm, call->root, hk_last_error());
  }
out:
  return rc;
}

/* Writes the data. *signalled: the signal went with it. */
static inline hk_status put_write_data(const hk_call *call, size_t bytes, bool by_stores, bool *signalled) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  hk_rma_target *t;
  HK_TRY(hk_rma_find_target(call, call->window, &t), out);
  if (call->offset > t->bytes || bytes > t->bytes - call->offset)
    return HK_FAIL(HK_ERR_USAGE,
                   "rank %d puts %zu bytes at %llu of window %llu of rank %d, which has %zu bytes: all ranks must "
                   "register the same windows in the same order",
                   c->rank, bytes, (unsigned long long)call->offset, (unsigned long long)call->window, call->root,
                   t->bytes);
  if (t->way == HK_RMA_BY_STORES) {
    void *to = t->base + call->offset;
    const void *from = call->in;
    hk_move(NULL, &to, 1, &from, 1, -1, bytes, hk_exceeds_caches(bytes) ? HK_MOVE_UNCACHED : 0);
  } else if (t->way == HK_RMA_BY_COPY) {
    hk_transport_state *s = hk_wire_host(c);
    rc = s->transport->host->write(s, call->root, t->address + call->offset, call->in, bytes);
  } else if (t->way == HK_RMA_BY_CARD) {
    *signalled = true;
    rc = put_by_card(call, t, bytes);
  } else {
    *signalled = !by_stores;
    rc = put_send_message(call, bytes, by_stores ? HK_NO_SIGNAL : call->signal);
  }
out:
  return rc;
}

hk_status hk_rma_put(const hk_call *call) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  hk_rma_target t;
  bool signalled = false;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  HK_TRY(hk_rma_find_table(call, &t), out);
  bool by_stores = t.way == HK_RMA_BY_STORES;
  if (bytes) HK_TRY(put_write_data(call, bytes, by_stores, &signalled), out);
  if (by_stores)
    hk_rma_count_up(&((hk_rma_table *)(void *)t.base)->counters[(size_t)c->rank * c->rma->row + call->signal]);
  else if (!signalled)
    rc = t.way == HK_RMA_BY_CARD ? put_by_card(call, NULL, 0) : put_send_message(call, 0, call->signal);
out:
  return rc;
}

bool hk_rma_arrived(const hk_call *call) {
  hk_rma *r = call->comm->rma;
  size_t at = (size_t)call->root * r->row + call->signal;
  /* acquire: pairs with the release in `count`; the data of the put is read after it */
  uint64_t come = atomic_load_explicit(&r->table->counters[at], memory_order_acquire);
  if (come - r->consumed[at] < call->count) return false;
  r->consumed[at] += call->count;
  return true;
}
