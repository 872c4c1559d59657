/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL runs, for the simulator: its algorithms as programs, and their channels, chunks and threads. Facts are from
 * its src/enqueue.cc, src/transport/nvls.cc and src/device/all_reduce.h (2.20 to 2.30). */
#pragma once
#include <math.h>
#include <string.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/collectives/hosts.h"
#include "../../src/collectives/pattern.h"
#include "../../src/decide/filter.h"
#include "../../src/program/builder.h"
#include "../../src/program/layout.h"
#include "../../src/sim/sim.h"
#include "../../src/sim/simulator.h"

/* Its channels carry the two trees in turn: a channel of the programs is two of NCCL's. */
enum { NCCL_TREES = 2, NCCL_DOWN = 4, NCCL_STEPS = 8 };

/* ---- its tree ---- */

/* Of a rank's links in it. */
typedef struct nccl_links {
  int up, ndown; /* up: -1: the root */
  int down[NCCL_DOWN];
} nccl_links;

/* Inside a host a chain, in the order of the channel's ring; between the hosts' first ranks a double binary tree.
 * Places of the ring order. */
static nccl_links nccl_links_of(int tree, int place, int per, int hosts) {
  nccl_links l = {.up = place - 1};
  if (place == 0) l.up = -1;
  if (place == 0 && hosts > 1) l.down[l.ndown++] = hk_two_tree_top(tree, 0, hosts) * per;
  if (place % per == 0 && place > 0) {
    const hk_tree_place p = hk_two_tree_place(tree, place / per, 0, hosts);
    l.up = p.up * per;
    for (int k = 0; k < p.ndown; k++) l.down[l.ndown++] = p.down[k] * per;
  }
  if (place % per + 1 < per) l.down[l.ndown++] = place + 1;
  return l;
}

static void nccl_receive(hk_builder *b, const hk_build *w, const nccl_links *l, unsigned tree) {
  for (int k = 0; k < l->ndown; k++)
    hk_build_from(b, hk_recv_from(b, hk_layout_at(w->layout, w->channel, l->down[k]), tree, 0));
  hk_build_from(b, hk_in(tree, 0));
}

static void nccl_build_tree(hk_builder *b, const hk_build *w) {
  const int per = hk_layout_size(w->layout, 0, w->nranks), place = hk_layout_place(w->layout, w->channel, w->rank);
  hk_build_split(b, NCCL_TREES);
  for (unsigned tree = 0; tree < NCCL_TREES; tree++) {
    const nccl_links l = nccl_links_of((int)tree, place, per, w->nranks / per);
    const int up = l.up < 0 ? -1 : hk_layout_at(w->layout, w->channel, l.up);
    hk_build_lane(b);
    hk_build_channel(b, tree);
    nccl_receive(b, w, &l, tree);
    if (up >= 0) {
      hk_build_to(b, hk_send_to(b, up, tree, 0));
      hk_build_instr(b, 0);
      hk_build_lane(b);
    }
    hk_build_channel(b, NCCL_TREES + tree);
    if (up >= 0) hk_build_from(b, hk_recv_from(b, up, tree, 0));
    hk_build_to(b, hk_out(tree, 0));
    for (int k = 0; k < l.ndown; k++)
      hk_build_to(b, hk_send_to(b, hk_layout_at(w->layout, w->channel, l.down[k]), tree, 0));
    hk_build_instr(b, up < 0 ? HK_INSTR_FINAL : 0);
  }
}

/* ---- NVLSTree ----
 * Inside a host through its switch, between equal local ranks of all hosts a double binary tree. One instruction adds
 * what the switch sums up and what comes from other hosts, and sends it on. */

enum { NCCL_NVLS_IN = 0, NCCL_NVLS_UP = NCCL_TREES, NCCL_NVLS_DOWN = 2 * NCCL_TREES };

/* Copies into the switch's memory, or out of it. */
static void nccl_nvls_copy(hk_builder *b, const hk_home *p, bool deal, unsigned tree) {
  hk_build_lane(b);
  hk_build_channel(b, NCCL_NVLS_IN + tree);
  for (int j = 1; j < p->per; j++) {
    const int i = hk_home_turn(p, deal, j);
    hk_home_exchange(b, p, deal, i, (unsigned)(NCCL_TREES * i) + tree, 0);
  }
}

