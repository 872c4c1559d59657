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

static void oneshot_build_allreduce(hk_builder *b, const hk_build *w) { hk_mesh_one_shot(b, w, HK_LINK_MCAST_RECV); }
static void oneshot_build_broadcast(hk_builder *b, const hk_build *w) { hk_mesh_broadcast(b, w, HK_LINK_MCAST_RECV); }
static void oneshot_build_allgather(hk_builder *b, const hk_build *w) { hk_mesh_allgather(b, w, HK_LINK_MCAST_RECV); }

static const char *oneshot_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  return team->multicast ? NULL : "needs multicast, memory that all ranks share";
}

const hk_algorithm hk_algorithm_oneshot = {
    .name = "oneshot",
    .about = "every rank writes once to memory that all others read; one step; needs multicast",
    .fixed_order = 1u << HK_ALLREDUCE,
    .protocols = 1u << HK_PROTO_SIMPLE | 1u << HK_PROTO_LL, /* a switch need not keep LL128's lines whole */
    .cannot = oneshot_cannot,
    .build = {[HK_ALLREDUCE] = oneshot_build_allreduce,
              [HK_BROADCAST] = oneshot_build_broadcast,
              [HK_ALLGATHER] = oneshot_build_allgather,
              [HK_ALLGATHERV] = oneshot_build_allgather},
};
