/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Allreduce through a network that adds up (CollNet: switches with SHARP): a reduce-scatter inside each host, a sum of
 * equal local ranks of all hosts that the network makes, allgather inside. H hosts of L ranks (P: the fewest of a host,
 * at most HK_SUM_GROUPS), S bytes:
 *
 *   inside   2 steps, S (P - 1) / P + S (L - 1) / P bytes sent
 *   between  1 step, S bytes leave a host and S enter it, in P groups side by side
 *
 * The steps do not depend on the number of hosts; a ring between them (hier) has 2 (H - 1) steps and 2 S (H - 1) / H
 * bytes (Graham et al. 2016: "Scalable hierarchical aggregation protocol (SHArP)").
 *
 * The message is divided into P blocks; rank i < P of each host works on block i. There are four lanes: deal, add,
 * give, collect. The network may add up in any order, but all of a group get the same bits.
 */
#include <math.h>
#include "cost.h"
#include "hosts.h"

enum { DEAL, SUM, COLLECT }; /* channels */

static int groups(int least) { return least < HK_SUM_GROUPS ? least : HK_SUM_GROUPS; }

/* Each rank's own first: the block of rank `i` goes to it, or comes from it. */
static void build_exchange(hk_builder *b, const hk_home *p, int parts, bool deal) {
  hk_build_lane(b);
  hk_build_channel(b, deal ? DEAL : COLLECT);
  for (int j = 1; j < p->per; j++) {
    int i = hk_shift(p->i, deal ? j : -j, p->per), rank = hk_home_local(p, i);
    if (i >= parts) continue;
    if (deal)
      hk_build_copy(b, hk_send_to(b, rank, (unsigned)i, 0), hk_in((unsigned)i, 0));
    else
      hk_build_copy(b, hk_out((unsigned)i, 0), hk_recv_from(b, rank, (unsigned)i, 0));
  }
}

static void build_add(hk_builder *b, const hk_home *p) {
  hk_operand from[HK_HOST_FAN + 1];
  unsigned n = 0, block = (unsigned)p->i;
  hk_build_lane(b);
  hk_build_channel(b, SUM);
  hk_operand to = hk_sum_to(b, hk_home_rail(p, 1), block, 0);
  from[n++] = hk_in(block, 0);
  hk_build_channel(b, DEAL);
  hk_home_recv_all(b, p, block, 0, from, &n);
  hk_build_move(b, HK_INSTR_COPY, &to, 1, from, n); /* a reference to the input would outlive the output's write */
}

static void build_give(hk_builder *b, const hk_home *p) {
  hk_operand to[HK_HOST_FAN + 1];
  unsigned n = 0, block = (unsigned)p->i;
  hk_build_lane(b);
  hk_build_channel(b, SUM);
  hk_operand from = hk_sum_from(b, hk_home_rail(p, -1), block, 0);
  to[n++] = hk_out(block, 0);
  hk_build_channel(b, COLLECT);
  hk_home_send_all(b, p, block, 0, to, &n);
  hk_build_move(b, HK_INSTR_FINAL, to, n, &from, 1);
}

static void build(hk_builder *b, const hk_build *w) {
  hk_home p = hk_home_of(w);
  int parts = groups(hk_home_least(&p));
  hk_build_split(b, (unsigned)parts);
  build_exchange(b, &p, parts, true);
  if (p.i < parts) {
    build_add(b, &p);
    build_give(b, &p);
  }
  build_exchange(b, &p, parts, false);
}

static const char *cannot(const hk_machine *m, hk_coll coll) {
  (void)coll;
  if (!m->in_network) return "needs a CollNet plugin, NCCL_COLLNET_ENABLE=1 and a type that the network adds up";
  if (m->nhosts < 2) return "needs several hosts";
  return m->ranks_per_host <= HK_HOST_FAN ? NULL : "needs 255 ranks a host at most";
}

static double cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double per = m->ranks_per_host, parts = groups(m->least_per_host), all = (double)bytes, part = all / parts;
  (void)coll;
  hk_work w = {.rounds = 1 + 2 * (per > 1),
               .again = 1,
               .messages = 2 * (parts - 1 + per - 1) + 2,
               .sent = all * (parts - 1) / parts + part * (per - 1),
               .written = all * (parts - 1) / parts + part * (per - 1) + part + all,
               .reduced = part * (per - 1),
               .links = 2 * per,
               .spread = HK_SPREAD_GIVEN,
               .far_rounds = 1,
               .out = all,
               .block = (size_t)part};
  w.gpu.turns = fmax(parts - 1, 1);
  w.gpu.all_turns = parts - 1 + 3;
  w.gpu.lane = fmax((parts - 1) * part, per * part);
  w.gpu.lanes = w.gpu.lane + 2 * part;
  return hk_price(m, &(hk_shape){.fan = 1, .depth = 1}, &w);
}

const hk_algorithm hk_algorithm_collnet = {
    .name = "collnet",
    .about =
        "sums inside the host, then by the network's switches, copies inside; one step between hosts; needs CollNet",
    .colls = 1u << HK_ALLREDUCE,
    .cannot = cannot,
    .cost = cost,
    .build = build,
};
