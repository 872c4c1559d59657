/* SPDX-License-Identifier: Apache-2.0 */
/* The net link alone, two ranks as threads over loopback: round trips, a one-way stream of small messages, bandwidth.
 *   net_link                         both ranks in this process, over loopback
 *   net_link serve PORT              one rank, that waits for the other
 *   net_link call ADDRESS:PORT       the other one, which prints
 * NCCL_NSOCKS_PERTHREAD gives the number of sockets.  With NET_LINK_STREAM set only bandwidth is measured; with
 * NET_LINK_PIN the ranks are pinned to cores. */
#include <poll.h>
#include <sched.h>
#include "../src/base/param.h"
#include "../tests/support/net_world.h"

enum { SLOT = 131072 };

typedef struct side {
  net_rank *rank;
  int peer, cpu;
  hk_link *send, *recv;
  hk_waiter waiter;
} side;

static void pin(int cpu) {
  if (!getenv("NET_LINK_PIN")) return;
  cpu_set_t s;
  CPU_ZERO(&s);
  CPU_SET(cpu, &s);
  (void)sched_setaffinity(0, sizeof s, &s);
}

static void must(hk_status rc) {
  if (rc == HK_OK) return;
  fprintf(stderr, "%s\n", hk_last_error());
  exit(1);
}

/* One poll, and a pause where it moved nothing, as the executor does. */
static void poll_once(side *t) {
  bool moved;
  must(net_progress(t->rank, &moved));
  if (moved)
    hk_wait_progress(&t->waiter);
  else
    must(hk_wait_pause(&t->waiter));
}

static void send_one(side *t, const void *data, uint32_t bytes) {
  while (!net_try_send(t->send, data, bytes, 1, true)) poll_once(t);
}
static void recv_one(side *t, void *data, uint32_t bytes) {
  uint32_t n, signature;
  bool direct;
  while (!net_try_recv(t->recv, data, bytes, true, &n, &signature, &direct)) poll_once(t);
}
static void drain(side *t) {
  while (!hk_link_drained(t->send)) poll_once(t);
}

static void report(const char *what, uint32_t bytes, unsigned n, uint64_t ns, bool round) {
  if (round)
    printf("%-12s %8u B  %9.2f us a round trip\n", what, bytes, (double)ns / n / 1e3);
  else
    printf("%-12s %8u B  %9.2f us a message  %7.2f GB/s\n", what, bytes, (double)ns / n / 1e3,
           (double)bytes * n / (double)ns);
}

static void *run(void *arg) {
  static const uint32_t sizes[] = {8, 1024, 8192, 65536};
  side *t = arg;
  bool first = t->rank->rank == 0;
  size_t big = (size_t)64 << 20;
  char *buffer = malloc(big);
  memset(buffer, 1, big);
  pin(t->cpu);
  hk_wait_begin(&t->waiter, &t->rank->wait);
  bool streams_only = getenv("NET_LINK_STREAM") != NULL;
  for (size_t k = 0; k < HK_ARRAY_LENGTH(sizes) && !streams_only; k++) {
    unsigned n = 10000;
    uint64_t begin = 0;
    for (unsigned i = 0; i < n + 1000; i++) {
      if (i == 1000) begin = hk_now_ns();
      if (!first) recv_one(t, buffer, sizes[k]);
      send_one(t, buffer, sizes[k]);
      if (first) recv_one(t, buffer, sizes[k]);
    }
    drain(t);
    if (first) report("ping-pong", sizes[k], n, hk_now_ns() - begin, true);
  }
  for (size_t k = 0; k < HK_ARRAY_LENGTH(sizes) && !streams_only; k++) {
    unsigned n = 20000;
    uint64_t begin = hk_now_ns();
    for (unsigned i = 0; i < n; i++) first ? send_one(t, buffer, sizes[k]) : recv_one(t, buffer, sizes[k]);
    if (first) {
      drain(t);
      recv_one(t, buffer, 1);
      report("one way", sizes[k], n, hk_now_ns() - begin, false);
    } else {
      send_one(t, buffer, 1);
      drain(t);
    }
  }
  for (int both = 0; both < 2 - streams_only; both++) {
    for (int repeat = 0; repeat < (streams_only ? 20 : 3); repeat++) {
      uint64_t begin = hk_now_ns();
      size_t sent = first || both ? 0 : big, got = !first || both ? 0 : big;
      while (sent < big || got < big) {
        uint32_t n, signature;
        bool direct, moved = false;
        if (sent < big && net_try_send(t->send, buffer + sent, SLOT, 1, true)) sent += SLOT, moved = true;
        if (got < big && net_try_recv(t->recv, buffer + got, SLOT, true, &n, &signature, &direct))
          got += SLOT, moved = true;
        if (!moved) poll_once(t);
      }
      drain(t);
      if (first) {
        recv_one(t, buffer, 1);
        report(both ? "both ways" : "stream", SLOT, (unsigned)(big / SLOT), hk_now_ns() - begin, false);
      } else {
        send_one(t, buffer, 1);
        drain(t);
      }
    }
  }
  free(buffer);
  return NULL;
}

