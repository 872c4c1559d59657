/* SPDX-License-Identifier: Apache-2.0 */
/* The relay transport: chooses the relay for two ranks that no rail joins, and makes the two ends of such a link
 * (relay.h). */
#include "relay.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/facts.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/tcp.h"
#include "../device/host.h"
#include "net/net.h"
#include "peer.h"
#include "registry.h"

extern const hk_transport hk_transport_relay; /* registry.c names it */

enum {
  LOOKS = 64, /* calls of progress between two looks at the connections to relays */
  CLOSE_S = 6 /* R needs less time to flush its slots */
};

typedef struct relay_fact {
  uint8_t off; /* OFF_*: the rank neither is a relay nor uses a relay of its host */
} relay_fact;
enum { OFF_PXN = 1, OFF_SHM };

/* The near end of a link. */
typedef struct near_end {
  struct near_end *next;
  hk_link *link;
  int relay, fd;
  hk_relay_fifo fifo;
  uint64_t region;
  bool gone; /* R has closed the connection, or reported a failure */
  char news[HK_RELAY_TEXT];
  size_t got;
} near_end;

typedef struct relay_rank {
  uint8_t off;  /* its relay_fact */
  int local;    /* index among the ranks of its host */
  int next;     /* of its host; the last one is followed by the first */
  int to, from; /* the relays of this rank's messages to it and from it; -1: none */
} relay_rank;

typedef struct relay_state {
  hk_transport_state base; /* first */
  relay_rank *ranks;       /* [nranks] */
  bool found;              /* the relays have been found; done at the first use */
  hk_relay_server *server; /* NULL: no rank of this host may need this one */
  near_end *ends;
  unsigned looks;
} relay_state;

/* ---- memory ---- */

enum { PAGE = 4096 };
static size_t relay_control_bytes(const hk_transport_env *e) {
  return hk_round_up(e->nslots * sizeof(hk_slot) + sizeof(hk_head), PAGE);
}
size_t hk_relay_fifo_bytes(const hk_transport_env *e) {
  return PAGE + relay_control_bytes(e) + hk_round_up(e->nslots * e->slot_bytes, PAGE);
}

bool hk_relay_fifo_map(const hk_transport_env *e, int fd, hk_relay_fifo *f) {
  *f = (hk_relay_fifo){.bytes = hk_relay_fifo_bytes(e)};
  char *base = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return false;
  f->base = base;
  f->asleep = (_Atomic(uint32_t) *)(void *)base;
  f->slots = (hk_slot *)(void *)(base + PAGE);
  f->payload = base + PAGE + relay_control_bytes(e);
  return true;
}

void hk_relay_fifo_unmap(hk_relay_fifo *f) {
  if (f->base) munmap(f->base, f->bytes);
  f->base = NULL;
}

/* ---- the relays: all ranks find the same ---- */

static hk_transport_state *relay_net_of(const hk_transport_env *e) { return e->states[HK_TRANSPORT_net]; }
static bool relay_is_near(const hk_transport_env *e, int a, int b) { return e->peers[a].host == e->peers[b].host; }

/* True if `by` is the network that the two ranks use and connects them. */
static bool relay_joined_by(const hk_transport_env *e, const struct hk_net_used *by, int a, int b) {
  bool joined;
  char why[160];
  return hk_net_between(relay_net_of(e), a, b, &joined, why, sizeof why) == by && joined;
}

/* True if `r` may be the relay between rank `near`, another one of its host, and rank `far`. */
static bool relay_may_relay(const relay_state *s, const struct hk_net_used *by, int near, int r, int far) {
  return !s->ranks[r].off && !s->ranks[near].off && s->ranks[near].local < HK_RELAY_NEAR &&
         relay_joined_by(s->base.env, by, r, far);
}

/* One of the possible relays on the host of `near`; pairs are distributed over them. -1: none. */
static int relay_among(const relay_state *s, const struct hk_net_used *by, int near, int far) {
  int n = 0;
  for (int r = s->ranks[near].next; r != near; r = s->ranks[r].next) n += relay_may_relay(s, by, near, r, far);
  int skip = n ? (near + far) % n : 0;
  for (int r = s->ranks[near].next; r != near; r = s->ranks[r].next)
    if (relay_may_relay(s, by, near, r, far) && !skip--) return r;
  return -1;
}

/* The relay on the sender's host, or else one on the receiver's host. */
static int relay_between(const relay_state *s, const struct hk_net_used *by, int from, int to) {
  int r = relay_among(s, by, from, to);
  return r >= 0 ? r : relay_among(s, by, to, from);
}

