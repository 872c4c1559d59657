/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* A test case that leaves something behind fails (tests/support/leftovers.c), and one that says so does not. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "../support/leftovers.h"
#include "../support/suite.h"

static void *stays(void *arg) {
  if (arg) leftovers_own_thread();
  pause();
  return arg;
}

static void start(void *own) {
  pthread_t t;
  ck_assert_int_eq(pthread_create(&t, NULL, stays, own), 0);
}

static int memory(void) {
  int fd = memfd_create("hocket-arena", MFD_CLOEXEC);
  ck_assert(fd >= 0 && ftruncate(fd, 4096) == 0);
  return fd;
}

START_TEST(descriptor) { ck_assert_int_ge(open("/dev/null", O_RDONLY), 0); }
END_TEST
START_TEST(mapping) {
  int fd = memory();
  ck_assert(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
  close(fd);
}
END_TEST
START_TEST(thread) { start(NULL); }
END_TEST

START_TEST(nothing) {
  int fd = memory();
  void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  munmap(at, 4096);
  close(fd);
}
END_TEST
START_TEST(announced) {
  leftovers_own(memory());
  start("of the test");
}
END_TEST
START_TEST(ignored) {
  leftovers_ignore();
  (void)memory();
}
END_TEST

/* A child of a test case is looked at if it asks for that. */
START_TEST(children) {
  for (int watched = 0; watched < 2; watched++) {
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
      if (watched) leftovers_watch_child();
      (void)memory();
      exit(0);
    }
    ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), watched ? EXIT_FAILURE : 0);
  }
}
END_TEST

int main(void) {
  TCase *t = tcase_create("leftovers");
  tcase_set_timeout(t, 60);
  tcase_add_exit_test(t, descriptor, EXIT_FAILURE);
  tcase_add_exit_test(t, mapping, EXIT_FAILURE);
  tcase_add_exit_test(t, thread, EXIT_FAILURE);
  tcase_add_test(t, nothing);
  tcase_add_test(t, announced);
  tcase_add_test(t, ignored);
  tcase_add_test(t, children);
  return suite_run_one("leftovers", t);
}
