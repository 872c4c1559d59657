/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider does, as events (trace.h): each call that a card sees, each control message, and each line of
 * the log. tests/golden/ib_trace.txt has summaries; both ranks are of this thread. check_conn and check_ctx say what
 * must be so inside of it. */
#ifndef HK_TESTS_IB_TRACE_H
#define HK_TESTS_IB_TRACE_H
#include <sys/socket.h>
#include "ib.h"
#include "trace.h"

#define TRACE_FILE "tests/golden/ib_trace.txt"

enum { PLACES_AT = 128, PLACES_END = 128 + HK_IB_PLACES * sizeof(hk_ib_place) };
/* The header of a message: its numbers are the slot's, which are sent in order, once in each epoch. */
static unsigned next_slot[64]; /* of the messages to each memory */
static void trace_header(const char *call, const hk_ib_header *h, unsigned memory, unsigned slot) {
  static const char *const wheres[] = {"after it", "in the FIFO", "in its place"};
  ck_assert_msg(slot >= next_slot[memory % 64] && h->seq == slot + 1 && h->signature == 1000 + slot,
                "%s: slot %u, %u, signature %u", call, next_slot[memory % 64], h->seq, h->signature);
  ck_assert(h->where <= HK_IB_IN_PLACE && !h->reserved);
  next_slot[memory % 64] = slot + 1 + h->more;
  trace_say("%s: %u bytes %s, %u parts more, %u more slots", call, h->bytes, wheres[h->where], h->parts, h->more);
}
/* Of a write to the peer's table of places, which has addresses, only the sizes and marks; of a word its value. */
static void trace_call(const char *call, const void *data, size_t bytes) {
  const hk_ib_place *p = data;
  const char *to = strstr(call, " -> ");
  unsigned memory = 0, at = 0, word = 0, qp = 0;
  char words[400] = "", state[10];
  size_t n = 0;
  const bool aims = to && sscanf(to, " -> %u+%u %x", &memory, &at, &word) >= 2;
  if (sscanf(call, "qp %u: %9s", &qp, state) == 2 && !strcmp(state, "sends,")) memset(next_slot, 0, sizeof next_slot);
  if (aims && data && word & HK_IB_HAS_HEADER && bytes >= sizeof(hk_ib_header)) {
    trace_header(call, data, memory, word & ~HK_IB_HAS_HEADER);
  } else if (aims && data && bytes % sizeof *p == 0 && at >= PLACES_AT && at + bytes <= PLACES_END) {
    for (size_t i = 0; i < bytes / sizeof *p; i++)
      n += (size_t)snprintf(words + n, sizeof words - n, " place of %#llx",
                            (unsigned long long)atomic_load((_Atomic uint64_t *)(uintptr_t)&p[i].bytes));
    trace_say("%s:%s", call, words);
  } else if (data && bytes == 8) {
    uint64_t value;
    memcpy(&value, data, 8);
    trace_say("%s: %llu", call, (unsigned long long)value);
  } else {
    trace_say("%s", call);
  }
}

/* ---- control messages ---- */

