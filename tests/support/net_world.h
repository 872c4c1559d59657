/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one process, joined by loopback TCP or socket pairs in place of the bootstrap: for the tests and the
 * benchmark of the net transport. */
#ifndef HK_TESTS_NET_WORLD_H
#define HK_TESTS_NET_WORLD_H
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "../../src/base/addr.h"
#include "../../src/base/facts.h"
#include "../../src/base/param.h"
#include "../../src/program/program.h"
#include "../../src/transport/peer.h"
#include "../../src/transport/registry.h"
#include "../../src/transport/transport.h"

#ifndef NET_RANKS
#define NET_RANKS 8
#endif
enum { NET_MAIL = 1024 > 4 * NET_RANKS ? 1024 : 4 * NET_RANKS };

typedef struct net_world net_world;
typedef struct net_made { /* a link, and whose it is; NULL: the test ends it */
  hk_link link;
  net_world *world;
  struct net_made *next;
} net_made;
typedef struct net_rank {
  net_world *world;
  int rank;
  hk_transport_env env;
  hk_wait_env wait;
  hk_transport_state *state;
} net_rank;

struct net_world {
  int n;
  bool socketpairs;
  pthread_mutex_t lock;
  struct {
    int from, to, fd; /* fd -1: taken */
    uint64_t tag;
  } mail[NET_MAIL];
  int nmail;
  int dials;
  int wires[NET_MAIL][2];
  int nwires; /* of connections so far */
  hk_peer peers[NET_RANKS];
  net_rank ranks[NET_RANKS];
  net_made *links;
  net_world *next;
};
static net_world *net_worlds; /* of the test, that it has not freed */

static inline void net_pair(bool tcp, int fd[2]) {
  fd[0] = fd[1] = -1;
  if (!tcp) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) != 0) abort();
    return;
  }
  hk_addr a;
  int listener;
  memset(&a, 0, sizeof a);
  a.v4.sin_family = AF_INET;
  a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (hk_listen(hk_settings_now(), &a, 4, &listener) != HK_OK) abort();
  hk_tcp_unpaced(listener); /* as the bootstrap's */
  if (hk_connect_start(&a, &fd[0]) != HK_OK) abort();
  hk_tcp_unpaced(fd[0]);
  while ((fd[1] = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) < 0)
    if (errno != EAGAIN && errno != EINTR) abort();
  close(listener);
}

static inline hk_status net_dial(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  net_rank *r = arg;
  net_world *w = r->world;
  int both[2];
  (void)at;
  net_pair(!w->socketpairs, both);
  pthread_mutex_lock(&w->lock);
  w->dials++;
  if (w->nmail == NET_MAIL) abort();
  w->mail[w->nmail].from = r->rank;
  w->mail[w->nmail].to = peer;
  w->mail[w->nmail].fd = both[1];
  w->mail[w->nmail++].tag = tag;
  if (w->nwires < NET_MAIL) memcpy(w->wires[w->nwires++], both, sizeof both);
  pthread_mutex_unlock(&w->lock);
  *fd = both[0];
  return HK_OK;
}

static inline hk_status net_redial(void *arg, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  (void)stop;
  *gone = false;
  return net_dial(arg, peer, NULL, tag, fd);
}

static inline int net_take(void *arg, int peer, uint64_t tag) {
  net_rank *r = arg;
  net_world *w = r->world;
  int fd = -1;
  pthread_mutex_lock(&w->lock);
  for (int i = 0; i < w->nmail && fd < 0; i++) {
    if (w->mail[i].from != peer || w->mail[i].to != r->rank || w->mail[i].tag != tag || w->mail[i].fd < 0) continue;
    fd = w->mail[i].fd;
    w->mail[i].fd = -1;
  }
  pthread_mutex_unlock(&w->lock);
  return fd;
}

/* Attaches rank i of the world, which is rank `as` of a communicator of n. */
static inline void net_attach_rank(net_world *w, int i, int as, int n, uint32_t nslots, size_t slot_bytes,
                                   char fact[HK_FACT_BYTES]) {
  static const uint8_t secret[16] = {1, 2, 3};
  net_rank *r = &w->ranks[i];
  r->world = w;
  r->rank = i;
  r->env = (hk_transport_env){.settings = hk_settings_now(),
                              .rank = as,
                              .nranks = n,
                              .comm_id = 5,
                              .secret = secret,
                              .peers = w->peers,
                              .wait = &r->wait,
                              .dial = net_dial,
                              .redial = net_redial,
                              .take = net_take,
                              .arg = r,
                              .slot_bytes = slot_bytes,
                              .nslots = nslots,
                              .traffic_class = -1};
  if (hk_transport_net.attach(&r->env, &r->state, fact) != HK_OK) abort();
}

