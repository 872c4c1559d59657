/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank with many peers costs over verbs: memory for each peer, connections on demand, and the time of a call of
 * progress. `make bench-peers`, or build/gcc/bench/ib_peers N for N peers.
 *
 * Rank 0 and its peers are in one process and one thread, over the libibverbs of tests, whose cards copy at once. So
 * memory and counts are the library's own; times are of its code and the fake's, and say nothing about a card. The
 * memory of a card's queues is not counted. Each peer knows rank 0 alone. The ranks are on host memory. */
#define NET_RANKS 4100
#include "../src/transport/net/ib/ib_conn.h"
#include "../tests/support/fake_rdma.h" /* first: it replaces getrlimit */
#include "../tests/support/net_world.h"
#include "../tests/support/suite.h"

enum {
  SLOTS = 8,
  SLOT_BYTES = 131072,
  SMALL = 1024,
  LARGE = 65536,
  CALLS = 5000,
  ROUNDS = 500,
  BATCHES = 20,
  KIB = 1024
};

static net_world *world;
static hk_link *to[NET_RANKS], *from[NET_RANKS], *in[NET_RANKS], *out[NET_RANKS]; /* rank 0's, the peers' */
static char data[LARGE];

static void make_world(int peers) {
  char(*facts)[HK_FACT_BYTES] = calloc((size_t)peers + 1, sizeof *facts), two[2][HK_FACT_BYTES];
  world = calloc(1, sizeof *world);
  pthread_mutex_init(&world->lock, NULL);
  world->n = peers + 1;
  for (int i = 0; i <= peers; i++) {
    world->peers[i] = (hk_peer){.host = (uint64_t)i + 1, .process = (uint64_t)i};
    net_attach_rank(world, i, i > 0, i ? 2 : peers + 1, SLOTS, SLOT_BYTES, facts[i]);
  }
  ck_assert_int_eq(hk_transport_net.join(world->ranks[0].state, &(hk_facts){facts, HK_FACT_BYTES}), HK_OK);
  for (int i = 1; i <= peers; i++) {
    memcpy(two[0], facts[0], sizeof two[0]);
    memcpy(two[1], facts[i], sizeof two[1]);
    ck_assert_int_eq(hk_transport_net.join(world->ranks[i].state, &(hk_facts){two, HK_FACT_BYTES}), HK_OK);
  }
  free(facts);
}

static hk_ib_ctx *ctx_of(const hk_link *l) { return ((hk_ib_conn *)((hk_net_end *)l->priv)->priv)->ctx; }

/* Not an assertion of Check's, which costs a system call. */
static void progress(int rank) {
  if (net_progress(&world->ranks[rank], NULL) != HK_OK) abort();
}

static void both(int peer) {
  progress(0);
  progress(peer);
}

static void open_links(int peer) {
  to[peer] = net_link(&world->ranks[0], peer, HK_LINK_SEND, HK_CHANNEL_P2P);
  from[peer] = net_link(&world->ranks[0], peer, HK_LINK_RECV, HK_CHANNEL_P2P);
  in[peer] = net_link(&world->ranks[peer], 0, HK_LINK_RECV, HK_CHANNEL_P2P);
  out[peer] = net_link(&world->ranks[peer], 0, HK_LINK_SEND, HK_CHANNEL_P2P);
  while (atomic_load(&to[peer]->state) != HK_LINK_READY || atomic_load(&in[peer]->state) != HK_LINK_READY) both(peer);
}

/* One message there and one back. */
static void exchange(int peer, uint32_t bytes) {
  uint32_t n, signature;
  bool direct;
  for (int way = 0; way < 2; way++) {
    while (!net_try_send(way ? out[peer] : to[peer], data, bytes, 1, false)) both(peer);
    while (!net_try_recv(way ? from[peer] : in[peer], data, bytes, false, &n, &signature, &direct)) both(peer);
    if (n != bytes) abort();
  }
}

static double now_us(void) { return (double)hk_now_ns() / 1e3; }

static double resident_kib(void) {
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "re");
  if (!f || fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
  if (f) fclose(f);
  return (double)pages * 4;
}

static void least(double *best, double now) { *best = now < *best ? now : *best; }

/* What one connection in use costs while all others are idle: the best batch. */
static void measure(int peers, const char *what) {
  hk_ib_ctx *x = ctx_of(to[1]);
  for (int i = 0; i < 1000 && x->progress.nactive; i++) progress(0);
  uint32_t active = x->progress.nactive;
  double idle = 1e9, round = 1e9;
  for (int b = 0; b < BATCHES; b++) {
    double begin = now_us();
    for (int i = 0; i < CALLS; i++) progress(0);
    least(&idle, (now_us() - begin) / CALLS);
    begin = now_us();
    for (int i = 0; i < ROUNDS; i++) exchange(1, 8);
    least(&round, (now_us() - begin) / ROUNDS);
  }
  printf(
      "%5d peers, %s: %.1f KiB locked a peer; %u active when idle, %.3f us a call of progress; %.2f us a round trip\n",
      peers, what, (double)x->counts.pinned / KIB / peers, active, idle, round);
}

static void run(int peers) {
  double begin = now_us(), before = resident_kib();
  make_world(peers);
  printf("%5d peers: %d dials before the first message\n", peers, world->dials);
  for (int i = 1; i <= peers; i++) open_links(i);
  printf("%5d peers: %d dials, connected in %.2f s; both sides and the fake card hold %.0f KiB a peer\n", peers,
         world->dials, (now_us() - begin) / 1e6, (resident_kib() - before) / peers);
  measure(peers, "connected");
  for (int i = 1; i <= peers; i++) exchange(i, SMALL);
  measure(peers, "after an alltoall of 1 KiB");
  hk_ib_ctx *x = ctx_of(to[1]);
  uint64_t small = x->counts.pinned;
  exchange(1, LARGE);
  printf("%5d peers: a message of 64 KiB each way to one peer locks %.0f KiB more\n", peers,
         (double)(x->counts.pinned - small) / KIB);
  for (int i = 1; i <= peers; i++) {
    net_unlink(to[i]);
    net_unlink(from[i]);
    net_unlink(in[i]);
    net_unlink(out[i]);
  }
  net_world_free(world);
}

static int wanted = 1024;
START_TEST(many_peers) {
  struct rlimit files;
  ck_assert(wanted > 0 && wanted < NET_RANKS - 1);
  ck_assert_int_eq(prlimit(0, RLIMIT_NOFILE, NULL, &files), 0);
  files.rlim_cur = files.rlim_max;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
  ck_assert_msg(files.rlim_cur > 4u * (unsigned)wanted + 64, "%d peers need more open files: ulimit -Hn", wanted);
  fake_verbs_state *verbs = rdma_begin(1);
  verbs->without_channels = 1;
  rdma_plenty = true;
  rdma_param("NCCL_NET", "IB");
  run(wanted);
  rdma_end(verbs);
}
END_TEST

int main(int argc, char **argv) {
  TCase *t = tcase_create("peers");
  if (argc > 1) wanted = atoi(argv[1]);
  tcase_set_timeout(t, 900);
  tcase_add_test(t, many_peers);
  return suite_run_one("ib_peers", t);
}
