/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the transport of each peer, and opens the links. */
#include <stdlib.h>
#include <string.h>
#include "../base/facts.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../transport/peer.h"
#include "comm.h"
#include "wiring.h"

/* A wake-up takes some 50 us. After a long wait that does not matter. It is also cheap if other threads want the core,
 * which a long pause tells: a yield then costs their whole time slice, but a woken thread runs before them. */
enum { SLEEP_NS = 20 * 1000 * 1000, SLEEP_BUSY_NS = 200 * 1000, BUSY_PAUSE_NS = 20 * 1000 };
/* How long control connections may be lost while data uses another network. A switch may reboot, and the data network
 * itself detects hosts that are gone. */
enum { CONTROL_AWAY_S = 600 };

static hk_status wire_dial(void *arg, int peer, const union hk_addr *at, uint64_t tag, int *fd) {
  return hk_bootstrap_dial(((ncclComm_t)arg)->bootstrap, peer, at, tag, fd);
}

static hk_status wire_redial(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  return hk_bootstrap_redial(((ncclComm_t)arg)->bootstrap, peer, tag, stop, fd, gone);
}

static int wire_take(void *arg, int peer, uint64_t tag) {
  return hk_bootstrap_take(((ncclComm_t)arg)->bootstrap, peer, tag);
}

static void wire_serve(void *arg, uint64_t tag, void (*fn)(void *fn_arg, int peer, int fd), void *fn_arg) {
  hk_bootstrap_serve(((ncclComm_t)arg)->bootstrap, tag, fn, fn_arg);
}

hk_status hk_wire_new(ncclComm_t c) {
  c->wiring = calloc(1, sizeof *c->wiring);
  if (!c->wiring) return HK_FAIL_ERRNO("no memory for a communicator's links");
  c->wiring->multicast = c->wiring->sleeper = -1;
  c->links = &c->wiring->links;
  return HK_OK;
}

/* Where a transport's fact begins among those of a rank. */
static size_t wire_fact_at(int transport) {
  size_t at = 0;
  for (int t = 0; t < transport; t++) at += (hk_transports[t]->fact_bytes + 7) & ~(size_t)7;
  return at;
}

size_t hk_wire_fact_bytes(void) { return wire_fact_at(HK_TRANSPORT_COUNT); }

hk_status hk_wire_attach(ncclComm_t c, void *facts, void (*announce)(void *comm, hk_status rc, const char *text)) {
  hk_wiring *w = c->wiring;
  w->env = (hk_transport_env){.rank = c->rank,
                              .nranks = c->nranks,
                              .comm_id = hk_bootstrap_comm_id(c->bootstrap),
                              .secret = hk_bootstrap_secret(c->bootstrap),
                              .peers = c->peers,
                              .wait = &c->wait,
                              .service = c->service,
                              .meter = c->order.meter,
                              .dial = wire_dial,
                              .redial = wire_redial,
                              .take = wire_take,
                              .serve = wire_serve,
                              .announce = announce,
                              .arg = c,
                              .gpu = w->env.gpu, /* this and net_event: from those who have them */
                              .settings = c->settings,
                              .slot_bytes = (size_t)c->settings->SLOT_BYTES,
                              .nslots = (uint32_t)c->settings->SLOTS,
                              .net_name = c->options.net_name,
                              .traffic_class = c->options.traffic_class,
                              .net_event = w->env.net_event,
                              .profiler = c->profiler,
                              .states = w->states};
  w->via = calloc((size_t)c->nranks, sizeof *w->via);
  w->links.to = calloc((size_t)c->nranks, sizeof *w->links.to);
  if (!w->via || !w->links.to) {
    return HK_FAIL_ERRNO("no memory for the link table of %d ranks", c->nranks);
  }
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++)
    HK_OR_RETURN(hk_transports[t]->attach(&w->env, &w->states[t], (char *)facts + wire_fact_at(t)));
  return HK_OK;
}

