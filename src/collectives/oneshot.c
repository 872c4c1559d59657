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
#include "mesh.h"

static void oneshot_build_allreduce(hk_builder *b, const hk_build *w) {
  hk_build_scratch(b, hk_mesh_scratch(b, w));
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
  unsigned mine = (unsigned)w->rank;
  hk_build_lane(b);
  hk_build_move(b, 0, (hk_operand[]){hk_mcast(b, mine, 0), hk_out(mine, 0)}, 2, (hk_operand[]){hk_in(0, 0)}, 1);
  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_mesh_collect(b, w, HK_LINK_MCAST_RECV);
}

static void oneshot_build(hk_builder *b, const hk_build *w) {
  switch (w->coll) {
    case HK_ALLREDUCE: oneshot_build_allreduce(b, w); return;
    case HK_BROADCAST: oneshot_build_broadcast(b, w); return;
    default: hk_build_oneshot_allgather(b, w); return;
  }
}

static const char *oneshot_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  return team->multicast ? NULL : "needs multicast, memory that all ranks share";
}

const hk_algorithm hk_algorithm_oneshot = {
    .name = "oneshot",
    .about = "every rank writes once to memory that all others read; one step; needs multicast",
    .colls = 1u << HK_ALLREDUCE | 1u << HK_BROADCAST | 1u << HK_ALLGATHER | 1u << HK_ALLGATHERV,
    .fixed_order = 1u << HK_ALLREDUCE,
    .protocols = 1u << HK_PROTO_SIMPLE | 1u << HK_PROTO_LL, /* a switch need not keep LL128's lines whole */
    .cannot = oneshot_cannot,
    .build = oneshot_build,
};
