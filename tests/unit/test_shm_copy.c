/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to the memory of another process, which the kernel may do in pieces; here it does a few bytes at a
 * time.
 * check: notsan */
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../src/transport/peer.h"
#include "../../src/transport/shm/shm_state.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { PIECE = 1000, MOST = 4000 };
static int calls, nothing_after; /* nothing_after: calls that move something; 0: all */

/* In place of libc's. */
static ssize_t in_pieces(long number, pid_t pid, const struct iovec *here, const struct iovec *there) {
  struct iovec local = *here, remote = *there;
  ck_assert_uint_eq(local.iov_len, remote.iov_len); /* else more than was asked for may be copied */
  if (++calls > nothing_after && nothing_after) return 0;
  if (local.iov_len > PIECE) local.iov_len = remote.iov_len = PIECE;
  return syscall(number, pid, &local, 1L, &remote, 1L, 0L);
}
ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long n, const struct iovec *remote,
                         unsigned long m, unsigned long flags) {
  ck_assert(n == 1 && m == 1 && !flags);
  return in_pieces(SYS_process_vm_readv, pid, local, remote);
}
ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long n, const struct iovec *remote,
                          unsigned long m, unsigned long flags) {
  ck_assert(n == 1 && m == 1 && !flags);
  return in_pieces(SYS_process_vm_writev, pid, local, remote);
}

static int permissions;
int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long who = va_arg(list, unsigned long);
  va_end(list);
  permissions += option == PR_SET_PTRACER && who == PR_SET_PTRACER_ANY;
  return 0;
}

static unsigned char from[MOST], to[MOST + 16];
static hk_peer peers[2]; /* of two processes that are one */
static hk_transport_env env;
static hk_shm_state state;

static void setup(void) {
  for (int i = 0; i < MOST; i++) from[i] = (unsigned char)(i * 7 + i / 256);
  memset(to, 'x', sizeof to);
  for (int i = 0; i < 2; i++) peers[i] = (hk_peer){.process = (uint64_t)i, .pid = getpid()};
  env = (hk_transport_env){.settings = hk_settings_now(), .rank = 0, .nranks = 2, .peers = peers};
  state = (hk_shm_state){.base = {.env = &env}};
}
static void check_copy(size_t bytes) {
  ck_assert_mem_eq(to, from, bytes);
  for (size_t i = bytes; i < sizeof to; i++) ck_assert_int_eq(to[i], 'x');
  ck_assert_int_eq(calls, (int)((bytes + PIECE - 1) / PIECE));
}

static const size_t sizes[] = {0, 1, PIECE, PIECE + 1, 2 * PIECE + 500, MOST};

TEST(copies_in_pieces) {
  const hk_ref ref = {.offset = (uint64_t)(uintptr_t)from};
  hk_link link = {.peer = 1};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(sizes); i++)
    for (int how = 0; how < 3; how++) {
      setup();
      calls = 0;
      if (how == 0) ck_assert_int_eq(hk_shm_cma_read(getpid(), ref.offset, to, sizes[i]), 0);
      if (how == 1) ck_assert_int_eq(hk_shm_write(&state.base, 1, (uint64_t)(uintptr_t)to, from, sizes[i]), HK_OK);
      if (how == 2) ck_assert_int_eq(hk_shm_fetch(&state.base, &link, &ref, to, sizes[i]), HK_OK);
      check_copy(sizes[i]);
    }
  link.peer = 0; /* of this process: without the kernel */
  setup();
  calls = 0;
  ck_assert_int_eq(hk_shm_fetch(&state.base, &link, &ref, to, 100), HK_OK);
  ck_assert_mem_eq(to, from, 100);
  ck_assert_int_eq(calls, 0);
}

