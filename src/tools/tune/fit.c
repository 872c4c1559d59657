/* SPDX-License-Identifier: Apache-2.0 */
/* Constants from measurements: the model's prices are compared with all times at once, and one constant after the other
 * is changed while that reduces the error. The method is simple, but the model is cheap: a fit takes well under a
 * second. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "../../collectives/algorithm.h"
#include "../../decide/constants.h"
#include "../../decide/cost.h"
#include "../../program/layout.h"
#include "tune.h"

void hk_tune_table_clear(hk_tune_table *t) {
  hk_outlines_free(t->machine.outlines);
  hk_layout_free(t->layout);
  free(t->at);
  *t = (hk_tune_table){.n = 0};
}

bool hk_tune_next(const hk_tune_table *t, const hk_constants *k, hk_tune_group *g) {
  double least = INFINITY, us;
  hk_machine m = t->machine;
  hk_machine_set_constants(&m, !t->setup.tcp, k);
  *g = (hk_tune_group){.first = g->first + g->n, .best = g->first + g->n, .chosen = g->first + g->n};
  if (g->first >= t->n) return false;
  const hk_tune_cell *a = &t->at[g->first];
  for (int i = g->first; i < t->n && t->at[i].coll == a->coll && t->at[i].bytes == a->bytes; i++, g->n++) {
    const hk_tune_cell *cell = &t->at[i];
    const hk_algorithm *by = hk_algorithms[cell->algorithm];
    if (hk_algorithm_price(&m, by, (hk_coll)cell->coll, cell->bytes, &us) != HK_OK) us = INFINITY; /* no memory */
    const double off = log(us / cell->us), weight = 1 / (cell->us * cell->us);
    if (cell->us < t->at[g->best].us) g->best = i;
    if (us < least) least = us, g->chosen = i;
    g->error += fabs(off);
    g->misfit += weight * off * off;
    g->weights += weight;
  }
  const double best = t->at[g->best].us, regret = log(t->at[g->chosen].us / best);
  g->misfit = best * best * g->misfit + 5 * regret + 20 * regret * regret;
  g->weights = best * best * g->weights + 1;
  return true;
}

static double fit_misfit(const hk_tune_table *tables, int n, const hk_constants *k) {
  double misfit = 0, weights = 0;
  for (int i = 0; i < n; i++)
    for (hk_tune_group g = {.n = 0}; hk_tune_next(&tables[i], k, &g); misfit += g.misfit) weights += g.weights;
  return weights > 0 ? misfit / weights : 0;
}

/* The constants that are changed: those of one host, or those between hosts. */
#define FIELD(name) offsetof(hk_constants, name)
static const size_t inside[] = {FIELD(memory_alpha_us), FIELD(memory_message_us), FIELD(copy_us_per_b),
                                FIELD(gamma_us_per_b),  FIELD(switch_us),         FIELD(tcp_alpha_us),
                                FIELD(tcp_us_per_b),    FIELD(tcp_message_us),    FIELD(tcp_link_us)};
static const size_t between[] = {FIELD(net_alpha_us), FIELD(net_us_per_b), FIELD(net_message_us)};
#define WIDEST 50 /* a constant stays within this factor of the built-in value */

/* Multiplies a constant by the factor if that reduces the error *least. A constant on which no time depends keeps its
 * value. */
static bool fit_step(const hk_tune_table *tables, int n, hk_constants *k, size_t at, double factor, double *least) {
  const double middle = *(const double *)(const void *)((const char *)&hk_constants_default + at);
  double *v = (double *)(void *)((char *)k + at), old = *v;
  *v *= factor;
  if (*v >= middle / WIDEST && *v <= middle * WIDEST) {
    const double off = fit_misfit(tables, n, k);
    if (off < *least * 0.9999) return *least = off, true;
  }
  *v = old;
  return false;
}

hk_constants hk_tune_fit(const hk_tune_table *tables, int n, const hk_constants *others) {
  const bool far = n > 0 && tables[0].machine.team.nhosts > 1;
  const size_t *fields = far ? between : inside, nfields = far ? HK_ARRAY_LENGTH(between) : HK_ARRAY_LENGTH(inside);
  hk_constants k = *others;
  if (far) k.net_measured = 1;
  for (size_t i = 0; i < nfields; i++)
    memcpy((char *)&k + fields[i], (const char *)&hk_constants_default + fields[i], sizeof(double));
  double least = fit_misfit(tables, n, &k);
  for (double factor = 4; factor > 1.01; factor = sqrt(factor)) {
    bool better = true;
    for (int turn = 0; better && turn < 20; turn++) {
      better = false;
      for (size_t i = 0; i < nfields; i++)
        better |= fit_step(tables, n, &k, fields[i], factor, &least) ||
                  fit_step(tables, n, &k, fields[i], 1 / factor, &least);
    }
  }
  return k;
}
