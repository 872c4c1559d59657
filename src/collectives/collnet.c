/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Allreduce, allgather and reduce-scatter through a network that reduces (CollNet: switches with SHARP).
 *
 * Allreduce: a reduce-scatter inside each host, then the network's sum over equal local ranks of all hosts, then an
 * allgather inside. H hosts of L ranks (P: the fewest of a host, at most HK_SUM_GROUPS), S bytes:
 *
 *   inside   2 steps, S (P - 1) / P + S (L - 1) / P bytes sent
 *   between  1 step, S bytes leave a host and S enter it, in P groups side by side
 *
 * The steps do not depend on the number of hosts; a ring between them (hier) has 2 (H - 1) steps and 2 S (H - 1) / H
 * bytes (Graham et al. 2016: "Scalable hierarchical aggregation protocol (SHArP)").
 *
 * Allgather and reduce-scatter use the network's own operations, with S bytes in all blocks and equally many ranks on
 * each host. Rank i < P of each host works on the blocks of local ranks i, i + P, ... Allgather: it gathers these
 * blocks from all hosts and gives them to its host's ranks. Reduce-scatter: it adds its host's inputs of these blocks
 * and gets the sums of its host's blocks.
 *
 *   inside   2 steps (the one for local ranks beyond P among them), S (L - 1) / P bytes sent
 *   between  1 step, S bytes enter a host (allgather) or leave it
 *
 * The message of an allreduce is divided into P blocks; rank i < P of each host works on block i. There are four lanes:
 * deal, add, give, collect. The network may add in any order, but all ranks of a group get the same bits.
 */
#include "../program/layout.h"
#include "hosts.h"

enum { DEAL, SUM, COLLECT }; /* channels */

static int collnet_groups(int least) { return least < HK_SUM_GROUPS ? least : HK_SUM_GROUPS; }

