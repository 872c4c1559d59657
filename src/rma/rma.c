/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations on host memory (rma.h). A window of another rank is written to in one of these ways, the first
 * that is possible: stores, if its memory is in this process or can be mapped; a copy by the kernel; writes by the
 * network card; messages that the peer's service thread carries out. The signal of a put goes the same way as the data
 * or after it has arrived. */
#include "rma.h"
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/thread.h"
#include "../comm/children.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../device/host.h"
#include "../failure/failure.h"
#include "../kernels/reduce.h"
#include "../transport/peer.h"
#include "../transport/remote.h"
#include "../transport/transport.h"
#include "registration.h"

enum { LINE = 2 * HK_CACHE_LINE, PAGE = 4096, NAP_NS = 200 * 1000, SIGNALS_MAX = 1 << 20 };
static const uint64_t NEWS_NS = 200000000u; /* time for the notice of a refused window */

/* The signal table, in memory that other processes can map. The counters of each rank have cache lines of their own. */
typedef struct table {
  _Alignas(
      /* number of windows deregistered: when it changes, other ranks' data about windows is out of date */
      LINE) _Atomic uint64_t dropped;
  _Alignas(LINE) _Atomic uint64_t counters[];
} table;

_Static_assert(LINE / sizeof(uint64_t) == HK_RMA_ROW, "a row is whole lines");

typedef enum way { BY_STORES, BY_COPY, BY_CARD, BY_MESSAGES } way;

/* A window of another rank. */
typedef struct target {
  bool known;
  way way;
  char *base;       /* BY_STORES: its address in this process */
  uint64_t address; /* its address in the process of the peer */
  size_t bytes;
} target;

typedef struct peer {
  uint64_t dropped; /* the peer's `dropped` when the windows below were looked up */
  target *windows;  /* by number; the table first */
  size_t n;
  const hk_remote *remote; /* functions of the network that reaches it; NULL: not looked up, or none */
  void *network;
} peer;

struct hk_rma {
  table *table;
  size_t table_bytes, row; /* row: counters of one rank in the table */
  size_t inbox_at;         /* offset in the table of the inbox for a backend's packets; 0: none */
  uint64_t *consumed;      /* indexed as the table's counters */
  hk_messages *messages;
  peer *peers; /* [nranks] */
};

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

static void rma_count(_Atomic uint64_t *counter) {
  /* relaxed: only this rank increments it. release: a reader that sees the signal sees the data of this and all earlier
   * puts */
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_release);
}

static bool rma_on_signal(void *arg, int from, uint32_t signal) {
  ncclComm_t c = arg;
  if (signal >= c->rma->row) return false;
  rma_count(&c->rma->table->counters[(size_t)from * c->rma->row + signal]);
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

static void rma_on_refusal(void *arg, int from, const char *text) {
  hk_failure_raise(arg, HK_EVENT_VERDICT, from, HK_ERR_USAGE, text);
}

/* ---- begin and end ---- */

static hk_status rma_make(ncclComm_t c, size_t inbox_bytes, hk_rma **out) {
  hk_messages_options o = {
      .window = rma_window, .signal = rma_on_signal, .join = rma_on_join, .refused = rma_on_refusal, .arg = c};
  hk_status rc = HK_OK;
  hk_rma *r = calloc(1, sizeof *r);
  if (!r) return HK_FAIL_ERRNO("no memory for one-sided operations");
  if ((uint64_t)c->options.rma_contexts * (uint64_t)c->options.rma_signals > SIGNALS_MAX)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%d contexts (numRmaCtx) with %d signals (numRmaSig): %d signals are the most",
                       c->options.rma_contexts, c->options.rma_signals, SIGNALS_MAX),
               out);
  r->row = hk_round_up((size_t)c->options.rma_contexts * (size_t)c->options.rma_signals, LINE / sizeof(uint64_t));
  r->table_bytes = sizeof(table) + (size_t)c->nranks * r->row * sizeof(uint64_t);
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

/* ---- windows of other ranks: on the rank's thread ---- */

/* True if this rank can write to the memory of the peer's process. For packets, which are in the library's own memory,
 * NCCL_P2P_DISABLE alone does not forbid it. */
static bool rma_is_near(ncclComm_t c, int rank) {
  const hk_peer *it = &c->peers[rank], *me = &c->peers[c->rank];
  if (c->settings->P2P_DISABLE && (!c->rma->inbox_at || c->settings->SHM_DISABLE)) return rank == c->rank;
  return it->process == me->process || (it->host == me->host && !hk_wire_no_files(c));
}