/* The network that the two would use if a rail joined them, with the reason why none does; NULL: they are joined, or
 * share no network. */
static const struct hk_net_used *relay_isolated(const hk_transport_env *e, int a, int b, char *why, size_t why_bytes) {
  bool joined;
  const struct hk_net_used *by =
      relay_is_near(e, a, b) ? NULL : hk_net_between(relay_net_of(e), a, b, &joined, why, why_bytes);
  return by && !joined ? by : NULL;
}

/* True if this rank may be the relay of some pair. */
static bool relay_may_serve(const relay_state *s) {
  const hk_transport_env *e = s->base.env;
  char why[160];
  for (int near = s->ranks[e->rank].next; near != e->rank; near = s->ranks[near].next)
    for (int far = 0; far < e->nranks; far++) {
      const struct hk_net_used *by = relay_isolated(e, near, far, why, sizeof why);
      if (by && relay_may_relay(s, by, near, e->rank, far)) return true;
    }
  return false;
}

/* After all transports have joined. */
static void relay_find_relays(relay_state *s) {
  const hk_transport_env *e = s->base.env;
  char why[160];
  for (int r = 0; r < e->nranks; r++) {
    const struct hk_net_used *by = r == e->rank ? NULL : relay_isolated(e, e->rank, r, why, sizeof why);
    relay_rank *peer = &s->ranks[r];
    peer->to = by ? relay_between(s, by, e->rank, r) : -1;
    peer->from = by ? relay_between(s, by, r, e->rank) : -1;
    if (peer->to < 0 || peer->from < 0) continue;
    HK_INFO(HK_SUB_INIT | HK_SUB_NET,
            "rank %d sends to rank %d through rank %d (PXN), and receives through rank %d: %s", e->rank, r, peer->to,
            peer->from, why);
  }
  if (relay_may_serve(s)) s->server = hk_relay_server_new(e);
}

static bool relay_reachable(hk_transport_state *state, int peer, char *why, size_t why_bytes) {
  relay_state *s = (relay_state *)state;
  const hk_transport_env *e = state->env;
  char cause[100];
  *why = '\0';
  if (peer == e->rank || !s->ranks || !relay_net_of(e)) return false;
  if (!s->found) relay_find_relays(s);
  s->found = true;
  if (!relay_isolated(e, e->rank, peer, cause, sizeof cause)) return false;
  if (s->ranks[peer].to >= 0 && s->ranks[peer].from >= 0) return true;
  bool off = s->ranks[peer].off == OFF_PXN || s->ranks[e->rank].off == OFF_PXN;
  snprintf(why, why_bytes, "%s; %s", cause,
           off ? "NCCL_PXN_DISABLE=0 and NCCL_P2P_PXN_LEVEL=2 let other ranks pass it on"
               : "no third rank of their hosts reaches both");
  return false;
}

/* ---- state ---- */

static hk_status relay_attach(const hk_transport_env *env, hk_transport_state **out, void *fact) {
  relay_state *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL_ERRNO("no memory for the relays of rank %d", env->rank);
  s->base = (hk_transport_state){&hk_transport_relay, env};
  if (env->settings->PXN_DISABLE || !env->settings->P2P_PXN_LEVEL)
    ((relay_fact *)fact)->off = OFF_PXN;
  else if (env->settings->SHM_DISABLE)
    ((relay_fact *)fact)->off = OFF_SHM;
  *out = &s->base;
  return HK_OK;
}

static int relay_by_host(const void *a, const void *b, void *peers) {
  const struct hk_peer *p = peers;
  const int x = *(const int *)a, y = *(const int *)b;
  if (p[x].host != p[y].host) return p[x].host < p[y].host ? -1 : 1;
  return x - y;
}

static hk_status relay_join(hk_transport_state *state, const hk_facts *facts) {
  relay_state *s = (relay_state *)state;
  const hk_transport_env *e = state->env;
  const size_t n = (size_t)e->nranks;
  if (!e->states) return HK_OK;
  int *sorted = malloc(n * sizeof *sorted);
  s->ranks = calloc(n, sizeof *s->ranks);
  if (!sorted || !s->ranks) {
    free(sorted);
    return HK_FAIL_ERRNO("no memory for the relays of rank %d", e->rank);
  }
  for (int r = 0; r < e->nranks; r++) {
    s->ranks[r].off = ((const relay_fact *)hk_fact_of(facts, r))->off;
    sorted[r] = r;
  }
  qsort_r(sorted, n, sizeof *sorted, relay_by_host, (void *)(uintptr_t)e->peers);
  for (int i = 0, first = 0; i < e->nranks; i++) {
    if (!relay_is_near(e, sorted[i], sorted[first])) first = i;
    s->ranks[sorted[i]].local = i - first;
    s->ranks[sorted[i]].next = sorted[first];
    if (i > first) s->ranks[sorted[i - 1]].next = sorted[i];
  }
  free(sorted);
  return HK_OK;
}