static void nccl_nvls_across(hk_builder *b, const hk_home *p, unsigned tree) {
  const hk_layout *l = p->w->layout;
  const unsigned block = (unsigned)(NCCL_TREES * p->i) + tree;
  const int root = (int)tree % p->hosts, top = hk_two_tree_top((int)tree, root, p->hosts);
  const bool is_root = p->h == root;
  const hk_tree_place at = is_root ? (hk_tree_place){.down = {top}, .ndown = 1}
                                   : hk_two_tree_place((int)tree, p->h, root, p->hosts);
  hk_build_lane(b);
  hk_build_channel(b, NCCL_NVLS_UP + tree);
  for (int k = 0; k < at.ndown; k++) hk_build_from(b, hk_recv_from(b, hk_layout_rank(l, at.down[k], p->i), block, 0));
  if (!is_root) hk_build_to(b, hk_send_to(b, hk_layout_rank(l, at.up, p->i), block, 0));
  hk_build_channel(b, NCCL_NVLS_IN + tree);
  hk_build_in_switch(b, true);
  hk_build_from(b, hk_in(block, 0));
  for (int j = 1; j < p->per; j++) hk_build_from(b, hk_recv_from(b, hk_home_next(p, j), block, 0));
  if (!is_root) hk_build_instr(b, 0);
  hk_build_in_switch(b, false);
  if (!is_root) hk_build_lane(b);
  hk_build_channel(b, NCCL_NVLS_DOWN + tree);
  if (!is_root) hk_build_from(b, hk_recv_from(b, hk_layout_rank(l, at.up, p->i), block, 0));
  for (int k = 0; k < at.ndown; k++) hk_build_to(b, hk_send_to(b, hk_layout_rank(l, at.down[k], p->i), block, 0));
  hk_build_channel(b, NCCL_NVLS_IN + tree);
  hk_build_in_switch(b, true);
  hk_build_to(b, hk_mcast(b, block, 0));
  hk_build_to(b, hk_out(block, 0));
  hk_build_instr(b, HK_INSTR_FINAL);
  hk_build_in_switch(b, false);
}

static void nccl_build_nvlstree(hk_builder *b, const hk_build *w) {
  hk_home p = hk_home_of(w);
  p.in_switch = true;
  hk_build_split(b, (unsigned)(NCCL_TREES * p.per));
  for (unsigned tree = 0; tree < NCCL_TREES; tree++) {
    nccl_nvls_copy(b, &p, true, tree);
    nccl_nvls_across(b, &p, tree);
    nccl_nvls_copy(b, &p, false, tree);
  }
}

/* ---- an alltoall of sends and receives: all are under way at once ---- */

static void nccl_build_sends(hk_builder *b, const hk_build *w) {
  for (int j = 1; j < w->nranks; j++) {
    const int to = hk_shift(w->rank, j, w->nranks), from = hk_shift(w->rank, -j, w->nranks);
    hk_build_lane(b);
    hk_build_channel(b, (unsigned)j - 1);
    hk_build_copy(b, hk_send_to(b, to, (unsigned)w->rank, 0), hk_in((unsigned)to, 0));
    hk_build_lane(b);
    hk_build_channel(b, (unsigned)j - 1);
    hk_build_copy(b, hk_out((unsigned)from, 0), hk_recv_from(b, from, (unsigned)w->rank, 0));
  }
  hk_build_lane(b);
  hk_build_copy(b, hk_out((unsigned)w->rank, 0), hk_in((unsigned)w->rank, 0));
}

static const char *nccl_nvlstree_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  return hk_hier_switch_cannot(team);
}

static const hk_algorithm nccl_tree = {
    .name = "nccltree", .about = "NCCL's tree", .build = {[HK_ALLREDUCE] = nccl_build_tree}};
static const hk_algorithm nccl_nvlstree = {.name = "ncclnvlstree",
                                           .about = "NCCL's NVLSTree",
                                           .protocols = 1u << HK_PROTO_SIMPLE,
                                           .cannot = nccl_nvlstree_cannot,
                                           .build = {[HK_ALLREDUCE] = nccl_build_nvlstree}};
static const hk_algorithm nccl_sends = {
    .name = "ncclsends", .about = "NCCL's sends and receives", .build = {[HK_ALLTOALL] = nccl_build_sends}};

/* Its algorithms, and Hocket's. */
static const hk_filter *nccl_filter(void) {
  enum { OWN = 3 };
  static const hk_algorithm *all[HK_ALGORITHM_LIMIT + OWN] = {&nccl_tree, &nccl_nvlstree, &nccl_sends};
  static hk_filter filter = {.algorithms = all};
  for (int k = 0; hk_algorithms[k]; k++) all[k + OWN] = hk_algorithms[k];
  return &filter;
}

/* ---- channels, chunks, threads ---- */

