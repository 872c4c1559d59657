/* SPDX-License-Identifier: Apache-2.0 */
/* The selector: prices all algorithms for a call and takes the cheapest that the settings allow. */
#include "select.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../collectives/algorithm.h"
#include "cost.h"
#include "protocol.h"
#include "rules.h"

enum {
  SINGLE = 16,         /* smaller sizes are classes of their own */
  PARTS = 8,           /* classes in an octave */
  QUICK_WORK = 1 << 18 /* links and blocks moved of programs that a table prices even if they cannot win */
};

/* The part of the octave from 2^power on in which bytes - 1 is. */
static size_t select_part(size_t bytes, int *power) {
  *power = 63 - __builtin_clzll(bytes - 1);
  return (bytes - 1) >> (*power - 3) & (PARTS - 1);
}

int hk_size_class(size_t bytes) {
  int power;
  if (bytes <= SINGLE) return (int)bytes;
  const size_t part = select_part(bytes, &power);
  return SINGLE + 1 + PARTS * (power - 4) + (int)part;
}

size_t hk_size_class_last(size_t bytes) {
  int power;
  if (bytes <= SINGLE) return bytes;
  const size_t part = select_part(bytes, &power);
  return ((size_t)1 << power) + ((part + 1) << (power - 3));
}

const hk_algorithm *const *hk_filter_algorithms(const hk_filter *w) {
  return w && w->algorithms ? w->algorithms : hk_algorithms;
}

bool hk_select_invariant(const hk_algorithm *a, hk_coll coll) {
  return !hk_coll_reduces(coll) || (a->fixed_order >> hk_coll_plain(coll) & 1u);
}

/* The reason why the i-th algorithm cannot or may not run; NULL: it may. */
static const char *select_excluded(const hk_machine *m, const hk_filter *w, hk_coll coll, int i) {
  const hk_algorithm *a = hk_filter_algorithms(w)[i];
  if (!(a->colls >> coll & 1u)) return "does not do this collective";
  const char *cannot = hk_algorithm_cannot(a, &m->team, coll);
  if (cannot) return cannot;
  if (w && w->batch_invariant && !hk_select_invariant(a, coll))
    return "is not batch-invariant (HOCKET_BATCH_INVARIANT): it adds in another order than that of ranks";
  return w && (w->barred[coll] >> i & 1u) ? "is excluded by NCCL_ALGO" : NULL;
}

static bool select_protocol_barred(const hk_filter *w, hk_coll coll, hk_protocol p) {
  return w && (w->barred_protocols[coll] >> p & 1u);
}
static bool select_speaks(const hk_machine *m, const hk_algorithm *a, hk_protocol p) {
  return (m->protocols >> p & 1u) && (!a->protocols || a->protocols >> p & 1u);
}

/* True if the i-th algorithm, which may run, may use the protocol. */
static bool select_may_use(const hk_machine *m, const hk_filter *w, hk_coll coll, int i, hk_protocol p) {
  uint32_t any = 0;
  for (int k = 0; w && k < HK_PROTO_COUNT; k++) any |= w->only[k];
  return select_speaks(m, hk_filter_algorithms(w)[i], p) && !select_protocol_barred(w, coll, p) &&
         (!any || w->only[p] >> i & 1u);
}

/* Twice as many channels take twice as many cores from the application: the minimum relative gain for that. */
#define WORTH 0.02
#define WORTH_EFFICIENT 0.15

/* The range of channels to try: the filter, limited by the machine. */
static void select_channel_range(const hk_machine *m, const hk_filter *w, int *first, int *last) {
  *first = w && w->min_channels > 0 ? w->min_channels : 1;
  *last = m->max_channels > 0 ? m->max_channels : 1;
  if (*last < *first) *last = *first; /* the user wants more channels than the model considers useful */
  if (w && w->max_channels > 0 && *last > w->max_channels) *last = w->max_channels;
  if (*first > *last) *first = *last;
}

/* A few channels more than a multiple of the rings would load some rings, and their NICs, more than all others. */
static int select_whole_rings(const hk_machine *m, int channels, int least) {
  int over = m->rings > 0 && channels > m->rings ? channels % m->rings : 0;
  return 8 * over <= channels && channels - over >= least ? channels - over : channels;
}

