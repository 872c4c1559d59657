/* SPDX-License-Identifier: Apache-2.0 */
/* The socket provider: makes connections, and decides which of them to poll. */
#include "socket.h"
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "../../../base/array.h"
#include "../../../base/iface.h"
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../base/tcp.h"
#include "../../peer.h"

enum {
  MY_IFACES = 32,
  /* Up to this many sockets are polled with recv() instead of epoll: an empty recv() costs 0.25 us, epoll_wait()
   * 0.6. */
  ASKED_DIRECTLY = 3,
  EVENTS = 64,
  IDLE_POLLS = 256 /* between two reads of the clock */
};

typedef struct socket_ctx {
  const hk_transport_env *env;
  hk_iface ifaces[MY_IFACES];
  int nifaces;
  uint32_t dropped;   /* those that reach no peer, by hk_socket_addr.iface */
  hk_addr last_local; /* the local address of the last connection, and its interface's name */
  char last_name[IFNAMSIZ];
  const char *facts;
  size_t stride;
  uint32_t lead_max;
  char congestion[16]; /* the system's choice of congestion control; empty: not known */
  int epoll;
  hk_socket_conn **conns, **waiting; /* with room for nconns */
  int nconns, nconnecting;
  int nblocked;  /* connections whose kernel buffers were full at the last poll */
  unsigned idle; /* polls that moved nothing */
  uint64_t next_check_ns;
  unsigned silence_s;
  hk_socket_threads *threads; /* started at the first connection with several sockets, if threads are wanted */
  bool threads_tried;
} socket_ctx;

/* ---- context ---- */

static bool socket_usable(const hk_settings *set, char *why, size_t why_bytes) {
  (void)set, (void)why, (void)why_bytes;
  return true; /* every host has TCP; one without an interface fails in the bootstrap, with an error of its own */
}

/* That of a new socket. */
static void socket_find_congestion(socket_ctx *x) {
  socklen_t bytes = sizeof x->congestion - 1;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, x->congestion, &bytes) != 0) *x->congestion = 0;
  if (fd >= 0) close(fd);
}

static long socket_l2_bytes(void) {
#ifdef _SC_LEVEL2_CACHE_SIZE
  return sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  return 0;
#endif
}

static hk_status socket_init(const hk_transport_env *env, void **out, void *fact) {
  hk_status rc;
  socket_ctx *x = calloc(1, sizeof *x);
  if (!x) return HK_FAIL_ERRNO("no memory for the sockets of rank %d", env->rank);
  x->env = env;
  x->epoll = -1;
  x->nifaces = MY_IFACES;
  const char *names = env->settings->SOCKET_IFNAME;
  socket_find_congestion(x);
  x->lead_max = hk_socket_lead_of(socket_l2_bytes());
  x->silence_s = (unsigned)env->settings->PEER_TIMEOUT;
  HK_TRY(hk_ifaces(env->settings, x->ifaces, &x->nifaces, NULL), out);
  hk_socket_describe(env->settings, fact, x->ifaces, x->nifaces);
  ((hk_socket_fact *)fact)->named = names && *names && *names != '^';
  for (int i = 0; i < x->nifaces; i++) {
    char text[HK_ADDR_TEXT];
    HK_INFO(HK_SUB_NET, "interface %d: %s %s, %u Mb/s%s", i, x->ifaces[i].name,
            hk_addr_format(&x->ifaces[i].addr, text), x->ifaces[i].speed_mbps,
            x->ifaces[i].kind == HK_IFACE_BRIDGE ? ", a bridge of this host" : "");
  }
  *out = x;
  return HK_OK;
out:
  free(x);
  return rc;
}

static void socket_join(void *ctx, const char *facts, size_t stride) {
  socket_ctx *x = ctx;
  x->facts = facts;
  x->stride = stride;
}

static void socket_fini(void *ctx) {
  socket_ctx *x = ctx;
  hk_socket_threads_end(x->threads);
  if (x->epoll >= 0) close(x->epoll);
  free(x->conns);
  free(x->waiting);
  free(x);
}

static void socket_fact_of(const socket_ctx *x, int rank, hk_socket_fact *out) {
  memcpy(out, x->facts + (size_t)rank * x->stride, sizeof *out);
}

/* ---- connecting ---- */

static uint64_t socket_tag_of(const hk_socket_conn *c, int socket) {
  return ((uint64_t)'N' << 56) | ((uint64_t)c->channel << 8) | (uint64_t)socket;
}

