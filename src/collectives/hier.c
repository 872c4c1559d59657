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

enum { DEAL, RING, COLLECT }; /* channels */

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

/* To each rank that has a part: this rank's blocks of it, in the order in which the ring needs them. */
static void hier_build_deal(hk_builder *b, const hk_home *p, int parts) {
  run r[2];
  hk_build_lane(b);
  int n = hier_falling(p->h, p->hosts, p->hosts, r);
  for (int k = 0; k < n; k++) {
    hk_build_repeat(b, (unsigned)r[k].count);
    for (int j = 1; j <= p->per; j++) {
      int to = hk_shift(p->i, j, p->per);
      unsigned block = (unsigned)(to * p->hosts + r[k].first);
      if (to >= parts || to == p->i) continue;
      hk_build_copy(b, hk_send_to(b, hk_home_local(p, to), block, -1), hk_in(block, -1));
    }
    hk_build_end_repeat(b);
  }
}

/* One step of the ring on a block: send, add what arrives and the host's own blocks, give the result to the host. */
static void hier_ring_step(hk_builder *b, const hk_home *p, int block, int stride, bool receive, bool add, bool send,
                           bool give) {
  hk_operand to[HK_HOST_FAN + 2], from[HK_HOST_FAN + 2];
  unsigned nto = 0, nfrom = 0, at = (unsigned)(p->i * p->hosts + block);
  hk_build_channel(b, RING);
  if (give) to[nto++] = hk_out(at, stride);
  if (send) to[nto++] = hk_send_to(b, hk_home_rail(p, 1), at, stride);
  if (receive) from[nfrom++] = hk_recv_from(b, hk_home_rail(p, -1), at, stride);
  if (add) {
    from[nfrom++] = hk_in(at, stride);
    hk_build_channel(b, DEAL);
    hk_home_recv_all(b, p, at, stride, from, &nfrom);
  }
  if (give) {
    hk_build_channel(b, COLLECT);
    hk_home_send_all(b, p, at, stride, to, &nto);
  }
  hk_build_move(b, add && give ? HK_INSTR_FINAL : 0, to, nto, from, nfrom);
}

static void hier_ring_steps(hk_builder *b, const hk_home *p, int from, int count, bool add) {
  run r[2];
  int n = hier_falling(from, count, p->hosts, r);
  for (int k = 0; k < n; k++) {
    hk_build_repeat(b, (unsigned)r[k].count);
    hier_ring_step(b, p, r[k].first, -1, true, add, true, !add);
    hk_build_end_repeat(b);
  }
}

static void hier_build_ring(hk_builder *b, const hk_home *p) {
  int h = p->h, n = p->hosts;
  hk_build_lane(b);
  if (n == 1) {
    hier_ring_step(b, p, 0, 0, false, true, false, true);
    return;
  }
  hier_ring_step(b, p, h, 0, false, true, true, false);
  hier_ring_steps(b, p, hk_shift(h, -1, n), n - 2, true);
  hier_ring_step(b, p, hk_shift(h, 1, n), 0, true, true, true, true);
  hier_ring_steps(b, p, h, n - 2, false);
  hier_ring_step(b, p, hk_shift(h, 2, n), 0, true, false, false, true);
}

/* From each rank that has a part: its blocks, in the order in which the ring finishes them. */
static void hier_build_collect(hk_builder *b, const hk_home *p, int parts) {
  run r[2];
  hk_build_lane(b);
  hk_build_channel(b, COLLECT);
  int n = hier_falling(hk_shift(p->h, 1, p->hosts), p->hosts, p->hosts, r);
  for (int k = 0; k < n; k++) {
    hk_build_repeat(b, (unsigned)r[k].count);
    for (int j = 1; j <= p->per; j++) {
      int from = hk_shift(p->i, -j, p->per);
      unsigned block = (unsigned)(from * p->hosts + r[k].first);
      if (from >= parts || from == p->i) continue;
      hk_build_copy(b, hk_out(block, -1), hk_recv_from(b, hk_home_local(p, from), block, -1));
    }
    hk_build_end_repeat(b);
  }
}

static void hier_build(hk_builder *b, const hk_build *w) {
  hk_home p = hk_home_of(w);
  int parts = hk_home_least(&p);
  hk_build_split(b, (unsigned)(parts * p.hosts));
  hier_build_deal(b, &p, parts);
  if (p.i < parts) hier_build_ring(b, &p);
  hier_build_collect(b, &p, parts);
}

static const char *hier_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  if (team->nhosts < 2) return "needs several hosts";
  if (team->ranks_per_host < 2) return "needs hosts of several ranks";
  return team->ranks_per_host <= HK_HOST_FAN ? NULL : "needs 255 ranks a host at most";
}

const hk_algorithm hk_algorithm_hier = {
    .name = "hier",
    .about =
        "sums inside the host, a ring between hosts for each local rank, copies inside; fewest bytes between hosts",
    .colls = 1u << HK_ALLREDUCE,
    .cannot = hier_cannot,
    .build = hier_build,
};