/* Returns the first transport that reaches the peer; says once why a better one does not. */
static hk_status wire_choose_transport(ncclComm_t c, int peer) {
  hk_wiring *w = c->wiring;
  char why[160], reasons[480] = "";
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++) {
    why[0] = 0;
    if (hk_transports[t]->reachable(w->states[t], peer, why, sizeof why)) {
      w->via[peer] = (uint8_t)t;
      if (!w->env.gpu) /* on GPUs the backend reports the kernels' links, which matter there */
        HK_INFO(HK_SUB_INIT | HK_SUB_P2P, "rank %d reaches rank %d via %s%s%s", c->rank, peer, hk_transports[t]->name,
                reasons[0] ? "; not via " : "", reasons);
      return HK_OK;
    }
    if (!why[0]) continue;
    size_t used = strlen(reasons);
    snprintf(reasons + used, sizeof reasons - used, "%s%s (%s)", used ? ", " : "", hk_transports[t]->name, why);
  }
  return HK_FAIL(HK_ERR_SYSTEM, "rank %d cannot reach rank %d by any transport: %s", c->rank, peer, reasons);
}

/* If one transport that can sleep reaches all others, a long wait need not spend the core's time on polls. */
static int wire_only_sleeper(const hk_wiring *w, int rank, int nranks) {
  int sleeper = -1;
  for (int r = 0; r < nranks; r++) {
    if (r == rank) continue;
    const hk_transport_proxied *t = hk_transports[w->via[r]]->proxied;
    if (!t || !t->sleep || (sleeper >= 0 && sleeper != w->via[r])) return -1;
    sleeper = w->via[r];
  }
  return sleeper;
}

/* Sets up the services other than links that the transport of this host's ranks offers. */
static void wire_use_shared_words(ncclComm_t c) {
  hk_transport_state *s = hk_wire_host(c);
  struct hk_status_page *page = hk_wire_status_page(c, c->rank);
  if (s) c->order.call_checks = s->transport->host->call_checks(s);
  if (!page) return;
  pthread_mutex_lock(&c->health.lock); /* hk_watch_report may be reading it */
  c->order.page = page;
  pthread_mutex_unlock(&c->health.lock);
}

void hk_wire_share_failures(ncclComm_t c) {
  hk_transport_state *s = hk_wire_host(c);
  pthread_mutex_lock(&c->health.lock); /* the service thread may be in hk_comm_fail */
  if (s) c->wait.shared_failure = s->transport->host->failure_word(s);
  pthread_mutex_unlock(&c->health.lock);
}

hk_status hk_wire_join(ncclComm_t c, const hk_facts *all) {
  hk_status rc = HK_OK;
  hk_wiring *w = c->wiring;
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++) {
    const hk_facts facts = {.first = (const char *)all->first + wire_fact_at(t), .stride = all->stride};
    if (hk_transports[t]->join) HK_TRY(hk_transports[t]->join(w->states[t], &facts), out);
  }
  for (int r = 0; r < c->nranks; r++) HK_TRY(wire_choose_transport(c, r), out);
  w->sleeper = wire_only_sleeper(w, c->rank, c->nranks);
  for (int r = 0; r < c->nranks; r++) {
    const hk_transport_proxied *t = hk_transports[w->via[r]]->proxied;
    if (t && t->apart && t->apart(w->states[w->via[r]], r)) hk_bootstrap_tolerate(c->bootstrap, r, CONTROL_AWAY_S);
  }
  for (int t = 0; t < HK_TRANSPORT_COUNT && w->multicast < 0; t++)
    if (hk_transports[t]->multicast && hk_transports[t]->multicast(w->states[t])) w->multicast = t;
  wire_use_shared_words(c);
out:
  return rc;
}

hk_status hk_wire_pause(ncclComm_t c, hk_waiter *w) {
  const hk_wiring *wiring = c->wiring;
  const uint64_t before = w->waited_ns;
  hk_status rc = hk_wait_pause(w);
  if (rc != HK_OK || wiring->sleeper < 0 || wiring->collnet || !w->begin_ns) return rc;
  const uint64_t waited = w->waited_ns = hk_now_ns() - w->begin_ns;
  if (waited < SLEEP_BUSY_NS || (waited < SLEEP_NS && waited - before < BUSY_PAUSE_NS)) return rc;
  hk_transports[wiring->sleeper]->proxied->sleep(wiring->states[wiring->sleeper]);
  return rc;
}

/* ---- services of transports apart from links ---- */

struct hk_status_page *hk_wire_status_page(ncclComm_t c, int rank) {
  hk_transport_state *s = hk_wire_host(c);
  return s ? s->transport->host->status_page(s, rank) : NULL;
}

