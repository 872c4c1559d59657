/* SPDX-License-Identifier: Apache-2.0 */
/* What the socket provider makes of a peer that writes slowly, writes nonsense, or goes away. */
#include <poll.h>
#include "../../src/base/iface.h"
#include "../../src/transport/net/socket/socket.h"
#include "../support/net_world.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { SLOT = 8192 };

/* Rank 0 with one end open; the test itself is rank 1, with a bare socket. */
typedef struct bench {
  net_world *w;
  net_rank *rank;
  hk_link *link;
  int fd;
} bench;

static bench b = {.fd = -1};

static void begin(hk_link_kind kind) {
  b = (bench){.w = net_world_new(2, 4, SLOT)};
  b.rank = &b.w->ranks[0];
  b.link = net_link(b.rank, 1, kind, 2);
  b.fd = net_take(&b.w->ranks[1], 0, b.w->mail[0].tag);
  ck_assert_int_ge(b.fd, 0);
}

static void teardown(void) {
  net_worlds_end();
  if (b.fd >= 0) close(b.fd);
}

static void write_bytes(int fd, const void *data, size_t bytes) {
  const char *p = data;
  while (bytes > 0) {
    ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) continue;
    ck_assert_int_gt(n, 0);
    p += n;
    bytes -= (size_t)n;
  }
}

static void write_message(int fd, uint32_t seq, uint32_t signature, const void *data, uint32_t bytes) {
  hk_wire_header h = {seq, bytes, signature, 0};
  char buffer[sizeof h + SLOT];
  memcpy(buffer, &h, sizeof h);
  memcpy(buffer + sizeof h, data, bytes);
  write_bytes(fd, buffer, sizeof h + bytes);
}

/* Polls until a slot is there or an error. */
static hk_status poll_slot(void *data, uint32_t capacity, bool want, uint32_t *bytes, bool *direct) {
  uint32_t signature;
  for (int i = 0; i < 200000; i++) {
    if (net_try_recv(b.link, data, capacity, want, bytes, &signature, direct)) return HK_OK;
    hk_status rc = net_progress(b.rank, NULL);
    if (rc != HK_OK) return rc;
  }
  return HK_IN_PROGRESS;
}

TEST(puts_single_bytes_together) {
  begin(HK_LINK_RECV);
  static const uint32_t sizes[] = {0, 1, 47, 48, 49, 300};
  char data[512], in[512], wire[600];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 3);
  for (unsigned k = 0; k < HK_ARRAY_LENGTH(sizes); k++) {
    hk_wire_header h = {k + 1, sizes[k], 5, 0};
    memcpy(wire, &h, sizeof h);
    memcpy(wire + sizeof h, data, sizes[k]);
    uint32_t bytes = 0, signature;
    bool direct;
    for (uint32_t at = 0; at < sizeof h + sizes[k]; at++) {
      ck_assert(!net_try_recv(b.link, in, sizes[k], k % 2, &bytes, &signature, &direct));
      write_bytes(b.fd, wire + at, 1);
      ck_assert_int_eq(net_progress(b.rank, NULL), HK_OK);
    }
    memset(in, 0, sizeof in);
    ck_assert_int_eq(poll_slot(in, sizes[k], false, &bytes, &direct), HK_OK);
    ck_assert_uint_eq(bytes, sizes[k]);
    if (!(k % 2) || sizes[k] <= HK_SLOT_INLINE) ck_assert_mem_eq(in, data, sizes[k]);
  }
}

