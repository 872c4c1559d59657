/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Two-shot allreduce over multicast: rank p gets block p of all ranks, adds up, and writes the sum once to memory that
 * all others read. n ranks, S bytes: two steps. A rank writes S (n - 1) / n bytes into slots for others, reduces as
 * many, writes S / n of sums twice (slot and output) and copies S (n - 1) / n out. Apart from the multicast, this is
 * Rabenseifner's reduce-scatter and allgather with the direct exchange of Thakur, Rabenseifner, Gropp 2005 in place of
 * halving.
 *
 * Three lanes (send, add, collect) let the sends run ahead while they have free slots: if ranks share a core, each turn
 * on the core then does several waves. A block is added up by one rank, so all get the same bits.
 */
#include "mesh.h"

static void twoshot_build(hk_builder *b, const hk_build *w) { hk_mesh_two_shot(b, w, HK_LINK_MCAST_RECV); }

static const char *twoshot_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  if (team->overlap) return "is for ranks that share memory: on GPUs nvls does it in a switch";
  return team->multicast ? NULL : "needs multicast, memory that all ranks share";
}

const hk_algorithm hk_algorithm_twoshot = {
    .name = "twoshot",
    .about =
        "each rank adds up one block and writes it once to memory that all others read; two steps; needs multicast",
    .fixed_order = 1u << HK_ALLREDUCE,
    .cannot = twoshot_cannot,
    .build = {[HK_ALLREDUCE] = twoshot_build},
};
