/* SPDX-License-Identifier: Apache-2.0 */
/* Several slots of a GPU's link as one message: which go together, and the requests that cards carry out for them.
 * check: notsan */
#include "../../src/device/device.h"
#include "../support/ib.h"

enum { BYTES = 65536, N = 8 };
static const hk_device_ops ops = {.name = "none"};
static hk_device gpu = {.ops = &ops};

/* All slots are filled before the provider sees any. */
static const struct {
  unsigned before; /* messages, the first of which asks for the FIFO */
  uint32_t bytes[N], signature[N];
  unsigned writes, reports; /* `reports`: completions */
  bool host;                /* the rank works on host memory */
} cases[] = {
    {1, {BYTES, BYTES, BYTES, BYTES}, {7, 7, 7, 7}, 2, 1, false}, /* one write for all data, one for the header */
    {1, {BYTES, BYTES, BYTES, BYTES}, {7, 7, 7, 7}, 8, 4, true},
    {1, {BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES}, {7, 7, 7, 7, 7, 7, 7}, 8, 4, false}, /* one half is unread */
    {5, {BYTES, BYTES, BYTES, BYTES}, {7, 7, 7, 7}, 4, 2, false},                               /* as far as its end */
    {1, {60000, 60000, 60000, 60000, 60000}, {7, 7, 7, 7, 7}, 7, 2, false}, /* not adjacent: a write for each */
    {1, {BYTES, BYTES, 60000, 60000}, {7, 7, 7, 7}, 5, 2, false},
    {1, {BYTES, BYTES, BYTES, BYTES}, {7, 7, 8, 7}, 6, 3, false},
    {1, {BYTES, 100, BYTES, BYTES}, {7, 7, 7, 7}, 5, 2, false},
};

static unsigned char *data_of(unsigned k, uint32_t bytes) {
  static unsigned char data[BYTES];
  for (uint32_t i = 0; i < bytes; i++) data[i] = (unsigned char)(i + i / 256 + 31 * k);
  return data;
}

static void receive(bench *b, unsigned k, uint32_t bytes, uint32_t signature) {
  static unsigned char in[BYTES];
  uint32_t got = 0, tag = 0;
  bool direct;
  while (!net_try_recv(b->recv, in, BYTES, false, &got, &tag, &direct))
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&b->w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(got, bytes);
  ck_assert_uint_eq(tag, signature);
  ck_assert_mem_eq(in, data_of(k, bytes), bytes);
}

static bench ready(unsigned before, bool host) {
  bench b = bench_open(1);
  for (unsigned k = 0; k < before; k++) ib_carry(b.w, b.send, b.recv, BYTES);
  while (b.c->tx.given < before) ck_assert_int_eq(net_progress(&b.w->ranks[0], NULL), HK_OK);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&b.w->ranks[1 - i], NULL), HK_OK);
  for (int i = 0; i < 2 && !host; i++) b.w->ranks[i].env.gpu = &gpu;
  return b;
}

/* Before the provider looks, because a link is rung only once. */
static unsigned post_all(bench *b, const uint32_t *bytes, const uint32_t *signature) {
  unsigned n = 0;
  for (; n < N && bytes[n]; n++) ck_assert(net_try_send(b->send, data_of(n, bytes[n]), bytes[n], signature[n], false));
  return n;
}

TEST_LOOP(go_together, HK_ARRAY_LENGTH(cases)) {
  bench b = ready(cases[_i].before, cases[_i].host);
  const uint64_t writes = verbs->writes, reports = verbs->reports;
  const unsigned n = post_all(&b, cases[_i].bytes, cases[_i].signature);
  ck_assert_int_eq(net_progress(&b.w->ranks[0], NULL), HK_OK);
  ck_assert_uint_eq(verbs->writes - writes, cases[_i].writes);
  ck_assert_uint_eq(verbs->reports - reports, cases[_i].reports);
  ck_assert_uint_eq(b.c->tx.posted, cases[_i].before + n);
  for (unsigned k = 0; k < n; k++)
    ck_assert_uint_eq(b.c->tx.sizes[(cases[_i].before + k) % N], cases[_i].bytes[k] > HK_IB_SMALL ? 2 : 1);
  for (unsigned k = 0; k < n; k++) receive(&b, k, cases[_i].bytes[k], cases[_i].signature[k]);
  while (b.c->tx.given < cases[_i].before + n) ck_assert_int_eq(net_progress(&b.w->ranks[0], NULL), HK_OK);
}

/* A slot is given back when all that came with it has arrived, and not before. */
TEST(are_given_back_together) {
  bench b = ready(1, false);
  verbs->lazy = 1; /* a request at each poll */
  const unsigned n = post_all(&b, cases[4].bytes, cases[4].signature);
  for (unsigned i = 0; i < 20; i++) {
    ck_assert_int_eq(net_progress(&b.w->ranks[0], NULL), HK_OK);
    ck_assert_msg(b.c->tx.given == 1 || b.c->tx.given == 5 || b.c->tx.given == 6, "%d", (int)b.c->tx.given);
  }
  ck_assert_uint_eq(b.c->tx.given, n + 1);
  for (unsigned k = 0; k < n; k++) receive(&b, k, 60000, 7);
}

/* A queue pair fails, in the data or the header: all slots of the message are sent again. */
TEST_LOOP(are_sent_again, 2) {
  bench b = ready(1, false);
  if (_i) verbs->broken = 1;
  verbs->passing = 2;
  if (!_i) verbs->severed = 1;
  const unsigned n = post_all(&b, cases[4].bytes, cases[4].signature);
  for (unsigned k = 0; k < n; k++) receive(&b, k, 60000, 7);
  ck_assert_int_eq(verbs->broken + verbs->severed, 0);
}

/* A header that counts more slots than a FIFO has. */
TEST(are_not_endless) {
  bench b = ready(1, false);
  post_all(&b, cases[0].bytes, cases[0].signature);
  ck_assert_int_eq(net_progress(&b.w->ranks[0], NULL), HK_OK);
  ((hk_ib_header *)(void *)(b.peer->arena + hk_ib_rx_offset(b.peer, 1)))->more = UINT32_MAX;
  ck_assert_int_eq(net_progress(&b.w->ranks[1], NULL), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "came twice"), "%s", hk_last_error());
}

/* Together they have 512 KiB and half of the FIFO at most. */
static const struct {
  uint32_t nslots, bytes;
  unsigned messages;
} limits[] = {{8, 131072, 1}, {8, 262144, 2}, {8, 1 << 20, 4}, {4, 65536, 3}, {2, 65536, 2}};

TEST_LOOP(have_a_limit, HK_ARRAY_LENGTH(limits)) {
  static char data[1 << 20];
  const uint32_t bytes = limits[_i].bytes, n = limits[_i].nslots < 4 ? limits[_i].nslots : 4;
  hk_link *send, *recv;
  ib_begin(1);
  net_world *w = ib_world(limits[_i].nslots, bytes);
  ib_make_way(w, &send, &recv);
  w->ranks[0].env.gpu = &gpu;
  uint32_t got = 0, tag;
  bool direct;
  for (unsigned k = 0; k < n; k++) ck_assert(net_try_send(send, data, bytes, 7, false));
  const uint64_t reports = verbs->reports;
  for (unsigned k = 0; k < n; k++)
    while (!net_try_recv(recv, data, bytes, false, &got, &tag, &direct))
      for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&w->ranks[i], NULL), HK_OK);
  ck_assert_uint_eq(verbs->reports - reports, limits[_i].messages);
  w->ranks[0].env.gpu = NULL;
}

int main(void) { return ib_main("ib_runs", .timeout = 60); }
