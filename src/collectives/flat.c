/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One-shot allreduce over plain links: every rank sends its whole input to every other one. n ranks, S bytes: one step,
 * but (n - 1) S bytes sent and as many added, so this is for the smallest messages. (Each rank's part is the "flat" or
 * "linear" algorithm of Open MPI's tuned collectives.)
 *
 * All ranks add in the order of ranks and get the same bits.
 */
#include "mesh.h"

static void flat_build(hk_builder *b, const hk_build *w) { hk_mesh_one_shot(b, w, HK_LINK_RECV); }

const hk_algorithm hk_algorithm_flat = {
    .name = "flat",
    .about = "every rank sends its whole input to every other one; one step, most bytes",
    .fixed_order = 1u << HK_ALLREDUCE,
    .build = {[HK_ALLREDUCE] = flat_build},
};