/* A large message teaches the receiver to expect large ones; then a crowd of small ones comes in one piece. */
TEST(sorts_what_it_guessed_wrong) {
  begin(HK_LINK_RECV);
  char data[SLOT], in[SLOT], wire[SLOT];
  bool direct;
  uint32_t bytes, n = 0;
  memset(data, 'L', sizeof data);
  for (uint32_t round = 0; round < 3; round++) {
    write_message(b.fd, ++n, 5, data, SLOT);
    ck_assert_int_eq(poll_slot(in, SLOT, true, &bytes, &direct), HK_OK);
    ck_assert_uint_eq(bytes, SLOT);
    ck_assert(direct);
    size_t at = 0;
    uint32_t first = n + 1, count = 0;
    while (at + sizeof(hk_wire_header) + 120 <= sizeof wire) {
      uint32_t size = 20 + count % 100;
      hk_wire_header h = {++n, size, 5, 0};
      memcpy(wire + at, &h, sizeof h);
      memset(wire + at + sizeof h, (int)(n & 127), size);
      at += sizeof h + size;
      count++;
    }
    write_bytes(b.fd, wire, at);
    for (uint32_t k = 0; k < count; k++) {
      ck_assert_int_eq(poll_slot(in, SLOT, round != 1, &bytes, &direct), HK_OK);
      ck_assert_uint_eq(bytes, 20 + k % 100);
      for (uint32_t i = 0; i < bytes; i++) ck_assert_int_eq(in[i], (char)((first + k) & 127));
    }
  }
}

/* Without a wish, what lies in the socket stays there beyond the free slots. */
TEST(reads_no_more_than_it_has_slots) {
  begin(HK_LINK_RECV);
  for (uint32_t n = 1; n <= 10; n++) write_message(b.fd, n, 5, &n, sizeof n);
  b.link->waiting = 1;
  for (int i = 0; i < 100; i++) {
    b.link->waiting = 1;
    ck_assert_int_eq(net_progress(b.rank, NULL), HK_OK);
  }
  for (uint32_t n = 1; n <= 10; n++) {
    uint32_t got = 0, bytes;
    bool direct;
    ck_assert_int_eq(poll_slot(&got, sizeof got, false, &bytes, &direct), HK_OK);
    ck_assert_uint_eq(got, n);
  }
}

static const hk_wire_header nonsense[] = {
    {2, 8, 5, 0}, /* a number that is not due */
    {0, 8, 5, 0},
    {1, 0x7fffffff, 5, 0}, /* longer than any message */
    {1, UINT32_MAX, 5, 0},
    {1, 8, 5, 4},                                     /* flags of the future */
    {1, SLOT + 1, 5, 0},                              /* more than the slot and than the place that was offered */
    {0x20544547, 0x5448202f, 0x312e3150, 0x0a0d0a0d}, /* a scanner's GET */
};

TEST_LOOP(refuses_nonsense, HK_ARRAY_LENGTH(nonsense)) {
  begin(HK_LINK_RECV);
  char in[64], junk[4096];
  uint32_t bytes;
  bool direct;
  memset(in, 'x', sizeof in);
  memset(junk, 0xee, sizeof junk);
  write_bytes(b.fd, &nonsense[_i], sizeof nonsense[_i]);
  write_bytes(b.fd, junk, sizeof junk);
  ck_assert_int_eq(poll_slot(in, 40, true, &bytes, &direct), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "rank 1") && strstr(hk_last_error(), "127.0.0.1<"), "%s", hk_last_error());
  for (size_t i = 0; i < sizeof in; i++) ck_assert_int_eq(in[i], 'x');
  ck_assert_int_eq(atomic_load(&b.link->state), HK_LINK_FAILED);
  /* It stays refused, and is not told again. */
  b.link->waiting = 1;
  ck_assert_int_eq(net_progress(b.rank, NULL), HK_ERR_REMOTE);
}

/* The peer goes after `sent` bytes of a message of 16 + 4000; with a reset where asked. */
static const struct {
  int sent;
  bool reset;
} ends[] = {{0, false}, {0, true}, {7, false}, {16, false}, {100, false}, {100, true}, {4015, false}};

