/* SPDX-License-Identifier: Apache-2.0 */
/* Links through a third rank, at the near rank: which rank is the relay, what it is asked for, and what its end does.
 * Four ranks of two hosts, each with a card on one of two rails that are not connected. The test plays the relays.
 * check: notsan */
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "../../src/device/host.h"
#include "../../src/transport/relay.h"
#include "../support/ib.h"
#include "../support/process.h"

enum { RANKS = 4, NSLOTS = 4, SLOT = 4096, PAGE = 4096 };

static net_world *w;
static hk_transport_state *states[HK_TRANSPORT_COUNT];
static hk_transport_env env;
static hk_transport_state *relay;
static int dialled, relay_fd;

static void one_card(int rank) {
  static const char *const cards[] = {"=fake0:1:0", "=fake1:1:1", "=fake2:1:0", "=fake3:1:1"};
  rdma_param("NCCL_IB_HCA", cards[rank]);
}
static hk_status dial_relay(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  int pair[2];
  (void)arg, (void)at;
  ck_assert_uint_eq(tag, HK_RELAY_TAG);
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  dialled = peer;
  relay_fd = pair[1];
  *fd = pair[0];
  return HK_OK;
}
static bool serves; /* the rank takes connections of others */
static void (*on_connection)(void *arg, int rank, int fd);
static void *server;
static void serve(void *arg, uint64_t tag, void (*fn)(void *arg, int rank, int fd), void *fn_arg) {
  (void)arg;
  on_connection = fn;
  server = fn_arg;
  ck_assert_uint_eq(tag, HK_RELAY_TAG);
  serves = fn != NULL;
}

/* The state of rank `me`; off[r]: the rank passes nothing on (NCCL_PXN_DISABLE, NCCL_P2P_PXN_LEVEL). */
static void make_rank(const char *off, int me) {
  static char facts[RANKS][HK_FACT_BYTES];
  ib_begin(4);
  rdma_plenty = true;
  verbs->addressed = 1;
  rdma_param("NCCL_CROSS_NIC", "0");
  w = net_world_of(RANKS, NSLOTS, SLOT, one_card);
  for (int i = 0; i < RANKS; i++) w->peers[i].host = 10 + (uint64_t)i / 2;
  memset(facts, 0, sizeof facts);
  for (int k = 1; k <= RANKS; k++) { /* the last one that is made stays */
    const int i = (me + k) % RANKS;
    if (relay) hk_transport_relay.detach(relay);
    env = w->ranks[i].env;
    env.states = states;
    env.dial = dial_relay;
    env.serve = serve;
    set_param("NCCL_PXN_DISABLE", off[i] == 'x' && i % 2 ? "1" : "0");
    set_param("NCCL_P2P_PXN_LEVEL", off[i] == 'x' && i % 2 == 0 ? "0" : "2");
    env.settings = hk_settings_now();
    ck_assert_int_eq(hk_transport_relay.attach(&env, &relay, facts[i]), HK_OK);
  }
  states[HK_TRANSPORT_net] = w->ranks[me].state;
  ck_assert_int_eq(hk_transport_relay.join(relay, &(hk_facts){facts, HK_FACT_BYTES}), HK_OK);
}

static void make(const char *off) { make_rank(off, 0); }

static void unmake(void) {
  hk_transport_relay.detach(relay);
  net_world_free(w);
  ib_end();
}

static hk_link *open_link(hk_link_kind kind, int peer, int channel) {
  hk_link *l = calloc(1, sizeof *l);
  const hk_link_key key = {.peer = peer, .kind = (uint8_t)kind, .channel = (uint8_t)channel};
  ck_assert_int_eq(hk_transport_relay.open(relay, &key, l), HK_OK);
  ck_assert(l->peer == peer && l->kind == kind);
  return l;
}

/* ---- routes ---- */

static const struct {
  const char *off;
  int to, from; /* relays between ranks 0 and 3; -1: none */
  bool serves;  /* rank 0 is one between ranks 1 and 2 */
  const char *why;
} routes[] = {{"....", 1, 2, true, NULL},
              {".x..", 2, 2, false, NULL},
              {"..x.", 1, 1, true, NULL},
              {"x...", 2, 2, false, NULL},
              {"...x", 1, 1, true, NULL},
              {".xx.", -1, -1, false, "no third rank of their hosts reaches both"},
              {"x..x", -1, -1, false, "NCCL_P2P_PXN_LEVEL=2 let other ranks pass it on"}};

