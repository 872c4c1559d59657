/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of small messages inside a host, which the sender's kernel may gather: when it does, and that none waits for
 * a timer of the receiver's kernel. */
#include <netinet/tcp.h>
#include <sched.h>
#include "../../src/transport/net/socket/socket.h"
#include "../support/net_streams.h"
#include "../support/suite.h"

enum { STREAM = 16, LARGE = 20000, SLOT = 32768 };

/* Two ranks with a link each way, moved by this thread. */
typedef struct pair {
  net_world *w;
  hk_link *to[2], *from[2]; /* of each rank, to and from the other one */
  uint32_t sent[2], came[2];
} pair;

static pair setup(int hosts) {
  pair p = {.w = net_world_new(2, 8, SLOT)};
  p.w->peers[1].host += (uint64_t)(hosts - 1);
  for (int r = 0; r < 2; r++) {
    p.to[r] = net_link(&p.w->ranks[r], 1 - r, HK_LINK_SEND, 0);
    p.from[r] = net_link(&p.w->ranks[r], 1 - r, HK_LINK_RECV, 0);
  }
  while (atomic_load(&p.from[1]->state) != HK_LINK_READY) ck_assert_int_eq(net_progress(&p.w->ranks[1], NULL), HK_OK);
  return p;
}

static void send_small(pair *p, int rank, uint32_t bytes) {
  static unsigned char data[LARGE];
  p->sent[rank]++;
  memcpy(data, &p->sent[rank], sizeof p->sent[rank]);
  ck_assert(net_try_send(p->to[rank], data, bytes, 1, false));
  while (!hk_link_drained(p->to[rank])) ck_assert_int_eq(net_progress(&p->w->ranks[rank], NULL), HK_OK);
}

/* The next message to `rank`. Returns the number of polls that found nothing. */
static int receive(pair *p, int rank) {
  static unsigned char in[LARGE];
  uint32_t number, bytes, signature;
  bool direct;
  int polls = 0;
  for (; !net_try_recv(p->from[rank], in, LARGE, false, &bytes, &signature, &direct); polls++) {
    ck_assert_int_eq(net_progress(&p->w->ranks[rank], NULL), HK_OK);
    if (polls > 100) sched_yield();
  }
  memcpy(&number, in, sizeof number);
  ck_assert_uint_eq(number, ++p->came[rank]);
  return polls;
}

static bool gathers(const pair *p) {
  int nodelay;
  socklen_t n = sizeof nodelay;
  ck_assert_int_eq(getsockopt(p->w->wires[0][0], IPPROTO_TCP, TCP_NODELAY, &nodelay, &n), 0);
  return !nodelay;
}

TEST_RANGE(gathers_what_goes_one_way, 1, 3) {
  const bool near = _i == 1;
  pair p = setup(_i);
  for (int i = 0; i < STREAM; i++) {
    send_small(&p, 0, 8);
    ck_assert(!gathers(&p));
  }
  send_small(&p, 0, 8);
  ck_assert_int_eq(gathers(&p), near);
  /* What comes back ends it. */
  send_small(&p, 1, 8);
  receive(&p, 0);
  ck_assert(!gathers(&p));
  for (int i = 0; i < STREAM; i++) send_small(&p, 0, 8);
  ck_assert(!gathers(&p));
  send_small(&p, 0, 8);
  ck_assert_int_eq(gathers(&p), near);
  /* So does a large message. */
  send_small(&p, 0, LARGE);
  ck_assert(!gathers(&p));
  for (int i = 0; i < STREAM - 1; i++) send_small(&p, 0, 8);
  ck_assert(!gathers(&p));
  send_small(&p, 0, 8);
  ck_assert_int_eq(gathers(&p), near);
  while (p.came[1] < p.sent[0]) receive(&p, 1);
}

/* Polls before a message that is under way: some if another thread has to run first; the kernel's timer would take tens
 * of thousands. */
enum { SOON = 2000 };

/* A receiver that has just sent something counts as interactive: its kernel acknowledges 40 ms later. */
TEST(gathered_messages_come_at_once) {
  pair p = setup(1);
  for (int round = 0; round < 40; round++) {
    /* Interactive before the messages are marked: each is answered. */
    for (int i = 0; i < 4; i++) {
      send_small(&p, 0, 8);
      receive(&p, 1);
      send_small(&p, 1, 8);
      receive(&p, 0);
    }
    /* From here on the answers are not read, as if they belonged to another operation. */
    for (int i = 0; i < STREAM + 4; i++) {
      const int each = 1 + i % 3;
      for (int k = 0; k < each; k++) send_small(&p, 0, 8);
      for (int k = 0; k < each; k++) ck_assert_int_lt(receive(&p, 1), SOON);
      if (i % 5 == round % 5) send_small(&p, 1, 8);
    }
    ck_assert(gathers(&p));
    while (p.came[0] < p.sent[1]) receive(&p, 0);
    ck_assert(!gathers(&p));
  }
}

TEST(leads_by_what_the_cache_holds) {
  ck_assert_uint_eq(hk_socket_lead_of(-1), 128 << 10); /* not known */
  ck_assert_uint_eq(hk_socket_lead_of(0), 128 << 10);
  ck_assert_uint_eq(hk_socket_lead_of(1 << 20), 256 << 10);
  ck_assert_uint_eq(hk_socket_lead_of(1L << 32), 512 << 10);
}

/* A rank that waits for messages, too, sends so much ahead, and more if nothing comes for a while. */
TEST(sends_so_much_ahead) {
  pair p = setup(1);
  static unsigned char data[SLOT];
  const uint32_t lead = hk_socket_lead_of(sysconf(_SC_LEVEL2_CACHE_SIZE));
  uint32_t sent = 0, polls = 0;
  for (; polls < 100; polls++) {
    hk_link_set_waiting(p.from[0], HK_LINK_WAITS);
    while (net_try_send(p.to[0], data, SLOT, 1, false)) {}
    ck_assert_int_eq(net_progress(&p.w->ranks[0], NULL), HK_OK);
    const uint32_t now = (uint32_t)atomic_load(&p.to[0]->heads->value);
    if (now == sent && now > 0) break;
    sent = now;
  }
  ck_assert_uint_ge(sent, lead / SLOT);
  ck_assert_uint_le(sent, lead / SLOT + 8);
  while (atomic_load(&p.to[0]->heads->value) == sent && polls++ < 1000)
    ck_assert_int_eq(net_progress(&p.w->ranks[0], NULL), HK_OK);
  ck_assert_uint_gt(atomic_load(&p.to[0]->heads->value), sent);
}

int main(void) { return net_main("net_gather", .timeout = 120); }
