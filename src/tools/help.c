/* SPDX-License-Identifier: Apache-2.0 */
/* Help and manual pages from the commands' tables. */
#include "help.h"
#include <stdlib.h>
#include <string.h>

static const char purpose[] =
    "Shows what Hocket finds on a machine, what it runs there and why, proves and simulates it, and finds faults in a "
    "machine's setup. Nothing here needs a GPU or a second machine: most commands take a machine in words.";
static const char codes_always[] = "0: all is well.";
static const char codes_trouble[] = "2: wrong usage, or input that cannot be read; nothing was done.";

/* ---- --help ---- */

bool hk_help_has_letter(const hk_tool_option *rows) {
  for (; rows && rows->name; rows++)
    if (rows->letter == 'h') return false;
  return true;
}

void hk_help_all(FILE *to) {
  fputs("Usage: hocket COMMAND [OPTIONS] ...\n\n", to);
  hk_tool_wrap(to, 0, purpose);
  fputs("\nCommands:\n", to);
  hk_table *t = hk_table_new("lw");
  const hk_tool *tool;
  for (int i = 0; (tool = hk_tool_at(i)); i++) {
    hk_table_cell(t, HK_STYLE_BOLD, "%s", tool->name);
    hk_table_cell(t, HK_STYLE_PLAIN, "%s", tool->about);
  }
  hk_table_cell(t, HK_STYLE_BOLD, "help COMMAND");
  hk_table_cell(t, HK_STYLE_PLAIN, "how to use a command; the same as hocket COMMAND --help");
  hk_table_cell(t, HK_STYLE_BOLD, "help machine");
  hk_table_cell(t, HK_STYLE_PLAIN, "all words that describe a machine");
  hk_table_print(t, 2, to);
}

void hk_help_first(FILE *to) {
  hk_table *t = hk_table_new("lw");
  fputs("Usage: hocket COMMAND [OPTIONS] ...\n\nTry first:\n", to);
  hk_table_row(t, HK_STYLE_PLAIN, "hocket topo\tthis machine: how its parts reach each other");
  hk_table_row(t, HK_STYLE_PLAIN, "hocket doctor\tis anything wrong with its setup?");
  hk_table_row(t, HK_STYLE_PLAIN, "hocket plan allreduce 1M\twhat would run for 1 MiB, and why");
  hk_table_row(t, HK_STYLE_PLAIN, "all_reduce_perf --procs 2\thow fast it is, between two processes");
  hk_table_row(t, HK_STYLE_PLAIN, "hocket help\tall commands");
  hk_table_print(t, 2, to);
}

/* "-m, --machine STRING" */
static void help_option_left(const hk_tool_option *o, char *text, size_t capacity) {
  int n = o->letter ? snprintf(text, capacity, "-%c, --%s", o->letter, o->name)
                    : snprintf(text, capacity, "    --%s", o->name);
  if (o->argument) snprintf(text + n, capacity - (size_t)n, " %s", o->argument);
}

/* The help text, the option's words and its default; free() it. */
static char *help_option_right(const hk_tool_option *o) {
  char *text = NULL;
  size_t bytes;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) abort(); /* see table.c */
  fputs(o->help, f);
  if (o->kind == HK_OPTION_WORD || o->kind == HK_OPTION_COLL) {
    hk_tool_words *words = o->kind == HK_OPTION_COLL ? hk_tool_coll_word : o->words;
    for (int i = 0; words(i); i++) fprintf(f, "%s%s", i ? ", " : ": ", words(i));
  }
  if (o->def) fprintf(f, " (%s)", o->def);
  fclose(f);
  return text;
}

static void help_heading(const char *text, FILE *to) {
  fprintf(to, "\n%s%s%s\n", hk_tool_style(to, HK_STYLE_BOLD), text, hk_tool_style(to, HK_STYLE_PLAIN));
}

