/* SPDX-License-Identifier: Apache-2.0 */
/* check: fast */
/* The net transport over sockets: messages between ranks that are threads. */
#include <linux/tcp.h> /* a tcp_info with the bytes sent */
#include "../../src/transport/net/socket/socket.h"
#include "../support/net_streams.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { MOST = 524288 };

/* sockets of each thread, threads (NULL: 1) */
static const struct {
  const char *sockets, *threads;
  bool by_ref, want, both, socketpairs;
  uint32_t most, nslots;
} ways[] = {
    {"1", NULL, false, false, false, false, 4096, 8}, {"1", NULL, true, true, false, false, 131072, 8},
    {"1", NULL, true, true, true, false, 131072, 8},  {"1", NULL, true, false, true, false, 131072, 2},
    {"1", NULL, false, true, true, true, 100000, 4},  {"2", NULL, true, true, true, false, 131072, 8},
    {"3", NULL, false, false, true, false, 99999, 4}, {"4", NULL, true, true, true, false, 131072, 8},
    {"4", NULL, true, false, true, true, 131072, 2},  {"64", NULL, true, true, true, false, 131072, 8},
    {"2", "2", true, true, true, false, 131072, 8},   {"1", "3", false, false, true, false, 99999, 4},
    {"2", "3", true, true, true, true, 131072, 8},    {"4", "16", true, true, true, false, 131072, 8},
    {"1", "2", true, false, true, true, 131072, 2},
};

/* The library's threads of that kind in this process. */
static int socket_threads(void) {
  char comm[64], name[32];
  int n = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *d; tasks && (d = readdir(tasks));) {
    snprintf(comm, sizeof comm, "/proc/self/task/%.20s/comm", d->d_name);
    FILE *f = fopen(comm, "r");
    if (!f) continue;
    n += fgets(name, sizeof name, f) && strcmp(name, "hocket-socket\n") == 0;
    fclose(f);
  }
  closedir(tasks);
  return n;
}

TEST_LOOP(carries_messages, HK_ARRAY_LENGTH(ways)) {
  const int threads = ways[_i].threads ? atoi(ways[_i].threads) : 1;
  set_param("NCCL_NSOCKS_PERTHREAD", ways[_i].sockets);
  set_param("NCCL_SOCKET_NTHREADS", ways[_i].threads);
  net_world *w = net_world_new(2, ways[_i].nslots, 131072);
  w->socketpairs = ways[_i].socketpairs;
  stream t[2];
  for (int i = 0; i < 2; i++)
    t[i] = (stream){.rank = &w->ranks[i],
                    .peer = 1 - i,
                    .channel = 3,
                    .count = 640,
                    .most = ways[_i].most,
                    .by_ref = ways[_i].by_ref,
                    .want = ways[_i].want,
                    .both = ways[_i].both};
  run_streams(w, t, 2);
  ck_assert_int_eq(w->dials, threads * atoi(ways[_i].sockets));
  ck_assert_int_eq(socket_threads(), 2 * (threads - 1));
  if (ways[_i].want) ck_assert_uint_gt(t[1].direct, 0);
  if (!ways[_i].want) ck_assert_uint_eq(t[1].direct, 0);
}

/* One message from rank 0 to rank 1, both moved by this thread. */
static void send_one(net_world *w, hk_link *from, hk_link *to, uint32_t bytes, bool want) {
  static unsigned char out[MOST], in[MOST];
  uint32_t got = 0, signature = 0, seed = bytes + want;
  bool direct, sent = false, came = false;
  fill(out, bytes, seed);
  memset(in, 0, sizeof in);
  uint64_t until = hk_now_ns() + 20000000000u;
  while (!came || !hk_link_drained(from)) {
    ck_assert_msg(hk_now_ns() < until, "%u bytes do not come through", bytes);
    if (!sent) sent = net_try_send(from, out, bytes, seed, true);
    if (!came) came = net_try_recv(to, in, MOST, want, &got, &signature, &direct);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(net_progress(&w->ranks[r], NULL), HK_OK);
  }
  ck_assert_uint_eq(got, bytes);
  ck_assert_uint_eq(signature, seed);
  ck_assert_msg(filled(in, bytes, seed), "a message of %u bytes is not what was sent", bytes);
}

