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

void hk_build_twoshot(hk_builder *b, const hk_build *w) {
  int n = w->nranks;
  unsigned mine = (unsigned)w->rank;
  hk_build_split(b, (unsigned)n);
  hk_build_scratch(b, hk_mesh_scratch(b, w));
  hk_build_lane(b);
  hk_mesh_deal(b, w);

  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_mesh_reduce(b, w, (hk_operand[]){hk_mcast(b, mine, 0), hk_out(mine, 0)}, 2, HK_LINK_RECV, mine, hk_in(mine, 0));

  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_mesh_collect(b, w, HK_LINK_MCAST_RECV);
}

static const char *twoshot_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  if (team->overlap) return "is for ranks that share memory: on GPUs nvls does it in a switch";
  return team->multicast ? NULL : "needs multicast, memory that all ranks share";
}

const hk_algorithm hk_algorithm_twoshot = {
    .name = "twoshot",
    .about =
        "each rank adds up one block and writes it once to memory that all others read; two steps; needs multicast",
    .colls = 1u << HK_ALLREDUCE,
    .fixed_order = 1u << HK_ALLREDUCE,
    .cannot = twoshot_cannot,
    .build = hk_build_twoshot,
};
