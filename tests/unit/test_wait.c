/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting: it ends on failure words, deadlines and the watchdog's word, and goes on otherwise. */
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include "../../src/base/thread.h"
#include "../../src/base/wait.h"
#include "../support/suite.h"

/* In libc's place. With busy_us other threads want the core. */
static atomic_int yields;
static unsigned busy_us;
int sched_yield(void) {
  atomic_fetch_add(&yields, 1);
  if (busy_us) usleep(busy_us);
  return (int)syscall(SYS_sched_yield);
}

static void quiet(void) { setenv("NCCL_DEBUG", "NONE", 1); }

static hk_status wait_until(const hk_wait_env *env, atomic_int *flag) {
  hk_waiter w;
  hk_wait_begin(&w, env);
  while (!atomic_load_explicit(flag, memory_order_acquire)) { /* acquire: as a link's receiver would */
    hk_status rc = hk_wait_pause(&w);
    if (rc != HK_OK) return rc;
  }
  return HK_OK;
}

typedef struct late_store {
  atomic_int *word;
  int value;
  unsigned after_us;
} late_store;
static void *store_late(void *arg) {
  late_store *s = arg;
  usleep(s->after_us);
  atomic_store(s->word, s->value);
  return NULL;
}

/* Waits for `flag` while another thread sets `word`; gives the wait's result. */
static hk_status wait_while(const hk_wait_env *env, atomic_int *flag, atomic_int *word, int value) {
  late_store s = {word, value, 20000};
  pthread_t thread;
  pthread_create(&thread, NULL, store_late, &s);
  hk_status rc = wait_until(env, flag);
  pthread_join(thread, NULL);
  return rc;
}

TEST(ends_with_the_condition) {
  for (uint32_t spins = 0; spins <= 1000; spins += 1000) {
    atomic_int flag = 0;
    hk_wait_env env = {.spins = spins};
    ck_assert_int_eq(wait_while(&env, &flag, &flag, 1), HK_OK);
  }
}

/* A patient wait keeps its core until the time is over, and again after progress. */
TEST(patience) {
  const hk_wait_env env = {.spins = 5, .patience_ns = 1000 * 1000, .awake = true}; /* a long wait yields, too */
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (int round = 0; round < 2; round++) {
    const uint64_t begin = hk_now_ns();
    for (atomic_store(&yields, 0); !atomic_load(&yields);) ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
    ck_assert_uint_ge(hk_now_ns() - begin, env.patience_ns);
    hk_wait_progress(&w);
  }
}

/* After a yield that took long the pauses of all waits sleep, and yield again after a while. */
TEST(crowded) {
  _Atomic(uint64_t) until = 0;
  const hk_wait_env env = {.crowded_until_ns = &until};
  hk_waiter w, other;
  hk_wait_begin(&w, &env);
  hk_wait_begin(&other, &env);
  atomic_store(&yields, 0);
  busy_us = 1000;
  const uint64_t begin = hk_now_ns();
  while (!atomic_load(&yields)) ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  ck_assert_uint_gt(until, begin + busy_us * 1000);
  busy_us = 0;
  for (int i = 0; i < 10; i++) ck_assert(hk_wait_pause(&w) == HK_OK && hk_wait_pause(&other) == HK_OK);
  ck_assert(hk_now_ns() >= until || atomic_load(&yields) == 1);
  const int so_far = atomic_load(&yields);
  until = 0;
  hk_wait_begin(&other, &env); /* a wait that has lasted long sleeps, too */
  ck_assert_int_eq(hk_wait_pause(&other), HK_OK);
  ck_assert_int_eq(atomic_load(&yields), so_far + 1);
}

TEST(fast_path_reads_no_clock) {
  hk_wait_env env = {.spins = 100};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  for (int i = 0; i < 100; i++) ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  ck_assert_uint_eq(w.begin_ns, 0);
  ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  ck_assert_uint_ne(w.begin_ns, 0);
  hk_wait_progress(&w);
  ck_assert_uint_eq(w.polls, 0);
}

TEST(ends_with_a_failure) {
  atomic_int never = 0, failure = 0, shared = 0;
  hk_wait_env env = {.failure = &failure, .shared_failure = &shared, .spins = 10};
  ck_assert_int_eq(wait_while(&env, &never, &shared, HK_ERR_REMOTE), HK_ERR_REMOTE);
  atomic_store(&shared, 0);
  ck_assert_int_eq(wait_while(&env, &never, &failure, HK_ERR_USAGE), HK_ERR_USAGE);
  /* Where both are set, the process's own word counts. */
  atomic_store(&shared, HK_ERR_REMOTE);
  ck_assert_int_eq(wait_until(&env, &never), HK_ERR_USAGE);
}