static unsigned index_of(uint32_t key) { return key >> 1 & 65535; }
static inline char *memory_words(const hk_ib_memory *m, int n, char words[200]) {
  size_t used = 0;
  *words = '\0';
  for (int i = 0; i < n; i++)
    if (m[i].addr || m[i].rkey || m[i].flags)
      used += (size_t)snprintf(words + used, 200 - used, " %d:%s%u/%u", i, m[i].addr ? "" : "none ",
                               index_of(m[i].rkey), m[i].flags);
  return words;
}
static inline void trace_epoch(const hk_ib_epoch *e) {
  char words[200];
  trace_say("  %u paths, %u qps, first packet %u, received %llu, consumed %llu, arenas%s", e->npaths, e->nqps, e->psn,
            (unsigned long long)e->received, (unsigned long long)e->consumed,
            memory_words(e->arena, HK_IB_PATHS, words));
  for (int i = 0; i < e->npaths; i++)
    trace_say("  path %d: ports %u %u, GIDs %u %u, MTU %u", i, e->paths[i].port[0], e->paths[i].port[1],
              e->paths[i].gid[0], e->paths[i].gid[1], e->paths[i].mtu);
  for (int i = 0; i < HK_IB_QPS; i++)
    if (e->qp[i] || e->ece[i].vendor_id || e->ece[i].options)
      trace_say("  qp %d: %u, options %#x", i, e->qp[i], e->ece[i].options);
}
static inline void trace_message(int from, const hk_ib_msg *m) {
  static const char *const kinds[] = {"0",   "hello", "epoch", "ready", "ring", "broken",
                                      "bye", "cede",  "end",   "ask",   "keys"};
  char words[200];
  trace_say("rank %d: %s of epoch %u, %u slots of %u%s, rings%s", from, m->kind <= HK_IB_KEYS ? kinds[m->kind] : "?",
            m->epoch, m->nslots, m->slot_bytes, m->magic == HK_IB_MAGIC ? "" : ", no magic",
            memory_words(m->ring, HK_IB_PATHS, words));
  if (m->kind == HK_IB_HELLO) {
    trace_say("  %u ports, %u qps, apart %u", m->hello.nports, m->hello.nqps, m->hello.apart);
    for (uint32_t i = 0; i < m->hello.nports; i++) {
      const hk_ib_port *p = &m->hello.ports[i];
      trace_say("  %s:%u of card %u, %u GIDs, MTU %u, layer %u, rail %d, position %u", p->device, p->number, p->card,
                p->ngids, p->mtu, p->layer, p->rail, p->position);
    }
  }
  if (m->kind == HK_IB_EPOCH) trace_epoch(&m->epoch_info);
  if (m->kind == HK_IB_BYE) trace_say("  received %llu", (unsigned long long)m->received);
  if (m->kind == HK_IB_BROKEN) trace_say("  bad %#x: %s", m->broken.bad, m->broken.text);
  if (m->kind == HK_IB_CEDE) trace_say("  directions %u: %.30s", m->cede.directions, m->cede.cause);
  if (m->kind == HK_IB_ASK || m->kind == HK_IB_KEYS)
    trace_say("  window %llu of %llu bytes, signal %u is %llu, %sregistered, keys %u %u",
              (unsigned long long)m->keys.window, (unsigned long long)m->keys.bytes, m->keys.signal,
              (unsigned long long)m->keys.value, m->keys.registered ? "" : "not ", index_of(m->keys.rkeys[0]),
              index_of(m->keys.rkeys[1]));
}

/* The control connections: two socket pairs each, between which the test passes messages on. */
enum { CONTROLS = 16 };
static struct {
  int ends[2], from[2]; /* from: the rank at each end */
  bool deaf;            /* nothing is passed on */
  bool plain;           /* another network's: passed on as it is */
} controls[CONTROLS];
static int ncontrols;

static inline hk_status trace_dial(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  net_rank *r = arg;
  net_world *w = r->world;
  int near[2], far[2];
  (void)at;
  net_pair(false, near);
  net_pair(false, far);
  ck_assert_int_lt(ncontrols, CONTROLS);
  controls[ncontrols].deaf = false;
  controls[ncontrols].plain = tag >> 56 != 'V';
  controls[ncontrols].from[0] = r->rank;
  controls[ncontrols].from[1] = peer;
  controls[ncontrols].ends[0] = near[1];
  controls[ncontrols++].ends[1] = far[0];
  w->mail[w->nmail].from = r->rank;
  w->mail[w->nmail].to = peer;
  w->mail[w->nmail].fd = far[1];
  w->mail[w->nmail++].tag = tag;
  *fd = near[0];
  trace_say("rank %d: dials %d for %c %llu", r->rank, peer, (int)(tag >> 56), (unsigned long long)(tag & 0xffffff));
  return HK_OK;
}

/* The control connections end, at both sides. */
static inline void trace_cut_controls(void) {
  for (int i = 0; i < 2 * ncontrols; i++) {
    (void)shutdown(controls[i / 2].ends[i % 2], SHUT_RDWR);
    close(controls[i / 2].ends[i % 2]);
    controls[i / 2].ends[i % 2] = -1;
  }
}

static bool redial_fails, redial_gone;
static inline hk_status trace_redial(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  (void)stop;
  *gone = redial_gone;
  return redial_fails || redial_gone ? HK_ERR_REMOTE : trace_dial(arg, peer, NULL, tag, fd);
}

