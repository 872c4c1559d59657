/* SPDX-License-Identifier: Apache-2.0 */
/* How connections of the verbs provider end, rest, and make new queue pairs: the messages that a rank sends, and what
 * it does with those that come.
 * check: notsan */
#include <sys/socket.h>
#include "../support/ib.h"

static hk_status step(hk_ib_conn *c) {
  c->control.next_look_ns = 0;
  return hk_ib_conn_step(c, hk_now_ns());
}

/* Both make progress until both are up. */
static void until_up(const bench *b) {
  while (b->c->phase != HK_IB_UP || b->peer->phase != HK_IB_UP)
    for (int i = 0; i < 2; i++) ck_assert_int_eq(net_progress(&b->w->ranks[i], NULL), HK_OK);
}

/* ---- the control socket ---- */

/* A peer that has gone is no error before a lane waits; another fault of the socket is. */
TEST_LOOP(cannot_send, 3) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_ib_msg m = {.kind = HK_IB_END};
  const int fd = c->control.fd, small = 1;
  if (_i == 0) shutdown(fd, SHUT_WR);
  if (_i == 1) c->control.fd = -1;
  if (_i == 2) { /* the peer reads nothing */
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    hk_status rc = HK_OK;
    for (int i = 0; i < 10000 && rc == HK_OK; i++) rc = hk_ib_send_message(c, &m);
    ck_assert_int_eq(rc, HK_ERR_REMOTE);
  } else {
    ck_assert_int_eq(hk_ib_send_message(c, &m), _i ? HK_ERR_REMOTE : HK_OK);
  }
  c->control.fd = fd;
  ck_assert_int_eq(c->control.eof, _i == 0);
  if (_i == 1) ck_assert_msg(strstr(hk_last_error(), "Bad file descriptor"), "%s", hk_last_error());
  if (_i == 2)
    ck_assert_msg(strstr(hk_last_error(), "takes no more") || strstr(hk_last_error(), "temporarily unavailable"), "%s",
                  hk_last_error());
}

/* The peer's process was killed, and its kernel resets the connection. */
TEST(is_reset) {
  bench b = bench_open(1);
  setsockopt(b.peer->control.fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
  close(b.peer->control.fd);
  b.peer->control.fd = -1;
  b.c->control.gone = true;
  ck_assert_int_eq(step(b.c), HK_OK);
  ck_assert(b.c->control.eof);
  ck_assert_str_eq(b.c->repair.cause, "Connection reset by peer");
}

/* A connection that the peer has given up before its first message is taken anew; not by the rank that dials. */
TEST_LOOP(takes_another_socket, 4) {
  bench b = bench_open(1);
  hk_ib_conn *c = _i == 3 ? b.c : b.peer;
  c->control.greeted = _i == 2;
  c->phase = HK_IB_GREETING;
  c->control.in_got = 5;
  c->control.gone = true;
  if (_i) shutdown((_i == 3 ? b.peer : b.c)->control.fd, SHUT_WR);
  ck_assert_int_eq(step(c), HK_OK);
  ck_assert_int_eq(c->phase, _i == 1 ? HK_IB_DIALING : HK_IB_GREETING);
  ck_assert_int_eq(c->control.fd < 0, _i == 1);
  ck_assert_int_eq(c->control.eof, _i > 1);
  ck_assert_uint_eq(c->control.in_got, _i == 1 ? 0 : 5);
  if (_i == 1) ck_assert_int_eq(step(c), HK_OK); /* there is none yet */
}

/* A connection that is up looks at its socket now and then, one that waits for the peer's memory at once. */
TEST_LOOP(looks_in_time, 3) {
  bench b = bench_open(1);
  hk_ib_msg m = bench_message_of(b.c, HK_IB_END);
  const uint64_t now = hk_now_ns();
  ck_assert_int_eq(send(b.peer->control.fd, &m, sizeof m, 0), (ssize_t)sizeof m);
  b.c->control.next_look_ns = now + 1;
  b.c->tx.asked = _i == 1;
  if (_i == 2) b.c->phase = HK_IB_READYING;
  ck_assert_int_eq(hk_ib_conn_step(b.c, now), HK_OK);
  ck_assert_int_eq(b.c->control.gone, _i > 0);
}

/* ---- the end ---- */

/* A connection that ends in order says how much has arrived, one that has failed that it ends. */
TEST_LOOP(says_goodbye, 6) {
  static const struct {
    bool failed, eof, greeted, ceded;
    int kind; /* of the message; 0: none */
  } rows[] = {{false, false, true, false, HK_IB_BYE}, {true, false, true, false, HK_IB_END},
              {true, true, true, false, 0},           {false, true, true, false, 0},
              {false, false, false, false, 0},        {false, false, true, true, 0}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  for (unsigned i = 0; i < 3; i++) ib_pass_on(b.w, b.send, b.recv, i);
  c->failed = rows[_i].failed ? HK_ERR_REMOTE : HK_OK;
  c->control.eof = rows[_i].eof;
  c->control.greeted = rows[_i].greeted;
  if (rows[_i].ceded) c->ceded = HK_IB_BOTH;
  hk_ib_send_bye(c);
  if (rows[_i].kind) {
    const hk_ib_msg m = bench_message_for(b.c);
    ck_assert_int_eq((int)m.kind, rows[_i].kind);
    if (m.kind == HK_IB_BYE) ck_assert_uint_eq(m.received, 3);
    ck_assert_int_eq(c->nqps > 0, rows[_i].failed);
  }
  bench_no_message_for(b.c);
  c->ceded = 0;
}

/* ---- rests ---- */

static void rest(hk_link *l, bool rests, bool want) {
  hk_net_end *e = l->priv;
  hk_ib_conn *c = e->priv;
  ck_assert_int_eq(hk_ib_rest(c->ctx, e, &rests), HK_OK);
  ck_assert_int_eq(rests, want);
}

/* Both ranks rest, and go on, in each order; that is no failure, and nothing stays registered. */
TEST_LOOP(rests, 4) {
  bench b = bench_open(1);
  hk_link *ends[2] = {b.send, b.recv};
  ib_pass_on(b.w, b.send, b.recv, 1);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 2; i++) rest(ends[i ^ (_i & 1)], true, true);
    ck_assert(!b.c->nqps && !b.peer->nqps && !verbs->locked && verbs->nqps == 0);
    rest(ends[0], true, true); /* it does already */
    ck_assert(b.c->repair.rested && b.peer->repair.rested && b.c->phase == HK_IB_RESTING);
    for (int i = 0; i < 2; i++) rest(ends[i ^ _i >> 1], false, false);
    until_up(&b);
    ck_assert(!b.c->repair.rested && !b.peer->repair.rested);
    ck_assert(!b.c->repair.broken_ns && !b.peer->repair.broken_ns);
    ib_pass_on(b.w, b.send, b.recv, 2);
  }
}

