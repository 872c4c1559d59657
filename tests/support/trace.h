/* SPDX-License-Identifier: Apache-2.0 */
/* What a network provider does on a fixed schedule: the test records each call, message and line of the log as an event
 * (`say`). A file below tests/golden has a summary of each scene: the kinds of events, how many of each, the range of
 * each number, and the order of the kinds. The time is the test's, so that each run gives the same. What is inside of
 * the provider is not recorded: the tests assert rules about it.
 *
 * HOCKET_TEST_UPDATE=1 writes the file again; look at its diff before you commit it. HOCKET_TEST_TEXTS=FILE appends the
 * events themselves to FILE. */
#ifndef HK_TESTS_TRACE_H
#define HK_TESTS_TRACE_H
#include <ctype.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include "../../src/base/log.h"
#include "../../src/base/param.h"
#include "golden.h"
#include "scratch.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* ---- time ---- */

static uint64_t trace_now, trace_step; /* step: with each look at the clock */
int clock_gettime(clockid_t clock, struct timespec *t) {
  if (clock != CLOCK_MONOTONIC || !trace_now) return (int)syscall(SYS_clock_gettime, clock, t);
  trace_now += trace_step;
  *t = (struct timespec){.tv_sec = (time_t)(trace_now / SECOND), .tv_nsec = (long)(trace_now % SECOND)};
  return 0;
}

/* ---- text ---- */

static struct {
  char text[1 << 20], name[40];
  size_t used;
  bool blocked; /* what follows is not of interest */
  FILE *log;
} trace;

static inline __attribute__((format(printf, 1, 2))) void trace_say(const char *format, ...) {
  va_list args;
  if (trace.blocked) return;
  va_start(args, format);
  const size_t n = (size_t)vsnprintf(trace.text + trace.used, sizeof trace.text - trace.used, format, args);
  va_end(args);
  ck_assert_uint_lt(trace.used + n + 1, sizeof trace.text);
  trace.used += n;
  memcpy(trace.text + trace.used++, "\n", 2);
}

/* The text without addresses. */
static inline const char *trace_clean(const char *at, char out[1000]) {
  size_t n = 0;
  while (*at && n < 999) {
    out[n++] = *at++;
    if (n > 1 && out[n - 2] == '0' && out[n - 1] == 'x')
      while (isxdigit((unsigned char)*at)) at++;
  }
  out[n] = '\0';
  return out;
}

/* The log's lines, but for those about the host's interfaces those of each scene, and those about the
 * host's libraries. */
static inline void trace_log(void) {
  char line[1000], text[1000];
  clearerr(trace.log);
  while (fgets(line, sizeof line, trace.log)) {
    const char *at = strstr(line, "NCCL ");
    line[strcspn(line, "\n")] = '\0';
    if (at && !strstr(at, "INFO interface ") && !strstr(at, "INFO Using network") && !strstr(at, "INFO begins") &&
        !strstr(at, "librdmacm"))
      trace_say("log: %s", trace_clean(at + 5, text));
  }
}

/* With the last error's text, unless the log had it. */
static inline void trace_failure(int rank, int rc) {
  char text[1000];
  trace.text[trace.used] = '\0';
  const bool known = strstr(trace.text, trace_clean(hk_last_error(), text));
  trace_say("rank %d fails with %d%s%s", rank, rc, known ? "" : ": ", known ? "" : text);
}

/* ---- summary ---- */

/* Events that differ only in their numbers. Of each number the summary has the smallest and the largest value. */
enum { TRACE_KINDS = 62, TRACE_NUMBERS = 48, TRACE_DIGITS = 24, TRACE_WIDTH = 110 };
typedef struct trace_kind {
  char form[1000]; /* the text, with a # for each number */
  unsigned count;
  char least[TRACE_NUMBERS][TRACE_DIGITS], most[TRACE_NUMBERS][TRACE_DIGITS];
} trace_kind;
static trace_kind trace_kinds[TRACE_KINDS];
static int trace_nkinds;

/* Decimal and hexadecimal numbers without leading zeros, or of equal lengths. */
static inline int trace_order(const char *a, const char *b) {
  const size_t x = strlen(a), y = strlen(b);
  return x != y ? (x > y) - (x < y) : strcmp(a, b);
}
/* The length of the number at this place: digits after a letter, or a word of hexadecimal digits that begins with a
 * decimal one. */
static inline size_t trace_number(const char *at, bool after_letter) {
  if (!isdigit((unsigned char)*at)) return 0;
  if (after_letter) return strspn(at, "0123456789");
  const size_t skip = at[0] == '0' && at[1] == 'x' ? 2 : 0, n = skip + strspn(at + skip, "0123456789abcdef");
  return isalnum((unsigned char)at[n]) ? strspn(at, "0123456789") : n;
}

