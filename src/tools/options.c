/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a command line according to the command's table. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/param_names.h"
#include "../collectives/algorithm.h"
#include "../decide/protocol.h"
#include "help.h"

enum { MOST_OPTIONS = 64, NO_LETTER = 1000, HELP = 2000 };

static const char *running = "hocket"; /* the command's name, for messages */

static void options_complain(const char *format, va_list args) {
  fprintf(stderr, "hocket %s: ", running);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
}

const hk_settings *hk_tool_settings(void) { return hk_settings_now(); }

int hk_tool_wrong(const char *format, ...) {
  va_list args;
  va_start(args, format);
  options_complain(format, args);
  va_end(args);
  return HK_EXIT_TROUBLE;
}

int hk_tool_failed(hk_status rc) {
  (void)rc; /* the message is more exact than the code */
  return hk_tool_wrong("%s", hk_last_error());
}

const char *hk_tool_algorithm_word(int i) { return hk_algorithms[i] ? hk_algorithms[i]->name : NULL; }

const char *hk_tool_protocol_word(int i) {
  return i == 0 ? "auto" : i <= HK_PROTO_COUNT ? hk_protocols[i - 1].name : NULL;
}

const char *hk_tool_coll_word(int i) {
  static char words[HK_COLL_COUNT][24];
  if (i < 0 || i >= HK_COLL_COUNT) return NULL;
  const char *name = hk_coll_name((hk_coll)i);
  size_t n = 0;
  for (; name[n] && n + 1 < sizeof words[i]; n++) words[i][n] = (char)tolower((unsigned char)name[n]);
  words[i][n] = 0;
  return words[i];
}

/* Equal except for case, - and _. */
static bool options_same_word(const char *a, const char *b) {
  for (;;) {
    while (*a == '-' || *a == '_') a++;
    while (*b == '-' || *b == '_') b++;
    if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
    if (!*a) return true;
    a++, b++;
  }
}

static int options_find_word(hk_tool_words *words, const char *text) {
  for (int i = 0; words(i); i++)
    if (options_same_word(words(i), text)) return i;
  return -1;
}

enum { MOST_WORDS = 64 };

static int options_wrong_word(const char *what, const char *text, const char **names, size_t n) {
  unsigned distance;
  fprintf(stderr, "hocket %s: %s: '%s' is none of ", running, what, text);
  for (size_t i = 0; i < n; i++) fprintf(stderr, "%s%s", i ? ", " : "", names[i]);
  const char *nearest = hk_param_nearest(text, names, n, &distance);
  if (nearest && distance <= 2 && distance < strlen(text)) fprintf(stderr, "; did you mean '%s'?", nearest);
  fputc('\n', stderr);
  return HK_EXIT_TROUBLE;
}

int hk_tool_wrong_word(const char *what, const char *text, hk_tool_words *words) {
  const char *names[MOST_WORDS];
  size_t n = 0;
  while (n < MOST_WORDS && words((int)n)) names[n] = words((int)n), n++;
  return options_wrong_word(what, text, names, n);
}

bool hk_tool_coll(const char *text, hk_coll *out) {
  int i = options_find_word(hk_tool_coll_word, text);
  *out = (hk_coll)i;
  if (i < 0) hk_tool_wrong_word("collective", text, hk_tool_coll_word);
  return i >= 0;
}

bool hk_tool_in_list(const char *list, int n) {
  while (*list) {
    char *end;
    long first = strtol(list, &end, 10), last = first;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    if (n >= first && n <= last) return true;
    list = end + (*end == ',');
  }
  return false;
}

bool hk_tool_check_list(const char *what, const char *list, int least, int most) {
  const char *at = list;
  bool good = *list;
  while (good && *at) {
    char *end;
    long first = strtol(at, &end, 10), last = first;
    good = end != at;
    if (good && *end == '-') {
      at = end + 1;
      last = strtol(at, &end, 10);
      good = end != at;
    }
    good = good && first >= least && last >= first && last <= most && (!*end || (*end == ',' && end[1]));
    at = end + (*end == ',');
  }
  if (!good) hk_tool_wrong("%s: '%s' is not like 8 or 2-16 or 2,4,8 (from %d to %d)", what, list, least, most);
  return good;
}

