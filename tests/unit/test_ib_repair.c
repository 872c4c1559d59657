/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs provider decides about a connection: which failures it repairs, when, for how long, and on which
 * ports. A connection of two ranks of this thread, to which the test says what has happened and what time it is.
 * check: notsan */
#include "../../src/base/meter.h"
#include "../../src/transport/net/ib/ib_data.h"
#include "../support/ib.h"

/* ---- time ---- */

/* On a machine that has just booted half a minute ago is no time that the clock has. */
int clock_gettime(clockid_t clock, struct timespec *t) {
  const int rc = (int)syscall(SYS_clock_gettime, clock, t);
  if (clock == CLOCK_MONOTONIC) t->tv_sec += 1000;
  return rc;
}

TEST(counts_the_time_of_repairs) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  uint64_t now = c->repair.stepped_ns = 1000 * SECOND;
  hk_ib_count_repairs(c, now += 100 * MS); /* nothing is broken */
  ck_assert_uint_eq(c->repair.spent_ns, 0);
  hk_ib_begin_repairs(c, now);
  ck_assert_uint_eq(c->repair.broken_ns, now);
  hk_ib_count_repairs(c, now += 100 * MS);
  hk_ib_count_repairs(c, now += 499 * MS);
  ck_assert_uint_eq(c->repair.spent_ns, 599 * MS);
  hk_ib_count_repairs(c, now += 30 * SECOND); /* the process was stopped */
  ck_assert_uint_eq(c->repair.spent_ns, 1099 * MS);
  static const hk_ib_phase awaiting[] = {HK_IB_PAIRING, HK_IB_READYING};
  for (int i = 0; i < 2; i++) { /* the peer may be stopped */
    c->phase = (uint8_t)awaiting[i];
    hk_ib_count_repairs(c, now += 100 * MS);
    ck_assert_uint_eq(c->repair.spent_ns, 1099 * MS);
  }
  hk_ib_begin_repairs(c, now);
  ck_assert_uint_eq(c->repair.spent_ns, 0);
  c->phase = HK_IB_UP;
}

/* Checks the progress again and again for so long. */
static void check_for(hk_ib_conn *c, uint64_t *now, uint64_t ns) {
  for (uint64_t step; ns; ns -= step) {
    step = ns < 400 * MS ? ns : 400 * MS;
    ck_assert_int_eq(hk_ib_check_progress(c, *now += step), HK_OK);
  }
}

/* Requests that neither complete nor fail: the connection is repaired after as long as all retries take, and leaves the
 * path on which they are. */
TEST(repairs_what_hangs) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  const uint64_t limit = hk_ib_gives_up_ns(c->timeout, 6);
  uint64_t now = 1000 * SECOND;
  ck_assert_uint_eq(c->npaths, 2);
  ck_assert_int_eq(hk_ib_check_progress(c, now), HK_OK); /* nothing is under way */
  ck_assert_int_eq(hk_ib_check_progress(c, now += 100 * SECOND), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_UP);
  for (int i = 0; i < 2; i++) verbs->device[i].dead = 1;
  ck_assert_int_eq(hk_ib_ask_card(c), HK_OK); /* on all queue pairs */
  for (int i = 0; i < 2; i++) verbs->device[i].dead = 0;
  c->qps[0].first = c->qps[0].last; /* of the first one all are complete */
  ck_assert_int_eq(hk_ib_check_progress(c, now), HK_OK);
  check_for(c, &now, limit - 1);
  ck_assert_int_eq(c->phase, HK_IB_UP);
  c->qps[0].done++; /* something has moved */
  check_for(c, &now, 1);
  check_for(c, &now, limit - 1);
  ck_assert_int_eq(c->phase, HK_IB_UP);
  c->gpu.flush.reads++;
  check_for(c, &now, 1);
  ck_assert_int_eq(hk_ib_check_progress(c, now += 100 * SECOND), HK_OK); /* the process was stopped */
  ck_assert_int_eq(c->phase, HK_IB_UP);
  check_for(c, &now, limit - 500 * MS - 1);
  ck_assert_int_eq(c->phase, HK_IB_UP);
  check_for(c, &now, 1);
  ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
  ck_assert(!c->qps[0].path->bad && c->qps[1].path->bad);
  ck_assert_msg(strstr(c->repair.cause, "neither completed nor failed"), "%s", c->repair.cause);
  ck_assert_uint_eq(c->repair.stalled_ns, 0); /* the next queue pairs get as long */
}

