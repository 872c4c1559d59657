/* SPDX-License-Identifier: Apache-2.0 */
/* contain TAP SILENCE LIMIT COMMAND...: runs a test until its first failure, and leaves no process of it over.
 * scripts/mutations.sh runs broken tests with it.
 *
 * Check writes a line to the file TAP after each test case. A test that writes none for SILENCE seconds, or takes more than
 * LIMIT, hangs. Children of a test that has ended become children of this process (a test case has a process group of its
 * own, so that a signal to one group would not reach all), and end with it. If the caller ends, they end, too.
 *
 * Writes the longest time between two lines, in milliseconds, to descriptor 3. Exit code: 0 (passed, or skipped with 77),
 * 1 (the test fails) or 124 (it hangs). */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, SKIPPED = 77, HANGS = 124, RUNS = -1 };

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Does a complete line of the file say that a test case failed? `lines`: how many there are. */
static bool has_failed(const char *path, int *lines) {
  char text[4096];
  bool failed = false;
  FILE *f = fopen(path, "r");
  for (*lines = 0; f && fgets(text, sizeof text, f);) {
    if (!strchr(text, '\n')) continue;
    failed = failed || !strncmp(text, "not ok", 6);
    ++*lines;
  }
  if (f) fclose(f);
  return failed;
}

static void kill_children(void) {
  DIR *d = opendir("/proc");
  for (struct dirent *e; d && (e = readdir(d));) {
    char path[64], text[512] = "";
    int pid = atoi(e->d_name), parent = 0;
    if (pid <= 0) continue;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    if (read(fd, text, sizeof text - 1) > 0 && strrchr(text, ')') && sscanf(strrchr(text, ')'), ") %*c %d", &parent) == 1 &&
        parent == getpid())
      kill(pid, SIGKILL);
    close(fd);
  }
  if (d) closedir(d);
}

static pid_t start(char **command, const sigset_t *before) {
  pid_t pid = fork();
  if (pid) return pid;
  setpgid(0, 0); /* Check ends its group at a signal */
  sigprocmask(SIG_SETMASK, before, NULL);
  execv(command[0], command);
  _exit(127);
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  const struct timespec nap = {.tv_nsec = 30000000};
  int64_t begin = now_ms(), last = begin, longest = 0, silence = atoi(argv[2]) * 1000ll, limit = atoi(argv[3]) * 1000ll;
  int verdict = RUNS, lines = 0;
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, &before);
  fcntl(3, F_SETFD, FD_CLOEXEC);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  pid_t test = start(argv + 4, &before);
  while (verdict == RUNS) {
    int signal = sigtimedwait(&set, NULL, &nap), status, n;
    if (signal > 0 && signal != SIGCHLD) verdict = FAILED;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
      if (pid == test)
        verdict = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == SKIPPED) ? PASSED : FAILED;
    if (has_failed(argv[1], &n)) verdict = FAILED;
    int64_t now = now_ms();
    if (now - last > longest) longest = now - last;
    if (n != lines) lines = n, last = now;
    if (verdict == RUNS && (now - last > silence || now - begin > limit)) verdict = HANGS;
  }
  do kill_children();
  while (waitpid(-1, NULL, 0) > 0);
  dprintf(3, "%lld\n", (long long)longest);
  return verdict;
}
