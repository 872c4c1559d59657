/* SPDX-License-Identifier: Apache-2.0 */
/* Forks while other threads make, use and end communicators. In each child a call on the parent's
 * communicator is refused at once, and a communicator of its own works. A child that hangs is killed and named.
 *
 *   forks COUNT */
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, CHILD_SECONDS = 20 };

static int fails(const char *what, ncclResult_t rc) {
  fprintf(stderr, "process %d: %s: %d, %s\n", (int)getpid(), what, (int)rc, ncclGetLastError(NULL));
  return 1;
}

/* A communicator's life, of one rank. */
static int life(void) {
  ncclUniqueId id;
  ncclComm_t c;
  float x = 3, y = 0;
  ncclResult_t rc = ncclGetUniqueId(&id);
  if (rc == ncclSuccess) rc = ncclCommInitRank(&c, 1, id, 0);
  if (rc != ncclSuccess) return fails("init", rc);
  rc = ncclAllReduce(&x, &y, 1, ncclFloat, ncclSum, c, NULL);
  if (rc == ncclSuccess) rc = ncclCommDestroy(c);
  return rc != ncclSuccess || y != 3 ? fails("a communicator's life", rc) : 0;
}

static void *lives(void *arg) {
  (void)arg;
  while (!life()) {}
  exit(1);
}

static int child(ncclComm_t inherited) {
  float x = 1;
  alarm(CHILD_SECONDS);
  ncclResult_t rc = ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, inherited, NULL);
  if (rc != ncclInvalidUsage) return fails("a call on the parent's communicator", rc);
  return life();
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 100, wrong = 0;
  ncclUniqueId id;
  ncclComm_t c;
  pthread_t thread;
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&c, 1, id, 0) != ncclSuccess)
    return fails("init", ncclSystemError);
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&thread, NULL, lives, NULL)) return 1;
  for (int i = 0; i < count; i++) {
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(child(c));
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return fails("fork", ncclSystemError);
    if (status) {
      fprintf(stderr, "fork %d: %s, status %#x\n", i,
              WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "hangs" : "fails", (unsigned)status);
      wrong++;
    }
  }
  printf("%d forks, %d wrong\n", count, wrong);
  fflush(stdout);
  _exit(wrong != 0); /* the threads go on */
}
