/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of programs in the text form: one set of programs after another. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "formats.h"

/* A program of the file; its text ends where the next one begins. */
typedef struct text_piece {
  char *text;
  int line;
  hk_program *program;
} text_piece;

/* Empties lines that start with #, so that lines keep their numbers, and drops carriage returns. */
static void text_strip(char *text) {
  char *to = text;
  bool comment = false, line_start = true;
  for (const char *from = text; *from; from++) {
    if (line_start) comment = *from == '#';
    line_start = *from == '\n';
    if ((!comment && *from != '\r') || line_start) *to++ = *from;
  }
  *to = 0;
}

/* A line that is indented or names a lane continues a program, any other begins one. */
static bool text_begins_program(const char *line) {
  return *line && *line != '\n' && *line != ' ' && strncmp(line, "lane ", 5) != 0;
}

static bool text_cut(char *text, text_piece **pieces, int *n) {
  int line = 1;
  for (char *at = text; *at; line++) {
    const size_t length = strcspn(at, "\n");
    if (text_begins_program(at)) {
      if (!HK_RESERVE_NEXT(*pieces, *n)) return false;
      (*pieces)[(*n)++] = (text_piece){.text = at, .line = line};
      if (at > text) at[-1] = 0;
    }
    at += length + (at[length] == '\n');
  }
  return true;
}

static bool text_same_set(const hk_program *a, const hk_program *b) {
  return a->coll == b->coll && a->nranks == b->nranks && a->root == b->root && !strcmp(a->algorithm, b->algorithm);
}

/* Moves the programs of one set, which are `first` and those after it, in any order, into the file. */
static hk_status text_gather(hk_program_file *out, const char *name, text_piece *first, const text_piece *end) {
  const int n = first->program->nranks;
  if (n == 0) return HK_FAIL(HK_ERR_ARGUMENT, "%s:%d: a collective of 0 ranks", name, first->line);
  const hk_program head = *first->program;
  hk_program_set *s = hk_program_file_add(out, n);
  if (!s || !(s->lines = calloc((size_t)n, sizeof *s->lines))) return HK_FAIL_ERRNO("no memory for %s", name);
  for (text_piece *p = first; p < end && p < first + n; p++) {
    const int r = p->program->rank;
    if (!text_same_set(p->program, &head) || r >= n || s->programs[r]) break;
    s->programs[r] = p->program;
    s->lines[r] = p->line;
    p->program = NULL;
  }
  for (int r = 0; r < n; r++)
    if (!s->programs[r])
      return HK_FAIL(HK_ERR_ARGUMENT,
                     "%s:%d: the program of rank %d of %d is missing: a proof needs those of all ranks", name,
                     first->line, r, n);
  return HK_OK;
}

hk_status hk_text_programs_read(hk_program_file *out, const char *name, char *text) {
  hk_status rc = HK_OK;
  text_piece *pieces = NULL;
  int n = 0;
  text_strip(text);
  if (!text_cut(text, &pieces, &n)) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the programs of %s", name), out);
  if (!n) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s holds no program", name), out);
  for (int i = 0; i < n; i++) {
    rc = hk_program_parse_at(pieces[i].text, pieces[i].line, &pieces[i].program);
    if (rc != HK_OK) HK_GIVE_UP(HK_FAIL(rc, "%s: %s", name, hk_last_error()), out);
  }
  for (int i = 0; i < n; i += out->sets[out->nsets - 1].nranks)
    HK_TRY(text_gather(out, name, &pieces[i], pieces + n), out);
out:
  for (int i = 0; i < n; i++) hk_program_free(pieces[i].program);
  free(pieces);
  return rc;
}
