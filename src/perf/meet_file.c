/* SPDX-License-Identifier: Apache-2.0 */
/* The file by which process 0 says where it listens. Its folder may be /tmp, in which any user writes: so its name ends
 * in random letters, which no other user can take before, and only a file of this user is read. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "meet.h"

enum { FILE_BYTES = PERF_MEET_ADDRESSES * PERF_MEET_ADDRESS_BYTES + 64 };

static void folder_path(const perf_meeting *m, const char *file, char *path, size_t room) {
  snprintf(path, room, "%s/%s", m->folder, file);
}

/* The next file in the folder whose name begins with m->name. */
static bool next_file(const perf_meeting *m, DIR *d, char *path, size_t room) {
  const struct dirent *e;
  size_t n = strlen(m->name);
  while ((e = readdir(d)))
    if (!strncmp(e->d_name, m->name, n)) {
      folder_path(m, e->d_name, path, room);
      return true;
    }
  return false;
}

/* Files of this job that process 0 of an earlier run has left. */
static void remove_old(const perf_meeting *m) {
  char path[sizeof m->path];
  struct stat st;
  DIR *d = opendir(m->folder);
  while (d && next_file(m, d, path, sizeof path))
    if (!lstat(path, &st) && st.st_uid == geteuid()) unlink(path);
  if (d) closedir(d);
}

void perf_meet_write(perf_meeting *m) {
  char text[FILE_BYTES], ending[sizeof m->name + 8];
  if (getrandom(&m->token, sizeof m->token, 0) != sizeof m->token)
    perf_fail(PERF_INTERNAL, "there are no random numbers: %s", strerror(errno));
  int n = snprintf(text, sizeof text, "%016llx %d", (unsigned long long)m->token, m->port);
  for (int i = 0; i < m->nhosts; i++) n += snprintf(text + n, sizeof text - (size_t)n, " %s", m->hosts[i]);
  text[n++] = '\n'; /* the end: without it the file is not complete yet */
  remove_old(m);
  snprintf(ending, sizeof ending, "%sXXXXXX", m->name);
  folder_path(m, ending, m->path, sizeof m->path);
  int fd = mkostemp(m->path, O_CLOEXEC); /* for this user alone, and new */
  bool written = fd >= 0 && write(fd, text, (size_t)n) == n;
  if (fd < 0 || close(fd) || !written)
    perf_fail(PERF_INTERNAL, "cannot write %s: %s (HOCKET_PERF_DIR names another folder)", m->path, strerror(errno));
}

static bool parse(perf_meeting *m, const char *text) {
  unsigned long long token;
  int at, more;
  m->nhosts = 0;
  if (!strchr(text, '\n') || sscanf(text, "%llx %d%n", &token, &m->port, &at) != 2) return false;
  for (; m->nhosts < PERF_MEET_ADDRESSES && sscanf(text + at, " %255s%n", m->hosts[m->nhosts], &more) == 1; at += more)
    m->nhosts++;
  m->token = token;
  return m->nhosts > 0;
}

bool perf_meet_read(perf_meeting *m, int *turn) {
  char path[sizeof m->path], text[FILE_BYTES + 1];
  int k = 0;
  bool found = false;
  DIR *d = opendir(m->folder);
  if (*turn == 0) m->stranger = -1;
  while (d && !found && next_file(m, d, path, sizeof path)) {
    if (k++ < *turn) continue;
    ++*turn;
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 ? fstat(fd, &st) : lstat(path, &st)) st.st_uid = geteuid(); /* it has just gone */
    if (st.st_uid != geteuid()) m->stranger = st.st_uid;
    ssize_t n = fd < 0 || st.st_uid != geteuid() ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    found = parse(m, text);
  }
  if (d) closedir(d);
  return found;
}
