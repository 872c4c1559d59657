/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread: what its callbacks are promised. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include "../../src/base/service.h"
#include "../support/process.h"
#include "../support/suite.h"

/* Waits for a counter that callbacks raise; the deadline only ends a broken test. */
static void await(_Atomic(int) *counter, int at_least) {
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 20000000000u};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (atomic_load(counter) < at_least) ck_assert_int_eq(hk_wait_pause(&w), HK_OK);
}

typedef struct probe {
  hk_service *s;
  int fd;
  _Atomic(int) calls, in_callback, go_on;
} probe;

static void drain(int fd) {
  uint64_t count;
  ck_assert_int_eq(read(fd, &count, sizeof count), sizeof count);
}

static void kick(int fd) {
  uint64_t one = 1;
  ck_assert_int_eq(write(fd, &one, sizeof one), sizeof one);
}

static void count(void *arg, int fd, uint32_t events) {
  probe *p = arg;
  char name[16];
  ck_assert(hk_service_here(p->s));
  ck_assert_int_eq(pthread_getname_np(pthread_self(), name, sizeof name), 0);
  ck_assert_str_eq(name, "test");
  if (fd >= 0) {
    ck_assert_uint_eq(events & EPOLLIN, EPOLLIN);
    drain(fd);
  }
  atomic_fetch_add(&p->calls, 1);
}

static void remove_itself(void *arg, int fd, uint32_t events) {
  (void)events;
  probe *p = arg;
  hk_service_remove(p->s, fd); /* the descriptor stays readable: without the removal this would be called again */
  atomic_fetch_add(&p->calls, 1);
}

static void hold(void *arg, int fd, uint32_t events) {
  (void)events;
  probe *p = arg;
  if (fd >= 0) hk_service_remove(p->s, fd);
  atomic_store(&p->in_callback, 1);
  await(&p->go_on, 1);
  atomic_store(&p->in_callback, 2);
}

TEST(callbacks) {
  probe p = {.fd = eventfd(0, EFD_NONBLOCK)};
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  ck_assert(!hk_service_here(p.s));
  ck_assert_int_eq(hk_service_add(p.s, p.fd, EPOLLIN, count, &p), HK_OK);
  ck_assert_int_eq(hk_service_add(p.s, p.fd, EPOLLIN, count, &p), HK_ERR_INTERNAL);
  for (int i = 1; i <= 100; i++) {
    kick(p.fd);
    await(&p.calls, i);
  }
  ck_assert_int_eq(hk_service_modify(p.s, p.fd, 0), HK_OK);
  kick(p.fd);
  ck_assert_int_eq(hk_service_modify(p.s, p.fd, EPOLLIN), HK_OK);
  await(&p.calls, 101);
  hk_service_remove(p.s, p.fd);
  ck_assert_int_eq(hk_service_modify(p.s, p.fd, EPOLLIN), HK_ERR_INTERNAL);
  kick(p.fd);
  hk_service_free(p.s);
  ck_assert_int_eq(atomic_load(&p.calls), 101);
  close(p.fd);
}

TEST(removal_in_the_callback) {
  probe p = {.fd = eventfd(1, EFD_NONBLOCK)};
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  for (int i = 1; i <= 50; i++) {
    ck_assert_int_eq(hk_service_add(p.s, p.fd, EPOLLIN, remove_itself, &p), HK_OK);
    await(&p.calls, i);
    hk_service_remove(p.s, p.fd);
  }
  hk_service_free(p.s);
  ck_assert_int_eq(atomic_load(&p.calls), 50);
  close(p.fd);
}

typedef struct exchange {
  probe fresh;
  int fd;
} exchange;

/* Another connection gets the number of a descriptor that is ready, too. */
static void replace_other(void *arg, int fd, uint32_t events) {
  (void)events;
  exchange *x = arg;
  int fresh = eventfd(0, EFD_NONBLOCK);
  drain(fd);
  hk_service_remove(x->fresh.s, x->fd);
  ck_assert_int_eq(dup2(fresh, x->fd), x->fd);
  close(fresh);
  ck_assert_int_eq(hk_service_add(x->fresh.s, x->fd, EPOLLIN, count, &x->fresh), HK_OK);
}

