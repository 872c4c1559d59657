/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting. Everything that waits (for a slot, a credit, a socket, a thread) does so through these calls, so that
 * aborts, the death of peers, the watchdog and deadlines are noticed everywhere.
 *
 *   hk_waiter w;
 *   hk_wait_begin(&w, env);
 *   while (!condition()) HK_TRY(hk_wait_pause(&w), out);
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "status.h"

typedef struct hk_wait_env {
  /* Non-zero if waiting must end; the value is an hk_status (the failure's code). May be NULL. */
  _Atomic(int) *failure;
  /* A second word with the same meaning, in memory shared with other processes. May be NULL. */
  _Atomic(int) *shared_failure;
  /* Called about every 100 ms of waiting with the time waited: reports what the wait is for (the watchdog), and may
   * return an error to end the wait. May be NULL. */
  hk_status (*check)(void *arg, uint64_t waited_ns);
  void *arg;
  /* Polls before the first yield; 0 if there are more ranks than cores. Then more polls, until a wait has lasted for
   * patience_ns. */
  uint32_t spins, patience_ns;
  /* Other threads want the core until this time; a yield that takes long sets it. A yield then costs a time slice,
   * thousands of times a usual wait, but a thread that wakes up runs before busy ones: so pauses sleep for a moment
   * instead. NULL: pauses only yield. */
  _Atomic(uint64_t) *crowded_until_ns;
  /* A pause never sleeps: the caller decides when to (hk_wait_nap). */
  bool awake;
  /* Absolute hk_now_ns() after which a wait fails with HK_ERR_REMOTE; 0: none. */
  uint64_t deadline_ns;
} hk_wait_env;

typedef struct hk_waiter {
  const hk_wait_env *env;
  uint64_t begin_ns, next_check_ns; /* 0 until the first yield: the fast path reads no clock */
  uint64_t waited_ns;               /* when the clock was last read */
  uint32_t polls;
} hk_waiter;

static inline void hk_wait_begin(hk_waiter *w, const hk_wait_env *env) {
  w->env = env;
  w->begin_ns = w->next_check_ns = w->waited_ns = 0;
  w->polls = 0;
}

/* Call it after progress: spins again before the next yield, and counts the time waited from here. */
static inline void hk_wait_progress(hk_waiter *w) {
  w->polls = 0;
  w->begin_ns = w->waited_ns = 0;
}

/* Yields, and checks the failure words, the clock and `check`. After 20 ms without progress it sleeps instead, for less
 * than a hundredth of the time waited: a long wait leaves its core to other threads, and ends late by at most that
 * part. */
hk_status hk_wait_slow(hk_waiter *w);

static inline void hk_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* One pause between two checks of the condition. */
static inline hk_status hk_wait_pause(hk_waiter *w) {
  if (w->polls < w->env->spins) {
    w->polls++;
    hk_cpu_relax();
    return HK_OK;
  }
  return hk_wait_slow(w);
}

/* Waits until `fd` is ready for `events` (poll(2)). HK_ERR_REMOTE at the deadline, the failure's code on a failure.
 * `what` names what the wait is for, in the error's text. */
hk_status hk_wait_fd(const hk_wait_env *env, int fd, short events, const char *what);
struct iovec;
/* Receives all of `bytes`, or sends all pieces, over a TCP connection (tcp.h), and waits as hk_wait_fd does.
 * HK_IN_PROGRESS: the connection has ended; errno is 0 if the peer closed it. */
hk_status hk_wait_recv(const hk_wait_env *env, int fd, void *to, size_t bytes, const char *what);
hk_status hk_wait_send(const hk_wait_env *env, int fd, struct iovec *piece, int pieces, const char *what);

/* Sleeps until `fd` can be read (-1: none), or for `ns`. For a wait that is already long and may end a little late. */
hk_status hk_wait_nap(hk_waiter *w, int fd, uint64_t ns);

/* How a thread that polls rests: its pauses only yield at first, then it naps, and later it naps longer. */
typedef struct hk_backoff {
  uint64_t yield_ns, nap_ns;           /* yields for this long; then each nap */
  uint64_t long_after_ns, long_nap_ns; /* each nap from then on; long_after_ns 0: naps do not become longer */
} hk_backoff;
/* The nap after that time without progress; 0: hk_wait_pause. */
static inline uint64_t hk_backoff_nap(const hk_backoff *b, uint64_t waited_ns) {
  if (waited_ns < b->yield_ns) return 0;
  return b->long_after_ns && waited_ns >= b->long_after_ns ? b->long_nap_ns : b->nap_ns;
}

/* One poll(2) of several descriptors, for 50 ms at most; the caller checks `revents` and calls again. */
struct pollfd;
hk_status hk_wait_poll(hk_waiter *w, struct pollfd *fds, unsigned n);

/* Waits for `cond`, whose `lock` is held: until it is signalled, 50 ms at most, and checks everything that `w`
 * watches. The caller tests its condition in a loop around it. */
hk_status hk_wait_cond(hk_waiter *w, pthread_cond_t *cond, pthread_mutex_t *lock);
void hk_cond_init(pthread_cond_t *cond); /* with the clock that hk_wait_cond uses */

uint64_t hk_now_ns(void); /* CLOCK_MONOTONIC */
/* The time since `since`; 0 if another thread took `since` after `now` was read. */
static inline uint64_t hk_ago_ns(uint64_t now, uint64_t since) { return now > since ? now - since : 0; }
/* How long this wait is, if it is long; 0: it is short. Only a long one reads the clock, or one among more ranks than
 * cores, where a yield may take a time slice. */
enum { HK_WAIT_LONG_NS = 50 * 1000 };
static inline uint64_t hk_wait_long_ns(const hk_waiter *w) {
  if (!w->begin_ns || (w->env->spins && w->waited_ns < HK_WAIT_LONG_NS)) return 0;
  return hk_ago_ns(hk_now_ns(), w->begin_ns);
}
/* The time since the first yield after progress; 0 before that. */
static inline uint64_t hk_wait_idle_ns(const hk_waiter *w) { return w->begin_ns ? hk_now_ns() - w->begin_ns : 0; }
