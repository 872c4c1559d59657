/* SPDX-License-Identifier: Apache-2.0 */
/* Values that a file below tests/golden keeps, one line for each group of them: "group|word word ...".
 * HOCKET_TEST_UPDATE=1 writes the file again. Its diff shows what a change reaches; look at it before you commit it. */
#ifndef HK_TESTS_GOLDEN_H
#define HK_TESTS_GOLDEN_H
#include <math.h>
#include "suite.h"

typedef struct golden {
  FILE *file;
  bool update;
  char group[600]; /* the current line's; empty: none is begun */
  char *line, *at; /* the line, and the first word of it that is not compared yet */
  size_t capacity;
} golden;

static inline bool golden_read(golden *g) {
  const ssize_t n = getline(&g->line, &g->capacity, g->file);
  if (n > 0 && g->line[n - 1] == '\n') g->line[n - 1] = '\0';
  if (n <= 0 && g->line) *g->line = '\0';
  return n > 0;
}
/* At the first line that begins with `what`; an update appends, so a test's main begins with golden_clear. */
static inline golden golden_open(const char *path, const char *what) {
  golden g = {.update = getenv("HOCKET_TEST_UPDATE")};
  long at = 0;
  g.file = fopen(path, g.update ? "a" : "r");
  ck_assert_msg(g.file, "%s cannot be opened: run this in the repository's root", path);
  while (!g.update && golden_read(&g) && strncmp(g.line, what, strlen(what)) != 0) at = ftell(g.file);
  if (!g.update) ck_assert_int_eq(fseek(g.file, at, SEEK_SET), 0);
  return g;
}
static inline void golden_clear(const char *path) {
  if (getenv("HOCKET_TEST_UPDATE")) remove(path);
}

/* The line's values are over. */
static inline void golden_end_line(golden *g) {
  if (!*g->group) return;
  if (g->update) fputc('\n', g->file);
  ck_assert_msg(g->update || !*g->at, "%s has no more values, but had:%s", g->group, g->at);
  *g->group = '\0';
}
static inline void golden_close(golden *g) {
  golden_end_line(g);
  fclose(g->file);
  free(g->line);
}
/* Values of another group begin another line. */
static inline void golden_begin_line(golden *g, const char *group) {
  const size_t n = strlen(group);
  if (!strcmp(g->group, group)) return;
  golden_end_line(g);
  ck_assert(n && n < sizeof g->group);
  memcpy(g->group, group, n + 1);
  if (g->update) {
    fprintf(g->file, "%s|", group);
    return;
  }
  ck_assert_msg(golden_read(g) && !strncmp(g->line, group, n) && g->line[n] == '|', "%s, not %s", g->line, group);
  g->at = g->line + n + 1;
}
/* The length of the line's next word. */
static inline size_t golden_next(golden *g) {
  g->at += *g->at == ' ';
  return strcspn(g->at, " ");
}

/* Compares a word, which has no spaces, with the line's next one. A failure tells of which member of the group it is,
 * and has the text for which it stands. */
static inline void golden_word(golden *g, const char *group, const char *member, const char *word, const char *text) {
  const bool first = strcmp(g->group, group) != 0;
  golden_begin_line(g, group);
  if (g->update) {
    fprintf(g->file, "%s%s", first ? "" : " ", word);
    return;
  }
  const size_t n = golden_next(g);
  ck_assert_msg(strlen(word) == n && !memcmp(word, g->at, n), "%s, %s: now %s, was %.*s%s%s", group, member, word,
                (int)n, g->at, *text ? ": " : "", text);
  g->at += n;
}

/* Compares figures with the line's next words: whole numbers exactly, others to 1e-5, as compilers round in their own
 * ways. */
