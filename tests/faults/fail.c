/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library (LD_PRELOAD): from fail_memory() or fail_descriptors() to fail_nothing(), the NCCL
 * library gets no memory, or no descriptor; with HOCKET_TEST_FAIL_AT=N the N-th request alone is refused. Calls from
 * elsewhere, the C library and this test included, are served. */
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <ifaddrs.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <unistd.h>

enum { NOTHING, MEMORY, DESCRIPTORS };
static _Atomic(int) armed, hits, requests;
static int fail_at; /* 0: all are refused */
static uintptr_t begin, end;

static int find(struct dl_phdr_info *info, size_t size, void *arg) {
  (void)size, (void)arg;
  if (!strstr(info->dlpi_name, "libnccl.so")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
    begin = info->dlpi_addr + p->p_vaddr;
    end = begin + p->p_memsz;
  }
  return 1;
}

#define OPEN __attribute__((visibility("default")))
OPEN int fail_memory(void);
OPEN int fail_descriptors(void);
OPEN int fail_nothing(void);

static int arm(int what) {
  dl_iterate_phdr(find, NULL);
  const char *at = getenv("HOCKET_TEST_FAIL_AT");
  fail_at = at ? atoi(at) : 0;
  atomic_store(&hits, 0);
  atomic_store(&requests, 0);
  atomic_store(&armed, what);
  return 0;
}
int fail_memory(void) { return arm(MEMORY); }
int fail_descriptors(void) { return arm(DESCRIPTORS); }
int fail_nothing(void) {
  atomic_store(&armed, NOTHING);
  return atomic_load(&hits);
}

static int fails(int what, void *caller) {
  uintptr_t at = (uintptr_t)caller;
  if (atomic_load_explicit(&armed, memory_order_relaxed) != what || at < begin || at >= end) return 0;
  if (fail_at && atomic_fetch_add(&requests, 1) + 1 != fail_at) return 0;
  atomic_fetch_add(&hits, 1);
  if (fail_at) { /* which request it was */
    void *frames[12];
    backtrace_symbols_fd(frames, backtrace(frames, 12), STDERR_FILENO);
  }
  errno = what == MEMORY ? ENOMEM : EMFILE;
  return 1;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

#define FAILS fails(MEMORY, __builtin_return_address(0))
OPEN void *malloc(size_t n);
OPEN void *calloc(size_t n, size_t size);
OPEN void *realloc(void *p, size_t n);
OPEN void *aligned_alloc(size_t alignment, size_t n);
OPEN int posix_memalign(void **p, size_t alignment, size_t n);
void *malloc(size_t n) { return FAILS ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return FAILS ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return FAILS ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t alignment, size_t n) { return FAILS ? NULL : __libc_memalign(alignment, n); }
int posix_memalign(void **p, size_t alignment, size_t n) {
  if (FAILS) return ENOMEM;
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : ENOMEM;
}

typedef void *map_fn(void *, size_t, int, int, int, off_t);
OPEN void *mmap(void *at, size_t n, int rights, int flags, int fd, off_t offset) {
  static map_fn *next;
  if (FAILS) return MAP_FAILED;
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "mmap");
  return next(at, n, rights, flags, fd, offset);
}
OPEN void *mmap64(void *at, size_t n, int rights, int flags, int fd, off_t offset) {
  if (FAILS) return MAP_FAILED;
  return mmap(at, n, rights, flags, fd, offset);
}

/* What makes descriptors.  `arguments` are passed on. */
#define DESCRIPTOR(type, failure, name, parameters, arguments)                                                         \
  OPEN type name parameters;                                                                                           \
  type name parameters {                                                                                               \
    static type(*next) parameters;                                                                                     \
    if (fails(DESCRIPTORS, __builtin_return_address(0))) return failure;                                               \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);                                                              \
    return next arguments;                                                                                             \
  }
DESCRIPTOR(int, -1, socket, (int family, int type, int protocol), (family, type, protocol))
DESCRIPTOR(int, -1, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
DESCRIPTOR(int, -1, epoll_create1, (int flags), (flags))
DESCRIPTOR(int, -1, eventfd, (unsigned count, int flags), (count, flags))
DESCRIPTOR(int, -1, memfd_create, (const char *what, unsigned flags), (what, flags))
DESCRIPTOR(int, -1, timerfd_create, (int clock, int flags), (clock, flags))
DESCRIPTOR(int, -1, shm_open, (const char *path, int flags, mode_t mode), (path, flags, mode))
DESCRIPTOR(int, -1, open, (const char *path, int flags, mode_t mode), (path, flags, mode))
DESCRIPTOR(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
DESCRIPTOR(DIR *, NULL, opendir, (const char *path), (path))
DESCRIPTOR(int, -1, getifaddrs, (struct ifaddrs * *list), (list))

/* Without room the kernel drops descriptors that come in a message, and nothing else of it: they are its last control
 * message. */
OPEN ssize_t recvmsg(int fd, struct msghdr *m, int flags);
ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
  static ssize_t (*next)(int, struct msghdr *, int);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "recvmsg");
  ssize_t n = next(fd, m, flags);
  struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(m);
  while (c && (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)) c = CMSG_NXTHDR(m, c);
  if (!c || !fails(DESCRIPTORS, __builtin_return_address(0))) return n;
  for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
    int got;
    memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
    close(got);
  }
  m->msg_controllen = (size_t)((char *)c - (char *)m->msg_control);
  m->msg_flags |= MSG_CTRUNC;
  return n;
}
