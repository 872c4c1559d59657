/* SPDX-License-Identifier: Apache-2.0 */
/* The plainest algorithm or two for every collective, to test what reads programs without the library's algorithms. */
#ifndef HK_TESTS_TEXTBOOK_H
#define HK_TESTS_TEXTBOOK_H
#include "../../src/program/builder.h"

typedef struct textbook_entry {
  const char *name;
  hk_coll coll;
  void (*build)(hk_builder *b, const hk_build *what);
} textbook_entry;
extern const textbook_entry textbook[];
extern const size_t textbook_count;

/* All ranks' programs; NULL with the reason printed where the builder fails. */
hk_program **textbook_build(const textbook_entry *e, int nranks, int root);
const textbook_entry *textbook_find(const char *name);
void programs_free(hk_program **programs, int nranks);
#endif
