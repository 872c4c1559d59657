/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads. */
#ifndef HK_BASE_THREAD_H
#define HK_BASE_THREAD_H
#include <pthread.h>

/* Starts a thread on which no handler of the application runs: signals sent to the process go to its own threads.  What a thread
 * does to itself (SIGSEGV, SIGABRT, ...) is not held back, so that crash reporters and sanitizers see it; with those blocked the
 * kernel would end the process without a word.
 *   stack  bytes; 0: the process's default, and no less than what init takes.  Where the thread-local data of the process's
 *          libraries does not fit into it the default is taken.
 * Gives an errno: 0, or EAGAIN where the limit of threads or memory is reached. */
int hk_thread_start(pthread_t *thread, size_t stack, void *(*run)(void *arg), void *arg);
#endif