/* Events that were reported before a removal are not the next one's, even if all numbers are the same. */
TEST(event_of_the_one_before) {
  probe gate = {.fd = eventfd(1, EFD_NONBLOCK)}, old = {.fd = eventfd(0, EFD_NONBLOCK)}, after = {.fd = -1};
  int first = eventfd(0, EFD_NONBLOCK);
  exchange x = {.fd = old.fd};
  hk_service_work work = {.fn = count, .arg = &after};
  ck_assert_int_eq(hk_service_new(&gate.s, "test"), HK_OK);
  old.s = after.s = x.fresh.s = gate.s;
  ck_assert_int_eq(hk_service_add(gate.s, first, EPOLLIN, replace_other, &x), HK_OK);
  ck_assert_int_eq(hk_service_add(gate.s, old.fd, EPOLLIN, count, &old), HK_OK);
  ck_assert_int_eq(hk_service_add(gate.s, gate.fd, EPOLLIN, hold, &gate), HK_OK);
  await(&gate.in_callback, 1);
  kick(first); /* the thread finds both at once */
  kick(old.fd);
  atomic_store(&gate.go_on, 1);
  await(&gate.in_callback, 2);
  hk_service_post(gate.s, &work);
  await(&after.calls, 1);
  ck_assert(atomic_load(&old.calls) == 0 && atomic_load(&x.fresh.calls) == 0);
  kick(x.fd);
  await(&x.fresh.calls, 1);
  hk_service_free(gate.s);
  close(first), close(x.fd), close(gate.fd);
}

static void *let_go(void *arg) {
  probe *p = arg;
  struct timespec t = {.tv_nsec = 20000000};
  nanosleep(&t, NULL); /* gives a wrong removal the time to return early; a right one passes whatever the timing */
  atomic_store(&p->go_on, 1);
  return NULL;
}

/* Even where the callback under way has already removed its descriptor itself. */
TEST(removal_waits_for_the_callback) {
  probe p = {.fd = eventfd(1, EFD_NONBLOCK)};
  pthread_t t;
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  ck_assert_int_eq(hk_service_add(p.s, p.fd, EPOLLIN, hold, &p), HK_OK);
  await(&p.in_callback, 1);
  pthread_create(&t, NULL, let_go, &p);
  hk_service_remove(p.s, p.fd);
  ck_assert_int_eq(atomic_load(&p.in_callback), 2);
  pthread_join(t, NULL);
  hk_service_free(p.s);
  close(p.fd);
}

/* The same of a timer that ends while it runs. */
TEST(end_of_a_timer_waits) {
  probe p = {.fd = -1};
  hk_service_timer timer = {.fn = NULL};
  pthread_t t;
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  hk_service_tick(p.s, &timer, 1, hold, &p);
  await(&p.in_callback, 1);
  pthread_create(&t, NULL, let_go, &p);
  hk_service_tick(p.s, &timer, 0, NULL, NULL);
  ck_assert_int_eq(atomic_load(&p.in_callback), 2);
  pthread_join(t, NULL);
  hk_service_free(p.s);
}

TEST(posted_work) {
  probe p = {.fd = -1}, q = {.fd = -1};
  hk_service_work work = {.fn = count, .arg = &p}, held = {.fn = hold, .arg = &q}, never = {.fn = count, .arg = &q};
  pthread_t t;
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  q.s = p.s;
  for (int i = 1; i <= 100; i++) {
    hk_service_post(p.s, &work);
    await(&p.calls, i);
  }
  hk_service_post(p.s, &held);
  await(&q.in_callback, 1);
  for (int i = 0; i < 10; i++) hk_service_post(p.s, &work); /* one run for all of them */
  hk_service_post(p.s, &never);
  hk_service_cancel(p.s, &never);
  pthread_create(&t, NULL, let_go, &q);
  hk_service_cancel(p.s, &held); /* it runs: waits */
  ck_assert_int_eq(atomic_load(&q.in_callback), 2);
  pthread_join(t, NULL);
  await(&p.calls, 101);
  hk_service_post(p.s, &work);
  await(&p.calls, 102);
  hk_service_free(p.s);
  ck_assert_int_eq(atomic_load(&p.calls), 102);
  ck_assert_int_eq(atomic_load(&q.calls), 0);
}

TEST(timer) {
  probe p = {.fd = -1};
  hk_service_timer t = {.fn = NULL};
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  hk_service_tick(p.s, &t, 1, count, &p);
  await(&p.calls, 5);
  hk_service_tick(p.s, &t, 0, NULL, NULL);
  int calls = atomic_load(&p.calls);
  poll(NULL, 0, 20);
  ck_assert_int_eq(atomic_load(&p.calls), calls);
  /* one that is started again and again does not begin anew */
  const uint64_t end = hk_now_ns() + 5000000000u;
  while (atomic_load(&p.calls) == calls && hk_now_ns() < end) hk_service_tick(p.s, &t, 50, count, &p);
  ck_assert_int_gt(atomic_load(&p.calls), calls);
  hk_service_free(p.s);
}

