/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on the control connection of the verbs provider: which are taken, which are late, and which are refused.
 * check: notsan */
#include "../support/ib.h"

/* ---- the first message ---- */

typedef void change(hk_ib_conn *c, hk_ib_msg *m);
static void nothing(hk_ib_conn *c, hk_ib_msg *m) { (void)c, (void)m; }
static void is_second(hk_ib_conn *c, hk_ib_msg *m) { (void)m, c->control.greeted = true; }
static void most_ports(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->hello.nports = HK_IB_OFFERED; }
static void more_ports(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->hello.nports = HK_IB_OFFERED + 1; }
static void other_slots(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->nslots *= 2; }
static void other_sizes(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->slot_bytes *= 2; }
static void other_magic(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->magic++; }
static void no_ports(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->hello.nports = 0; }
static const struct {
  change *change;
  const char *refused; /* NULL: it is taken */
} hellos[] = {{nothing, NULL},
              {most_ports, NULL},
              {is_second, "first control message is not valid"},
              {more_ports, "first control message is not valid"},
              {other_slots, "first control message is not valid"},
              {other_sizes, "first control message is not valid"},
              {other_magic, "control message is not valid"},
              {no_ports, "no GID of this rank's ports"}};

TEST_LOOP(takes_valid_greetings, HK_ARRAY_LENGTH(hellos)) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.peer;
  hk_ib_msg m = bench_message_of(c, HK_IB_HELLO);
  m.hello.nports = (uint32_t)b.c->ports.nmine;
  m.hello.nqps = 1;
  memcpy(m.hello.ports, b.c->ports.mine, sizeof m.hello.ports);
  memset(m.hello.ports[1].device, 'x', sizeof m.hello.ports[1].device); /* without an end */
  m.hello.ports[1].ngids = 200;
  c->control.greeted = false;
  c->phase = HK_IB_GREETING;
  hellos[_i].change(c, &m);
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), hellos[_i].refused ? HK_ERR_REMOTE : HK_OK);
  ck_assert_int_eq(c->phase, hellos[_i].refused ? HK_IB_FAILED : HK_IB_PAIRING);
  if (hellos[_i].refused) {
    ck_assert_msg(strstr(hk_last_error(), hellos[_i].refused), "%s", hk_last_error());
  } else {
    ck_assert(c->control.greeted && c->ports.ntheirs == (int)m.hello.nports);
    ck_assert_uint_eq(strlen(c->ports.theirs[1].device), HK_IB_NAME - 1);
    ck_assert_uint_eq(c->ports.theirs[1].ngids, HK_IB_GIDS);
  }
}

TEST_LOOP(agrees_on_queue_pairs, 6) {
  static const uint32_t asked[][2] = {{0, 1}, {1, 1}, {2, 2}, {3, 3}, {4, 3}, {UINT32_MAX, 3}};
  rdma_param("NCCL_IB_QPS_PER_CONNECTION", "3");
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_ib_msg m = bench_message_of(c, HK_IB_HELLO);
  m.hello.nports = 1;
  m.hello.nqps = asked[_i][0];
  memcpy(m.hello.ports, b.c->ports.mine, sizeof m.hello.ports);
  c->control.greeted = false;
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), HK_OK);
  ck_assert_uint_eq(c->ports.nqps, asked[_i][1]);
}

/* ---- epochs ---- */

static void no_queue_pairs(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->epoch_info.nqps = 0; }
static void more_queue_pairs(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->epoch_info.nqps = HK_IB_QPS + 1; }
static void other_queue_pairs(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->epoch_info.nqps++; }
static void other_paths(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->epoch_info.npaths++; }
static void old(hk_ib_conn *c, hk_ib_msg *m) { (void)c, m->epoch--; }
static void late(hk_ib_conn *c, hk_ib_msg *m) { (void)m, c->phase = HK_IB_READYING; }
static void stranger(hk_ib_conn *c, hk_ib_msg *m) { (void)m, c->control.greeted = false; }
static const struct {
  change *change;
  bool refused;
} answers[] = {{no_queue_pairs, true}, {more_queue_pairs, true}, {other_queue_pairs, true},
               {other_paths, true},    {stranger, true},         {old, false},
               {late, false}};