/* What is not up, or has ended, does not rest; and one rank alone may go on. */
TEST(does_not_rest) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  c->phase = HK_IB_READYING;
  rest(b.send, true, false);
  c->phase = HK_IB_UP;
  c->ceded = HK_IB_DOWNWARD;
  rest(b.send, true, false);
  c->ceded = 0;
  c->control.eof = true;
  rest(b.send, true, false);
  c->control.eof = false;
  rest(b.send, false, false);
  ck_assert(c->phase == HK_IB_UP && c->nqps && !c->repair.rested);
  rest(b.recv, true, true);
  rest(b.recv, false, false); /* the dialling rank has not rested: it gets a message */
  const hk_ib_msg m = bench_message_for(c);
  ck_assert_uint_eq(m.kind, HK_IB_BROKEN);
  ck_assert_str_eq(m.broken.text, "the connection was suspended");
  ck_assert_int_eq(b.peer->phase, HK_IB_PAIRING);
}

/* ---- epochs ---- */

/* A new epoch that the other rank begins: of a connection that was up it is a failure, which counts from its first
 * epoch on. */
TEST_LOOP(new_epochs_are_repairs, 4) {
  static const struct {
    uint32_t epoch;
    uint64_t broken_ns;
    bool rested, begins;
  } rows[] = {{2, 0, false, true}, {1, 0, false, false}, {2, 0, true, false}, {3, 77, false, false}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_ib_msg m = bench_message_of(c, HK_IB_EPOCH);
  m.epoch = rows[_i].epoch;
  m.epoch_info = b.c->ours;
  c->repair.broken_ns = rows[_i].broken_ns;
  c->repair.rested = rows[_i].rested;
  c->repair.attempts = 4;
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_READYING);
  ck_assert(c->epoch == rows[_i].epoch && c->repair.attempts == (rows[_i].begins ? 1 : 5));
  if (rows[_i].begins)
    ck_assert_uint_gt(c->repair.broken_ns, 77);
  else
    ck_assert_uint_eq(c->repair.broken_ns, rows[_i].broken_ns);
  ck_assert_uint_eq(bench_message_for(b.c).kind, HK_IB_EPOCH);
  ck_assert_uint_eq(bench_message_for(b.c).kind, HK_IB_READY);
  bench_no_message_for(b.c);
}

/* The rank that does not begin epochs reports that its device has failed. */
TEST(reports_a_lost_device) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_ib_device *d = c->paths[0].device;
  hk_ib_msg m = bench_message_of(c, HK_IB_EPOCH);
  m.epoch++;
  m.epoch_info = b.c->ours;
  d->gone = true;
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_PAIRING);
  m = bench_message_for(b.c);
  ck_assert(m.kind == HK_IB_BROKEN && m.broken.bad == 1 && m.epoch == c->epoch);
  ck_assert_msg(strstr(m.broken.text, "No such device"), "%s", m.broken.text);
  bench_no_message_for(b.c);
  d->gone = false;
}

/* The rank that begins epochs has begun one; gives the peer's answer. */
static hk_ib_msg answer_to(const bench *b) {
  b->c->phase = HK_IB_BACKING_OFF;
  b->c->repair.retry_ns = 0;
  ck_assert_int_eq(step(b->c), HK_OK);
  ck_assert_int_eq(b->c->phase, HK_IB_PAIRING);
  ck_assert_uint_eq(bench_message_for(b->peer).kind, HK_IB_EPOCH);
  hk_ib_msg m = bench_message_of(b->c, HK_IB_EPOCH);
  m.epoch_info = b->peer->ours;
  return m;
}