static inline void trace_pass_controls(void) {
  static char bytes[1 << 18];
  for (int i = 0; i < 2 * ncontrols; i++) {
    const int from = controls[i / 2].ends[i % 2], to = controls[i / 2].ends[1 - i % 2];
    for (;;) {
      const size_t capacity = controls[i / 2].plain ? sizeof bytes : sizeof(hk_ib_msg);
      if (controls[i / 2].deaf) break;
      const ssize_t n = from < 0 ? 0 : recv(from, bytes, capacity, MSG_DONTWAIT);
      if (n == 0 && from >= 0) { /* the end of the connection */
        (void)shutdown(to, SHUT_WR);
        break;
      }
      if (n <= 0) break;
      if (!controls[i / 2].plain) {
        ck_assert_uint_eq((size_t)n, sizeof(hk_ib_msg));
        trace_message(controls[i / 2].from[i % 2], (const hk_ib_msg *)(void *)bytes);
      }
      (void)!send(to, bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

/* ---- rules ---- What must be so between any two calls, whatever the schedule. */

static struct {
  const hk_ib_conn *conn;
  uint32_t epoch;
  uint64_t credit, returned, received;
} known[2];
static inline void check_qp(const hk_ib_conn *c, const hk_ib_qp *q) {
  ck_assert_uint_le(q->posted - q->done, q->depth);
  ck_assert_uint_le(q->signaled - q->done, q->posted - q->done + q->depth);
  ck_assert_uint_le((q->last + q->depth + 1 - q->first) % (q->depth + 1), q->posted - q->done);
  ck_assert_uint_le(q->recv_owed, q->recv_depth);
  ck_assert(q->path >= c->paths && q->path < c->paths + c->npaths);
}
static inline void check_conn(int rank, const hk_ib_conn *c) {
  const hk_ib_ctx *x = c->ctx;
  const uint32_t nslots = x->env->nslots;
  ck_assert_ptr_eq(x->conns[c->index], c);
  ck_assert(!c->place || x->progress.active[c->place - 1] == c);
  /* The peer has nslots slots. */
  const uint64_t sent = c->tx.posted > c->tx.given ? c->tx.posted : c->tx.given;
  ck_assert(c->tx.credit <= sent && sent - c->tx.credit <= nslots && c->tx.arrived <= sent);
  if (c->send) ck_assert(c->send->next == c->tx.given && c->tx.given <= c->send->link->done);
  if (c->recv) {
    const uint64_t read = atomic_load(&c->recv->link->heads->value);
    ck_assert(c->rx.returned <= read && read <= c->recv->next && c->recv->next - read <= nslots);
  }
  ck_assert_uint_le(c->gpu.flush.asked, c->gpu.flush.seen + nslots);
  if (known[rank].conn == c) {
    ck_assert(c->epoch >= known[rank].epoch && c->tx.credit >= known[rank].credit);
    ck_assert(c->rx.returned >= known[rank].returned);
    if (c->recv) ck_assert(c->recv->next >= known[rank].received);
  }
  known[rank].conn = c, known[rank].epoch = c->epoch, known[rank].credit = c->tx.credit;
  known[rank].returned = c->rx.returned, known[rank].received = c->recv ? c->recv->next : 0;
  if (c->phase == HK_IB_UP) ck_assert(c->npaths && c->nqps > c->apart && !c->failed);
  if (c->phase == HK_IB_RESTING) ck_assert_uint_eq(c->nqps, 0);
  for (uint32_t i = 0; i < c->npaths; i++) ck_assert_int_lt(c->paths[i].pair, c->ports.npairs);
  for (uint32_t i = 0; i < c->nqps; i++) check_qp(c, &c->qps[i]);
}
/* All messages have come: each slot is given back, and no request under way has something of the lane's memory. */
static inline void check_settled(const hk_ib_conn *c, unsigned sent, unsigned got) {
  if (c->phase != HK_IB_UP) return;
  if (c->send) ck_assert(c->tx.given == sent && c->tx.posted == sent && c->tx.credit <= sent);
  if (c->recv) ck_assert(c->recv->next == got && got - c->rx.returned < c->ctx->env->nslots / 2 + 1);
  for (uint32_t i = 0; i < c->nqps; i++) ck_assert_uint_eq(c->qps[i].first, c->qps[i].last);
}
static inline void check_ctx(const hk_ib_ctx *x) {
  uint32_t active = 0, conns = 0;
  for (uint32_t i = 0; i < x->capacity; i++) conns += x->conns[i] != NULL, active += x->conns[i] && x->conns[i]->place;
  ck_assert(x->nconns == conns && x->progress.nactive == active && x->progress.swept <= x->capacity);
  ck_assert(x->counts.pinned <= x->counts.pinned_most && x->ndevices <= verbs->ndevices);
  for (int i = 0; i < x->ndevices; i++)
    for (int k = 0; k < x->devices[i].ncqs; k++) ck_assert(x->devices[i].cqs[k].used <= x->devices[i].cqs[k].capacity);
}

/* ---- begin and end ---- */

static inline void trace_begin(const char *name, int devices) {
  ib_begin(devices);
  trace_start(name);
  verbs->trace = trace_call;
}

static inline void trace_end(void) {
  verbs->trace = NULL;
  for (int i = 0; i < 2 * ncontrols; i++)
    if (controls[i / 2].ends[i % 2] >= 0) close(controls[i / 2].ends[i % 2]);
  ncontrols = 0;
  trace_compare(TRACE_FILE);
  ib_end();
}
#endif