static void help_options(const hk_tool *t, FILE *to) {
  hk_table *table = hk_table_new("lw");
  for (const hk_tool_option *o = t->options; o && o->name; o++) {
    char left[96];
    char *right = help_option_right(o);
    help_option_left(o, left, sizeof left);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", left);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", right);
    free(right);
  }
  hk_table_row(table, HK_STYLE_PLAIN, "%s\tprint this", hk_help_has_letter(t->options) ? "-h, --help" : "    --help");
  hk_table_print(table, 2, to);
}

static void help_parts(const hk_tool *t, FILE *to) {
  hk_table *table = hk_table_new("lw");
  for (int i = 0; t->parts[i]; i++) {
    hk_table_cell(table, HK_STYLE_PLAIN, "hocket %s --help", t->parts[i]->name);
    hk_table_cell(table, HK_STYLE_PLAIN, "%s", t->parts[i]->about);
  }
  hk_table_print(table, 2, to);
}

void hk_help_one(const hk_tool *t, FILE *to) {
  fprintf(to, "Usage: hocket %s%s%s%s\n\n%c%s.\n", t->name, t->parts ? "" : " [OPTIONS]", t->usage ? " " : "",
          t->usage ? t->usage : "", t->about[0] >= 'a' && t->about[0] <= 'z' ? t->about[0] - 'a' + 'A' : t->about[0],
          t->about + 1);
  if (t->text) {
    fputc('\n', to);
    hk_tool_wrap(to, 0, t->text);
  }
  if (t->parts) {
    help_heading("Commands:", to);
    help_parts(t, to);
  } else {
    help_heading("Options:", to);
    help_options(t, to);
  }
  help_heading("Exit code:", to);
  hk_tool_wrap(to, 2, codes_always);
  if (t->findings) {
    char text[200];
    bool ended = t->findings[0] && t->findings[strlen(t->findings) - 1] == '.';
    snprintf(text, sizeof text, "1: %s%s", t->findings, ended ? "" : ".");
    hk_tool_wrap(to, 2, text);
  }
  hk_tool_wrap(to, 2, codes_trouble);
  if (t->examples) {
    help_heading("Examples:", to);
    hk_tool_wrap(to, 2, t->examples);
  }
}

/* ---- manual pages ---- */

/* Text without markup: what roff would take for commands is quoted. */
static void help_roff(FILE *to, const char *text) {
  bool line_start = true;
  for (; *text; text++) {
    if (line_start && (*text == '.' || *text == '\'')) fputs("\\&", to);
    if (*text == '\\')
      fputs("\\e", to);
    else if (*text == '-')
      fputs("\\-", to);
    else
      fputc(*text, to);
    line_start = *text == '\n';
  }
}

/* Paragraphs; lines that start with a space stay as they are. */
static void help_roff_text(FILE *to, const char *text) {
  bool literal = false, gap = false;
  while (*text) {
    size_t n = strcspn(text, "\n");
    char *line = strndup(text, n);
    if (!line) abort(); /* see table.c */
    bool now = line[0] == ' ';
    if (n && now != literal)
      fputs(now ? ".PP\n.nf\n" : ".fi\n.PP\n", to);
    else if (n && gap)
      fputs(now ? "\n" : ".PP\n", to);
    if (n) {
      literal = now;
      help_roff(to, line);
      fputc('\n', to);
    }
    gap = n == 0;
    free(line);
    text += n + (text[n] == '\n');
  }
  if (literal) fputs(".fi\n", to);
}

static void help_man_see_also(const hk_tool *but, FILE *to) {
  fputs(".SH SEE ALSO\n", to);
  if (but) fputs(".BR hocket (1),\n", to);
  const hk_tool *t;
  for (int i = 0; (t = hk_tool_at(i)); i++)
    if (t != but) fprintf(to, ".BR hocket\\-%s (1),\n", t->name);
  fputs(".BR hocket\\-parameters (7)\n", to);
}