/* The best number of channels for an algorithm and protocol. Its price is INFINITY if it is too large to be chosen. */
static hk_status select_price(const hk_machine *m, const hk_filter *w, hk_coll coll, size_t bytes,
                              const hk_algorithm *a, hk_protocol p, hk_decision *out) {
  int first, last;
  const double worth = w && w->efficient ? WORTH_EFFICIENT : WORTH;
  select_channel_range(m, w, &first, &last);
  *out = (hk_decision){.algorithm = a, .protocol = p, .channels = first};
  if (m->team.nranks < 2) return HK_OK;
  if (p == HK_PROTO_SIMPLE && first == 1 && last == 1 && m->channels == 1 && m->channel_us_per_b == 0)
    return hk_algorithm_price(m, a, coll, bytes, &out->us); /* on the host there is nothing to vary */
  for (int c = first; c <= last; c = c * 2 > last && c < last ? last : c * 2) {
    int n = select_whole_rings(m, c, first);
    hk_machine as = hk_machine_as(m, p, n);
    double us;
    HK_OR_RETURN(hk_algorithm_price(&as, a, coll, bytes, &us));
    if (c > first && us >= out->us * (1 - worth)) continue;
    out->channels = n;
    out->us = us;
  }
  return HK_OK;
}

/* True if its file is for other sizes, or for calls in another place. */
static bool select_outside(const hk_algorithm *a, size_t bytes, hk_inplace inplace) {
  const hk_loaded *l = a->loaded;
  return l && (bytes < l->least || (l->most && bytes > l->most) || (inplace == HK_INPLACE_YES && !l->in_place) ||
               (inplace == HK_INPLACE_NO && !l->out_of_place));
}

/* An algorithm and protocol that may be chosen. */
typedef struct candidate {
  int place; /* of candidates with equal prices the first is chosen */
  const hk_algorithm *algorithm;
  hk_protocol protocol;
  double least;  /* its price is not lower */
  uint64_t work; /* hk_algorithm_least */
} candidate;

typedef struct candidates {
  int n;
  candidate at[HK_ALTERNATIVES];
} candidates;

/* Adds one, in the order of the lowest prices that are possible. */
static hk_status select_add(candidates *c, const hk_machine *m, const hk_filter *w, hk_coll coll, size_t bytes,
                            const hk_algorithm *a, hk_protocol p) {
  candidate x = {.place = c->n, .algorithm = a, .protocol = p};
  int first, last, at = c->n++;
  select_channel_range(m, w, &first, &last);
  const hk_machine as = hk_machine_as(m, p, last);
  HK_OR_RETURN(hk_algorithm_least(&as, a, coll, bytes, &x.least, &x.work));
  for (; at > 0 && c->at[at - 1].least > x.least; at--) c->at[at] = c->at[at - 1];
  c->at[at] = x;
  return HK_OK;
}

/* True if even its lowest possible price is above `us`. Rounding must not decide. */
static bool select_loses(const candidate *x, double us) { return x->least > us * (1 + 1e-9); }

/* The programs of many ranks take long to summarize. So those that cannot win are not priced. */
static hk_status select_cheapest(const hk_machine *m, const hk_filter *w, hk_coll coll, size_t bytes, hk_decision *best,
                                 bool *found) {
  const size_t last = hk_size_class_last(bytes);
  candidates c = {.n = 0};
  int place = 0;
  *found = false;
  const hk_algorithm *const *all = hk_filter_algorithms(w);
  for (int i = 0; all[i]; i++) {
    if (select_excluded(m, w, coll, i)) continue;
    if (!(w && w->any_size) && select_outside(all[i], last, w ? w->inplace : HK_INPLACE_ANY)) continue;
    for (int p = 0; p < HK_PROTO_COUNT; p++)
      if (select_may_use(m, w, coll, i, (hk_protocol)p))
        HK_OR_RETURN(select_add(&c, m, w, coll, last, all[i], (hk_protocol)p));
  }
  for (const candidate *x = c.at; x < c.at + c.n && !(*found && select_loses(x, best->us)); x++) {
    hk_decision d;
    HK_OR_RETURN(select_price(m, w, coll, last, x->algorithm, x->protocol, &d));
    if (d.us == INFINITY || (*found && (d.us > best->us || (d.us >= best->us && x->place > place)))) continue;
    *best = d;
    place = x->place;
    *found = true;
  }
  if (!*found || last == bytes || m->team.nranks < 2) return HK_OK;
  hk_machine as = hk_machine_as(m, best->protocol, best->channels);
  return hk_algorithm_price(&as, best->algorithm, coll, bytes, &best->us);
}

