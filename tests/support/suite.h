/* SPDX-License-Identifier: Apache-2.0 */
/* What ends the main of every unit test. */
#ifndef HK_TESTS_SUITE_H
#define HK_TESTS_SUITE_H
#include <check.h>

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

/* Runs the suite, with as many words as CK_VERBOSITY asks for; gives main's result. */
static inline int suite_run(Suite *s) {
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
#endif
