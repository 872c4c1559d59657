/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The algorithm of the collective that only tests/suites/extend.sh adds: every rank sends its message to every other
 * one. One step, S (n - 1) / n bytes sent.
 */
#include "cost.h"
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

static double cost(const hk_machine *m, hk_coll coll, size_t bytes) {
  double others = m->nranks - 1, block = (double)bytes / m->nranks;
  hk_work w = {.rounds = 1,
               .again = 1,
               .messages = 2 * others,
               .sent = others * block,
               .written = (2 * others + 1) * block,
               .block = (size_t)block};
  hk_shape all = {.fan = (unsigned)others, .depth = 1};
  (void)coll;
  return hk_price(m, &all, &w);
}

static hk_shape shape(const hk_machine *m, hk_coll coll) {
  (void)coll;
  return (hk_shape){.fan = (unsigned)m->nranks - 1, .depth = 1};
}

const hk_algorithm hk_algorithm_mirror = {
    .name = "mirror",
    .about = "every message directly to all other ranks",
    .colls = 1u << HK_MIRROR_GATHER,
    .cost = cost,
    .shape = shape,
    .build = build,
};
