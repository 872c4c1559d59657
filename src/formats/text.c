/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of programs in the text form: one set of programs after another. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "formats.h"

/* A copy without lines that start with #, which become empty, so that lines keep their numbers; and without carriage
 * returns. NULL: no memory. */
static char *text_strip(const char *from) {
  char *text = malloc(strlen(from) + 1), *to = text;
  bool comment = false, line_start = true;
  for (; text && *from; from++) {
    if (line_start) comment = *from == '#';
    line_start = *from == '\n';
    if ((!comment && *from != '\r') || line_start) *to++ = *from;
  }
  if (text) *to = 0;
  return text;
}

/* A line that is indented or names a lane continues a program, any other begins one. */
static bool text_begins_program(const char *line) {
  return *line && *line != '\n' && *line != ' ' && strncmp(line, "lane ", 5) != 0;
}

static bool text_cut(char *text, hk_program_piece **pieces, int *n) {
  int line = 1;
  for (char *at = text; *at; line++) {
    const size_t length = strcspn(at, "\n");
    if (text_begins_program(at)) {
      if (!HK_RESERVE_NEXT(*pieces, *n)) return false;
      (*pieces)[(*n)++] = (hk_program_piece){.text = at, .line = line};
      if (at > text) at[-1] = 0;
    }
    at += length + (at[length] == '\n');
  }
  return true;
}

hk_status hk_text_programs_read(hk_program_file *out, const char *name, const char *from) {
  hk_status rc = HK_OK;
  hk_program_piece *pieces = NULL;
  int n = 0;
  char *text = text_strip(from);
  if (!text || !text_cut(text, &pieces, &n)) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the programs of %s", name), out);
  if (!n) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s holds no program", name), out);
  for (int i = 0; i < n; i++) {
    rc = hk_program_parse_at(pieces[i].text, pieces[i].line, &pieces[i].program);
    if (rc != HK_OK) HK_GIVE_UP(HK_FAIL(rc, "%s: %s", name, hk_last_error()), out);
  }
  rc = hk_program_file_gather(out, name, "", pieces, n);
out:
  for (int i = 0; i < n; i++) hk_program_free(pieces[i].program);
  free(pieces);
  free(text);
  return rc;
}