static bool socket_same_host(const socket_ctx *x, int peer) {
  return x->env->peers && x->env->peers[peer].host == x->env->peers[x->env->rank].host;
}

static void socket_set_options(const socket_ctx *x, int peer, int fd) {
  int one = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  /* Connections begin without pacing (hk_tcp_unpaced). Inside a host there is no congestion: to bbr, which sends at the
   * speed that it measures, a reader that waits for its core looks like a slow network, and calls of 13 ms took up to
   * 150. */
  if (socket_same_host(x, peer))
    hk_tcp_unpaced(fd);
  else if (*x->congestion)
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, x->congestion, (socklen_t)strlen(x->congestion));
  /* A lane that waits checks by itself, after 5/4 of the limit; the kernel ends a connection only long after that. */
  hk_silence_watch(fd, x->silence_s, 9);
}

static void socket_describe_route(socket_ctx *x, hk_socket_wire *w) {
  hk_addr local, remote;
  socklen_t ln = sizeof local, rn = sizeof remote;
  char a[HK_ADDR_TEXT], b[HK_ADDR_TEXT];
  memset(&local, 0, sizeof local);
  memset(&remote, 0, sizeof remote);
  if (getsockname(w->fd, &local.sa, &ln) != 0 || getpeername(w->fd, &remote.sa, &rn) != 0) return;
  hk_addr_unmap(&local);
  hk_addr_unmap(&remote);
  hk_addr host = local;
  hk_addr_set_port(&host, 0);
  for (int i = 0; i < x->nifaces && !*w->iface; i++)
    if (hk_addr_same_host(&host, &x->ifaces[i].addr)) memcpy(w->iface, x->ifaces[i].name, IFNAMSIZ);
  if (!*w->iface) { /* a lookup costs system calls, and most connections share an address */
    if (!hk_addr_equal(&host, &x->last_local)) hk_iface_name_of(&host, x->last_name);
    x->last_local = host;
    memcpy(w->iface, x->last_name, IFNAMSIZ);
  }
  snprintf(w->route, sizeof w->route, "%s -> %s%s%s", hk_addr_format(&local, a), hk_addr_format(&remote, b),
           *w->iface ? ", interface " : "", w->iface);
}

/* The kernel cuts it to net.core.rmem_max, wmem_max. */
static void socket_set_buffer(int fd, int option, int64_t bytes) {
  const int n = (int)bytes;
  if (bytes > 0 && setsockopt(fd, SOL_SOCKET, option, &n, sizeof n) != 0)
    HK_INFO(HK_SUB_NET, "%s of %d bytes: %s", option == SO_RCVBUF ? "NCCL_SOCKET_RCVBUF" : "NCCL_SOCKET_SNDBUF", n,
            strerror(errno));
}

/* The connection has one more socket. */
static void socket_add_socket(socket_ctx *x, hk_socket_conn *c, int fd) {
  hk_socket_wire *w = &c->wires[c->nconnected++];
  w->fd = fd;
  socket_set_options(x, c->peer, fd);
  socket_set_buffer(fd, SO_RCVBUF, x->env->settings->SOCKET_RCVBUF);
  socket_set_buffer(fd, SO_SNDBUF, x->env->settings->SOCKET_SNDBUF);
  socket_describe_route(x, w);
}

static void socket_connected(socket_ctx *x, hk_socket_conn *c) {
  /* relaxed: the state says nothing about other memory */
  if (c->send) atomic_store_explicit(&c->send->link->state, HK_LINK_READY, memory_order_relaxed);
  if (c->recv) atomic_store_explicit(&c->recv->link->state, HK_LINK_READY, memory_order_relaxed);
  HK_INFO(HK_SUB_NET, "rank %d: channel %d to rank %d over %d socket%s, %s", x->env->rank, c->channel, c->peer,
          c->nsockets, c->nsockets == 1 ? "" : "s", c->wires[0].route);
  for (int s = 1; s < c->nsockets; s++) /* the interfaces take turns: the others come before the first one again */
    if (strcmp(c->wires[s].iface, c->wires[0].iface) == 0)
      break;
    else
      HK_INFO(HK_SUB_NET, "rank %d: channel %d to rank %d also over %s", x->env->rank, c->channel, c->peer,
              c->wires[s].route);
}

/* The interface of this rank in the network of `to` does not reach the peer: a cable is unplugged, or two networks have
 * the same number. */
