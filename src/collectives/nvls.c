/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Through a switch that reduces and copies (NVLS: multimem loads and stores). n ranks, S bytes (the larger buffer):
 *
 *   allreduce       twoshot's program: rank p gets block p, adds up, and writes the sum to memory that all others read.
 *                   But what rank p gets from all others is one stream, which the switch has summed up. Two steps;
 *                   S (n + 1) / n bytes sent by a rank and S (n + 1) / n received; a ring has 2 S (n - 1) / n
 *   reduce_scatter  its first half: S bytes sent, S / n received
 *   allgather       its second half: S / n bytes sent, S received
 *
 * Allreduce on several hosts: hier's, with the sums and copies inside each host made by its switch. H hosts of L ranks:
 * S (L + 1) / L bytes sent and received inside by a rank; between hosts a ring, 2 (H - 1) steps, 2 S (H - 1) / H bytes
 * leave a host.
 *
 * (Klenk, Jiang, Thorson, Dennison 2020: "An in-network architecture for accelerating shared-memory multiprocessor
 * collectives".)
 */
#include "hosts.h"
#include "mesh.h"

static const char *nvls_cannot(const hk_team *team, hk_coll coll) {
  const char *why = hk_mesh_switch_cannot(team, team->ranks_per_host);
  if (why || team->nhosts == 1) return why;
  return coll == HK_ALLREDUCE ? hk_hier_switch_cannot(team) : "is for ranks on one switch";
}

static void nvls_build_allreduce(hk_builder *b, const hk_build *w) {
  if (hk_layout_hosts(w->layout) > 1) {
    hk_build_hier(b, w, true);
    return;
  }
  hk_build_in_switch(b, true);
  hk_mesh_two_shot(b, w, HK_LINK_MCAST_RECV);
}

static void nvls_build_reduce_scatter(hk_builder *b, const hk_build *w) {
  hk_build_in_switch(b, true);
  hk_mesh_reduce_scatter(b, w);
}

static void nvls_build_allgather(hk_builder *b, const hk_build *w) {
  hk_build_in_switch(b, true);
  hk_mesh_allgather(b, w, HK_LINK_MCAST_RECV);
}

const hk_algorithm hk_algorithm_nvls = {
    .name = "nvls",
    .about = "sums and copies made by the switch, between hosts a ring; fewest bytes a rank; needs NVLS",
    .protocols = 1u << HK_PROTO_SIMPLE, /* a switch reduces data, not lines with flags in them */
    .cannot = nvls_cannot,
    .build = {[HK_ALLREDUCE] = nvls_build_allreduce,
              [HK_ALLGATHER] = nvls_build_allgather,
              [HK_ALLGATHERV] = nvls_build_allgather,
              [HK_REDUCE_SCATTER] = nvls_build_reduce_scatter,
              [HK_REDUCE_SCATTERV] = nvls_build_reduce_scatter},
};
