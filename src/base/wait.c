/* SPDX-License-Identifier: Apache-2.0 */
/* The slow side of waiting: yields, failure words, the clock, the watchdog's callback, deadlines. */
#include "wait.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <time.h>
#include "tcp.h"
#include "thread.h"

enum {
  /* a yield costs about ten clock readings if no other thread is ready, and far more if one is */
  YIELDS_PER_CLOCK = 4,
  CHECK_NS = 100 * 1000 * 1000, /* between calls of `check` */
  COND_SLICE_NS = 50 * 1000 * 1000,
  LONG_WAIT_NS = 20 * 1000 * 1000, /* after this a pause sleeps */
  /* a nap is at most 1/NAP_PART of the time waited, so a wait ends late by at most that part */
  NAP_PART = 128,
  LONGEST_NAP_NS = 1000 * 1000,
  CROWDED_NS = 100 * 1000,            /* after a yield that took so long, other threads want the core */
  CROWDED_FOR_NS = 100 * 1000 * 1000, /* then a yield tries again, which may cost a time slice */
  /* A sleep among other threads. The kernel adds some 50 us, unless the thread has another timer slack. */
  MOMENT_NS = 1000,
  SLICE_MS = 50 /* the longest sleep in poll(2) between two checks of the failure words */
};

uint64_t hk_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static hk_status wait_failure_of(const hk_wait_env *env) {
  /* acquire: the thread that set the word wrote the error's text and state before; we must see them */
  int code = env->failure ? atomic_load_explicit(env->failure, memory_order_acquire) : 0;
  if (!code && env->shared_failure) code = atomic_load_explicit(env->shared_failure, memory_order_acquire);
  return (hk_status)code;
}

/* The checks that need the clock: `check` about every 100 ms, and the deadline. */
static hk_status wait_look_at_clock(hk_waiter *w, const char *what) {
  const hk_wait_env *env = w->env;
  uint64_t now = hk_now_ns();
  if (!w->begin_ns) {
    w->begin_ns = now;
    w->next_check_ns = now + CHECK_NS;
  }
  w->waited_ns = hk_ago_ns(now, w->begin_ns);
  if (now >= w->next_check_ns) {
    w->next_check_ns = now + CHECK_NS;
    if (env->check) {
      HK_UNCANCELLED;
      hk_status rc = env->check(env->arg, now - w->begin_ns);
      if (rc != HK_OK) return rc;
    }
  }
  if (env->deadline_ns && now >= env->deadline_ns)
    return HK_FAIL(HK_ERR_REMOTE, "gave up after %.1f s of waiting for %s: no answer before the deadline",
                   (double)(now - w->begin_ns) * 1e-9, what);
  return HK_OK;
}

static void wait_sleep(uint64_t ns) {
  HK_UNCANCELLED;
  const struct timespec t = {.tv_nsec = (long)ns};
  (void)nanosleep(&t, NULL); /* a signal ends it early, which does no harm */
}

static void wait_doze(const hk_waiter *w) {
  const uint64_t ns = w->waited_ns / NAP_PART;
  wait_sleep(ns < LONGEST_NAP_NS ? ns : LONGEST_NAP_NS);
}

/* Gives the core away until the other threads have run, or for a moment if they are many. */
static void wait_give_way(const hk_waiter *w) {
  _Atomic(uint64_t) *until = w->env->crowded_until_ns;
  if (!until) {
    sched_yield();
    return;
  }
  const uint64_t before = hk_now_ns();
  /* relaxed here and below: a hint that orders nothing */
  if (before < atomic_load_explicit(until, memory_order_relaxed)) {
    wait_sleep(MOMENT_NS);
    return;
  }
  sched_yield();
  const uint64_t now = hk_now_ns();
  if (now - before >= CROWDED_NS) atomic_store_explicit(until, now + CROWDED_FOR_NS, memory_order_relaxed);
}

hk_status hk_wait_slow(hk_waiter *w) {
  hk_status rc = wait_failure_of(w->env);
  if (__builtin_expect(rc != HK_OK, 0)) return rc;
  /* The counter continues from `spins`; when it wraps we spin once more, which does no harm. */
  if ((w->polls++ - w->env->spins) % YIELDS_PER_CLOCK == 0) {
    rc = wait_look_at_clock(w, "a peer");
    if (rc != HK_OK) return rc;
  }
  if (w->waited_ns < w->env->patience_ns)
    hk_cpu_relax();
  else if (w->waited_ns < LONG_WAIT_NS || w->env->awake)
    wait_give_way(w);
  else
    wait_doze(w);
  return HK_OK;
}

