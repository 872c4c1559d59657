/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads, and cancellation of the application's threads. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

/* Starts a thread on which no signal handler of the application runs: signals sent to the process go to the process's
 * own threads. Signals that a thread causes itself (SIGSEGV, SIGABRT, ...) are not blocked, so that crash reporters and
 * sanitizers see them; if they were blocked, the kernel would end the process without a message.
 *   stack  bytes; 0: the process's default, but at least what init uses. If the thread-local data of the process's
 *          libraries does not fit, the default is used.
 * Returns an errno: 0, or EAGAIN if the limit of threads or memory is reached. */
int hk_thread_start(pthread_t *thread, size_t stack, void *(*run)(void *arg), void *arg);

/* The calling thread, one of the library's, polls: gives it a name, of at most 15 characters, and lets its naps end on
 * time, because the kernel's default slack is 50 us. */
void hk_thread_polls(const char *name);

/* A thread of the application that is cancelled (pthread_cancel) inside the library would leave locks held and a call
 * that never ends. So cancellation waits until the call is over. Disabling it costs about a thirtieth of the smallest
 * collective, so a call that never waits for the kernel does not do it. Such calls use hk_cancel_hold() before a
 * possible cancellation point, and the end of the call releases it; all other calls begin with HK_UNCANCELLED. */
extern _Thread_local bool hk_cancel_held;
void hk_cancel_hold(void); /* does nothing if it is held already */
void hk_cancel_release(void);

static inline bool hk_cancel_begin(void) {
  bool mine = !hk_cancel_held;
  if (mine) hk_cancel_hold();
  return mine;
}
static inline void hk_cancel_end(const bool *mine) {
  if (*mine) hk_cancel_release();
}
/* Defers cancellation to the end of the block. */
#define HK_UNCANCELLED __attribute__((cleanup(hk_cancel_end), unused)) const bool hk_cancel_mine = hk_cancel_begin()
