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

bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, hk_tune_group *g) {
  hk_machine m = fit_machine_with(t, k);
  return fit_next_group(t, &m, g);
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
    for (int c = 0; c < tables[i].n; c++, count++)
      sum += fabs(log(fit_price(&m, &tables[i].at[c]) / tables[i].at[c].us));
  }
  return count ? sum / count : 0;
}

/* The constants that are changed: those of one host, or those between hosts. */
#define FIELD(name) offsetof(hk_constants, name)
static const size_t inside[] = {FIELD(memory_alpha_us), FIELD(memory_message_us), FIELD(copy_us_per_b),
                                FIELD(gamma_us_per_b),  FIELD(switch_us),         FIELD(tcp_alpha_us),
                                FIELD(tcp_us_per_b),    FIELD(tcp_message_us),    FIELD(tcp_link_us)};
static const size_t between[] = {FIELD(net_alpha_us), FIELD(net_us_per_b), FIELD(net_message_us)};
#define WIDEST 50 /* a constant stays within this factor of the built-in value */

static double *fit_field(hk_constants *k, size_t at) { return (double *)(void *)((char *)k + at); }

/* Multiplies a constant by the factor if that reduces the error *least. A constant on which no time depends keeps its
 * value. */
static bool fit_step(const hk_tune_table *tables, int n, hk_constants *k, size_t at, double factor, double *least) {
  hk_constants usual = hk_constants_default;
  double *v = fit_field(k, at), old = *v, middle = *fit_field(&usual, at);
  *v *= factor;
  if (*v >= middle / WIDEST && *v <= middle * WIDEST) {
    const double off = fit_misfit(tables, n, k);
    if (off < *least * 0.9999) return *least = off, true;
  }
  *v = old;
  return false;
}

hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *first) {
  const bool far = n > 0 && tables[0].machine.team.nhosts > 1;
  const size_t *fields = far ? between : inside, nfields = far ? HK_ARRAY_LENGTH(between) : HK_ARRAY_LENGTH(inside);
  hk_constants k = *first;
  double least = fit_misfit(tables, n, &k);
  for (double factor = 4; factor > 1.01; factor = sqrt(factor)) {
    bool better = true;
    for (int turn = 0; better && turn < 20; turn++) {
      better = false;
      for (size_t i = 0; i < nfields; i++)
        if (fit_step(tables, n, &k, fields[i], factor, &least) ||
            fit_step(tables, n, &k, fields[i], 1 / factor, &least))
          better = true;
    }
  }
  return k;
}