hk_transport_state *hk_wire_host(ncclComm_t c) {
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++)
    if (hk_transports[t]->host) return c->wiring->states[t];
  return NULL;
}

const char *hk_wire_no_files(ncclComm_t c) {
  hk_transport_state *s = hk_wire_host(c);
  return s ? s->transport->host->no_files(s) : "no transport passes them";
}

static hk_status wire_no_transport(ncclComm_t c, int peer) {
  return HK_FAIL(HK_ERR_SYSTEM, "rank %d cannot ask the process of rank %d: no transport does that", c->rank, peer);
}

hk_status hk_wire_file(ncclComm_t c, int peer, uint64_t region, int *fd, size_t *bytes) {
  hk_transport_state *s = hk_wire_host(c);
  return s ? s->transport->host->file(s, NULL, peer, region, fd, bytes) : wire_no_transport(c, peer);
}

hk_status hk_wire_ask(ncclComm_t c, int peer, int fd, void *payload) {
  hk_transport_state *s = hk_wire_host(c);
  return s ? s->transport->host->ask(s, peer, fd, payload) : wire_no_transport(c, peer);
}

hk_status hk_wire_notify(ncclComm_t c, int peer, int fd, void *payload) {
  hk_transport_state *s = hk_wire_host(c);
  return s ? s->transport->host->notify(s, peer, fd, payload) : wire_no_transport(c, peer);
}

void hk_wire_answer_with(ncclComm_t c, hk_answer *answer, void *arg) {
  hk_transport_state *s = hk_wire_host(c);
  if (s) s->transport->host->answer_with(s, answer, arg);
}

/* ---- hosts ---- */

bool hk_wire_near(ncclComm_t c, int peer) { return c->peers[peer].host == c->peers[c->rank].host; }

int hk_wire_host_ranks(const struct ncclComm *c, int rank) {
  int ranks = 0;
  for (int i = 0; i < c->nranks; i++) ranks += c->peers[i].host == c->peers[rank].host;
  return ranks;
}

/* ---- links ---- */

hk_status hk_wire_link(ncclComm_t c, hk_link_key key, hk_wired_link **out) {
  hk_status rc = HK_OK;
  hk_wiring *w = c->wiring;
  hk_wired_link *l = NULL;
  bool multicast = key.kind == HK_LINK_MCAST_SEND || key.kind == HK_LINK_MCAST_RECV;
  bool sums = hk_link_in_group((hk_link_kind)key.kind);
  if (!w->links.to[key.peer] && !(w->links.to[key.peer] = calloc(1, sizeof(hk_peer_links))))
    return HK_FAIL_ERRNO("no memory for links to rank %d", key.peer);
  hk_wired_link **at = &w->links.to[key.peer]->at[key.channel][key.kind];
  if (!*at) {
    hk_cancel_hold(); /* a connection may be made */
    int t = multicast ? w->multicast : w->via[key.peer];
    hk_transport_state *s = sums ? w->collnet : t >= 0 ? w->states[t] : NULL;
    if (!s) return HK_FAIL(HK_ERR_INTERNAL, "a program asks for links of kind %u, which no transport has", key.kind);
    l = aligned_alloc(HK_CACHE_LINE, (sizeof *l + HK_CACHE_LINE - 1) & ~(size_t)(HK_CACHE_LINE - 1));
    if (!l) return HK_FAIL_ERRNO("no memory for a link to rank %d", key.peer);
    memset(l, 0, sizeof *l);
    l->link.peer = key.peer;
    l->link.kind = key.kind;
    l->link.owner = s;
    HK_TRY(s->transport->open(s, &key, &l->link), undo);
    if (l->link.proxied) w->links.any_pump = true;
    if (l->link.proxied && !sums) w->pumps[t] = true;
    *at = l;
  }
  *out = *at;
  return HK_OK;
undo:
  if (rc == HK_ERR_REMOTE) w->lost = key.peer + 1;
  free(l);
  return rc;
}

hk_status hk_wire_progress(ncclComm_t c, bool *moved) {
  hk_cancel_hold();
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++)
    if (c->wiring->pumps[t]) HK_OR_RETURN(hk_transports[t]->proxied->progress(c->wiring->states[t], moved));
  if (c->wiring->collnet) HK_OR_RETURN(c->wiring->collnet->transport->proxied->progress(c->wiring->collnet, moved));
  return HK_OK;
}