bool hk_tool_size(const char *what, const char *text, size_t *out) {
  static const char units[] = "KMGT";
  char *end;
  double v = strtod(text, &end);
  bool number = end != text && isfinite(v);
  const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
  if (unit) {
    end++;
    v = ldexp(v, 10 * (int)(unit - units + 1));
    if (*end == 'i') end++;
  }
  if (*end == 'B' || *end == 'b') end++;
  if (!number || *end || !(v >= 0) || v > ldexp(1, 60)) {
    hk_tool_wrong("%s: '%s' is no size: give a number of bytes, optionally with K, M, G or T", what, text);
    return false;
  }
  *out = (size_t)v;
  return true;
}

static bool options_read_int(const hk_tool_option *o, const char *text, int *out) {
  char *end;
  int low = o->low, high = o->high;
  if (low == 0 && high == 0) low = INT_MIN, high = INT_MAX;
  errno = 0;
  long v = strtol(text, &end, 10);
  if (end == text || *end || errno || v < low || v > high) {
    if (high == INT_MAX)
      hk_tool_wrong("--%s: '%s' is no integer from %d on", o->name, text, low);
    else
      hk_tool_wrong("--%s: '%s' is no integer from %d to %d", o->name, text, low, high);
    return false;
  }
  *out = (int)v;
  return true;
}

static bool options_read_number(const hk_tool_option *o, const char *text, double *out) {
  char *end;
  double v = strtod(text, &end);
  if (end == text || *end || !isfinite(v)) {
    hk_tool_wrong("--%s: '%s' is no number", o->name, text);
    return false;
  }
  *out = v;
  return true;
}

static bool options_apply(const hk_tool_option *o, const char *text, void *into) {
  void *field = (char *)into + o->field;
  switch (o->kind) {
    case HK_OPTION_FLAG: *(bool *)field = true; return true;
    case HK_OPTION_INT: return options_read_int(o, text, field);
    case HK_OPTION_SIZE: return hk_tool_size(o->name, text, field);
    case HK_OPTION_NUMBER: return options_read_number(o, text, field);
    case HK_OPTION_TEXT:
    case HK_OPTION_FILE: *(const char **)field = text; return true;
    case HK_OPTION_COLL: return hk_tool_coll(text, field);
    case HK_OPTION_WORD: *(int *)field = options_find_word(o->words, text); break;
  }
  if (*(int *)field >= 0) return true;
  char what[64];
  snprintf(what, sizeof what, "--%s", o->name);
  hk_tool_wrong_word(what, text, o->words);
  return false;
}

static int options_count(const hk_tool_option *o) {
  int n = 0;
  while (o && o[n].name) n++;
  return n;
}

/* getopt's tables, made from the rows, so that there is one list of options. */
static void options_make_tables(const hk_tool_option *rows, int n, struct option *longs, char *letters) {
  *letters++ = ':';
  if (hk_help_has_letter(rows)) *letters++ = 'h';
  for (int i = 0; i < n; i++) {
    bool argument = rows[i].kind != HK_OPTION_FLAG;
    longs[i] = (struct option){rows[i].name, argument ? required_argument : no_argument, NULL, NO_LETTER + i};
    if (!rows[i].letter) continue;
    *letters++ = rows[i].letter;
    if (argument) *letters++ = ':';
  }
  *letters = 0;
  longs[n] = (struct option){"help", no_argument, NULL, HELP};
  longs[n + 1] = (struct option){0};
}

static const hk_tool_option *options_row_of(const hk_tool_option *rows, int n, int c) {
  if (c >= NO_LETTER) return c - NO_LETTER < n ? &rows[c - NO_LETTER] : NULL;
  for (int i = 0; i < n; i++)
    if (rows[i].letter == c) return &rows[i];
  return NULL;
}

