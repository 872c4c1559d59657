/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of an algorithm's programs for all ranks, from as few of them as possible.
 *
 * In many algorithms all ranks do the same with shifted numbers; on several hosts, ranks with equal places on their
 * hosts do. Up to EVERY ranks this is checked for each rank. Above that it is checked for the first, the middle and the
 * last copies: a pattern that changes with the distance differs there. */
#include <stdlib.h>
#include "../program/builder.h"
#include "../program/layout.h"
#include "../program/summary.h"
#include "algorithm.h"

enum { EVERY = 64 };

static hk_status summarize_build(const hk_algorithm *a, const hk_build *what, int rank, hk_program **out) {
  hk_build one = *what;
  one.rank = rank;
  return hk_algorithm_build(a, &one, out);
}

/* True if this copy of the first ranks is one of those to check. */
static bool summarize_checks(int copy, int copies, int nranks) {
  return nranks <= EVERY || copy <= 3 || copy == copies / 2 || copy == copies - 1;
}

/* *same: the ranks from `period` on do what the first ones, whose programs are given, do. */
static hk_status summarize_compare(const hk_algorithm *a, const hk_build *what, hk_program *const *first, int period,
                                   bool *same) {
  const int copies = what->nranks / period;
  *same = true;
  for (int copy = 1; copy < copies && *same; copy++) {
    if (!summarize_checks(copy, copies, what->nranks)) continue;
    for (int r = 0; r < period && *same; r++) {
      hk_program *p;
      HK_OR_RETURN(summarize_build(a, what, copy * period + r, &p));
      *same = hk_program_is_alike(first[r], p, copy * period);
      hk_program_free(p);
    }
  }
  return HK_OK;
}

/* The smallest period that is possible: a host, if hosts are equal and have successive ranks; else all ranks. */
static int summarize_least(const hk_layout *l, int nranks) {
  if (hk_layout_hosts(l) == 1) return 1;
  for (int r = 0; r < nranks; r++)
    if (l->most != l->least || hk_layout_host_of(l, r) != r / l->most) return nranks;
  return l->most;
}

/* Builds the programs of ranks *built to `end`, and adds up their links and moves while they are at most `most`. */
static hk_status summarize_build_to(const hk_algorithm *a, const hk_build *what, hk_program **p, int *built, int end,
                                    size_t *work, size_t most) {
  for (; *built < end && *work <= most; ++*built) {
    HK_OR_RETURN(summarize_build(a, what, *built, &p[*built]));
    *work += p[*built]->nlinks + p[*built]->traits.moves;
  }
  return HK_OK;
}

hk_status hk_algorithm_summarize(hk_summary *out, const hk_algorithm *a, const hk_build *what, uint32_t slots,
                                 bool one_host, size_t most, bool *barred) {
  const int n = what->nranks;
  int period = summarize_least(what->layout, n), built = 0;
  size_t work = 0;
  bool same = period == n;
  hk_status rc = HK_OK;
  hk_program **p = calloc((size_t)n, sizeof *p);
  *out = (hk_summary){.nranks = 0};
  if (!p) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the programs of %d ranks", n);
  HK_TRY(summarize_build_to(a, what, p, &built, period, &work, most), out);
  if (!same && work <= most) HK_TRY(summarize_compare(a, what, p, period, &same), out);
  if (!same) period = n;
  HK_TRY(summarize_build_to(a, what, p, &built, period, &work, most), out);
  *barred = work > most;
  if (!*barred)
    rc = hk_summarize(out, (const hk_program *const *)p, n, period, what->layout ? what->layout->host : NULL, slots,
                      one_host);
out:
  if (rc == HK_ERR_USAGE) { /* the format cannot hold them (builder.h) */
    *barred = true;
    rc = HK_OK;
  }
  for (int r = 0; r < n; r++) hk_program_free(p[r]);
  free(p);
  return rc;
}
