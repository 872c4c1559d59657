/* SPDX-License-Identifier: Apache-2.0 */
/* check: timeout=120 */
/* The watch of the process's memory: what is noticed, when, and what is not watched. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../src/base/unmap.h"
#include "../support/suite.h"

enum { PAGE = 4096, PAGES = 64, SIZE = PAGES * PAGE };
#define NO_LIMIT (UINT64_C(1) << 40)

static hk_unmap *u;
static char why[HK_UNMAP_WHY];

static void open_watch(void) {
  u = hk_unmap_open(why);
  ck_assert_msg(u != NULL, "%s", why);
}

static char *map_at(void *at, size_t bytes) {
  char *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  ck_assert(p != MAP_FAILED);
  memset(p, 1, bytes);
  return p;
}

static hk_unmap_range watch(const char *p, size_t bytes) {
  hk_unmap_range r;
  hk_unmap_result is;
  while ((is = hk_unmap_watch(u, p, bytes, NO_LIMIT, &r, why)) == HK_UNMAP_BUSY) continue;
  ck_assert_msg(is == HK_UNMAP_WATCHED, "%d: %s", (int)is, why);
  return r;
}

/* ---- what changes memory ---- */

static void drop(char *p, size_t at, size_t bytes, int advice) { ck_assert_int_eq(madvise(p + at, bytes, advice), 0); }
static void unmaps_all(char *p) { munmap(p, SIZE); }
static void unmaps_first_page(char *p) { munmap(p, PAGE); }
static void unmaps_last_page(char *p) { munmap(p + SIZE - PAGE, PAGE); }
static void unmaps_more(char *p) { munmap(p - PAGE, SIZE + 2 * PAGE); }
static void maps_over(char *p) { map_at(p + PAGE, PAGE); }
static void maps_file_over(char *p) {
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ck_assert(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) != MAP_FAILED);
  close(fd);
}
static void drops(char *p) { drop(p, PAGE, PAGE, MADV_DONTNEED); }
static void frees(char *p) { drop(p, 0, SIZE, MADV_FREE); }
static void moves(char *p) {
  map_at(p + SIZE, PAGE); /* no room to grow */
  ck_assert(mremap(p, SIZE, 4 * SIZE, MREMAP_MAYMOVE) != MAP_FAILED);
}
static void moves_and_stays(char *p) {
  const unsigned stays = 4; /* MREMAP_DONTUNMAP */
  ck_assert((void *)syscall(SYS_mremap, p, SIZE, SIZE, MREMAP_MAYMOVE | stays, NULL) != MAP_FAILED);
}
static void shrinks(char *p) { ck_assert(mremap(p, SIZE, SIZE - PAGE, 0) == p); }
static void moves_onto(char *p) {
  char *from = map_at(NULL, PAGE);
  ck_assert(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE) == p + PAGE);
}
static void *unmap_it(void *p) {
  munmap(p, SIZE);
  return NULL;
}
static void unmaps_in_a_thread(char *p) {
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, unmap_it, p), 0);
  pthread_join(thread, NULL);
}

static void (*const changes[])(char *p) = {
    unmaps_all, unmaps_first_page, unmaps_last_page, unmaps_more, maps_over,         maps_file_over, drops, frees,
    moves,      moves_and_stays,   shrinks,          moves_onto,  unmaps_in_a_thread};

/* The range begins and ends within pages. */
START_TEST(notices) {
  open_watch();
  char *p = map_at(NULL, SIZE + 2 * PAGE) + PAGE;
  hk_unmap_range r = watch(p + 100, SIZE - 200);
  ck_assert_int_eq(hk_unmap_look(u, &r), HK_UNMAP_SAME);
  ck_assert(!hk_unmap_known_gone(u, &r));
  uint64_t marks = hk_unmap_marks(u);
  changes[_i](p);
  ck_assert(hk_unmap_known_gone(u, &r)); /* when the call has returned */
  ck_assert_int_eq(hk_unmap_look(u, &r), HK_UNMAP_GONE);
  ck_assert_uint_gt(hk_unmap_marks(u), marks);
  hk_unmap_forget(u, &r);
  hk_unmap_close(u);
}
END_TEST

START_TEST(notices_the_end_of_the_heap) {
  open_watch();
  char *p = sbrk(SIZE);
  hk_unmap_range r = watch(p, SIZE);
  ck_assert(sbrk(-SIZE) != (void *)-1);
  ck_assert(hk_unmap_known_gone(u, &r));
  hk_unmap_forget(u, &r);
  hk_unmap_close(u);
}
END_TEST

/* ---- what does not ---- */

