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

/* What the ranks of a host work on: rank i < parts on blocks of local ranks i, i + parts, ... below `locals`, of
 * `turns` hosts each; for allreduce on block i alone. */
typedef struct grouping {
  hk_home home;
  bool split; /* allreduce */
  int parts, locals, turns;
  int first[HK_SUM_GROUPS]; /* the host of each group's member 0: the network counts from a group's lowest rank on
                               (HK_LINK_GATHER_SEND) */
} grouping;

static grouping collnet_grouping_of(const hk_build *w) {
  grouping g = {.home = hk_home_of(w), .split = w->coll == HK_ALLREDUCE};
  const int least = hk_home_least(&g.home);
  g.parts = least < HK_SUM_GROUPS ? least : HK_SUM_GROUPS;
  g.locals = g.split ? g.parts : g.home.per;
  g.turns = g.split ? 1 : g.home.hosts;
  for (int i = 0; i < g.parts && !g.split; i++) g.first[i] = hk_layout_first_host(w->layout, i);
  return g;
}

/* The block of the rank with this local number on the host of number m in the group of rank i. */
static unsigned collnet_block(const grouping *g, int i, int local, int m) {
  const hk_home *p = &g->home;
  return (unsigned)(g->split ? i : hk_layout_rank(p->w->layout, hk_shift(g->first[i], m, p->hosts), local));
}

static hk_operand collnet_operand(hk_builder *b, const hk_home *p, hk_link_kind kind, unsigned block) {
  hk_build_channel(b, SUM);
  return hk_link_operand(b, kind, hk_home_rail(p, hk_link_sends(kind) ? 1 : -1), block, 0);
}

/* Sends blocks to the ranks that have parts, or receives them, in the order in which these ranks work on them. */
static void collnet_build_blocks(hk_builder *b, const grouping *g, bool deal) {
  const hk_home *p = &g->home;
  const int parts = g->parts;
  hk_build_lane(b);
  hk_build_channel(b, deal ? DEAL : COLLECT);
  for (int row = 0; row * parts < g->locals; row++)
    for (int m = 0; m < g->turns; m++)
      for (int j = 1; j < p->per; j++) {
        const int i = hk_home_turn(p, deal, j), local = row * parts + i;
        if (i < parts && local < g->locals) hk_home_exchange(b, p, deal, i, collnet_block(g, i, local, m), 0);
      }
}

/* For each of the rank's blocks: adds the host's contributions, and gives the sum to the network; or gives what the
 * network makes to the host's ranks. */
static void collnet_build_work(hk_builder *b, const grouping *g, hk_link_kind kind) {
  const hk_home *p = &g->home;
  const bool sends = hk_link_sends(kind);
  if (p->i < g->parts) hk_build_lane(b);
  for (int local = p->i; p->i < g->parts && local < g->locals; local += g->parts)
    for (int m = 0; m < g->turns; m++) {
      const unsigned block = collnet_block(g, p->i, local, m);
      const hk_operand network = collnet_operand(b, p, kind, block);
      if (sends) {
        hk_build_to(b, network);
        hk_home_add(b, p, DEAL, block, 0);
        hk_build_instr(b, HK_INSTR_COPY); /* a reference to the input would outlive the output's write */
      } else {
        hk_build_from(b, network);
        hk_home_give(b, p, COLLECT, g->split ? HK_INSTR_FINAL : 0, block, 0);
      }
    }
}

/* Allgather: the inputs of the host's ranks go to the network. */
static void collnet_build_gather(hk_builder *b, const grouping *g) {
  const hk_home *p = &g->home;
  hk_build_lane(b);
  for (int local = p->i; p->i < g->parts && local < p->per; local += g->parts) {
    int block = hk_home_local(p, local);
    hk_build_channel(b, DEAL);
    hk_build_from(b, local == p->i ? hk_in(0, 0) : hk_recv_from(b, block, (unsigned)block, 0));
    hk_build_to(b, collnet_operand(b, p, HK_LINK_GATHER_SEND, (unsigned)block));
    hk_build_instr(b, HK_INSTR_COPY);
  }
  hk_build_channel(b, DEAL);
  if (p->i >= g->parts)
    hk_build_copy(b, hk_send_to(b, hk_home_local(p, p->i % g->parts), (unsigned)p->w->rank, 0), hk_in(0, 0));
}

/* Reduce-scatter: the sums of the host's blocks come from the network. */
static void collnet_build_scatter(hk_builder *b, const grouping *g) {
  const hk_home *p = &g->home;
  hk_build_lane(b);
  for (int local = p->i; p->i < g->parts && local < p->per; local += g->parts) {
    int block = hk_home_local(p, local);
    hk_build_from(b, collnet_operand(b, p, HK_LINK_SCATTER_RECV, (unsigned)block));
    hk_build_channel(b, COLLECT);
    hk_build_to(b, local == p->i ? hk_out(0, 0) : hk_send_to(b, block, (unsigned)block, 0));
    hk_build_instr(b, HK_INSTR_FINAL);
  }
  hk_build_channel(b, COLLECT);
  if (p->i >= g->parts)
    hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, hk_home_local(p, p->i % g->parts), (unsigned)p->w->rank, 0));
}

static void collnet_build(hk_builder *b, const hk_build *w) {
  const grouping g = collnet_grouping_of(w);
  if (g.split) {
    hk_build_span(b, COLLECT + 1);
    hk_build_split(b, (unsigned)g.parts);
  }
  if (w->coll == HK_ALLGATHER) {
    collnet_build_gather(b, &g);
  } else {
    collnet_build_blocks(b, &g, true);
    collnet_build_work(b, &g, g.split ? HK_LINK_SUM_SEND : HK_LINK_SCATTER_SEND);
  }
  if (w->coll == HK_REDUCE_SCATTER) {
    collnet_build_scatter(b, &g);
  } else {
    collnet_build_work(b, &g, g.split ? HK_LINK_SUM_RECV : HK_LINK_GATHER_RECV);
    collnet_build_blocks(b, &g, false);
  }
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
    .cannot = collnet_cannot,
    .build = {[HK_ALLREDUCE] = collnet_build, [HK_ALLGATHER] = collnet_build, [HK_REDUCE_SCATTER] = collnet_build},
};
