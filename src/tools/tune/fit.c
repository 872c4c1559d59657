/* SPDX-License-Identifier: Apache-2.0 */
/* Constants from measurements: the model's prices are compared with all times at once, and one constant after the other
 * is changed while that reduces the error. The method is simple, but the model is cheap: a fit takes well under a
 * second. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include "../../decide/cost.h"
#include "../../program/layout.h"
#include "tune.h"

/* The machine that the ranks saw, with other constants. */
static hk_machine fit_machine_with(const hk_tune_table *t, const hk_constants *k) {
  hk_host_facts f = {.nranks = t->machine.team.nranks,
                     .nhosts = t->machine.team.nhosts,
                     .ranks_per_host = t->machine.team.ranks_per_host,
                     .least_per_host = t->machine.team.least_per_host,
                     .cores_per_host = t->machine.cores_per_host,
                     .memory = !t->setup.tcp,
                     .multicast = t->machine.team.multicast,
                     .slot_bytes = t->machine.slot_bytes,
                     .nslots = t->machine.nslots};
  hk_machine m = hk_machine_of_hosts(&f, k);
  m.outlines = t->machine.outlines;
  return m;
}

/* The price; a failure, which is that memory is exhausted, makes it infinite. */
static double fit_price(const hk_machine *m, const hk_tune_cell *cell) {
  double us;
  const hk_status rc = hk_algorithm_price(m, hk_algorithms[cell->algorithm], (hk_coll)cell->coll, cell->bytes, &us);
  return rc == HK_OK ? us : INFINITY;
}

void hk_tune_table_clear(hk_tune_table *t) {
  hk_outlines_free(t->machine.outlines);
  hk_layout_free(t->layout);
  free(t->at);
  *t = (hk_tune_table){.n = 0};
}

static bool fit_next_group(const hk_tune_table *t, const hk_machine *m, hk_tune_group *g) {
  double least = 0;
  g->first += g->n;
  g->n = 0;
  if (g->first >= t->n) return false;
  const hk_tune_cell *a = &t->at[g->first];
  g->best = g->chosen = g->first;
  while (g->first + g->n < t->n && a[g->n].coll == a->coll && a[g->n].bytes == a->bytes) {
    int i = g->first + g->n++;
    double us = fit_price(m, &t->at[i]);
    if (t->at[i].us < t->at[g->best].us) g->best = i;
    if (i > g->first && us >= least) continue;
    least = us;
    g->chosen = i;
  }
  return true;
}

bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, const hk_rules *choices, hk_tune_group *g) {
  hk_machine m = fit_machine_with(t, k);
  if (!fit_next_group(t, &m, g)) return false;
  const hk_tune_cell *a = &t->at[g->first];
  for (int i = 0; choices && i < choices->n; i++) {
    if (!hk_rule_fits(&choices->at[i], &m, (hk_coll)a->coll, a->bytes)) continue;
    for (int c = g->first; c < g->first + g->n; c++)
      if (t->at[c].algorithm == choices->at[i].algorithm) g->chosen = c;
    break;
  }
  return true;
}

/* The error: squares of ln(price / time), with less weight for slow algorithms; and the cost of wrong choices, with
 * more weight. */
static double fit_misfit(const hk_tune_table *tables, int n, const hk_constants *k) {
  double sum = 0, weights = 0;
  for (int i = 0; i < n; i++) {
    const hk_tune_table *t = &tables[i];
    hk_machine m = fit_machine_with(t, k);
    hk_tune_group g = {.n = 0};
    while (fit_next_group(t, &m, &g)) {
      double best = t->at[g.best].us, regret = log(t->at[g.chosen].us / best);
      for (int c = g.first; c < g.first + g.n; c++) {
        const hk_tune_cell *cell = &t->at[c];
        double off = log(fit_price(&m, cell) / cell->us), weight = best / cell->us;
        sum += weight * weight * off * off;
        weights += weight * weight;
      }
      sum += 5 * regret + 20 * regret * regret;
      weights += 1;
    }
  }
  return weights > 0 ? sum / weights : 0;
}

