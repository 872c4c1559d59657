/* SPDX-License-Identifier: Apache-2.0 */
/**
 * An algorithm that only tests/suites/extend.sh adds: allreduce along a ring on which data goes to the rank before. As
 * many steps and bytes as the ring: 2 (n - 1) steps, 2 S (n - 1) / n bytes sent.
 */
#include "algorithm.h"
#include "pattern.h"

static void build(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank, next = hk_shift(r, -1, n), prev = hk_shift(r, 1, n);
  unsigned mine = (unsigned)r, first = (unsigned)prev, summed = (unsigned)next, last = (unsigned)hk_shift(r, -2, n);
  hk_build_split(b, (unsigned)n);
  hk_build_lane(b);
  hk_build_copy(b, hk_send_to(b, next, mine, 0), hk_in(mine, 0));
  hk_build_repeat(b, (unsigned)n - 2);
  hk_build_move(b, 0, (hk_operand[]){hk_send_to(b, next, first, 1)}, 1,
                (hk_operand[]){hk_recv_from(b, prev, first, 1), hk_in(first, 1)}, 2);
  hk_build_end_repeat(b);
  hk_build_move(b, HK_INSTR_FINAL, (hk_operand[]){hk_out(summed, 0), hk_send_to(b, next, summed, 0)}, 2,
                (hk_operand[]){hk_recv_from(b, prev, summed, 0), hk_in(summed, 0)}, 2);
  hk_build_repeat(b, (unsigned)n - 2);
  hk_build_move(b, 0, (hk_operand[]){hk_out(mine, 1), hk_send_to(b, next, mine, 1)}, 2,
                (hk_operand[]){hk_recv_from(b, prev, mine, 1)}, 1);
  hk_build_end_repeat(b);
  hk_build_copy(b, hk_out(last, 0), hk_recv_from(b, prev, last, 0));
}

const hk_algorithm hk_algorithm_backring = {
    .name = "backring",
    .about = "each rank receives from the one after and sends to the one before",
    .colls = 1u << HK_ALLREDUCE,
    .build = build,
};
