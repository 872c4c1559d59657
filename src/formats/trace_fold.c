/* SPDX-License-Identifier: Apache-2.0 */
/* Folds parts of a message that all ranks treat alike (trace.h). A part's flow is what all ranks do with it: the
 * records that move it, in their order, without the numbers of parts, channels and scratch chunks. Parts never meet, so
 * a part alone has the same flow as among others. The proof of the programs follows, so equal hashes are enough. */
#include <stdlib.h>
#include <string.h>
#include "../base/hash.h"
#include "trace.h"

typedef struct fold {
  uint64_t *flow; /* by part: the hash of its flow */
  int *count;     /* by part: its scratch chunks so far; later, its number among those that stay, or -1 */
  int *number;    /* by scratch chunk of a rank: its number in the flow */
} fold;

static uint64_t fold_operand(const hk_trace *x, const fold *t, const hk_trace_operand *o, bool source) {
  const hk_trace_block *b = o->space == HK_LINK ? &x->blocks[o->owner] : NULL;
  const int what = b                        ? source ? b->recv : b->send
                   : o->space == HK_SCRATCH ? t->number[o->block]
                                            : o->block / x->parts; /* the message */
  return (uint64_t)what << 2 | o->space;
}

static void fold_hash(const hk_trace *x, fold *t, int rank) {
  const hk_trace_rank *m = &x->ranks[rank];
  for (size_t i = 0; i < m->nrecords; i++) {
    const hk_trace_record *r = &m->records[i];
    uint64_t words[2 + HK_TRACE_DESTINATIONS + HK_TRACE_SOURCES];
    size_t n = 0;
    if (!r->ndst) continue;
    words[n++] = (uint64_t)rank << 16 | r->flags;
    words[n++] = (uint64_t)r->ndst << 8 | r->nsrc;
    for (int k = 0; k < r->nsrc; k++) words[n++] = fold_operand(x, t, &r->src[k], true);
    for (int k = 0; k < r->ndst; k++) {
      if (r->dst[k].space == HK_SCRATCH) t->number[r->dst[k].block] = t->count[r->part]++;
      words[n++] = fold_operand(x, t, &r->dst[k], false);
    }
    t->flow[r->part] = hk_hash(t->flow[r->part], words, n * sizeof *words);
  }
}

static int fold_common(int a, int b) {
  while (b) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* How many parts become one: it divides the number of parts of each flow. The first ones of a flow stay. */
static int fold_choose(const hk_trace *x, fold *t) {
  int by = 0, stay = 0;
  for (int p = 0; p < x->parts; p++) {
    int first = 0, n = 0;
    while (t->flow[first] != t->flow[p]) first++;
    if (first < p) continue;
    for (int q = p; q < x->parts; q++) n += t->flow[q] == t->flow[p];
    by = fold_common(by, n);
  }
  for (int p = 0; p < x->parts; p++) {
    int before = 0, all = 0;
    for (int q = 0; q < x->parts; q++) {
      before += q < p && t->flow[q] == t->flow[p];
      all += t->flow[q] == t->flow[p];
    }
    t->count[p] = before < all / by ? stay++ : -1;
  }
  return by;
}

static void fold_rename(const hk_trace *x, const fold *t, hk_trace_operand *o, int by) {
  if (o->space == HK_SCRATCH) return;
  o->block = (uint16_t)(o->block / x->parts * (x->parts / by) + t->count[o->block % x->parts]);
}

static void fold_apply(hk_trace *x, const fold *t, int rank, int by) {
  hk_trace_rank *m = &x->ranks[rank];
  size_t n = 0;
  for (size_t i = 0; i < m->nrecords; i++) {
    hk_trace_record *r = &m->records[i];
    if (!r->ndst || t->count[r->part] < 0) continue;
    for (int k = 0; k < r->nsrc; k++) fold_rename(x, t, &r->src[k], by);
    for (int k = 0; k < r->ndst; k++) fold_rename(x, t, &r->dst[k], by);
    r->part = t->count[r->part];
    m->records[n++] = *r;
  }
  m->nrecords = n;
}

hk_status hk_trace_fold(hk_trace *x) {
  hk_status rc = HK_OK;
  const size_t parts = (size_t)x->parts;
  fold t = {calloc(parts, sizeof *t.flow), calloc(parts, sizeof *t.count),
            calloc((size_t)x->scratch + 1, sizeof *t.number)};
  if (!t.flow || !t.count || !t.number) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to compare the parts of %s", x->file), out);
  for (int r = 0; r < x->nranks; r++) fold_hash(x, &t, r);
  const int by = fold_choose(x, &t);
  if (by == 1) goto out;
  for (int r = 0; r < x->nranks; r++) fold_apply(x, &t, r, by);
  x->parts /= by;
  x->nin /= by;
  x->nout /= by;
out:
  free(t.flow);
  free(t.count);
  free(t.number);
  return rc;
}