/* The number of the kind of this event, which is counted. */
static inline int trace_count(const char *line, size_t length) {
  static trace_kind now;
  size_t used = 0, n;
  int numbers = 0, kind = 0;
  for (size_t i = 0; i < length; i += n) {
    n = trace_number(line + i, i > 0 && isalpha((unsigned char)line[i - 1]));
    ck_assert(used + 1 < sizeof now.form && n < TRACE_DIGITS && numbers < TRACE_NUMBERS);
    now.form[used++] = n ? '#' : line[i];
    if (n) snprintf(now.least[numbers++], TRACE_DIGITS, "%.*s", (int)n, line + i);
    if (!n) n = 1;
  }
  now.form[used] = '\0';
  while (kind < trace_nkinds && strcmp(trace_kinds[kind].form, now.form)) kind++;
  ck_assert_msg(kind < TRACE_KINDS, "%s: too many kinds of events", trace.name);
  trace_kind *k = &trace_kinds[kind];
  const bool first = kind == trace_nkinds;
  if (first) trace_nkinds++, k->count = 0, memcpy(k->form, now.form, sizeof now.form);
  k->count++;
  for (int i = 0; i < numbers; i++) {
    if (first || trace_order(now.least[i], k->least[i]) < 0) memcpy(k->least[i], now.least[i], TRACE_DIGITS);
    if (first || trace_order(now.least[i], k->most[i]) > 0) memcpy(k->most[i], now.least[i], TRACE_DIGITS);
  }
  return kind;
}

static const char trace_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/* "ABABABC" as "(AB)3C". */
static inline void trace_print_order(FILE *out, const char *order, size_t n) {
  size_t column = TRACE_WIDTH;
  for (size_t i = 0; i < n;) {
    size_t period = 1, times = 1;
    for (size_t p = 1; p <= 40; p++) {
      size_t same = 0;
      while (i + p + same < n && order[i + same] == order[i + p + same]) same++;
      if (same / p + 1 > 1 && (same / p + 1) * p > times * period + 3) period = p, times = same / p + 1;
    }
    if (column + period + 6 > TRACE_WIDTH) fprintf(out, "%s  ", i ? "\n" : ""), column = 0;
    column += (size_t)(times > 1 ? fprintf(out, "(%.*s)%zu", (int)period, order + i, times)
                                 : fprintf(out, "%.*s", (int)period, order + i));
    i += period * times;
  }
  if (n) fputs("\n", out);
}

/* One line for each kind of event, in the order of the first one: a letter, how often, the text. Then the order of all
 * events, as letters: the same kind again at once is not repeated. */
static inline void trace_summarize(FILE *out) {
  static char order[1 << 16];
  size_t n = 0;
  trace_nkinds = 0;
  for (const char *at = trace.text; *at;) {
    const size_t length = strcspn(at, "\n");
    const char letter = trace_letters[trace_count(at, length)];
    ck_assert_uint_lt(n, sizeof order);
    if (!n || order[n - 1] != letter) order[n++] = letter;
    at += length + 1;
  }
  for (int i = 0; i < trace_nkinds; i++) {
    const trace_kind *k = &trace_kinds[i];
    int number = 0;
    fprintf(out, "%c %3u  ", trace_letters[i], k->count);
    for (const char *at = k->form; *at; at++) {
      if (*at != '#') {
        fputc(*at, out);
        continue;
      }
      fputs(k->least[number], out);
      if (strcmp(k->least[number], k->most[number])) fprintf(out, "..%s", k->most[number]);
      number++;
    }
    fputc('\n', out);
  }
  trace_print_order(out, order, n);
}

/* ---- begin and end ---- */

/* The log goes to a file of the scratch folder, which is there. */
static inline void trace_start(const char *name) {
  snprintf(trace.name, sizeof trace.name, "%s", name);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "NET", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_param_reload();
  hk_log_reset();
  (void)hk_log_on(HK_LOG_INFO, HK_SUB_NET);
  HK_INFO(HK_SUB_NET, "begins");
  trace.log = fopen(scratch_path("log"), "re");
  ck_assert_ptr_nonnull(trace.log);
  trace_now = 1000 * SECOND;
}

/* Compares the summary with the section of the file that begins with this name. */
static inline void trace_compare(const char *path) {
  char head[60], *text;
  size_t size;
  trace_log();
  trace_now = trace_step = 0;
  fclose(trace.log);
  FILE *out = open_memstream(&text, &size);
  trace_summarize(out);
  fclose(out);
  golden_keep_text("events:", trace.name, trace.text, trace.used);
  snprintf(head, sizeof head, "== %s:", trace.name);
  golden g = golden_open(path, head);
  if (g.update) fprintf(g.file, "%s\n%s", head, text);
  if (!g.update) ck_assert(golden_read(&g) && !strcmp(g.line, head));
  for (char *line = text, *end; !g.update && (end = strchr(line, '\n')); line = end + 1) {
    *end = '\0';
    (void)golden_read(&g);
    ck_assert_msg(!strcmp(line, g.line), "%s\nnow: %s\nwas: %s", trace.name, line, g.line);
  }
  if (!g.update) ck_assert_msg(!golden_read(&g) || !strncmp(g.line, "== ", 3), "%s has no more, was: %s", head, g.line);
  golden_close(&g);
  free(text);
}
#endif