TEST(waits_at_least_a_second) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  uint64_t now = 1000 * SECOND;
  c->timeout = 1;
  ck_assert_int_eq(hk_ib_check_progress(c, now), HK_OK);
  c->gpu.flush.asked = 1; /* a read is under way */
  check_for(c, &now, SECOND - 1);
  ck_assert_int_eq(c->phase, HK_IB_UP);
  check_for(c, &now, 1);
  ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
  c->gpu.flush.asked = 0;
}

/* After repeated failures queue pairs wait longer, as long as the retries end in time: twice as long for each attempt,
 * or for each round of all pairs if none has worked. */
static const struct {
  const char *set; /* NCCL_IB_TIMEOUT */
  bool broken, worked;
  unsigned attempts, past_s, timeout;
} timeouts[] = {{NULL, false, true, 9, 0, 14}, {NULL, true, true, 1, 0, 14},  {NULL, true, true, 2, 0, 15},
                {NULL, true, true, 5, 0, 18},  {NULL, true, true, 9, 0, 18},  {NULL, true, true, 9, 29, 18},
                {NULL, true, true, 9, 31, 17}, {NULL, true, false, 2, 0, 14}, {"16", true, true, 9, 0, 16},
                {"0", true, true, 9, 0, 0}};

TEST_LOOP(waits_longer_each_time, HK_ARRAY_LENGTH(timeouts)) {
  if (timeouts[_i].set) rdma_param("NCCL_IB_TIMEOUT", timeouts[_i].set);
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  ck_assert_int_ge(c->ports.npairs, 2);
  c->repair.broken_ns = timeouts[_i].broken ? hk_now_ns() - timeouts[_i].past_s * SECOND : 0;
  c->ports.pairs[c->paths[0].pair].worked = timeouts[_i].worked;
  c->repair.attempts = timeouts[_i].attempts;
  hk_ib_measure(c);
  ck_assert_uint_eq(c->timeout, timeouts[_i].timeout);
  ck_assert_uint_gt(c->round_trip_us, 0);
  if (_i == 7) { /* a round, and the next one */
    c->repair.attempts = (unsigned)c->ports.npairs;
    hk_ib_measure(c);
    ck_assert_uint_eq(c->timeout, 14);
    c->repair.attempts++;
    hk_ib_measure(c);
    ck_assert_uint_eq(c->timeout, 15);
  }
}

/* ---- which failures ---- */

static const struct {
  int status;
  bool repaired;
  const char *words;
} failures[] = {{HK_IBV_WC_LOC_LEN_ERR, false, "fault of this library"},
                {HK_IBV_WC_LOC_PROT_ERR, false, "fault of this library"},
                {HK_IBV_WC_LOC_ACCESS_ERR, false, "fault of this library"},
                {HK_IBV_WC_REM_ACCESS_ERR, false, "not registered as it said"},
                {HK_IBV_WC_REM_INV_REQ_ERR, true, NULL},
                {HK_IBV_WC_RETRY_EXC_ERR, true, NULL},
                {HK_IBV_WC_RNR_RETRY_EXC_ERR, true, NULL},
                {HK_IBV_WC_WR_FLUSH_ERR, true, NULL},
                {HK_IBV_WC_FATAL_ERR, true, NULL}};

TEST_LOOP(repairs_some_failures, HK_ARRAY_LENGTH(failures)) {
  bench b = bench_open(1);
  const hk_ibv_wc wc = {.status = failures[_i].status, .vendor_err = 0x77};
  hk_ib_conn *c = b.c;
  c->phase = HK_IB_PAIRING; /* the rest of a queue that was flushed */
  ck_assert_int_eq(hk_ib_broken(c, 0, &wc, "sending"), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_PAIRING);
  c->phase = HK_IB_UP;
  c->control.bye = true;
  ck_assert_int_eq(hk_ib_broken(c, 0, &wc, "sending"), HK_OK);
  ck_assert(c->phase == HK_IB_UP && !c->paths[0].bad);
  c->control.bye = false;
  ck_assert_int_eq(hk_ib_broken(c, 0, &wc, "sending"), failures[_i].repaired ? HK_OK : HK_ERR_REMOTE);
  ck_assert_int_eq(c->phase, failures[_i].repaired ? HK_IB_BACKING_OFF : HK_IB_FAILED);
  ck_assert(c->paths[0].bad && !c->remote.denied);
  ck_assert_msg(strstr(c->repair.cause, "sending failed with") && strstr(c->repair.cause, "0x77") &&
                    strstr(c->repair.cause, "ACTIVE"),
                "%s", c->repair.cause);
  if (failures[_i].words) ck_assert_msg(strstr(hk_last_error(), failures[_i].words), "%s", hk_last_error());
}

