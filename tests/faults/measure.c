/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds: descriptors, sockets, threads, mappings, shared memory, resident memory. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "rank.h"

static int entries(const char *folder, int *sockets) {
  DIR *d = opendir(folder);
  if (!d) return -1;
  int n = 0;
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    n++;
    if (!sockets) continue;
    char path[300], target[64] = "";
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (readlink(path, target, sizeof target - 1) > 0 && !strncmp(target, "socket:", 7)) (*sockets)++;
  }
  closedir(d);
  return n;
}

counts measure(void) {
  counts m = {.sockets = 0};
  m.fds = entries("/proc/self/fd", &m.sockets) - 1; /* without the one that reads the folder */
  m.threads = entries("/proc/self/task", NULL);
  FILE *f = fopen("/proc/self/maps", "r");
  for (char line[512]; f && fgets(line, sizeof line, f);) {
    m.maps++;
    m.shared += strstr(line, "memfd:") || strstr(line, "/dev/shm/");
  }
  if (f) fclose(f);
  long pages = 0;
  f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
  if (f) fclose(f);
  m.kb = pages * (sysconf(_SC_PAGESIZE) / 1024);
  return m;
}

counts measure_settled(const counts *aim, int ms) {
  counts m = measure();
  int64_t end = now_ns() + (int64_t)(ms * 1e6 * slack());
  while (now_ns() < end && (m.fds > aim->fds || m.threads > aim->threads || m.shared > aim->shared)) {
    pause_ms(10);
    m = measure();
  }
  return m;
}