TEST_LOOP(names_a_peer_that_goes, HK_ARRAY_LENGTH(ends)) {
  begin(HK_LINK_RECV);
  char wire[16 + 4000] = {0}, in[4000];
  hk_wire_header h = {1, 4000, 5, 0};
  uint32_t bytes;
  bool direct;
  memcpy(wire, &h, sizeof h);
  write_bytes(b.fd, wire, (size_t)ends[_i].sent);
  if (ends[_i].reset) {
    struct linger hard = {.l_onoff = 1, .l_linger = 0};
    setsockopt(b.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  }
  close(b.fd);
  b.fd = -1;
  ck_assert_int_eq(poll_slot(in, sizeof in, true, &bytes, &direct), HK_ERR_REMOTE);
  const char *text = hk_last_error();
  ck_assert_msg(strstr(text, "rank 1") && strstr(text, "127.0.0.1<") && strstr(text, "interface lo"), "%s", text);
  ck_assert_msg(strstr(text, ends[_i].reset ? "ECONNRESET" : "closed") != NULL, "%s", text);
}

TEST(lets_a_peer_go_that_nobody_waits_for) {
  begin(HK_LINK_RECV);
  uint32_t x = 77, got = 0, bytes;
  bool direct;
  write_message(b.fd, 1, 5, &x, sizeof x);
  close(b.fd);
  b.fd = -1;
  ck_assert_int_eq(poll_slot(&got, sizeof got, false, &bytes, &direct), HK_OK);
  ck_assert_uint_eq(got, 77);
  for (int i = 0; i < 1000; i++) ck_assert_int_eq(net_progress(b.rank, NULL), HK_OK);
  ck_assert_int_eq(poll_slot(&got, sizeof got, false, &bytes, &direct), HK_ERR_REMOTE);
}

TEST(tells_that_nobody_takes_what_it_sends) {
  begin(HK_LINK_SEND);
  static char data[SLOT];
  hk_status rc = HK_OK;
  close(b.fd);
  b.fd = -1;
  for (int i = 0; i < 1000 && rc == HK_OK; i++) {
    net_try_send(b.link, data, SLOT, 1, true);
    rc = net_progress(b.rank, NULL);
  }
  ck_assert_int_eq(rc, HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "rank 1") && strstr(hk_last_error(), "sending"), "%s", hk_last_error());
}

/* ---- routes ---- */

static hk_iface iface(const char *name, const char *addr, unsigned prefix, unsigned speed, hk_iface_class kind) {
  hk_iface i;
  memset(&i, 0, sizeof i);
  snprintf(i.name, sizeof i.name, "%s", name);
  if (strchr(addr, ':')) {
    i.addr.v6.sin6_family = AF_INET6;
    ck_assert_int_eq(inet_pton(AF_INET6, addr, &i.addr.v6.sin6_addr), 1);
  } else {
    i.addr.v4.sin_family = AF_INET;
    ck_assert_int_eq(inet_pton(AF_INET, addr, &i.addr.v4.sin_addr), 1);
  }
  i.prefix = (uint8_t)prefix;
  i.speed_mbps = speed;
  i.kind = (uint8_t)kind;
  return i;
}

static hk_socket_fact fact_of(const hk_iface *list, int n, bool named) {
  hk_socket_fact f;
  hk_socket_describe(hk_settings_now(), &f, list, n);
  f.named = named;
  return f;
}

TEST(chooses_routes) {
  hk_iface mine[] = {iface("ib0", "10.1.0.1", 16, 100000, HK_IFACE_PHYSICAL),
                     iface("eth0", "192.168.7.1", 24, 1000, HK_IFACE_PHYSICAL),
                     iface("eth0", "fd00::1", 64, 1000, HK_IFACE_PHYSICAL),
                     iface("docker0", "172.17.0.1", 16, 0, HK_IFACE_BRIDGE)};
  hk_iface theirs[] = {
      iface("ib0", "10.1.0.2", 16, 100000, HK_IFACE_PHYSICAL),
      iface("eth0", "192.168.7.2", 24, 1000, HK_IFACE_PHYSICAL), iface("eth0", "fd00::2", 64, 1000, HK_IFACE_PHYSICAL),
      iface("docker0", "172.17.0.1", 16, 0, HK_IFACE_BRIDGE), iface("ib9", "10.99.0.2", 16, 100000, HK_IFACE_PHYSICAL)};
  hk_socket_fact me = fact_of(mine, 4, false), peer = fact_of(theirs, 5, false);
  hk_socket_route r[HK_SOCKET_ADDRS];
  char text[HK_ADDR_TEXT];
  ck_assert_int_eq(peer.naddrs, 5);
  ck_assert_int_eq(peer.nsockets, 4);
  ck_assert_int_eq(me.addrs[2].iface, me.addrs[1].iface);
  /* The fast network next to the slow one. */
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 1);
  ck_assert_str_eq(hk_addr_format(&r[0].to, text), "10.1.0.2<0>");
  ck_assert_int_eq(r[0].iface, 0);
  /* The fast one turned out to be dead: nothing is left that beats the bootstrap's way. */
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 1, r), 0);
  /* The user's choice goes before the bootstrap's, in his order, and one address of an interface is enough. */
  me = fact_of(mine + 1, 2, true);
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 1);
  ck_assert_str_eq(hk_addr_format(&r[0].to, text), "192.168.7.2<0>");

  hk_iface loop = iface("lo", "127.0.0.1", 8, 0, HK_IFACE_LOOPBACK);
  me = peer = fact_of(&loop, 1, true);
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 0);
}

