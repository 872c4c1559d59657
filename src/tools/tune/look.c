/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A second look. The best of a sweep is the smallest of several times with errors, so it is more often too small than
 * too large. Compared with it a choice looks worse than it is, and the more so with more algorithms. So the sweep only
 * nominates candidates. If the sweep calls a choice wrong, the times of the choice and of its candidates are measured
 * again, and these times decide. They replace the sweep's. The average of several passes counts, so that more passes
 * improve the times and do not hide misses. Earlier runs, if there are any, still count (times.c). As many choices that
 * the sweep called right, drawn at random, are measured too: if these are found wrong, the sweep erred in both
 * directions.
 */
#include <math.h>
#include <stdlib.h>
#include "tune.h"

/* An algorithm that takes less than this times the best so far may be the best. */
#define CLOSE 1.25

enum { MORE_ROUNDS = 2 }; /* factor on the sweep's rounds: a second look measures few sizes */

static double look_ratio_of(const hk_tune_table *t, const hk_tune_group *g) {
  return t->at[g->chosen].us / t->at[g->best].us;
}

static bool look_misses(const hk_tune_look *look, const hk_tune_table *t, const hk_tune_group *groups) {
  for (int j = 0; j < look->njudges; j++)
    if (look_ratio_of(t, &groups[j]) > look->judges[j].limit) return true;
  return false;
}

enum { JUDGES = 4 };

/* The next group for each judge; judges differ in the choice. */
static bool look_next_of_all(const hk_tune_look *look, const hk_tune_table *t, hk_tune_group groups[JUDGES]) {
  for (int j = 0; j < look->njudges; j++)
    if (!hk_tune_next(t, look->judges[j].constants, look->judges[j].choices, &groups[j])) return false;
  return true;
}

/* Marks the choices that miss the limit; returns their number. *others: the number of the others. */
static int look_mark_missed(hk_tune_table *tables, int n, const hk_tune_look *look, int *others) {
  int missed = 0;
  *others = 0;
  for (int i = 0; i < n; i++) {
    hk_tune_group groups[JUDGES] = {{.n = 0}};
    while (look_next_of_all(look, &tables[i], groups)) {
      bool miss = look_misses(look, &tables[i], groups);
      tables[i].at[groups[0].first].again = miss;
      missed += miss;
      *others += !miss;
    }
  }
  return missed;
}

/* A random number from 0 up to, not including, 1; the same sequence in every run (Knuth's generator of 64 bits). */
static double look_next_lot(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 11) / (double)(1ull << 53);
}

/* Draws `want` of the `others`, each with equal probability. */
static void look_draw(hk_tune_table *tables, int n, const hk_tune_look *look, int want, int others) {
  uint64_t state = 1;
  for (int i = 0; i < n; i++) {
    hk_tune_group groups[JUDGES] = {{.n = 0}};
    while (look_next_of_all(look, &tables[i], groups)) {
      hk_tune_cell *first = &tables[i].at[groups[0].first];
      if (first->again) continue;
      if (look_next_lot(&state) * others < want) {
        first->again = first->drawn = true;
        want--;
      }
      others--;
    }
  }
}

/* The choices, and the algorithms that are nearly as fast as the best. */
static unsigned look_contenders(const hk_tune_look *look, const hk_tune_table *t, const hk_tune_group *groups) {
  unsigned out = 0;
  for (int j = 0; j < look->njudges; j++) out |= 1u << t->at[groups[j].chosen].algorithm;
  for (int c = groups[0].first; c < groups[0].first + groups[0].n; c++)
    if (t->at[c].us <= CLOSE * t->at[groups[0].best].us) out |= 1u << t->at[c].algorithm;
  return out;
}

/* Lists the marked points in `at`, which has room for all points of the table. */
static int look_list_points(const hk_tune_look *look, const hk_tune_table *t, hk_tune_point *at) {
  int n = 0;
  hk_tune_group groups[JUDGES] = {{.n = 0}};
  while (look_next_of_all(look, t, groups)) {
    const hk_tune_cell *first = &t->at[groups[0].first];
    if (first->again)
      at[n++] = (hk_tune_point){
          .coll = (hk_coll)first->coll, .bytes = first->bytes, .algorithms = look_contenders(look, t, groups)};
  }
  return n;
}