/* The first rule that fits and can be followed. */
static hk_status select_by_rule(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes,
                                hk_decision *out, bool *found) {
  *found = false;
  for (int i = 0; filter->rules && i < filter->rules->n && !*found; i++) {
    const hk_rule *r = &filter->rules->at[i];
    if (!hk_rule_fits(r, m, coll, bytes)) continue;
    hk_filter w = *filter;
    if (r->algorithm >= 0) w.barred[coll] |= ~(1u << r->algorithm);
    w.any_size = r->algorithm >= 0;
    if (r->protocol >= 0) w.barred_protocols[coll] |= (uint8_t) ~(1u << r->protocol);
    if (r->channels) w.min_channels = w.max_channels = r->channels;
    HK_OR_RETURN(select_cheapest(m, &w, coll, bytes, out, found));
  }
  return HK_OK;
}

/* True if the filter allows a program of a file for another number of ranks. */
static bool select_other_ranks(const hk_machine *m, const hk_filter *w, hk_coll coll) {
  const hk_algorithm *const *all = hk_filter_algorithms(w);
  for (int i = 0; all[i]; i++)
    if (!(w->barred[coll] >> i & 1u) && all[i]->colls >> coll & 1u && all[i]->loaded &&
        all[i]->loaded->nranks != m->team.nranks)
      return true;
  return false;
}

/* Nothing that the filter allows can run: drops its parts one after another. */
static hk_status select_from_all(const hk_machine *m, hk_filter rest, hk_coll coll, size_t bytes, hk_decision *out) {
  bool found;
  memset(rest.only, 0, sizeof rest.only);
  HK_OR_RETURN(select_cheapest(m, &rest, coll, bytes, out, &found));
  if (found) {
    out->note = "what the call selects cannot be used here: choosing from all";
    return HK_OK;
  }
  memset(rest.barred_protocols, 0, sizeof rest.barred_protocols);
  HK_OR_RETURN(select_cheapest(m, &rest, coll, bytes, out, &found));
  if (found) {
    out->note = "none of the allowed protocols is there: choosing from all";
    return HK_OK;
  }
  const bool invariant = rest.batch_invariant;
  rest.batch_invariant = false;
  HK_OR_RETURN(select_cheapest(m, &rest, coll, bytes, out, &found));
  const bool excluded = invariant && found, other_ranks = select_other_ranks(m, &rest, coll);
  rest.batch_invariant = invariant;
  memset(rest.barred, 0, sizeof rest.barred);
  HK_OR_RETURN(select_cheapest(m, &rest, coll, bytes, out, &found));
  if (!found)
    return HK_FAIL(HK_ERR_INTERNAL, "no algorithm can do %s%s of %d ranks on %d hosts",
                   m->quantised ? "quantised " : "", hk_coll_name(coll), m->team.nranks, m->team.nhosts);
  out->overruled = excluded;
  out->note =
      excluded
          ? "none of the allowed algorithms is batch-invariant (HOCKET_BATCH_INVARIANT): choosing from those that are"
      : other_ranks
          ? "the program that is allowed is for another number of ranks: choosing from all (hocket program show FILE)"
          : "none of the allowed algorithms can do this collective here: choosing from all";
  return HK_OK;
}

hk_status hk_select(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes, hk_decision *out) {
  static const hk_filter none;
  const hk_filter *w = filter ? filter : &none;
  bool found;
  HK_OR_RETURN(select_by_rule(m, w, coll, bytes, out, &found));
  if (found) {
    out->ruled = true;
    out->note = "as the tuning file says";
    return HK_OK;
  }
  HK_OR_RETURN(select_cheapest(m, w, coll, bytes, out, &found));
  if (found) return HK_OK;
  hk_filter rest = *w;
  rest.any_size = true;
  HK_OR_RETURN(select_cheapest(m, &rest, coll, bytes, out, &found));
  return found ? HK_OK : select_from_all(m, *w, coll, bytes, out);
}