static void socket_drop_iface(socket_ctx *x, const hk_socket_route *route, int peer) {
  char text[HK_ADDR_TEXT];
  HK_INFO(HK_SUB_NET, "rank %d: the interface to %s does not reach rank %d and is not used", x->env->rank,
          hk_addr_format(&route->to, text), peer);
  x->dropped |= 1u << route->iface;
}

static bool socket_leads_to(int fd, const hk_addr *to) {
  hk_addr peer;
  socklen_t n = sizeof peer;
  memset(&peer, 0, sizeof peer);
  if (getpeername(fd, &peer.sa, &n) != 0) return true;
  hk_addr_set_port(&peer, hk_addr_port(to));
  return hk_addr_equal(&peer, to);
}

static hk_status socket_dial(socket_ctx *x, hk_socket_conn *c) {
  const hk_transport_env *env = x->env;
  hk_socket_fact mine, theirs;
  hk_socket_route routes[HK_SOCKET_ADDRS];
  socket_fact_of(x, env->rank, &mine);
  socket_fact_of(x, c->peer, &theirs);
  while (c->nconnected < c->nsockets) {
    int fd, n = socket_same_host(x, c->peer) ? 0 : hk_socket_routes(&mine, &theirs, x->dropped, routes);
    const hk_socket_route *r = n ? &routes[(c->channel + c->nconnected) % n] : NULL;
    HK_OR_RETURN(env->dial(env->arg, c->peer, r ? &r->to : NULL, socket_tag_of(c, c->nconnected), &fd));
    socket_add_socket(x, c, fd);
    /* If the address does not answer soon, `dial` connects to the address that the bootstrap knows. */
    if (r && !socket_leads_to(fd, &r->to)) socket_drop_iface(x, r, c->peer);
  }
  socket_connected(x, c);
  return HK_OK;
}

/* The higher rank: takes the sockets that have been accepted. */
static void socket_accept_sockets(socket_ctx *x, hk_socket_conn *c) {
  while (c->nconnected < c->nsockets) {
    int fd = x->env->take(x->env->arg, c->peer, socket_tag_of(c, c->nconnected));
    if (fd < 0) return;
    socket_add_socket(x, c, fd);
  }
  x->nconnecting--;
  socket_connected(x, c);
}

/* The threads that serve sockets in addition to the calling thread; NULL: none are wanted. */
static hk_socket_threads *socket_threads_for(socket_ctx *x, int nsockets) {
  const int64_t wanted = x->env->settings->SOCKET_NTHREADS;
  if (nsockets == 1 || wanted < 2) return NULL;
  if (!x->threads_tried) x->threads = hk_socket_threads_begin(x->env, (int)wanted - 1);
  x->threads_tried = true;
  return x->threads;
}

static bool socket_conn_ready(const hk_socket_conn *c) { return c->nconnected == c->nsockets; }

static hk_status socket_new_conn(socket_ctx *x, int peer, int channel, hk_socket_conn **out) {
  hk_socket_fact facts[2]; /* facts of the dialing and of the accepting rank */
  hk_socket_conn *c = NULL;
  socket_fact_of(x, x->env->rank, &facts[x->env->rank > peer]);
  socket_fact_of(x, peer, &facts[x->env->rank < peer]);
  const int n = hk_socket_count(&facts[0], &facts[1], socket_same_host(x, peer), x->env->nranks);
  if (!HK_RESERVE_NEXT(x->conns, x->nconns) || !HK_RESERVE_NEXT(x->waiting, x->nconns)) goto no_memory;
  c = calloc(1, sizeof *c + (size_t)n * sizeof c->wires[0]);
  if (!c || !(c->rx.ahead = malloc(HK_AHEAD_BYTES))) goto no_memory;
  c->rx.ahead_capacity = HK_AHEAD_BYTES;
  if ((c->threads = socket_threads_for(x, n)) && !(c->jobs = calloc(2 * (size_t)n, sizeof *c->jobs))) goto no_memory;
  c->env = x->env;
  c->peer = peer;
  c->channel = (uint16_t)channel;
  c->nsockets = (uint8_t)n;
  c->near = socket_same_host(x, peer);
  c->lead_max = x->lead_max;
  for (int s = 0; s < n; s++) c->wires[s] = (hk_socket_wire){.conn = c, .fd = -1, .route = "not connected"};
  x->conns[x->nconns++] = c;
  x->nconnecting++;
  *out = c;
  return HK_OK;
no_memory:
  if (c) free(c->rx.ahead);
  free(c);
  return HK_FAIL_ERRNO("no memory for the connection to rank %d", peer);
}