TEST_LOOP(repairs_lost_devices, 4) {
  if (_i == 2) rdma_param("HOCKET_IB_REPLAY", "0");
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  static const uint8_t idle[] = {HK_IB_GREETING, HK_IB_PAIRING, HK_IB_BACKING_OFF, HK_IB_RESTING};
  for (size_t i = 0; i < sizeof idle; i++) {
    c->phase = idle[i];
    ck_assert_int_eq(hk_ib_lost(c, "it is gone", false), HK_OK);
    ck_assert_int_eq(c->phase, idle[i]);
  }
  c->phase = _i ? HK_IB_UP : HK_IB_READYING;
  c->control.bye = true;
  ck_assert_int_eq(hk_ib_lost(c, "it is gone", false), HK_OK);
  c->control.bye = false;
  ck_assert_int_eq(hk_ib_lost(c, "it is gone", _i != 3), _i < 2 ? HK_OK : HK_ERR_REMOTE);
  ck_assert_int_eq(c->phase, _i < 2 ? HK_IB_BACKING_OFF : HK_IB_FAILED);
  ck_assert_str_eq(c->repair.cause, "it is gone");
}

/* ---- how often and how long ---- */

/* What the connection's rank counts for operators. */
static hk_meter *meter_of(hk_ib_conn *c) {
  hk_transport_env *env = (hk_transport_env *)(uintptr_t)c->ctx->env;
  return env->meter = hk_meter_new();
}

TEST(backs_off_longer_each_time) {
  static const unsigned waits[][2] = {{0, 0}, {1, 50}, {3, 150}, {9, 450}, {10, 500}, {11, 500}, {100, 500}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_meter *m = meter_of(c);
  hk_ib_begin_repairs(c, hk_now_ns());
  for (size_t i = 0; i < HK_ARRAY_LENGTH(waits); i++) {
    c->phase = HK_IB_READYING; /* not since it was up: the same failure */
    c->repair.attempts = waits[i][0];
    const uint64_t before = hk_now_ns();
    ck_assert_int_eq(hk_ib_repair(c, ""), HK_OK);
    ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
    ck_assert_uint_ge(c->repair.retry_ns, before + waits[i][1] * MS);
    ck_assert_uint_le(c->repair.retry_ns, hk_now_ns() + waits[i][1] * MS);
    ck_assert_uint_eq(c->repair.attempts, waits[i][0]);
  }
  ck_assert_uint_eq(atomic_load(&m->repairs), HK_ARRAY_LENGTH(waits));
  bench_no_message_for(b.peer);
  ib_end();
  hk_meter_free(m);
}

/* A failure after the connection has been up for long is a new one: attempts and pairs count from the beginning. One
 * that has carried nothing may take as long as all retries to fail again. */
TEST_LOOP(forgets_old_failures, 4) {
  static const struct {
    bool came;
    int extra_ms; /* up for as long as counts, and so much more */
    bool fresh;
  } cases[] = {{true, 500, true}, {true, -500, false}, {false, 500, true}, {false, -500, false}};
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  uint64_t steady = 3 * SECOND + (cases[_i].came ? 0 : hk_ib_gives_up_ns(c->timeout, 6));
  ck_assert_int_ge(c->ports.npairs, 2);
  c->ports.pairs[0].out = c->ports.pairs[1].out = true;
  c->ports.pairs[0].worked = false;
  c->ports.pairs[1].worked = true;
  c->repair.came = cases[_i].came;
  c->repair.attempts = 5;
  hk_ib_begin_repairs(c, 1);
  c->repair.spent_ns = SECOND;
  c->repair.up_ns = hk_now_ns() - steady - (uint64_t)(cases[_i].extra_ms * (int64_t)MS);
  ck_assert_int_eq(hk_ib_repair(c, ""), HK_OK);
  ck_assert_uint_eq(c->repair.attempts, cases[_i].fresh ? 0 : 5);
  ck_assert_uint_eq(c->repair.spent_ns, cases[_i].fresh ? 0 : SECOND);
  ck_assert(c->ports.pairs[0].out); /* it never worked */
  ck_assert_int_eq(c->ports.pairs[1].out, !cases[_i].fresh);
}

TEST(gives_up_in_the_end) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  hk_ib_begin_repairs(c, 1);
  c->repair.attempts = 17;
  c->phase = HK_IB_READYING;
  snprintf(c->repair.cause, sizeof c->repair.cause, "nothing goes");
  c->ctx->asked_kernel = true;
  c->repair.spent_ns = c->ctx->timeout_ns;
  ck_assert_int_eq(hk_ib_repair(c, "advice"), HK_OK);
  c->phase = HK_IB_READYING;
  c->repair.spent_ns++;
  ck_assert_int_eq(hk_ib_repair(c, "advice"), HK_ERR_REMOTE);
  ck_assert_int_eq(c->phase, HK_IB_FAILED);
  ck_assert_msg(strstr(hk_last_error(), "nothing goes, for 60 s and 17 new queue pairs; advice"), "%s",
                hk_last_error());
}

