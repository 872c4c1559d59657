/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of figures that a file below tests/golden keeps: HOCKET_TEST_UPDATE=1 writes the file again. Its diff shows
 * what a change reaches; look at it before you commit it. */
#ifndef HK_TESTS_GOLDEN_H
#define HK_TESTS_GOLDEN_H
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GOLDEN_FIGURES = 4 };

typedef struct golden {
  FILE *file;
  bool update;
} golden;

/* At the first line that begins with `what`; an update appends, so a test's main begins with golden_clear. */
static inline golden golden_open(const char *path, const char *what) {
  golden g = {.update = getenv("HOCKET_TEST_UPDATE")};
  char text[300];
  long at = 0;
  g.file = fopen(path, g.update ? "a" : "r");
  ck_assert_msg(g.file, "%s cannot be opened: run this in the repository's root", path);
  while (!g.update && fgets(text, sizeof text, g.file) && strncmp(text, what, strlen(what)) != 0) at = ftell(g.file);
  if (!g.update) ck_assert_int_eq(fseek(g.file, at, SEEK_SET), 0);
  return g;
}
static inline void golden_clear(const char *path) {
  if (getenv("HOCKET_TEST_UPDATE")) remove(path);
}

/* Compares with the next line. Another compiler may round a figure in another way: 1e-9 of it is allowed. */
static inline void golden_line(const golden *g, const char *name, const double is[GOLDEN_FIGURES]) {
  char text[300] = "";
  if (g->update) {
    fprintf(g->file, "%s|%.12g %.12g %.12g %.12g\n", name, is[0], is[1], is[2], is[3]);
    return;
  }
  ck_assert_msg(fgets(text, sizeof text, g->file) && !strncmp(text, name, strlen(name)), "%s, not %s", text, name);
  char *at = text + strlen(name) + 1;
  for (int i = 0; i < GOLDEN_FIGURES; i++) {
    double was = strtod(at, &at);
    ck_assert_msg(fabs(is[i] - was) <= 1e-9 * fabs(was), "%s: figure %d is %.12g, was %.12g", name, i, is[i], was);
  }
}

static inline uint32_t golden_hash(uint32_t hash, const void *bytes, size_t n) { /* FNV-1a */
  for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 16777619u;
  return hash;
}

/* Compares words with the next line. */
static inline void golden_words(const golden *g, const char *name, const char *words) {
  char text[2000] = "";
  if (g->update) {
    fprintf(g->file, "%s|%s\n", name, words);
    return;
  }
  ck_assert_msg(fgets(text, sizeof text, g->file) && !strncmp(text, name, strlen(name)), "%s, not %s", text, name);
  text[strcspn(text, "\n")] = 0;
  ck_assert_str_eq(words, text + strlen(name) + 1);
}

/* Compares the length and a hash of a text with the next line, and frees it. HOCKET_TEST_TEXTS=file appends the texts
 * themselves to a file: those of the code before and after a change show what differs. */
static inline void golden_text(const golden *g, const char *name, char *text, size_t size) {
  const char *path = getenv("HOCKET_TEST_TEXTS");
  char words[40];
  FILE *f = path ? fopen(path, "ae") : NULL;
  if (f) {
    fprintf(f, "== %s\n%.*s\n", name, (int)size, text);
    fclose(f);
  }
  snprintf(words, sizeof words, "%zu %08x", size, golden_hash(0, text, size));
  free(text);
  golden_words(g, name, words);
}

/* Compares n texts with the next line, which has a hash of each: `say` writes the k-th one, of the name's line, into
 * `said`. */
enum { GOLDEN_TEXT = 1000, GOLDEN_TEXTS = 64 };
static inline void golden_texts(const golden *g, const char *name, unsigned n,
                                void (*say)(void *arg, const char *name, unsigned k, char *said), void *arg) {
  char is[8] = "", was[GOLDEN_TEXTS * 5 + 100] = "", said[GOLDEN_TEXT];
  const size_t length = strlen(name);
  ck_assert_msg(g->update || (fgets(was, sizeof was, g->file) && !strncmp(was, name, length)), "%s, not %s", was, name);
  if (g->update) fputs(name, g->file);
  for (unsigned k = 0; k < n; k++) {
    say(arg, name, k, said);
    snprintf(is, sizeof is, " %04x", golden_hash(2166136261u, said, strlen(said)) & 0xffff);
    ck_assert_msg(g->update || !strncmp(is, was + length + 5 * k, 5), "%s: text %u is now: %s", name, k, said);
    if (g->update) fputs(is, g->file);
  }
  if (g->update) fputs("\n", g->file);
}
#endif
