/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of programs: made, proved, freed (file.h). */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../program/program_internal.h" /* characters of names */
#include "../program/verify.h"
#include "formats.h"

hk_program_set *hk_program_file_add(hk_program_file *f, int nranks) {
  if (!HK_RESERVE_NEXT(f->sets, f->nsets)) return NULL;
  hk_program_set *s = &f->sets[f->nsets];
  *s = (hk_program_set){.nranks = nranks, .in_place = true, .out_of_place = true};
  s->programs = calloc((size_t)nranks, sizeof(hk_program *));
  if (!s->programs) return NULL;
  f->nsets++;
  return s;
}

static bool set_is_of(const hk_program *a, const hk_program *b) {
  return a->coll == b->coll && a->nranks == b->nranks && a->root == b->root && !strcmp(a->algorithm, b->algorithm);
}

/* Moves the programs of one set, which begins with piece `at`, into the file. */
static hk_status set_gather(hk_program_file *out, const char *name, const char *list, hk_program_piece *pieces, int at,
                            int end) {
  const hk_program head = *pieces[at].program;
  const int n = head.nranks, line = pieces[at].line;
  char place[60];
  if (line)
    snprintf(place, sizeof place, ":%d", line);
  else
    snprintf(place, sizeof place, ": %.40s[%d]", list, at);
  if (n == 0) return HK_FAIL(HK_ERR_ARGUMENT, "%s%s: a collective of 0 ranks", name, place);
  hk_program_set *s = hk_program_file_add(out, n);
  if (!s || (line && !(s->lines = calloc((size_t)n, sizeof *s->lines)))) return HK_FAIL_ERRNO("no memory for %s", name);
  for (hk_program_piece *p = &pieces[at]; p < pieces + end && p < pieces + at + n; p++) {
    const int r = p->program->rank;
    if (!set_is_of(p->program, &head) || r >= n || s->programs[r]) break;
    s->programs[r] = p->program;
    if (s->lines) s->lines[r] = p->line;
    p->program = NULL;
  }
  for (int r = 0; r < n; r++)
    if (!s->programs[r])
      return HK_FAIL(HK_ERR_ARGUMENT, "%s%s: the program of rank %d of %d is missing: a proof needs those of all ranks",
                     name, place, r, n);
  hk_program_set_span(s);
  return HK_OK;
}

hk_status hk_program_file_gather(hk_program_file *out, const char *name, const char *list, hk_program_piece *pieces,
                                 int n) {
  for (int i = 0; i < n; i += out->sets[out->nsets - 1].nranks) HK_OR_RETURN(set_gather(out, name, list, pieces, i, n));
  return HK_OK;
}

void hk_program_algorithm_name(char out[24], const char *name, const char *if_none) {
  snprintf(out, 24, "%s", name && *name ? name : if_none);
  for (char *p = out; *p; p++)
    if (!strchr(HK_PROGRAM_NAME_CHARACTERS, *p)) *p = '_';
}

void hk_program_set_span(hk_program_set *s) {
  uint16_t span = 0;
  for (int r = 0; r < s->nranks; r++)
    if (s->programs[r]->traits.span > span) span = s->programs[r]->traits.span;
  for (int r = 0; r < s->nranks; r++) s->programs[r]->traits.span = span;
}

hk_status hk_program_set_try(const hk_program_set *s, unsigned slots, hk_verify_report *report) {
  hk_status rc = HK_OK;
  for (int in_place = 0; in_place < 2 && rc == HK_OK; in_place++) {
    const hk_verify_options o = {.slots = slots, .waves = slots + 1, .in_place = in_place};
    rc = hk_verify((const hk_program *const *)s->programs, s->nranks, &o, report);
  }
  return rc;
}

hk_status hk_program_set_prove(hk_program_set *s, const char *name, unsigned slots) {
  hk_verify_report report;
  const hk_status rc = s->proved ? HK_OK : hk_program_set_try(s, slots, &report);
  s->proved = rc == HK_OK;
  return rc == HK_ERR_INTERNAL ? HK_FAIL(HK_ERR_ARGUMENT, "%s: %s", name, report.message) : rc;
}

hk_status hk_program_file_prove(hk_program_file *f, const char *name, unsigned slots) {
  for (int i = 0; i < f->nsets; i++) HK_OR_RETURN(hk_program_set_prove(&f->sets[i], name, slots));
  if (!f->way) f->way = 1;
  return HK_OK;
}

void hk_program_set_free(hk_program_set *s) {
  for (int r = 0; s->programs && r < s->nranks; r++) hk_program_free(s->programs[r]);
  free(s->programs);
  free(s->lines);
  s->programs = NULL;
  s->lines = NULL;
}

void hk_program_file_free(hk_program_file *f) {
  for (int i = 0; i < f->nsets; i++) hk_program_set_free(&f->sets[i]);
  free(f->sets);
  *f = (hk_program_file){.nsets = 0};
}