/* The rank that does not begin epochs reports its failure, with the paths that failed. */
TEST(reports_to_the_other_rank) {
  bench b = bench_open(3);
  hk_ib_conn *c = b.peer;
  ck_assert_uint_eq(c->npaths, 3);
  c->paths[0].bad = c->paths[2].bad = true;
  snprintf(c->repair.cause, sizeof c->repair.cause, "a cable");
  ck_assert_int_eq(hk_ib_repair(c, ""), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_PAIRING);
  hk_ib_msg m = bench_message_for(b.c);
  ck_assert_uint_eq(m.kind, HK_IB_BROKEN);
  ck_assert_uint_eq(m.broken.bad, 5);
  ck_assert_str_eq(m.broken.text, "a cable");
  bench_no_message_for(b.c);
}

/* ---- ports ---- */

static void set_pair(hk_ib_conn *c, int i, bool out, bool worked) {
  c->ports.pairs[i].out = out;
  c->ports.pairs[i].worked = worked;
}

TEST(goes_back_to_ports) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  hk_ib_ctx *x = c->ctx;
  const hk_ib_device *d = c->paths[0].device;
  const uint64_t now = 1000 * SECOND;
  hk_ib_port_came_back(x, d, 1, now); /* the connection has never left it */
  ck_assert_uint_eq(c->repair.back_ns, 0);
  c->epoch = 2;
  hk_ib_port_came_back(x, d, 2, now);
  ck_assert_uint_eq(c->repair.back_ns, 0);
  hk_ib_port_came_back(x, d, 1, now);
  ck_assert_uint_eq(c->repair.back_ns, now + 2 * SECOND);
  for (int i = 0; i < c->ports.npairs; i++) set_pair(c, i, i == 0, false);
  ck_assert_int_eq(hk_ib_go_back(c, now + 2 * SECOND - 1), HK_OK);
  ck_assert_uint_ne(c->repair.back_ns, 0);
  c->control.bye = true;
  ck_assert_int_eq(hk_ib_go_back(c, now + 2 * SECOND), HK_OK);
  c->control.bye = false;
  c->control.eof = true;
  ck_assert_int_eq(hk_ib_go_back(c, now + 2 * SECOND), HK_OK);
  c->control.eof = false;
  c->phase = HK_IB_PAIRING;
  ck_assert_int_eq(hk_ib_go_back(c, now + 2 * SECOND), HK_OK);
  c->phase = HK_IB_UP;
  ck_assert_uint_ne(c->repair.back_ns, 0);
  ck_assert_int_eq(hk_ib_go_back(c, now + 2 * SECOND), HK_OK); /* it left no pair that has worked */
  ck_assert_uint_eq(c->repair.back_ns, 0);
  ck_assert(c->phase == HK_IB_UP && c->ports.pairs[0].out);
  set_pair(c, 1, true, true);
  set_pair(c, 2, false, true);
  c->repair.back_ns = now;
  ck_assert_int_eq(hk_ib_go_back(c, now), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
  ck_assert(c->ports.pairs[0].out && !c->ports.pairs[1].out && !c->ports.pairs[2].out);
  b.peer->repair.back_ns = now; /* which does not know what was left out */
  ck_assert_int_eq(hk_ib_go_back(b.peer, now), HK_OK);
  ck_assert_int_eq(b.peer->phase, HK_IB_PAIRING);
  ck_assert_uint_eq(bench_message_for(c).kind, HK_IB_BROKEN);
}

