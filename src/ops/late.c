/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank comes last to collectives, and by how much, without clocks that agree. All ranks end a collective nearly
 * together, so the one that waited least for others came last, by the difference to the one that waited most. */
#include <stdio.h>
#include <stdlib.h>
#include "../boot/inquiry.h" /* lists of ranks */
#include "collect.h"

enum {
  LATE_LEAST_US = 50, /* a smaller difference is no lateness */
  LATE_WINDOW = 8     /* fewer collectives say nothing */
};

typedef struct late_wait {
  uint64_t collective, us;
  int rank;
} late_wait;

/* The newest collective that the rank has ended. */
static uint64_t late_ended(const hk_activity *a) {
  return a->sequence - (a->phase == HK_PHASE_OPERATION && a->sequence);
}

/* The recent wait i; false: there is none. */
static bool late_wait_of(const hk_ps_rank *r, int rank, int i, late_wait *out) {
  const uint64_t word = r->activity.recent_waits[i], newest = r->activity.sequence;
  if (!word) return false;
  *out =
      (late_wait){.collective = newest - ((newest - (word >> 32)) & UINT32_MAX), .us = word & UINT32_MAX, .rank = rank};
  return true;
}

static int late_compare(const void *x, const void *y) {
  const late_wait *a = x, *b = y;
  if (a->collective != b->collective) return a->collective < b->collective ? -1 : 1;
  return a->rank - b->rank;
}

/* What the ranks that answered know together. */
typedef struct late_view {
  int n;                 /* these ranks */
  uint64_t first, ended; /* collectives that all of them have ended and still know */
  late_wait *waits;      /* in these, by collective and rank */
  int nwaits;
} late_view;

static void late_bounds(const hk_ps_comm *c, late_view *v) {
  *v = (late_view){.ended = UINT64_MAX};
  for (int r = 0; r < c->nranks; r++) {
    const hk_activity *a = &c->ranks[r].activity;
    uint64_t oldest = UINT64_MAX;
    late_wait w;
    if (!hk_ps_answers(&c->ranks[r])) continue;
    v->n++;
    if (late_ended(a) < v->ended) v->ended = late_ended(a);
    for (int i = 0; i < HK_ACTIVITY_WAITS; i++)
      if (late_wait_of(&c->ranks[r], r, i, &w) && w.collective < oldest) oldest = w.collective;
    if (a->long_waits > HK_ACTIVITY_WAITS && oldest > v->first) v->first = oldest;
  }
}

static bool late_collect(const hk_ps_comm *c, late_view *v) {
  v->waits = malloc((size_t)c->nranks * HK_ACTIVITY_WAITS * sizeof *v->waits);
  if (!v->waits) return false; /* then nothing is said of late ranks */
  for (int r = 0; r < c->nranks; r++) {
    if (!hk_ps_answers(&c->ranks[r])) continue;
    for (int i = 0; i < HK_ACTIVITY_WAITS; i++) {
      late_wait *w = &v->waits[v->nwaits];
      v->nwaits += late_wait_of(&c->ranks[r], r, i, w) && w->collective >= v->first && w->collective <= v->ended;
    }
  }
  if (v->nwaits) qsort(v->waits, (size_t)v->nwaits, sizeof *v->waits, late_compare);
  return true;
}

/* Adds up one collective, whose long waits are w[0..n): for each rank what it waited, and whether it came last. */
static void late_add(hk_ps_comm *c, const late_view *v, const late_wait *w, int n) {
  uint64_t most = 0, least = n < v->n ? 0 : UINT64_MAX;
  for (int i = 0; i < n; i++) {
    if (w[i].us > most) most = w[i].us;
    if (w[i].us < least) least = w[i].us;
  }
  if (most - least < LATE_LEAST_US) return;
  if (!c->late.collectives++) c->late.first = w->collective;
  c->late.last = w->collective;
  for (int r = 0, i = 0; r < c->nranks; r++) {
    const bool waited = i < n && w[i].rank == r;
    const uint64_t us = waited ? w[i].us : 0;
    c->ranks[r].recent.ns += us * 1000;
    c->ranks[r].recent.count += us == least && hk_ps_answers(&c->ranks[r]);
    i += waited;
  }
}