static void nothing(char *p) { (void)p; }
static void protects(char *p) {
  ck_assert_int_eq(mprotect(p + PAGE, PAGE, PROT_NONE), 0);
  ck_assert_int_eq(mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
}
static void unmaps_neighbours(char *p) {
  munmap(p - PAGE, PAGE);
  munmap(p + SIZE, PAGE);
}
static void child_unmaps(char *p) {
  int status;
  pid_t child = fork();
  if (!child) {
    munmap(p, SIZE);
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}
static void grows(char *p) {
  munmap(p + SIZE, PAGE);
  (void)mremap(p, SIZE, SIZE + PAGE, 0);
}
static void (*const others[])(char *p) = {nothing, protects, unmaps_neighbours, child_unmaps, grows};

START_TEST(ignores) {
  open_watch();
  char *p = map_at(NULL, SIZE + 2 * PAGE) + PAGE;
  hk_unmap_range r = watch(p, SIZE);
  others[_i](p);
  ck_assert_int_eq(hk_unmap_look(u, &r), HK_UNMAP_SAME);
  munmap(p, PAGE); /* still watched */
  ck_assert(hk_unmap_known_gone(u, &r));
  hk_unmap_forget(u, &r);
  hk_unmap_close(u);
}
END_TEST

/* ---- what is not watched ---- */

static char *file_memory(int flags) {
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  char *p = mmap(NULL, SIZE, PROT_READ | (flags & MAP_PRIVATE ? PROT_WRITE : 0), flags, fd, 0);
  close(fd);
  return p;
}
static char *shared_memory(int flags) {
  int fd = memfd_create("test", MFD_CLOEXEC);
  ck_assert_int_eq(ftruncate(fd, SIZE), 0);
  char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);
  close(fd);
  return p;
}

START_TEST(refuses) {
  char *p = NULL;
  open_watch();
  switch (_i) {
    case 0: p = file_memory(MAP_PRIVATE); break;
    case 1: p = file_memory(MAP_SHARED); break;
    case 2: p = shared_memory(MAP_PRIVATE); break;
    case 3: p = shared_memory(MAP_SHARED); break;
    case 4: p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); break;
    case 5: p = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); break;
    case 6:
      p = map_at(NULL, SIZE);
      munmap(p + PAGE, PAGE);
      break;
    case 7:
      p = map_at(NULL, SIZE);
      munmap(p, SIZE);
      break;
    default:
      p = map_at(NULL, SIZE);
      munmap(p + SIZE - PAGE, PAGE);
      break;
  }
  ck_assert(p != MAP_FAILED);
  hk_unmap_range r;
  ck_assert_int_eq(hk_unmap_watch(u, p, SIZE, NO_LIMIT, &r, why), HK_UNMAP_REFUSED);
  ck_assert_int_gt((int)strlen(why), 0);
  ck_assert_uint_eq(r.serial, 0);
  ck_assert(hk_unmap_known_gone(u, &r));
  uint64_t marks = hk_unmap_marks(u);
  if (_i < 6) munmap(p, SIZE);
  ck_assert_uint_eq(hk_unmap_marks(u), marks);
  hk_unmap_close(u);
}
END_TEST

START_TEST(has_limits) {
  enum { MANY = 1100 };
  static hk_unmap_range r[MANY];
  open_watch();
  char *p = map_at(NULL, SIZE);
  ck_assert_int_eq(hk_unmap_watch(u, p, SIZE, SIZE - 1, &r[0], why), HK_UNMAP_FULL);
  ck_assert_int_eq(hk_unmap_watch(u, p, SIZE, SIZE, &r[0], why), HK_UNMAP_WATCHED);
  ck_assert_int_eq(hk_unmap_watch(u, p, 1, SIZE + PAGE - 1, &r[1], why), HK_UNMAP_FULL);
  hk_unmap_forget(u, &r[0]);
  int n = 0;
  while (n < MANY && hk_unmap_watch(u, p + n % PAGES * PAGE, 1, NO_LIMIT, &r[n], why) == HK_UNMAP_WATCHED) n++;
  ck_assert_int_eq(n, 1024);
  for (int i = 0; i < n; i++) ck_assert_int_eq(hk_unmap_look(u, &r[i]), HK_UNMAP_SAME);
  for (int i = 0; i < n; i++) hk_unmap_forget(u, &r[i]);
  r[0] = watch(p, SIZE);
  hk_unmap_forget(u, &r[0]);
  hk_unmap_close(u);
}
END_TEST

/* ---- ranges of which some are forgotten ---- */