static const char *const numbers[] = {"2", "3", "5", "8", "16", "64"};

/* Sizes at which the parts of the sockets begin, end and vanish: around whole pages for each. */
TEST_LOOP(stripes_at_their_boundaries, HK_ARRAY_LENGTH(numbers)) {
  uint32_t n = (uint32_t)atoi(numbers[_i]);
  set_param("NCCL_NSOCKS_PERTHREAD", numbers[_i]);
  net_world *w = net_world_new(2, 4, MOST);
  hk_link *from = net_link(&w->ranks[0], 1, HK_LINK_SEND, 0), *to = net_link(&w->ranks[1], 0, HK_LINK_RECV, 0);
  if (n > MOST / HK_PART_MIN) n = MOST / HK_PART_MIN;
  uint32_t least = HK_PART_MIN / 4096 - 1;
  for (uint32_t pages = least; pages <= least + 2; pages++)
    for (int off = -2; off <= 2; off++)
      for (uint32_t short_of = 0; short_of < 2; short_of++) { /* the last socket has a whole share, or a page less */
        uint32_t bytes = 4096 * (n * pages - short_of) + (uint32_t)off;
        if (bytes <= MOST) send_one(w, from, to, bytes, off % 2 != 0);
      }
  for (int off = -2; off <= 2; off++) send_one(w, from, to, (uint32_t)(HK_STRIPE_MIN + off), true);
  send_one(w, from, to, MOST, true);
}

/* The bytes that the kernel has taken from a socket. */
static uint64_t sent_by(int fd) {
  struct tcp_info info = {0};
  socklen_t n = sizeof info;
  ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n), 0);
  return info.tcpi_bytes_acked + info.tcpi_unacked;
}

/* More sockets than a message has parts: the messages take turns on all but the first. */
TEST(uses_every_socket) {
  enum { SOCKETS = 8, MESSAGES = 28 };
  set_param("NCCL_SOCKET_NTHREADS", "2");
  set_param("NCCL_NSOCKS_PERTHREAD", "4");
  net_world *w = net_world_new(2, 4, MOST);
  hk_link *from = net_link(&w->ranks[0], 1, HK_LINK_SEND, 0), *to = net_link(&w->ranks[1], 0, HK_LINK_RECV, 0);
  for (int i = 0; i < MESSAGES; i++) send_one(w, from, to, 2 * HK_PART_MIN, true);
  ck_assert_int_eq(w->dials, SOCKETS);
  ck_assert_uint_lt(sent_by(w->wires[0][0]), 2 * HK_PART_MIN);
  for (int s = 1; s < SOCKETS; s++)
    ck_assert_uint_ge(sent_by(w->wires[s][0]), MESSAGES * 2 / (SOCKETS - 1) * HK_PART_MIN);
}

static net_world *losing;
static int to_lose;
static void lose_a_socket(unsigned i) {
  if (i == 100) (void)shutdown(losing->wires[to_lose][0], SHUT_RDWR);
}

/* One of four sockets ends in the middle of a stream: both ranks report it, and name the route. */
TEST_LOOP(reports_a_lost_socket, 6) {
  const bool threads = _i >= 3;
  set_param("NCCL_NSOCKS_PERTHREAD", threads ? "2" : "4");
  set_param("NCCL_SOCKET_NTHREADS", threads ? "2" : NULL);
  net_world *w = losing = net_world_new(2, 4, MOST);
  to_lose = _i % 3;
  stream t[2];
  for (int i = 0; i < 2; i++)
    t[i] = (stream){.rank = &w->ranks[i],
                    .peer = 1 - i,
                    .count = 640,
                    .most = 200000,
                    .by_ref = true,
                    .want = true,
                    .both = true,
                    .before = i ? NULL : lose_a_socket};
  try_streams(w, t, 2);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(t[i].rc, HK_ERR_REMOTE);
    ck_assert_msg(strstr(t[i].error, "lost the connection") && strstr(t[i].error, "127.0.0.1<"), "%s", t[i].error);
  }
}