/* Which pairs are left out after a failure: of 2 x 2 ports, with the GIDs of each. */
static const struct {
  const char *paths; /* of the two: 'g' good, 'b' bad, 'd' its port is down; '-' no such path */
  bool worked;       /* the pairs of the paths have carried data */
  unsigned attempts;
  const char *out; /* of the first path's pair, of others of its two ports, of others of its own port, of
                                 * pairs of the other port: 'o' left out, '.' not */
} cases[] = {{"g-", true, 9, "...."},  {"b-", false, 0, "o..."}, {"b-", true, 3, "...."},  {"b-", true, 4, "oo.."},
             {"b-", false, 4, "o..."}, {"d-", true, 0, "ooo."},  {"d-", false, 0, "ooo."}, {"bg", true, 0, "oo.."},
             {"bb", true, 0, "...."},  {"bd", true, 0, "...o"},  {"gd", true, 0, "...o"},  {"gg", true, 9, "...."}};

TEST_LOOP(leaves_out_bad_pairs, HK_ARRAY_LENGTH(cases)) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  bool seen[4] = {false};
  ck_assert_uint_eq(c->npaths, 2);
  const hk_ib_pair first = c->ports.pairs[c->paths[0].pair], second = c->ports.pairs[c->paths[1].pair];
  ck_assert(first.mine != second.mine && first.theirs != second.theirs);
  for (int i = 0; i < c->ports.npairs; i++) set_pair(c, i, false, false);
  for (int i = 0; i < 2; i++) {
    c->ports.pairs[c->paths[i].pair].worked = cases[_i].worked;
    c->paths[i].bad = cases[_i].paths[i] != 'g';
    const hk_ib_port *port = hk_ib_my_port(c, &c->paths[i]);
    verbs->device[port->device[4] - '0'].down = cases[_i].paths[i] == 'd';
  }
  if (cases[_i].paths[1] == '-') c->npaths = 1;
  c->repair.attempts = cases[_i].attempts;
  const int own = c->paths[0].pair, other = c->paths[1].pair, npaths = (int)c->npaths;
  hk_meter *m = meter_of(c);
  hk_ib_choose_paths(c);
  const int left = c->ports.pairs[own].out + (npaths > 1 && c->ports.pairs[other].out);
  ck_assert_int_eq((int)atomic_load(&m->failovers), cases[_i].worked ? left : 0);
  for (int i = 0; i < c->ports.npairs; i++) {
    const hk_ib_pair *p = &c->ports.pairs[i];
    const int kind = p->mine != first.mine ? 3 : p->theirs != first.theirs ? 2 : i != own;
    if (kind == 3 && cases[_i].paths[1] == 'b' && i == c->paths[1].pair) continue;
    seen[kind] = true;
    ck_assert_msg(p->out == (cases[_i].out[kind] == 'o'), "pair %d, of kind %d: %d", i, kind, p->out);
  }
  ck_assert(seen[0] && seen[1] && seen[2] && seen[3]);
  ck_assert_uint_ge(c->npaths, 1);
  for (uint32_t i = 0; i < c->npaths; i++) ck_assert(!c->ports.pairs[c->paths[i].pair].out);
  ib_end();
  hk_meter_free(m);
}

/* Pairs that have worked come first, those of ports that are down last; when none is left, all are tried again. */
TEST(chooses_the_best_pair) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  const int n = c->ports.npairs, last = n - 1;
  for (int i = 0; i < n; i++) set_pair(c, i, false, i == last);
  c->npaths = 0;
  hk_ib_choose_paths(c);
  ck_assert_int_eq(c->paths[0].pair, last);
  for (int i = 0; i < n; i++) set_pair(c, i, true, false);
  c->npaths = 0;
  hk_ib_choose_paths(c);
  ck_assert_int_eq(c->paths[0].pair, 0);
  ck_assert_uint_eq(c->npaths, 2);
  for (int i = 0; i < n; i++) ck_assert(!c->ports.pairs[i].out);
  verbs->device[0].down = verbs->device[1].down = 1;
  c->npaths = 0;
  hk_ib_choose_paths(c);
  ck_assert_uint_eq(c->npaths, 1); /* one, even if its port is down */
  ck_assert_int_eq(c->paths[0].pair, 0);
  verbs->device[c->ports.mine[c->ports.pairs[0].mine].device[4] - '0'].down = 1;
  verbs->device[1 - (c->ports.mine[c->ports.pairs[0].mine].device[4] - '0')].down = 0;
  c->npaths = 0;
  hk_ib_choose_paths(c);
  ck_assert_uint_eq(c->npaths, 1);
  ck_assert_int_ne(c->ports.pairs[c->paths[0].pair].mine, c->ports.pairs[0].mine);
}

