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

/* What is asked for. */
typedef struct question {
  const hk_machine *m;
  const hk_filter *w;
  hk_coll coll;
  size_t bytes;
} question;

static const hk_filter select_no_filter;

const hk_algorithm *const *hk_filter_algorithms(const hk_filter *w) {
  return w && w->algorithms ? w->algorithms : hk_algorithms;
}

bool hk_select_invariant(const hk_algorithm *a, hk_coll coll) {
  return !hk_coll_reduces(coll) || (a->fixed_order >> hk_coll_plain(coll) & 1u);
}

/* True if its file is for other sizes, or for calls in another place. */
static bool select_outside(const hk_algorithm *a, size_t bytes, hk_inplace inplace) {
  const hk_loaded *l = a->loaded;
  return l && (bytes < l->least || (l->most && bytes > l->most) || (inplace == HK_INPLACE_YES && !l->in_place) ||
               (inplace == HK_INPLACE_NO && !l->out_of_place));
}

/* The reason why the i-th algorithm, which has the collective, cannot or may not run; NULL: it may. */
static const char *select_excluded(const question *q, int i) {
  const hk_algorithm *a = hk_filter_algorithms(q->w)[i];
  const char *cannot = hk_algorithm_cannot(a, &q->m->team, q->coll);
  if (cannot) return cannot;
  if (q->w->batch_invariant && !hk_select_invariant(a, q->coll))
    return "is not batch-invariant (HOCKET_BATCH_INVARIANT): it adds in another order than that of ranks";
  if (q->w->barred[q->coll] >> i & 1u) return "is excluded by NCCL_ALGO";
  return q->w->any_size || !select_outside(a, q->bytes, q->w->inplace)
             ? NULL
             : "is for other sizes, by its file: NCCL_ALGO or a tuning file can force it";
}

#define WORDS(name, needs)                                                                                             \
  {                                                                                                                    \
    name " " needs, name " is excluded by NCCL_PROTO",                                                                 \
        name " is slower, as the work of one host's ranks shows, so it is not priced"                                  \
  }
static const struct {
  const char *needs, *barred, *slower;
} select_words[HK_PROTO_COUNT] = {
    [HK_PROTO_SIMPLE] = WORDS("Simple", "is not spoken here"),
    [HK_PROTO_LL] = WORDS("LL", "is for GPUs: on the host a slot's number travels with its payload already"),
    [HK_PROTO_LL128] = WORDS("LL128", "needs links that keep stores of 128 bytes whole (NVLink)")};

/* The same for a protocol that its links may use. */
static const char *select_protocol_excluded(const question *q, int i, int p) {
  uint32_t any = 0;
  for (int k = 0; k < HK_PROTO_COUNT; k++) any |= q->w->only[k];
  if (!(q->m->protocols >> p & 1u)) return select_words[p].needs;
  if (q->w->barred_protocols[q->coll] >> p & 1u) return select_words[p].barred;
  return any && !(q->w->only[p] >> i & 1u) ? "is not what the call selects" : NULL;
}

/* False if the algorithm's links do not use the protocol, or if the machine has one alone. */
static bool select_speaks(const hk_machine *m, const hk_algorithm *a, int p) {
  if (!(m->protocols >> p & 1u)) return p == HK_PROTO_SIMPLE || m->cores_per_host <= 0;
  return !a->protocols || a->protocols >> p & 1u;
}

/* Twice as many channels take twice as many cores from the application: the minimum relative gain for that. */
#define WORTH 0.02
#define WORTH_EFFICIENT 0.15

/* The range of channels to try: the filter, limited by the machine. */
static void select_channel_range(const question *q, int *first, int *last) {
  const int wanted = q->w->min_channels, most = q->w->max_channels;
  *first = wanted > 0 ? wanted : 1;
  *last = q->m->max_channels > 0 ? q->m->max_channels : 1;
  if (*last < *first) *last = *first; /* the user wants more channels than the model considers useful */
  if (most > 0 && *last > most) *last = most;
  if (*first > *last) *first = *last;
}

/* A few channels more than a multiple of the rings would load some rings, and their NICs, more than all others. */
static int select_whole_rings(const hk_machine *m, int channels, int least) {
  int over = m->rings > 0 && channels > m->rings ? channels % m->rings : 0;
  return 8 * over <= channels && channels - over >= least ? channels - over : channels;
}

/* The best number of channels for an algorithm and protocol. Its price is INFINITY if it is too large to be chosen. */
static hk_status select_price(const question *q, const hk_algorithm *a, hk_protocol p, hk_decision *out) {
  int first, last;
  const hk_machine *m = q->m;
  const double worth = q->w->efficient ? WORTH_EFFICIENT : WORTH;
  select_channel_range(q, &first, &last);
  *out = (hk_decision){.algorithm = a, .protocol = p, .channels = first};
  if (m->team.nranks < 2) return HK_OK;
  if (p == HK_PROTO_SIMPLE && first == 1 && last == 1 && m->channels == 1 && m->channel_us_per_b == 0)
    return hk_algorithm_price(m, a, q->coll, q->bytes, &out->us); /* on the host there is nothing to vary */
  for (int c = first; c <= last; c = c * 2 > last && c < last ? last : c * 2) {
    int n = select_whole_rings(m, c, first);
    hk_machine as = hk_machine_as(m, p, n);
    double us;
    HK_OR_RETURN(hk_algorithm_price(&as, a, q->coll, q->bytes, &us));
    if (c > first && us >= out->us * (1 - worth)) continue;
    out->channels = n;
    out->us = us;
  }
  return HK_OK;
}

