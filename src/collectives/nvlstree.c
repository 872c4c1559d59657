/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Hierarchical allreduce through switches, trees across: hiertree's (two binary trees between equal local ranks of all
 * hosts), with the sums and copies inside each host made by its switch. H hosts of L ranks, S bytes:
 *
 *   inside   2 steps, S (L + 1) / L bytes sent and received by a rank
 *   between  2 ceil(log2 H) steps and one for each wave, 2 S bytes leave the busiest host
 */
#include "hosts.h"

static void nvlstree_build(hk_builder *b, const hk_build *w) { hk_build_hiertree(b, w, true); }

static const char *nvlstree_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  return hk_hier_switch_cannot(team);
}

const hk_algorithm hk_algorithm_nvlstree = {
    .name = "nvlstree",
    .about = "sums and copies inside hosts made by their switches, two binary trees between hosts; needs NVLS",
    .protocols = 1u << HK_PROTO_SIMPLE, /* a switch reduces data, not lines with flags in them */
    .cannot = nvlstree_cannot,
    .build = {[HK_ALLREDUCE] = nvlstree_build},
};