/* How this rank writes to a window of its host. */
static hk_status rma_reach(ncclComm_t c, int rank, const hk_window_answer *a, target *t) {
  t->way = BY_STORES;
  t->base = (char *)(uintptr_t)a->address;
  if (c->peers[rank].process == c->peers[c->rank].process) return HK_OK;
  hk_transport_state *s = hk_wire_host(c);
  const hk_transport_host *host = s->transport->host;
  if (!a->region) {
    t->way = host->writable(s, rank, a->proof_at, a->proof, sizeof a->proof) ? BY_COPY : BY_MESSAGES;
    return HK_OK;
  }
  HK_OR_RETURN(host->map(s, rank, a->region, &t->base));
  t->base += a->offset;
  return HK_OK;
}

static hk_status rma_ask(ncclComm_t c, int rank, uint64_t number, target *t, hk_window_state *state) {
  peer *p = &c->rma->peers[rank];
  unsigned char payload[HK_QUESTION_BYTES] = {0};
  const bool near = rma_is_near(c, rank);
  hk_window_answer a;
  memcpy(payload, &number, sizeof number);
  if (rank == c->rank) {
    a = hk_messages_describe(c->rma->messages, number);
  } else if (near && !c->rma->inbox_at) {
    HK_OR_RETURN(hk_wire_ask(c, rank, -1, payload));
    memcpy(&a, payload, sizeof a);
  } else {
    HK_OR_RETURN(hk_messages_ask(c->rma->messages, rank, number, &a));
  }
  *state = (hk_window_state)a.state;
  *t = (target){.known = true, .way = BY_MESSAGES, .address = a.address, .bytes = a.bytes};
  if (*state != HK_WINDOW_OPEN) return HK_OK;
  if (near) return rma_reach(c, rank, &a, t);
  if (number == 0 && (p->remote = hk_wire_remote(c, rank, &p->network)))
    HK_OR_RETURN(p->remote->open(p->network, rank, c->rma->row));
  if (p->remote) t->way = BY_CARD;
  return HK_OK;
}

static hk_status rma_is_gone(const hk_call *call, uint64_t number) {
  char words[HK_EVENT_TEXT];
  const uint64_t until = hk_now_ns() + NEWS_NS;
  hk_wait_env env = {.spins = 0};
  bool refused_there;
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (!(refused_there = hk_children_refused_call(call->comm, HK_CALL_WINDOW, number, words)) && hk_now_ns() < until)
    (void)hk_wait_nap(&w, -1, NAP_NS);
  if (refused_there)
    return HK_FAIL(HK_ERR_USAGE, "rank %d puts to window %llu, which rank %d does not have: %s", call->comm->rank,
                   (unsigned long long)number, call->root, words);
  return HK_FAIL(HK_ERR_USAGE,
                 "rank %d puts to window %llu of rank %d, which has deregistered it: a window must stay registered "
                 "until all puts to it have arrived",
                 call->comm->rank, (unsigned long long)number, call->root);
}

/* Looks the window up; waits if its rank has not registered it yet. */
static hk_status rma_look_up(const hk_call *call, uint64_t number, target *t) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  hk_window_state state = HK_WINDOW_LATER;
  hk_waiter w;
  hk_cancel_hold();
  hk_wait_begin(&w, &c->wait);
  for (;;) {
    HK_TRY(rma_ask(c, call->root, number, t, &state), out);
    if (state != HK_WINDOW_LATER) break;
    HK_TRY(hk_wait_nap(&w, -1, NAP_NS), out);
  }
  if (state != HK_WINDOW_OPEN) rc = rma_is_gone(call, number);
out:
  t->known = rc == HK_OK;
  return rc;
}

static hk_status rma_find_target(const hk_call *call, uint64_t number, target **out) {
  peer *p = &call->comm->rma->peers[call->root];
  if (number >= p->n) {
    target *more = realloc(p->windows, (number + 1) * sizeof *more);
    if (!more) return HK_FAIL_ERRNO("no memory for %llu windows", (unsigned long long)number);
    memset(more + p->n, 0, (number + 1 - p->n) * sizeof *more);
    p->windows = more;
    p->n = number + 1;
  }
  if (!p->windows[number].known) HK_OR_RETURN(rma_look_up(call, number, &p->windows[number]));
  *out = &p->windows[number];
  return HK_OK;
}

