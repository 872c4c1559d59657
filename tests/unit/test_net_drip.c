/* SPDX-License-Identifier: Apache-2.0 */
/* The net transport over sockets whose bytes come in pieces of any size: headers and payloads arrive cut at every
 * place, and several at once. Both ranks, and what passes their bytes on, are of one thread.
 * check: notsan */
#include <check.h>
#include <poll.h>
#include "../../src/transport/net/socket/socket.h"
#include "../support/net_soak.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { SLOT = 131072, WIRES = 8 };
static const uint32_t sizes[] = {0,     1,     15,    16,    17,    48,     49,     992,   1008,  1009,
                                 1023,  1024,  1025,  2048,  4096,  32767,  32768,  32769, 65535, 65536,
                                 65537, 69632, 98303, 98304, 98305, 126976, 131071, 131072};

/* The wires of the world: two connections each, and what passes bytes from one to the other. */
static struct relay { int ends[2]; } relays[WIRES];
static int nrelays;
static unsigned most_at_once, moment;

static hk_status relayed_dial(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  net_rank *r = arg;
  net_world *w = r->world;
  int near[2], far[2];
  (void)at;
  net_pair(true, near);
  net_pair(true, far);
  ck_assert_int_lt(nrelays, WIRES);
  relays[nrelays++] = (struct relay){{near[1], far[0]}};
  w->mail[w->nmail].from = r->rank;
  w->mail[w->nmail].to = peer;
  w->mail[w->nmail].fd = far[1];
  w->mail[w->nmail++].tag = tag;
  *fd = near[0];
  return HK_OK;
}

/* Passes a few bytes on, each way. */
static void pass_bytes(void) {
  static char bytes[1 << 17];
  for (int i = 0; i < 2 * nrelays; i++) {
    const int from = relays[i / 2].ends[i % 2], to = relays[i / 2].ends[1 - i % 2];
    const size_t n = 1 + mix(moment++) % most_at_once;
    const ssize_t here = recv(from, bytes, n, MSG_PEEK | MSG_DONTWAIT);
    const ssize_t there = here > 0 ? send(to, bytes, (size_t)here, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (there > 0) ck_assert_int_eq(recv(from, bytes, (size_t)there, MSG_DONTWAIT), there);
  }
}

static const struct {
  const char *sockets, *threads;
  unsigned most; /* bytes at once */
  uint32_t nslots, largest;
  bool by_ref, want, one_way;
} ways[] = {{"1", NULL, 5, 4, 100, false, false, false},    {"1", NULL, 40, 4, 2048, false, true, true},
            {"1", NULL, 3000, 8, 4096, true, true, false},  {"1", NULL, 60000, 2, SLOT, true, false, false},
            {"4", NULL, 40000, 4, SLOT, true, true, false}, {"3", NULL, 7000, 4, 98305, false, false, true},
            {"8", NULL, 50000, 8, SLOT, true, true, true},  {"2", "2", 40000, 4, SLOT, true, true, false},
            {"1", "3", 7000, 4, 98305, false, false, true}, {"1", "8", 50000, 8, SLOT, true, true, true}};

TEST_LOOP(carries_messages_in_pieces, HK_ARRAY_LENGTH(ways)) {
  const int before = open_fds();
  uint32_t n = 0;
  while (n < HK_ARRAY_LENGTH(sizes) && sizes[n] <= ways[_i].largest) n++;
  set_param("NCCL_NSOCKS_PERTHREAD", ways[_i].sockets);
  set_param("NCCL_SOCKET_NTHREADS", ways[_i].threads);
  net_world *w = net_world_new(2, ways[_i].nslots, SLOT);
  w->ranks[0].env.dial = relayed_dial;
  most_at_once = ways[_i].most;
  run_soak(&(soak){.w = w,
                   .sizes = sizes,
                   .nsizes = n,
                   .most = ways[_i].largest,
                   .count = 200,
                   .by_ref = ways[_i].by_ref,
                   .want = ways[_i].want,
                   .one_way = ways[_i].one_way,
                   .between = pass_bytes,
                   .seed = (uint32_t)_i});
  ck_assert_int_eq(nrelays, atoi(ways[_i].sockets) * (ways[_i].threads ? atoi(ways[_i].threads) : 1));
  for (int i = 0; i < 2 * nrelays; i++) close(relays[i / 2].ends[i % 2]);
  net_world_free(w);
  ck_assert_int_eq(open_fds(), before);
}

int main(void) { return suite_main("net_drip", .timeout = 120); }
