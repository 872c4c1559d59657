/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of an algorithm's programs for all ranks, from as few of them as possible.
 *
 * In many algorithms all ranks do the same with shifted numbers; on several hosts, ranks with equal places on their
 * hosts do, in some with certain bits of all numbers changed. In others, as in trees between hosts, the ranks of one
 * host do, with shifted local numbers: that is a shift, too, if ranks are numbered by their local numbers first. Up to
 * EVERY ranks all this is checked for each rank. Above that it is checked for the first, the middle and the last ones:
 * a pattern that changes with the distance differs there. */
#include <stdlib.h>
#include "../program/builder.h"
#include "../program/layout.h"
#include "../program/summary.h"
#include "algorithm.h"
#include "pattern.h"

enum { EVERY = 64 };

typedef struct look {
  const hk_algorithm *a;
  const hk_build *what;
  uint32_t slots;
  bool one_host;
  size_t most;
  hk_map_kind kind; /* HK_MAP_SHIFT or HK_MAP_FLIP: in what ranks differ */
  bool by_local;    /* ranks have the numbers of summarize_number */
} look;

/* By local numbers first; and the rank that has such a number. */
static uint32_t summarize_number(const hk_layout *l, uint32_t rank) {
  return (uint32_t)(l->local[rank] * l->nhosts + l->host[rank]);
}
static int summarize_rank(const hk_layout *l, uint32_t number) {
  return hk_layout_rank(l, (int)number % l->nhosts, (int)number / l->nhosts);
}

static hk_status summarize_build(const look *x, int rank, hk_program **out) {
  const hk_layout *l = x->what->layout;
  hk_build one = *x->what;
  one.rank = x->by_local ? summarize_rank(l, (uint32_t)rank) : rank;
  HK_OR_RETURN(hk_algorithm_build(x->a, &one, out));
  hk_link_need *links = (hk_link_need *)((char *)*out + (*out)->links_at);
  for (uint32_t k = 0; x->by_local && k < (*out)->nlinks; k++) links[k].peer = summarize_number(l, links[k].peer);
  return HK_OK;
}

/* True if this one of n is one of those to check. */
static bool summarize_checks(int i, int n) { return i <= 3 || i == n / 2 || i == n - 1; }

/* *same: the ranks from `period` on do what the first ones, whose programs are given, do. */
static hk_status summarize_compare(const look *x, hk_program *const *first, int period, bool *same) {
  const int n = x->what->nranks, copies = n / period;
  *same = true;
  for (int copy = 1; copy < copies && *same; copy++) {
    if (n > EVERY && !summarize_checks(copy, copies)) continue;
    for (int r = 0; r < period && *same; r++) {
      hk_program *p;
      if (period > EVERY && !summarize_checks(r, period)) continue;
      HK_OR_RETURN(summarize_build(x, copy * period + r, &p));
      *same = hk_program_is_alike(first[r], p, copy * period, x->kind == HK_MAP_FLIP);
      hk_program_free(p);
    }
  }
  return HK_OK;
}

/* The summary, if all ranks do what the first `period` do. */
static hk_status summarize_period(hk_summary *out, const look *x, int period, const int32_t *host, bool *barred,
                                  bool *same) {
  const int n = x->what->nranks;
  size_t work = 0;
  hk_status rc = HK_OK;
  hk_program **p = calloc((size_t)n, sizeof *p);
  if (!p) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the programs of %d ranks", n);
  for (int r = 0; r < period && work <= x->most; r++) {
    HK_TRY(summarize_build(x, r, &p[r]), out);
    work += p[r]->nlinks + p[r]->traits.moves;
  }
  *barred = work > x->most;
  if (!*barred) HK_TRY(summarize_compare(x, p, period, same), out);
  if (!*barred && *same)
    rc = hk_summarize(out, (const hk_program *const *)p, n, period, x->kind, host, x->slots, x->one_host);
out:
  for (int r = 0; r < n; r++) hk_program_free(p[r]);
  free(p);
  return rc;
}

/* Replaces the maps of ranks by their local numbers with those of each pair of ranks. */
static hk_status summarize_pairs(hk_summary *s, const hk_layout *l) {
  const uint32_t n = (uint32_t)s->nranks, step = (uint32_t)s->period;
  size_t all = 1;
  for (uint32_t i = 0; i < s->nmaps; i++) all += s->maps[i].kind == HK_MAP_PAIR ? n / step : n;
  hk_map *pairs = malloc(all * sizeof *pairs), *to = pairs;
  if (!pairs) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the messages of %d ranks", s->nranks);
  for (const hk_map *m = s->maps; m < s->maps + s->nmaps; m++)
    for (uint32_t k = 0; k < n; k += m->kind == HK_MAP_PAIR ? step : 1) {
      const uint32_t by = m->kind == HK_MAP_FLIP ? m->by ^ k : (m->by + k) % n;
      *to = *m;
      to->kind = HK_MAP_PAIR;
      to->from = (uint32_t)summarize_rank(l, (m->from + k) % n);
      to++->by = (uint32_t)summarize_rank(l, by);
    }
  free(s->maps);
  s->maps = pairs;
  s->nmaps = (uint32_t)(to - pairs);
  s->period = s->nranks;
  return HK_OK;
}

/* The summary, if the ranks of each host do the same with shifted local numbers. */
static hk_status summarize_local(hk_summary *out, const look *of, bool *barred, bool *same) {
  const hk_layout *l = of->what->layout;
  look x = *of;
  int32_t *host = malloc((size_t)l->nranks * sizeof *host);
  if (!host) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the hosts of %d ranks", l->nranks);
  x.by_local = true;
  for (int r = 0; r < l->nranks; r++) host[r] = r % l->nhosts;
  const hk_status rc = summarize_period(out, &x, l->nhosts, host, barred, same);
  free(host);
  return rc == HK_OK && *same && !*barred ? summarize_pairs(out, l) : rc;
}

hk_status hk_algorithm_summarize(hk_summary *out, const hk_algorithm *a, const hk_build *what, uint32_t slots,
                                 bool one_host, size_t most, bool *barred) {
  const look x = {.a = a, .what = what, .slots = slots, .one_host = one_host, .most = most};
  look flipped = x;
  const hk_layout *l = what->layout;
  const int n = what->nranks, hosts = hk_layout_hosts(l), per = hosts > 1 ? l->most : 1;
  const int32_t *host = l ? l->host : NULL;
  bool equal = true, same = false; /* equal: hosts are, and have successive ranks */
  hk_status rc = HK_OK;
  for (int r = 0; r < n && hosts > 1; r++) equal = equal && l->most == l->least && l->host[r] == r / l->most;
  *out = (hk_summary){.nranks = 0};
  *barred = false;
  if (equal) HK_TRY(summarize_period(out, &x, per, host, barred, &same), out);
  flipped.kind = HK_MAP_FLIP;
  if (equal && hosts > 1 && hk_is_power_of_2(n) && !same && !*barred)
    HK_TRY(summarize_period(out, &flipped, per, host, barred, &same), out);
  if (equal && per > 1 && !same && !*barred) HK_TRY(summarize_local(out, &x, barred, &same), out);
  if (!same && !*barred) HK_TRY(summarize_period(out, &x, n, host, barred, &same), out);
  out->order = what->channel;
out:
  if (rc != HK_ERR_USAGE) return rc;
  *barred = true; /* the format cannot hold them (builder.h) */
  return HK_OK;
}
