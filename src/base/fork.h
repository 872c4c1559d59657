/* SPDX-License-Identifier: Apache-2.0 */
/* Global locks and fork: a child has one thread, and a lock that another thread of the parent held would stay locked in
 * it for ever. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

typedef struct hk_fork_lock {
  pthread_mutex_t *lock;
  bool *held; /* &hk_fork_held: so the linker takes fork.o from an archive with any file that has a guard */
} hk_fork_lock;
extern bool hk_fork_held;

/* Each global lock needs this line in its file. The lock is then held across fork, so that in the child it is free and
 * its data is consistent. */
#define HK_FORK_GUARD(mutex) HK_FORK_GUARD_AT(mutex, __LINE__)
#define HK_FORK_GUARD_AT(mutex, line) HK_FORK_GUARD_NAMED(mutex, line)
#define HK_FORK_GUARD_NAMED(mutex, line)                                                                               \
  static const hk_fork_lock hk_fork_guard_##line                                                                       \
      __attribute__((section("hk_fork_locks"), used)) = {&(mutex), &hk_fork_held}