static inline void golden_figures(golden *g, const char *group, const char *member, int n, const double *is) {
  for (int i = 0; i < n; i++) {
    char word[40];
    const bool whole = is[i] == rint(is[i]) && fabs(is[i]) < 1e15;
    snprintf(word, sizeof word, whole ? "%.0f" : "%.6g", is[i]);
    const bool same_line = !strcmp(g->group, group);
    golden_begin_line(g, group);
    if (g->update) {
      fprintf(g->file, "%s%s", !same_line ? "" : i ? " " : ", ", word);
      continue;
    }
    g->at += *g->at == ',';
    const size_t length = golden_next(g);
    const double was = length ? strtod(g->at, NULL) : NAN;
    ck_assert_msg(fabs(is[i] - was) <= (whole ? 0 : 1e-5 * fabs(was)), "%s, %s: figure %d is now %s, was %.*s", group,
                  member, i, word, (int)length, g->at);
    g->at += strcspn(g->at, ", ");
  }
}

static inline uint32_t golden_hash(uint32_t hash, const void *bytes, size_t n) { /* FNV-1a */
  for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 16777619u;
  return hash;
}

/* Compares words with the next line. */
static inline void golden_words(golden *g, const char *name, const char *words) {
  golden_begin_line(g, name);
  if (g->update) fputs(words, g->file);
  if (!g->update) ck_assert_msg(!strcmp(words, g->at), "%s\nnow: %s\nwas: %s", name, words, g->at);
  g->at = g->line + (g->line ? strlen(g->line) : 0);
  golden_end_line(g);
}

/* HOCKET_TEST_TEXTS=file appends texts for which the golden file has a hash or a summary: those of the code before and
 * after a change show what differs. */
static inline void golden_keep_text(const char *group, const char *member, const char *text, size_t size) {
  const char *path = getenv("HOCKET_TEST_TEXTS");
  FILE *f = path ? fopen(path, "ae") : NULL;
  if (!f) return;
  fprintf(f, "== %s %s\n%.*s\n", group, member, (int)size, text);
  fclose(f);
}

/* Compares the length and a hash of a text with the line's next word, and frees it. */
static inline void golden_text(golden *g, const char *group, const char *member, char *text, size_t size) {
  char word[40];
  golden_keep_text(group, member, text, size);
  snprintf(word, sizeof word, "%zu:%08x", size, golden_hash(0, text, size));
  free(text);
  golden_word(g, group, member, word, "HOCKET_TEST_TEXTS=file writes the texts");
}

/* Compares hashes of n texts with the line's next words: `say` writes the k-th one of the member into `said`. */
enum { GOLDEN_TEXT = 1000 };
static inline void golden_texts(golden *g, const char *group, const char *member, unsigned n,
                                void (*say)(void *arg, const char *member, unsigned k, char *said), void *arg) {
  char is[8], said[GOLDEN_TEXT];
  for (unsigned k = 0; k < n; k++) {
    say(arg, member, k, said);
    snprintf(is, sizeof is, "%04x", golden_hash(2166136261u, said, strlen(said)) & 0xffff);
    golden_word(g, group, member, is, said);
  }
}

/* Names by what is so for them: one line for each of these texts. */
enum { GOLDEN_BINS = 200 };
typedef struct golden_bins {
  char *text[GOLDEN_BINS], *names[GOLDEN_BINS];
  int n;
} golden_bins;
static inline void golden_bin(golden_bins *b, const char *text, const char *name) {
  int i = 0;
  char *names;
  while (i < b->n && strcmp(b->text[i], text)) i++;
  ck_assert_int_lt(i, GOLDEN_BINS);
  if (i == b->n) b->text[b->n++] = strdup(text), b->names[i] = strdup("");
  ck_assert_int_ge(asprintf(&names, "%s%s%s", b->names[i], *b->names[i] ? " " : "", name), 0);
  free(b->names[i]);
  b->names[i] = names;
}
static inline void golden_bins_end(golden *g, golden_bins *b, const char *group) {
  for (int i = 0; i < b->n; i++) {
    char *name;
    ck_assert_int_ge(asprintf(&name, "%s: %s", group, b->text[i]), 0);
    golden_words(g, name, b->names[i]);
    free(name), free(b->text[i]), free(b->names[i]);
  }
  b->n = 0;
}
#endif