/* Two fast networks of unequal names and orders, next to a slow one that both hosts have, too. */
TEST(uses_all_equal_interfaces) {
  hk_iface mine[] = {iface("eth0", "192.168.7.1", 24, 10000, HK_IFACE_PHYSICAL),
                     iface("rdma0", "10.1.0.1", 16, 100000, HK_IFACE_PHYSICAL),
                     iface("rdma1", "10.2.0.1", 16, 100000, HK_IFACE_PHYSICAL),
                     iface("rdma1", "fd02::1", 64, 100000, HK_IFACE_PHYSICAL)};
  hk_iface theirs[] = {iface("b", "10.2.0.2", 16, 100000, HK_IFACE_PHYSICAL),
                       iface("b", "fd02::2", 64, 100000, HK_IFACE_PHYSICAL),
                       iface("a", "10.1.0.2", 16, 100000, HK_IFACE_PHYSICAL),
                       iface("eth0", "192.168.7.2", 24, 10000, HK_IFACE_PHYSICAL)};
  hk_socket_fact me = fact_of(mine, 4, false), peer = fact_of(theirs, 4, false);
  hk_socket_route r[HK_SOCKET_ADDRS];
  char text[HK_ADDR_TEXT];
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 2);
  ck_assert_str_eq(hk_addr_format(&r[0].to, text), "10.2.0.2<0>");
  ck_assert_str_eq(hk_addr_format(&r[1].to, text), "10.1.0.2<0>");
  ck_assert_int_eq(hk_socket_count(&me, &peer, false, 8), 8); /* four for each, seen from both sides */
  ck_assert_int_eq(hk_socket_count(&peer, &me, false, 8), 8);
  ck_assert_int_eq(hk_socket_count(&me, &peer, false, 512), 2);
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 1u << 2, r), 1); /* one is dead: it is still faster than eth0 */
  ck_assert_str_eq(hk_addr_format(&r[0].to, text), "10.1.0.2<0>");
  /* Virtual interfaces share a card, unless the user says otherwise. */
  mine[2].kind = mine[3].kind = HK_IFACE_VIRTUAL;
  me = fact_of(mine, 4, false);
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 1);
  me.named = true;
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 2);
  /* Half of the speed: a stripe would end with the slow one. */
  mine[1].speed_mbps = 50000;
  me = fact_of(mine, 4, true);
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), 1);
  ck_assert_str_eq(hk_addr_format(&r[0].to, text), "10.2.0.2<0>");
}