static void relay_detach(hk_transport_state *state) {
  relay_state *s = (relay_state *)state;
  hk_relay_server_end(s->server);
  free(s->ranks);
  free(s);
}

static bool relay_apart(hk_transport_state *state, int peer) {
  const hk_transport_env *e = state->env;
  int to = ((relay_state *)state)->ranks[peer].to;
  return hk_transport_net.proxied->apart(relay_net_of(e), relay_is_near(e, to, peer) ? to : peer);
}

/* ---- the far end: a link of the network ---- */

/* Sets *to to the network's link with the relay. Returns false if the relay is on this rank's host. */
static bool relay_is_far(hk_transport_state *state, const hk_link_key *key, hk_link_key *to) {
  const relay_state *s = (const relay_state *)state;
  const relay_rank *peer = &s->ranks[key->peer];
  int relay = key->kind == HK_LINK_SEND ? peer->to : peer->from;
  *to = *key;
  to->peer = relay;
  to->channel = hk_relay_channel(relay, state->env->rank, peer->local, key->channel);
  return !relay_is_near(state->env, relay, state->env->rank);
}

static bool relay_grows(hk_transport_state *state, const hk_link_key *key) {
  hk_link_key to;
  return relay_is_far(state, key, &to) && hk_transport_net.payload->grows(relay_net_of(state->env), &to);
}

static hk_status relay_prepare(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  hk_link_key to;
  return relay_is_far(state, key, &to) ? hk_transport_net.payload->prepare(relay_net_of(state->env), &to, link) : HK_OK;
}

/* Called between `prepare` and `open`; after that the network reserves memory for a far end. */
static hk_status relay_reserve(hk_link *link, char **data) {
  if (link->priv) return hk_transport_net.payload->reserve(link, data);
  *data = NULL;
  return HK_OK;
}

/* ---- the near end ---- */

static hk_status relay_ask_relay(near_end *n, const hk_link_key *key, const hk_transport_env *e) {
  hk_status rc = HK_OK;
  const relay_state *s = (const relay_state *)n->link->owner;
  hk_relay_request q = {.region = n->region,
                        .far = key->peer,
                        .kind = key->kind,
                        .channel = hk_relay_channel(n->relay, key->peer, s->ranks[e->rank].local, key->channel)};
  HK_TRY(e->dial(e->arg, n->relay, NULL, HK_RELAY_TAG, &n->fd), out);
  /* The send buffer of a new connection has room for these few bytes. */
  if (hk_tcp_send(n->fd, &q, sizeof q) != (ssize_t)sizeof q)
    rc = HK_FAIL_ERRNO("rank %d cannot ask rank %d for a link to rank %u", e->rank, n->relay, key->peer);
out:
  return rc;
}

static void relay_drop_near(near_end *n) {
  if (n->fd >= 0) hk_tcp_close(n->fd);
  hk_host_take_back(n->region);
  hk_relay_fifo_unmap(&n->fifo);
  free(n);
}

static hk_status relay_open_near(hk_transport_state *state, const hk_link_key *key, int relay, hk_link *link) {
  hk_status rc = HK_OK;
  relay_state *s = (relay_state *)state;
  const hk_transport_env *e = state->env;
  near_end *n = calloc(1, sizeof *n);
  if (!n) return HK_FAIL_ERRNO("no memory for a link to rank %u", key->peer);
  *n = (near_end){.link = link, .relay = relay, .fd = -1};
  int fd = hk_host_memfd("hocket-relay", hk_relay_fifo_bytes(e));
  if (fd < 0 || !hk_relay_fifo_map(e, fd, &n->fifo)) {
    rc = HK_FAIL_ERRNO("rank %d has no memory for a link to rank %u through rank %d", e->rank, key->peer, relay);
    if (fd >= 0) close(fd);
    goto undo;
  }
  HK_TRY(hk_host_lend(fd, n->fifo.bytes, false, &n->region), undo);
  *link = hk_link_in_memory(e, key, n->fifo.slots, n->fifo.payload);
  link->proxied = 1;
  link->owner = state;
  link->priv = n;
  HK_TRY(relay_ask_relay(n, key, e), undo);
  n->next = s->ends;
  s->ends = n;
  return HK_OK;
undo:
  relay_drop_near(n);
  link->priv = NULL;
  return rc;
}

