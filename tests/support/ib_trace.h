/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider does, as text (trace.h): each call that a card sees, each control message, each change of a
 * connection's and a rank's state, and each line of the log. tests/golden/ib_trace.txt has it; both ranks are of this
 * thread. */
#ifndef HK_TESTS_IB_TRACE_H
#define HK_TESTS_IB_TRACE_H
#include <sys/socket.h>
#include "ib_ranks.h"
#include "trace.h"

#define TRACE_FILE "tests/golden/ib_trace.txt"

enum { PLACES_AT = 128, PLACES_END = 128 + HK_IB_PLACES * sizeof(hk_ib_place) };
/* Of a write to the peer's table of places, which has addresses, only the sizes and marks; of a word its value. */
static void see_call(const char *call, const void *data, size_t bytes) {
  const hk_ib_place *p = data;
  const char *to = strstr(call, " -> ");
  unsigned at = 0;
  char words[400] = "";
  size_t n = 0;
  if (to && sscanf(to, " -> %*u+%u", &at) == 1 && data && bytes % sizeof *p == 0 && at >= PLACES_AT &&
      at + bytes <= PLACES_END) {
    for (size_t i = 0; i < bytes / sizeof *p; i++)
      n += (size_t)snprintf(words + n, sizeof words - n, " place of %#llx",
                            (unsigned long long)atomic_load((_Atomic uint64_t *)(uintptr_t)&p[i].bytes));
    say("%s:%s", call, words);
  } else if (data && bytes == 8) {
    uint64_t value;
    memcpy(&value, data, 8);
    say("%s: %llu", call, (unsigned long long)value);
  } else if (data) {
    say("%s: %08x", call, golden_hash(2166136261u, data, bytes));
  } else {
    say("%s", call);
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
static inline void say_epoch(const hk_ib_epoch *e) {
  char words[200];
  say("  %u paths, %u qps, first packet %06x, received %llu, consumed %llu, arenas%s", e->npaths, e->nqps, e->psn,
      (unsigned long long)e->received, (unsigned long long)e->consumed, memory_words(e->arena, HK_IB_PATHS, words));
  for (int i = 0; i < e->npaths; i++)
    say("  path %d: ports %u %u, GIDs %u %u, MTU %u", i, e->paths[i].port[0], e->paths[i].port[1], e->paths[i].gid[0],
        e->paths[i].gid[1], e->paths[i].mtu);
  for (int i = 0; i < HK_IB_QPS; i++)
    if (e->qp[i] || e->ece[i].vendor_id || e->ece[i].options)
      say("  qp %d: %u, options %#x", i, e->qp[i], e->ece[i].options);
}
static inline void say_message(int from, const hk_ib_msg *m) {
  static const char *const kinds[] = {"0",   "hello", "epoch", "ready", "ring", "broken",
                                      "bye", "cede",  "end",   "ask",   "keys"};
  char words[200];
  say("rank %d: %s of epoch %u, %u slots of %u%s, rings%s", from, m->kind <= HK_IB_KEYS ? kinds[m->kind] : "?",
      m->epoch, m->nslots, m->slot_bytes, m->magic == HK_IB_MAGIC ? "" : ", no magic",
      memory_words(m->ring, HK_IB_PATHS, words));
  if (m->kind == HK_IB_HELLO) {
    say("  %u ports, %u qps, apart %u", m->hello.nports, m->hello.nqps, m->hello.apart);
    for (uint32_t i = 0; i < m->hello.nports; i++) {
      const hk_ib_port *p = &m->hello.ports[i];
      say("  %s:%u of card %u, %u GIDs, MTU %u, layer %u, rail %d, position %u", p->device, p->number, p->card,
          p->ngids, p->mtu, p->layer, p->rail, p->position);
    }
  }
  if (m->kind == HK_IB_EPOCH) say_epoch(&m->epoch_info);
  if (m->kind == HK_IB_BYE) say("  received %llu", (unsigned long long)m->received);
  if (m->kind == HK_IB_BROKEN) say("  bad %#x: %s", m->broken.bad, m->broken.text);
  if (m->kind == HK_IB_CEDE) say("  directions %u: %.30s", m->cede.directions, m->cede.cause);
  if (m->kind == HK_IB_ASK || m->kind == HK_IB_KEYS)
    say("  window %llu of %llu bytes, signal %u is %llu, %sregistered, keys %u %u", (unsigned long long)m->keys.window,
        (unsigned long long)m->keys.bytes, m->keys.signal, (unsigned long long)m->keys.value,
        m->keys.registered ? "" : "not ", index_of(m->keys.rkeys[0]), index_of(m->keys.rkeys[1]));
}

/* The control connections: two socket pairs each, between which the test passes messages on. */
enum { CONTROLS = 16, SLOTS_SHOWN = 8 };
static struct {
  int ends[2], from[2]; /* from: the rank at each end */
  bool deaf;            /* nothing is passed on */
  bool plain;           /* another network's: passed on as it is */
} controls[CONTROLS];
static int ncontrols;

static inline hk_status traced_dial(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
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
  say("rank %d: dials %d for %c %llu", r->rank, peer, (int)(tag >> 56), (unsigned long long)(tag & 0xffffff));
  return HK_OK;
}

/* The control connections end, at both sides. */
static inline void cut_controls(void) {
  for (int i = 0; i < 2 * ncontrols; i++) {
    (void)shutdown(controls[i / 2].ends[i % 2], SHUT_RDWR);
    close(controls[i / 2].ends[i % 2]);
    controls[i / 2].ends[i % 2] = -1;
  }
}

static bool redial_fails, redial_gone;
static inline hk_status traced_redial(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  (void)stop;
  *gone = redial_gone;
  return redial_fails || redial_gone ? HK_ERR_REMOTE : traced_dial(arg, peer, NULL, tag, fd);
}

static inline void pass_controls(void) {
  static char bytes[1 << 18];
  for (int i = 0; i < 2 * ncontrols; i++) {
    const int from = controls[i / 2].ends[i % 2], to = controls[i / 2].ends[1 - i % 2];
    for (;;) {
      const size_t room = controls[i / 2].plain ? sizeof bytes : sizeof(hk_ib_msg);
      if (controls[i / 2].deaf) break;
      const ssize_t n = from < 0 ? 0 : recv(from, bytes, room, MSG_DONTWAIT);
      if (n == 0 && from >= 0) { /* the end of the connection */
        (void)shutdown(to, SHUT_WR);
        break;
      }
      if (n <= 0) break;
      if (!controls[i / 2].plain) {
        ck_assert_uint_eq((size_t)n, sizeof(hk_ib_msg));
        say_message(controls[i / 2].from[i % 2], (const hk_ib_msg *)(void *)bytes);
      }
      (void)!send(to, bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

/* ---- state ---- */

static inline void say_conn(int rank, const hk_ib_conn *c) {
  char words[3000] = "";
#define FACT(name, index, value) add_fact(rank, words, sizeof words, name, index, (uint64_t)(value))
#define FIELD(field) FACT(#field, -1, c->field)
#define OF(group, field) FACT(#field, -1, c->group.field)
  FIELD(phase), FIELD(epoch), OF(repair, attempts), FIELD(serial), FIELD(index), OF(times, timeout), FIELD(failed);
  FIELD(dials), OF(control, eof), OF(control, greeted), OF(control, bye), OF(repair, rested), OF(repair, ending),
      OF(control, gone), OF(repair, came);
  OF(rx, wanted), OF(tx, asked), FIELD(apart), FIELD(place), OF(control, looks), FIELD(ceded), OF(gpu, on_cards);
  OF(tx, posted), OF(tx, given), OF(tx, arrived), OF(tx, credit), OF(rx, returned), OF(rx, received);
  OF(places, offered), OF(places, announced), OF(gpu, flush.seen), OF(gpu, flush.asked), OF(gpu, flush.reads),
      OF(repair, mark);
  OF(repair, broken_ns), OF(repair, up_ns), OF(repair, retry_ns), FACT("looked", -1, c->repair.looked_ns != 0),
      FACT("repairing_ns", -1, c->repair.spent_ns), OF(repair, back_ns), OF(control, lost_ns);
  OF(ports, nmine), OF(ports, ntheirs), OF(ports, npairs), FIELD(npaths), FIELD(nqps),
      FACT("peer_nqps", -1, c->ports.nqps), OF(control, in_got);
  for (int sends = 0; sends < 2; sends++) {
    const hk_net_end *e = sends ? c->send : c->recv;
    if (!e) continue;
    FACT("next", sends, e->next);
    FACT("state", sends, atomic_load(&e->link->state));
    FACT("place_min", sends, atomic_load(&e->link->place_min));
    FACT("needs_buffer", sends, atomic_load(&e->link->needs_buffer));
    FACT("rung", sends, e->link->rung);
  }
  for (int i = 0; i < c->ports.npairs; i++) {
    FACT("works", i, c->ports.pairs[i].worked);
    FACT("out", i, c->ports.pairs[i].out);
  }
  for (uint32_t i = 0; i < c->npaths; i++) {
    FACT("pair", (int)i, c->paths[i].pair);
    FACT("bad", (int)i, c->paths[i].bad);
    FACT("dirty", (int)i, c->gpu.flush.readers[i].dirty);
    FACT("reading", (int)i, c->gpu.flush.readers[i].reading);
  }
  for (uint32_t i = 0; i < c->nqps; i++) {
    const hk_ib_qp *q = &c->qps[i];
    FACT("done", (int)i, q->done);
    FACT("posted", (int)i, q->posted);
    FACT("signaled", (int)i, q->signaled);
    FACT("looked", (int)i, q->looked);
    FACT("open", (int)i, (q->last + q->depth + 1 - q->first) % (q->depth + 1));
    FACT("owed", (int)i, q->recv_owed);
    FACT("path", (int)i, q->path - c->paths);
  }
  for (int i = 0; i < SLOTS_SHOWN; i++) {
    FACT("pending", i, c->tx.pending[i]);
    FACT("header", i, c->rx.headers[i]);
    FACT("parts", i, c->rx.parts[i]);
  }
  const hk_ib_remote *r = &c->remote;
  if (r->n) {
    FIELD(remote.busy), FIELD(remote.begun), FIELD(remote.again), FIELD(remote.asked), FIELD(remote.answered);
    FIELD(remote.signalled), FIELD(remote.denied), FIELD(remote.epoch), FIELD(remote.piece), FIELD(remote.target);
    FIELD(remote.value), FIELD(remote.sent), FIELD(remote.nkeys);
  }
  if (*words) say("rank %d:%s", rank, words);
}
static inline void say_ctx(int rank, const hk_ib_ctx *x) {
  char words[600] = "";
#define OF_CTX(field) FACT(#field, -1, x->field)
#define IN_CTX(group, field) FACT(#field, -1, x->group.field)
  OF_CTX(nconns), IN_CTX(progress, nactive), OF_CTX(room), IN_CTX(counts, pinned), IN_CTX(counts, pinned_most),
      IN_CTX(counts, placed), IN_CTX(counts, copied);
  OF_CTX(ceding), OF_CTX(scarce_reported), OF_CTX(asked_kernel), OF_CTX(ndevices), FACT("any_region", -1, x->user.any),
      IN_CTX(progress, swept);
  for (int i = 0; i < x->ndevices; i++) {
    const hk_ib_device *d = &x->devices[i];
    FACT("gone", i, d->gone);
    FACT("falls", i, d->falls);
    FACT("retry", i, d->retry_ns);
    FACT("ncqs", i, d->ncqs);
    for (int k = 0; k < d->ncqs; k++) {
      FACT("used", 10 * i + k, d->cqs[k].used);
      FACT("room", 10 * i + k, d->cqs[k].room);
      FACT("armed", 10 * i + k, d->cqs[k].armed);
    }
  }
  if (*words) say("rank %d has%s", rank, words);
}

/* ---- begin and end ---- */

static inline void trace_begin(const char *name, int devices) {
  begin(devices);
  trace_start(name);
  verbs->trace = see_call;
}

static inline void trace_end(void) {
  verbs->trace = NULL;
  for (int i = 0; i < 2 * ncontrols; i++)
    if (controls[i / 2].ends[i % 2] >= 0) close(controls[i / 2].ends[i % 2]);
  ncontrols = 0;
  trace_compare(TRACE_FILE);
  end();
}
#endif
