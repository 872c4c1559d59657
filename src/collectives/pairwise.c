/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Pairwise alltoall: in step j rank r sends to r + j and receives from r - j, so that in each step every rank sends one
 * message and receives one (Thakur, Rabenseifner, Gropp 2005, section 4.4). n ranks, S bytes a buffer: n - 1 steps that
 * need not wait for one another, S (n - 1) / n bytes sent, the least possible. Sends and receives are lanes of their
 * own.
 */
#include "mesh.h"

static void pairwise_build(hk_builder *b, const hk_build *w) {
  unsigned mine = (unsigned)w->rank, after = (unsigned)hk_shift(w->rank, 1, w->nranks);
  hk_build_lane(b);
  hk_build_repeat(b, (unsigned)w->nranks - 1);
  hk_build_copy(b, hk_mesh_walk(b, w, HK_LINK_SEND, mine, 0), hk_in(after, 1));
  hk_build_end_repeat(b);
  hk_build_copy(b, hk_out(mine, 0), hk_in(mine, 0));

  hk_build_lane(b);
  hk_build_channel(b, 0);
  hk_mesh_collect(b, w, HK_LINK_RECV);
}

const hk_algorithm hk_algorithm_pairwise = {
    .name = "pairwise",
    .about = "step j: send to rank + j, receive from rank - j; fewest bytes",
    .build = {[HK_ALLTOALL] = pairwise_build, [HK_ALLTOALLV] = pairwise_build},
};