TEST(ends_at_the_deadline) {
  atomic_int never = 0;
  uint64_t begin = hk_now_ns();
  hk_wait_env env = {.deadline_ns = begin + 50 * 1000 * 1000};
  ck_assert_int_eq(wait_until(&env, &never), HK_ERR_REMOTE);
  ck_assert_uint_ge(hk_now_ns() - begin, 50 * 1000 * 1000);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "deadline"));
}

typedef struct calls {
  int n;
  uint64_t last_ns;
} calls;
static hk_status count_checks(void *arg, uint64_t waited_ns) {
  calls *c = arg;
  if (waited_ns <= c->last_ns) return HK_ERR_INTERNAL;
  c->last_ns = waited_ns;
  return ++c->n == 3 ? HK_ERR_USAGE : HK_OK;
}

TEST(check_is_called_and_may_end_it) {
  atomic_int never = 0;
  calls c = {0};
  hk_wait_env env = {.check = count_checks, .arg = &c, .spins = 10};
  ck_assert_int_eq(wait_until(&env, &never), HK_ERR_USAGE);
  ck_assert_int_eq(c.n, 3);
  ck_assert_uint_ge(c.last_ns, 300u * 1000 * 1000);
  /* The same for a file descriptor. */
  int fds[2];
  ck_assert_int_eq(pipe(fds), 0);
  c = (calls){0};
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_ERR_USAGE);
  close(fds[0]);
  close(fds[1]);
}

static void *write_late(void *arg) {
  usleep(20000);
  ck_assert_int_eq(write(*(int *)arg, "x", 1), 1);
  return NULL;
}

TEST(fd_becomes_ready) {
  int fds[2];
  ck_assert_int_eq(pipe(fds), 0);
  hk_wait_env env = {0};
  ck_assert_int_eq(hk_wait_fd(&env, fds[1], POLLOUT, "room"), HK_OK);
  pthread_t thread;
  pthread_create(&thread, NULL, write_late, &fds[1]);
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_OK);
  pthread_join(thread, NULL);
  /* A hangup counts as ready: the read that follows tells. */
  char byte;
  ck_assert_int_eq(read(fds[0], &byte, 1), 1);
  close(fds[1]);
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_OK);
  close(fds[0]);
}

TEST(fd_ends_at_deadline_and_failure) {
  int fds[2];
  ck_assert_int_eq(pipe(fds), 0);
  uint64_t begin = hk_now_ns();
  hk_wait_env env = {.deadline_ns = begin + 30 * 1000 * 1000};
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "rank 5's hello"), HK_ERR_REMOTE);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "rank 5's hello"));
  ck_assert_uint_lt(hk_now_ns() - begin, 2000u * 1000 * 1000);

  atomic_int failure = 0;
  env = (hk_wait_env){.failure = &failure};
  late_store s = {&failure, HK_ERR_REMOTE, 20000};
  pthread_t thread;
  pthread_create(&thread, NULL, store_late, &s);
  begin = hk_now_ns();
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_ERR_REMOTE);
  ck_assert_uint_lt(hk_now_ns() - begin, 2000u * 1000 * 1000);
  pthread_join(thread, NULL);
  close(fds[0]);
  close(fds[1]);
}

/* A nap ends with its time, with a byte long before that, and does not begin where the failure is known. */
TEST(naps) {
  int fds[2];
  atomic_int failure = 0;
  hk_wait_env env = {.failure = &failure};
  hk_waiter w;
  ck_assert_int_eq(pipe(fds), 0);
  hk_wait_begin(&w, &env);
  uint64_t begin = hk_now_ns();
  ck_assert_int_eq(hk_wait_nap(&w, fds[0], 1000 * 1000), HK_OK);
  ck_assert_uint_ge(hk_now_ns() - begin, 1000u * 1000);
  pthread_t thread;
  pthread_create(&thread, NULL, write_late, &fds[1]);
  ck_assert_int_eq(hk_wait_nap(&w, fds[0], UINT64_C(3600) * 1000000000), HK_OK);
  pthread_join(thread, NULL);
  failure = HK_ERR_REMOTE;
  ck_assert_int_eq(hk_wait_nap(&w, fds[0], UINT64_C(3600) * 1000000000), HK_ERR_REMOTE);
  close(fds[0]);
  close(fds[1]);
}