START_TEST(keeps_what_others_watch) {
  open_watch();
  char *p = map_at(NULL, SIZE);
  hk_unmap_range a = watch(p, SIZE), b = watch(p + 8 * PAGE, 8 * PAGE), c = watch(p + 12 * PAGE, 8 * PAGE), was = a;
  hk_unmap_forget(u, &a);
  ck_assert_uint_eq(a.serial, 0);
  ck_assert(hk_unmap_known_gone(u, &was));
  uint64_t marks = hk_unmap_marks(u);
  drop(p, 0, 8 * PAGE, MADV_DONTNEED);
  drop(p, 20 * PAGE, 8 * PAGE, MADV_DONTNEED);
  ck_assert_uint_eq(hk_unmap_marks(u), marks);
  hk_unmap_forget(u, &b);
  ck_assert_int_eq(hk_unmap_look(u, &c), HK_UNMAP_SAME);
  drop(p, 15 * PAGE, PAGE, MADV_DONTNEED);
  ck_assert(hk_unmap_known_gone(u, &c));
  hk_unmap_forget(u, &c);
  marks = hk_unmap_marks(u);
  munmap(p, SIZE);
  ck_assert_uint_eq(hk_unmap_marks(u), marks);
  hk_unmap_close(u);
}
END_TEST

/* A slot that was used before has another serial number. */
START_TEST(tells_old_ranges_from_new_ones) {
  open_watch();
  char *p = map_at(NULL, SIZE);
  hk_unmap_range a = watch(p, SIZE), old = a;
  hk_unmap_forget(u, &a);
  hk_unmap_range b = watch(p, SIZE);
  ck_assert_uint_eq(b.slot, old.slot);
  ck_assert_int_eq(hk_unmap_look(u, &old), HK_UNMAP_GONE);
  ck_assert_int_eq(hk_unmap_look(u, &b), HK_UNMAP_SAME);
  hk_unmap_forget(u, &old); /* nothing */
  ck_assert_int_eq(hk_unmap_look(u, &b), HK_UNMAP_SAME);
  hk_unmap_forget(u, &b);
  hk_unmap_close(u);
}
END_TEST

/* The kernel's watch must end with the ranges, wherever the memory is by now: a child keeps the descriptor open, so
 * that its close in the parent ends nothing, and then no thread reads. */
START_TEST(ends_though_a_child_lives) {
  int pipe_to[2], status;
  char byte;
  open_watch();
  char *p = map_at(NULL, SIZE + PAGE), *q = map_at(NULL, SIZE), *moved;
  munmap(p + SIZE, PAGE);
  hk_unmap_range a = watch(p, SIZE), b = watch(q, SIZE);
  map_at(p + SIZE, PAGE);
  moved = mremap(p, SIZE, 2 * SIZE, MREMAP_MAYMOVE); /* with a part that was never watched */
  ck_assert(moved != p);
  maps_file_over(q);
  ck_assert_int_eq(pipe2(pipe_to, O_CLOEXEC), 0);
  pid_t child = fork();
  if (!child) {
    close(pipe_to[1]);
    (void)!read(pipe_to[0], &byte, 1);
    _exit(0);
  }
  hk_unmap_forget(u, &a);
  hk_unmap_forget(u, &b);
  hk_unmap_close(u);
  munmap(moved, 2 * SIZE); /* these hang if not */
  munmap(q, SIZE);
  close(pipe_to[0]);
  close(pipe_to[1]);
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}
END_TEST

#if !defined(__SANITIZE_THREAD__) &&                                                                                   \
    !defined(__SANITIZE_ADDRESS__) /* whose child of a process with threads starts none */