/* An algorithm and protocol that may be chosen, or the reason why not. */
typedef struct candidate {
  hk_alternative row; /* without a price */
  int place;          /* of candidates with equal prices the first is chosen */
  double least;       /* its price is not lower; INFINITY: it may not be chosen */
  uint64_t work;      /* hk_algorithm_least */
} candidate;

typedef struct candidates {
  int n;
  candidate at[HK_ALTERNATIVES];
} candidates;

/* Adds one, in the order of the lowest prices that are possible. */
static hk_status select_add(candidates *c, const question *q, candidate x) {
  int first, last, at = c->n;
  select_channel_range(q, &first, &last);
  const hk_machine as = hk_machine_as(q->m, x.row.what.protocol, last);
  x.place = c->n++;
  x.least = INFINITY;
  if (!x.row.why) HK_OR_RETURN(hk_algorithm_least(&as, x.row.what.algorithm, q->coll, q->bytes, &x.least, &x.work));
  for (; at > 0 && c->at[at - 1].least > x.least; at--) c->at[at] = c->at[at - 1];
  c->at[at] = x;
  return HK_OK;
}

/* Lists all algorithms of the collective: once, if one may not run, else by each protocol. */
static hk_status select_list(candidates *c, const question *q) {
  const hk_algorithm *const *all = hk_filter_algorithms(q->w);
  c->n = 0;
  for (int i = 0; all[i]; i++) {
    if (!hk_algorithm_has(all[i], q->coll)) continue;
    const char *why = select_excluded(q, i);
    for (int p = 0; p < (why ? 1 : HK_PROTO_COUNT); p++) {
      if (!why && !select_speaks(q->m, all[i], p)) continue;
      const candidate x = {.row = {.what = {.algorithm = all[i], .protocol = (hk_protocol)p, .channels = 1},
                                   .why = why ? why : select_protocol_excluded(q, i, p)}};
      HK_OR_RETURN(select_add(c, q, x));
    }
  }
  return HK_OK;
}

/* True if even its lowest possible price is above `us`. Rounding must not decide. */
static bool select_loses(const candidate *x, double us) { return x->least > us * (1 + 1e-9); }

/* best->algorithm NULL: none may be chosen. The programs of many ranks take long to summarize, so those that cannot win
 * are not priced. */
static hk_status select_cheapest(const question *asked, hk_decision *best) {
  question q = *asked;
  candidates c;
  int place = 0;
  q.bytes = hk_size_class_last(asked->bytes);
  *best = (hk_decision){.us = INFINITY};
  HK_OR_RETURN(select_list(&c, &q));
  for (const candidate *x = c.at; x < c.at + c.n && !x->row.why && !select_loses(x, best->us); x++) {
    hk_decision d;
    HK_OR_RETURN(select_price(&q, x->row.what.algorithm, x->row.what.protocol, &d));
    if (d.us == INFINITY || d.us > best->us || (d.us >= best->us && x->place > place)) continue;
    *best = d;
    place = x->place;
  }
  if (!best->algorithm || q.bytes == asked->bytes || q.m->team.nranks < 2) return HK_OK;
  const hk_machine as = hk_machine_as(q.m, best->protocol, best->channels);
  return hk_algorithm_price(&as, best->algorithm, q.coll, asked->bytes, &best->us);
}

/* The first rule that fits and can be followed. */
static hk_status select_by_rule(const question *q, hk_decision *out) {
  out->algorithm = NULL;
  for (int i = 0; q->w->rules && i < q->w->rules->n && !out->algorithm; i++) {
    const hk_rule *r = &q->w->rules->at[i];
    if (!hk_rule_fits(r, q->m, q->coll, q->bytes)) continue;
    hk_filter w = *q->w;
    if (r->algorithm >= 0) w.barred[q->coll] |= ~(1u << r->algorithm);
    w.any_size = r->algorithm >= 0;
    if (r->protocol >= 0) w.barred_protocols[q->coll] |= (uint8_t) ~(1u << r->protocol);
    if (r->channels) w.min_channels = w.max_channels = r->channels;
    HK_OR_RETURN(select_cheapest(&(question){q->m, &w, q->coll, q->bytes}, out));
    out->ruled = true;
    out->note = "as the tuning file says";
  }
  return HK_OK;
}

/* True if the filter allows a program of a file for another number of ranks. */
static bool select_other_ranks(const question *q) {
  const hk_algorithm *const *all = hk_filter_algorithms(q->w);
  for (int i = 0; all[i]; i++)
    if (!(q->w->barred[q->coll] >> i & 1u) && hk_algorithm_has(all[i], q->coll) && all[i]->loaded &&
        all[i]->loaded->nranks != q->m->team.nranks)
      return true;
  return false;
}

