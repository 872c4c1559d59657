/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What `hocket tune` makes of times: constants, rules for where the model errs, a second look, and times of
 * earlier runs.  The times here are made up. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../src/collectives/algorithm.h"
#include "../../src/decide/rules.h"
#include "../../src/tools/tune/tune.h"
#include "../support/outlines.h"
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
  uint64_t host[64] = {0};
  for (int r = 0; r < nranks; r++) host[r] = (uint64_t)(r * nhosts / nranks);
  if (nhosts > 1) ck_assert_int_eq(hk_layout_new(&t->layout, nranks, host, NULL, NULL, 1), HK_OK);
  ck_assert_int_eq(hk_outlines_new(&t->machine.outlines, nranks, t->layout), HK_OK);
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

TEST(fits_constants) {
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
  ck_assert_double_eq(found.memory_alpha_us, k.memory_alpha_us); /* no row depends on it */
  hk_rules *choices;
  ck_assert_int_eq(hk_tune_choices(t, 2, &k, &choices), HK_OK);
  ck_assert_ptr_null(choices);
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
  ck_assert_double_gt(hk_tune_error(&t, 1, &hk_constants_default), 0.3);
  ck_assert_double_lt(hk_tune_error(&t, 1, &found), 0.05);
  found.net_alpha_us = hk_constants_default.net_alpha_us;
  found.net_us_per_b = hk_constants_default.net_us_per_b;
  found.net_message_us = hk_constants_default.net_message_us;
  ck_assert_mem_eq(&found, &hk_constants_default, sizeof found);
  hk_tune_table_clear(&t);
}

