/* SPDX-License-Identifier: Apache-2.0 */
/* What a network provider does on a fixed schedule, as text that a file below tests/golden has: the test says what the
 * provider's calls are, and what has changed in its state. The time is the test's, so that each run gives the same.
 *
 * HOCKET_TEST_UPDATE=1 writes the file again. Its diff shows what a change does on the wire: look at it before you
 * commit it. */
#ifndef HK_TESTS_TRACE_H
#define HK_TESTS_TRACE_H
#include <ctype.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
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
  size_t used, begin, line; /* the last line's */
  bool blocked;             /* what follows is not of interest */
  FILE *log;
} trace;

static inline __attribute__((format(printf, 1, 2))) void say(const char *format, ...) {
  va_list args;
  if (trace.blocked) return;
  va_start(args, format);
  const size_t n = (size_t)vsnprintf(trace.text + trace.used, sizeof trace.text - trace.used, format, args);
  va_end(args);
  ck_assert_uint_lt(trace.used + n + 1, sizeof trace.text);
  /* The same line again is a dot. */
  if (n == trace.line && !memcmp(trace.text + trace.used, trace.text + trace.begin, n)) {
    memcpy(trace.text + trace.used - 1, ".\n", 3);
    trace.used++;
    return;
  }
  trace.begin = trace.used;
  trace.line = n;
  trace.used += n;
  memcpy(trace.text + trace.used++, "\n", 2);
}

/* The text without addresses. */
static inline const char *clean(const char *at, char out[1000]) {
  size_t n = 0;
  while (*at && n < 999) {
    out[n++] = *at++;
    if (n > 1 && out[n - 2] == '0' && out[n - 1] == 'x')
      while (isxdigit((unsigned char)*at)) at++;
  }
  out[n] = '\0';
  return out;
}

/* The log's lines, but for those about the host's interfaces. */
static inline void say_log(void) {
  char line[1000], text[1000];
  clearerr(trace.log);
  while (fgets(line, sizeof line, trace.log)) {
    const char *at = strstr(line, "NCCL ");
    line[strcspn(line, "\n")] = '\0';
    if (at && !strstr(at, "INFO interface ")) say("log: %s", clean(at + 5, text));
  }
}

/* ---- state ---- */

/* Of each of two ranks what has changed. */
typedef struct fact {
  const char *name;
  int index; /* -1: there is one */
  uint64_t value;
} fact;
enum { FACTS = 400 };
static struct {
  fact facts[FACTS];
  int n;
} known[2];

/* The words of a fact that is new and not 0, or has changed. */
static inline void add_fact(int rank, char *words, size_t room, const char *name, int index, uint64_t value) {
  int i = 0;
  while (i < known[rank].n && (known[rank].facts[i].index != index || strcmp(known[rank].facts[i].name, name))) i++;
  ck_assert_int_lt(i, FACTS);
  if (i == known[rank].n) known[rank].facts[known[rank].n++] = (fact){.name = name, .index = index};
  if (known[rank].facts[i].value == value) return;
  known[rank].facts[i].value = value;
  const size_t n = strlen(words);
  ck_assert_uint_lt(n + 60, room);
  snprintf(words + n, room - n, index < 0 ? " %s%.0d %llu" : " %s%d %llu", name, index < 0 ? 0 : index,
           (unsigned long long)value);
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

/* Compares with the section of the file that begins with this name. */
static inline void trace_compare(const char *path) {
  char head[60], line[2000];
  say_log();
  trace_now = trace_step = 0;
  fclose(trace.log);
  snprintf(head, sizeof head, "== %s\n", trace.name);
  golden g = golden_open(path, head);
  if (g.update) {
    fprintf(g.file, "%s%s", head, trace.text);
  } else {
    ck_assert(fgets(line, sizeof line, g.file) && !strcmp(line, head));
    int number = 1;
    for (const char *at = trace.text; *at; number++) {
      const size_t n = strcspn(at, "\n");
      if (!fgets(line, sizeof line, g.file)) *line = '\0';
      line[strcspn(line, "\n")] = '\0';
      ck_assert_msg(strlen(line) == n && !memcmp(line, at, n), "%s, line %d\n is: %.*s\nwas: %s", trace.name, number,
                    (int)n, at, line);
      at += n + 1;
    }
    ck_assert_msg(!fgets(line, sizeof line, g.file) || !strncmp(line, "== ", 3),
                  "%s has no more than %d lines, was: %s", trace.name, number - 1, line);
  }
  fclose(g.file);
}
#endif