TEST_LOOP(finds_relays, HK_ARRAY_LENGTH(routes)) {
  char why[200];
  make(routes[_i].off);
  for (int peer = 0; peer < 3; peer++) { /* this rank, one of its host, one of its rail */
    ck_assert(!hk_transport_relay.reachable(relay, peer, why, sizeof why));
    ck_assert_str_eq(why, "");
  }
  ck_assert_int_eq(hk_transport_relay.reachable(relay, 3, why, sizeof why), routes[_i].to >= 0);
  ck_assert_int_eq(serves, routes[_i].serves);
  if (routes[_i].to < 0) {
    ck_assert_msg(strstr(why, routes[_i].why) && strstr(why, "rail 0 and rail 1"), "%s", why);
    return;
  }
  for (int sends = 0; sends < 2; sends++) {
    const int by = sends ? routes[_i].to : routes[_i].from;
    const hk_link_key key = {.peer = 3, .kind = sends ? HK_LINK_SEND : HK_LINK_RECV, .channel = 5};
    ck_assert_int_eq(hk_transport_relay.payload->grows(relay, &key), by == 2); /* a far end is the network's */
    dialled = -1;
    hk_link *l = open_link((hk_link_kind)key.kind, 3, 5);
    ck_assert_int_eq(dialled, by == 1 ? 1 : -1); /* one of the other host is a peer in the network */
    if (by == 1) {
      hk_relay_request q;
      ck_assert_int_eq(recv(relay_fd, &q, sizeof q, 0), sizeof q);
      ck_assert(q.far == 3 && q.kind == l->kind && q.region && q.channel == hk_relay_channel(1, 3, 0, 5));
      ck_assert(recv(relay_fd, &q, 1, 0) < 0 && l->proxied && l->mask == NSLOTS - 1 && l->slot_bytes == SLOT);
      ck_assert_uint_eq(l->limit, sends ? NSLOTS : 0);
      close(relay_fd);
      hk_transport_relay.close(l);
      ck_assert_ptr_null(l->priv);
    } else {
      const hk_net_end *e = l->priv;
      ck_assert(e->key.peer == 2 && e->key.channel == hk_relay_channel(2, 0, 1, 5));
      hk_transport_net.close(l);
    }
    free(l);
  }
}

/* Rank 0 is a relay as any other is. */
TEST(rank_0_relays) {
  char why[200];
  make_rank("....", 1);
  ck_assert(hk_transport_relay.reachable(relay, 2, why, sizeof why));
  ck_assert(!hk_transport_relay.reachable(relay, 0, why, sizeof why) &&
            !hk_transport_relay.reachable(relay, 3, why, sizeof why));
  dialled = -1;
  hk_link *l = open_link(HK_LINK_SEND, 2, 7);
  hk_relay_request q;
  ck_assert_int_eq(dialled, 0);
  ck_assert_int_eq(recv(relay_fd, &q, sizeof q, 0), sizeof q);
  ck_assert(q.far == 2 && q.channel == hk_relay_channel(0, 2, 1, 7));
  close(relay_fd);
  hk_transport_relay.close(l);
  free(l);
}

/* ---- the near end ---- */

static hk_status progress(void) {
  bool moved;
  hk_status rc = HK_OK;
  for (int i = 0; i < 1000 && rc == HK_OK; i++)
    rc = hk_transport_relay.proxied->progress(relay, &moved); /* it looks now and then */
  return rc;
}