/* ---- one rank a process ---- */

typedef struct remote {
  net_rank rank;
  int listener;
  hk_addr to;
} remote;

static hk_status call(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  remote *r = (remote *)arg;
  (void)peer, (void)at;
  hk_status rc = hk_connect_start(&r->to, fd);
  if (rc == HK_OK) rc = hk_wait_fd(&r->rank.wait, *fd, POLLOUT, "the other rank");
  if (rc == HK_OK && write(*fd, &tag, sizeof tag) != (ssize_t)sizeof tag) rc = HK_FAIL_ERRNO("cannot call");
  return rc;
}

static int answer(void *arg, int peer, uint64_t tag) { /* calls come in the order in which they are asked for */
  remote *r = (remote *)arg;
  uint64_t got;
  (void)peer;
  int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return -1;
  if (read(fd, &got, sizeof got) != (ssize_t)sizeof got || got != tag) exit(1);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
}

static int run_remote(int rank, const char *where) {
  static const uint8_t secret[16];
  hk_peer peers[2] = {{.host = 1}, {.host = 2}};
  char facts[2][HK_FACT_BYTES] = {{0}};
  remote r = {.rank = {.rank = rank, .wait = {.spins = 100}}};
  char text[64];
  snprintf(text, sizeof text, rank ? "0.0.0.0:%s" : "%s", where);
  must(hk_addr_parse(hk_settings_now(), &r.to, text));
  if (rank) must(hk_listen(hk_settings_now(), &r.to, 4, &r.listener));
  r.rank.env = (hk_transport_env){.rank = rank,
                                  .nranks = 2,
                                  .comm_id = 1,
                                  .secret = secret,
                                  .peers = peers,
                                  .wait = &r.rank.wait,
                                  .dial = call,
                                  .take = answer,
                                  .arg = &r,
                                  .slot_bytes = SLOT,
                                  .nslots = 8};
  must(hk_transport_net.attach(&r.rank.env, &r.rank.state, facts[rank]));
  memcpy(facts[1 - rank], facts[rank], HK_FACT_BYTES);
  must(hk_transport_net.join(r.rank.state, &(hk_facts){facts, HK_FACT_BYTES}));
  side t = {.rank = &r.rank, .peer = 1 - rank, .cpu = rank};
  t.send = net_link(t.rank, 1 - rank, HK_LINK_SEND, 0);
  t.recv = net_link(t.rank, 1 - rank, HK_LINK_RECV, 0);
  run(&t);
  net_unlink(t.send);
  net_unlink(t.recv);
  hk_transport_net.detach(r.rank.state);
  return 0;
}

static int run_here(void) {
  net_world *w = net_world_new(2, 8, SLOT);
  for (int i = 0; i < 2; i++) w->ranks[i].wait.spins = 100;
  side t[2];
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    t[i] = (side){.rank = &w->ranks[i], .peer = 1 - i, .cpu = i};
    t[i].send = net_link(t[i].rank, 1 - i, HK_LINK_SEND, 0);
    t[i].recv = net_link(t[i].rank, 1 - i, HK_LINK_RECV, 0);
  }
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, &t[i]);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 2; i++) {
    net_unlink(t[i].send);
    net_unlink(t[i].recv);
  }
  net_world_free(w);
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 3 && strcmp(argv[1], "serve") == 0) return run_remote(1, argv[2]);
  if (argc == 3 && strcmp(argv[1], "call") == 0) return run_remote(0, argv[2]);
  return run_here();
}
