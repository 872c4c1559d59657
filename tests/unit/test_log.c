/* SPDX-License-Identifier: Apache-2.0 */
/* The log's lines and filters, and the text of the last error. */
#include <pthread.h>
#include <stdatomic.h>
#include "../../src/base/log.h"
#include "../../src/base/status.h"
#include "../support/scratch.h"
#include "../support/suite.h"

/* Starts logging to a fresh file with these settings. */
static void log_with(const char *level, const char *subsystems) {
  if (level)
    setenv("NCCL_DEBUG", level, 1);
  else
    unsetenv("NCCL_DEBUG");
  if (subsystems)
    setenv("NCCL_DEBUG_SUBSYS", subsystems, 1);
  else
    unsetenv("NCCL_DEBUG_SUBSYS");
  setenv("NCCL_DEBUG_FILE", scratch_path("log"), 1);
  hk_log_reset();
}

TEST(info_line_is_nccls) {
  log_with("INFO", NULL);
  HK_INFO(HK_SUB_INIT, "hello %d", 42);
  char host[64], expected[256];
  gethostname(host, sizeof host);
  host[strcspn(host, ".")] = 0;
  snprintf(expected, sizeof expected, "%s:%d:%d [0] NCCL INFO hello 42\n", host, (int)getpid(), (int)gettid());
  ck_assert_str_eq(scratch_read("log"), expected);
}

TEST(warn_line_has_file_and_line) {
  log_with("WARN", NULL);
  char place[64];
  snprintf(place, sizeof place, "test_log.c:%d NCCL WARN trouble\n", __LINE__ + 1);
  HK_WARN("trouble");
  ck_assert_ptr_nonnull(strstr(scratch_read("log"), place));
}

TEST(version_line_is_bare) {
  log_with("VERSION", NULL);
  /* At this level NCCL writes no file: the line is for the terminal. */
  ck_assert(hk_log_on(HK_LOG_VERSION, 0));
  ck_assert(!hk_log_on(HK_LOG_WARN, ~0u));
  ck_assert_int_ne(access(scratch_path("log"), F_OK), 0);
  log_with("INFO", NULL);
  HK_LOG_AT(HK_LOG_VERSION, ~0u, "NCCL version X");
  ck_assert_str_eq(scratch_read("log"), "NCCL version X\n");
}

TEST(version_is_told_once) {
  log_with(NULL, NULL);
  ck_assert(!hk_log_version_due()); /* nobody asked for lines */
  log_with("NONE", NULL);
  ck_assert(!hk_log_version_due());
  log_with("WARN", NULL);
  ck_assert(hk_log_version_due());
  ck_assert(!hk_log_version_due());
}

/* A line that is written once in a process; so many of them are known. */
TEST(first_time) {
  ck_assert(hk_log_first("a.c", 1) && hk_log_first("a.c", 2) && hk_log_first("b.c", 1));
  ck_assert(!hk_log_first("a.c", 1) && !hk_log_first("a.c", 2) && !hk_log_first("b.c", 1));
  for (int i = 3; i < 64; i++) ck_assert(hk_log_first("c.c", i));
  ck_assert(!hk_log_first("d.c", 1) && !hk_log_first("c.c", 63));
}

TEST(levels_filter) {
  static const char *const names[] = {"NONE", "VERSION", "WARN", "INFO", "TRACE"};
  for (int in_force = HK_LOG_NONE; in_force <= HK_LOG_TRACE; in_force++) {
    log_with(names[in_force], "ALL");
    for (int level = HK_LOG_VERSION; level <= HK_LOG_TRACE; level++)
      ck_assert_int_eq(hk_log_on((hk_log_level)level, HK_SUB_NET), level <= in_force);
  }
  log_with("info", "net"); /* case does not count */
  ck_assert(hk_log_on(HK_LOG_INFO, HK_SUB_NET));
  log_with(NULL, NULL); /* errors are told with no variable set */
  ck_assert(hk_log_on(HK_LOG_WARN, ~0u) && !hk_log_on(HK_LOG_INFO, ~0u));
}

static unsigned subsystems_of(const char *list) {
  log_with("TRACE", list);
  unsigned on = 0;
  for (unsigned bit = 1; bit <= HK_SUB_REG; bit <<= 1) on |= hk_log_on(HK_LOG_INFO, bit) ? bit : 0;
  return on;
}

TEST(subsystems_filter) {
  const unsigned all = HK_SUB_REG * 2 - 1;
  ck_assert_uint_eq(subsystems_of(NULL), HK_SUB_INIT | HK_SUB_BOOTSTRAP | HK_SUB_ENV);
  ck_assert_uint_eq(subsystems_of("ALL"), all);
  ck_assert_uint_eq(subsystems_of("INIT,COLL"), HK_SUB_INIT | HK_SUB_COLL);
  ck_assert_uint_eq(subsystems_of("^INIT,COLL"), all & ~(unsigned)(HK_SUB_INIT | HK_SUB_COLL));
  ck_assert_uint_eq(subsystems_of("ALL,^NET"), all & ~(unsigned)HK_SUB_NET);
  ck_assert_uint_eq(subsystems_of("INIT,^NET"), HK_SUB_INIT);
  ck_assert_uint_eq(subsystems_of("^ALL"), 0);
  ck_assert_uint_eq(subsystems_of(",,p2p,"), HK_SUB_P2P);
  /* Warnings are not a subsystem's. */
  ck_assert(hk_log_on(HK_LOG_WARN, 0));
}

