/* SPDX-License-Identifier: Apache-2.0 */
/* The relay's part of links through it (relay.h): a thread that moves the slots of the network's ends that use near
 * ranks' FIFOs. It starts with the first request. It has a net transport of its own, because a net transport belongs to
 * one thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/log.h"
#include "../base/tcp.h"
#include "../base/thread.h"
#include "../device/host.h"
#include "net/net.h"
#include "peer.h"
#include "registry.h"
#include "relay.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
enum { LOOKS = 64 /* rounds of the thread between two looks at the connections */ };
/* A round trip of the network is shorter than yield_ns. After that the thread sleeps. If data may arrive over the
 * network, which does not wake the thread, it naps. Else it sleeps until a near rank wakes it. */
static const hk_backoff relay_backoff = {
    .yield_ns = 200 * US, .nap_ns = 30 * US, .long_after_ns = 50 * MS, .long_nap_ns = 1 * MS};
static const uint64_t ASLEEP_NS = 50 * MS;
static const uint64_t DRAIN_NS = 2000 * MS, /* limit at a link's end for slots that the far rank does not take */
    /* limit when the rank leaves, for near ranks that neither move data nor close */
    LINGER_NS = 2000 * MS;

typedef enum end_state { ASKING, OPEN, ENDING } end_state;

/* The relay's end of a link. */
typedef struct served {
  hk_link link; /* of the network; its FIFO is the near rank's */
  struct served *next;
  int near, fd;
  end_state state;
  hk_relay_request ask;
  size_t got; /* bytes of it */
  hk_relay_fifo fifo;
  uint64_t filled, ending_ns;
} served;

struct hk_relay_server {
  const hk_transport_env *of; /* the rank's */
  hk_transport_env env;       /* the thread's */
  hk_wait_env wait;
  hk_transport_state *net; /* NULL: it could not be made, for the reason in `why` */
  char why[HK_RELAY_TEXT];
  int epoll, bell;
  pthread_t thread;
  bool running;              /* connections arrive one at a time, and the first one starts the thread */
  _Atomic(served *) arrived; /* new connections that the thread has not taken yet */
  served *ends;              /* the thread's */
  bool failed;
  _Atomic(int) stop; /* an hk_status: ends the thread and its waits */
  _Atomic(int) nends;
  _Atomic(uint64_t) moved_ns; /* when something moved last */
};

/* ---- the functions of the net transport's environment, for this thread ---- */

static hk_status relay_server_dial(void *arg, int peer, const union hk_addr *at, uint64_t tag, int *fd) {
  hk_relay_server *s = arg;
  bool gone;
  (void)at;
  hk_status rc = s->of->redial(s->of->arg, peer, tag, &s->stop, fd, &gone);
  return rc == HK_OK ? rc
                     : HK_FAIL(rc, "rank %d cannot connect to rank %d%s", s->of->rank, peer,
                               gone ? ", which has ended or left the communicator" : "");
}
static hk_status relay_server_redial(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  const hk_relay_server *s = arg;
  return s->of->redial(s->of->arg, peer, tag, stop, fd, gone);
}
static int relay_server_take(void *arg, int peer, uint64_t tag) {
  const hk_relay_server *s = arg;
  return s->of->take(s->of->arg, peer, tag);
}

static bool relay_server_is_over(const hk_relay_server *s) {
  return atomic_load(&s->stop) || (s->wait.failure && atomic_load(s->wait.failure));
}

/* ---- ends ---- */

/* The near rank gets it with its next call that needs the link. */
static void relay_server_report(const served *v, const char *text) {
  ssize_t n = hk_tcp_send(v->fd, text, strnlen(text, HK_RELAY_TEXT - 1));
  if (n < 0) HK_INFO(HK_SUB_NET, "rank %d gets no report: %s", v->near, text);
}

static void relay_server_drop(hk_relay_server *s, served *v) {
  HK_LIST_REMOVE(s->ends, v, next);
  if (v->state != ASKING) hk_transport_net.close(&v->link); /* it flushes */
  hk_relay_fifo_unmap(&v->fifo);
  hk_tcp_close(v->fd); /* after the flush: the near rank waits for it */
  free(v);
  atomic_fetch_sub(&s->nends, 1);
}

