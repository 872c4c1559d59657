/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a function's decoding: labels, and tables of labels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "decode.h"

static void add_label(ptx_label **list, unsigned *n, unsigned *capacity, uint32_t at, const ptx_token *name) {
  if (*n == *capacity) {
    *capacity = *capacity ? 2 * *capacity : 256;
    *list = realloc(*list, *capacity * sizeof **list);
    if (!*list) abort();
  }
  (*list)[(*n)++] = (ptx_label){*name, at};
}
void ptx_label_here(decoder *d, const ptx_token *name) {
  add_label(&d->labels, &d->nlabels, &d->labels_capacity, d->code->n, name);
}
void ptx_label_use(decoder *d, uint32_t ins, const ptx_token *name) {
  add_label(&d->uses, &d->nuses, &d->uses_capacity, ins, name);
}
ptx_table *ptx_add_table(decoder *d, const ptx_token *label) {
  ptx_table *t = calloc(1, sizeof *t);
  if (!t) abort();
  t->name = *label;
  t->next = d->tables;
  d->tables = t;
  return t;
}
void ptx_decoder_drop(decoder *d) {
  while (d->tables) {
    ptx_table *t = d->tables;
    d->tables = t->next;
    free(t);
  }
  free(d->labels);
  free(d->uses);
  free(d);
}

static int by_name(const void *x, const void *y) {
  const ptx_token *a = &((const ptx_label *)x)->name, *b = &((const ptx_label *)y)->name;
  const int order = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);
  return order ? order : (int)a->n - (int)b->n;
}
static ptx_ins *find_label(const decoder *d, const ptx_token *name) {
  const ptx_label key = {*name, 0}, *found = bsearch(&key, d->labels, d->nlabels, sizeof key, by_name);
  return found ? &d->code->ins[found->at] : NULL;
}
static bool link_table(const decoder *d, ptx_ins *i, const ptx_token *name) {
  for (const ptx_table *t = d->tables; t; t = t->next) {
    if (t->name.n != name->n || memcmp(t->name.at, name->at, name->n) != 0) continue;
    i->ntargets = t->n;
    i->targets = calloc(t->n, sizeof *i->targets);
    if (!i->targets) abort();
    for (unsigned k = 0; k < t->n; k++)
      if (!(i->targets[k] = find_label(d, &t->target[k]))) return false;
    return true;
  }
  return false;
}
bool ptx_link(decoder *d) {
  ptx_code *c = d->code;
  if (d->nlabels) qsort(d->labels, d->nlabels, sizeof *d->labels, by_name);
  for (unsigned u = 0; u < d->nuses; u++) {
    ptx_ins *i = &c->ins[d->uses[u].at];
    d->op = d->uses[u].name;
    d->line = i->line;
    if (i->kind == K_BRX) {
      if (!link_table(d, i, &d->uses[u].name)) return false;
    } else if (!(i->target = find_label(d, &d->uses[u].name))) {
      return false;
    }
  }
  for (unsigned k = 0; k < c->n; k++) c->ins[k].code = c;
  return true;
}
void ptx_code_drop(ptx_code *c) {
  for (unsigned k = 0; k < c->n; k++) {
    free(c->ins[k].pass);
    free(c->ins[k].back);
    free(c->ins[k].targets);
  }
  free(c->ins);
  free(c);
}

/* Other launches may be looking for it at the same time. */
const ptx_code *ptx_code_of(ptx_fn *f) {
  const ptx_code *code = __atomic_load_n(&f->code, __ATOMIC_ACQUIRE); /* acquire: what it points to */
  if (code) return code;
  pthread_mutex_lock(&f->m->lock);
  if (!f->code && !f->failed) {
    ptx_code *made = f->body ? ptx_decode(f) : NULL;
    if (!f->body) fprintf(stderr, "ptxemu: function %s has no body in its module\n", f->name);
    f->failed = made == NULL;
    __atomic_store_n(&f->code, made, __ATOMIC_RELEASE); /* release: with all that is in it */
  }
  code = f->code;
  pthread_mutex_unlock(&f->m->lock);
  return code;
}
