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

static char scratch_folder[64];

static inline const char *scratch_path(const char *name) {
  static char paths[8][320];
  static unsigned turn;
  char *path = paths[turn++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
  return path;
}
static inline void scratch_make(void) {
  snprintf(scratch_folder, sizeof scratch_folder, "/tmp/hocket-test-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(scratch_folder));
}
static inline int scratch_unlink(const char *path, const struct stat *s, int type, struct FTW *walk) {
  (void)s, (void)type, (void)walk;
  return remove(path);
}
static inline void scratch_remove(void) { nftw(scratch_folder, scratch_unlink, 8, FTW_DEPTH | FTW_PHYS); }

static inline void scratch_write(const char *name, const char *text) {
  FILE *f = fopen(scratch_path(name), "we");
  ck_assert_ptr_nonnull(f);
  fputs(text, f);
  fclose(f);
}
/* The whole file, "" where it is not there; good until the next call. */
static inline const char *scratch_read(const char *name) {
  static char text[65536];
  FILE *f = fopen(scratch_path(name), "re");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  return text;
}
#endif
