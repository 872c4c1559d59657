/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a text file (text_file.h). */
#include "text_file.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "array.h"

hk_status hk_text_read(const char *path, size_t most, char **text, size_t *bytes) {
  hk_status rc = HK_OK;
  char *t = NULL;
  size_t n = 0, capacity = 0, got;
  FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
  *text = NULL;
  if (!f) return HK_FAIL(HK_ERR_ARGUMENT, "%s cannot be read: %s", path, strerror(errno));
  do { /* its size is not asked for: a pipe has none */
    if (!HK_RESERVE(t, capacity, n + 4096)) HK_GIVE_UP(HK_FAIL_ERRNO("no memory to read %s", path), out);
    got = fread(t + n, 1, capacity - n - 1, f);
    n += got;
    if (n > most)
      HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s is too large: it has more than %zu MiB", path, most >> 20), out);
  } while (got);
  if (ferror(f)) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s cannot be read: %s", path, strerror(errno)), out);
  if (memchr(t, 0, n)) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s is no text: there is a zero byte in it", path), out);
  t[n] = 0;
  *text = t;
  *bytes = n;
  t = NULL;
out:
  free(t);
  if (f != stdin) fclose(f);
  return rc;
}

char *hk_text_line(char **text, int *number) {
  while (**text) {
    char *line = *text;
    const size_t n = strcspn(line, "\n");
    *text += n + (line[n] == '\n');
    line[n] = 0;
    line[strcspn(line, "#")] = 0;
    ++*number;
    if (line[strspn(line, " \t\r")]) return line;
  }
  return NULL;
}

void hk_text_clean(char *text) {
  for (char *c = text; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}
