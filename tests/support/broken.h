/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a wrong file of a right one. */
#ifndef SUPPORT_BROKEN_H
#define SUPPORT_BROKEN_H
#include "suite.h"

/* Replaces the n-th occurrence (from 1 on) of `what` by `by`. Frees the text; the caller frees the result. */
static inline char *broken(char *text, const char *what, int n, const char *by) {
  char *at = text, *out = malloc(strlen(text) + strlen(by) + 1);
  while (n-- > 0) ck_assert_msg((at = strstr(at + 1, what)) != NULL, "%s", what);
  sprintf(out, "%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
  free(text);
  return out;
}
#endif
