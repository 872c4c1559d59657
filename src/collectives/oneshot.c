/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-shot over multicast: every rank writes its input once to memory that all others read (shared memory), and each
 * rank makes its whole result from that. n ranks, S bytes: one step; a rank writes S bytes (allgather: S / n) and reads
 * those of all others. For allreduce a rank reads n S bytes, so this is for small messages; broadcast and allgather
 * read no more than necessary.
 *
 * Allreduce adds in the order of ranks on all ranks, so all get the same bits. Its sends are copies: in place, the next
 * instruction overwrites what was sent, and no rank waits until the others have read it.
 */
#include "cost.h"
#include "gpu.h"
#include "mesh.h"

enum {
  INLINE_BYTES = 32,       /* bytes that a slot's header can carry */
  CACHED_BYTES = 512 << 10 /* for messages up to this size, the slots of all ranks fit into half of the caches */
};
/* Adding up all slots is one pass. While the caches hold them, most of the work for a byte overlaps with that for the
 * next. This part of the work is hidden, less for larger messages. Fitted to sweeps of `hocket tune` on 2, 4 and 8
 * ranks. */
#define HIDDEN 0.7

static void oneshot_build_allreduce(hk_builder *b, const hk_build *w) {
  hk_build_scratch(b, hk_mesh_scratch(w->nranks));
  hk_build_lane(b);
  hk_build_move(b, HK_INSTR_COPY, (hk_operand[]){hk_mcast(b, 0, 0)}, 1, (hk_operand[]){hk_in(0, 0)}, 1);
  hk_mesh_reduce(b, w, (hk_operand[]){hk_out(0, 0)}, 1, HK_LINK_MCAST_RECV, 0, hk_in(0, 0));
}

static void oneshot_build_broadcast(hk_builder *b, const hk_build *w) {
  hk_build_lane(b);
  if (w->rank == w->root)
    hk_build_move(b, 0, (hk_operand[]){hk_mcast(b, 0, 0), hk_out(0, 0)}, 2, (hk_operand[]){hk_in(0, 0)}, 1);
  else
    hk_build_copy(b, hk_out(0, 0), hk_mcast_from(b, w->root, 0, 0));
}

/* Writing has a lane of its own, because it may be several waves ahead of the slowest reader. */
void hk_build_oneshot_allgather(hk_builder *b, const hk_build *w) {
  unsigned mine = (unsigned)w->rank, before = (unsigned)hk_shift(w->rank, -1, w->nranks);
  hk_build_lane(b);
  hk_build_move(b, 0, (hk_operand[]){hk_mcast(b, mine, 0), hk_out(mine, 0)}, 2, (hk_operand[]){hk_in(0, 0)}, 1);
  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_build_repeat(b, (unsigned)w->nranks - 1);
  hk_build_copy(b, hk_out(before, -1), hk_mesh_walk(b, w, HK_LINK_MCAST_RECV, before, -1));
  hk_build_end_repeat(b);
}

static void oneshot_build(hk_builder *b, const hk_build *w) {
  switch (w->coll) {
    case HK_ALLREDUCE: oneshot_build_allreduce(b, w); return;
    case HK_BROADCAST: oneshot_build_broadcast(b, w); return;
    default: hk_build_oneshot_allgather(b, w); return;
  }
}

static const char *oneshot_cannot(const hk_machine *m, hk_coll coll) {
  (void)coll;
  return m->multicast ? NULL : "needs multicast, memory that all ranks share";
}

static hk_shape oneshot_shape(const hk_machine *m, hk_coll coll) {
  if (coll != HK_ALLREDUCE) return (hk_shape){.fan = 1, .depth = 1, .switched = true};
  return (hk_shape){.fan = 1, .depth = 1, .scratch = hk_mesh_scratch(m->nranks), .switched = true};
}

/* GPUs: a switch makes the copies; each rank receives those of all ranks. */
static void oneshot_describe_lanes(const hk_machine *m, hk_coll coll, double block, hk_work *w) {
  double n = m->nranks, senders = coll == HK_BROADCAST ? 1 : n;
  w->received = senders * block / HK_GPU_IN_SWITCH;
  w->written = (coll == HK_ALLREDUCE ? 1 : senders) * block + senders * block;
  w->gpu.turns = coll == HK_ALLREDUCE ? 1 + hk_mesh_instrs(m->nranks) : coll == HK_BROADCAST ? 1 : n - 1;
  w->gpu.lane = w->gpu.turns * block;
  w->gpu.lanes = w->gpu.lane + block;
  /* reading begins when all data has arrived */
  w->gpu.after = coll == HK_ALLGATHER ? (n - 1) * block : w->gpu.lane / 2;
}

static double oneshot_cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double n = m->nranks, all = (double)bytes, block = coll == HK_ALLGATHER ? all / n : all;
  hk_work w = {.rounds = 1, .again = HK_AHEAD, .messages = n, .sent = block, .block = (size_t)block};
  /* A payload outside its slot's header: every reader reads one more place. If waves follow, copying hides it. */
  if (block > INLINE_BYTES && block <= (double)m->slot_bytes) w.messages++;
  switch (coll) {
    case HK_ALLREDUCE: /* one write, and a wave waits for the one before */
      w.again = 1;
      w.reduced = (n - 1) * all * (1 - HIDDEN / (1 + all / CACHED_BYTES));
      w.received = (n - 1) * all;
      w.written = 2 * all;
      break;
    case HK_BROADCAST: /* the root writes twice, a reader once */
      w.one_way = true;
      w.messages = 1;
      w.written = 2 * all;
      w.share = (n + 1) / (2 * n);
      break;
    default:
      w.received = (n - 1) * block;
      w.written = 2 * block + (n - 1) * block;
      break;
  }
  if (m->overlap) oneshot_describe_lanes(m, coll, block, &w);
  hk_shape s = oneshot_shape(m, coll);
  return hk_price(m, &s, &w);
}

const hk_algorithm hk_algorithm_oneshot = {
    .name = "oneshot",
    .about = "every rank writes once to memory that all others read; one step; needs multicast",
    .colls = 1u << HK_ALLREDUCE | 1u << HK_BROADCAST | 1u << HK_ALLGATHER | 1u << HK_ALLGATHERV,
    .fixed_order = 1u << HK_ALLREDUCE,
    .protocols = 1u << HK_PROTO_SIMPLE | 1u << HK_PROTO_LL, /* a switch need not keep LL128's lines whole */
    .cannot = oneshot_cannot,
    .cost = oneshot_cost,
    .shape = oneshot_shape,
    .build = oneshot_build,
};
