/* SPDX-License-Identifier: Apache-2.0 */
/* Output for people: tables, wrapped text, units, colours. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../base/array.h"
#include "tools.h"

const char *hk_tool_style(FILE *to, hk_style s) {
  static const char *const sequences[] = {
      [HK_STYLE_PLAIN] = "\033[0m", [HK_STYLE_BOLD] = "\033[1m",   [HK_STYLE_DIM] = "\033[2m",
      [HK_STYLE_RED] = "\033[31m",  [HK_STYLE_GREEN] = "\033[32m", [HK_STYLE_YELLOW] = "\033[33m"};
  const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
  if ((no && *no) || (term && !strcmp(term, "dumb")) || !isatty(fileno(to))) return "";
  return sequences[s];
}

/* How many columns a text takes: the bytes of UTF-8 except continuation bytes. */
static int table_columns(const char *text, size_t bytes) {
  int n = 0;
  for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
  return n;
}

static void table_spaces(FILE *to, int n) {
  if (n > 0) fprintf(to, "%*s", n, "");
}

/* One paragraph; the first line begins at `column`. Returns the column after the last word. */
static void table_wrap_paragraph(FILE *to, int indent, int column, const char *text, size_t bytes) {
  const char *end = text + bytes;
  bool first = true;
  while (text < end) {
    size_t word = strcspn(text, " \n");
    if (word > (size_t)(end - text)) word = (size_t)(end - text);
    if (word == 0) {
      text++;
      continue;
    }
    int wide = table_columns(text, word);
    if (!first && column + 1 + wide > HK_TOOL_WIDTH) {
      fputc('\n', to);
      table_spaces(to, indent);
      column = indent;
      first = true;
    }
    if (!first) fputc(' ', to), column++;
    fwrite(text, 1, word, to);
    column += wide;
    text += word;
    first = false;
  }
}

void hk_tool_wrap(FILE *to, int indent, const char *text) {
  while (*text) {
    size_t n = strcspn(text, "\n");
    if (n) {
      size_t own = strspn(text, " ");
      int from = indent + (int)(own < n ? own : n);
      table_spaces(to, from);
      if (own && from + table_columns(text + own, n - own) <= HK_TOOL_WIDTH)
        fwrite(text + own, 1, n - own, to); /* unchanged, with its alignment */
      else
        table_wrap_paragraph(to, from, from, text, n);
    }
    fputc('\n', to);
    text += n + (text[n] == '\n');
  }
}

const char *hk_tool_time(char *text, double us) {
  double v = us < 1000 ? us : us < 1e6 ? us / 1e3 : us / 1e6;
  const char *unit = us < 1000 ? "us" : us < 1e6 ? "ms" : "s";
  snprintf(text, 32, "%.*f %s", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v, unit);
  return text;
}

const char *hk_tool_bytes(char *text, size_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double v = (double)bytes;
  int u = 0;
  while (v >= 1024 && u < 5) v /= 1024, u++;
  snprintf(text, 32, v < 10 && v > floor(v) ? "%.1f %s" : "%.0f %s", v, units[u]);
  return text;
}

typedef struct cell {
  hk_style style;
  char *text;
} cell;

struct hk_table {
  char columns[64];
  size_t ncolumns, ncells, capacity;
  int gap; /* between columns */
  cell *cells;
};

hk_table *hk_table_new(const char *columns) {
  hk_table *t = calloc(1, sizeof *t);
  if (!t) abort(); /* a table is small; a command that is out of memory cannot report anything */
  snprintf(t->columns, sizeof t->columns, "%s", columns);
  t->ncolumns = strlen(t->columns);
  t->gap = 2;
  return t;
}

void hk_table_narrow(hk_table *t) { t->gap = 1; }

static void table_add_cell(hk_table *t, hk_style s, char *text) {
  if (!HK_RESERVE(t->cells, t->capacity, t->ncells + 1) || !text) abort();
  t->cells[t->ncells++] = (cell){s, text};
}

static char *table_format_text(const char *format, va_list args) {
  char *text = NULL;
  return vasprintf(&text, format, args) < 0 ? NULL : text;
}

void hk_table_cell(hk_table *t, hk_style s, const char *format, ...) {
  va_list args;
  va_start(args, format);
  table_add_cell(t, s, table_format_text(format, args));
  va_end(args);
}

void hk_table_row(hk_table *t, hk_style s, const char *format, ...) {
  va_list args;
  va_start(args, format);
  char *line = table_format_text(format, args), *rest = line;
  va_end(args);
  for (size_t k = 0; k < t->ncolumns; k++) {
    size_t n = strcspn(rest, "\t");
    table_add_cell(t, s, strndup(rest, n));
    rest += n + (rest[n] == '\t');
  }
  free(line);
}

void hk_table_print(hk_table *t, int indent, FILE *to) {
  int wide[sizeof t->columns] = {0};
  for (size_t i = 0; i < t->ncells; i++) {
    int n = table_columns(t->cells[i].text, strlen(t->cells[i].text));
    if (n > wide[i % t->ncolumns]) wide[i % t->ncolumns] = n;
  }
  for (size_t i = 0; i < t->ncells; i++) {
    size_t k = i % t->ncolumns;
    const cell *c = &t->cells[i];
    int n = table_columns(c->text, strlen(c->text)), column = indent;
    bool last = k + 1 == t->ncolumns;
    for (size_t j = 0; j < k; j++) column += wide[j] + t->gap;
    if (k == 0) table_spaces(to, indent);
    if (t->columns[k] == 'r') table_spaces(to, wide[k] - n);
    if (n && c->style) fputs(hk_tool_style(to, c->style), to);
    if (t->columns[k] == 'w')
      table_wrap_paragraph(to, column, column, c->text, strlen(c->text));
    else
      fputs(c->text, to);
    if (n && c->style) fputs(hk_tool_style(to, HK_STYLE_PLAIN), to);
    if (last) {
      fputc('\n', to);
      continue;
    }
    bool more = false; /* no spaces at a line's end */
    for (size_t j = i + 1; j % t->ncolumns != 0; j++) more |= t->cells[j].text[0] != 0;
    if (!more) {
      fputc('\n', to);
      i += t->ncolumns - k - 1;
      continue;
    }
    if (t->columns[k] != 'r') table_spaces(to, wide[k] - n);
    table_spaces(to, t->gap);
  }
  for (size_t i = 0; i < t->ncells; i++) free(t->cells[i].text);
  free(t->cells);
  free(t);
}