/* The higher rank takes the paths that the lower one has chosen, and none that it was not offered. */
TEST(takes_offered_paths) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.peer;
  hk_ib_epoch e = b.c->ours;
  ck_assert(hk_ib_take_paths(c, &e));
  ck_assert_uint_eq(c->npaths, 2);
  for (uint32_t i = 0; i < 2; i++) {
    const hk_ib_pair *mine = &c->ports.pairs[c->paths[i].pair], *theirs = &b.c->ports.pairs[b.c->paths[i].pair];
    ck_assert(mine->mine == theirs->theirs && mine->theirs == theirs->mine);
    ck_assert(mine->my_gid == theirs->their_gid && mine->their_gid == theirs->my_gid);
  }
  for (int what = 0; what < 4; what++) {
    e = b.c->ours;
    (what < 2 ? e.paths[1].port : e.paths[1].gid)[what % 2] = 7;
    ck_assert(!hk_ib_take_paths(c, &e));
  }
  e = b.c->ours;
  for (int n = 0; n < 2; n++) {
    e.npaths = n ? HK_IB_PATHS + 1 : 0;
    ck_assert(!hk_ib_take_paths(c, &e));
  }
}

/* ---- the control connection ---- */

TEST(asks_once_a_second) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer; /* the one that takes connections */
  int pair[2], fd = c->control.fd;
  net_pair(true, pair);
  b.w->mail[b.w->nmail].from = 0;
  b.w->mail[b.w->nmail].to = 1;
  b.w->mail[b.w->nmail].tag = hk_ib_control_tag(c);
  b.w->mail[b.w->nmail++].fd = pair[1];
  uint64_t now = c->control.silent_ns = 1000 * SECOND;
  c->control.bye = true;
  ck_assert_int_eq(hk_ib_control_ask(c, now, true), HK_OK);
  c->control.bye = false;
  c->phase = HK_IB_PAIRING;
  ck_assert_int_eq(hk_ib_control_ask(c, now, true), HK_OK);
  c->phase = HK_IB_UP;
  ck_assert_int_eq(hk_ib_control_ask(c, now - 1, true), HK_OK);
  ck_assert_int_eq(c->control.fd, fd);
  ck_assert_uint_eq(c->control.silent_ns, now);
  c->control.eof = true;
  c->control.in_got = c->control.looks = 3;
  c->control.lost_ns = now;
  ck_assert_int_eq(hk_ib_control_ask(c, now, true), HK_OK);
  ck_assert_int_eq(c->control.fd, pair[1]); /* the old one is closed */
  ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
  ck_assert_uint_eq(c->control.silent_ns, now + SECOND);
  ck_assert(!c->control.eof && !c->control.in_got && !c->control.looks && !c->control.lost_ns);
  close(pair[0]);
}

/* What may come back: not what has ended in order, was never up, or is another network's. */
TEST(waits_for_a_lost_connection) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.peer;
  ck_assert(!hk_ib_control_may_return(c));
  c->control.eof = true;
  ck_assert(hk_ib_control_may_return(c));
  bool *const ends[] = {&c->control.bye, &c->control.gone};
  for (int i = 0; i < 2; i++) {
    *ends[i] = true;
    ck_assert(!hk_ib_control_may_return(c));
    *ends[i] = false;
  }
  const uint64_t up = c->repair.up_ns, now = 1000 * SECOND, limit = c->ctx->timeout_ns;
  c->repair.up_ns = 0;
  ck_assert(!hk_ib_control_may_return(c));
  c->repair.up_ns = up;
  c->ceded = HK_IB_UPWARD;
  ck_assert(!hk_ib_control_may_return(c));
  c->ceded = 0;
  ck_assert_int_eq(hk_ib_control_check(c, now), HK_OK);
  ck_assert_uint_eq(c->control.lost_ns, now);
  ck_assert_int_eq(hk_ib_control_check(c, now + 2 * limit), HK_OK); /* RDMA goes on */
  ck_assert_uint_eq(c->control.lost_ns, now);
  c->phase = HK_IB_PAIRING;
  c->repair.broken_ns = now + SECOND;
  ck_assert_int_eq(hk_ib_control_check(c, now + SECOND + limit - 1), HK_OK);
  ck_assert_int_eq(hk_ib_control_check(c, now + SECOND + limit), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "control connection is lost"), "%s", hk_last_error());
}