static void socket_free_conn(socket_ctx *x, hk_socket_conn *c) {
  int i = 0;
  while (x->conns[i] != c) i++;
  x->conns[i] = x->conns[--x->nconns];
  if (!socket_conn_ready(c)) x->nconnecting--;
  for (int s = 0; s < c->nconnected; s++) hk_tcp_close(c->wires[s].fd); /* leaves the epoll set too */
  free(c->jobs);
  free(c->rx.ahead);
  free(c);
}

static hk_status socket_open(void *ctx, hk_net_end *e) {
  socket_ctx *x = ctx;
  hk_status rc = HK_OK;
  hk_socket_conn *c = NULL;
  for (int i = 0; i < x->nconns && !c; i++)
    if (x->conns[i]->peer == e->key.peer && x->conns[i]->channel == e->key.channel) c = x->conns[i];
  bool fresh = !c;
  if (fresh) HK_OR_RETURN(socket_new_conn(x, e->key.peer, e->key.channel, &c));
  e->priv = c;
  *(e->key.kind == HK_LINK_SEND ? &c->send : &c->recv) = e;
  if (socket_conn_ready(c))
    atomic_store_explicit(&e->link->state, HK_LINK_READY, memory_order_relaxed); /* relaxed: as in socket_connected() */
  if (fresh && x->env->rank < c->peer) {
    rc = socket_dial(x, c);
    if (rc == HK_OK)
      x->nconnecting--;
    else
      socket_free_conn(x, c);
  }
  return rc;
}

static void socket_close(void *ctx, hk_net_end *e) {
  hk_socket_conn *c = e->priv;
  hk_socket_settle(c); /* the end's memory is freed next, and perhaps the connection */
  *(e->key.kind == HK_LINK_SEND ? &c->send : &c->recv) = NULL;
  if (!c->send && !c->recv) socket_free_conn(ctx, c);
}

/* ---- progress ---- */

/* Puts the connection's sockets into the epoll set, once. Returns false with errno. */
static bool socket_try_watch(socket_ctx *x, hk_socket_conn *c) {
  if (c->watched) return true;
  if (x->epoll < 0 && (x->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0) return false;
  for (int s = 0; s < c->nsockets; s++) {
    /* Edge-triggered: a connection that no lane waits for is reported once, not at every poll. */
    hk_socket_wire *w = &c->wires[s];
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = w};
    if (epoll_ctl(x->epoll, EPOLL_CTL_ADD, w->fd, &e) != 0 && errno != EEXIST) return false;
    w->readable = true;
  }
  c->watched = true;
  return true;
}

static hk_status socket_watch(socket_ctx *x, hk_socket_conn *c) {
  if (socket_try_watch(x, c)) return HK_OK;
  return HK_FAIL_ERRNO("rank %d cannot watch its connection to rank %d; raise the limit of open files (ulimit -n), or "
                       "fs.epoll.max_user_watches",
                       x->env->rank, c->peer);
}

static void socket_ask_epoll(socket_ctx *x, int patience_ms) {
  struct epoll_event events[EVENTS];
  int n = epoll_wait(x->epoll, events, EVENTS, patience_ms);
  for (int i = 0; i < n; i++) {
    hk_socket_wire *w = events[i].data.ptr;
    if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) w->readable = w->news_in = true;
    if (!(events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))) continue;
    w->blocked = false;
    w->news_out = true;
  }
}

/* Sends filled slots, and collects the connections for whose messages lanes wait. *nsockets: the number of their
 * sockets. */
static hk_status socket_send_all(socket_ctx *x, bool *moved, int *nwaiting, int *nsockets) {
  *nwaiting = *nsockets = x->nblocked = 0;
  for (int i = 0; i < x->nconns; i++) {
    hk_socket_conn *c = x->conns[i];
    if (!socket_conn_ready(c)) continue;
    if (hk_socket_send_pending(c)) {
      if (c->failed) return c->failed;
      HK_OR_RETURN(hk_socket_send(c, moved));
      if (hk_socket_send_blocked(c)) {
        x->nblocked++;
        HK_OR_RETURN(socket_watch(x, c));
      }
    }
    if (c->recv && hk_link_waits(c->recv->link)) {
      if (c->failed && hk_socket_waited_for(c)) return c->failed;
      x->waiting[(*nwaiting)++] = c;
      *nsockets += c->rx.begun ? c->nsockets : 1;
    }
  }
  return HK_OK;
}