/* Every rank to every other on one thread a rank: more links are waited for than are asked directly. */
typedef struct crowd {
  net_rank *rank;
  hk_status rc;
} crowd;

static void *run_crowd(void *arg) {
  crowd *c = arg;
  net_rank *r = c->rank;
  enum { ROUNDS = 40, CHANNELS = 2, BYTES = 20000 };
  int n = r->world->n;
  hk_link *send[NET_RANKS][CHANNELS], *recv[NET_RANKS][CHANNELS];
  unsigned sent[NET_RANKS][CHANNELS] = {0}, got[NET_RANKS][CHANNELS] = {0};
  static _Thread_local unsigned char out[BYTES], in[BYTES];
  for (int p = 0; p < n; p++)
    for (int ch = 0; p != r->rank && ch < CHANNELS; ch++) {
      send[p][ch] = net_link(r, p, HK_LINK_SEND, ch);
      recv[p][ch] = net_link(r, p, HK_LINK_RECV, ch);
    }
  int left = 2 * (n - 1) * CHANNELS * ROUNDS;
  hk_waiter w;
  hk_wait_begin(&w, &r->wait);
  while (left > 0) {
    bool moved = false, wire;
    for (int p = 0; p < n; p++)
      for (int ch = 0; p != r->rank && ch < CHANNELS; ch++) {
        uint32_t seed = (uint32_t)(r->rank * 16 + ch), bytes, signature, size = mix(seed + sent[p][ch]) % BYTES;
        fill(out, size, seed);
        if (sent[p][ch] < ROUNDS && net_try_send(send[p][ch], out, size, seed, false))
          sent[p][ch]++, left--, moved = true;
        bool direct;
        seed = (uint32_t)(p * 16 + ch);
        if (got[p][ch] < ROUNDS && net_try_recv(recv[p][ch], in, BYTES, false, &bytes, &signature, &direct)) {
          ck_assert_uint_eq(signature, seed);
          ck_assert_uint_eq(bytes, mix(seed + got[p][ch]) % BYTES);
          ck_assert(filled(in, bytes, seed));
          got[p][ch]++, left--, moved = true;
        }
      }
    if ((c->rc = net_progress(r, &wire)) != HK_OK) return NULL;
    if (moved || wire)
      hk_wait_progress(&w);
    else if ((c->rc = hk_wait_pause(&w)) != HK_OK)
      return NULL;
  }
  for (int p = 0; p < n; p++)
    for (int ch = 0; p != r->rank && ch < CHANNELS; ch++)
      while (!hk_link_drained(send[p][ch]))
        if ((c->rc = net_progress(r, NULL)) != HK_OK) return NULL;
  for (int p = 0; p < n; p++)
    for (int ch = 0; p != r->rank && ch < CHANNELS; ch++) {
      net_unlink(send[p][ch]);
      net_unlink(recv[p][ch]);
    }
  return NULL;
}

TEST(carries_many_links) {
  enum { N = 6 };
  net_world *w = net_world_new(N, 4, 32768);
  crowd c[N];
  pthread_t threads[N];
  for (int i = 0; i < N; i++) {
    w->ranks[i].wait = (hk_wait_env){.spins = 0, .deadline_ns = hk_now_ns() + 60000000000u};
    c[i] = (crowd){.rank = &w->ranks[i]};
    pthread_create(&threads[i], NULL, run_crowd, &c[i]);
  }
  for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < N; i++) ck_assert_msg(c[i].rc == HK_OK, "rank %d: %s", i, hk_last_error());
  ck_assert_int_eq(w->dials, N * (N - 1) / 2 * 2);
}

