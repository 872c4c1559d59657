/* SPDX-License-Identifier: Apache-2.0 */
/* Writing of the constants and times of `hocket tune`. */
#include <errno.h>
#include <limits.h> /* PATH_MAX */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../tools.h"
#include "tune.h"

/* Makes the folders above a path, as mkdir -p does. */
static void save_make_folders(const char *path) {
  char folder[PATH_MAX];
  for (const char *p = strchr(path + 1, '/'); p && (size_t)(p - path) < sizeof folder; p = strchr(p + 1, '/')) {
    memcpy(folder, path, (size_t)(p - path));
    folder[p - path] = 0;
    (void)mkdir(folder, 0777); /* an error is found when the file is opened */
  }
}

/* The file without symbolic links, so that the file that a link names is replaced and not the link. */
static bool save_find_place(const char *path, char place[PATH_MAX]) {
  char usual[PATH_MAX];
  if (!path) {
    if (!hk_constants_path(usual, sizeof usual)) return hk_tool_wrong("no HOME is set: give --out"), false;
    save_make_folders(usual);
    path = usual;
  }
  if (realpath(path, place)) return true;
  if (strlen(path) >= PATH_MAX)
    return hk_tool_wrong("the path of a file to write is longer than %d bytes", PATH_MAX - 1), false;
  strcpy(place, path);
  return true;
}

bool hk_tune_can_save(const char *path) {
  char place[PATH_MAX];
  struct stat st;
  if (path && !strcmp(path, "-")) return true;
  if (!save_find_place(path, place)) return false;
  bool there = stat(place, &st) == 0;
  if (there && S_ISDIR(st.st_mode)) return hk_tool_wrong("%s is a folder, and no file to write", place), false;
  if (!there) { /* then its folder is resolved */
    char *name = strrchr(place, '/');
    if (!name)
      strcpy(place, ".");
    else
      name[name == place] = 0;
  }
  if (access(place, W_OK) == 0) return true;
  return hk_tool_wrong("%s cannot be written%s: %s", place, there ? "" : " to", strerror(errno)), false;
}

/* Times, or constants with choices. */
typedef struct content {
  const hk_constants *constants;
  const hk_rules *choices;    /* may be NULL */
  const hk_tune_times *times; /* else NULL */
} content;

static hk_status save_put(const content *c, FILE *f) {
  return c->times ? hk_tune_times_write(c->times, f) : hk_constants_write(c->constants, c->choices, f);
}

/* Writes a temporary file in the same folder and renames it. So a full disk leaves no partial file, and a concurrent
 * init reads none. */
static hk_status save_replace(const char *place, const content *what) {
  char fresh[PATH_MAX + 16];
  struct stat st;
  bool plain = stat(place, &st) != 0 || S_ISREG(st.st_mode); /* a device or a pipe is not replaced */
  snprintf(fresh, sizeof fresh, "%s.%d", place, (int)getpid());
  FILE *f = plain ? fopen(fresh, "we") : NULL;
  bool beside = f != NULL;
  if (!f) f = fopen(place, "we"); /* a writable file in a folder that is not writable */
  if (!f) return HK_FAIL_ERRNO("%s cannot be written", place);
  hk_status rc = save_put(what, f);
  if (fclose(f) != 0 && rc == HK_OK) rc = HK_FAIL_ERRNO("%s cannot be written", place);
  if (!beside) return rc;
  if (rc == HK_OK && rename(fresh, place) != 0) rc = HK_FAIL_ERRNO("%s cannot be replaced", place);
  if (rc != HK_OK) unlink(fresh);
  return rc;
}

int hk_tune_save(const char *path, const hk_constants *k, const hk_rules *choices) {
  char place[PATH_MAX];
  bool standard = path && !strcmp(path, "-");
  if (!standard && !save_find_place(path, place)) return HK_EXIT_TROUBLE;
  content what = {.constants = k, .choices = choices};
  hk_status rc = standard ? save_put(&what, stdout) : save_replace(place, &what);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (standard) return HK_EXIT_OK;
  fprintf(stderr, "written to %s%s\n", place,
          path ? "; HOCKET_TUNE_FILE=<that file> makes an init read it" : ", which every init reads");
  return HK_EXIT_OK;
}

int hk_tune_save_times(const char *path, const hk_tune_times *times) {
  char place[PATH_MAX];
  int runs = 0;
  if (!save_find_place(path, place)) return HK_EXIT_TROUBLE;
  hk_status rc = save_replace(place, &(content){.times = times});
  if (rc != HK_OK) return hk_tool_failed(rc);
  for (int i = 0; i < times->n; i++)
    if (times->at[i].runs > runs) runs = times->at[i].runs;
  fprintf(stderr, "the times of %d %s are in %s\n", runs, runs == 1 ? "run" : "runs", place);
  return HK_EXIT_OK;
}
