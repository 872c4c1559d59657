/* SPDX-License-Identifier: Apache-2.0 */
/* Choices from measurements, for the cases in which the model is wrong: ranges of sizes, each with an algorithm or with
 * the model's choice. They minimise the sum of the loss against the fastest algorithms and the cost of changes. A time
 * is seldom wrong by more than some percent, and neighbouring sizes are similar. So an algorithm that is a little
 * faster at only one size is noise; one that is faster at several sizes in a row is not. */
#include <math.h>
#include <stdlib.h>
#include "tune.h"

/* The cost of a change to another algorithm, and back to the model, as ln(time / best). So the model's choice must take
 * 1.06 times as long as the best to be replaced at one size only. */
#define CHANGE 0.03
#define TINY 1e-9

enum { MODEL = HK_ALGORITHM_LIMIT, STATES };

/* One size of a collective: by algorithm, and as the model chooses, ln(time / best). */
typedef struct stage {
  size_t bytes;
  double loss[STATES];
  double sum[STATES]; /* the least sum of all sequences that end at this stage with this state */
  int before[STATES]; /* the state before it in that sequence */
} stage;

static void choices_fill(stage *s, const hk_tune_table *t, const hk_tune_group *g) {
  double best = t->at[g->best].us;
  s->bytes = t->at[g->first].bytes;
  for (int a = 0; a < STATES; a++) s->loss[a] = INFINITY;
  for (int c = g->first; c < g->first + g->n; c++) s->loss[t->at[c].algorithm] = log(t->at[c].us / best);
  s->loss[MODEL] = log(t->at[g->chosen].us / best);
}

static double choices_change(int from, int to) { return from == to ? 0 : CHANGE; }

/* Extends the sequences by a stage; before the first stage the state is the model. Among equal sequences it takes the
 * one that follows the model for longer. */
static void choices_link_stage(stage *s, const stage *last) {
  for (int a = 0; a < STATES; a++) {
    s->before[a] = a;
    s->sum[a] = last ? last->sum[a] : choices_change(MODEL, a);
    for (int b = 0; last && b < STATES; b++) {
      if (last->sum[b] + choices_change(b, a) >= s->sum[a] + (b == MODEL ? TINY : -TINY)) continue;
      s->sum[a] = last->sum[b] + choices_change(b, a);
      s->before[a] = b;
    }
    s->sum[a] += s->loss[a];
  }
}

static int choices_cheapest_end(const stage *s) {
  int best = MODEL;
  for (int a = 0; a < STATES; a++)
    if (s->sum[a] + choices_change(a, MODEL) < s->sum[best] + choices_change(best, MODEL)) best = a;
  return best;
}

/* Between two sizes: the middle of their logarithms. */
static size_t choices_middle(size_t a, size_t b) { return (size_t)sqrt((double)a * (double)b); }

/* The rules of one collective; way[i] is the state of stage i. */
static hk_status choices_add_rules(hk_rules **out, const hk_tune_table *t, int coll, const stage *at, const int *way,
                                   int n) {
  for (int i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && way[end] == way[i];) end++;
    if (way[i] == MODEL) continue;
    hk_rule r = {
        .coll = coll,
        .from = i ? choices_middle(at[i - 1].bytes, at[i].bytes) + 1 : 0,
        .to = end < n ? choices_middle(at[end - 1].bytes, at[end].bytes) : at[end - 1].bytes * (size_t)t->setup.step,
        .nranks = t->setup.nranks,
        .nhosts = 1,
        .algorithm = way[i],
        .protocol = -1,
        .via = t->setup.tcp ? HK_VIA_SOCKETS : HK_VIA_MEMORY};
    HK_OR_RETURN(hk_rules_add(out, &r));
  }
  return HK_OK;
}

enum { SIZES = 64 };

static hk_status choices_choose_ranges(hk_rules **out, const hk_tune_table *t, int coll, stage *at, int n) {
  int way[SIZES];
  for (int i = 0; i < n; i++) choices_link_stage(&at[i], i ? &at[i - 1] : NULL);
  for (int i = n - 1, a = choices_cheapest_end(&at[n - 1]); i >= 0; a = at[i--].before[a]) way[i] = a;
  return choices_add_rules(out, t, coll, at, way, n);
}

hk_status hk_tune_choices(const hk_tune_table *tables, int n, const hk_constants *k, hk_rules **out) {
  stage at[SIZES];
  *out = NULL;
  for (int i = 0; i < n; i++) {
    const hk_tune_table *t = &tables[i];
    hk_tune_group g = {.n = 0};
    int sizes = 0, coll = -1;
    while (hk_tune_next(t, k, NULL, &g)) {
      if (sizes && (coll != t->at[g.first].coll || sizes == SIZES)) {
        HK_OR_RETURN(choices_choose_ranges(out, t, coll, at, sizes));
        sizes = 0;
      }
      coll = t->at[g.first].coll;
      choices_fill(&at[sizes++], t, &g);
    }
    if (sizes) HK_OR_RETURN(choices_choose_ranges(out, t, coll, at, sizes));
  }
  return HK_OK;
}
