/* SPDX-License-Identifier: Apache-2.0 */
/* Files that commands write (tools.h). */
#include <errno.h>
#include <limits.h> /* PATH_MAX */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools.h"

/* The path without symbolic links, so that the file that a link names is replaced and not the link. */
static const char *output_place(const char *path, char place[PATH_MAX]) { return realpath(path, place) ? place : path; }

bool hk_tool_can_output(const char *path) {
  if (!strcmp(path, "-")) return true;
  const bool there = access(path, F_OK) == 0;
  FILE *f = fopen(path, "ae");
  if (!f) return hk_tool_wrong("%s cannot be written: %s", path, strerror(errno)), false;
  fclose(f);
  if (!there) unlink(path);
  return true;
}

/* A file is written under another name in its folder and then renamed: a full disk leaves no part of it, and a reader
 * sees the old file or the new one. A device, a pipe, and a file in a folder that cannot be written are written in
 * place. */
int hk_tool_output(const char *path, hk_status (*write)(FILE *to, const void *what), const void *what) {
  char resolved[PATH_MAX], fresh[PATH_MAX + 16];
  struct stat st;
  const char *place = path && strcmp(path, "-") != 0 ? output_place(path, resolved) : NULL;
  FILE *to = NULL;
  if (place && (stat(place, &st) != 0 || S_ISREG(st.st_mode))) {
    snprintf(fresh, sizeof fresh, "%s.%d", place, (int)getpid());
    to = fopen(fresh, "we");
  }
  const bool renames = to != NULL;
  if (!to) to = place ? fopen(place, "we") : stdout;
  if (!to) return hk_tool_wrong("%s cannot be written: %s", path, strerror(errno));
  const hk_status rc = write(to, what);
  bool failed = ferror(to) != 0;
  if (to != stdout) failed = fclose(to) || failed;
  if (rc == HK_OK && !failed && renames) failed = rename(fresh, place) != 0;
  if ((rc != HK_OK || failed) && renames) {
    const int why = errno;
    unlink(fresh);
    errno = why;
  }
  if (rc != HK_OK) return hk_tool_failed(rc);
  return failed ? hk_tool_wrong("%s cannot be written: %s", path ? path : "the output", strerror(errno)) : HK_EXIT_OK;
}