/* -1: continue; else the exit code. */
static int options_read_line(const hk_tool *t, int argc, char **argv, void *into) {
  struct option longs[MOST_OPTIONS + 2];
  char letters[3 * MOST_OPTIONS];
  int n = options_count(t->options);
  if (n > MOST_OPTIONS) return hk_tool_wrong("more than %d options", MOST_OPTIONS);
  for (int i = 0; i < n; i++)
    if (t->options[i].def && !options_apply(&t->options[i], t->options[i].def, into)) return HK_EXIT_TROUBLE;
  options_make_tables(t->options, n, longs, letters);
  optind = 1;
  opterr = 0;
  bool given[MOST_OPTIONS] = {false};
  for (;;) {
    int at = optind, c = getopt_long(argc, argv, letters, longs, NULL);
    if (c == -1) break;
    if (c == HELP || (c == 'h' && hk_help_has_letter(t->options))) {
      hk_help_one(t, stdout);
      return HK_EXIT_OK;
    }
    const hk_tool_option *o = c == ':' || c == '?' ? NULL : options_row_of(t->options, n, c);
    if (!o) {
      if (at >= argc) at = argc - 1;
      if (c == ':')
        hk_tool_wrong("option '%s' needs a value", argv[at]);
      else
        hk_tool_wrong("there is no option '%s'", argv[at]);
      fprintf(stderr, "Try 'hocket %s --help'.\n", t->name);
      return HK_EXIT_TROUBLE;
    }
    /* Most options may be repeated, to override those of a script. A second machine or file would silently replace the
     * first, so it is an error. */
    bool *had = &given[o - t->options];
    if (*had && (o->kind == HK_OPTION_FILE || !strcmp(o->name, "machine")))
      return hk_tool_wrong("--%s is given twice, and only one can be used", o->name);
    *had = true;
    if (!options_apply(o, optarg, into)) return HK_EXIT_TROUBLE;
  }
  int args = argc - optind;
  if (args >= t->least && (t->most < 0 || args <= t->most)) return -1;
  if (args < t->least)
    hk_tool_wrong("something is missing: hocket %s [OPTIONS] %s", t->name, t->usage ? t->usage : "");
  else
    hk_tool_wrong("unexpected argument '%s'", argv[optind + t->most]);
  fprintf(stderr, "Try 'hocket %s --help'.\n", t->name);
  return HK_EXIT_TROUBLE;
}

/* "check" of "program check". */
static const char *options_part_name(const hk_tool *part) { return strchr(part->name, ' ') + 1; }

const hk_tool *hk_tool_part(const hk_tool *t, const char *name) {
  for (int i = 0; t->parts && t->parts[i]; i++)
    if (!strcmp(options_part_name(t->parts[i]), name)) return t->parts[i];
  return NULL;
}

/* The first argument names the part. */
static int options_start_part(const hk_tool *t, int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : NULL, *names[MOST_WORDS];
  size_t n = 0;
  if (name && (!strcmp(name, "--help") || !strcmp(name, "-h"))) {
    hk_help_one(t, stdout);
    return HK_EXIT_OK;
  }
  const hk_tool *part = name ? hk_tool_part(t, name) : NULL;
  if (part) return hk_tool_start(part, argc - 1, argv + 1);
  while (n < MOST_WORDS && t->parts[n]) names[n] = options_part_name(t->parts[n]), n++;
  if (!name)
    hk_tool_wrong("something is missing: hocket %s %s", t->name, t->usage);
  else if (*name == '-')
    hk_tool_wrong("there is no option '%s'", name);
  else
    options_wrong_word("command", name, names, n);
  fprintf(stderr, "Try 'hocket %s --help'.\n", t->name);
  return HK_EXIT_TROUBLE;
}

int hk_tool_start(const hk_tool *t, int argc, char **argv) {
  running = t->name;
  if (t->parts) return options_start_part(t, argc, argv);
  void *into = calloc(1, t->bytes + 1);
  if (!into) return hk_tool_wrong("out of memory");
  int code = options_read_line(t, argc, argv, into);
  if (code < 0) code = t->run(into, argc - optind, argv + optind);
  free(into);
  return code;
}