/* Nothing moved: checks every second whether the hosts of the peers that lanes wait for still answer. */
static hk_status socket_check_silence(socket_ctx *x, int nwaiting) {
  uint64_t now = hk_now_ns();
  if (now < x->next_check_ns) return HK_OK;
  x->next_check_ns = now + 1000000000u;
  for (int i = 0; i < nwaiting; i++)
    if (hk_socket_waited_for(x->waiting[i])) HK_OR_RETURN(hk_socket_check_silence(x->waiting[i], x->silence_s, now));
  for (int i = 0; i < x->nconns; i++)
    if (socket_conn_ready(x->conns[i]) && hk_socket_send_pending(x->conns[i]))
      HK_OR_RETURN(hk_socket_check_silence(x->conns[i], x->silence_s, now));
  return HK_OK;
}

static bool socket_grows(void *ctx) {
  (void)ctx;
  return true;
}

static hk_status socket_grow(void *ctx, hk_net_end *e, char *payload, hk_device *gpu) {
  (void)ctx;
  e->link->payload = payload;
  e->link->gpu = gpu;
  return HK_OK;
}

static hk_status socket_progress(void *ctx, bool *moved) {
  socket_ctx *x = ctx;
  bool any = false;
  int nwaiting, nsockets;
  if (x->nconnecting)
    for (int i = 0; i < x->nconns; i++)
      if (!socket_conn_ready(x->conns[i])) socket_accept_sockets(x, x->conns[i]);
  bool asked = x->nblocked > 0;
  if (asked) socket_ask_epoll(x, 0);
  HK_OR_RETURN(socket_send_all(x, &any, &nwaiting, &nsockets));
  /* with threads, a receive that finds nothing would post a job at each poll */
  bool direct = nsockets <= ASKED_DIRECTLY && !x->threads;
  if (!direct) {
    for (int i = 0; i < nwaiting; i++) HK_OR_RETURN(socket_watch(x, x->waiting[i]));
    if (!asked) socket_ask_epoll(x, 0);
  }
  for (int i = 0; i < nwaiting; i++) {
    hk_socket_conn *c = x->waiting[i];
    for (int s = 0; s < c->nsockets && direct; s++) c->wires[s].readable = true;
    bool came = false;
    if (hk_socket_readable(c)) HK_OR_RETURN(hk_socket_receive(c, &came));
    hk_socket_polled(c, came);
    any = any || came;
  }
  if (any)
    *moved = true;
  else if (++x->idle % IDLE_POLLS == 0)
    HK_OR_RETURN(socket_check_silence(x, nwaiting));
  return HK_OK;
}

static void socket_sleep(void *ctx) {
  socket_ctx *x = ctx;
  if (x->nconnecting) return; /* a new connection does not wake this thread */
  int waits = x->nblocked;
  for (int i = 0; i < x->nconns; i++) {
    hk_socket_conn *c = x->conns[i];
    if (c->njobs && hk_socket_send_pending(c)) return; /* a job's result arrives soon and wakes no thread */
    if (!c->recv || !hk_link_waits(c->recv->link)) continue;
    if (c->njobs) return;
    if (hk_socket_send_held(c) && hk_socket_send_pending(c)) return;
    /* A socket that is added to the epoll set counts as readable: data may have arrived before. */
    if (c->failed || (c->watched && hk_socket_readable(c)) || !socket_try_watch(x, c)) return;
    waits++;
  }
  if (waits) socket_ask_epoll(x, 1);
}

/* Lanes no longer want their data; after this no thread writes to their places. */
static void socket_withdraw(void *ctx) {
  socket_ctx *x = ctx;
  for (int i = 0; i < x->nconns && x->threads; i++) hk_socket_settle(x->conns[i]);
}

const hk_net_provider hk_net_socket = {
    .name = "Socket",
    .usable = socket_usable,
    .init = socket_init,
    .join = socket_join,
    .open = socket_open,
    .grows = socket_grows,
    .grow = socket_grow,
    .withdraw = socket_withdraw,
    .progress = socket_progress,
    .sleep = socket_sleep,
    .close = socket_close,
    .fini = socket_fini,
};