hk_transport_env *hk_wire_env(ncclComm_t c) { return &c->wiring->env; }

hk_transport_state *hk_wire_state(ncclComm_t c, int peer) { return c->wiring->states[c->wiring->via[peer]]; }

void hk_wire_use_collnet(ncclComm_t c, hk_transport_state *s) { c->wiring->collnet = s; }

bool hk_wire_proxied(ncclComm_t c, int peer) { return hk_transports[c->wiring->via[peer]]->proxied != NULL; }

hk_wired_link *hk_wire_next(ncclComm_t c, hk_link_walk *walk) {
  enum { EACH = HK_CHANNEL_COUNT * HK_LINK_KINDS };
  for (; c->links->to && walk->peer < c->nranks; walk->peer++, walk->i = 0) {
    const hk_peer_links *p = c->links->to[walk->peer];
    while (p && walk->i < EACH) {
      int i = walk->i++;
      walk->channel = i / HK_LINK_KINDS;
      hk_wired_link *l = p->at[i / HK_LINK_KINDS][i % HK_LINK_KINDS];
      if (l) return l;
    }
  }
  return NULL;
}

double hk_wire_reads(ncclComm_t c) {
  const int all = c->wiring->multicast; /* the transport that reaches all */
  const hk_transport_zero_copy *t = all >= 0 ? hk_transports[all]->zero_copy : NULL;
  return t && t->reads ? t->reads(c->wiring->states[all]) : 0;
}

bool hk_wire_multicasts(ncclComm_t c) { return c->wiring->multicast >= 0; }

int hk_wire_broken(ncclComm_t c) {
  if (c->wiring->lost) return c->wiring->lost - 1;
  hk_link_walk walk = {0};
  /* relaxed: set by the transport's call that failed, on this thread */
  for (const hk_wired_link *l; (l = hk_wire_next(c, &walk));)
    if (atomic_load_explicit(&l->link.state, memory_order_relaxed) == HK_LINK_FAILED) return l->link.peer;
  return -1;
}

void hk_wire_memory(ncclComm_t c, void *base, size_t bytes, bool there) {
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++)
    if (hk_transports[t]->zero_copy && hk_transports[t]->zero_copy->memory && c->wiring->states[t])
      hk_transports[t]->zero_copy->memory(c->wiring->states[t], base, bytes, there);
}

const struct hk_remote *hk_wire_remote(ncclComm_t c, int peer, void **ctx) {
  hk_transport_state *s = hk_wire_state(c, peer);
  const hk_transport_proxied *t = s->transport->proxied;
  return t && t->remote ? t->remote(s, peer, ctx) : NULL;
}

void hk_wire_withdraw(ncclComm_t c) {
  for (int t = 0; t < HK_TRANSPORT_COUNT; t++)
    if (c->wiring->pumps[t] && hk_transports[t]->proxied->withdraw)
      hk_transports[t]->proxied->withdraw(c->wiring->states[t]);
  for (int sends = 0; sends < 2; sends++) { /* receivers first: the sender may be this rank, or wait for it */
    hk_link_walk walk = {0};
    for (hk_wired_link *l; (l = hk_wire_next(c, &walk));)
      if (hk_link_sends((hk_link_kind)l->link.kind) == sends) hk_link_withdraw(&l->link);
  }
}

void hk_wire_free(ncclComm_t c) {
  hk_wiring *w = c->wiring;
  hk_link_walk walk = {0};
  for (hk_wired_link *l; (l = hk_wire_next(c, &walk));) {
    if (l->link.owner->transport->close) l->link.owner->transport->close(&l->link);
    free(l);
  }
  for (int r = 0; w->links.to && r < c->nranks; r++) free(w->links.to[r]);
  pthread_mutex_lock(&c->health.lock); /* the service thread may be in hk_comm_fail */
  c->wait.shared_failure = NULL;       /* the word is in the transport's memory, as is the status page */
  c->order.page = c->order.own_page;
  pthread_mutex_unlock(&c->health.lock);
  if (w->collnet) w->collnet->transport->detach(w->collnet);
  for (int t = HK_TRANSPORT_COUNT - 1; t >= 0; t--)
    if (w->states[t]) w->states[t]->transport->detach(w->states[t]);
  free(w->links.to);
  free(w->via);
}