/* The nap of each time, and only one kind of nap without long_after_ns; progress begins anew. */
TEST(backs_off) {
  const hk_backoff one = {.yield_ns = 10, .nap_ns = 3},
                   two = {.yield_ns = 10, .nap_ns = 3, .long_after_ns = 20, .long_nap_ns = 7};
  const uint64_t waited[] = {0, 9, 10, 19, 20, UINT64_MAX}, naps[] = {0, 0, 3, 3, 7, 7};
  for (size_t i = 0; i < HK_ARRAY_LENGTH(waited); i++) {
    ck_assert_uint_eq(hk_backoff_nap(&two, waited[i]), naps[i]);
    ck_assert_uint_eq(hk_backoff_nap(&one, waited[i]), naps[i] ? 3 : 0);
  }
  hk_wait_env env = {0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  ck_assert_uint_eq(hk_wait_idle_ns(&w), 0);
  ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  w.begin_ns -= 1000;
  ck_assert_uint_ge(hk_wait_idle_ns(&w), 1000);
  hk_wait_progress(&w);
  ck_assert_uint_eq(hk_wait_idle_ns(&w), 0);
}

/* A long wait leaves its core to others: from 20 ms on each pause is a sleep of at least 20 ms / 128. */
TEST(long_waits_sleep) {
  hk_wait_env env = {0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (w.waited_ns < 20000000) ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  const uint32_t polls = w.polls;
  const uint64_t begin = hk_now_ns();
  while (w.waited_ns < 200000000) ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  ck_assert_uint_le(w.polls - polls, (hk_now_ns() - begin) / (20000000 / 128) + 1);
  hk_wait_progress(&w);
  ck_assert_uint_eq(w.waited_ns, 0);
}

/* Who decides itself when to sleep gets pauses that are shorter than the longest sleep: at least one of many. */
TEST(stays_awake) {
  hk_wait_env env = {.awake = true};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
  w.begin_ns -= UINT64_C(3600) * 1000000000;
  for (uint64_t took = UINT64_MAX; took > 500 * 1000;) {
    uint64_t begin = hk_now_ns();
    ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
    took = hk_now_ns() - begin;
  }
}

/* The library's polls: how often, and for how long the last one. */
static atomic_int polls, poll_ms;
int poll(struct pollfd *fds, nfds_t n, int ms) {
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  atomic_fetch_add(&polls, 1);
  atomic_store(&poll_ms, ms);
  return ppoll(fds, n, ms < 0 ? NULL : &t, NULL);
}

/* A poll sleeps until something happens, but 50 ms at most, and not beyond the deadline. */
TEST(polls_in_slices) {
  int fds[2];
  atomic_int failure = 0;
  hk_wait_env env = {.failure = &failure};
  hk_waiter w;
  ck_assert_int_eq(pipe(fds), 0);
  struct pollfd p = {.fd = fds[0], .events = POLLIN, .revents = 77};
  hk_wait_begin(&w, &env);
  ck_assert_int_eq(hk_wait_poll(&w, &p, 1), HK_OK);
  ck_assert(polls == 1 && poll_ms == 50 && !p.revents);
  env.deadline_ns = hk_now_ns() + 10 * 1000 * 1000;
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_ERR_REMOTE);
  ck_assert_msg(polls <= 5 && poll_ms <= 11, "%d polls, %d ms", polls, poll_ms);
  polls = 0; /* the deadline is over */
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_ERR_REMOTE);
  ck_assert(polls == 1 && poll_ms == 0);
  env.deadline_ns = 0;
  ck_assert_int_eq(write(fds[1], "x", 1), 1);
  hk_wait_begin(&w, &env);
  ck_assert_int_eq(hk_wait_poll(&w, &p, 1), HK_OK);
  ck_assert_int_eq(p.revents, POLLIN);
  failure = HK_ERR_USAGE;
  polls = 0;
  ck_assert(hk_wait_poll(&w, &p, 1) == HK_ERR_USAGE && polls == 0);
  ck_assert(hk_wait_fd(&env, fds[0], POLLIN, "a byte") == HK_ERR_USAGE && polls == 0);
  close(fds[0]);
  close(fds[1]);
}

/* Where a thread must not be cancelled, and after it; the outermost part counts. */
TEST(cancellation_is_held) {
  int state;
  hk_cancel_hold();
  hk_cancel_hold();
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  ck_assert_int_eq(state, PTHREAD_CANCEL_DISABLE);
  hk_cancel_release();
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  ck_assert_int_eq(state, PTHREAD_CANCEL_ENABLE);
  hk_cancel_release(); /* nothing is held: no change */
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  ck_assert_int_eq(state, PTHREAD_CANCEL_DISABLE);
}

TEST(fd_that_is_closed) {
  int fds[2];
  ck_assert_int_eq(pipe(fds), 0);
  close(fds[0]);
  close(fds[1]);
  hk_wait_env env = {0};
  ck_assert_int_eq(hk_wait_fd(&env, fds[0], POLLIN, "a byte"), HK_ERR_INTERNAL);
  ck_assert_ptr_nonnull(strstr(hk_last_error(), "not open"));
}

int main(void) { return suite_main("wait", .setup = quiet); }
