/* SPDX-License-Identifier: Apache-2.0 */
/* For the bootstrap's tests: ranks as threads, ranks as processes, and the events that each got. */
#ifndef HK_TESTS_BOOT_RANKS_H
#define HK_TESTS_BOOT_RANKS_H
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include "../../src/base/service.h"
#include "../../src/boot/bootstrap.h"
#include "process.h"
#include "suite.h"

enum { MAX_EVENTS = 80 };

typedef struct rank_state {
  int rank, nranks, nids;
  const ncclUniqueId *ids;
  _Atomic(int) failure;
  hk_wait_env wait;
  hk_service *service;
  hk_bootstrap *b;
  hk_status status;
  pthread_t thread;
  void (*body)(struct rank_state *);
  void *arg;
  /* The events that on_event got; the count is stored last. */
  hk_event events[MAX_EVENTS];
  uint64_t event_ns[MAX_EVENTS];
  _Atomic(int) nevents;
} rank_state;

/* On several threads at once: each lost link has one. */
static inline void record_event(void *arg, const hk_event *e) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  rank_state *r = arg;
  pthread_mutex_lock(&lock);
  int i = atomic_load(&r->nevents);
  if (i < MAX_EVENTS) {
    r->events[i] = *e;
    r->event_ns[i] = hk_now_ns();
    atomic_store(&r->nevents, i + 1);
  }
  pthread_mutex_unlock(&lock);
}

static inline bool was_reported(rank_state *r, int kind, int rank) {
  for (int i = 0; i < atomic_load(&r->nevents); i++)
    if (r->events[i].rank == rank && (kind < 0 || r->events[i].kind == kind)) return true;
  return false;
}

static inline hk_bootstrap_options options_of(rank_state *r) {
  r->wait = (hk_wait_env){.failure = &r->failure};
  return (hk_bootstrap_options){.settings = hk_settings_now(),
                                .rank = r->rank,
                                .nranks = r->nranks,
                                .wait = &r->wait,
                                .service = r->service,
                                .on_event = record_event,
                                .arg = r};
}

static inline hk_status join_rank(rank_state *r) {
  r->status = hk_service_new(&r->service, "test");
  if (r->status != HK_OK) return r->status;
  hk_bootstrap_options o = options_of(r);
  return r->status = hk_bootstrap_join(&r->b, r->ids, r->nids, &o);
}

static inline void leave_rank(rank_state *r) {
  hk_bootstrap_leave(r->b);
  r->b = NULL;
  hk_service_free(r->service);
  r->service = NULL;
}

static inline void *rank_main(void *arg) {
  rank_state *r = arg;
  r->body(r);
  return NULL;
}

static inline rank_state *new_ranks(int n, const ncclUniqueId *ids, int nids, void (*body)(rank_state *), void *arg) {
  rank_state *r = calloc((size_t)n, sizeof *r);
  for (int i = 0; i < n; i++) {
    r[i].rank = i;
    r[i].nranks = n;
    r[i].nids = nids;
    r[i].ids = ids;
    r[i].body = body;
    r[i].arg = arg;
  }
  return r;
}

static inline void start_threads(rank_state *r, int n) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 1 << 20);
  for (int i = 0; i < n; i++) ck_assert_int_eq(pthread_create(&r[i].thread, &attr, rank_main, &r[i]), 0);
  pthread_attr_destroy(&attr);
}

static inline void end_threads(rank_state *r, int n) {
  for (int i = 0; i < n; i++) pthread_join(r[i].thread, NULL);
}

/* n ranks as threads run `body`. */
static inline rank_state *run_threads(int n, const ncclUniqueId *ids, int nids, void (*body)(rank_state *), void *arg) {
  rank_state *r = new_ranks(n, ids, nids, body, arg);
  start_threads(r, n);
  end_threads(r, n);
  return r;
}

/* Opens none, as there may be no room for one. */
static inline int count_fds(void) {
  int n = 0;
  for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) >= 0;
  return n;
}
/* A thread that has been told to close some may need a moment. */
static inline bool closes_all_but(int n) {
  for (int i = 0; i < 300 && count_fds() > n; i++) usleep(10000);
  return count_fds() <= n;
}

/* A child process that runs main_of(arg) with no tests around it; exit status 0 where it gives 0 and leaves no
 * descriptor open. */
static inline pid_t start_process(int (*main_of)(void *), void *arg) {
  fflush(stdout);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (!pid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nothing running */
    int before = count_fds(), status = main_of(arg);
    fflush(stdout);
    if (!status && !closes_all_but(before)) {
      fprintf(stderr, "a process leaves %d descriptors open\n", count_fds() - before);
      status = 1;
    }
    _exit(status);
  }
  return pid;
}

static inline int end_process(pid_t pid) {
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  return status;
}

/* Memory that forked processes share. */
static inline void *shared_memory(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(p, MAP_FAILED);
  return p;
}

/* Waits until the counter has come this far; the deadline only ends a broken test.  False: it was over. */
static inline bool await_count(_Atomic(int) *counter, int at_least) {
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 30000000000u};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (atomic_load(counter) < at_least)
    if (hk_wait_pause(&w) != HK_OK) return false;
  return true;
}

/* A process that makes an id and holds its root until it is killed; returns when `id`, in shared memory, is there. */
typedef struct held_id {
  ncclUniqueId *id;
  _Atomic(int) *made;
} held_id;
static inline int hold_id_(void *arg) {
  const held_id *h = arg;
  if (hk_bootstrap_new_id(h->id) != HK_OK) return 1;
  atomic_store(h->made, 1);
  for (;;) pause();
}
static inline pid_t hold_id(ncclUniqueId *id) {
  held_id h = {id, shared_memory(sizeof *h.made)};
  pid_t pid = start_process(hold_id_, &h);
  ck_assert(await_count(h.made, 1));
  return pid;
}

static inline int threads(void) { return count_entries("/proc/self/task"); }

/* The count without ours; a sanitizer's own thread begins with the first other one. */
static inline void *end_at_once(void *arg) { return arg; }
static inline int threads_alone(void) {
  pthread_t t;
  ck_assert_int_eq(pthread_create(&t, NULL, end_at_once, NULL), 0);
  pthread_join(t, NULL);
  return threads();
}

/* A root's last answers, and its thread's end, may come a moment after its ranks have theirs. */
static inline bool settles_at(int (*count)(void), int wanted) {
  hk_wait_env env = {.deadline_ns = hk_now_ns() + 20000000000u};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  while (count() > wanted)
    if (hk_wait_pause(&w) != HK_OK) return false;
  return true;
}
#endif
