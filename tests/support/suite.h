/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a program, and its main; and the headers that most tests need. */
#ifndef HK_TESTS_SUITE_H
#define HK_TESTS_SUITE_H
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Types and operators are the same steps of the same threads: under the thread sanitizer, where each costs ten times
 * as much, a few of n show a race as well as all. */
#ifdef __SANITIZE_THREAD__
#define SUITE_FEW(n) ((n) < 3 ? (n) : 3)
#else
#define SUITE_FEW(n) (n)
#endif

/* That `condition` holds for all i of [0, n), with one question to Check: each that it is asked costs a system call. */
#define suite_all(i, n, condition)                                                                                     \
  do {                                                                                                                 \
    size_t i = 0;                                                                                                      \
    while (i < (size_t)(n) && (condition)) i++;                                                                        \
    ck_assert_msg(i >= (size_t)(n), "%s: not for %zu", #condition, i);                                                 \
  } while (0)

/* TEST(name) { ... } is a test of the program, TEST_LOOP(name, n) one for each _i of [0, n), TEST_RANGE for each of
 * [begin, past). suite_main runs them all. */
#define TEST(name) TEST_RANGE(name, 0, 1)
#define TEST_LOOP(name, n) TEST_RANGE(name, 0, n)
#define TEST_RANGE(name, begin, past)                                                                                  \
  static void name##_fn(int _i);                                                                                       \
  static const TTest name##_test = {#name, name##_fn, __FILE__, __LINE__};                                             \
  __attribute__((constructor)) static void name##_add(void) {                                                          \
    static suite_test suite_entry;                                                                                     \
    suite_entry = (suite_test){&name##_test, (int)(begin), (int)(past), NULL};                                         \
    suite_add(&suite_entry);                                                                                           \
  }                                                                                                                    \
  static void name##_fn(int _i __attribute__((unused)))

typedef struct suite_test {
  const TTest *test;
  int first, end;
  struct suite_test *next;
} suite_test;
static suite_test *suite_tests;
__attribute__((unused)) static void suite_add(suite_test *t) {
  suite_test **last = &suite_tests;
  while (*last) last = &(*last)->next;
  *last = t;
}

/* Runs the suite, with as many words as CK_VERBOSITY asks for; gives main's result. */
static inline int suite_run(Suite *s) {
  char ras[32]; /* of its own: a process that takes over the usual one, because another job ends, has one more socket */
  snprintf(ras, sizeof ras, "localhost:%d", 10000 + (int)getpid() % 10000);
  setenv("NCCL_RAS_ADDR", ras, 0);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
/* The same for a suite of this one test case. */
static inline int suite_run_one(const char *name, TCase *t) {
  Suite *s = suite_create(name);
  suite_add_tcase(s, t);
  return suite_run(s);
}

typedef struct suite_options {
  int none;
  double timeout;                         /* seconds that a test may take; 0: Check's default */
  void (*setup)(void), (*teardown)(void); /* before and after each test, in its process */
} suite_options;
static inline int suite_run_tests(const char *name, suite_options o) {
  TCase *t = tcase_create(name);
  if (o.timeout > 0) tcase_set_timeout(t, o.timeout);
  if (o.setup || o.teardown) tcase_add_checked_fixture(t, o.setup, o.teardown);
  for (const suite_test *i = suite_tests; i; i = i->next) tcase_add_loop_test(t, i->test, i->first, i->end);
  return suite_run_one(name, t);
}
#define suite_main(name, ...) suite_run_tests(name, (suite_options){.none = 0, __VA_ARGS__})
#endif
