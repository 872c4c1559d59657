/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the library's own threads (thread.h). */
#include "thread.h"
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>

static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};

/* Several times the largest stack use of init and its libraries. The usual size is the user's `ulimit -s`. */
enum { LEAST_STACK = 1 << 20 };

int hk_thread_start(pthread_t *thread, size_t stack, void *(*run)(void *arg), void *arg) {
  sigset_t held, before;
  pthread_attr_t attr;
  size_t usual;
  sigfillset(&held);
  for (size_t i = 0; i < sizeof own_faults / sizeof *own_faults; i++) sigdelset(&held, own_faults[i]);
  pthread_attr_init(&attr);
  if (!stack && pthread_attr_getstacksize(&attr, &usual) == 0 && usual < LEAST_STACK) stack = LEAST_STACK;
  if (stack) pthread_attr_setstacksize(&attr, stack);
  /* A thread begins with its creator's mask. Signals are blocked here, so there is no moment in which it could take
   * one. */
  pthread_sigmask(SIG_SETMASK, &held, &before);
  int error = pthread_create(thread, &attr, run, arg);
  if (error == EINVAL && stack) error = pthread_create(thread, NULL, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
  return error;
}

void hk_thread_polls(const char *name) {
  (void)prctl(PR_SET_NAME, name);
  (void)prctl(PR_SET_TIMERSLACK, 1000UL);
}

_Thread_local bool hk_cancel_held;
static _Thread_local int cancel_before;

void hk_cancel_hold(void) {
  if (hk_cancel_held) return;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before);
  hk_cancel_held = true;
}

void hk_cancel_release(void) {
  if (!hk_cancel_held) return;
  hk_cancel_held = false;
  pthread_setcancelstate(cancel_before, NULL);
}
