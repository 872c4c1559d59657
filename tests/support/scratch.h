/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the log and the parameters: a private folder, and reading back what was written there. */
#ifndef HK_TEST_SCRATCH_H
#define HK_TEST_SCRATCH_H
#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char scratch_folder[64];

const char *scratch_path(const char *name);
void scratch_make(void);
void scratch_remove(void);

void scratch_write(const char *name, const char *text);
/* The whole file, "" where it is not there; good until the next call. */
const char *scratch_read(const char *name);
#endif
