/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The price of a group of calls (src/run/estimate.c), on communicators that have a machine and peers only. */
#include "../../src/core/backend.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/decide/machine.h"
#include "../../src/decide/outlines.h"
#include "../../src/run/plans.h"
#include "../../src/run/selection.h"
#include "../../src/transport/peer.h"
#include "../../src/transport/transport.h"
#include "../support/suite.h"

enum { RANKS = 4 };
static struct ncclComm a, b; /* each test has a process of its own */
static hk_peer peers[RANKS] = {{.host = 7}, {.host = 7}, {.host = 8}, {.host = 8}};
static const hk_backend host = {.process = NULL};

static void make(struct ncclComm *c) {
  const uint64_t hosts[RANKS] = {7, 7, 8, 8};
  hk_host_facts f = {.team.nranks = RANKS,
                     .team.nhosts = 2,
                     .team.ranks_per_host = 2,
                     .team.least_per_host = 2,
                     .cores_per_host = 2,
                     .memory = true,
                     .slot_bytes = 131072};
  ck_assert_int_eq(hk_selection_new(c), HK_OK);
  c->nranks = RANKS;
  c->peers = peers;
  c->backend = &host;
  ck_assert_int_eq(hk_selection_layout(c, hosts, NULL, 1), HK_OK);
  hk_machine *m = c->selection->machine;
  *m = hk_machine_of_hosts(&f, NULL);
  ck_assert_int_eq(hk_outlines_new(&m->outlines, RANKS, c->selection->layout, 8), HK_OK);
  m->inside.alpha_us = 1;
  m->inside.ring_us_per_b = 0.25;
  m->between.alpha_us = 16;
  m->between.ring_us_per_b = 2;
  m->sync_us = 0.5;
  m->copy_us_per_b = 0.125;
}
static void setup(void) {
  make(&a);
  make(&b);
}
static void drop(struct ncclComm *c) {
  hk_selection_free(c);
  free(c->selection);
}
static void teardown(void) {
  drop(&a);
  drop(&b);
}

static hk_call transfer(struct ncclComm *c, hk_p2p p2p, int peer, size_t count, hk_dtype type) {
  return (hk_call){
      .comm = c, .coll = HK_SENDRECV, .p2p = (uint8_t)p2p, .root = peer, .count = count, .dtype = (uint8_t)type};
}

static double estimate(const hk_call *calls, size_t n) {
  double us;
  ck_assert_int_eq(hk_estimate(calls, n, &us), HK_OK);
  return us;
}

/* Numbers are such that sums of doubles are exact. */
TEST(messages) {
  for (int overlap = 0; overlap < 2; overlap++)
    for (a.rank = 0; a.rank < RANKS; a.rank++)
      for (int peer = 0; peer < RANKS; peer++)
        for (int p2p = HK_P2P_SEND; p2p <= HK_P2P_RECV; p2p++) {
          const hk_call call = transfer(&a, (hk_p2p)p2p, peer, 100, HK_F64);
          const bool near = peers[peer].host == peers[a.rank].host;
          double us = (near ? 1 : 16) + 0.5 + 800 * ((near ? 0.25 : 2) + (overlap ? 0 : 0.25));
          a.selection->machine->team.overlap = overlap;
          if (peer == a.rank) us = 100;
          ck_assert_double_eq(estimate(&call, 1), us);
        }
}

/* Sends and receives run at the same time, collectives one after another, communicators at the same time; a wait for
 * signals is free. */
TEST(groups) {
  const hk_call sum = {.comm = &a, .coll = HK_ALLREDUCE, .dtype = HK_F32, .redop = HK_SUM, .count = 1000};
  double s;
  const double far = 16.5 + 8 * 2.25, near = 1.5 + 8 * 0.5, self = 1;
  ck_assert_int_eq(hk_selection_price(&a, &sum, &s), HK_OK);
  ck_assert(s > 0);
  const hk_call to_far = transfer(&a, HK_P2P_SEND, 2, 8, HK_I8), to_near = transfer(&a, HK_P2P_SEND, 1, 8, HK_I8),
                from_far = transfer(&a, HK_P2P_RECV, 2, 8, HK_I8), from_near = transfer(&a, HK_P2P_RECV, 1, 8, HK_I8),
                to_self = transfer(&a, HK_P2P_SEND, 0, 8, HK_I8), put = transfer(&a, HK_P2P_PUT, 2, 8, HK_I8),
                wait = transfer(&a, HK_P2P_WAIT, 2, 8, HK_I8);
  hk_call others_far = to_far, others_near = to_near, others_sum = sum;
  others_far.comm = others_near.comm = others_sum.comm = &b;
  const struct {
    hk_call calls[5];
    size_t n;
    double us;
  } rows[] = {
      {{sum}, 0, 0},
      {{sum}, 1, s},
      {{sum, sum, sum}, 3, 3 * s},
      {{to_far, from_near}, 2, far},
      {{to_near, from_far}, 2, far},
      {{to_near, to_near, from_near}, 3, 2 * near},
      {{from_near, to_near, from_near, from_near}, 4, 3 * near},
      {{put, to_near, from_near}, 3, far + near}, /* a put is a send */
      {{wait}, 1, 0},
      {{to_self, wait}, 2, self},
      {{sum, to_far, from_near}, 3, s + far},
      {{to_near, others_far}, 2, far},
      {{others_far, to_near}, 2, far},
      {{to_far, others_near, to_far}, 3, 2 * far},
      {{others_near, to_far, others_near, to_near, others_near}, 5, far + near},
      {{others_sum, to_self}, 2, s > self ? s : self},
  };
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    hk_call calls[6];
    for (size_t k = 0; k < 6; k++)
      calls[k] = k < rows[i].n ? rows[i].calls[k] : to_far; /* what follows is not priced */
    const double us = estimate(calls, rows[i].n);
    ck_assert_msg(us == rows[i].us, "row %zu: %f, not %f", i, us, rows[i].us);
  }
}

int main(void) { return suite_main("estimate", .setup = setup, .teardown = teardown); }