/* Memory that ends, a process that has ended, a kernel that moves nothing. */
TEST(reports_what_fails) {
  const hk_ref ref = {.offset = (uint64_t)(uintptr_t)from};
  hk_link link = {.peer = 1};
  setup();
  nothing_after = 2;
  errno = 0;
  ck_assert_int_eq(hk_shm_cma_read(getpid(), ref.offset, to, MOST), -1);
  ck_assert_int_eq(errno, EFAULT);
  calls = 0;
  ck_assert_int_eq(hk_shm_write(&state.base, 1, (uint64_t)(uintptr_t)to, from, MOST), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "nothing was written"), "%s", hk_last_error());
  nothing_after = 0;
  ck_assert_int_eq(hk_shm_write(&state.base, 1, 4096, from, 10), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "Bad address"), "%s", hk_last_error());
  const hk_ref bad = {.offset = 4096};
  ck_assert_int_eq(hk_shm_fetch(&state.base, &link, &bad, to, 10), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "rank 1 gave a bad buffer: 10 bytes at 0x1000"), "%s", hk_last_error());
  peers[1].pid = 1; /* of root */
  pid_t child = fork();
  if (child == 0) { /* with fewer rights than in the init */
    bool named = (getuid() != 0 || setuid(65534) == 0) && hk_shm_fetch(&state.base, &link, &ref, to, 10) != HK_OK &&
                 strstr(hk_last_error(), "HOCKET_CMA=0");
    _exit(named ? 0 : 1);
  }
  int code;
  ck_assert(waitpid(child, &code, 0) == child && code == 0);
  peers[1].pid = 0x3fffffff;
  ck_assert_int_eq(hk_shm_fetch(&state.base, &link, &ref, to, 10), HK_ERR_REMOTE);
  ck_assert_msg(strstr(hk_last_error(), "process ended"), "%s", hk_last_error());
}

/* Whose buffer is no memory, if both are memory at their beginning. */
TEST(blames_the_rank_with_the_bad_buffer) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *gap = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), want[64];
  ck_assert_ptr_ne(gap, MAP_FAILED);
  ck_assert_int_eq(munmap(gap + page, page), 0);
  char *end = gap + page - 10;
  const hk_ref good = {.offset = (uint64_t)(uintptr_t)from}, bad = {.offset = (uint64_t)(uintptr_t)end};
  hk_link link = {.peer = 1};
  setup();
  ck_assert_int_eq(hk_shm_fetch(&state.base, &link, &bad, to, 20), HK_ERR_REMOTE);
  snprintf(want, sizeof want, "rank 1 gave a bad buffer: 20 bytes at %p", (void *)end);
  ck_assert_msg(strstr(hk_last_error(), want) == hk_last_error(), "%s", hk_last_error());
  ck_assert_int_eq(hk_shm_fetch(&state.base, &link, &good, end, 20), HK_ERR_ARGUMENT);
  snprintf(want, sizeof want, "rank 0 gave a bad buffer: 20 bytes at %p", (void *)end);
  ck_assert_msg(strstr(hk_last_error(), want) == hk_last_error(), "%s", hk_last_error());
  ck_assert_int_eq(munmap(gap, page), 0);
}

TEST(knows_what_it_may_write) {
  const uint64_t at = (uint64_t)(uintptr_t)from;
  hk_transport_state *s = &state.base;
  setup();
  ck_assert(hk_shm_writable(s, 1, at, from, 64) && hk_shm_writable(s, 1, at, from, 1));
  ck_assert(!hk_shm_writable(s, 1, at, from, 65));
  ck_assert(!hk_shm_writable(s, 1, at, from + 1, 64)); /* something else is there */
  ck_assert(!hk_shm_writable(s, 1, 4096, from, 8));
  state.fact.flags = HK_SHM_FACT_P2P_OFF;
  ck_assert(!hk_shm_writable(s, 1, at, from, 8));
  state.fact.flags = 0;
  set_param("HOCKET_CMA", "0");
  env.settings = hk_settings_now();
  ck_assert(!hk_shm_writable(s, 1, at, from, 8));
  set_param("HOCKET_CMA", "1");
  env.settings = hk_settings_now();
  ck_assert(hk_shm_writable(s, 1, at, from, 8));
}

/* The process may be traced only if its user says so. */
TEST(asks_for_tracers) {
  setup();
  hk_shm_cma_prepare(&state);
  ck_assert_int_eq(permissions, 0);
  set_param("HOCKET_PTRACER", "1");
  env.settings = hk_settings_now();
  hk_shm_cma_prepare(&state);
  ck_assert_int_eq(permissions, 1);
}

int main(void) { return suite_main("shm_copy"); }