/* Sockets and what waits for them, after links that blocked and slept. */
TEST(leaves_no_descriptors) {
  int before = open_fds();
  for (int round = 0; round < 3; round++) {
    static unsigned char data[MOST];
    net_world *w = net_world_new(2, 8, MOST);
    hk_link *from = net_link(&w->ranks[0], 1, HK_LINK_SEND, 0), *to = net_link(&w->ranks[1], 0, HK_LINK_RECV, 0);
    for (int i = 0; i < 200; i++) { /* until the kernel takes no more: then epoll waits */
      net_try_send(from, data, MOST, 1, true);
      ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
    }
    to->waiting = HK_LINK_WAITS;
    hk_transport_net.proxied->sleep(w->ranks[0].state);
    ck_assert_int_eq(net_progress(&w->ranks[1], NULL), HK_OK); /* takes the connection */
    hk_transport_net.proxied->sleep(w->ranks[1].state);
    ck_assert_int_gt(open_fds(), before + 3);
    net_world_free(w);
    ck_assert_int_eq(open_fds(), before);
  }
}

/* The higher rank comes first and sends before anybody has called. */
TEST(waits_for_the_call) {
  net_world *w = net_world_new(2, 2, 4096);
  hk_link *send = net_link(&w->ranks[1], 0, HK_LINK_SEND, 0);
  ck_assert_int_eq(atomic_load(&send->state), HK_LINK_CONNECTING);
  ck_assert(net_try_send(send, "abc", 3, 9, false));
  ck_assert(net_try_send(send, "defg", 4, 9, false));
  ck_assert(!hk_link_can_send(send, 0));
  for (int i = 0; i < 10; i++) ck_assert_int_eq(net_progress(&w->ranks[1], NULL), HK_OK);
  ck_assert(!hk_link_drained(send));
  hk_link *recv = net_link(&w->ranks[0], 1, HK_LINK_RECV, 0);
  ck_assert_int_eq(atomic_load(&recv->state), HK_LINK_READY);
  char in[8];
  uint32_t bytes, signature;
  bool direct;
  for (int got = 0; got < 2;) {
    ck_assert_int_eq(net_progress(&w->ranks[1], NULL), HK_OK);
    got += net_try_recv(recv, in, 8, false, &bytes, &signature, &direct);
    ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  }
  ck_assert_uint_eq(bytes, 4);
  ck_assert_mem_eq(in, "defg", 4);
  ck_assert_int_eq(atomic_load(&send->state), HK_LINK_READY);
  ck_assert(hk_link_drained(send) && hk_link_can_send(send, 0));
}

/* A reader that does not read: credits stay out, nothing is lost, and it flows on when it reads. */
TEST(holds_back_when_the_reader_is_slow) {
  enum { BYTES = 131072, COUNT = 200 };
  net_world *w = net_world_new(2, 8, BYTES);
  hk_link *send = net_link(&w->ranks[0], 1, HK_LINK_SEND, 0), *recv = net_link(&w->ranks[1], 0, HK_LINK_RECV, 0);
  unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
  fill(out, BYTES, 1);
  int sent = 0, got = 0;
  for (int idle = 0; idle < 3000; idle++) {
    if (sent < COUNT && net_try_send(send, out, BYTES, 1, true)) sent++, idle = 0;
    ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
  }
  ck_assert_int_lt(sent, COUNT);
  ck_assert(!hk_link_drained(send));
  while (got < COUNT) {
    uint32_t bytes, signature;
    bool direct;
    if (sent < COUNT && net_try_send(send, out, BYTES, 1, true)) sent++;
    ck_assert_int_eq(net_progress(&w->ranks[0], NULL), HK_OK);
    ck_assert_int_eq(net_progress(&w->ranks[1], NULL), HK_OK);
    if (!net_try_recv(recv, in, BYTES, true, &bytes, &signature, &direct)) continue;
    ck_assert_uint_eq(bytes, BYTES);
    ck_assert(filled(in, BYTES, 1));
    got++;
  }
  ck_assert(hk_link_drained(send));
  free(out);
  free(in);
}

