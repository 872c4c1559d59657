/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the constants of `hocket tune`. */
#include <errno.h>
#include <limits.h> /* PATH_MAX */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../tools.h"
#include "tune.h"

/* Makes the folders above a path, as mkdir -p does; an error is found when the file is opened. */
static void save_make_folders(const char *path) {
  char folder[PATH_MAX];
  for (const char *p = strchr(path + 1, '/'); p && (size_t)(p - path) < sizeof folder; p = strchr(p + 1, '/')) {
    memcpy(folder, path, (size_t)(p - path));
    folder[p - path] = 0;
    (void)mkdir(folder, 0777);
  }
}

/* The file to write, without symbolic links, so that the file that a link names is replaced and not the link. It is
 * made if it does not exist; an empty file changes no constant. */
static bool save_find_place(const char *path, char place[PATH_MAX]) {
  char usual[PATH_MAX];
  if (!path) {
    if (!hk_constants_path(usual, sizeof usual)) return hk_tool_wrong("no HOME is set: give --out"), false;
    save_make_folders(usual);
    path = usual;
  }
  FILE *f = fopen(path, "ae");
  const bool good = f && realpath(path, place);
  if (!good) (void)hk_tool_wrong("%s cannot be written: %s", path, strerror(errno));
  if (f) fclose(f);
  return good;
}

bool hk_tune_can_save(const char *path) {
  char place[PATH_MAX];
  return (path && !strcmp(path, "-")) || save_find_place(path, place);
}

/* Writes a temporary file in the same folder and renames it. So a full disk leaves no partial file, and a concurrent
 * init reads none. A device, a pipe, and a file in a folder that cannot be written are written in place. */
static hk_status save_replace(const char *place, const hk_constants *k) {
  char fresh[PATH_MAX + 16];
  struct stat st;
  snprintf(fresh, sizeof fresh, "%s.%d", place, (int)getpid());
  FILE *f = stat(place, &st) == 0 && S_ISREG(st.st_mode) ? fopen(fresh, "we") : NULL;
  const bool renamed = f != NULL;
  if (!f) f = fopen(place, "we");
  if (!f) return HK_FAIL_ERRNO("%s cannot be written", place);
  hk_status rc = hk_constants_write(k, f);
  if (fclose(f) != 0 && rc == HK_OK) rc = HK_FAIL_ERRNO("%s cannot be written", place);
  if (rc == HK_OK && renamed && rename(fresh, place) != 0) rc = HK_FAIL_ERRNO("%s cannot be replaced", place);
  if (rc != HK_OK && renamed) unlink(fresh);
  return rc;
}

int hk_tune_save(const char *path, const hk_constants *k) {
  char place[PATH_MAX];
  const bool standard = path && !strcmp(path, "-");
  if (!standard && !save_find_place(path, place)) return HK_EXIT_TROUBLE;
  const hk_status rc = standard ? hk_constants_write(k, stdout) : save_replace(place, k);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (!standard)
    fprintf(stderr, "written to %s%s\n", place,
            path ? "; HOCKET_TUNE_FILE=<that file> makes an init read it" : ", which every init reads");
  return HK_EXIT_OK;
}
