/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Direct: all ranks are connected with each other, and every block goes directly to its destination. n ranks, S bytes
 * (the larger buffer), blocks of S / n:
 *
 *   allreduce       two-shot: all send block p to rank p, which adds up and sends the sum to all: 2 steps,
 *                   2 S (n - 1) / n bytes sent (as with a ring), n - 1 links each way, twice
 *   reduce_scatter  1 step, S (n - 1) / n bytes sent
 *   allgather       1 step, S (n - 1) / n bytes sent
 *   broadcast       1 step, (n - 1) S bytes sent by the root
 *   reduce          1 step, S bytes sent; the root adds (n - 1) S
 *   gather, scatter 1 step, S / n bytes a message, n - 1 messages at the root
 *
 * (The "linear" algorithms of MPI libraries; the exchanges are those of Thakur, Rabenseifner, Gropp 2005, sections 4.1
 * and 4.3.) Sums are made in the order of ranks, and the sum of a block by one rank, so all get the same bits. Sending,
 * adding and collecting are lanes of their own, so that sends run ahead while they have free slots.
 */
#include "cost.h"
#include "mesh.h"

static unsigned direct_after(const hk_build *w) { return (unsigned)hk_shift(w->rank, 1, w->nranks); }
static unsigned direct_before(const hk_build *w) { return (unsigned)hk_shift(w->rank, -1, w->nranks); }

/* Sends block p of the input to rank p. */
static void direct_build_deal(hk_builder *b, const hk_build *w) {
  hk_build_lane(b);
  hk_build_repeat(b, (unsigned)w->nranks - 1);
  hk_build_copy(b, hk_mesh_walk(b, w, HK_LINK_SEND, direct_after(w), 1), hk_in(direct_after(w), 1));
  hk_build_end_repeat(b);
}

/* Receives block p of the output from rank p. */
static void direct_build_collect(hk_builder *b, const hk_build *w, unsigned channel) {
  hk_build_lane(b);
  hk_build_channel(b, channel);
  hk_build_repeat(b, (unsigned)w->nranks - 1);
  hk_build_copy(b, hk_out(direct_before(w), -1), hk_mesh_walk(b, w, HK_LINK_RECV, direct_before(w), -1));
  hk_build_end_repeat(b);
}

static void direct_build_allreduce(hk_builder *b, const hk_build *w) {
  unsigned mine = (unsigned)w->rank;
  hk_operand to[HK_MESH_FAN] = {hk_out(mine, 0)}, sum = hk_out(mine, 0);
  hk_build_split(b, (unsigned)w->nranks);
  hk_build_scratch(b, hk_mesh_scratch(w->nranks));
  direct_build_deal(b, w);

  hk_build_lane(b);
  hk_build_channel(b, 1);
  int j = 1;
  unsigned k = 1;
  for (; j < w->nranks && k < HK_MESH_FAN; j++) to[k++] = hk_send_to(b, hk_shift(w->rank, j, w->nranks), mine, 0);
  hk_build_channel(b, 0);
  hk_mesh_reduce(b, w, to, k, HK_LINK_RECV, mine, hk_in(mine, 0));
  hk_build_channel(b, 1);
  while (j < w->nranks) {
    for (k = 0; j < w->nranks && k < HK_MESH_FAN; j++)
      to[k++] = hk_send_to(b, hk_shift(w->rank, j, w->nranks), mine, 0);
    hk_build_move(b, 0, to, k, &sum, 1);
  }

  direct_build_collect(b, w, 1);
}

static void direct_build_allgather(hk_builder *b, const hk_build *w) {
  hk_operand own = hk_out((unsigned)w->rank, 0);
  hk_build_lane(b);
  hk_mesh_send_all(b, w, 0, (unsigned)w->rank, hk_in(0, 0), &own);
  direct_build_collect(b, w, 0);
}

static void direct_build_reduce_scatter(hk_builder *b, const hk_build *w) {
  unsigned mine = (unsigned)w->rank;
  hk_build_scratch(b, hk_mesh_scratch(w->nranks));
  direct_build_deal(b, w);
  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_mesh_reduce(b, w, (hk_operand[]){hk_out(0, 0)}, 1, HK_LINK_RECV, mine, hk_in(mine, 0));
}

static void direct_build_root_sends(hk_builder *b, const hk_build *w) {
  hk_operand own = hk_out(0, 0);
  hk_build_lane(b);
  if (w->rank != w->root) {
    hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, w->root, w->coll == HK_SCATTER ? (unsigned)w->rank : 0, 0));
  } else if (w->coll == HK_BROADCAST) {
    hk_mesh_send_all(b, w, 0, 0, hk_in(0, 0), &own);
  } else {
    hk_build_repeat(b, (unsigned)w->nranks - 1);
    hk_build_copy(b, hk_mesh_walk(b, w, HK_LINK_SEND, direct_after(w), 1), hk_in(direct_after(w), 1));
    hk_build_end_repeat(b);
    hk_build_copy(b, hk_out(0, 0), hk_in((unsigned)w->rank, 0));
  }
}

static void direct_build_root_receives(hk_builder *b, const hk_build *w) {
  unsigned block = w->coll == HK_GATHER ? (unsigned)w->rank : 0;
  if (w->coll == HK_REDUCE && w->rank == w->root) hk_build_scratch(b, hk_mesh_scratch(w->nranks));
  hk_build_lane(b);
  if (w->rank != w->root) {
    hk_build_copy(b, hk_send_to(b, w->root, block, 0), hk_in(0, 0));
  } else if (w->coll == HK_REDUCE) {
    hk_mesh_reduce(b, w, (hk_operand[]){hk_out(0, 0)}, 1, HK_LINK_RECV, 0, hk_in(0, 0));
  } else {
    hk_build_copy(b, hk_out(block, 0), hk_in(0, 0));
    hk_build_repeat(b, (unsigned)w->nranks - 1);
    hk_build_copy(b, hk_out(direct_before(w), -1), hk_mesh_walk(b, w, HK_LINK_RECV, direct_before(w), -1));
    hk_build_end_repeat(b);
  }
}

