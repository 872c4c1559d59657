/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What `hocket tune` makes of times: constants, and rules for where the model errs.  The times here are made up. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/tools/tune.h"
#include "../support/suite.h"

enum { CELLS = 4096, FIRST = 64, LAST = 1 << 20, STEP = 4 };

/* Prices of the model with these constants as times. */
static void make(hk_tune_table *t, int nranks, int nhosts, bool tcp, unsigned colls, const hk_constants *k) {
  hk_host_facts f = {.nranks = nranks,
                     .nhosts = nhosts,
                     .ranks_per_host = nranks / nhosts,
                     .least_per_host = nranks / nhosts,
                     .cores_per_host = 2,
                     .memory = !tcp,
                     .multicast = !tcp && nhosts == 1,
                     .slot_bytes = 131072};
  *t = (hk_tune_table){.setup = {.nranks = nranks, .tcp = tcp, .colls = colls, .from = FIRST, .to = LAST, .step = STEP},
                       .machine = hk_machine_of_hosts(&f, k)};
  t->at = calloc(CELLS, sizeof *t->at);
  for (int c = 0; c < HK_COLL_COUNT; c++)
    for (size_t bytes = FIRST; colls >> c & 1u && bytes <= LAST; bytes *= STEP)
      for (int a = 0; hk_algorithms[a]; a++) {
        if (!hk_algorithm_supports(hk_algorithms[a], &t->machine, (hk_coll)c)) continue;
        ck_assert_int_lt(t->n, CELLS);
        t->at[t->n++] = (hk_tune_cell){.coll = (uint8_t)c,
                                       .algorithm = (uint8_t)a,
                                       .bytes = bytes,
                                       .us = hk_algorithms[a]->cost(&t->machine, (hk_coll)c, bytes)};
      }
}

/* The group of a size, and another algorithm's cell in it than the model's choice. */
static hk_tune_cell *other_of(const hk_tune_table *t, size_t bytes, hk_tune_group *g) {
  *g = (hk_tune_group){.n = 0};
  while (hk_tune_next(t, &hk_constants_default, NULL, g))
    if (t->at[g->first].bytes == bytes) return &t->at[g->chosen == g->first ? g->first + 1 : g->first];
  ck_abort_msg("%zu bytes are not in the table", bytes);
}

/* As if the model's choice took `times` as long as the other algorithm `name`, which is the fastest. */
static void spoil(hk_tune_table *t, size_t bytes, int algorithm, double times) {
  hk_tune_group g;
  other_of(t, bytes, &g);
  double us = t->at[g.chosen].us;
  for (int c = g.first; c < g.first + g.n; c++)
    if (t->at[c].algorithm == algorithm)
      t->at[c].us = us / times;
    else if (t->at[c].us < us)
      t->at[c].us = us;
}

START_TEST(fits_constants) {
  hk_tune_table t[2];
  hk_constants k = hk_constants_default;
  k.tcp_message_us *= 2;
  k.tcp_us_per_b *= 3;
  k.switch_us *= 2;
  make(&t[0], 2, 1, true, 1u << HK_ALLREDUCE | 1u << HK_BROADCAST, &k);
  make(&t[1], 4, 1, true, 1u << HK_ALLREDUCE | 1u << HK_BROADCAST, &k);
  hk_constants found = hk_tune_fit(t, 2, &hk_constants_default);
  ck_assert_double_gt(hk_tune_error(t, 2, &hk_constants_default), 0.3);
  ck_assert_double_lt(hk_tune_error(t, 2, &found), 0.05);
  ck_assert_double_eq(found.memory_alpha_us, k.memory_alpha_us); /* nothing tells of it */
  hk_rules *choices;
  ck_assert_int_eq(hk_tune_choices(t, 2, &k, &choices), HK_OK);
  ck_assert_ptr_null(choices);
  for (int i = 0; i < 2; i++) hk_tune_table_clear(&t[i]);
}
END_TEST