/* Sends block i to rank i of the host, or receives it from there; each rank begins with its own. */
static void collnet_build_exchange(hk_builder *b, const hk_home *p, int parts, bool deal) {
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

static void collnet_build_add(hk_builder *b, const hk_home *p) {
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

static void collnet_build_give(hk_builder *b, const hk_home *p) {
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

/* ---- allgather and reduce-scatter ---- */

/* The hosts' positions in each group. The network counts from a group's lowest rank on (HK_LINK_GATHER_SEND). */
typedef struct grouping {
  hk_home home;
  int parts, first[HK_SUM_GROUPS]; /* parts: number of groups; first: the host of each group's member 0 */
} grouping;

static grouping collnet_grouping_of(hk_home home) {
  grouping g = {.home = home, .parts = collnet_groups(home.per)};
  for (int i = 0; i < g.parts; i++) g.first[i] = hk_layout_first_host(home.w->layout, i);
  return g;
}

/* The rank with this local number on the host of number m in group `i`. */
static int collnet_member(const grouping *g, int i, int local, int m) {
  return hk_layout_rank(g->home.w->layout, hk_shift(g->first[i], m, g->home.hosts), local);
}

static hk_operand collnet_round_operand(hk_builder *b, const hk_home *p, hk_link_kind kind, int block) {
  hk_build_channel(b, SUM);
  return hk_round_operand(b, kind, hk_home_rail(p, hk_link_sends(kind) ? 1 : -1), (unsigned)block);
}

/* Sends blocks to the ranks that have parts, or receives them, in the order in which these ranks work on them. */
static void collnet_build_blocks(hk_builder *b, const grouping *g, bool deal) {
  const hk_home *p = &g->home;
  const int parts = g->parts;
  hk_build_lane(b);
  hk_build_channel(b, deal ? DEAL : COLLECT);
  for (int row = 0; row * parts < p->per; row++)
    for (int m = 0; m < p->hosts; m++)
      for (int j = 1; j < p->per; j++) {
        int i = hk_shift(p->i, deal ? j : -j, p->per), local = row * parts + i;
        if (i >= parts || local >= p->per) continue;
        unsigned block = (unsigned)collnet_member(g, i, local, m);
        if (deal)
          hk_build_copy(b, hk_send_to(b, hk_home_local(p, i), block, 0), hk_in(block, 0));
        else
          hk_build_copy(b, hk_out(block, 0), hk_recv_from(b, hk_home_local(p, i), block, 0));
      }
}

static void collnet_build_allgather(hk_builder *b, const grouping *g) {
  const hk_home *p = &g->home;
  const int parts = g->parts;
  hk_build_lane(b);
  for (int local = p->i; p->i < parts && local < p->per; local += parts) {
    int block = hk_home_local(p, local);
    hk_build_channel(b, DEAL);
    hk_operand from = local == p->i ? hk_in(0, 0) : hk_recv_from(b, block, (unsigned)block, 0);
    hk_operand to = collnet_round_operand(b, p, HK_LINK_GATHER_SEND, block);
    hk_build_move(b, HK_INSTR_COPY, &to, 1, &from, 1);
  }
  hk_build_channel(b, DEAL);
  if (p->i >= parts)
    hk_build_copy(b, hk_send_to(b, hk_home_local(p, p->i % parts), (unsigned)p->w->rank, 0), hk_in(0, 0));
  hk_build_lane(b);
  for (int local = p->i; p->i < parts && local < p->per; local += parts)
    for (int m = 0; m < p->hosts; m++) {
      hk_operand to[HK_HOST_FAN + 1];
      unsigned n = 0, block = (unsigned)collnet_member(g, p->i, local, m);
      hk_operand from = collnet_round_operand(b, p, HK_LINK_GATHER_RECV, (int)block);
      to[n++] = hk_out(block, 0);
      hk_build_channel(b, COLLECT);
      hk_home_send_all(b, p, block, 0, to, &n);
      hk_build_move(b, 0, to, n, &from, 1);
    }
  collnet_build_blocks(b, g, false);
}

static void collnet_build_reduce_scatter(hk_builder *b, const grouping *g) {
  const hk_home *p = &g->home;
  const int parts = g->parts;
  collnet_build_blocks(b, g, true);
  hk_build_lane(b);
  for (int local = p->i; p->i < parts && local < p->per; local += parts)
    for (int m = 0; m < p->hosts; m++) {
      hk_operand from[HK_HOST_FAN + 1];
      unsigned n = 0, block = (unsigned)collnet_member(g, p->i, local, m);
      hk_operand to = collnet_round_operand(b, p, HK_LINK_SCATTER_SEND, (int)block);
      from[n++] = hk_in(block, 0);
      hk_build_channel(b, DEAL);
      hk_home_recv_all(b, p, block, 0, from, &n);
      hk_build_move(b, HK_INSTR_COPY, &to, 1, from, n);
    }
  hk_build_lane(b);
  for (int local = p->i; p->i < parts && local < p->per; local += parts) {
    int block = hk_home_local(p, local);
    hk_operand from = collnet_round_operand(b, p, HK_LINK_SCATTER_RECV, block);
    hk_build_channel(b, COLLECT);
    hk_operand to = local == p->i ? hk_out(0, 0) : hk_send_to(b, block, (unsigned)block, 0);
    hk_build_move(b, HK_INSTR_FINAL, &to, 1, &from, 1);
  }
  hk_build_channel(b, COLLECT);
  if (p->i >= parts)
    hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, hk_home_local(p, p->i % parts), (unsigned)p->w->rank, 0));
}

static void collnet_build(hk_builder *b, const hk_build *w) {
  hk_home p = hk_home_of(w);
  if (w->coll != HK_ALLREDUCE) {
    const grouping g = collnet_grouping_of(p);
    (w->coll == HK_ALLGATHER ? collnet_build_allgather : collnet_build_reduce_scatter)(b, &g);
    return;
  }
  int parts = collnet_groups(hk_home_least(&p));
  hk_build_span(b, COLLECT + 1);
  hk_build_split(b, (unsigned)parts);
  collnet_build_exchange(b, &p, parts, true);
  if (p.i < parts) {
    collnet_build_add(b, &p);
    collnet_build_give(b, &p);
  }
  collnet_build_exchange(b, &p, parts, false);
}

static const char *collnet_cannot(const hk_team *team, hk_coll coll) {
  if (!team->in_network && coll == HK_ALLREDUCE)
    return "needs a CollNet plugin, NCCL_COLLNET_ENABLE=1 and a type that the network adds up";
  if (!team->in_network) return "needs a CollNet plugin that has this call, and NCCL_COLLNET_ENABLE=1";
  if (team->nhosts < 2) return "needs several hosts";
  if (coll != HK_ALLREDUCE && team->least_per_host < team->ranks_per_host) return "needs hosts with equally many ranks";
  return team->ranks_per_host <= HK_HOST_FAN ? NULL : "needs 255 ranks a host at most";
}

const hk_algorithm hk_algorithm_collnet = {
    .name = "collnet",
    .about =
        "sums inside the host, then by the network's switches, copies inside; one step between hosts; needs CollNet",
    .colls = 1u << HK_ALLREDUCE | 1u << HK_ALLGATHER | 1u << HK_REDUCE_SCATTER,
    .cannot = collnet_cannot,
    .build = collnet_build,
};