/* How long poll(2) may sleep: one slice, or less if the deadline is nearer. */
static int wait_slice_ms(const hk_wait_env *env) {
  if (!env->deadline_ns) return SLICE_MS;
  uint64_t now = hk_now_ns();
  if (now >= env->deadline_ns) return 0;
  uint64_t ms = (env->deadline_ns - now) / 1000000u + 1;
  return ms < SLICE_MS ? (int)ms : SLICE_MS;
}

hk_status hk_wait_nap(hk_waiter *w, int fd, uint64_t ns) {
  HK_UNCANCELLED;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  hk_status rc = wait_failure_of(w->env);
  if (rc != HK_OK) return rc;
  if (ppoll(&p, 1, &t, NULL) < 0 && errno != EINTR) return HK_FAIL_ERRNO("poll failed in a nap");
  return wait_look_at_clock(w, "a peer");
}

hk_status hk_wait_fd(const hk_wait_env *env, int fd, short events, const char *what) {
  HK_UNCANCELLED;
  hk_waiter w;
  hk_wait_begin(&w, env);
  for (;;) {
    hk_status rc = wait_failure_of(env);
    if (rc != HK_OK) return rc;
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, wait_slice_ms(env));
    if (n < 0 && errno != EINTR) return HK_FAIL_ERRNO("poll failed while waiting for %s", what);
    if (n > 0 && p.revents & POLLNVAL)
      return HK_FAIL(HK_ERR_INTERNAL, "waiting for %s on file descriptor %d, which is not open", what, fd);
    if (n > 0) return HK_OK; /* after an error or hangup, too: the caller's next read or write finds out which */
    rc = wait_look_at_clock(&w, what);
    if (rc != HK_OK) return rc;
  }
}

hk_status hk_wait_recv(const hk_wait_env *env, int fd, void *to, size_t bytes, const char *what) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t n = hk_tcp_recv(fd, (char *)to + got, bytes - got);
    if (n > 0) {
      got += (size_t)n;
    } else if (n < 0 && errno == EAGAIN) {
      HK_OR_RETURN(hk_wait_fd(env, fd, POLLIN, what));
    } else if (n == 0 || errno != EINTR) {
      if (n == 0) errno = 0;
      return HK_IN_PROGRESS;
    }
  }
  return HK_OK;
}

hk_status hk_wait_send(const hk_wait_env *env, int fd, struct iovec *piece, int pieces, const char *what) {
  while (pieces) {
    ssize_t n = hk_tcp_sendv(fd, piece, pieces);
    if (n < 0) {
      if (errno == EAGAIN)
        HK_OR_RETURN(hk_wait_fd(env, fd, POLLOUT, what));
      else if (errno != EINTR)
        return HK_IN_PROGRESS;
      continue;
    }
    for (; pieces && (size_t)n >= piece->iov_len; piece++, pieces--) n -= (ssize_t)piece->iov_len;
    if (!pieces) break;
    piece->iov_base = (char *)piece->iov_base + n;
    piece->iov_len -= (size_t)n;
  }
  return HK_OK;
}

hk_status hk_wait_poll(hk_waiter *w, struct pollfd *fds, unsigned n) {
  hk_status rc = wait_failure_of(w->env);
  if (rc != HK_OK) return rc;
  int ready = poll(fds, n, wait_slice_ms(w->env));
  if (ready < 0 && errno != EINTR) return HK_FAIL_ERRNO("poll failed for %u descriptors", n);
  for (unsigned i = 0; ready <= 0 && i < n; i++) fds[i].revents = 0;
  return wait_look_at_clock(w, "a peer");
}

void hk_cond_init(pthread_cond_t *cond) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attr);
  pthread_condattr_destroy(&attr);
}

hk_status hk_wait_cond(hk_waiter *w, pthread_cond_t *cond, pthread_mutex_t *lock) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_nsec += COND_SLICE_NS;
  if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
  if (pthread_cond_timedwait(cond, lock, &t) == 0) return HK_OK; /* something happened: check the condition first */
  /* The watchdog's callback takes locks of its own. */
  pthread_mutex_unlock(lock);
  w->polls = w->env->spins; /* so that hk_wait_slow reads the clock each time, not every few calls */
  hk_status rc = hk_wait_slow(w);
  pthread_mutex_lock(lock);
  return rc;
}