/* A relay that has gone, with or without a report, is an error once its link is needed. */
TEST_LOOP(needs_its_relay, 4) {
  char why[200];
  const bool sends = _i & 1, reports = _i & 2;
  make("..x.");
  ck_assert(hk_transport_relay.reachable(relay, 3, why, sizeof why));
  hk_link *l = open_link(sends ? HK_LINK_SEND : HK_LINK_RECV, 3, 0);
  ck_assert_int_eq(progress(), HK_OK);
  if (!sends) hk_link_set_waiting(l, HK_LINK_WAITS);
  if (reports) ck_assert_int_eq(send(relay_fd, "no memory", 9, 0), 9);
  if (!reports) close(relay_fd);
  ck_assert_int_eq(progress(), HK_OK);
  ck_assert(!hk_link_waits(l)); /* if a lane waits, it says so again */
  ck_assert_int_eq(atomic_load(&l->state), HK_LINK_READY);
  if (sends)
    hk_link_publish(l, 0, 0, 0);
  else
    hk_link_set_waiting(l, HK_LINK_WAITS);
  ck_assert_int_eq(progress(), HK_ERR_REMOTE);
  ck_assert_int_eq(atomic_load(&l->state), HK_LINK_FAILED);
  ck_assert_msg(strstr(hk_last_error(), sends ? "rank 1, through which rank 0 sends to rank 3 (PXN), "
                                              : "rank 1, through which rank 0 receives from rank 3 (PXN), "),
                "%s", hk_last_error());
  ck_assert_msg(strstr(hk_last_error(), reports ? "(PXN), reports: no memory" : "has ended or left the communicator"),
                "%s", hk_last_error());
  if (reports) close(relay_fd);
  hk_transport_relay.close(l);
  free(l);
}

/* A bell for a relay that sleeps, and for no other. */
TEST(rings_if_it_sleeps) {
  char why[200], bells[64];
  make("..x.");
  ck_assert(hk_transport_relay.reachable(relay, 3, why, sizeof why));
  hk_link *l = open_link(HK_LINK_SEND, 3, 0);
  _Atomic(uint32_t) *asleep = (_Atomic(uint32_t) *)(void *)((char *)l->slots - PAGE);
  ck_assert_int_eq(recv(relay_fd, bells, sizeof bells, 0), sizeof(hk_relay_request));
  l->rung = 1;
  hk_transport_relay.proxied->ring(l);
  ck_assert(recv(relay_fd, bells, sizeof bells, 0) < 0 && !l->rung);
  atomic_store(asleep, 1);
  for (int i = 0; i < 2; i++) hk_transport_relay.proxied->ring(l);
  ck_assert_int_eq(recv(relay_fd, bells, sizeof bells, 0), 2);
  close(relay_fd);
  hk_transport_relay.proxied->ring(l); /* progress finds that it has gone */
  hk_transport_relay.close(l);
  free(l);
}

/* A link that is closed waits until its relay has moved on what is there. */
static _Atomic(int) moved_on;
static void *flush_and_close(void *arg) {
  struct pollfd end = {.fd = *(int *)arg, .events = POLLRDHUP};
  poll(&end, 1, 10000);
  usleep(30000);
  atomic_store(&moved_on, end.revents ? 1 : -1);
  close(end.fd);
  return NULL;
}

TEST(waits_for_the_flush) {
  char why[200];
  pthread_t thread;
  make("..x.");
  ck_assert(hk_transport_relay.reachable(relay, 3, why, sizeof why));
  hk_link *first = open_link(HK_LINK_SEND, 3, 0);
  const int first_fd = relay_fd;
  hk_link *l = open_link(HK_LINK_SEND, 3, 1);
  int fd = relay_fd, fds;
  ck_assert_int_eq(pthread_create(&thread, NULL, flush_and_close, &fd), 0);
  hk_transport_relay.close(l);
  ck_assert_int_eq(atomic_load(&moved_on), 1);
  pthread_join(thread, NULL);
  free(l);
  fds = open_fds();
  ck_assert_int_eq(progress(), HK_OK); /* the other one is still there */
  close(first_fd);
  hk_transport_relay.close(first);
  ck_assert_int_eq(open_fds(), fds - 3); /* both ends, and the file of its FIFO */
  free(first);
}

/* ---- the relay ---- */

static bool no_epoll; /* no descriptor can be added */
int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event) {
  if (no_epoll && op == EPOLL_CTL_ADD) return errno = ENOSPC, -1;
  return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

/* ASan must hear of threads, or it takes their joins for faults; it is not what RTLD_NEXT finds. */
int __interceptor_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) __attribute__((weak));
static bool no_thread; /* none can be made */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real && __interceptor_pthread_create) real = __interceptor_pthread_create;
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  return no_thread ? EAGAIN : real(thread, attr, run, arg);
}