/* If there is no decision yet: the cheapest of what a part of the filter allows. `note`: which part is ignored. */
static hk_status select_from_part(const question *q, const char *note, hk_decision *out) {
  if (out->algorithm) return HK_OK;
  HK_OR_RETURN(select_cheapest(q, out));
  out->unmet = true;
  out->note = note;
  return HK_OK;
}

/* None of the algorithms that the filter *w, which is the question's, allows can run. */
static hk_status select_from_all(const question *q, hk_filter *w, hk_decision *out) {
  hk_filter varying = *w;
  hk_decision other = {.algorithm = NULL};
  varying.batch_invariant = false;
  if (w->batch_invariant) HK_OR_RETURN(select_cheapest(&(question){q->m, &varying, q->coll, q->bytes}, &other));
  const char *note =
      other.algorithm
          ? "none of the allowed algorithms is batch-invariant (HOCKET_BATCH_INVARIANT): choosing from those that are"
      : select_other_ranks(q)
          ? "the program that is allowed is for another number of ranks: choosing from all (hocket program show FILE)"
          : "none of the allowed algorithms can do this collective here: choosing from all";
  memset(w->barred, 0, sizeof w->barred);
  HK_OR_RETURN(select_from_part(q, note, out));
  if (!out->algorithm)
    return HK_FAIL(HK_ERR_INTERNAL, "no algorithm can do %s%s of %d ranks on %d hosts",
                   q->m->quantised ? "quantised " : "", hk_coll_name(q->coll), q->m->team.nranks, q->m->team.nhosts);
  out->overruled = other.algorithm != NULL;
  return HK_OK;
}

hk_status hk_select(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes, hk_decision *out) {
  hk_filter w = filter ? *filter : select_no_filter;
  const question q = {m, &w, coll, bytes};
  HK_OR_RETURN(select_by_rule(&q, out));
  if (!out->algorithm) HK_OR_RETURN(select_cheapest(&q, out));
  if (out->algorithm) return HK_OK;
  /* Nothing that the filter allows can run: its parts are dropped one after another. */
  w.any_size = true;
  HK_OR_RETURN(select_cheapest(&q, out));
  w.any_size = false;
  memset(w.only, 0, sizeof w.only);
  HK_OR_RETURN(select_from_part(&q, "what the call selects cannot be used here: choosing from all", out));
  memset(w.barred_protocols, 0, sizeof w.barred_protocols);
  HK_OR_RETURN(select_from_part(&q, "none of the allowed protocols is there: choosing from all", out));
  return out->algorithm ? HK_OK : select_from_all(&q, &w, out);
}

hk_status hk_select_one(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes, const hk_algorithm *a,
                        hk_protocol p, hk_decision *out, bool *can) {
  hk_filter w = filter ? *filter : select_no_filter;
  const question q = {m, &w, coll, bytes};
  const hk_algorithm *const *all = hk_filter_algorithms(&w);
  int i = 0;
  w.any_size = true;
  while (all[i] && all[i] != a) i++;
  *can = all[i] && hk_algorithm_has(a, coll) && !select_excluded(&q, i) && select_speaks(m, a, (int)p) &&
         !select_protocol_excluded(&q, i, (int)p);
  if (*can) HK_OR_RETURN(select_price(&q, a, p, out));
  *can = *can && out->us != INFINITY;
  return HK_OK;
}

/* Prices a candidate if it can win or is quick to price, else says why it has no price. */
static hk_status select_price_row(const question *q, const candidate *x, double best, hk_alternative *row) {
  if (select_loses(x, best) && x->work > QUICK_WORK) {
    row->why = select_words[x->row.what.protocol].slower;
    return HK_OK;
  }
  HK_OR_RETURN(select_price(q, x->row.what.algorithm, x->row.what.protocol, &row->what));
  if (row->what.us < INFINITY) return HK_OK;
  row->what.us = 0;
  row->why = q->m->quantised ? "would quantise sums that are not whole, or give ranks different bits"
                             : "has programs that are too large for so many ranks";
  return HK_OK;
}

hk_status hk_select_all(const hk_machine *m, const hk_filter *filter, hk_coll coll, size_t bytes,
                        hk_alternative out[HK_ALTERNATIVES], int *n) {
  const question q = {m, filter ? filter : &select_no_filter, coll, bytes};
  candidates c;
  double best = INFINITY;
  *n = 0;
  HK_OR_RETURN(select_list(&c, &q));
  for (const candidate *x = c.at; x < c.at + c.n; x++) {
    hk_alternative row = x->row;
    if (!row.why) HK_OR_RETURN(select_price_row(&q, x, best, &row));
    if (!row.why && row.what.us < best) best = row.what.us;
    int at = (*n)++;
    for (; at > 0 && !row.why && (out[at - 1].why || out[at - 1].what.us > row.what.us); at--) out[at] = out[at - 1];
    out[at] = row;
  }
  return HK_OK;
}

const char *hk_decision_algorithm(const hk_decision *d) { return d->algorithm->name; }