/* Several hosts: what a message and a byte between them take, and nothing else. */
START_TEST(fits_between) {
  hk_tune_table t = {.n = 0};
  hk_constants k = hk_constants_default;
  k.net_alpha_us *= 3;
  k.net_us_per_b *= 5;
  make(&t, 2, 2, false, 1u << HK_ALLREDUCE | 1u << HK_ALLGATHER, &k);
  hk_constants found = hk_tune_fit(&t, 1, &hk_constants_default);
  ck_assert_double_gt(hk_tune_error(&t, 1, &hk_constants_default), 0.3);
  ck_assert_double_lt(hk_tune_error(&t, 1, &found), 0.05);
  found.net_alpha_us = hk_constants_default.net_alpha_us;
  found.net_us_per_b = hk_constants_default.net_us_per_b;
  found.net_message_us = hk_constants_default.net_message_us;
  ck_assert_mem_eq(&found, &hk_constants_default, sizeof found);
  hk_tune_table_clear(&t);
}
END_TEST

/* Little at one size is noise; much is not, nor is little at several in a row. */
START_TEST(rules_for_ranges) {
  static const struct {
    int sizes;
    double times;
    bool worth;
  } cases[] = {{1, 1.05, false}, {1, 1.2, true}, {2, 1.03, false}, {2, 1.06, true}, {3, 1.04, true}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    hk_tune_table t;
    hk_tune_group g;
    hk_rules *choices;
    make(&t, 4, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
    int other = other_of(&t, 1024, &g)->algorithm;
    size_t end = 1024;
    for (int n = 0; n < cases[i].sizes; n++, end *= STEP) spoil(&t, end, other, cases[i].times);
    ck_assert_int_eq(hk_tune_choices(&t, 1, &hk_constants_default, &choices), HK_OK);
    ck_assert_msg((choices ? choices->n : 0) == cases[i].worth, "%d sizes, %.2f times", cases[i].sizes, cases[i].times);
    if (!choices) {
      hk_tune_table_clear(&t);
      continue;
    }
    const hk_rule *r = &choices->at[0];
    ck_assert_int_eq(r->algorithm, other);
    ck_assert_int_eq(r->nranks, 4);
    ck_assert_int_eq(r->via, HK_VIA_SOCKETS);
    ck_assert_uint_eq(r->from, 513); /* halfway between two sizes */
    ck_assert_uint_eq(r->to, end / 2);
    g = (hk_tune_group){.n = 0};
    while (hk_tune_next(&t, &hk_constants_default, choices, &g)) ck_assert_int_eq(g.chosen, g.best);
    hk_rules_free(choices);
    hk_tune_table_clear(&t);
  }
}
END_TEST

/* One size where the new choice is no better does not end its range. */
START_TEST(rules_bridge_noise) {
  hk_tune_table t;
  hk_tune_group g;
  hk_rules *choices;
  make(&t, 8, 1, false, 1u << HK_REDUCE, &hk_constants_default);
  int other = other_of(&t, 4096, &g)->algorithm;
  spoil(&t, 1024, other, 1.3);
  spoil(&t, 4096, other, 0.98);
  spoil(&t, 16384, other, 1.3);
  ck_assert_int_eq(hk_tune_choices(&t, 1, &hk_constants_default, &choices), HK_OK);
  ck_assert_ptr_nonnull(choices);
  ck_assert_int_eq(choices->n, 1);
  ck_assert_uint_eq(choices->at[0].from, 513);
  ck_assert_uint_eq(choices->at[0].to, 32768);
  ck_assert_int_eq(choices->at[0].via, HK_VIA_MEMORY);
  hk_rules_free(choices);
  hk_tune_table_clear(&t);
}
END_TEST

int main(void) {
  Suite *s = suite_create("tune");
  TCase *t = tcase_create("tune");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, fits_constants);
  tcase_add_test(t, fits_between);
  tcase_add_test(t, rules_for_ranges);
  tcase_add_test(t, rules_bridge_noise);
  suite_add_tcase(s, t);
  return suite_run(s);
}
