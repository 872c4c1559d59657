/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks know of each other without the library: memory in a file, and unique ids in files. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "rank.h"

int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

void pause_ms(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
  while (nanosleep(&t, &t)) continue;
}

double slack(void) {
  const char *s = getenv("HOCKET_TEST_SLACK");
  double x = s ? strtod(s, NULL) : 1;
  return x >= 1 ? x : 1;
}

board *board_open(const char *folder) {
  char path[512];
  snprintf(path, sizeof path, "%s/board", folder); /* made by the driver, full of zeros */
  int fd = open(path, O_RDWR | O_CLOEXEC);
  void *b = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (b == MAP_FAILED) {
    perror(path);
    exit(2);
  }
  close(fd);
  return b;
}

void meet(run *w, int number) {
  int64_t end = now_ns() + (int64_t)(60e9 * slack());
  atomic_fetch_or(&w->board->here[number], 1u << w->rank);
  for (;;) {
    uint32_t there = atomic_load(&w->board->here[number]);
    for (int r = 0; r < RANKS; r++)
      if (atomic_load(&w->board->gone[r])) there |= 1u << r;
    if (there == (1u << RANKS) - 1) return;
    if (now_ns() > end) {
      printf("HANG rank %d waits at meeting %d: %x\n", w->rank, number, there);
      fflush(NULL);
      _exit(3);
    }
    pause_ms(1);
  }
}

int ranks_left(const run *w, int *mine) {
  int n = 0;
  for (int r = 0; r < RANKS; r++) {
    if (atomic_load(&w->board->gone[r])) continue;
    if (r == w->rank) *mine = n;
    n++;
  }
  return n;
}

void id_publish(run *w, const char *name, const ncclUniqueId *id) {
  char path[512], ready[520];
  snprintf(path, sizeof path, "%s/id.%s.new", w->folder, name);
  snprintf(ready, sizeof ready, "%s/id.%s", w->folder, name);
  FILE *f = fopen(path, "w");
  if (!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) || rename(path, ready)) {
    perror(path);
    exit(2);
  }
}

void id_fetch(run *w, const char *name, ncclUniqueId *id) {
  char path[512];
  snprintf(path, sizeof path, "%s/id.%s", w->folder, name);
  for (int64_t end = now_ns() + (int64_t)(60e9 * slack()); now_ns() < end; pause_ms(1)) {
    FILE *f = fopen(path, "r");
    size_t got = f ? fread(id, sizeof *id, 1, f) : 0;
    if (f) fclose(f);
    if (got == 1) return;
  }
  printf("HANG rank %d: there is no %s\n", w->rank, path);
  exit(3);
}