/* The rank that has begun an epoch takes the answer that belongs to it. */
TEST_LOOP(takes_the_answer, HK_ARRAY_LENGTH(answers)) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_ib_msg m = bench_message_of(c, HK_IB_EPOCH);
  m.epoch_info = b.peer->ours;
  c->phase = HK_IB_PAIRING;
  answers[_i].change(c, &m);
  const uint8_t before = c->phase;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), answers[_i].refused ? HK_ERR_REMOTE : HK_OK);
  ck_assert_int_eq(c->phase, answers[_i].refused ? HK_IB_FAILED : before);
  if (!answers[_i].refused) bench_no_message_for(b.peer);
}

TEST_LOOP(ignores_what_is_of_another_epoch, 5) {
  static const hk_ib_kind kinds[] = {HK_IB_READY, HK_IB_RING, HK_IB_BROKEN, HK_IB_ASK, HK_IB_KEYS};
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  const hk_ib_memory ring = c->paths[0].peer_ring;
  hk_ib_msg m = bench_message_of(c, kinds[_i]);
  m.epoch++;
  m.ring[0].addr = m.keys.bytes = 77;
  c->phase = HK_IB_READYING;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_READYING);
  ck_assert_uint_eq(c->paths[0].peer_ring.addr, ring.addr);
  ck_assert(!c->remote.answered && !c->remote.nkeys);
  bench_no_message_for(b.peer);
  m.epoch--;
  if (kinds[_i] == HK_IB_READY) { /* of this one */
    ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
    ck_assert_int_eq(c->phase, HK_IB_UP);
  } else if (kinds[_i] == HK_IB_RING) {
    c->tx.asked = true;
    ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
    ck_assert(c->paths[0].peer_ring.addr == 77 && !c->tx.asked);
    m.ring[0].addr = 0;
    c->tx.asked = true;
    ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
    ck_assert(c->tx.asked); /* there is none yet */
  }
}

/* ---- failures and ends ---- */

TEST(hears_of_failures) {
  bench b = bench_open(3);
  hk_ib_conn *c = b.c;
  hk_ib_msg m = bench_message_of(c, HK_IB_BROKEN);
  m.broken.bad = 5;
  snprintf(m.broken.text, sizeof m.broken.text, "my cable");
  ck_assert_int_eq(bench_hear(b.peer, c, m, sizeof m), HK_OK); /* it does not begin epochs */
  ck_assert_int_eq(b.peer->phase, HK_IB_UP);
  c->paths[1].bad = true;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
  ck_assert(c->paths[0].bad && c->paths[1].bad && c->paths[2].bad);
  ck_assert_msg(strstr(c->repair.cause, "rank 1 reports: my cable"), "%s", c->repair.cause);
  for (int i = 0; i < 3; i++) c->paths[i].bad = false;
  c->repair.retry_ns = UINT64_MAX;
  m.broken.bad = 2;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK); /* it has backed off already */
  ck_assert(!c->paths[1].bad);
  c->phase = HK_IB_UP;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert(!c->paths[0].bad && c->paths[1].bad && !c->paths[2].bad);
}

/* A peer that has closed says how much has arrived: no more is sent again than it lacks. */
TEST(hears_of_the_end) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  c->tx.posted = c->tx.given = 5;
  c->tx.arrived = 2;
  hk_ib_msg m = bench_message_of(c, HK_IB_BYE);
  m.received = 4;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert(c->control.bye && c->tx.arrived == 2);
  m.received = 5;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert(c->tx.arrived == 5 && c->tx.posted == 5);
  m = bench_message_of(c, HK_IB_END);
  ck_assert(!c->control.gone);
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert(c->control.gone);
}

