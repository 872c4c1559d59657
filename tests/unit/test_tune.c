/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* The constants that `hocket tune` makes of times. The times here are the model's prices with other constants. */
#include "../../src/decide/constants.h"
#include "../../src/tools/tune/tune.h"
#include "../support/outlines.h"
#include "../support/suite.h"

enum { CELLS = 4096, FIRST = 64, LAST = 1 << 20, STEP = 4 };

/* Prices of the model with these constants as times. */
static void make(hk_tune_table *t, int nranks, int nhosts, bool tcp, unsigned colls, const hk_constants *k) {
  hk_host_facts f = {.team.nranks = nranks,
                     .team.nhosts = nhosts,
                     .team.ranks_per_host = nranks / nhosts,
                     .team.least_per_host = nranks / nhosts,
                     .cores_per_host = 2,
                     .memory = !tcp,
                     .team.multicast = !tcp && nhosts == 1,
                     .slot_bytes = 131072};
  *t = (hk_tune_table){.setup = {.nranks = nranks, .tcp = tcp, .colls = colls, .to = LAST, .step = STEP},
                       .machine = hk_machine_of_hosts(&f, k)};
  uint64_t host[64] = {0};
  for (int r = 0; r < nranks; r++) host[r] = (uint64_t)(r * nhosts / nranks);
  if (nhosts > 1) ck_assert_int_eq(hk_layout_new(&t->layout, nranks, host, NULL, NULL, 1), HK_OK);
  ck_assert_int_eq(hk_outlines_new(&t->machine.outlines, nranks, t->layout, 8), HK_OK);
  t->at = calloc(CELLS, sizeof *t->at);
  for (int c = 0; c < HK_COLL_COUNT; c++)
    for (size_t bytes = FIRST; colls >> c & 1u && bytes <= LAST; bytes *= STEP)
      for (int a = 0; hk_algorithms[a]; a++) {
        if (!hk_algorithm_supports(hk_algorithms[a], &t->machine.team, (hk_coll)c)) continue;
        ck_assert_int_lt(t->n, CELLS);
        t->at[t->n++] = (hk_tune_cell){.coll = (uint8_t)c,
                                       .algorithm = (uint8_t)a,
                                       .bytes = bytes,
                                       .us = price_of(hk_algorithms[a], &t->machine, (hk_coll)c, bytes)};
      }
}

/* The average of |ln(price / time)|. */
static double error_of(const hk_tune_table *t, int n, const hk_constants *k) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0};
    for (; hk_tune_next(&t[i], k, &g); count += g.n) sum += g.error;
  }
  return sum / count;
}

TEST(fits_constants) {
  hk_tune_table t[2];
  hk_constants k = hk_constants_default;
  k.tcp_message_us *= 2;
  k.tcp_us_per_b *= 3;
  k.switch_us *= 2;
  make(&t[0], 2, 1, true, 1u << HK_ALLREDUCE | 1u << HK_BROADCAST, &k);
  make(&t[1], 4, 1, true, 1u << HK_ALLREDUCE | 1u << HK_BROADCAST, &k);
  hk_constants found = hk_tune_fit(t, 2, &hk_constants_default);
  ck_assert_double_gt(error_of(t, 2, &hk_constants_default), 0.3);
  ck_assert_double_lt(error_of(t, 2, &found), 0.05);
  ck_assert_double_eq(found.memory_alpha_us, k.memory_alpha_us); /* no row depends on it */
  hk_tune_group g = {.n = 0};
  while (hk_tune_next(&t[0], &k, &g)) ck_assert_int_eq(g.chosen, g.best);
  for (int i = 0; i < 2; i++) hk_tune_table_clear(&t[i]);
}

/* Several hosts: what a message and a byte between them take, and nothing else. */
TEST(fits_between) {
  hk_tune_table t = {.n = 0};
  hk_constants k = hk_constants_default;
  k.net_alpha_us *= 3;
  k.net_us_per_b *= 5;
  make(&t, 2, 2, false, 1u << HK_ALLREDUCE | 1u << HK_ALLGATHER, &k);
  hk_constants found = hk_tune_fit(&t, 1, &hk_constants_default);
  ck_assert_double_gt(error_of(&t, 1, &hk_constants_default), 0.3);
  ck_assert_double_lt(error_of(&t, 1, &found), 0.05);
  ck_assert(found.net_measured);
  found.net_measured = 0;
  found.net_alpha_us = hk_constants_default.net_alpha_us;
  found.net_us_per_b = hk_constants_default.net_us_per_b;
  found.net_message_us = hk_constants_default.net_message_us;
  ck_assert_mem_eq(&found, &hk_constants_default, sizeof found);
  hk_tune_table_clear(&t);
}

int main(void) { return suite_main("tune", .timeout = 60); }
