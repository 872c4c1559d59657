/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on host memory: this rank's windows and signals (rma.h). */
#include "rma.h"
#include <stdlib.h>
#include <string.h>
#include "../core/backend.h"
#include "../device/host.h"
#include "../failure/failure.h"
#include "../transport/remote.h"
#include "../transport/transport.h"
#include "registration.h"
#include "rma_internal.h"

enum { PAGE = 4096, SIGNALS_MAX = 1 << 20 };

/* ---- this rank's windows, as others see them: on any thread ---- */

static hk_window_state rma_window(void *arg, uint64_t number, hk_window *out) {
  ncclComm_t c = arg;
  if (number) return hk_registration_window(c, number, out);
  *out = (hk_window){(char *)c->rma->table, c->rma->table_bytes};
  return HK_WINDOW_OPEN;
}

/* Answers a rank of this host, which needs no connection for that. The question is the window's number. */
static bool rma_answer(void *arg, void *payload, int fd, char *reason) {
  ncclComm_t c = arg;
  hk_window_answer a = {.state = HK_WINDOW_LATER};
  uint64_t number;
  (void)fd, (void)reason;
  memcpy(&number, payload, sizeof number);
  pthread_mutex_lock(&c->health.lock);
  hk_rma *r = c->rma;
  pthread_mutex_unlock(&c->health.lock);
  if (r) a = hk_messages_describe(r->messages, number);
  memcpy(payload, &a, sizeof a);
  return true;
}
_Static_assert(sizeof(hk_window_answer) <= HK_QUESTION_BYTES, "an answer is one message");

static bool rma_on_signal(void *arg, int from, uint32_t signal) {
  ncclComm_t c = arg;
  if (signal >= c->rma->row) return false;
  hk_rma_count_up(&c->rma->table->counters[(size_t)from * c->rma->row + signal]);
  return true;
}

static hk_window_state rma_on_join(void *arg, int from) {
  ncclComm_t c = arg;
  hk_rma *r = c->rma;
  void *network;
  bool came = false;
  const hk_remote *remote = hk_wire_remote(c, from, &network);
  if (!remote || remote->accept(network, from, &r->table->counters[(size_t)from * r->row], r->row, &came) != HK_OK)
    return HK_WINDOW_GONE;
  return came ? HK_WINDOW_OPEN : HK_WINDOW_LATER;
}

void hk_rma_on_refusal(void *arg, int from, const char *text) {
  hk_failure_raise(arg, HK_EVENT_VERDICT, from, HK_ERR_USAGE, text);
}

/* ---- begin and end ---- */

static hk_status rma_make(ncclComm_t c, size_t inbox_bytes, hk_rma **out) {
  hk_messages_options o = {
      .window = rma_window, .signal = rma_on_signal, .join = rma_on_join, .refused = hk_rma_on_refusal, .arg = c};
  hk_status rc = HK_OK;
  hk_rma *r = calloc(1, sizeof *r);
  if (!r) return HK_FAIL_ERRNO("no memory for one-sided operations");
  if ((uint64_t)c->options.rma_contexts * (uint64_t)c->options.rma_signals > SIGNALS_MAX)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%d contexts (numRmaCtx) with %d signals (numRmaSig): %d signals are the most",
                       c->options.rma_contexts, c->options.rma_signals, SIGNALS_MAX),
               out);
  r->row =
      hk_round_up((size_t)c->options.rma_contexts * (size_t)c->options.rma_signals, HK_RMA_LINE / sizeof(uint64_t));
  r->table_bytes = sizeof(hk_rma_table) + (size_t)c->nranks * r->row * sizeof(uint64_t);
  if (inbox_bytes) {
    r->inbox_at = hk_round_up(r->table_bytes, PAGE);
    r->table_bytes = r->inbox_at + inbox_bytes;
  }
  r->consumed = calloc((size_t)c->nranks * r->row, sizeof *r->consumed);
  r->peers = calloc((size_t)c->nranks, sizeof *r->peers);
  if (!r->consumed || !r->peers) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the signals of %d ranks", c->nranks), out);
  HK_TRY(hk_host_alloc((void **)&r->table, r->table_bytes), out);
  rc = hk_messages_new(&r->messages, hk_wire_env(c), &o);
out:
  if (rc != HK_OK) hk_rma_free(r);
  *out = rc == HK_OK ? r : NULL;
  return rc;
}

hk_status hk_rma_meet(ncclComm_t c) {
  const bool on_host = !c->backend->rma_begin;
  if (on_host) c->one_sided = true;
  if (!hk_rma_supported(c)) return HK_OK;
  if (on_host) hk_wire_answer_with(c, rma_answer, c);
  if (!c->options.rma_eager) return HK_OK;
  return on_host ? hk_rma_begin(c) : c->backend->rma_begin(c);
}

/* Two threads may register the first windows. */
static hk_status rma_begin_with(ncclComm_t c, size_t inbox_bytes) {
  hk_status rc = HK_OK;
  if (c->rma) return HK_OK;
  pthread_mutex_lock(&c->health.lock);
  const bool first = !c->rma;
  if (first) rc = rma_make(c, inbox_bytes, &c->rma);
  pthread_mutex_unlock(&c->health.lock);
  if (first && rc == HK_OK) hk_messages_serve(c->rma->messages);
  return rc;
}

hk_status hk_rma_begin(ncclComm_t c) { return rma_begin_with(c, 0); }

void hk_rma_end(ncclComm_t c) {
  hk_rma *r = c->rma;
  if (!r) return;
  if (!c->backend->rma_begin) hk_wire_answer_with(c, NULL, NULL);
  hk_messages_free(r->messages);
  for (int i = 0; i < c->nranks; i++) free(r->peers[i].windows);
  free(r->peers);
  r->peers = NULL;
}

void hk_rma_free(hk_rma *r) {
  if (!r) return;
  if (r->table) (void)hk_host_free(r->table);
  free(r->consumed);
  free(r->peers);
  free(r);
}

void hk_rma_dropped(ncclComm_t c) {
  /* release: a rank that sees the number asks again, and no longer finds the window */
  if (c->rma) atomic_fetch_add_explicit(&c->rma->table->dropped, 1, memory_order_release);
}

/* ---- packets ---- */

hk_status hk_rma_begin_packets(ncclComm_t c, size_t inbox_bytes, char **inbox, size_t *offset) {
  HK_OR_RETURN(rma_begin_with(c, inbox_bytes));
  *offset = c->rma->inbox_at;
  *inbox = (char *)c->rma->table + *offset;
  hk_wire_memory(c, c->rma->table, c->rma->table_bytes, true); /* a card may write to it */
  return HK_OK;
}

uint64_t hk_rma_count(ncclComm_t c, int rank, uint32_t signal) {
  /* acquire: pairs with the release in `count`; the packet is read after it */
  return atomic_load_explicit(&c->rma->table->counters[(size_t)rank * c->rma->row + signal], memory_order_acquire);
}