/* The cell of the table that the new cell measured again, at or after c. */
static hk_tune_cell *look_find(const hk_tune_table *t, const hk_tune_cell *fresh, int *c) {
  for (; *c < t->n; (*c)++) {
    hk_tune_cell *at = &t->at[*c];
    if (at->coll == fresh->coll && at->bytes == fresh->bytes && at->algorithm == fresh->algorithm) return at;
  }
  return NULL;
}

/* The logarithm of the factor by which the whole machine has become slower since the sweep: the median over n cells of
 * one size. Needed because cells that are not measured again keep the sweep's times. */
static double look_slower(const hk_tune_table *t, const hk_tune_cell *fresh, int n, int c) {
  double ln[HK_ALGORITHM_LIMIT], out;
  for (int i = 0; i < n; i++) {
    const hk_tune_cell *cell = look_find(t, &fresh[i], &c);
    ln[i] = cell ? log(fresh[i].us / (cell->past ? cell->now : cell->us)) : 0;
  }
  hk_tune_polish(ln, n, 1, &out);
  return out;
}

/* The first look's time replaces the sweep's; later times are averaged with it (as logarithms, because times are
 * compared by ratio). */
static void look_renew_one(hk_tune_cell *cell, const hk_tune_cell *fresh, double as_much) {
  double us = fresh->us * as_much, *own = cell->past ? &cell->now : &cell->us;
  if (!cell->looks) cell->swept = cell->us;
  *own = cell->looks ? exp((cell->looks * log(*own) + log(us)) / (cell->looks + 1)) : us;
  cell->rough = fresh->rough;
  cell->looks++;
}

static void look_renew(hk_tune_table *t, const hk_tune_table *fresh) {
  int c = 0;
  for (int i = 0, n; i < fresh->n; i += n) {
    const hk_tune_cell *f = &fresh->at[i];
    for (n = 1; i + n < fresh->n && f[n].coll == f->coll && f[n].bytes == f->bytes;) n++;
    double as_much = exp(-look_slower(t, f, n, c));
    for (int k = 0; k < n; k++) {
      hk_tune_cell *cell = look_find(t, &f[k], &c);
      if (cell) look_renew_one(cell, &f[k], as_much);
    }
  }
  hk_tune_weigh(t);
}

static hk_status look_at(hk_tune_table *t, const hk_tune_look *look) {
  hk_status rc = HK_OK;
  hk_tune_table fresh = {.n = 0};
  hk_tune_setup s = t->setup;
  hk_tune_point *points = malloc(((size_t)t->n + 1) * sizeof *points);
  if (!points) return HK_FAIL_ERRNO("no memory for a list of %d sizes", t->n);
  s.points = points;
  s.npoints = look_list_points(look, t, points);
  s.rounds *= MORE_ROUNDS;
  if (!s.npoints) goto out;
  HK_TRY(look->measure(&fresh, &s, look->progress), out);
  look_renew(t, &fresh);
out:
  hk_tune_table_clear(&fresh);
  free(points);
  return rc;
}

hk_status hk_tune_look_again(hk_tune_table *tables, int n, const hk_tune_look *look) {
  int others, missed = look_mark_missed(tables, n, look, &others);
  if (look->draw) look_draw(tables, n, look, missed > look->draw ? missed : look->draw, others);
  for (int i = 0; i < n; i++) HK_OR_RETURN(look_at(&tables[i], look));
  return HK_OK;
}

static double look_swept(const hk_tune_cell *c) { return c->looks ? c->swept : c->us; }

hk_tune_tally hk_tune_count(const hk_tune_table *tables, int n, const hk_tune_judge *judge) {
  hk_tune_tally out = {.choices = 0};
  for (int i = 0; i < n; i++) {
    const hk_tune_table *t = &tables[i];
    hk_tune_group g = {.n = 0};
    while (hk_tune_next(t, judge->constants, judge->choices, &g)) {
      bool miss = look_ratio_of(t, &g) > judge->limit;
      double best = INFINITY;
      for (int c = g.first; c < g.first + g.n; c++) best = fmin(best, look_swept(&t->at[c]));
      out.choices++;
      out.missed += miss;
      out.missed_at_first += look_swept(&t->at[g.chosen]) > judge->limit * best;
      out.drawn += t->at[g.first].drawn;
      out.drawn_missed += miss && t->at[g.first].drawn;
    }
  }
  return out;
}
