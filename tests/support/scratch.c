/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for a test: scratch.h. */
#include "scratch.h"

char scratch_folder[64];

const char *scratch_path(const char *name) {
  static _Thread_local char paths[8][320]; /* ranks as threads name files, too */
  static _Thread_local unsigned turn;
  char *path = paths[turn++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
  return path;
}

void scratch_make(void) {
  snprintf(scratch_folder, sizeof scratch_folder, "/tmp/hocket-test-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(scratch_folder));
}

static int scratch_unlink(const char *path, const struct stat *s, int type, struct FTW *walk) {
  (void)s, (void)type, (void)walk;
  return remove(path);
}

void scratch_remove(void) { nftw(scratch_folder, scratch_unlink, 8, FTW_DEPTH | FTW_PHYS); }

void scratch_write(const char *name, const char *text) {
  FILE *f = fopen(scratch_path(name), "we");
  ck_assert_ptr_nonnull(f);
  fputs(text, f);
  fclose(f);
}

const char *scratch_read(const char *name) {
  static char text[65536];
  FILE *f = fopen(scratch_path(name), "re");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  return text;
}