/* A failure here is announced as this rank's failure. Otherwise the far rank, whose connection ends, would blame the
 * network. */
static void relay_server_announce(const hk_relay_server *s, hk_status rc) {
  if (rc != HK_ERR_REMOTE && s->of->announce) s->of->announce(s->of->arg, rc, hk_last_error());
}

static hk_status relay_server_map_fifo(const hk_relay_server *s, served *v) {
  const hk_transport_env *e = s->of;
  hk_status rc = HK_OK;
  hk_transport_state *shm = e->states[HK_TRANSPORT_shm];
  size_t bytes = 0;
  int fd = -1;
  if (e->peers[v->near].process == e->peers[e->rank].process)
    fd = hk_host_export(v->ask.region, &bytes);
  else
    HK_TRY(hk_transport_shm.host->file(shm, &s->wait, v->near, v->ask.region, &fd, &bytes), out);
  if (fd < 0 || bytes != hk_relay_fifo_bytes(e))
    rc = HK_FAIL(HK_ERR_REMOTE, "rank %d asks for a link with a FIFO of %zu bytes: %zu are right", v->near, bytes,
                 hk_relay_fifo_bytes(e));
  else if (!hk_relay_fifo_map(e, fd, &v->fifo))
    rc = HK_FAIL_ERRNO("rank %d cannot map the FIFO of rank %d", e->rank, v->near);
out:
  if (fd >= 0) close(fd);
  return rc;
}

static hk_status relay_server_open_end(const hk_relay_server *s, served *v) {
  const hk_relay_request *q = &v->ask;
  hk_link_key key = {.peer = (int)q->far, .kind = q->kind, .channel = q->channel};
  if (!s->net) return HK_FAIL(HK_ERR_SYSTEM, "%s", s->why);
  if ((int)q->far < 0 || (int)q->far >= s->of->nranks || (q->kind != HK_LINK_SEND && q->kind != HK_LINK_RECV))
    return HK_FAIL(HK_ERR_REMOTE, "rank %d asks for no link: do all ranks run the same version?", v->near);
  HK_OR_RETURN(relay_server_map_fifo(s, v));
  v->link.slots = v->fifo.slots;
  v->link.payload = v->fifo.payload;
  HK_OR_RETURN(hk_transport_net.open(s->net, &key, &v->link));
  HK_INFO(HK_SUB_NET, "rank %d passes on what rank %d %s rank %u", s->of->rank, v->near,
          q->kind == HK_LINK_SEND ? "sends to" : "receives from", q->far);
  v->state = OPEN;
  return HK_OK;
}

/* Reads the connection: the request, wake-up bytes, the end. False if the connection cannot be used. */
static bool relay_server_look(const hk_relay_server *s, served *v) {
  char bells[64];
  for (;;) {
    const bool asking = v->state == ASKING;
    ssize_t n = asking ? hk_tcp_recv(v->fd, (char *)&v->ask + v->got, sizeof v->ask - v->got)
                       : hk_tcp_recv(v->fd, bells, sizeof bells);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0 && asking) return false;
    if (n <= 0) {
      v->state = ENDING;
      v->ending_ns = hk_now_ns();
      (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, v->fd, NULL); /* it stays readable */
      return true;
    }
    if (!asking) continue;
    v->got += (size_t)n;
    if (v->got < sizeof v->ask) continue;
    hk_status rc = relay_server_open_end(s, v);
    if (rc == HK_OK) continue;
    relay_server_announce(s, rc);
    HK_INFO(HK_SUB_NET, "rank %d relays nothing for rank %d: %s", s->of->rank, v->near, hk_last_error());
    relay_server_report(v, hk_last_error());
    return false;
  }
}

static bool relay_server_sends(const served *v) { return v->ask.kind == HK_LINK_SEND; }

/* Notices what the near rank has filled. */
static bool relay_server_is_filled(served *v) {
  const hk_link *l = &v->link;
  uint64_t before = v->filled;
  /* acquire: pairs with hk_link_fill; the network reads the slot after it */
  while (atomic_load_explicit(&l->slots[(uint32_t)v->filled & l->mask].seq, memory_order_acquire) ==
         (uint32_t)(v->filled + 1))
    v->filled++;
  return v->filled != before;
}