static void direct_build(hk_builder *b, const hk_build *w) {
  switch (w->coll) {
    case HK_ALLREDUCE: direct_build_allreduce(b, w); return;
    case HK_ALLGATHER: direct_build_allgather(b, w); return;
    case HK_REDUCE_SCATTER: direct_build_reduce_scatter(b, w); return;
    case HK_BROADCAST:
    case HK_SCATTER: direct_build_root_sends(b, w); return;
    default: direct_build_root_receives(b, w); return;
  }
}

static hk_shape direct_shape(const hk_machine *m, hk_coll coll) {
  bool adds = coll == HK_ALLREDUCE || coll == HK_REDUCE || coll == HK_REDUCE_SCATTER;
  unsigned others = (unsigned)m->nranks - 1, fan = others;
  if (coll == HK_ALLREDUCE) fan = 2 * others;
  if (coll == HK_REDUCE || coll == HK_GATHER) fan = 1;
  return (hk_shape){.fan = fan, .depth = 1, .scratch = adds ? hk_mesh_scratch(m->nranks) : 0, .refers = !adds};
}

/* GPUs: one lane sends, one adds, one collects. */
static void direct_describe_lanes(const hk_machine *m, hk_coll coll, double all, hk_work *w) {
  double n = m->nranks, others = n - 1, block = all / n, instrs = hk_mesh_instrs(m->nranks);
  bool reads = coll == HK_ALLREDUCE || coll == HK_REDUCE_SCATTER;
  double lane = others * block, turns = others;
  w->gpu.all_turns = (coll == HK_ALLREDUCE ? 2 : 1) * others + instrs;
  w->gpu.lanes = (coll == HK_ALLREDUCE ? 2 : 1) * lane + instrs * block;
  if (coll == HK_BROADCAST || coll == HK_REDUCE) {
    turns = instrs;
    lane = instrs * all;
    w->gpu.all_turns = instrs + 1;
    w->gpu.lanes = lane + all;
  }
  switch (coll) {
    case HK_ALLREDUCE: w->gpu.traffic = HK_TRAFFIC_BOTH; break;
    case HK_REDUCE_SCATTER: w->gpu.traffic = HK_TRAFFIC_TURNS; break;
    case HK_ALLGATHER: w->gpu.traffic = HK_TRAFFIC_ALL; break;
    case HK_SCATTER: w->gpu.traffic = HK_TRAFFIC_DEAL; break;
    default: w->gpu.traffic = HK_TRAFFIC_ROOT; break;
  }
  w->gpu.after = coll == HK_ALLGATHER ? lane : 0;
  w->gpu.turns = turns;
  w->gpu.lane = lane;
  if (!reads && coll != HK_ALLGATHER)
    w->gpu.out_one = (n - m->ranks_per_host) * (turns < others ? all : block); /* the root's */
}

static double direct_cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double n = m->nranks, others = n - 1, all = (double)bytes, block = all / n;
  /* The work for messages at a root: one read of a socket may return several messages. */
  double taken = m->nhosts > 1 || m->inside.ring_us_per_b > 0 ? others / 2 : others;
  hk_work w = {.rounds = 1, .again = HK_AHEAD, .messages = 2 * others, .sent = others * block, .block = (size_t)block};
  switch (coll) {
    case HK_ALLREDUCE:
      w.rounds = 2;
      w.again = 2 * HK_AHEAD;
      w.messages = 4 * others;
      w.sent = 2 * others * block;
      w.written = (3 * others + 1) * block;
      w.reduced = others * block;
      break;
    case HK_REDUCE_SCATTER:
      w.written = n * block;
      w.reduced = others * block;
      break;
    case HK_ALLGATHER: w.written = (others + n) * block; break;
    case HK_BROADCAST:
      w.one_way = true;
      w.messages = others;
      w.sent = others * all;
      w.written = n * all;
      w.share = (n + others) / (n * n);
      w.block = bytes;
      break;
    case HK_REDUCE:
      w.one_way = true;
      w.messages = taken;
      w.sent = all;
      w.received = others * all;
      w.written = all;
      w.reduced = others * all;
      w.share = (n + others) / (n * n);
      w.links = others;
      w.block = bytes;
      break;
    default: /* gather, scatter: the root's part */
      w.one_way = true;
      w.messages = coll == HK_GATHER ? taken : others;
      w.written = n * block;
      w.share = (n + others) / (n * n);
      w.links = others;
      break;
  }
  if (m->overlap) direct_describe_lanes(m, coll, all, &w);
  hk_shape s = direct_shape(m, coll);
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_direct = {
    .name = "direct",
    .about = "every block directly to its destination; one step or two, links to all ranks",
    .colls = 1u << HK_ALLREDUCE | 1u << HK_ALLGATHER | 1u << HK_REDUCE_SCATTER | 1u << HK_BROADCAST | 1u << HK_REDUCE |
             1u << HK_GATHER | 1u << HK_SCATTER | 1u << HK_ALLGATHERV | 1u << HK_REDUCE_SCATTERV,
    .fixed_order = 1u << HK_ALLREDUCE | 1u << HK_REDUCE_SCATTER | 1u << HK_REDUCE,
    .cost = direct_cost,
    .shape = direct_shape,
    .build = direct_build,
};
