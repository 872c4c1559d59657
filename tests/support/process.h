/* SPDX-License-Identifier: Apache-2.0 */
/* What tests set and count in their own process. */
#ifndef HK_TESTS_PROCESS_H
#define HK_TESTS_PROCESS_H
#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "../../src/base/param.h"
#include "../../src/base/wait.h"
#include "suite.h"

static inline int count_entries(const char *folder) {
  int n = 0;
  DIR *d = opendir(folder);
  ck_assert_ptr_nonnull(d);
  while (readdir(d)) n++;
  closedir(d);
  return n;
}
static inline int open_fds(void) { return count_entries("/proc/self/fd"); }

/* How many sockets a child of fork finds. It requests no memory: a thread may have had the allocator's lock. */
static inline int sockets_of_a_child(void) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    struct stat s;
    int n = 0;
    for (int fd = 3; fd < 1024; fd++) n += fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode);
    _exit(n);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* NULL: unset. */
static inline void set_param(const char *name, const char *value) {
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
  hk_param_reload();
}

static inline double seconds(void) { return (double)hk_now_ns() * 1e-9; }
#endif
