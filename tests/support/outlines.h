/* SPDX-License-Identifier: Apache-2.0 */
/* Outlines for machines that a test describes by numbers, without a communicator or a simulator. */
#ifndef SUPPORT_OUTLINES_H
#define SUPPORT_OUTLINES_H
#include "../../src/collectives/algorithm.h"
#include "../../src/decide/cost.h"
#include "../../src/decide/select.h"
#include "../../src/program/layout.h"
#include "suite.h"

/* The machine with outlines of ranks that stand host after host, the last host with the fewest. They are kept until the
 * process ends, so machines with equal numbers share them. */
static inline hk_machine with_outlines(hk_machine m) {
  enum { KEPT = 1024 };
  static struct {
    int nranks, nhosts, per;
    hk_outlines *outlines;
  } kept[KEPT];
  int k = 0;
  for (; k < KEPT && kept[k].outlines; k++)
    if (kept[k].nranks == m.team.nranks && kept[k].nhosts == m.team.nhosts && kept[k].per == m.team.ranks_per_host)
      break;
  ck_assert_int_lt(k, KEPT);
  if (!kept[k].outlines) {
    hk_layout *l = NULL;
    uint64_t *host = calloc((size_t)m.team.nranks, sizeof *host);
    for (int r = 0; r < m.team.nranks; r++) host[r] = (uint64_t)(r / m.team.ranks_per_host);
    if (m.team.nhosts > 1) ck_assert_int_eq(hk_layout_new(&l, m.team.nranks, host, NULL, NULL, 1), HK_OK);
    free(host);
    kept[k].nranks = m.team.nranks;
    kept[k].nhosts = m.team.nhosts;
    kept[k].per = m.team.ranks_per_host;
    ck_assert_int_eq(hk_outlines_new(&kept[k].outlines, m.team.nranks, l, 8), HK_OK);
  }
  m.outlines = kept[k].outlines;
  return m;
}

static inline double price_of(const hk_algorithm *a, const hk_machine *m, hk_coll coll, size_t bytes) {
  double us;
  ck_assert_msg(hk_algorithm_price(m, a, coll, bytes, &us) == HK_OK, "%s", hk_last_error());
  return us;
}

static inline size_t chunk_of(const hk_algorithm *a, const hk_machine *m, hk_coll coll, size_t block) {
  size_t chunk;
  ck_assert_msg(hk_choose_chunk(m, a, coll, block, &chunk) == HK_OK, "%s", hk_last_error());
  return chunk;
}
#endif