static hk_status relay_open(hk_transport_state *state, const hk_link_key *key, hk_link *link) {
  hk_link_key to;
  if (!relay_is_far(state, key, &to)) return relay_open_near(state, key, to.peer, link);
  HK_OR_RETURN(hk_transport_net.open(relay_net_of(state->env), &to, link));
  link->peer = key->peer;
  return HK_OK;
}

static void relay_ring(hk_link *link) {
  const near_end *n = link->priv;
  const char bell = 0;
  link->rung = 0; /* for every slot */
  /* seq_cst: R stores `asleep` and then looks at the slot; this rank has filled the slot and then looks at `asleep` */
  atomic_thread_fence(memory_order_seq_cst);
  /* relaxed: ordered by the fence. A full connection already carries enough wake-up bytes; progress detects a broken
   * one. */
  if (atomic_load_explicit(n->fifo.asleep, memory_order_relaxed) && hk_tcp_send(n->fd, &bell, 1) < 0) return;
}

/* Reads the relay's reports. */
static void relay_look(near_end *n) {
  ssize_t got;
  if (n->gone) return;
  while ((got = hk_tcp_recv(n->fd, n->news + n->got, sizeof n->news - 1 - n->got)) > 0) n->got += (size_t)got;
  if (got < 0 && (errno == EAGAIN || errno == EINTR) && !n->got) return;
  n->gone = true;                                /* after a report, too: the relay moves nothing any more */
  hk_link_set_waiting(n->link, HK_LINK_NO_WAIT); /* a lane that still waits sets it again */
}

/* A relay that has gone is an error once its link is needed. */
static hk_status relay_check(const near_end *n) {
  hk_link *l = n->link;
  bool sends = l->kind == HK_LINK_SEND;
  if (sends ? hk_link_drained(l) : hk_link_waits(l) != HK_LINK_WAITS || hk_link_can_recv(l)) return HK_OK;
  atomic_store_explicit(&l->state, HK_LINK_FAILED, memory_order_relaxed); /* relaxed: for this thread */
  return HK_FAIL(HK_ERR_REMOTE, "rank %d, through which rank %d %s rank %u (PXN), %s%s", n->relay, l->owner->env->rank,
                 sends ? "sends to" : "receives from", l->peer,
                 n->got ? "reports: " : "has ended or left the communicator (ncclCommDestroy)", n->news);
}

static hk_status relay_progress(hk_transport_state *state, bool *moved) {
  relay_state *s = (relay_state *)state;
  for (near_end *n = s->ends; n; n = n->next) {
    if (!n->gone && s->looks % LOOKS == 0)
      relay_look(n);
    else if (n->gone)
      HK_OR_RETURN(relay_check(n));
  }
  s->looks++;
  return hk_transport_net.proxied->progress(relay_net_of(state->env), moved); /* far ends */
}

/* The relay has moved on all slots when it closes the connection. */
static void relay_await_flush(near_end *n) {
  const hk_transport_env *e = n->link->owner->env;
  hk_wait_env wait = {.failure = e->wait ? e->wait->failure : NULL,
                      .deadline_ns = hk_now_ns() + CLOSE_S * UINT64_C(1000000000)};
  if (shutdown(n->fd, SHUT_WR) != 0) return;
  for (relay_look(n); !n->gone; relay_look(n))
    if (hk_wait_fd(&wait, n->fd, POLLIN, "a relay") != HK_OK) return;
}

static void relay_close(hk_link *link) {
  near_end *n = link->priv;
  if (!n->gone) relay_await_flush(n);
  HK_LIST_REMOVE(((relay_state *)link->owner)->ends, n, next);
  relay_drop_near(n);
  link->priv = NULL;
}

static void relay_withdraw(hk_transport_state *state) { hk_transport_net.proxied->withdraw(relay_net_of(state->env)); }

static const hk_transport_payload relay_payload = {
    .grows = relay_grows,
    .prepare = relay_prepare,
    .reserve = relay_reserve,
};

static const hk_transport_proxied relay_proxied = {
    .progress = relay_progress,
    .ring = relay_ring,
    .withdraw = relay_withdraw,
    .one_way = true,
    .apart = relay_apart,
};

/* Far ends belong to the network once they are open, so functions that only they need are missing here. */
const hk_transport hk_transport_relay = {
    .name = "relay",
    .fact_bytes = sizeof(relay_fact),
    .attach = relay_attach,
    .join = relay_join,
    .reachable = relay_reachable,
    .open = relay_open,
    .close = relay_close,
    .detach = relay_detach,
    .payload = &relay_payload,
    .proxied = &relay_proxied,
};