/* Finds the peer's signal table. Drops the cached data about its windows if it has deregistered any. */
static inline hk_status rma_find_table(const hk_call *call, target *out) {
  ncclComm_t c = call->comm;
  peer *p = &c->rma->peers[call->root];
  target *t;
  HK_OR_RETURN(rma_find_target(call, 0, &t));
  *out = *t;
  if (__builtin_expect(t->bytes != c->rma->table_bytes, 0)) {
    return HK_FAIL(HK_ERR_USAGE,
                   "rank %d has other numbers of contexts and signals than rank %d: set numRmaCtx and numRmaSig "
                   "(NCCL_NUM_RMA_CTX) equally on all ranks",
                   call->root, c->rank);
  }
  if (t->way != BY_STORES) return HK_OK;
  /* acquire: pairs with the release in hk_rma_dropped */
  uint64_t dropped = atomic_load_explicit(&((table *)(void *)t->base)->dropped, memory_order_acquire);
  if (__builtin_expect(dropped != p->dropped, 0)) memset(p->windows + 1, 0, (p->n - 1) * sizeof *p->windows);
  p->dropped = dropped;
  return HK_OK;
}

/* ---- operations ---- */

static hk_status rma_send_message(const hk_call *call, size_t bytes, uint32_t signal) {
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

static hk_status rma_run_on_card(const hk_call *call, const hk_remote_put *put, hk_remote_state *state) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  peer *p = &c->rma->peers[call->root];
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
    HK_TRY(hk_wait_nap(&w, -1, NAP_NS), out);
  }
out:
  return rc;
}

/* `t`: the window; NULL: a signal alone. */
static hk_status rma_put_by_card(const hk_call *call, const target *t, size_t bytes) {
  hk_status rc = HK_OK;
  peer *p = &call->comm->rma->peers[call->root];
  hk_remote_state state;
  hk_remote_put put = {.offset = call->offset, .data = call->in, .bytes = bytes, .signal = call->signal};
  if (t) put.window = (hk_remote_window){call->window, t->address, t->bytes};
  HK_TRY(rma_run_on_card(call, &put, &state), out);
  if (state == HK_REMOTE_NOWHERE) {
    put.bytes = 0;
    HK_TRY(rma_send_message(call, bytes, HK_NO_SIGNAL), out);
    rc = rma_run_on_card(call, &put, &state);
  } else if (state == HK_REMOTE_UNUSABLE) {
    for (size_t i = 0; i < p->n; i++) p->windows[i].way = BY_MESSAGES;
    p->remote = NULL;
    rc = rma_send_message(call, bytes, call->signal);
  } else if (state == HK_REMOTE_DENIED) {
    rc = rma_is_gone(call, call->window);
    /* no other put can reach that rank, so the communicator ends on all ranks */
    rma_on_refusal(call->comm, call->root, hk_last_error());
  }
out:
  return rc;
}

/* Writes the data. *signalled: the signal went with it. */
static inline hk_status rma_write_data(const hk_call *call, size_t bytes, bool by_stores, bool *signalled) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  target *t;
  HK_TRY(rma_find_target(call, call->window, &t), out);
  if (call->offset > t->bytes || bytes > t->bytes - call->offset)
    return HK_FAIL(HK_ERR_USAGE,
                   "rank %d puts %zu bytes at %llu of window %llu of rank %d, which has %zu bytes: all ranks must "
                   "register the same windows in the same order",
                   c->rank, bytes, (unsigned long long)call->offset, (unsigned long long)call->window, call->root,
                   t->bytes);
  if (t->way == BY_STORES) {
    void *to = t->base + call->offset;
    const void *from = call->in;
    hk_move(NULL, &to, 1, &from, 1, -1, bytes, hk_exceeds_caches(bytes) ? HK_MOVE_UNCACHED : 0);
  } else if (t->way == BY_COPY) {
    hk_transport_state *s = hk_wire_host(c);
    rc = s->transport->host->write(s, call->root, t->address + call->offset, call->in, bytes);
  } else if (t->way == BY_CARD) {
    *signalled = true;
    rc = rma_put_by_card(call, t, bytes);
  } else {
    *signalled = !by_stores;
    rc = rma_send_message(call, bytes, by_stores ? HK_NO_SIGNAL : call->signal);
  }
out:
  return rc;
}

hk_status hk_rma_put(const hk_call *call) {
  hk_status rc = HK_OK;
  ncclComm_t c = call->comm;
  target t;
  bool signalled = false;
  size_t bytes = call->count * hk_dtype_size((hk_dtype)call->dtype);
  HK_TRY(rma_find_table(call, &t), out);
  bool by_stores = t.way == BY_STORES;
  if (bytes) HK_TRY(rma_write_data(call, bytes, by_stores, &signalled), out);
  if (by_stores)
    rma_count(&((table *)(void *)t.base)->counters[(size_t)c->rank * c->rma->row + call->signal]);
  else if (!signalled)
    rc = t.way == BY_CARD ? rma_put_by_card(call, NULL, 0) : rma_send_message(call, 0, call->signal);
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