/* What decides, at its boundaries: `mine` and `theirs` have one interface more than eth0 and eth1. */
static const struct {
  const char *mine, *theirs;
  unsigned prefix, my_speed, their_speed;
  hk_iface_class my_kind, their_kind;
  bool named;
  int routes;
  const char *first; /* NULL: any */
} pairs[] = {
    {"10.3.0.1", "10.3.0.2", 16, 20000, 20000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 1, "10.3.0.2<0>"},
    {"10.3.0.1", "10.3.0.2", 16, 19999, 20000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 2, "192.168.7.2<0>"},
    {"10.3.0.1", "10.3.0.2", 16, 20000, 19999, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 2, "192.168.7.2<0>"},
    {"10.3.0.1", "10.3.0.2", 16, 0, 0, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 0, NULL}, /* an unknown speed */
    {"10.3.0.1", "10.3.0.2", 16, 40000, 40000, HK_IFACE_LOOPBACK, HK_IFACE_PHYSICAL, false, 0, NULL},
    {"10.3.0.1", "10.3.0.2", 16, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_LOOPBACK, false, 0, NULL},
    {"10.3.0.1", "10.3.0.2", 16, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_BRIDGE, false, 0, NULL},
    {"10.3.0.1", "10.3.0.2", 16, 10001, 10001, HK_IFACE_PHYSICAL, HK_IFACE_BRIDGE, true, 2, "192.168.7.2<0>"},
    {"10.3.0.1", "10.3.0.2", 0, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 0, NULL},
    {"10.3.0.1", "10.3.0.1", 16, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 0, NULL}, /* its own */
    {"10.3.0.1", "10.3.0.2", 30, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 1, "10.3.0.2<0>"},
    {"10.3.0.1", "10.3.0.2", 31, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 0, NULL},
    {"fd03::1", "fd03::2", 64, 40000, 40000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, false, 1, "[fd03::2]<0>"},
    {"10.3.0.1", "10.3.0.2", 16, 40000, 40000, HK_IFACE_VIRTUAL, HK_IFACE_PHYSICAL, false, 1, "10.3.0.2<0>"},
    {"10.3.0.1", "10.3.0.2", 16, 5000, 5000, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, true, 1, "192.168.7.2<0>"},
    {"10.3.0.1", "10.3.0.2", 16, 5001, 5001, HK_IFACE_PHYSICAL, HK_IFACE_PHYSICAL, true, 2, "192.168.7.2<0>"},
};

TEST_LOOP(chooses_routes_at_the_boundaries, HK_ARRAY_LENGTH(pairs)) {
  hk_iface mine[] = {iface("eth0", "192.168.7.1", 24, 10000, HK_IFACE_PHYSICAL),
                     iface("one", pairs[_i].mine, pairs[_i].prefix, pairs[_i].my_speed, pairs[_i].my_kind)};
  hk_iface theirs[] = {iface("eth0", "192.168.7.2", 24, 10000, HK_IFACE_PHYSICAL),
                       iface("two", pairs[_i].theirs, pairs[_i].prefix, pairs[_i].their_speed, pairs[_i].their_kind)};
  hk_socket_fact me = fact_of(mine, 2, pairs[_i].named), peer = fact_of(theirs, 2, false);
  hk_socket_route r[HK_SOCKET_ADDRS];
  char text[HK_ADDR_TEXT];
  ck_assert_int_eq(hk_socket_routes(&me, &peer, 0, r), pairs[_i].routes);
  if (pairs[_i].first) ck_assert_str_eq(hk_addr_format(&r[0].to, text), pairs[_i].first);
}

/* A fact has room for so many addresses, and link-local ones mean nothing elsewhere. */
TEST(describes_some_addresses) {
  hk_iface list[HK_SOCKET_ADDRS + 2];
  for (int i = 0; i < HK_SOCKET_ADDRS + 2; i++) {
    char name[16], address[32];
    snprintf(name, sizeof name, "eth%d", i);
    snprintf(address, sizeof address, i ? "10.%d.0.1" : "fe80::%d", i);
    list[i] = iface(name, address, 16, i == HK_SOCKET_ADDRS + 1 ? 200000 : 10000, HK_IFACE_PHYSICAL);
  }
  list[2].speed_mbps = 25000;
  list[3].kind = HK_IFACE_VIRTUAL;
  list[3].speed_mbps = 100000;
  hk_socket_fact f = fact_of(list, HK_SOCKET_ADDRS + 2, false);
  ck_assert_int_eq(f.naddrs, HK_SOCKET_ADDRS);
  ck_assert_int_eq(f.nsockets, 2); /* for 25 Gb/s: hardware that has a place in the fact */
  for (int i = 0; i < f.naddrs; i++) ck_assert(f.addrs[i].bytes[1] == i + 1 && f.addrs[i].iface == i);
  list[2].speed_mbps = 24999;
  ck_assert_int_eq(fact_of(list, HK_SOCKET_ADDRS + 2, false).nsockets, 1);
  list[2].speed_mbps = 99999;
  ck_assert_int_eq(fact_of(list, HK_SOCKET_ADDRS + 2, false).nsockets, 2);
}

