/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Hierarchical allreduce, ring across: reduce-scatter inside each host, a ring allreduce between equal local ranks of
 * all hosts, allgather inside. H hosts of L ranks (P: the fewest of a host), S bytes:
 *
 *   inside   2 steps, S (P - 1) / P + S (L - 1) / P bytes sent
 *   between  2 (H - 1) steps, 2 S (H - 1) / H bytes leave a host, on P rails side by side
 *
 * In a flat ring as many bytes leave a host, but in n - 1 steps and not H - 1 (Jia et al. 2018: "Highly scalable deep
 * learning training system with mixed-precision", section 4.3; the multi-leader allreduce of Bayatpour et al. 2017).
 *
 * The message is divided into P parts of H blocks; rank i < P of every host works on part i. The stages are combined: a
 * step of the ring adds what the previous host sent, the rank's own block and those of its host's other ranks, and
 * sends the sum on. Ranks beyond P, on hosts that have more ranks than others, only send their input and receive the
 * result. There are three lanes: deal, ring, collect. The sum of a block is made along one path, so all get the same
 * bits.
 */
#include "hosts.h"
#include "mesh.h"

/* Channels. In a switch, what is dealt and what is collected are links of different kinds, and the ring has two lanes:
 * the sum of a block, then its way to all hosts. So loads of sums and stores to all, which fill the links in one
 * direction each, are under way at once. The sum's last step is the second lane's: HAND. */
enum { DEAL, RING, COLLECT };
enum { SUMMED = DEAL, LAST = 1, REDUCE, HAND = 4, GATHER };

/* In a switch, two lanes deal, and two collect, for every second rank each. A step of the ring moves two blocks: the
 * second one while the first one is on its way, because slots are short. Each has links of its own: two slots are not
 * enough for two blocks of a ring. */
static int hier_ways(const hk_home *p) { return p->in_switch ? 2 : 1; }

/* The first of the blocks that the ring moves together with this one, in the part of rank i of each host. */
static unsigned hier_block(const hk_home *p, int i, int block) {
  return (unsigned)((i * p->hosts + hk_shift(block, 0, p->hosts)) * hier_ways(p));
}

enum { HIER_SWITCHED = HK_BLOCKS_MOST / 2 }; /* the most ranks: each has two blocks */

/* Blocks from, from - 1, ... (modulo H) of a part: one or two falling runs. */
typedef struct run {
  int first, count;
} run;
static int hier_falling(int from, int count, int hosts, run out[2]) {
  int n = 0, first = hk_shift(from, 0, hosts), a = count < first + 1 ? count : first + 1;
  if (a > 0) out[n++] = (run){first, a};
  if (count > a) out[n++] = (run){hosts - 1, count - a};
  return n;
}

/* Deals blocks to each rank that has a part, or collects them from there. */
static void hier_exchange(hk_builder *b, const hk_home *p, bool deal, int parts, int lane, int from, int count) {
  run r[2];
  int n = hier_falling(from, count, p->hosts, r);
  for (int k = 0; k < n; k++) {
    hk_build_repeat(b, (unsigned)r[k].count);
    for (int twin = 0; twin < hier_ways(p); twin++)
      for (int j = 1 + lane; j <= p->per; j += hier_ways(p)) {
        const int i = hk_home_turn(p, deal, j);
        if (i >= parts || i == p->i) continue;
        hk_home_exchange(b, p, deal, i, hier_block(p, i, r[k].first) + (unsigned)twin, -hier_ways(p));
      }
    hk_build_end_repeat(b);
  }
}

/* In the order in which the ring needs them. */
static void hier_build_deal(hk_builder *b, const hk_home *p, int parts, int lane) {
  hk_build_lane(b);
  hk_build_channel(b, DEAL);
  hier_exchange(b, p, true, parts, lane, p->h, p->in_switch ? p->hosts - 1 : p->hosts);
  if (!p->in_switch) return;
  hk_build_channel(b, LAST);
  hier_exchange(b, p, true, parts, lane, p->h + 1, 1);
}

/* One step of the ring on a block: what it receives and sends, and on which channels; channels below 0: it does not. It
 * adds the host's blocks, which were dealt on channel `add`, and gives the result to the host on channel `give`. */
typedef struct hop {
  int receive, add, send, give;
} hop;

static void hier_step_one(hk_builder *b, const hk_home *p, unsigned at, int stride, hop x) {
  if (x.send >= 0) {
    hk_build_channel(b, (unsigned)x.send);
    hk_build_to(b, hk_send_to(b, hk_home_rail(p, 1), at, stride));
  }
  if (x.receive >= 0) {
    hk_build_channel(b, (unsigned)x.receive);
    hk_build_from(b, hk_recv_from(b, hk_home_rail(p, -1), at, stride));
  }
  if (x.add >= 0) hk_home_add(b, p, (unsigned)x.add, at, stride);
  if (x.give >= 0)
    hk_home_give(b, p, (unsigned)x.give, x.add >= 0 ? HK_INSTR_FINAL : 0, at, stride);
  else
    hk_build_instr(b, 0);
}

static void hier_step(hk_builder *b, const hk_home *p, int block, int stride, hop x) {
  const unsigned at = hier_block(p, p->i, block);
  const bool sends = x.send == REDUCE || x.send == GATHER, receives = x.receive == REDUCE || x.receive == GATHER;
  for (int twin = 0; twin < hier_ways(p); twin++) {
    hier_step_one(b, p, at + (unsigned)twin, stride * hier_ways(p), x);
    x.send += sends;
    x.receive += receives;
  }
}

static void hier_steps(hk_builder *b, const hk_home *p, int from, int count, hop x) {
  run r[2];
  int n = hier_falling(from, count, p->hosts, r);
  for (int k = 0; k < n; k++) {
    hk_build_repeat(b, (unsigned)r[k].count);
    hier_step(b, p, r[k].first, -1, x);
    hk_build_end_repeat(b);
  }
}

static void hier_build_ring(hk_builder *b, const hk_home *p) {
  int h = p->h, n = p->hosts;
  hk_build_lane(b);
  if (n == 1) {
    hier_step(b, p, 0, 0, (hop){-1, DEAL, -1, COLLECT});
    return;
  }
  hier_step(b, p, h, 0, (hop){-1, DEAL, RING, -1});
  hier_steps(b, p, h - 1, n - 2, (hop){RING, DEAL, RING, -1});
  hier_step(b, p, h + 1, 0, (hop){RING, DEAL, RING, COLLECT});
  hier_steps(b, p, h, n - 2, (hop){RING, -1, RING, COLLECT});
  hier_step(b, p, h + 2, 0, (hop){RING, -1, -1, COLLECT});
}

/* The same in two lanes, on two hosts or more. */
static void hier_build_switched_ring(hk_builder *b, const hk_home *p) {
  int h = p->h, n = p->hosts;
  hk_build_lane(b);
  hier_step(b, p, h, 0, (hop){-1, SUMMED, n > 2 ? REDUCE : HAND, -1});
  hier_steps(b, p, h - 1, n - 3, (hop){REDUCE, SUMMED, REDUCE, -1});
  if (n > 2) hier_step(b, p, h + 2, 0, (hop){REDUCE, SUMMED, HAND, -1});
  hk_build_lane(b);
  hier_step(b, p, h + 1, 0, (hop){HAND, LAST, GATHER, LAST});
  hier_steps(b, p, h, n - 2, (hop){GATHER, -1, GATHER, LAST});
  hier_step(b, p, h + 2, 0, (hop){GATHER, -1, -1, LAST});
}

/* In the order in which the ring finishes them. */
static void hier_build_collect(hk_builder *b, const hk_home *p, int parts, int lane) {
  hk_build_lane(b);
  hk_build_channel(b, p->in_switch ? LAST : COLLECT);
  hier_exchange(b, p, false, parts, lane, p->h + 1, p->hosts);
}

void hk_build_hier(hk_builder *b, const hk_build *w, bool in_switch) {
  hk_home p = hk_home_of(w);
  int parts = hk_home_least(&p);
  p.in_switch = in_switch;
  hk_build_split(b, (unsigned)(parts * p.hosts * hier_ways(&p)));
  if (in_switch) hk_build_scratch(b, 1);
  hk_build_span(b, in_switch ? 0 : COLLECT + 1);
  for (int lane = 0; lane < hier_ways(&p); lane++) hier_build_deal(b, &p, parts, lane);
  if (in_switch)
    hier_build_switched_ring(b, &p);
  else if (p.i < parts)
    hier_build_ring(b, &p);
  for (int lane = 0; lane < hier_ways(&p); lane++) hier_build_collect(b, &p, parts, lane);
}
static void hier_build(hk_builder *b, const hk_build *w) { hk_build_hier(b, w, false); }

const char *hk_hier_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  if (team->nhosts < 2) return "needs several hosts";
  if (team->ranks_per_host < 2) return "needs hosts of several ranks";
  return team->ranks_per_host <= HK_HOST_FAN ? NULL : "needs 255 ranks a host at most";
}
const char *hk_hier_switch_cannot(const hk_team *team) {
  const char *why = hk_mesh_switch_cannot(team, team->ranks_per_host);
  if (!why) why = hk_hier_cannot(team, HK_ALLREDUCE);
  if (why) return why;
  if (team->least_per_host < team->ranks_per_host) return "needs hosts of equally many ranks";
  HK_ASSERT(HIER_SWITCHED == 262143, "the text below");
  return team->nranks <= HIER_SWITCHED ? NULL : "needs 262143 ranks at most";
}

const hk_algorithm hk_algorithm_hier = {
    .name = "hier",
    .about =
        "sums inside the host, a ring between hosts for each local rank, copies inside; fewest bytes between hosts",
    .cannot = hk_hier_cannot,
    .build = {[HK_ALLREDUCE] = hier_build},
};