TEST(chooses_the_provider) {
  hk_transport_env env = {.rank = 0, .nranks = 2};
  hk_transport_state *s;
  char fact[HK_FACT_BYTES] = {0};
  set_param("NCCL_NET", "Pigeon");
  env.settings = hk_settings_now();
  ck_assert_int_eq(hk_transport_net.attach(&env, &s, fact), HK_ERR_USAGE);
  ck_assert(strstr(hk_last_error(), "Pigeon") && strstr(hk_last_error(), "Socket"));
  set_param("NCCL_NET", "socket");
  env.settings = hk_settings_now();
  ck_assert_int_eq(hk_transport_net.attach(&env, &s, fact), HK_OK);
  char why[160], facts[2][HK_FACT_BYTES];
  ck_assert(!hk_transport_net.reachable(s, 1, why, sizeof why));
  memcpy(facts[0], fact, HK_FACT_BYTES);
  memcpy(facts[1], fact, HK_FACT_BYTES);
  memcpy(facts[1], "IB\0", 3);
  ck_assert_int_eq(hk_transport_net.join(s, &(hk_facts){facts, HK_FACT_BYTES}), HK_OK);
  ck_assert(!hk_transport_net.reachable(s, 0, why, sizeof why));
  ck_assert(!hk_transport_net.reachable(s, 1, why, sizeof why));
  ck_assert(strstr(why, "IB") && strstr(why, "NCCL_NET"));
  hk_transport_net.detach(s);
}

/* Before the ranks have exchanged their facts no rank is reached, and this rank is never its own peer. */
TEST(knows_no_peers_before_the_exchange) {
  static net_world w = {.n = 2};
  char facts[2][HK_FACT_BYTES], why[160];
  void *ctx = NULL;
  memset(facts, 0, sizeof facts);
  for (int i = 0; i < 2; i++) net_attach_rank(&w, i, i, 2, 4, 4096, facts[i]);
  for (int round = 0; round < 2; round++) {
    for (int peer = 0; peer < 2; peer++) {
      const bool reaches = round && peer;
      hk_transport_state *s = w.ranks[0].state;
      ck_assert_int_eq(hk_transport_net.reachable(s, peer, why, sizeof why), reaches);
      if (!reaches) ck_assert_msg(strstr(why, round ? "it is this rank itself" : "not exchanged"), "%s", why);
      ck_assert(!hk_transport_net.proxied->apart(s, peer)); /* over TCP: no */
      ck_assert(!hk_transport_net.proxied->remote(s, peer, &ctx));
      ck_assert_int_eq(ctx != NULL, reaches); /* it has no one-sided operations */
    }
    if (!round) ck_assert_int_eq(hk_transport_net.join(w.ranks[0].state, &(hk_facts){facts, HK_FACT_BYTES}), HK_OK);
  }
  for (int i = 0; i < 2; i++) hk_transport_net.detach(w.ranks[i].state);
}

/* What the transport answers for a link over sockets, which send from any memory. */
TEST(refers_to_any_memory) {
  static char data[100];
  hk_ref ref = {.region = 7};
  net_world *w = net_world_new(2, 4, 4096);
  hk_link *l = net_link(&w->ranks[0], 1, HK_LINK_SEND, 3);
  hk_transport_state *s = w->ranks[0].state;
  for (int yes = 0; yes < 2; yes++) {
    bool rests = yes;
    ck_assert_int_eq(hk_transport_net.payload->rest(l, &rests), HK_OK);
    ck_assert_int_eq(rests, yes);
  }
  ck_assert(hk_transport_net.zero_copy->refer(s, l, data, sizeof data, &ref));
  ck_assert(ref.region == 0 && ref.offset == (uint64_t)(uintptr_t)data);
  ck_assert_ptr_eq(hk_transport_net.zero_copy->resolve(s, l, &ref, sizeof data), data);
  ref.region = 1;
  ck_assert_ptr_null(hk_transport_net.zero_copy->resolve(s, l, &ref, sizeof data));
  ck_assert(l->by_ref == 2 && l->limit == 4 && l->mask == 3 && !l->gpu && l->owner == s && l->proxied && l->peer == 1);
  ck_assert(hk_transport_net.payload->grows(s, &(hk_link_key){.peer = 1, .kind = HK_LINK_SEND}));
  hk_link other = {.peer = 0};
  ck_assert_int_eq(hk_transport_net.open(s, &(hk_link_key){.peer = 1, .kind = HK_LINK_SUM_SEND}, &other),
                   HK_ERR_INTERNAL);
  ck_assert_msg(strstr(hk_last_error(), "multicast"), "%s", hk_last_error());
  net_unlink(l);
}

int main(void) { return net_main("net", .timeout = 120); }