/* A peer that says that it has received less than its card has acknowledged has lost a message for good. */
TEST_LOOP(lost_for_good, 2) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_ib_msg m = answer_to(&b);
  m.epoch_info.received = 1;
  c->tx.posted = c->tx.given = 2;
  c->tx.sizes[0] = _i ? 2 : 1;
  c->tx.sizes[1] = _i ? 1 : 2;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), _i ? HK_OK : HK_ERR_REMOTE);
  if (!_i) ck_assert_msg(strstr(hk_last_error(), "lacks a message whose arrival"), "%s", hk_last_error());
  if (_i) ck_assert(c->phase == HK_IB_READYING && c->tx.posted == 1 && c->tx.arrived == 1);
  c->tx.posted = c->tx.given = 0;
}

/* In a new epoch keys are new: places are announced again, and the FIFO is asked for again. */
TEST(begins_anew) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_ib_msg m = answer_to(&b);
  m.epoch_info.arena[0].rkey = 77;
  m.ring[0] = (hk_ib_memory){.addr = 78, .rkey = 79};
  c->places.announced = 3;
  c->tx.asked = c->repair.came = true;
  c->repair.up_ns = 1;
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert(c->phase == HK_IB_READYING && !c->places.announced && !c->tx.asked);
  ck_assert(c->paths[0].peer_arena.rkey == 77 && c->paths[0].peer_ring.addr == 78 && c->paths[0].peer_ring.rkey == 79);
  ck_assert_uint_eq(bench_message_for(b.peer).kind, HK_IB_READY);
  bench_no_message_for(b.peer);
  atomic_store(&b.send->state, HK_LINK_CONNECTING);
  m = bench_message_of(c, HK_IB_READY);
  ck_assert_int_eq(bench_hear(c, b.peer, m, sizeof m), HK_OK);
  ck_assert(c->phase == HK_IB_UP && !c->repair.came && c->repair.up_ns > 1);
  ck_assert_int_eq(atomic_load(&b.send->state), HK_LINK_READY);
}

/* A connection has at most so many queue pairs. */
TEST_LOOP(counts_queue_pairs, 5) {
  static const struct {
    uint32_t each;
    bool apart;
    uint32_t all;
  } rows[] = {{1, false, 2}, {3, true, 7}, {64, false, 128}, {64, true, 128}, {100, false, 128}};
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  ck_assert_uint_eq(c->npaths, 2);
  c->ports.nqps = rows[_i].each;
  c->apart = rows[_i].apart;
  c->phase = HK_IB_BACKING_OFF;
  c->repair.retry_ns = 0;
  ck_assert_int_eq(step(c), HK_OK);
  ck_assert_uint_eq(c->nqps, rows[_i].all);
  ck_assert_uint_eq(bench_message_for(b.peer).epoch_info.nqps, rows[_i].all);
}

/* Credits get a queue pair of their own if one of the two ranks wants that, but not for one-sided operations. */
TEST_LOOP(agrees_on_credits, 5) {
  static const struct {
    bool mine, theirs, remote, apart;
  } rows[] = {{false, false, false, false},
              {true, false, false, true},
              {false, true, false, true},
              {false, true, true, false},
              {true, false, true, true}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  hk_ib_msg m = bench_message_of(c, HK_IB_HELLO);
  m.hello.nports = (uint32_t)b.c->ports.nmine;
  m.hello.nqps = 1;
  m.hello.apart = rows[_i].theirs;
  memcpy(m.hello.ports, b.c->ports.mine, sizeof m.hello.ports);
  c->control.greeted = false;
  c->apart = rows[_i].mine;
  c->remote.n = rows[_i].remote;
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), HK_OK);
  ck_assert_int_eq(c->apart, rows[_i].apart);
  c->remote.n = 0;
  c->apart = false;
}

/* ---- other networks ---- */

/* What another network carries leaves nothing behind, once it is both directions. */
TEST(cedes) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer; /* it has a receiver alone */
  hk_ib_msg m = bench_message_of(c, HK_IB_CEDE);
  m.cede.directions = HK_IB_DOWNWARD;
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), HK_OK);
  ck_assert(c->ctx->ceding && c->ceded == HK_IB_DOWNWARD && c->nqps && c->paths[0].arena_mr);
  ck_assert_int_eq(c->phase, HK_IB_UP);
  const uint32_t serial = c->serial;
  c->recv = NULL; /* as if it had been carried over before */
  m.cede.directions = 0xf0 | HK_IB_UPWARD;
  ck_assert_int_eq(bench_hear(c, b.c, m, sizeof m), HK_OK);
  ck_assert(c->ceded == HK_IB_BOTH && !c->nqps && !c->paths[0].arena_mr && c->serial > serial);
  c->recv = b.recv->priv;
}

int main(void) { return ib_main("ib_conn", .timeout = 60); }
