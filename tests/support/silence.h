/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets to which nothing comes any more, as when the cable is out: a packet filter drops all. */
#ifndef HK_TESTS_SILENCE_H
#define HK_TESTS_SILENCE_H
#include <linux/filter.h>
#include <sys/socket.h>
#include "suite.h"

static inline int silence_try(int fd, bool silent) {
  struct sock_filter nothing = {.code = BPF_RET | BPF_K, .k = 0};
  struct sock_fprog program = {.len = 1, .filter = &nothing};
  return setsockopt(fd, SOL_SOCKET, silent ? SO_ATTACH_FILTER : SO_DETACH_FILTER, &program, sizeof program);
}
static inline void silence(int fd, bool silent) { ck_assert_int_eq(silence_try(fd, silent), 0); }

/* Some machines let only root do it: then the case says so and is over. */
static inline bool silence_is_allowed(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool allowed = silence_try(fd, true) == 0;
  if (!allowed) printf("SKIP: silent hosts: this user may not attach a packet filter (%s)\n", strerror(errno));
  close(fd);
  return allowed;
}
#endif