/* True if the network has taken all filled slots. */
static bool relay_server_is_drained(const served *v) {
  /* relaxed: the network has stored it on this thread */
  return atomic_load_explicit(&v->link.heads->value, memory_order_relaxed) == v->filled;
}

static void relay_server_step(hk_relay_server *s, served *v, bool looks) {
  if (looks && v->state != ENDING && !relay_server_look(s, v)) {
    relay_server_drop(s, v);
    return;
  }
  if (v->state == ASKING) return;
  if (relay_server_sends(v)) {
    if (relay_server_is_filled(v) && !v->link.rung) hk_link_ring(&v->link);
  } else if (hk_link_waits(&v->link) == HK_LINK_NO_WAIT) {
    hk_link_set_waiting(&v->link, HK_LINK_TAKES);
  }
  if (v->state == ENDING &&
      (!relay_server_sends(v) || relay_server_is_drained(v) || hk_now_ns() - v->ending_ns > DRAIN_NS))
    relay_server_drop(s, v);
}

/* ---- the thread ---- */

static void relay_server_take_arrived(hk_relay_server *s) {
  uint64_t count;
  (void)!read(s->bell, &count, sizeof count); /* it may be empty */
  for (served *v = atomic_exchange(&s->arrived, NULL), *next; v; v = next) {
    struct epoll_event on = {.events = EPOLLIN};
    next = v->next;
    v->next = s->ends;
    s->ends = v;
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, v->fd, &on) == 0) continue;
    (void)HK_FAIL_ERRNO("rank %d cannot wait for rank %d's connection", s->of->rank, v->near);
    relay_server_report(v, hk_last_error());
    relay_server_drop(s, v);
  }
}

static void relay_server_set_asleep(hk_relay_server *s, uint32_t asleep) {
  /* relaxed: ordered by the fence of the caller */
  for (served *v = s->ends; v; v = v->next)
    if (v->fifo.base) atomic_store_explicit(v->fifo.asleep, asleep, memory_order_relaxed);
}

/* True if data may arrive over the network. */
static bool relay_server_expects(const hk_relay_server *s) {
  for (const served *v = s->ends; v; v = v->next)
    if (v->state != ASKING && (!relay_server_sends(v) || !relay_server_is_drained(v) || v->state == ENDING))
      return true;
  return false;
}

static void relay_server_nap(hk_relay_server *s, hk_waiter *w, uint64_t ns) {
  bool filled = false;
  relay_server_set_asleep(s, 1);
  /* seq_cst: as in relay_ring; one of the two threads sees what the other one has stored */
  atomic_thread_fence(memory_order_seq_cst);
  for (served *v = s->ends; v; v = v->next) {
    if (v->state == ASKING || !relay_server_sends(v) || !relay_server_is_filled(v)) continue;
    filled = true;
    if (!v->link.rung) hk_link_ring(&v->link);
  }
  if (!filled) (void)hk_wait_nap(w, s->epoll, ns); /* the caller's loop detects a failure */
  relay_server_set_asleep(s, 0);
}

/* Sleeps. True if the connections must be checked. */
static bool relay_server_rest(hk_relay_server *s, hk_waiter *w) {
  const uint64_t ns = hk_backoff_nap(&relay_backoff, hk_wait_idle_ns(w));
  if (!ns) {
    (void)hk_wait_pause(w);
    return false;
  }
  relay_server_nap(s, w, relay_server_expects(s) ? ns : ASLEEP_NS);
  return true;
}

static void *relay_server_serve_main(void *arg) {
  hk_relay_server *s = arg;
  hk_waiter w;
  bool looks = true;
  hk_thread_polls("hocket-relay");
  hk_wait_begin(&w, &s->wait);
  for (unsigned round = 0; !relay_server_is_over(s); round++) {
    bool moved = false;
    if (looks) relay_server_take_arrived(s);
    for (served *v = s->ends, *next; v; v = next) {
      next = v->next;
      relay_server_step(s, v, looks);
    }
    hk_status rc = s->ends && s->net && !s->failed ? hk_transport_net.proxied->progress(s->net, &moved) : HK_OK;
    if (rc != HK_OK) {
      s->failed = true; /* and so is the communicator, as soon as a near rank reads this */
      relay_server_announce(s, rc);
      for (served *v = s->ends; v; v = v->next) relay_server_report(v, hk_last_error());
    }
    if (moved) {
      atomic_store(&s->moved_ns, hk_now_ns());
      hk_wait_progress(&w);
    }
    looks = (!moved && relay_server_rest(s, &w)) || round % LOOKS == 0;
  }
  return NULL;
}