TEST(wrong_settings_are_reported) {
  log_with("LOUD", "INIT,NETT");
  HK_WARN("next");
  const char *text = scratch_read("log");
  ck_assert_ptr_nonnull(strstr(text, "NCCL_DEBUG=LOUD is no log level"));
  ck_assert_ptr_nonnull(strstr(text, "no subsystem \"NETT\""));
  ck_assert_ptr_nonnull(strstr(text, "NCCL WARN next"));
}

TEST(file_name_expands) {
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", scratch_path("%h.%p.%x"), 1);
  hk_log_reset();
  HK_INFO(HK_SUB_INIT, "here");
  char host[64], name[128];
  gethostname(host, sizeof host);
  host[strcspn(host, ".")] = 0;
  snprintf(name, sizeof name, "%s.%d.%%x", host, (int)getpid());
  ck_assert_ptr_nonnull(strstr(scratch_read(name), "here"));
}

TEST(long_lines_are_cut_whole) {
  log_with("INFO", NULL);
  char text[5000];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = 0;
  HK_INFO(HK_SUB_INIT, "%s", text);
  HK_INFO(HK_SUB_INIT, "second");
  const char *log = scratch_read("log");
  const char *end = strchr(log, '\n');
  ck_assert(end && end - log < HK_ERROR_TEXT + 512);
  ck_assert_ptr_nonnull(strstr(end, "NCCL INFO second\n"));
  /* The longest error is whole. */
  text[HK_ERROR_TEXT - 1] = 0;
  HK_WARN("%s", text);
  ck_assert_ptr_nonnull(strstr(scratch_read("log"), text));
}

/* A command is silent unless the user asks for lines. */
TEST(of_a_command) {
  hk_log_for_command();
  log_with(NULL, NULL);
  ck_assert(!hk_log_on(HK_LOG_WARN, ~0u) && !hk_log_version_due());
  log_with("WARN", NULL);
  ck_assert(hk_log_on(HK_LOG_WARN, ~0u));
}

/* A program's second copy writes only warnings, and none of them to the library's file. */
TEST(of_a_second_copy) {
  hk_log_for_second_copy();
  log_with("INFO", NULL);
  ck_assert(hk_log_on(HK_LOG_WARN, ~0u) && !hk_log_on(HK_LOG_INFO, ~0u));
  HK_WARN("to stderr");
  ck_assert(access(scratch_path("log"), F_OK) != 0);
}

TEST(text_cannot_forge_lines) {
  log_with("INFO", NULL);
  HK_INFO(HK_SUB_INIT, "a\nb\tc\033[31md");
  const char *log = scratch_read("log");
  ck_assert_ptr_nonnull(strstr(log, "NCCL INFO a b\tc?[31md\n"));
}

TEST(arguments_are_not_evaluated_when_off) {
  log_with("WARN", NULL);
  int calls = 0;
  HK_INFO(HK_SUB_INIT, "%d", calls++);
  ck_assert_int_eq(calls, 0);
}

static hk_status fails(void) { return HK_FAIL(HK_ERR_REMOTE, "rank %d did not answer", 3); }
static hk_status fails_with_errno(void) {
  errno = ECONNREFUSED;
  return HK_FAIL_ERRNO("cannot connect to %s", "there");
}
static hk_status tries(int *after) {
  hk_status rc;
  HK_TRY(fails(), out);
  (*after)++;
out:
  return rc;
}

TEST(last_error_without_any_variable) {
  log_with("NONE", NULL);
  ck_assert_ptr_nonnull(hk_last_error());
  int after = 0;
  ck_assert_int_eq(tries(&after), HK_ERR_REMOTE);
  ck_assert_int_eq(after, 0);
  ck_assert_str_eq(hk_last_error(), "rank 3 did not answer");
  ck_assert_int_eq(fails_with_errno(), HK_ERR_SYSTEM);
  ck_assert_int_eq(errno, ECONNREFUSED);
  ck_assert_str_eq(hk_last_error(), "cannot connect to there: Connection refused (ECONNREFUSED)");
  ck_assert_str_eq(scratch_read("log"), "");
}

TEST(errors_are_logged_where_detected) {
  log_with(NULL, NULL);
  fails();
  ck_assert_ptr_nonnull(strstr(scratch_read("log"), "NCCL WARN rank 3 did not answer"));
  ck_assert_ptr_nonnull(strstr(scratch_read("log"), "test_log.c:"));
}

static atomic_int stop;
static void *fail_on(void *arg) {
  for (int i = 0; i < 2000; i++) HK_FAIL(HK_ERR_INTERNAL, "thread %d error %d end", *(int *)arg, i);
  return NULL;
}
static void *reset_on(void *arg) {
  (void)arg;
  while (!atomic_load(&stop)) hk_log_reset();
  return NULL;
}

TEST(threads_may_fail_and_reset_at_once) {
  log_with("WARN", NULL);
  setenv("NCCL_DEBUG_FILE", "/dev/null", 1);
  hk_log_reset();
  pthread_t threads[4], resetter;
  int names[4];
  pthread_create(&resetter, NULL, reset_on, NULL);
  for (int i = 0; i < 4; i++) names[i] = i, pthread_create(&threads[i], NULL, fail_on, &names[i]);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  atomic_store(&stop, 1);
  pthread_join(resetter, NULL);
  const char *text = hk_last_error();
  ck_assert_str_eq(text + strlen(text) - 14, "error 1999 end");
}

int main(void) { return suite_main("log", .setup = scratch_make, .teardown = scratch_remove); }
