/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Along rails: only equal local ranks of different hosts use the network, so a fabric whose leaf switches are rails
 * carries nothing over its spines; data for another rail changes rails inside a host. H hosts of L ranks each, n = H L,
 * S bytes (the larger buffer):
 *
 *   allgather       a ring over the hosts; what arrives is passed to the host's other ranks: H - 1 steps between and
 *                   one inside; S (H - 1) / H bytes enter and leave a host (those of every rank once), S / L leave
 *                   each rank's NIC
 *   reduce_scatter  the reverse: the host's ranks give their blocks of a rail to its rank, which adds them to what
 *                   arrives along the ring
 *   alltoall        blocks for rank (h, k) go to local rank k, which sends them to host h: one step inside, one
 *                   between; messages between hosts are as many, but on H - 1 links a rank and not n - L
 *
 * (The rail-only exchange of NCCL's PXN alltoall; the allgather and reduce-scatter of Traeff 2020: "Decomposing MPI
 * collectives for exploiting multi-lane communication", there the "full-lane" ones.)
 */
#include "../program/layout.h"
#include "hosts.h"

enum { INSIDE, RAIL, LOCAL }; /* channels */

static unsigned rail_block_of(const hk_home *p, int host, int local) {
  return (unsigned)hk_layout_rank(p->w->layout, hk_shift(host, 0, p->hosts), local);
}

/* What a step does on the rail; rail_exchange: inside the host. */
enum { NOTHING, RECEIVE, SEND, ALONG = RECEIVE | SEND };
typedef void rail_step(hk_builder *b, const hk_home *p, unsigned does, int host, int stride);

/* Runs a step for `count` hosts, from `host` on backwards. */
static void rail_repeat(hk_builder *b, const hk_home *p, int host, int count, rail_step *step, unsigned does) {
  if (hk_layout_period(p->w->layout) > p->per) {
    for (int s = 0; s < count; s++) step(b, p, does, host - s, 0);
    return;
  }
  hk_build_repeat(b, count > 0 ? (unsigned)count : 0);
  step(b, p, does, host, -p->per);
  hk_build_end_repeat(b);
}

/* Inside the host: sends the blocks of the other rails to their ranks (SEND), or receives them from there. */
static void rail_exchange(hk_builder *b, const hk_home *p, unsigned does, int host, int stride) {
  const bool deal = does == SEND;
  for (int j = 1; j < p->per; j++) {
    const int i = hk_home_turn(p, deal, j);
    hk_home_exchange(b, p, deal, i, rail_block_of(p, host, i), stride);
  }
}

/* ---- allgather ---- */

static void rail_pass_on(hk_builder *b, const hk_home *p, unsigned does, int host, int stride) {
  const unsigned block = rail_block_of(p, host, p->i);
  hk_build_channel(b, RAIL);
  hk_build_from(b, does & RECEIVE ? hk_recv_from(b, hk_home_rail(p, -1), block, stride) : hk_in(0, 0));
  hk_build_to(b, hk_out(block, stride));
  if (does & SEND) hk_build_to(b, hk_send_to(b, hk_home_rail(p, 1), block, stride));
  hk_build_channel(b, INSIDE);
  hk_home_send_all(b, p, block, stride);
  hk_build_instr(b, 0);
}

static void rail_build_allgather(hk_builder *b, const hk_build *w) {
  const hk_home home = hk_home_of(w), *p = &home;
  int h = p->h, n = p->hosts;
  hk_build_lane(b);
  rail_pass_on(b, p, n > 1 ? SEND : NOTHING, h, 0);
  rail_repeat(b, p, h - 1, n - 2, rail_pass_on, ALONG);
  if (n > 1) rail_pass_on(b, p, RECEIVE, h + 1, 0);
  hk_build_lane(b);
  hk_build_channel(b, INSIDE);
  rail_repeat(b, p, h, n, rail_exchange, RECEIVE);
}

/* ---- reduce_scatter ---- */

/* The last one, which sends nothing, makes the result. */
static void rail_add_up(hk_builder *b, const hk_home *p, unsigned does, int host, int stride) {
  const unsigned block = rail_block_of(p, host, p->i);
  hk_build_channel(b, RAIL);
  if (does & RECEIVE) hk_build_from(b, hk_recv_from(b, hk_home_rail(p, -1), block, stride));
  hk_build_to(b, does & SEND ? hk_send_to(b, hk_home_rail(p, 1), block, stride) : hk_out(0, 0));
  hk_home_add(b, p, INSIDE, block, stride);
  hk_build_instr(b, does & SEND ? 0 : HK_INSTR_FINAL);
}

static void rail_build_reduce_scatter(hk_builder *b, const hk_build *w) {
  const hk_home home = hk_home_of(w), *p = &home;
  int h = p->h, n = p->hosts;
  hk_build_lane(b);
  hk_build_channel(b, INSIDE);
  rail_repeat(b, p, h - 1, n, rail_exchange, SEND);
  hk_build_lane(b);
  if (n > 1) rail_add_up(b, p, SEND, h - 1, 0);
  rail_repeat(b, p, h - 2, n - 2, rail_add_up, ALONG);
  rail_add_up(b, p, n > 1 ? RECEIVE : NOTHING, h, 0);
}

/* ---- alltoall ---- */

/* Gives each local rank the blocks that it sends to the host `by` further for this rank. */
static void rail_give(hk_builder *b, const hk_home *p, int by) {
  for (int j = 1; j < p->per; j++)
    hk_build_copy(b, hk_send_to(b, hk_home_next(p, j), (unsigned)p->w->rank, 0),
                  hk_in(rail_block_of(p, p->h + by, hk_shift(p->i, j, p->per)), 0));
}

/* Sends the blocks of this rank's rail across: its own block, then those of the host's other ranks. */
static void rail_take_across(hk_builder *b, const hk_home *p, int by) {
  unsigned to = rail_block_of(p, p->h + by, p->i);
  hk_build_channel(b, RAIL);
  hk_operand across = hk_send_to(b, (int)to, (unsigned)p->w->rank, 0);
  hk_build_copy(b, across, hk_in(to, 0));
  hk_build_channel(b, INSIDE);
  for (int j = 1; j < p->per; j++) {
    int from = hk_home_next(p, -j);
    across.block = (unsigned)from;
    hk_build_copy(b, across, hk_recv_from(b, from, (unsigned)from, 0));
  }
}

static void rail_take_in(hk_builder *b, const hk_home *p, int by) {
  int rail = hk_home_rail(p, -by);
  for (int j = 0; j < p->per; j++) {
    unsigned block = rail_block_of(p, p->h - by, hk_shift(p->i, -j, p->per));
    hk_build_copy(b, hk_out(block, 0), hk_recv_from(b, rail, block, 0));
  }
}

static void rail_build_alltoall(hk_builder *b, const hk_build *w) {
  const hk_home home = hk_home_of(w), *p = &home;
  unsigned mine = (unsigned)p->w->rank;
  hk_build_lane(b);
  hk_build_channel(b, INSIDE);
  for (int by = 1; by < p->hosts; by++) rail_give(b, p, by);
  hk_build_lane(b);
  for (int by = 1; by < p->hosts; by++) rail_take_across(b, p, by);
  hk_build_lane(b);
  hk_build_channel(b, RAIL);
  for (int by = 1; by < p->hosts; by++) rail_take_in(b, p, by);

  hk_build_lane(b); /* inside the host, directly */
  hk_build_channel(b, LOCAL);
  for (int j = 1; j < p->per; j++) {
    int to = hk_home_next(p, j);
    hk_build_copy(b, hk_send_to(b, to, mine, 0), hk_in((unsigned)to, 0));
  }
  hk_build_copy(b, hk_out(mine, 0), hk_in(mine, 0));
  hk_build_lane(b);
  hk_build_channel(b, LOCAL);
  for (int j = 1; j < p->per; j++) {
    int from = hk_home_next(p, -j);
    hk_build_copy(b, hk_out((unsigned)from, 0), hk_recv_from(b, from, (unsigned)from, 0));
  }
}

static const char *rail_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  if (team->nhosts < 2) return "needs several hosts";
  if (team->ranks_per_host < 2) return "needs hosts of several ranks";
  if (team->least_per_host != team->ranks_per_host) return "needs equally many ranks on every host";
  return team->ranks_per_host <= HK_HOST_FAN ? NULL : "needs 255 ranks a host at most";
}

const hk_algorithm hk_algorithm_rail = {
    .name = "rail",
    .about =
        "between hosts only equal local ranks communicate, inside all ranks; nothing crosses a rail fabric's spines",
    .cannot = rail_cannot,
    .build = {[HK_ALLGATHER] = rail_build_allgather,
              [HK_ALLGATHERV] = rail_build_allgather,
              [HK_REDUCE_SCATTER] = rail_build_reduce_scatter,
              [HK_REDUCE_SCATTERV] = rail_build_reduce_scatter,
              [HK_ALLTOALL] = rail_build_alltoall},
};