/* Attaches and joins n ranks; `before` (may be NULL) is called before each, to set what it is to find. */
static inline net_world *net_world_of(int n, uint32_t nslots, size_t slot_bytes, void (*before)(int rank)) {
  net_world *w = calloc(1, sizeof *w);
  char facts[NET_RANKS][HK_FACT_BYTES];
  memset(facts, 0, sizeof facts);
  w->n = n;
  w->next = net_worlds;
  net_worlds = w;
  pthread_mutex_init(&w->lock, NULL);
  for (int i = 0; i < n; i++) {
    w->peers[i].host = 7;
    w->peers[i].process = (uint64_t)i;
    if (before) before(i);
    net_attach_rank(w, i, i, n, nslots, slot_bytes, facts[i]);
  }
  for (int i = 0; i < n; i++)
    if (hk_transport_net.join(w->ranks[i].state, &(hk_facts){facts, HK_FACT_BYTES}) != HK_OK) abort();
  return w;
}

static inline net_world *net_world_new(int n, uint32_t nslots, size_t slot_bytes) {
  return net_world_of(n, nslots, slot_bytes, NULL);
}

static inline hk_status net_try_link(net_rank *r, int peer, hk_link_kind kind, int channel, hk_link **out) {
  hk_link_key key = {.peer = peer, .kind = (uint8_t)kind, .channel = (uint8_t)channel};
  net_made *m = calloc(1, sizeof *m);
  hk_status rc = hk_transport_net.open(r->state, &key, &m->link);
  *out = rc == HK_OK ? &m->link : NULL;
  if (rc != HK_OK) {
    free(m);
    return rc;
  }
  pthread_mutex_lock(&r->world->lock);
  m->world = r->world;
  net_made **last = &r->world->links;
  while (*last) last = &(*last)->next;
  *last = m;
  pthread_mutex_unlock(&r->world->lock);
  return HK_OK;
}
static inline hk_link *net_link(net_rank *r, int peer, hk_link_kind kind, int channel) {
  hk_link *l;
  if (net_try_link(r, peer, kind, channel, &l) != HK_OK) abort();
  return l;
}

static inline void net_unlink(hk_link *l) {
  net_made *m = (net_made *)(void *)l;
  hk_transport_net.close(l);
  if (m->world) {
    net_made **at = &m->world->links;
    pthread_mutex_lock(&m->world->lock);
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    pthread_mutex_unlock(&m->world->lock);
  }
  free(m);
}

/* Its links end in the order in which they were made. */
static inline void net_world_free(net_world *w) {
  net_world **at = &net_worlds;
  while (w->links) net_unlink(&w->links->link);
  for (int i = 0; i < w->n; i++) hk_transport_net.detach(w->ranks[i].state);
  for (int i = 0; i < w->nmail; i++)
    if (w->mail[i].fd >= 0) close(w->mail[i].fd);
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  pthread_mutex_destroy(&w->lock);
  free(w);
}
/* After a test: all of its worlds. */
static inline void net_worlds_end(void) {
  while (net_worlds) net_world_free(net_worlds);
}
#define net_main(name, ...) suite_main(name, .teardown = net_worlds_end, __VA_ARGS__)

/* A thread that makes progress for twelve seconds of the real clock, and nothing moves, would do so for ever: that
 * fails at once. */
static inline void net_note_move(bool moved) {
  static _Thread_local unsigned idle;
  static _Thread_local time_t since;
  struct timespec now;
  if (moved || idle++ % 8192) {
    idle = moved ? 0 : idle;
    return;
  }
  if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now)) abort();
  if (idle == 1) since = now.tv_sec;
  if (now.tv_sec - since <= 12) return;
  fprintf(stderr, "no message has moved for 12 s\n");
  abort();
}

static inline hk_status net_progress(net_rank *r, bool *moved) {
  bool m = false;
  hk_status rc = hk_transport_net.proxied->progress(r->state, &m);
  net_note_move(m);
  if (moved) *moved = m;
  return rc;
}

/* The same for waits of seconds: leaves the core to others if nothing moved. */
static inline hk_status net_progress_and_nap(net_rank *r) {
  bool moved = false;
  hk_status rc = hk_transport_net.proxied->progress(r->state, &moved);
  if (!moved) usleep(200);
  return rc;
}

/* One message as a lane sends it, by copy or by reference; false where it must wait. */
static inline bool net_try_send(hk_link *l, const void *data, uint32_t bytes, uint32_t signature, bool by_ref) {
  if (!hk_link_can_send(l, SIZE_MAX)) return false;
  uint32_t flags = 0;
  hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  if (by_ref && bytes > HK_SLOT_INLINE) {
    s->ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)data};
    flags = HK_SLOT_REF;
  } else {
    memcpy(hk_link_send_buffer(l, bytes), data, bytes);
  }
  hk_link_publish(l, bytes, signature, flags);
  return true;
}

/* One message as a lane receives it; `want`: it says where it wants it. *direct: was it put there?. */
static inline bool net_try_recv(hk_link *l, void *data, uint32_t capacity, bool want, uint32_t *bytes,
                                uint32_t *signature, bool *direct) {
  if (!hk_link_can_recv(l)) {
    l->waiting = 1;
    if (want) {
      l->recv_target = data;
      l->recv_target_bytes = capacity;
    }
    return false;
  }
  const hk_slot *s = hk_link_recv_slot(l);
  const void *from = hk_link_recv_data(l);
  *bytes = s->bytes;
  *signature = s->signature;
  *direct = from == data;
  if (from != data && s->bytes <= capacity) memcpy(data, from, s->bytes);
  hk_link_release(l);
  return true;
}
#endif