/* Sockets of all connections of a rank are bounded, but each pair of interfaces has one. */
TEST(bounds_the_number_of_sockets) {
  static const struct { int nranks, sockets; } cases[] = {{128, 8}, {129, 7}, {341, 3}, {342, 2}, {512, 2}, {1025, 2}};
  hk_iface list[] = {iface("a", "10.1.0.1", 16, 100000, HK_IFACE_PHYSICAL),
                     iface("b", "10.2.0.1", 16, 100000, HK_IFACE_PHYSICAL)};
  hk_socket_fact me = fact_of(list, 2, false), one = fact_of(list, 1, false);
  for (int i = 0; i < 2; i++) list[i].addr.v4.sin_addr.s_addr = htonl(ntohl(list[i].addr.v4.sin_addr.s_addr) + 1);
  hk_socket_fact peer = fact_of(list, 2, false);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++)
    ck_assert_int_eq(hk_socket_count(&me, &peer, false, cases[i].nranks), cases[i].sockets);
  ck_assert_int_eq(hk_socket_count(&one, &peer, false, 256), 4);
  ck_assert_int_eq(hk_socket_count(&one, &peer, false, 257), 3);
  me.insists = peer.insists = 1;
  me.nsockets = 5;
  ck_assert_int_eq(hk_socket_count(&me, &peer, true, 1025), 4); /* the smaller wish */
  ck_assert_int_eq(hk_socket_count(&peer, &me, true, 1025), 4);
}

/* ---- dialing ---- */

static hk_addr dialled[16];
static int ndialled, accepted[16];

