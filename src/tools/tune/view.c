/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `hocket tune`: scores, tables, JSON. */
#include <math.h>
#include <stdio.h>
#include "../../base/json.h"
#include "../../collectives/algorithm.h"
#include "../tools.h"
#include "tune.h"

static const char *view_via(const hk_tune_setup *s) { return s->between ? "net" : s->tcp ? "tcp" : "shm"; }

typedef struct score {
  int n, within10, within25;
  double worst, sum;
} score;

static score view_judge(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices) {
  score s = {.worst = 1};
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0};
    while (hk_tune_next(&t[i], k, choices, &g)) {
      double ratio = t[i].at[g.chosen].us / t[i].at[g.best].us;
      s.n++;
      s.sum += ratio;
      s.within10 += ratio <= HK_TUNE_LIMIT_MEASURED;
      s.within25 += ratio <= HK_TUNE_LIMIT_BUILT_IN;
      if (ratio > s.worst) s.worst = ratio;
    }
  }
  return s;
}

void hk_tune_print_score(const char *what, const hk_tune_table *t, int n, const hk_constants *k,
                         const hk_rules *choices) {
  score s = view_judge(t, n, k, choices);
  if (!s.n) return;
  printf("%s: of %d choices %d are within 10%% of the best, %d within 25%%; on average %.3f times the best, the worst "
         "%.2f times; prices are %.0f%% off\n",
         what, s.n, s.within10, s.within25, s.sum / s.n, s.worst, 100 * (exp(hk_tune_error(t, n, k)) - 1));
}

double hk_tune_worst(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices) {
  return view_judge(t, n, k, choices).worst;
}

void hk_tune_print_tally(const hk_tune_table *t, int n, const hk_tune_judge *j) {
  hk_tune_tally c = hk_tune_count(t, n, j);
  printf("  Within %.0f%% at first: %d of %d. Measured again: now %d (%.1f%%). Of %d others, drawn by lot and measured "
         "again too, %d missed.\n",
         100 * (j->limit - 1), c.choices - c.missed_at_first, c.choices, c.choices - c.missed,
         100.0 * (c.choices - c.missed) / (c.choices ? c.choices : 1), c.drawn, c.drawn_missed);
}

void hk_tune_print_choices(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices, bool all) {
  hk_table *out = hk_table_new("lllrlrlrr");
  hk_table_row(out, HK_STYLE_BOLD, "VIA\tRANKS\tCOLLECTIVE\tBYTES\tCHOSEN\tTIME\tBEST\tTIME\tRATIO");
  int shown = 0;
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0};
    while (hk_tune_next(&t[i], k, choices, &g)) {
      const hk_tune_cell *chosen = &t[i].at[g.chosen], *best = &t[i].at[g.best];
      char bytes[32], a[32], b[32];
      double ratio = chosen->us / best->us;
      if (!all && ratio <= HK_TUNE_LIMIT_MEASURED) continue;
      hk_table_row(out,
                   ratio > HK_TUNE_LIMIT_BUILT_IN   ? HK_STYLE_RED
                   : ratio > HK_TUNE_LIMIT_MEASURED ? HK_STYLE_YELLOW
                                                    : HK_STYLE_PLAIN,
                   "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f", view_via(&t[i].setup), t[i].setup.nranks,
                   hk_coll_name((hk_coll)chosen->coll), hk_tool_bytes(bytes, chosen->bytes),
                   hk_algorithms[chosen->algorithm]->name, hk_tool_time(a, chosen->us),
                   hk_algorithms[best->algorithm]->name, hk_tool_time(b, best->us), ratio);
      shown++;
    }
  }
  hk_table_print(out, 0, stdout);
  if (!shown) printf("Every choice is within 10%% of the best.\n");
}

static void view_put_times(hk_json *w, const char *key, const hk_tune_table *t, const hk_tune_group *g, bool swept) {
  hk_json_begin(w, key, '{');
  for (const hk_tune_cell *c = &t->at[g->first]; c < &t->at[g->first + g->n]; c++)
    hk_json_put_number(w, hk_algorithms[c->algorithm]->name, swept && c->looks ? c->swept : c->us);
  hk_json_close(w);
}

void hk_tune_print_json(const hk_tune_table *t, int n, const hk_constants *k, const hk_rules *choices) {
  hk_json w = {.f = stdout};
  hk_json_open(&w, '[');
  for (int i = 0; i < n; i++) {
    hk_tune_group g = {.n = 0}, usual = {.n = 0};
    while (hk_tune_next(&t[i], k, choices, &g) && hk_tune_next(&t[i], &hk_constants_default, NULL, &usual)) {
      const hk_tune_cell *at = t[i].at;
      hk_json_open(&w, '{');
      hk_json_put_text(&w, "transport", view_via(&t[i].setup));
      hk_json_put_integer(&w, "ranks", t[i].setup.nranks);
      hk_json_put_text(&w, "collective", hk_coll_name((hk_coll)at[g.first].coll));
      hk_json_put_integer(&w, "bytes", (long long)at[g.first].bytes);
      hk_json_put_text(&w, "chosen", hk_algorithms[at[g.chosen].algorithm]->name);
      hk_json_put_text(&w, "best", hk_algorithms[at[g.best].algorithm]->name);
      hk_json_put_number(&w, "ratio", at[g.chosen].us / at[g.best].us);
      hk_json_put_text(&w, "built_in", hk_algorithms[at[usual.chosen].algorithm]->name);
      hk_json_put_number(&w, "built_in_ratio", at[usual.chosen].us / at[g.best].us);
      hk_json_put_boolean(&w, "drawn", at[g.first].drawn);
      hk_json_put_integer(&w, "looks", at[g.chosen].looks);
      hk_json_put_integer(&w, "runs", at[g.chosen].past ? at[g.chosen].past->runs + 1 : 1);
      view_put_times(&w, "us", &t[i], &g, false);
      if (at[g.chosen].looks) view_put_times(&w, "us_at_first", &t[i], &g, true);
      hk_json_close(&w);
    }
  }
  hk_json_close(&w);
  putchar('\n');
}
