/* SPDX-License-Identifier: Apache-2.0 */
/* Process-wide state of the bootstrap (process.h). */
#include "process.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/fork.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/silence.h"
#include "../base/tcp.h"
#include "wire.h" /* hk_random */

enum { KEEPALIVES = 3 };

static struct {
  pthread_once_t once;
  pthread_mutex_t lock; /* protects all below */
  uint64_t *fds;        /* a bit for each descriptor that forked children close */
  size_t words;
  uint64_t nonce;
  void (*in_child)(void);
} process = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(process.lock);

unsigned hk_forks;

/* The child has one thread, and finds the locks free: base/fork.h. */
static void process_after_fork_in_child(void) {
  for (size_t i = 0; i < process.words; i++) {
    for (uint64_t bits = process.fds[i]; bits; bits &= bits - 1) close((int)(i * 64) + __builtin_ctzll(bits));
    process.fds[i] = 0;
  }
  process.nonce = 0;
  hk_forks++;
  if (process.in_child) process.in_child();
}

static void process_watch_forks(void) { pthread_atfork(NULL, NULL, process_after_fork_in_child); }

void hk_on_fork(void (*in_child)(void)) {
  pthread_mutex_lock(&process.lock);
  process.in_child = in_child;
  pthread_mutex_unlock(&process.lock);
  pthread_once(&process.once, process_watch_forks);
}

/* Under the lock. */
static void process_mark(int fd) {
  size_t word = (size_t)fd / 64;
  if (word >= process.words) {
    size_t words = 2 * word + 16;
    uint64_t *grown = realloc(process.fds, words * sizeof *grown);
    if (grown) {
      for (size_t i = process.words; i < words; i++) grown[i] = 0;
      process.fds = grown;
      process.words = words;
    } /* else a forked child keeps the descriptor, with no other harm */
  }
  if (word < process.words) process.fds[word] |= (uint64_t)1 << fd % 64;
}

void hk_fork_closes(int fd) {
  pthread_mutex_lock(&process.lock);
  process_mark(fd);
  pthread_mutex_unlock(&process.lock);
}

int hk_boot_accept(int socket_fd) {
  pthread_mutex_lock(&process.lock);
  int fd = accept4(socket_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) process_mark(fd);
  pthread_mutex_unlock(&process.lock);
  return fd;
}

int hk_boot_socket(int family) {
  pthread_mutex_lock(&process.lock);
  int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) process_mark(fd);
  pthread_mutex_unlock(&process.lock);
  return fd;
}

void hk_fork_forget(int fd) {
  size_t word = (size_t)fd / 64;
  pthread_mutex_lock(&process.lock);
  if (word < process.words) process.fds[word] &= ~((uint64_t)1 << fd % 64);
  pthread_mutex_unlock(&process.lock);
}

void hk_boot_close(int fd) {
  if (fd < 0) return;
  hk_fork_forget(fd);
  hk_tcp_close(fd);
}

uint64_t hk_process_nonce(void) {
  pthread_mutex_lock(&process.lock);
  while (!process.nonce && hk_random(&process.nonce, sizeof process.nonce) == HK_OK) {}
  uint64_t nonce = process.nonce;
  pthread_mutex_unlock(&process.lock);
  return nonce;
}

/* Raises the soft limit towards `wanted`, which is above it. */
static bool process_raise_limit(struct rlimit r, rlim_t wanted) {
  rlim_t old = r.rlim_cur;
  if (old >= r.rlim_max) return false;
  r.rlim_cur = wanted < r.rlim_max ? wanted : r.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &r)) return false;
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "raised the soft limit of open files from %llu to %llu (hard limit %llu)",
          (unsigned long long)old, (unsigned long long)r.rlim_cur, (unsigned long long)r.rlim_max);
  return true;
}

void hk_want_files(unsigned wanted) {
  struct rlimit r;
  /* At least doubled, so that not every rank raises it. */
  if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < wanted)
    process_raise_limit(r, wanted > 2 * r.rlim_cur ? wanted : 2 * r.rlim_cur);
}

bool hk_more_files(void) {
  struct rlimit r;
  return !getrlimit(RLIMIT_NOFILE, &r) && process_raise_limit(r, 2 * r.rlim_cur);
}

void hk_watch_silence(const hk_settings *settings, int fd) {
  int one = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);   /* an error only makes it slower */
  hk_silence_watch(fd, (unsigned)settings->PEER_TIMEOUT, KEEPALIVES); /* a quarter of that time apart */
}

char hk_process_state(int pid) {
  char path[48], text[256];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char *end = strrchr(text, ')'); /* after the name, which may be anything */
  return end && end[1] == ' ' ? end[2] : 0;
}
