/* SPDX-License-Identifier: Apache-2.0 */
/* What ends the main of every unit test. */
#ifndef HK_TESTS_SUITE_H
#define HK_TESTS_SUITE_H
#include <check.h>

/* Runs the suite, with as many words as CK_VERBOSITY asks for; gives main's result. */
static inline int suite_run(Suite *s) {
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
#endif