/* The sums since the communicator began: a rank that waited less often, and less, than the one that waited most was
 * late. Waits in collectives that some rank had not ended when it was asked are taken off. */
static void late_sum(hk_ps_comm *c, const late_view *v) {
  uint64_t count = 0, ns = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int r = 0; r < c->nranks; r++) {
      hk_ps_rank *x = &c->ranks[r];
      uint64_t n = x->activity.long_waits, sum = x->activity.long_wait_ns;
      late_wait w;
      if (!hk_ps_answers(x)) continue;
      for (int i = 0; i < HK_ACTIVITY_WAITS; i++)
        if (late_wait_of(x, r, i, &w) && w.collective > v->ended)
          n -= n > 0, sum -= w.us * 1000 < sum ? w.us * 1000 : sum;
      if (pass) x->late = (hk_ps_late){.count = count - n, .ns = ns - sum};
      if (n > count) count = n;
      if (sum > ns) ns = sum;
    }
}

/* From what the ranks waited in the window to how late they were. Returns the latest one's lateness. */
static uint64_t late_compare_waits(hk_ps_comm *c) {
  uint64_t most = 0, latest = 0;
  for (int r = 0; r < c->nranks; r++)
    if (c->ranks[r].recent.ns > most) most = c->ranks[r].recent.ns;
  for (int r = 0; r < c->nranks; r++) {
    hk_ps_late *l = &c->ranks[r].recent;
    l->ns = hk_ps_answers(&c->ranks[r]) ? most - l->ns : 0;
    if (l->ns > latest) latest = l->ns;
  }
  return latest;
}

/* Names the ranks that are at least half as late as the latest one, if these are not most ranks, and came last to most
 * collectives. */
static void late_name(hk_ps_comm *c, const late_view *v, uint64_t latest) {
  int late[HK_RANKS_LISTED], n = 0, worst = 0;
  char list[160], which[24] = "";
  uint64_t last = 0;
  const uint64_t least = (uint64_t)c->late.collectives * LATE_LEAST_US * 1000;
  for (int r = 0; r < c->nranks; r++) {
    const hk_ps_late *l = &c->ranks[r].recent;
    if (l->ns > c->ranks[worst].recent.ns) worst = r;
    if (!l->ns || l->ns < latest / 2) continue;
    if (n < HK_RANKS_LISTED) late[n] = r;
    n++;
    last += l->count;
  }
  if (c->late.collectives < LATE_WINDOW || latest < least || !n || 2 * n > v->n ||
      2 * last < (uint64_t)c->late.collectives)
    return;
  hk_ranks_describe(late, n, list, sizeof list);
  if (n > 1) snprintf(which, sizeof which, " rank %d", worst);
  snprintf(c->late.text, sizeof c->late.text,
           "%s %s late,%s by %.2f ms on average in the last %d collectives in which ranks waited (%llu to %llu); it "
           "came last to %llu of them",
           list, n > 1 ? "are" : "is", which, (double)latest * 1e-6 / c->late.collectives, c->late.collectives,
           (unsigned long long)c->late.first, (unsigned long long)c->late.last,
           (unsigned long long)c->ranks[worst].recent.count);
}

void hk_ps_find_late(hk_ps_comm *c) {
  late_view v;
  late_bounds(c, &v);
  if (v.n < 2) return;
  late_sum(c, &v);
  if (!late_collect(c, &v)) return;
  for (int i = 0, n; i < v.nwaits; i += n) {
    for (n = 1; i + n < v.nwaits && v.waits[i + n].collective == v.waits[i].collective; n++) continue;
    late_add(c, &v, &v.waits[i], n);
  }
  free(v.waits);
  const uint64_t latest = late_compare_waits(c);
  if (!c->verdict[0]) late_name(c, &v, latest); /* a rank that keeps others waiting now matters more */
}