double hk_tune_error(const hk_tune_table *tables, int n, const hk_constants *k) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < n; i++) {
    hk_machine m = fit_machine_with(&tables[i], k);
    for (int c = 0; c < tables[i].n; c++) {
      const hk_tune_cell *cell = &tables[i].at[c];
      if (cell->rough) continue;
      sum += fabs(log(fit_price(&m, cell) / cell->us));
      count++;
    }
  }
  return count ? sum / count : 0;
}

/* The constants that are changed: those of one host, or those between hosts. */
enum { FIELDS = 9 };
static const size_t inside[FIELDS] = {offsetof(hk_constants, memory_alpha_us),   offsetof(hk_constants, copy_us_per_b),
                                      offsetof(hk_constants, gamma_us_per_b),    offsetof(hk_constants, switch_us),
                                      offsetof(hk_constants, tcp_alpha_us),      offsetof(hk_constants, tcp_us_per_b),
                                      offsetof(hk_constants, memory_message_us), offsetof(hk_constants, tcp_message_us),
                                      offsetof(hk_constants, tcp_link_us)};
static const size_t between[] = {offsetof(hk_constants, net_alpha_us), offsetof(hk_constants, net_us_per_b),
                                 offsetof(hk_constants, net_message_us)};

typedef struct fields {
  const size_t *at;
  size_t n;
} fields;

static double *fit_field(hk_constants *k, const fields *f, size_t i) {
  return (double *)(void *)((char *)k + f->at[i]);
}

/* One constant after the other, up or down by a factor that gets smaller. */
static double fit_descend(const hk_tune_table *tables, int n, const fields *f, hk_constants *k) {
  double least = fit_misfit(tables, n, k);
  for (double factor = 2; factor > 1.01; factor = sqrt(factor)) {
    bool better = true;
    for (int turn = 0; better && turn < 20; turn++) {
      better = false;
      for (size_t i = 0; i < f->n; i++) {
        double *v = fit_field(k, f, i), old = *v, widest = 50;
        hk_constants usual = hk_constants_default;
        double low = *fit_field(&usual, f, i) / widest;
        for (int way = 0; way < 2; way++) {
          double tried = way ? old / factor : old * factor;
          if (tried < low || tried > low * widest * widest) continue;
          *v = tried;
          double off = fit_misfit(tables, n, k);
          if (off < least * 0.9999) {
            least = off;
            better = true;
            break;
          }
          *v = old;
        }
      }
    }
  }
  return least;
}

hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *first) {
  fields f = n > 0 && tables[0].machine.team.nhosts > 1 ? (fields){between, HK_ARRAY_LENGTH(between)}
                                                        : (fields){inside, FIELDS};
  hk_constants best = *first;
  double least = fit_descend(tables, n, &f, &best);
  /* Further starting points, because the error has local minima. */
  static const double starts[][FIELDS] = {{2, 2, 2, 2, 2, 2, 2, 2, 2},
                                          {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
                                          {1, 2, 1, 4, 1, 2, 2, 0.5, 1},
                                          {3, 1, 1, 0.5, 0.5, 1, 0.5, 1, 2}};
  for (size_t s = 0; s < HK_ARRAY_LENGTH(starts); s++) {
    hk_constants k = *first;
    for (size_t i = 0; i < f.n; i++) *fit_field(&k, &f, i) *= starts[s][i];
    double off = fit_descend(tables, n, &f, &k);
    if (off >= least) continue;
    least = off;
    best = k;
  }
  /* A constant that affects no measured time keeps its value, for example if only memory or only sockets were
   * measured. */
  hk_constants usual = *first;
  for (size_t i = 0; i < f.n; i++) {
    double found = *fit_field(&best, &f, i);
    *fit_field(&best, &f, i) = *fit_field(&usual, &f, i);
    if (fit_misfit(tables, n, &best) != least) *fit_field(&best, &f, i) = found;
  }
  return best;
}