/* A near rank has connected. On the listener's thread. */
static void relay_server_on_connection(void *arg, int from, int fd) {
  hk_relay_server *s = arg;
  const uint64_t one = 1;
  served *v = aligned_alloc(HK_CACHE_LINE, hk_round_up(sizeof *v, HK_CACHE_LINE));
  if (!v) {
    hk_tcp_close(fd); /* the near rank reports it */
    return;
  }
  *v = (served){.near = from, .fd = fd};
  int error = s->running ? 0 : hk_thread_start(&s->thread, 0, relay_server_serve_main, s);
  s->running = !error;
  if (error) {
    HK_WARN("rank %d cannot start the thread that passes on messages: %s", s->of->rank, strerror(error));
    hk_tcp_close(fd);
    free(v);
    return;
  }
  atomic_fetch_add(&s->nends, 1);
  v->next = atomic_load(&s->arrived);
  while (!atomic_compare_exchange_weak(&s->arrived, &v->next, v)) {}
  if (write(s->bell, &one, sizeof one) < 0) return; /* it can only be full, and then the thread is awake */
}

/* ---- beginning and end ---- */

hk_relay_server *hk_relay_server_new(const hk_transport_env *e) {
  hk_relay_server *s = calloc(1, sizeof *s);
  if (!s) {
    HK_WARN("rank %d has no memory to pass on messages", e->rank);
    return NULL;
  }
  s->of = e;
  s->env = *e;
  s->wait = (hk_wait_env){.failure = e->wait->failure, .spins = 50, .awake = true};
  s->env.wait = &s->wait;
  s->env.dial = relay_server_dial;
  s->env.redial = relay_server_redial;
  s->env.take = relay_server_take;
  s->env.arg = s;
  s->env.gpu = NULL; /* FIFOs are in host memory */
  s->env.gpu_page = NULL;
  s->env.net_event = NULL;
  s->epoll = epoll_create1(EPOLL_CLOEXEC);
  s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event on = {.events = EPOLLIN};
  if (s->epoll < 0 || s->bell < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->bell, &on) != 0)
    (void)HK_FAIL_ERRNO("rank %d cannot pass on messages; raise the limit of open files (ulimit -n)", e->rank);
  else if (hk_net_again(e->states[HK_TRANSPORT_net], &s->env, &s->net) != HK_OK)
    s->net = NULL;
  if (!s->net) snprintf(s->why, sizeof s->why, "%s", hk_last_error());
  if (!s->net) HK_WARN("rank %d passes on no messages: %s", e->rank, s->why);
  e->serve(e->arg, HK_RELAY_TAG, relay_server_on_connection, s);
  return s;
}

/* Near ranks close their links when they leave. A near rank that stays longer than this rank loses its relay. */
static void relay_server_linger(hk_relay_server *s) {
  hk_waiter w;
  hk_wait_env wait = {.failure = s->wait.failure};
  hk_wait_begin(&w, &wait);
  for (uint64_t begin = hk_now_ns(); atomic_load(&s->nends) && !relay_server_is_over(s);) {
    uint64_t moved = atomic_load(&s->moved_ns);
    if (hk_now_ns() - (moved > begin ? moved : begin) > LINGER_NS || hk_wait_nap(&w, -1, MS) != HK_OK) return;
  }
}

void hk_relay_server_end(hk_relay_server *s) {
  const uint64_t one = 1;
  if (!s) return;
  relay_server_linger(s);
  s->of->serve(s->of->arg, HK_RELAY_TAG, NULL, NULL);
  atomic_store(&s->stop, HK_ERR_REMOTE);
  (void)!write(s->bell, &one, sizeof one); /* it can only be full, and then the thread is awake */
  if (s->running) pthread_join(s->thread, NULL);
  relay_server_take_arrived(s);
  while (s->ends) relay_server_drop(s, s->ends);
  if (s->net) hk_transport_net.detach(s->net);
  if (s->epoll >= 0) close(s->epoll);
  if (s->bell >= 0) close(s->bell);
  free(s);
}