/* ---- epochs ---- */

/* A rank that has backed off begins an epoch at its time, without devices that have failed, as long as there are
 * others. */
TEST_LOOP(begins_epochs, 3) {
  bench b = bench_open(2);
  hk_ib_conn *c = b.c;
  hk_ib_device *devices[2] = {c->paths[0].device, c->paths[1].device};
  const uint64_t now = c->repair.retry_ns = hk_now_ns();
  const uint32_t epoch = c->epoch;
  c->phase = HK_IB_BACKING_OFF;
  c->repair.attempts = 3;
  ck_assert_int_eq(hk_ib_conn_step(c, now - 1), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
  c->control.eof = c->control.gone = true;
  ck_assert_int_eq(hk_ib_conn_step(c, now), HK_OK);
  ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
  c->control.eof = c->control.gone = false;
  for (int i = 0; i < _i; i++) devices[i]->gone = true;
  ck_assert_int_eq(hk_ib_conn_step(c, now), HK_OK);
  ck_assert_uint_eq(c->epoch, epoch + 1);
  if (_i == 2) {
    ck_assert_int_eq(c->phase, HK_IB_BACKING_OFF);
    ck_assert_uint_eq(c->npaths, 1);
    ck_assert(c->paths[0].bad);
    ck_assert_msg(strstr(c->repair.cause, "No such device") && strstr(c->repair.cause, "is gone with its device"), "%s",
                  c->repair.cause);
    bench_no_message_for(b.peer);
  } else {
    ck_assert_int_eq(c->phase, HK_IB_PAIRING);
    ck_assert_uint_eq(c->repair.attempts, 4);
    ck_assert_uint_eq(c->npaths, 2 - (uint32_t)_i);
    if (_i) ck_assert_ptr_eq(c->paths[0].device, devices[1]);
    const hk_ib_msg m = bench_message_for(b.peer);
    ck_assert(m.kind == HK_IB_EPOCH && m.epoch == epoch + 1);
    ck_assert(m.epoch_info.npaths == c->npaths && m.epoch_info.nqps == c->nqps);
    ck_assert(m.epoch_info.psn == c->ours.psn && m.epoch_info.psn <= 0xffffff);
    ck_assert(m.ring[0].addr == 0 && m.ring[0].flags == 0); /* this rank receives nothing */
  }
  for (int i = 0; i < 2; i++) devices[i]->gone = false;
}

/* ---- slots after a failure ---- */

TEST(rewinds_to_what_the_peer_has) {
  bench b = bench_open(1);
  hk_ib_conn *c = b.c;
  for (uint32_t i = 0; i < 8; i++) c->tx.sizes[i] = i == 4 ? 2 : 1;
  c->tx.given = 6;
  c->tx.posted = 7;
  ck_assert(!hk_ib_can_rewind(c, 4) && hk_ib_can_rewind(c, 5) && !hk_ib_can_rewind(c, 0));
  c->tx.given = 4;
  ck_assert(hk_ib_can_rewind(c, 0));
  c->tx.pending[5] = 3;
  hk_ib_rewind(c, 5, 2);
  ck_assert(c->tx.posted == 5 && c->tx.arrived == 5 && c->tx.credit == 2 && !c->tx.pending[5]);
  ck_assert_uint_eq(c->tx.given, 5); /* what was pending is void */
  hk_ib_rewind(c, 3, 1);
  ck_assert(c->tx.posted == 3 && c->tx.arrived == 5 && c->tx.credit == 2);
  ck_assert(hk_ib_unfinished(c)); /* the lane has given slots that are to be sent again */
  c->tx.posted = 5;
  ck_assert(!hk_ib_unfinished(c)); /* all have arrived */
  c->tx.posted = 6;
  c->qps[0].done = c->qps[0].posted;
  ck_assert(!hk_ib_unfinished(c)); /* nothing is under way */
  c->qps[0].done--;
  ck_assert(hk_ib_unfinished(c));
  c->tx.credit = 6;
  ck_assert(!hk_ib_unfinished(c));
}

int main(void) { return ib_main("ib_repair", .timeout = 60); }