/* Rank 0 relays between ranks 1 and 2: the end of a connection of rank 1. */
static int connect_near(void) {
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  ck_assert_int_eq(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
  on_connection(server, 1, pair[1]);
  return pair[0];
}
/* What the relay reports until it ends the connection. */
static const char *news_of(int fd) {
  static char text[HK_RELAY_TEXT];
  size_t used = 0;
  for (ssize_t n; used < sizeof text - 1 && (n = recv(fd, text + used, sizeof text - 1 - used, 0)) > 0;)
    used += (size_t)n;
  text[used] = 0;
  close(fd);
  return text;
}
static uint64_t lend(size_t bytes, int *fd) {
  uint64_t region;
  *fd = hk_host_memfd("a FIFO", bytes);
  ck_assert_int_ge(*fd, 0);
  ck_assert_int_eq(hk_host_lend(*fd, bytes, false, &region), HK_OK);
  return region;
}

static _Atomic(int) announced;
static void announce(void *arg, hk_status rc, const char *text) {
  (void)arg, (void)rc, (void)text;
  atomic_fetch_add(&announced, 1);
}

/* What is no request for a link is refused, with the reason; other connections go on. It is no failure of the relay. */
TEST(refuses_requests) {
  enum { NO_RANK, NO_KIND, NO_REGION, WRONG_BYTES, NO_PLACE };
  static const struct {
    int what;
    const char *says;
  } cases[] = {{NO_RANK, "rank 1 asks for no link: do all ranks run the same version?"},
               {NO_KIND, "rank 1 asks for no link: do all ranks run the same version?"},
               {NO_REGION, "rank 1 asks for a link with a FIFO of 0 bytes: "},
               {WRONG_BYTES, "rank 1 asks for a link with a FIFO of 8192 bytes: "},
               {NO_PLACE, "rank 0 cannot wait for rank 1's connection"}};
  char why[200];
  make("....");
  w->peers[1].process = w->peers[0].process;
  ck_assert(hk_transport_relay.reachable(relay, 3, why, sizeof why) && on_connection);
  env.announce = announce;
  no_thread = true;
  const int fds = open_fds(), none = connect_near();
  no_thread = false;
  ck_assert_str_eq(news_of(none), "");
  ck_assert_int_eq(open_fds(), fds);
  const int idle = connect_near(), half = connect_near();
  const hk_relay_request nothing = {.far = 2};
  ck_assert_int_eq(send(half, &nothing, sizeof nothing - 1, 0), sizeof nothing - 1);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    int memory = -1;
    hk_relay_request q = {.far = 2, .kind = HK_LINK_SEND, .channel = 3, .region = 1 << 30};
    if (cases[i].what == NO_RANK) q.far = RANKS;
    if (cases[i].what == NO_KIND) q.kind = HK_LINK_MCAST_SEND;
    if (cases[i].what == WRONG_BYTES) q.region = lend(8192, &memory);
    no_epoll = cases[i].what == NO_PLACE;
    const int fd = connect_near();
    if (cases[i].what != NO_PLACE) ck_assert_int_eq(send(fd, &q, sizeof q, 0), sizeof q);
    const char *news = news_of(fd);
    ck_assert_msg(!strncmp(news, cases[i].says, strlen(cases[i].says)), "%s", news);
    no_epoll = false;
    if (memory >= 0) hk_host_take_back(q.region);
  }
  ck_assert_int_eq(atomic_load(&announced), 0);
  shutdown(half, SHUT_WR); /* it ends before its request has ended */
  ck_assert_str_eq(news_of(half), "");
  char byte;
  ck_assert(recv(idle, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
  shutdown(idle, SHUT_WR);
  ck_assert_str_eq(news_of(idle), "");
}

/* The near rank's end of a link through the relay, as relay.c makes it. */
typedef struct near_link {
  hk_link link;
  hk_relay_fifo fifo;
  hk_relay_request ask;
  int memory, fd;
} near_link;
static void open_near(near_link *n, hk_link_kind kind, int channel) {
  const int memory = hk_host_memfd("a FIFO", hk_relay_fifo_bytes(&env));
  *n = (near_link){.memory = memory, .ask = {.far = 2, .kind = (uint8_t)kind}};
  n->ask.channel = hk_relay_channel(0, 2, 1, channel);
  ck_assert(hk_relay_fifo_map(&env, memory, &n->fifo));
  ck_assert_int_eq(hk_host_lend(memory, n->fifo.bytes, false, &n->ask.region), HK_OK);
  n->link = (hk_link){.slots = n->fifo.slots,
                      .heads = (hk_head *)(void *)(n->fifo.slots + NSLOTS),
                      .payload = n->fifo.payload,
                      .mask = NSLOTS - 1,
                      .area_mask = NSLOTS - 1,
                      .limit = kind == HK_LINK_SEND ? NSLOTS : 0,
                      .slot_bytes = SLOT,
                      .nheads = 1,
                      .kind = (uint8_t)kind};
  n->fd = connect_near();
  ck_assert_int_eq(send(n->fd, &n->ask, sizeof n->ask, 0), sizeof n->ask);
}
static void close_near(near_link *n) {
  shutdown(n->fd, SHUT_WR);
  ck_assert_str_eq(news_of(n->fd), ""); /* it ends when all has been moved on */
  hk_host_take_back(n->ask.region);
  hk_relay_fifo_unmap(&n->fifo);
}
static void ring(near_link *n) {
  atomic_thread_fence(memory_order_seq_cst); /* as relay_ring */
  if (atomic_load(n->fifo.asleep)) ck_assert_int_eq(send(n->fd, "", 1, 0), 1);
}
static uint64_t deadline_ns; /* of a test that waits for a slot that does not come */
static void step_far(void) {
  bool moved;
  ck_assert_msg(hk_now_ns() < deadline_ns, "a slot does not come");
  ck_assert_int_eq(hk_transport_net.proxied->progress(w->ranks[2].state, &moved), HK_OK);
  sched_yield();
}

/* Slots go from rank 1 over rank 0 to rank 2 and back, more than a FIFO has; the last ones when the link has ended. */
TEST(moves_slots) {
  enum { MESSAGES = 3 * NSLOTS };
  char why[200];
  near_link out, back;
  hk_link far_in = {.nheads = 0}, far_out = {.nheads = 0};
  make("....");
  deadline_ns = hk_now_ns() + 8000000000u;
  w->peers[1].process = w->peers[0].process;
  ck_assert(hk_transport_relay.reachable(relay, 3, why, sizeof why) && on_connection);
  open_near(&out, HK_LINK_SEND, 0);
  open_near(&back, HK_LINK_RECV, 0);
  hk_link_key key = {.peer = 0, .kind = HK_LINK_RECV, .channel = out.ask.channel};
  ck_assert_int_eq(hk_transport_net.open(w->ranks[2].state, &key, &far_in), HK_OK);
  key.kind = HK_LINK_SEND;
  ck_assert_int_eq(hk_transport_net.open(w->ranks[2].state, &key, &far_out), HK_OK);
  for (uint32_t n = 0; n < MESSAGES; n++) {
    const uint32_t bytes = n % 2 ? SLOT : 16;
    while (!hk_link_can_send(&out.link, bytes)) step_far();
    memset(hk_link_send_buffer(&out.link, bytes), (int)n, bytes);
    hk_link_fill(&out.link, bytes, n, 0);
    ring(&out);
    while (!hk_link_can_recv(&far_in)) {
      hk_link_set_waiting(&far_in, HK_LINK_WAITS);
      step_far();
    }
    const hk_slot *s = hk_link_recv_slot(&far_in);
    const unsigned char *data = hk_link_recv_data(&far_in);
    ck_assert(s->bytes == bytes && s->signature == n && data[0] == n && data[bytes - 1] == n);
    memset(hk_link_send_buffer(&far_out, bytes), (int)n + 1, bytes);
    hk_link_release(&far_in);
    hk_link_publish(&far_out, bytes, n, 0);
    while (!hk_link_can_recv(&back.link)) step_far();
    s = hk_link_recv_slot(&back.link);
    data = hk_link_recv_data(&back.link);
    ck_assert(s->bytes == bytes && s->signature == n && data[0] == n + 1 && data[bytes - 1] == n + 1);
    hk_link_release(&back.link);
  }
  hk_transport_net.close(&far_out);
  hk_transport_net.close(&far_in);
  close_near(&out);
  close_near(&back);
}

int main(void) { return suite_main("relay_parts", .timeout = 60, .teardown = unmake); }
