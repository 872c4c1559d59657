/* SPDX-License-Identifier: Apache-2.0 */
/* The host's memory that ranks share: its addresses, which region an address belongs to, and what is left when it is
 * freed.
 * check: notsan noasan */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "../../src/device/host.h"
#include "../support/suite.h"

enum { HUGE = 2 << 20 };

/* Pages of addresses that the process has. */
static long pages(void) {
  long n = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  ck_assert(f && fscanf(f, "%ld", &n) == 1);
  fclose(f);
  return n;
}
static void *get(size_t bytes) {
  void *p;
  ck_assert_int_eq(hk_host_alloc(&p, bytes), HK_OK);
  return p;
}

/* A region takes the addresses of its pages, and no more; large ones begin where a huge page can. */
TEST(addresses) {
  static const struct {
    size_t bytes;
    long pages;
  } rows[] = {{0, 1}, {1, 1}, {4096, 1}, {4097, 2}, {HUGE - 1, 512}, {HUGE, 512}, {HUGE + 1, 513}, {3 * HUGE, 1536}};
  if (sysconf(_SC_PAGESIZE) != 4096) return;
  hk_host_free(get(1));
  (void)pages();
  for (size_t i = 0; i < HK_ARRAY_LENGTH(rows); i++) {
    const long before = pages();
    char *p = get(rows[i].bytes);
    ck_assert_int_eq(pages() - before, rows[i].pages);
    ck_assert_uint_eq((uintptr_t)p % (rows[i].pages >= 512 ? HUGE : 4096), 0);
    memset(p, 1, (size_t)rows[i].pages * 4096);
    ck_assert_int_eq(hk_host_free(p), HK_OK);
    ck_assert_int_eq(pages(), before);
    ck_assert_int_eq(hk_host_free(p), HK_ERR_ARGUMENT);
  }
  ck_assert_int_eq(hk_host_free(NULL), HK_OK);
}

/* Each address is in one span: a region, or what is between two; spans follow each other from 0 to the last address. */
TEST(spans) {
  enum { N = 40 };
  char *all[N];
  uint64_t ids[N], last = 0;
  for (int i = 0; i < N; i++) all[i] = get((size_t)(i % 3 + 1) * 4096);
  for (int i = 0; i < N; i += 4) ck_assert_int_eq(hk_host_free(all[i]), HK_OK);
  for (int i = 0; i < N; i++) {
    const size_t bytes = (size_t)(i % 3 + 1) * 4096;
    const hk_host_span s = hk_host_find(all[i]), end = hk_host_find(all[i] + bytes - 1);
    ck_assert(s.begin == end.begin && s.end == end.end && s.region == end.region);
    ids[i] = s.region;
    ck_assert_int_eq(s.region != 0, i % 4 != 0);
    if (i % 4 == 0) continue;
    char *base = NULL;
    size_t capacity = 0;
    ck_assert(s.begin == (uintptr_t)all[i] && s.end == s.begin + bytes && s.region > last);
    ck_assert(hk_host_locate(s.region, &base, &capacity) && base == all[i] && capacity == bytes);
    last = s.region;
  }
  ck_assert(!hk_host_locate(last + 1, &all[0], &(size_t){0}));
  int regions = 0, others = 0;
  for (uintptr_t at = 0;;) {
    const hk_host_span s = hk_host_find((const void *)at);
    ck_assert(s.begin == at && s.end > at);
    regions += s.region != 0;
    others += s.region == 0;
    if (s.end == UINTPTR_MAX) break;
    at = s.end;
  }
  ck_assert_int_eq(regions, N - N / 4);
  ck_assert_int_ge(others, 2);
  for (int i = 0; i < N; i++)
    if (ids[i]) ck_assert_int_eq(hk_host_free(all[i]), HK_OK);
}

/* What a peer has mapped of freed memory takes no pages; a child that frees it takes nothing from its parent. */
TEST(freed) {
  char *p = get(3 * 4096);
  size_t bytes = 0;
  struct stat st;
  memset(p, 7, 3 * 4096);
  int fd = hk_host_export(hk_host_find(p).region, &bytes);
  ck_assert(fd >= 0 && bytes == 3 * 4096);
  pid_t child = fork();
  if (child == 0) _exit(hk_host_free(p) == HK_OK ? 0 : 1);
  int status;
  ck_assert(waitpid(child, &status, 0) == child && status == 0);
  ck_assert_int_eq(p[4096], 7);
  ck_assert(fstat(fd, &st) == 0 && st.st_blocks == 3 * 8 && st.st_size == 3 * 4096);
  ck_assert_int_eq(hk_host_free(p), HK_OK);
  ck_assert(fstat(fd, &st) == 0 && st.st_blocks == 0 && st.st_size == 3 * 4096);
  close(fd);
}

/* Lent files: as often as asked for, or once; never after they were taken back. */
TEST(lent_files) {
  for (int once = 0; once < 2; once++) {
    uint64_t id, other;
    size_t bytes = 0;
    int fd = hk_host_memfd("a", 100), more = hk_host_memfd("b", 200);
    ck_assert_int_eq(hk_host_lend(fd, 100, once, &id), HK_OK);
    ck_assert_int_eq(hk_host_lend(more, 200, false, &other), HK_OK);
    ck_assert(id && other > id);
    int first = hk_host_export(id, &bytes);
    ck_assert(bytes == 100 && (once ? first == fd : first >= 0 && first != fd));
    close(first);
    first = hk_host_export(id, &bytes);
    ck_assert_int_eq(first >= 0, !once);
    if (first >= 0) close(first);
    hk_host_take_back(id);
    hk_host_take_back(id);
    ck_assert_int_eq(hk_host_export(id, &bytes), -1);
    ck_assert_int_eq(hk_host_export(0, &bytes), -1);
    first = hk_host_export(other, &bytes);
    ck_assert(first >= 0 && bytes == 200);
    close(first);
    hk_host_take_back(other);
    ck_assert_int_eq(fcntl(more, F_GETFD), -1);
  }
  hk_host_take_back(0);
}

static int free_descriptor(void) {
  int fd = dup(0);
  close(fd);
  return fd;
}

/* What cannot be had is an error, and leaves no descriptor and no addresses. */
TEST(too_much) {
  struct rlimit limit;
  void *p = &limit;
  (void)pages();
  const int fd = free_descriptor();
  const long before = pages();
  ck_assert_int_eq(hk_host_memfd("x", SIZE_MAX), -1); /* a file of -1 bytes */
  ck_assert_int_eq(errno, EINVAL);
  ck_assert_int_eq(hk_host_alloc(&p, SIZE_MAX / 2 + 1), HK_ERR_ARGUMENT);
  ck_assert_ptr_null(p);
  ck_assert_int_eq(hk_host_alloc(&p, (size_t)1 << 60), HK_ERR_SYSTEM); /* more than there are addresses */
  ck_assert_ptr_null(p);
  ck_assert_int_eq(free_descriptor(), fd);
  ck_assert_int_eq(pages(), before);
  ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = HUGE;
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ck_assert_int_eq(hk_host_memfd("x", HUGE + 1), -1);
  ck_assert_int_eq(errno, EFBIG);
  int file = hk_host_memfd("x", HUGE);
  ck_assert_int_eq(file, fd);
  ck_assert_int_eq(ftruncate(file, 0), -1); /* a peer cannot shorten it */
  close(file);
}

int main(void) { return suite_main("host_memory"); }
