/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads. */
#ifndef HK_BASE_THREAD_H
#define HK_BASE_THREAD_H
#include <pthread.h>

/* Starts a thread on which no signal handler of the application runs: signals sent to the process go to the process's
 * own threads. Signals that a thread causes itself (SIGSEGV, SIGABRT, ...) are not blocked, so that crash reporters and
 * sanitizers see them; if they were blocked, the kernel would end the process without a message.
 *   stack  bytes; 0: the process's default, but at least what init uses. If the thread-local data of the process's
 *          libraries does not fit, the default is used.
 * Returns an errno: 0, or EAGAIN if the limit of threads or memory is reached. */
int hk_thread_start(pthread_t *thread, size_t stack, void *(*run)(void *arg), void *arg);
#endif
