/* SPDX-License-Identifier: Apache-2.0 */
#include "randprog_emit.h"
#include <stdbool.h>
#include <stdlib.h>
#include "../../src/program/builder.h"
#include "randprog.h" /* random_below */

/* A step whose links have indices. */
typedef struct ready_step {
  unsigned flags, ndst, nsrc;
  hk_operand operands[2 * RAND_OPERANDS];
  int kinds[2 * RAND_OPERANDS]; /* of links */
} ready_step;

typedef struct list {
  rand_step *steps;
  size_t count, capacity;
} list;
struct rand_emit {
  int nranks, lanes;
  list lists[RAND_RANKS][RAND_LANES];
};

rand_emit *rand_emit_new(int nranks, int lanes) {
  rand_emit *e = calloc(1, sizeof *e);
  e->nranks = nranks;
  e->lanes = lanes;
  return e;
}

void rand_emit_step(rand_emit *e, int rank, int lane, const rand_step *step) {
  list *l = &e->lists[rank][lane];
  if (l->count == l->capacity) {
    l->capacity = l->capacity ? l->capacity * 2 : 16;
    l->steps = realloc(l->steps, l->capacity * sizeof *l->steps);
    if (!l->steps) abort();
  }
  l->steps[l->count++] = *step;
}

static hk_operand ready_operand(hk_builder *b, const rand_operand *o) {
  hk_operand r = {.space = (uint8_t)o->space, .block = o->block};
  if (o->space != HK_LINK) return r;
  hk_build_channel(b, (unsigned)o->channel);
  r.link = hk_build_link(b, (hk_link_kind)o->kind, o->peer);
  return r;
}

static void make_ready(hk_builder *b, const rand_step *s, ready_step *r) {
  r->flags = s->flags;
  r->ndst = (unsigned)s->ndst;
  r->nsrc = (unsigned)s->nsrc;
  for (int k = 0; k < s->ndst + s->nsrc; k++) {
    const rand_operand *o = k < s->ndst ? &s->dst[k] : &s->src[k - s->ndst];
    r->operands[k] = ready_operand(b, o);
    r->kinds[k] = o->kind;
  }
}

/* Makes the lane's links, sometimes all peers' of one kind first, so that steps over links can form repeats. */
static void make_links(hk_builder *b, const list *l, int nranks, int rank, uint64_t *seed) {
  if (random_below(seed, 2)) return;
  for (unsigned kind = 0; kind < 2; kind++)
    for (int channel = 0; channel < RAND_CHANNELS; channel++)
      for (int d = 1; d < nranks; d++) {
        int peer = (rank + (kind ? nranks - d : d)) % nranks;
        for (size_t k = 0; k < l->count; k++) {
          const rand_step *s = &l->steps[k];
          const rand_operand *o = kind ? s->src : s->dst;
          for (int n = kind ? s->nsrc : s->ndst; n; n--, o++)
            if (o->space == HK_LINK && o->kind == (int)kind && o->peer == peer && o->channel == channel)
              ready_operand(b, o);
        }
      }
}

/* Sets in `o` the stride and the step that lead to `next` in one iteration; false where none do. */
static bool relate(hk_operand *o, const hk_operand *next) {
  int stride = (int)next->block - o->block, step = (int)next->link - o->link;
  if (o->space != next->space || step < 0 || step > 1) return false;
  o->stride = (int16_t)stride;
  o->flags = step ? HK_OPERAND_STEP : 0;
  return true;
}

/* Is step `s` iteration j of the body, whose strides are set? */
static bool matches(const ready_step *body, const ready_step *s, int j, const int *blocks) {
  if (body->flags != s->flags || body->ndst != s->ndst || body->nsrc != s->nsrc) return false;
  for (unsigned k = 0; k < s->ndst + s->nsrc; k++) {
    const hk_operand *o = &body->operands[k], *p = &s->operands[k];
    int n = blocks[o->space], block = ((o->block + j * o->stride) % n + n) % n;
    if (o->space != p->space || body->kinds[k] != s->kinds[k] || block != p->block) return false;
    if (o->space == HK_LINK && o->link + (o->flags ? j : 0) != p->link) return false;
  }
  return true;
}

/* How many times the `body` steps at `s` repeat, with the strides set in `with`. */
static int repeats(const ready_step *s, size_t left, size_t body, const int *blocks, ready_step *with) {
  int count = 1;
  if (left < 2 * body) return 1;
  for (size_t k = 0; k < body; k++) {
    with[k] = s[k];
    if (s[k].ndst != s[k + body].ndst || s[k].nsrc != s[k + body].nsrc) return 1;
    for (unsigned o = 0; o < s[k].ndst + s[k].nsrc; o++)
      if (!relate(&with[k].operands[o], &s[k + body].operands[o])) return 1;
  }
  for (;; count++)
    for (size_t k = 0; k < body; k++) {
      size_t at = (size_t)count * body + k;
      if (at >= left || !matches(&with[k], &s[at], count, blocks)) return count;
    }
}

static void build_steps(hk_builder *b, const ready_step *s, size_t n) {
  for (size_t k = 0; k < n; k++)
    hk_build_move(b, s[k].flags, s[k].operands, s[k].ndst, s[k].operands + s[k].ndst, s[k].nsrc);
}

static void build_lane(hk_builder *b, const ready_step *s, size_t n, const int *blocks) {
  enum { MAX_BODY = 3 };
  ready_step with[MAX_BODY];
  for (size_t k = 0; k < n;) {
    size_t body = 1;
    int count = 1;
    while (body <= MAX_BODY && (count = repeats(s + k, n - k, body, blocks, with)) == 1) body++;
    if (count == 1) {
      build_steps(b, s + k++, 1);
      continue;
    }
    hk_build_repeat(b, (unsigned)count);
    build_steps(b, with, body);
    hk_build_end_repeat(b);
    k += (size_t)count * body;
  }
}

static hk_program *build_rank(rand_emit *e, const hk_build *what, unsigned split, unsigned scratch, uint64_t *seed) {
  hk_builder *b;
  hk_program *p;
  int n = what->nranks, in = hk_coll_in_blocks(what->coll, n), out = hk_coll_out_blocks(what->coll, n);
  int blocks[] = {[HK_IN] = in, [HK_OUT] = out, [HK_SCRATCH] = (int)scratch, [HK_LINK] = in > out ? in : out};
  if (split) blocks[HK_IN] = blocks[HK_OUT] = blocks[HK_LINK] = (int)split;
  if (hk_builder_new(&b, what) != HK_OK) abort();
  if (split) hk_build_split(b, split);
  hk_build_scratch(b, scratch);
  for (int lane = 0; lane < e->lanes; lane++) {
    list *l = &e->lists[what->rank][lane];
    ready_step *ready = calloc(l->count + 1, sizeof *ready);
    hk_build_lane(b);
    make_links(b, l, n, what->rank, seed);
    for (size_t k = 0; k < l->count; k++) make_ready(b, &l->steps[k], &ready[k]);
    build_lane(b, ready, l->count, blocks);
    free(ready);
    free(l->steps);
  }
  if (hk_builder_finish(b, "random", &p) != HK_OK) abort();
  return p;
}

hk_program **rand_emit_finish(rand_emit *e, hk_coll coll, int root, unsigned split, unsigned scratch, uint64_t seed) {
  hk_program **programs = calloc((size_t)e->nranks, sizeof *programs);
  for (int r = 0; r < e->nranks; r++) {
    hk_build what = {.coll = coll, .rank = r, .nranks = e->nranks, .root = root};
    programs[r] = build_rank(e, &what, split, scratch, &seed);
  }
  free(e);
  return programs;
}