hk_status hk_select_one(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes, const hk_algorithm *a,
                        hk_protocol p, hk_decision *out, bool *can) {
  const hk_algorithm *const *all = hk_filter_algorithms(filter);
  int i = 0;
  *can = false;
  while (all[i] && all[i] != a) i++;
  if (!all[i] || select_excluded(m, filter, coll, i) || !select_may_use(m, filter, coll, i, p)) return HK_OK;
  HK_OR_RETURN(select_price(m, filter, coll, bytes, a, p, out));
  *can = out->us != INFINITY;
  return HK_OK;
}

/* ---- the table ---- */

static void select_insert(hk_alternative *rows, int *n, const hk_alternative *row) {
  int at = (*n)++;
  while (at > 0 && !row->why[0] && (rows[at - 1].why[0] || rows[at - 1].what.us > row->what.us)) {
    rows[at] = rows[at - 1];
    at--;
  }
  rows[at] = *row;
}

static const char *const protocol_needs[HK_PROTO_COUNT] = {
    [HK_PROTO_SIMPLE] = "is not spoken here",
    [HK_PROTO_LL] = "is for GPUs: on the host a slot's number travels with its payload already",
    [HK_PROTO_LL128] = "needs links that keep stores of 128 bytes whole (NVLink)"};

/* Prices the candidates that can win, and those that are quick to price. */
static hk_status select_price_all(const hk_machine *m, const hk_filter *w, hk_coll coll, size_t bytes,
                                  const candidates *c, hk_alternative *out, int *n) {
  double best = INFINITY;
  for (const candidate *x = c->at; x < c->at + c->n; x++) {
    hk_alternative row = {.what = {.algorithm = x->algorithm, .protocol = x->protocol, .channels = 1}};
    if (select_loses(x, best) && x->work > QUICK_WORK) {
      snprintf(row.why, sizeof row.why, "%s is slower, as the work of one host's ranks shows, so it is not priced",
               hk_protocols[x->protocol].name);
    } else {
      HK_OR_RETURN(select_price(m, w, coll, bytes, x->algorithm, x->protocol, &row.what));
      if (row.what.us < best) best = row.what.us;
    }
    if (row.what.us == INFINITY) {
      row.what.us = 0;
      if (m->quantised)
        snprintf(row.why, sizeof row.why, "would quantise sums that are not whole, or give ranks different bits");
      else
        snprintf(row.why, sizeof row.why, "has programs that are too large for %d ranks", m->team.nranks);
    }
    select_insert(out, n, &row);
  }
  return HK_OK;
}

hk_status hk_select_all(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes,
                        hk_alternative out[HK_ALTERNATIVES], int *n) {
  const hk_algorithm *const *all = hk_filter_algorithms(filter);
  candidates c = {.n = 0};
  *n = 0;
  for (int i = 0; all[i]; i++) {
    const hk_algorithm *a = all[i];
    hk_alternative row = {.what.algorithm = a, .what.channels = 1};
    const char *why = select_excluded(m, filter, coll, i);
    if (!(a->colls >> coll & 1u)) continue;
    if (!why && select_outside(a, bytes, HK_INPLACE_ANY))
      why = "is for other sizes, by its file: NCCL_ALGO or a tuning file can force it";
    snprintf(row.why, sizeof row.why, "%s", why ? why : "");
    if (row.why[0]) {
      select_insert(out, n, &row);
      continue;
    }
    for (int p = 0; p < HK_PROTO_COUNT; p++) {
      bool spoken = m->protocols >> p & 1u;
      /* hosts have one protocol, so this row says nothing new */
      if (!spoken && p != HK_PROTO_SIMPLE && m->cores_per_host > 0) continue;
      if (spoken && !select_speaks(m, a, (hk_protocol)p)) continue;
      row = (hk_alternative){.what = {.algorithm = a, .protocol = (hk_protocol)p, .channels = 1}};
      if (!spoken)
        snprintf(row.why, sizeof row.why, "%s %s", hk_protocols[p].name, protocol_needs[p]);
      else if (select_protocol_barred(filter, coll, (hk_protocol)p))
        snprintf(row.why, sizeof row.why, "%s is excluded by NCCL_PROTO", hk_protocols[p].name);
      else
        HK_OR_RETURN(select_add(&c, m, filter, coll, bytes, a, (hk_protocol)p));
      if (row.why[0]) select_insert(out, n, &row);
    }
  }
  return select_price_all(m, filter, coll, bytes, &c, out, n);
}

const char *hk_decision_algorithm(const hk_decision *d) { return d->algorithm->name; }