/* Connects to the address if this machine can have it; else, as the bootstrap does, to one that it knows. */
static hk_status dial_there(void *arg, int peer, const hk_addr *at, uint64_t tag, int *fd) {
  hk_addr a = {.v4.sin_family = AF_INET, .v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int listener;
  (void)arg, (void)peer, (void)tag;
  if (at && *(const uint8_t *)&at->v4.sin_addr == 127) a.v4.sin_addr = at->v4.sin_addr;
  if (at) dialled[ndialled] = *at;
  ck_assert(hk_listen(hk_settings_now(), &a, 4, &listener) == HK_OK && hk_connect_start(&a, fd) == HK_OK);
  while ((accepted[ndialled] = accept(listener, NULL, NULL)) < 0) ck_assert(errno == EAGAIN || errno == EINTR);
  ndialled++;
  close(listener);
  return HK_OK;
}

/* Sockets take turns on the interfaces. One that does not reach the peer is left out from then on. */
static const struct {
  const char *mine[3], *theirs[3];
  const char *expected; /* which of them is dialled for each socket; '-': the bootstrap's address */
} turns[] = {
    {{"127.1.0.1", "127.2.0.1", "10.9.0.1"}, {"127.1.0.2", "127.2.0.2", "10.8.0.2"}, "01010101"},
    {{"10.1.0.1", "127.2.0.1", "127.9.0.1"}, {"10.1.0.2", "127.2.0.2", "127.9.0.2"}, "01111111"},
    {{"10.1.0.1", "10.2.0.1", "10.9.0.1"}, {"10.1.0.2", "10.2.0.2", "10.9.0.2"}, "01------"},
};

TEST_LOOP(takes_turns_on_interfaces, HK_ARRAY_LENGTH(turns)) {
  char facts[2][HK_NET_FACT_BYTES] = {{0}};
  hk_peer peers[2] = {{.host = 1}, {.host = 2}};
  hk_transport_env env = {
      .settings = hk_settings_now(), .nranks = 2, .peers = peers, .dial = dial_there, .nslots = 4, .slot_bytes = SLOT};
  hk_slot slots[4] = {{0}};
  hk_link link = {.slots = slots, .mask = 3};
  hk_net_end end = {.link = &link, .key = {.peer = 1, .kind = HK_LINK_SEND, .channel = 2}};
  const int before = open_fds();
  void *ctx;
  for (int r = 0; r < 2; r++) {
    hk_iface list[3];
    for (int i = 0; i < 3; i++)
      list[i] = iface(i ? i == 1 ? "b" : "slow" : "a", (r ? turns[_i].theirs : turns[_i].mine)[i], 16,
                      i == 2 ? 10000 : 100000, HK_IFACE_PHYSICAL);
    hk_socket_describe(hk_settings_now(), (hk_socket_fact *)(void *)facts[r], list, 3);
  }
  char own[HK_NET_FACT_BYTES];
  ck_assert_int_eq(hk_net_socket.init(&env, &ctx, own), HK_OK);
  hk_net_socket.join(ctx, facts[0], HK_NET_FACT_BYTES);
  ck_assert_int_eq(hk_net_socket.open(ctx, &end), HK_OK);
  ck_assert_int_eq(ndialled, 8);
  ck_assert_int_eq(atomic_load(&link.state), HK_LINK_READY);
  ck_assert_int_eq(open_fds(), before + 2 * 8);
  for (int i = 0; i < 8; i++) {
    char text[HK_ADDR_TEXT], expected[HK_ADDR_TEXT] = "";
    const char c = turns[_i].expected[i];
    if (c != '-') snprintf(expected, sizeof expected, "%s<0>", turns[_i].theirs[c - '0']);
    ck_assert_str_eq(dialled[i].sa.sa_family ? hk_addr_format(&dialled[i], text) : "", expected);
  }
  hk_net_socket.close(ctx, &end);
  hk_net_socket.fini(ctx);
  for (int i = 0; i < 8; i++) close(accepted[i]);
  ck_assert_int_eq(open_fds(), before);
}

/* threads, sockets of each (NULL: unset), vendor of the card, its speed; sockets in all */
static const struct {
  const char *threads, *each;
  uint32_t vendor, speed;
  int nsockets;
} wishes[] = {
    {NULL, NULL, 0, 10000, 1},      {NULL, NULL, 0, 100000, 4}, {NULL, NULL, 0x1d0f, 0, 16}, {NULL, NULL, 0x1ae0, 0, 4},
    {"4", NULL, 0, 100000, 4},      {NULL, "3", 0, 100000, 3},  {"4", "2", 0, 10000, 8},     {"4", NULL, 0x1d0f, 0, 32},
    {NULL, "2", 0x1ae0, 100000, 8}, {"16", "16", 0, 0, 64},     {"3", "64", 0, 0, 63},       {"0", NULL, 0, 100000, 4},
    {NULL, "0", 0, 100000, 4},
};

TEST_LOOP(counts_sockets_as_nccl, HK_ARRAY_LENGTH(wishes)) {
  hk_iface i = iface("eth0", "10.1.0.1", 16, wishes[_i].speed, HK_IFACE_PHYSICAL);
  i.vendor = wishes[_i].vendor;
  set_param("NCCL_SOCKET_NTHREADS", wishes[_i].threads);
  set_param("NCCL_NSOCKS_PERTHREAD", wishes[_i].each);
  ck_assert_int_eq(fact_of(&i, 1, false).nsockets, wishes[_i].nsockets);
}

TEST(agrees_on_the_number_of_sockets) {
  hk_socket_fact one = {.nsockets = 4}, two = {.nsockets = 2};
  ck_assert_int_eq(hk_socket_count(&one, &two, false, 2), 2);
  ck_assert_int_eq(hk_socket_count(&two, &one, false, 2), 2);
  ck_assert_int_eq(hk_socket_count(&one, &two, true, 2), 1);
  ck_assert_int_eq(hk_socket_count(&one, &two, false, 1000), 1);
  two.insists = 1;
  two.nsockets = 8;
  ck_assert_int_eq(hk_socket_count(&one, &two, true, 1000), 8);
  ck_assert_int_eq(hk_socket_count(&two, &one, false, 2), 8);
  one.nsockets = 0; /* what a peer of another kind might say */
  two.nsockets = 200;
  ck_assert_int_eq(hk_socket_count(&one, &two, false, 2), HK_SOCKETS_MAX);
  two.insists = 0;
  ck_assert_int_eq(hk_socket_count(&one, &two, false, 2), 1);
}

int main(void) { return suite_main("net_faults", .teardown = teardown, .timeout = 60); }