TEST_LOOP(refuses_other_networks, 2) {
  bench b = bench_open(1); /* with NCCL_NET=IB there is none */
  hk_ib_conn *c = b.c;
  hk_ib_msg m = bench_message_of(c, HK_IB_CEDE);
  m.cede.directions = _i ? HK_IB_DOWNWARD : HK_IB_UPWARD;
  snprintf(m.cede.cause, sizeof m.cede.cause, "too little");
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), _i ? HK_OK : HK_ERR_REMOTE);
  if (!_i) ck_assert_msg(strstr(hk_last_error(), "it reports: too little"), "%s", hk_last_error());
  if (_i) ck_assert_int_eq(c->ceded, HK_IB_DOWNWARD); /* this rank has no end there */
}

TEST(refuses_unknown_messages) {
  bench b = bench_open(1);
  ck_assert_int_eq(bench_hear(b.c, b.peer, bench_message_of(b.c, (hk_ib_kind)(HK_IB_KEYS + 1)), sizeof(hk_ib_msg)),
                   HK_ERR_REMOTE);
  ck_assert_int_eq(b.c->phase, HK_IB_FAILED);
}

/* A message comes in pieces, and the connection's end after a part of one is found. */
TEST(puts_messages_together) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_ib_msg m = bench_message_of(c, HK_IB_END);
  const size_t half = sizeof m / 2;
  ck_assert_int_eq(bench_hear(c, b.peer, m, half), HK_OK);
  ck_assert(!c->control.gone && c->control.in_got == half);
  ck_assert_int_eq(send(b.peer->control.fd, (char *)&m + half, sizeof m - half, 0), (ssize_t)(sizeof m - half));
  const uint64_t now = hk_now_ns();
  c->control.next_look_ns = now + 1;
  ck_assert_int_eq(hk_ib_conn_step(c, now), HK_OK); /* it looks now and then */
  ck_assert(!c->control.gone);
  ck_assert_int_eq(hk_ib_conn_step(c, now + 1), HK_OK);
  ck_assert(c->control.gone && !c->control.in_got);
  ck_assert_uint_eq(c->control.next_look_ns, now + 1 + 50 * MS);
  ck_assert_int_eq(bench_hear(c, b.peer, m, 5), HK_OK);
  shutdown(b.peer->control.fd, SHUT_WR);
  c->control.next_look_ns = 0;
  ck_assert_int_eq(hk_ib_conn_step(c, now), HK_OK); /* an error only if a lane waits */
  ck_assert(c->control.eof);
  ck_assert_msg(strstr(c->repair.cause, "closed"), "%s", c->repair.cause);
}

/* The peer's end is an error for a lane that waits, after the completions were looked for again; not in the service. */
TEST(fails_when_the_peer_has_gone) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  c->control.eof = c->control.gone = true;
  for (int i = 0; i < 5; i++) {
    c->control.next_look_ns = 0;
    ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_OK);
  }
  b.recv->waiting = HK_LINK_WAITS;
  c->ctx->tick.serving = true;
  for (int i = 0; i < 5; i++) {
    c->control.next_look_ns = 0;
    ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_OK);
  }
  c->ctx->tick.serving = false;
  hk_status rc = HK_OK;
  int looks = 0;
  for (; rc == HK_OK && looks < 10; looks++) {
    c->control.next_look_ns = 0;
    rc = hk_ib_conn_step(c, hk_now_ns());
  }
  ck_assert_int_eq(rc, HK_ERR_REMOTE);
  ck_assert_int_eq(looks, 3);
  ck_assert_msg(strstr(hk_last_error(), "process has ended"), "%s", hk_last_error());
  ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_ERR_REMOTE); /* it stays so */
  c->ctx->tick.serving = true;
  ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_OK);
  c->ctx->tick.serving = false;
  b.recv->waiting = 0;
  ck_assert_int_eq(hk_ib_conn_step(c, hk_now_ns()), HK_OK);
}

int main(void) { return ib_main("ib_messages", .timeout = 60); }
