/* SPDX-License-Identifier: Apache-2.0 */
/* What a test case leaves behind when its process ends well: descriptors, shared mappings, threads. A close or a join
 * that is missing is no leak of memory, so that no sanitizer reports it. Here such a case fails, with a list. */
#include "leftovers.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OWN_THREAD "of-the-test"
enum { FDS = 4096, WAIT_MS = 3000, STEP_MS = 10 };

static struct {
  pid_t process; /* the test case's, as Check forked it; 0: not watched */
  int depth, maps;
  _Atomic(bool) open[FDS]; /* a test's threads announce theirs */
} watched;

typedef struct list {
  char text[1000];
  size_t used;
  int n;
} list;

static void add(list *l, const char *what, const char *name) {
  l->n++;
  if (l->used < sizeof l->text)
    l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, " %s %s", what, name);
}

static bool begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

/* Calls `see` with the name of each entry of a folder. */
static void each(const char *folder, void (*see)(const char *name, list *l), list *l) {
  DIR *d = opendir(folder);
  char own[16];
  if (!d) return;
  snprintf(own, sizeof own, "%d", dirfd(d));
  for (struct dirent *e; (e = readdir(d));)
    if (e->d_name[0] != '.' && (strcmp(e->d_name, own) || !strstr(folder, "fd"))) see(e->d_name, l);
  closedir(d);
}

static bool emulates; /* this process has the emulated driver, which keeps memory and threads as CUDA's does */
static bool listens;  /* for ids that no rank has used: the listener keeps these descriptors */

/* Memory of ncclMemAlloc: signals of the last communicators that are gone stay, because peers may still write there. */
static bool may_stay(const char *name) {
  return strstr(name, "memfd:hocket (deleted)") || strstr(name, "memfd:cudaemu");
}

static struct {
  const char *name;
  bool seen;
} of_listener[] = {
    {"socket:", 0}, {"socket:", 0}, {"anon_inode:[eventpoll]", 0}, {"anon_inode:[eventfd]", 0}, {"/dev/null", 0}};

static void see_driver(const char *name, list *l) {
  char path[64], to[200] = "";
  (void)l;
  snprintf(path, sizeof path, "/proc/self/fd/%s", name);
  if (readlink(path, to, sizeof to - 1) > 0 && strstr(to, "memfd:cudaemu")) emulates = true;
}

/* A file that is only written is the log. */
static void see_fd(const char *name, list *l) {
  char path[64], to[200] = "";
  struct stat st;
  int fd = atoi(name);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (readlink(path, to, sizeof to - 1) < 0 || fd >= FDS || watched.open[fd]) return;
  if (may_stay(to)) return;
  for (size_t k = 0; listens && k < sizeof of_listener / sizeof *of_listener; k++)
    if (!of_listener[k].seen && begins(to, of_listener[k].name)) {
      of_listener[k].seen = true;
      return;
    }
  bool file = fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISCHR(st.st_mode));
  if (file && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) return;
  add(l, "descriptor", to);
}

static void see_thread(const char *name, list *l) {
  char path[64], called[32] = "";
  snprintf(path, sizeof path, "/proc/self/task/%s/comm", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return; /* it has just ended */
  ssize_t n = read(fd, called, sizeof called - 1);
  close(fd);
  if (n > 0) called[n - 1] = 0;
  if (begins(called, OWN_THREAD)) return;
  if (begins(called, "hk-listener")) {
    listens = true;
    return;
  }
  if (atoi(name) == (int)getpid() || (emulates && !begins(called, "hk-") && !begins(called, "hocket"))) return;
  add(l, "thread", called);
}

/* Shared memory; what a test shares with its own children has no name. */
static int count_maps(void) {
  char line[600];
  int n = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  while (f && fgets(line, sizeof line, f)) {
    const char *rights = strchr(line, ' ');
    n += rights && rights[1] && rights[4] == 's' && strstr(line, "memfd:") && !may_stay(line);
  }
  if (f) fclose(f);
  return n;
}

static void look(list *l) {
  *l = (list){.n = 0};
  emulates = listens = false;
  for (size_t k = 0; k < sizeof of_listener / sizeof *of_listener; k++) of_listener[k].seen = false;
  each("/proc/self/fd", see_driver, l);
  each("/proc/self/task", see_thread, l);
  each("/proc/self/fd", see_fd, l);
  for (int n = count_maps(); n > watched.maps; n--) add(l, "mapping of", "shared memory");
}

/* A detached thread that has been asked to end may need a moment. */
static void at_end(void) {
  list l;
  if (watched.process != getpid()) return;
  look(&l);
  for (int waited = 0; l.n && waited < WAIT_MS; waited += STEP_MS) {
    nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000l}, NULL);
    look(&l);
  }
  if (!l.n) return;
  fprintf(stderr, "%s: a test case leaves behind:%s\n", program_invocation_short_name, l.text);
  _exit(EXIT_FAILURE);
}

static void begin(void) {
  watched.process = getpid();
  watched.maps = count_maps();
  for (int fd = 0; fd < FDS; fd++) watched.open[fd] = fcntl(fd, F_GETFD) >= 0;
}

static void in_child(void) {
  watched.process = 0;
  if (!watched.depth++) begin(); /* else a child of the test case */
}

void leftovers_watch(void) {
#ifndef __SANITIZE_THREAD__ /* it takes a look at a descriptor that another thread closes for a race */
  pthread_atfork(NULL, NULL, in_child);
  atexit(at_end);
#else
  (void)in_child, (void)at_end;
#endif
}

void leftovers_watch_child(void) {
#ifndef __SANITIZE_THREAD__ /* as above */
  begin();
#endif
}

void leftovers_ignore(void) { watched.process = 0; }

void leftovers_own(int fd) {
  if (fd >= 0 && fd < FDS) watched.open[fd] = true;
}

void leftovers_own_thread(void) { pthread_setname_np(pthread_self(), OWN_THREAD); }