/* Little at one size is noise; much is not, nor is little at several in a row. */
TEST(rules_for_ranges) {
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

/* One size where the new choice is no better does not end its range. */
TEST(rules_bridge_noise) {
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

/* Levels of rounds go away, and so does what is far off in one of them; one round is taken as it is. */
TEST(rounds_have_in_common) {
  double ln[3 * 4], out[4];
  for (int r = 0; r < 3; r++)
    for (int c = 0; c < 4; c++) ln[r * 4 + c] = c * 0.1 + r;
  ln[0 * 4 + 1] -= 2;
  ln[2 * 4 + 3] += 2;
  hk_tune_polish(ln, 3, 4, out);
  for (int c = 0; c < 4; c++) ck_assert_double_eq_tol(out[c], c * 0.1 + 1, 1e-3);
  double one[] = {3, 1, 2};
  hk_tune_polish(one, 1, 3, out);
  ck_assert_double_eq_tol(out[0], 3, 1e-12);
  ck_assert_double_eq_tol(out[1], 1, 1e-12);
  ck_assert_double_eq_tol(out[2], 2, 1e-12);
}

/* ---- a second look ---- */

/* What measuring finds: true times are the model's prices with the built-in constants, off by a factor of each pass. */
static double off_by[8];
static int passes, points_seen, most_rounds;

static hk_status measure_made_up(hk_tune_table *out, const hk_tune_setup *s, void (*report)(hk_coll, size_t)) {
  hk_tune_table all;
  ck_assert_ptr_null(report);
  make(&all, s->nranks, 1, s->tcp, s->colls, &hk_constants_default);
  *out = (hk_tune_table){
      .setup = *s, .machine = all.machine, .layout = all.layout, .at = calloc((size_t)all.n, sizeof *all.at)};
  for (int p = 0; p < s->npoints; p++)
    for (int c = 0; c < all.n; c++) {
      const hk_tune_cell *cell = &all.at[c];
      if (cell->coll != s->points[p].coll || cell->bytes != s->points[p].bytes) continue;
      if (!(s->points[p].algorithms >> cell->algorithm & 1u)) continue;
      out->at[out->n] = *cell;
      out->at[out->n++].us *= off_by[passes];
    }
  free(all.at); /* the rest is in *out */
  points_seen += s->npoints;
  if (s->rounds > most_rounds) most_rounds = s->rounds;
  passes++;
  return HK_OK;
}

static hk_tune_look a_look(const hk_tune_judge *j) {
  passes = points_seen = most_rounds = 0;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(off_by); i++) off_by[i] = 1;
  return (hk_tune_look){.judges = j, .njudges = 1, .measure = measure_made_up};
}

/* An algorithm that a lucky time made the best is not, measured again; the sweep's time is remembered, and decides
 * nothing. */
TEST(look_mends_luck) {
  hk_tune_table t;
  hk_tune_group g;
  hk_tune_judge j = {.constants = &hk_constants_default, .limit = 1.1};
  hk_tune_look look = a_look(&j);
  make(&t, 4, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
  t.setup.rounds = 3;
  const hk_tune_cell *other = other_of(&t, 1024, &g);
  int lucky = other->algorithm;
  double true_ratio = other->us / t.at[g.chosen].us;
  spoil(&t, 1024, lucky, 1.2);
  hk_tune_tally before = hk_tune_count(&t, 1, &j);
  ck_assert_int_eq(before.missed, 1);
  ck_assert_int_eq(hk_tune_look_again(&t, 1, &look), HK_OK);
  hk_tune_tally after = hk_tune_count(&t, 1, &j);
  ck_assert_int_eq(points_seen, 1);
  ck_assert_int_gt(most_rounds, 3);
  ck_assert_int_eq(after.choices, before.choices);
  ck_assert_int_eq(after.missed, 0);
  ck_assert_int_eq(after.missed_at_first, 1);
  ck_assert_int_eq(after.drawn, 0);
  other_of(&t, 1024, &g);
  for (int i = g.first; i < g.first + g.n; i++)
    if (t.at[i].algorithm == lucky) ck_assert_double_eq_tol(t.at[i].us / t.at[g.chosen].us, true_ratio, 1e-9);
  ck_assert_int_eq(t.at[g.chosen].looks, 1);
  hk_tune_table_clear(&t);
}

/* A choice that is wrong stays wrong however often it is looked at: passes are averaged, the luckiest does not win. */
TEST(look_keeps_misses) {
  hk_tune_table t;
  hk_tune_group g;
  hk_constants wrong = hk_constants_default;
  wrong.tcp_us_per_b *= 30;
  wrong.tcp_message_us /= 20;
  hk_tune_judge j = {.constants = &wrong, .limit = 1.1};
  hk_tune_look look = a_look(&j);
  make(&t, 8, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
  hk_tune_tally before = hk_tune_count(&t, 1, &j), after;
  ck_assert_int_gt(before.missed, 0);
  off_by[1] = 4; /* the second pass, of all alike */
  for (int pass = 0; pass < 2; pass++) ck_assert_int_eq(hk_tune_look_again(&t, 1, &look), HK_OK);
  after = hk_tune_count(&t, 1, &j);
  ck_assert_int_eq(after.missed, before.missed);
  g = (hk_tune_group){.n = 0};
  while (hk_tune_next(&t, &wrong, NULL, &g)) {
    const hk_tune_cell *c = &t.at[g.chosen];
    double us = price_of(hk_algorithms[c->algorithm], &t.machine, HK_ALLREDUCE, c->bytes);
    if (c->looks)
      ck_assert_double_eq_tol(c->us, us, 1e-6 * us); /* an hour that is slower as a whole makes no choice worse */
    ck_assert_int_eq(c->looks, t.at[g.chosen].us > j.limit * t.at[g.best].us ? 2 : 0);
  }
  hk_tune_table_clear(&t);
}

/* Choices drawn by lot are measured too, the same on every run; those that are wrong are found out. */
TEST(look_draws_others) {
  hk_tune_judge j = {.constants = &hk_constants_default, .limit = 1.1};
  int first_drawn[2] = {-1, -1};
  for (int run = 0; run < 2; run++) {
    hk_tune_table t[2];
    hk_tune_look look = a_look(&j);
    look.draw = 5;
    for (int i = 0; i < 2; i++)
      make(&t[i], 4 << i, 1, true, 1u << HK_ALLREDUCE | 1u << HK_REDUCE, &hk_constants_default);
    ck_assert_int_eq(hk_tune_look_again(t, 2, &look), HK_OK);
    hk_tune_tally c = hk_tune_count(t, 2, &j);
    ck_assert_int_eq(c.drawn, 5);
    ck_assert_int_eq(points_seen, 5);
    ck_assert_int_eq(c.drawn_missed, 0);
    for (int i = 0; i < t[0].n && first_drawn[run] < 0; i++)
      if (t[0].at[i].drawn) first_drawn[run] = i;
    /* As if the drawn ones of the first table had turned out badly. */
    hk_tune_group g = {.n = 0};
    int bad = 0;
    while (hk_tune_next(&t[0], &hk_constants_default, NULL, &g)) {
      if (!t[0].at[g.first].drawn) continue;
      t[0].at[g.chosen].us *= 10;
      bad++;
    }
    ck_assert_int_eq(hk_tune_count(t, 2, &j).drawn_missed, bad);
    for (int i = 0; i < 2; i++) hk_tune_table_clear(&t[i]);
  }
  ck_assert_int_eq(first_drawn[0], first_drawn[1]);
}

/* ---- times of earlier runs ---- */

/* A table of one run, kept in a file and read again. */
static void keep(const hk_tune_table *t, hk_tune_times *times, const char *path) {
  ck_assert_int_eq(hk_tune_times_take(times, t, 1), HK_OK);
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  ck_assert_int_eq(hk_tune_times_write(times, f), HK_OK);
  ck_assert_int_eq(fclose(f), 0);
  hk_tune_times_clear(times);
  ck_assert_int_eq(hk_tune_times_read(times, path), HK_OK);
}

/* Every run counts alike, whatever it looked at again; a size that lacks an algorithm begins anew. */
TEST(times_add_up) {
  hk_tune_table t;
  hk_tune_group g;
  hk_tune_times times;
  char path[] = "/tmp/hocket-times-XXXXXX";
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  close(fd);
  unlink(path);
  ck_assert_int_eq(hk_tune_times_read(&times, path), HK_OK);
  ck_assert_int_eq(times.n, 0);
  for (int run = 0; run < 3; run++) { /* 1, 4 and 16 times the model's */
    make(&t, 4, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
    for (int i = 0; i < t.n; i++) t.at[i].us *= 1 << 2 * run;
    hk_tune_times_use(&times, &t);
    for (int i = 0; i < t.n; i++) {
      double us = price_of(hk_algorithms[t.at[i].algorithm], &t.machine, HK_ALLREDUCE, t.at[i].bytes);
      ck_assert_int_eq(t.at[i].past ? t.at[i].past->runs : 0, run);
      ck_assert_double_eq_tol(t.at[i].us, us * (1 << run), 1e-4 * us); /* the file has six digits */
    }
    keep(&t, &times, path);
    ck_assert_int_eq(times.n, t.n);
    hk_tune_table_clear(&t);
  }
  make(&t, 4, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
  other_of(&t, 1024, &g);
  for (int i = 0; i < times.n; i++)
    if (times.at[i].bytes == 1024 && times.at[i].algorithm == t.at[g.first].algorithm) times.at[i].bytes++;
  hk_tune_times_use(&times, &t);
  for (int i = 0; i < t.n; i++) ck_assert_int_eq(t.at[i].past ? t.at[i].past->runs : 0, t.at[i].bytes == 1024 ? 0 : 3);
  hk_tune_table_clear(&t);
  hk_tune_times_clear(&times);
  unlink(path);
}

/* A second look renews this run's times; the earlier ones go on counting. */
TEST(times_and_looks) {
  hk_tune_table t;
  hk_tune_times times = {.n = 0};
  hk_tune_judge j = {.constants = &hk_constants_default, .limit = 1.1};
  hk_tune_look look = a_look(&j);
  hk_tune_group g;
  make(&t, 4, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
  hk_tune_times_use(&times, &t);
  ck_assert_int_eq(hk_tune_times_take(&times, &t, 1), HK_OK);
  int lucky = other_of(&t, 1024, &g)->algorithm;
  spoil(&t, 1024, lucky, 100);
  hk_tune_times_use(&times, &t);
  ck_assert_int_eq(hk_tune_count(&t, 1, &j).missed, 1);
  off_by[0] = 4;
  ck_assert_int_eq(hk_tune_look_again(&t, 1, &look), HK_OK);
  ck_assert_int_eq(hk_tune_count(&t, 1, &j).missed, 0);
  hk_tune_times_clear(&times);
  hk_tune_table_clear(&t);
}

/* What one run has upset counts for little beside three, and for nothing where they agree. */
TEST(times_that_are_far_off) {
  hk_tune_table t;
  hk_tune_times times = {.n = 0};
  for (int run = 0; run < 4; run++) {
    make(&t, 4, 1, true, 1u << HK_ALLREDUCE, &hk_constants_default);
    for (int i = run; i < t.n; i += 7) t.at[i].us *= run % 2 ? 10 : 0.1; /* another one of most groups in each run */
    hk_tune_times_use(&times, &t);
    if (run == 3) break;
    ck_assert_int_eq(hk_tune_times_take(&times, &t, 1), HK_OK);
    hk_tune_table_clear(&t);
  }
  for (int i = 0; i < t.n; i++) {
    double us = price_of(hk_algorithms[t.at[i].algorithm], &t.machine, HK_ALLREDUCE, t.at[i].bytes);
    ck_assert_double_eq_tol(t.at[i].us, us, 0.01 * us);
  }
  hk_tune_times_clear(&times);
  hk_tune_table_clear(&t);
}

/* Lines of a file, and the error's words; NULL: it is right. */
TEST(times_are_read_with_care) {
  static const struct {
    const char *text, *error;
  } cases[] = {{"", NULL},
               {"# nothing\n\n", NULL},
               {"tcp 2 AllReduce 8 ring 1 1\n", "of 0 cores"},
               {"cores 99999\ntcp 2 AllReduce 8 ring 1 1\n", "of 99999 cores"},
               {"cores 0\n", ":1: "},
               {"cores 2 3\n", ":1: "},
               {"\nair 2 AllReduce 8 ring 1 1\n", ":2: "},
               {"tcp 1 AllReduce 8 ring 1 1\n", ":1: "},
               {"tcp 2 AllSum 8 ring 1 1\n", ":1: "},
               {"tcp 2 AllReduce 0 ring 1 1\n", ":1: "},
               {"tcp 2 AllReduce 8 rign 1 1\n", ":1: "},
               {"tcp 2 AllReduce 8 ring -1 1\n", ":1: "},
               {"tcp 2 AllReduce 8 ring nan 1\n", ":1: "},
               {"tcp 2 AllReduce 8 ring inf 1\n", ":1: "},
               {"tcp 2 AllReduce 8 ring 1 0\n", ":1: "},
               {"tcp 2 AllReduce 8 ring 1 1x\n", ":1: "},
               {"tcp 2 AllReduce 8 ring\n", ":1: "}};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(cases); i++) {
    hk_tune_times times;
    char path[] = "/tmp/hocket-times-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, cases[i].text, strlen(cases[i].text)), (ssize_t)strlen(cases[i].text));
    close(fd);
    hk_status rc = hk_tune_times_read(&times, path);
    ck_assert_msg((rc == HK_OK) == !cases[i].error, "%s", cases[i].text);
    if (cases[i].error) ck_assert_ptr_nonnull(strstr(hk_last_error(), cases[i].error));
    hk_tune_times_clear(&times);
    unlink(path);
  }
}

int main(void) { return suite_main("tune", .timeout = 60); }