/* A child of fork has a watch of its own, and does not end its parent's. */
START_TEST(children_have_their_own) {
  int status;
  open_watch();
  char *p = map_at(NULL, SIZE);
  hk_unmap_range r = watch(p, SIZE);
  pid_t child = fork();
  if (!child) {
    hk_unmap *parents = u;
    u = hk_unmap_open(why);
    if (!u || u == parents) _exit(1);
    hk_unmap_range mine;
    if (hk_unmap_watch(u, p, SIZE, NO_LIMIT, &mine, why) != HK_UNMAP_WATCHED) _exit(2);
    munmap(p, SIZE);
    if (!hk_unmap_known_gone(u, &mine)) _exit(3);
    hk_unmap_forget(u, &mine);
    hk_unmap_close(u);
    hk_unmap_close(parents);
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  ck_assert_int_eq(hk_unmap_look(u, &r), HK_UNMAP_SAME);
  munmap(p, SIZE);
  ck_assert(hk_unmap_known_gone(u, &r));
  hk_unmap_forget(u, &r);
  hk_unmap_close(u);
}
END_TEST

#endif

START_TEST(is_shared) {
  open_watch();
  hk_unmap *again = hk_unmap_open(why);
  ck_assert_ptr_eq(again, u);
  hk_unmap_close(again);
  hk_unmap_range r = watch(map_at(NULL, SIZE), SIZE);
  hk_unmap_forget(u, &r);
  hk_unmap_close(u);
  hk_unmap_close(NULL);
}
END_TEST

/* ---- threads ---- */

/* One thread unmaps, another one gets its address from the kernel at that moment, before the first one has returned:
 * from then on the old range is not the same. */
enum { RACES = 300 };
static _Atomic(char *) target; /* to unmap; NULL: wait */
static _Atomic(bool) over;

static void *unmap_targets(void *arg) {
  (void)arg;
  while (!atomic_load(&over)) {
    char *p = atomic_exchange(&target, NULL);
    if (p)
      munmap(p, SIZE);
    else
      sched_yield();
  }
  return NULL;
}

START_TEST(knows_of_memory_that_comes_first) {
  pthread_t thread;
  int won = 0;
  open_watch();
  ck_assert_int_eq(pthread_create(&thread, NULL, unmap_targets, NULL), 0);
  for (int i = 0; i < RACES; i++) {
    char *p = map_at(NULL, SIZE), *next = MAP_FAILED;
    hk_unmap_range r = watch(p, SIZE);
    atomic_store(&target, p);
    while (next == MAP_FAILED) /* fails as long as something is there */
      next = mmap(p, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    hk_unmap_state is = hk_unmap_look(u, &r);
    won += is == HK_UNMAP_UNKNOWN;
    ck_assert_int_ne(is, HK_UNMAP_SAME);
    while (!hk_unmap_known_gone(u, &r)) sched_yield();
    hk_unmap_forget(u, &r);
    munmap(next, SIZE);
  }
  atomic_store(&over, true);
  pthread_join(thread, NULL);
  if (!won) printf("SKIP: no memory came before the report of its unmapping, in %d trials\n", RACES);
  hk_unmap_close(u);
}
END_TEST

/* Threads that allocate, free and drop what they watch, while others do the same: nothing waits for itself. */
static void *churn(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  for (int i = 0; i < 300; i++) {
    size_t bytes = (size_t)(rand_r(&seed) % 60 + 1) * PAGE;
    hk_unmap_range r;
    char text[HK_UNMAP_WHY], *p = malloc(bytes);
    memset(p, 1, bytes);
    bool watched = hk_unmap_watch(u, p, bytes, NO_LIMIT, &r, text) == HK_UNMAP_WATCHED;
    if (watched && hk_unmap_look(u, &r) == HK_UNMAP_GONE) return "gone though it is there";
    free(p);
    if (watched) hk_unmap_forget(u, &r);
  }
  return NULL;
}

START_TEST(holds_no_one_up) {
  pthread_t threads[4];
  open_watch();
  for (uintptr_t i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
  for (int i = 0; i < 4; i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    ck_assert_msg(!wrong, "%s", (const char *)wrong);
  }
  hk_unmap_close(u);
}
END_TEST

/* ---- where it is not to be had ---- */

START_TEST(says_why_not) {
  struct sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
  ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
  ck_assert_ptr_null(hk_unmap_open(why));
  ck_assert_msg(strstr(why, "userfaultfd: Operation not permitted"), "%s", why);
  ck_assert_ptr_null(hk_unmap_open(why));
}
END_TEST

int main(void) {
  TCase *t = tcase_create("unmap");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, says_why_not);
  u = hk_unmap_open(why);
  const bool skips = !u && strstr(why, "userfaultfd");
  if (skips) printf("SKIP: the watch of memory: %s\n", why);
  hk_unmap_close(u);
  if (!skips) {
    tcase_add_loop_test(t, notices, 0, (int)(sizeof changes / sizeof *changes));
    tcase_add_test(t, notices_the_end_of_the_heap);
    tcase_add_loop_test(t, ignores, 0, (int)(sizeof others / sizeof *others));
    tcase_add_loop_test(t, refuses, 0, 9);
    tcase_add_test(t, has_limits);
    tcase_add_test(t, keeps_what_others_watch);
    tcase_add_test(t, tells_old_ranges_from_new_ones);
    tcase_add_test(t, ends_though_a_child_lives);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    tcase_add_test(t, children_have_their_own);
#endif
    tcase_add_test(t, is_shared);
    tcase_add_test(t, knows_of_memory_that_comes_first);
    tcase_add_test(t, holds_no_one_up);
  }
  return suite_run_one("unmap", t);
}