/* Each holder has a timer of its own; the thread ends with the last one. */
TEST(two_holders) {
  probe p = {.fd = -1}, q = {.fd = -1};
  hk_service_timer t = {.fn = NULL}, u = {.fn = NULL};
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  q.s = hk_service_share(p.s);
  hk_service_tick(p.s, &t, 1, count, &p);
  hk_service_tick(q.s, &u, 2, count, &q);
  await(&p.calls, 5);
  await(&q.calls, 5);
  hk_service_tick(p.s, &t, 0, NULL, NULL);
  hk_service_free(p.s);
  int calls = atomic_load(&p.calls);
  await(&q.calls, atomic_load(&q.calls) + 5);
  ck_assert_int_eq(atomic_load(&p.calls), calls);
  hk_service_free(q.s);
}

/* An application's handlers are not run there; what the thread does to itself is not hidden. */
static void look_at_signals(void *arg, int fd, uint32_t events) {
  probe *p = arg;
  sigset_t held;
  (void)fd, (void)events;
  ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, NULL, &held), 0);
  ck_assert(sigismember(&held, SIGTERM) && sigismember(&held, SIGUSR1));
  ck_assert(!sigismember(&held, SIGSEGV) && !sigismember(&held, SIGABRT));
  atomic_fetch_add(&p->calls, 1);
}

TEST(signals) {
  probe p = {.fd = -1};
  hk_service_work work = {.fn = look_at_signals, .arg = &p};
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  ck_assert_int_eq(hk_service_new(&p.s, "signals"), HK_OK);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  ck_assert_int_eq(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
  hk_service_post(p.s, &work);
  await(&p.calls, 1);
  hk_service_free(p.s);
}

static void end_service(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  probe *p = arg;
  hk_service_free(p->s);
  atomic_store(&p->calls, 1);
}

/* Without its descriptors there is none, and none but its own are closed. */
TEST_LOOP(no_descriptors, 2) {
  struct rlimit was, now;
  hk_service *s = (hk_service *)(void *)&was;
  const int next = dup(0);
  close(next);
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
  now = was;
  now.rlim_cur = (rlim_t)(next + _i);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
  hk_status rc = hk_service_new(&s, "test");
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
  ck_assert_int_eq(rc, HK_ERR_SYSTEM);
  ck_assert_ptr_null(s);
  for (int fd = 0; fd < 3; fd++) ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
  const int again = dup(0);
  ck_assert_int_eq(again, next);
  close(again);
}

TEST(free_from_a_callback) {
  int before = open_fds();
  for (int i = 0; i < 20; i++) {
    probe p = {.fd = -1};
    hk_service_work work = {.fn = end_service, .arg = &p};
    ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
    hk_service_post(p.s, &work);
    await(&p.calls, 1);
    while (open_fds() != before) poll(NULL, 0, 1); /* the thread closes them when it ends */
  }
}

TEST(fork_and_free) {
  probe p = {.fd = -1};
  ck_assert_int_eq(hk_service_new(&p.s, "test"), HK_OK);
  pid_t child = fork();
  if (!child) {
    hk_service_free(p.s); /* must not wait for a thread that is not there */
    _exit(0);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  hk_service_work work = {.fn = count, .arg = &p};
  hk_service_post(p.s, &work);
  await(&p.calls, 1);
  hk_service_free(p.s);
}

typedef struct churn {
  hk_service *s;
  _Atomic(int) calls;
} churn;

static void count_churn(void *arg, int fd, uint32_t events) {
  (void)fd, (void)events;
  atomic_fetch_add(&((churn *)arg)->calls, 1);
}

/* Adds, removes and closes descriptors as fast as it can while they are ready; TSan watches. */
static void *churn_main(void *arg) {
  churn *c = arg;
  for (int i = 0; i < 300; i++) {
    int fds[4];
    for (int k = 0; k < 4; k++) {
      fds[k] = eventfd(1, EFD_NONBLOCK);
      ck_assert_int_eq(hk_service_add(c->s, fds[k], EPOLLIN, count_churn, c), HK_OK);
    }
    for (int k = 0; k < 4; k++) {
      hk_service_remove(c->s, fds[k]);
      close(fds[k]);
    }
  }
  return NULL;
}

TEST(many_threads) {
  int before = open_fds();
  churn c = {0};
  pthread_t t[4];
  ck_assert_int_eq(hk_service_new(&c.s, "test"), HK_OK);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, churn_main, &c);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  hk_service_free(c.s);
  ck_assert_int_eq(open_fds(), before);
}

int main(void) { return suite_main("service", .timeout = 60); }
