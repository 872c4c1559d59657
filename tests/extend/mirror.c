/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The algorithm of the collective that only tests/suites/extend.sh adds: every rank sends its message to every other
 * one. One step, S (n - 1) / n bytes sent.
 */
#include "../program/builder.h"
#include "algorithm.h"
#include "pattern.h"

static void build(hk_builder *b, const hk_build *w) {
  int n = w->nranks, r = w->rank;
  unsigned mine = (unsigned)(n - 1 - r);
  hk_build_lane(b);
  hk_build_copy(b, hk_out(mine, 0), hk_in(0, 0));
  for (int d = 1; d < n; d++) hk_build_copy(b, hk_send_to(b, hk_shift(r, d, n), mine, 0), hk_in(0, 0));
  for (int d = 1; d < n; d++) {
    int from = hk_shift(r, -d, n);
    unsigned block = (unsigned)(n - 1 - from);
    hk_build_copy(b, hk_out(block, 0), hk_recv_from(b, from, block, 0));
  }
}

const hk_algorithm hk_algorithm_mirror = {
    .name = "mirror",
    .about = "every message directly to all other ranks",
    .build = {[HK_MIRROR_GATHER] = build},
};