/* The parts of a block of threads. The sums of a tree have 70% of it with lines, 384 threads of 640 without. What
 * copies into the switch's memory, sums up, and copies out of it shares a block: a copy takes fewer of a thread's
 * cycles than a ring's sum, so that a half follows from one row (16 MiB on 8 H200); the other rows judge it. */
#define NCCL_PART_LINES 0.7
#define NCCL_PART_SIMPLE 0.6
#define NCCL_PART_NVLS 0.5

/* A warp's lines are in the receiver's memory long before the chunk's last one, so a chain of ranks does not wait for
 * chunks, but for one round of the threads that sum up: 64 bytes a thread with LL128, of which 60 are data, and 8
 * with LL. */
enum { NCCL_LL128_ROUND = 448 * 60, NCCL_LL_ROUND = 512 * 8, NCCL_LL128_STEP = 640 * 900, NCCL_LL_STEP = 32 << 10 };

/* Of its tree, on `channels` of its own: what a chain waits for; *slots: a link's, of this size. `step`: a step of
 * Simple's buffer. */
static size_t nccl_tree_chunk(const hk_simulator *x, uint64_t bytes, int protocol, int channels, size_t step,
                              uint32_t *slots) {
  const size_t part = (size_t)fmax(16, (double)bytes / channels);
  const double per = x->machine.team.ranks_per_host, hops = 1 + log2(x->c->nhosts) + 0.1 * per;
  size_t chunk = step, round = step;
  if (protocol == HK_PROTO_LL) {
    chunk = NCCL_LL_STEP;
    round = NCCL_LL_ROUND;
  }
  if (protocol == HK_PROTO_LL128) {
    chunk = NCCL_LL128_STEP;
    round = NCCL_LL128_ROUND;
    while ((double)(part / chunk) < hops * 64 / per && chunk > 128 << 10) chunk /= 2;
    while ((double)(part / chunk) < hops * 16 / per && chunk > 32 << 10) chunk /= 2;
  }
  if (chunk > part) chunk = part;
  const size_t rounds = (chunk + round - 1) / round;
  *slots = NCCL_STEPS * (uint32_t)rounds;
  return (chunk + rounds - 1) / rounds;
}

/* Of NVLS and NVLSTree: `most`, or half of it until the message has as many chunks for each channel and rank as
 * `least`, and so on down to its last chunk. */
typedef struct nccl_halving {
  size_t chunk;
  int least;
} nccl_halving;
static size_t nccl_switch_chunk(const nccl_halving *h, uint64_t bytes, int channels, int ranks, size_t most) {
  size_t chunk = most;
  for (; h->least; h++)
    if (bytes < (uint64_t)h->least * (uint64_t)channels * (uint64_t)ranks * chunk && chunk > h->chunk) chunk = h->chunk;
  return chunk;
}

/* Sets the options of a run by one of its programs. On `channels` of NCCL's, 0: as many as on a machine with a NIC a
 * GPU; in chunks of `most`, 0: its default. */
static void nccl_take(hk_sim_options *o, hk_simulator *x, uint64_t bytes, int channels, size_t most) {
  static const nccl_halving nvls[] = {{64 << 10, 64}, {32 << 10, 8}, {16 << 10, 2}, {0, 0}};
  static const nccl_halving nvlstree[] = {{256 << 10, 32}, {128 << 10, 16}, {64 << 10, 4}, {32 << 10, 1}, {0, 0}};
  const int per = x->machine.team.ranks_per_host, sm = x->c->kinds[0]->nodes[x->placements[0].node].gpu.sm;
  const size_t switched = most ? most : 128 << 10;
  if (!strcmp(o->algorithm, "nccltree")) {
    channels = channels ? channels : 16;
    o->channels = channels / NCCL_TREES;
    o->chunk = nccl_tree_chunk(x, bytes, o->protocol, channels, most ? most : 512 << 10, &x->machine.nslots);
    o->block_part = o->protocol == HK_PROTO_SIMPLE ? NCCL_PART_SIMPLE : NCCL_PART_LINES;
  } else if (!strcmp(o->algorithm, "ncclnvlstree")) {
    channels = sm >= 100 ? 32 : 16;
    o->channels = channels / NCCL_TREES;
    o->chunk = nccl_switch_chunk(nvlstree, bytes, channels, per, switched);
    o->block_part = NCCL_PART_NVLS;
  } else if (!strcmp(o->algorithm, "nvls")) {
    o->channels = sm >= 100 ? 24 : 16;
    o->chunk = nccl_switch_chunk(nvls, bytes, o->channels, per, switched);
    o->block_part = NCCL_PART_NVLS;
  } else {
    o->channels = channels;
  }
}