void hk_man_all(FILE *to) {
  fputs(".TH HOCKET 1 \"\" \"Hocket\"\n.SH NAME\nhocket \\- look at machines as a collective library does\n"
        ".SH SYNOPSIS\n.B hocket\n.I command\n.RI [ options ]\n.br\n.B hocket help\n.RI [ command ]\n"
        ".SH DESCRIPTION\n",
        to);
  help_roff(to, purpose);
  fputs("\n.SH COMMANDS\n", to);
  const hk_tool *t;
  for (int i = 0; (t = hk_tool_at(i)); i++) {
    fprintf(to, ".TP\n.BR hocket\\-%s (1)\n", t->name);
    help_roff(to, t->about);
    fputc('\n', to);
  }
  fputs(".SH EXIT STATUS\n0 if there is no problem; 1 if the command ran and found a problem; 2 for wrong\n"
        "usage or input that cannot be read.\n"
        ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nNo colours, even on a terminal.\n.PP\n"
        "The library's parameters are read too:\nthey change the choices.\n",
        to);
  help_man_see_also(NULL, to);
}

static void help_man_options(const hk_tool *t, FILE *to) {
  for (const hk_tool_option *o = t->options; o && o->name; o++) {
    fputs(".TP\n", to);
    if (o->letter) fprintf(to, "\\fB\\-%c\\fR, ", o->letter);
    fputs("\\fB\\-\\-", to);
    help_roff(to, o->name);
    fputs("\\fR", to);
    if (o->argument) fprintf(to, " \\fI%s\\fR", o->argument);
    fputc('\n', to);
    char *right = help_option_right(o);
    help_roff(to, right);
    free(right);
    fputc('\n', to);
  }
  fputs(".TP\n", to);
  if (hk_help_has_letter(t->options)) fputs("\\fB\\-h\\fR, ", to);
  fputs("\\fB\\-\\-help\\fR\nPrint what this page says, shorter.\n", to);
}

/* "1": what the command found. */
static void help_man_findings(const hk_tool *t, FILE *to) {
  if (!t->findings) return;
  fputs(".TP\n.B 1\n", to);
  help_roff(to, t->findings);
  fputs(t->findings[0] && t->findings[strlen(t->findings) - 1] == '.' ? "\n" : ".\n", to);
}

static void help_man_examples(const hk_tool *t, FILE *to) {
  fputs(".nf\n", to);
  help_roff(to, t->examples);
  fputs("\n.fi\n", to);
}

static void help_man_part(const hk_tool *t, FILE *to) {
  fprintf(to, ".SS hocket %s\n.B hocket %s\n.RI [ options ]\n", t->name, t->name);
  if (t->usage) {
    help_roff(to, t->usage);
    fputc('\n', to);
  }
  fputs(".PP\n", to);
  if (t->text) help_roff_text(to, t->text);
  help_man_options(t, to);
  if (t->findings) fputs(".PP\nExit status:\n", to);
  help_man_findings(t, to);
  if (t->examples) fputs(".PP\nExamples:\n.PP\n", to);
  if (t->examples) help_man_examples(t, to);
}

void hk_man_one(const hk_tool *t, FILE *to) {
  fputs(".TH HOCKET\\-", to);
  for (const char *c = t->name; *c; c++) fputc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, to);
  fprintf(to, " 1 \"\" \"Hocket\"\n.SH NAME\nhocket\\-%s \\- ", t->name);
  help_roff(to, t->about);
  fprintf(to, "\n.SH SYNOPSIS\n.B hocket %s\n%s", t->name, t->parts ? "" : ".RI [ options ]\n");
  if (t->usage) {
    help_roff(to, t->usage);
    fputc('\n', to);
  }
  if (t->text) {
    fputs(".SH DESCRIPTION\n", to);
    help_roff_text(to, t->text);
  }
  fputs(t->parts ? ".SH COMMANDS\n" : ".SH OPTIONS\n", to);
  for (int i = 0; t->parts && t->parts[i]; i++) help_man_part(t->parts[i], to);
  if (!t->parts) help_man_options(t, to);
  fputs(".SH EXIT STATUS\n.TP\n.B 0\nAll is well.\n", to);
  help_man_findings(t, to);
  fputs(".TP\n.B 2\nWrong usage, or input that cannot be read; nothing was done.\n", to);
  if (t->examples) {
    fputs(".SH EXAMPLES\n", to);
    help_man_examples(t, to);
  }
  help_man_see_also(t, to);
}
