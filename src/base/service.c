/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread. One mutex guards all state and is never held while a callback runs. `running` holds what runs, so
 * that a remover can wait for exactly that. */
#include "service.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "sanitizers.h"
#include "thread.h"
#include "wait.h" /* hk_now_ns */

/* Sanitizers make frames several times larger. */
enum { STACK_BYTES = HK_SANITIZED ? 8 * HK_SERVICE_STACK : HK_SERVICE_STACK, BATCH = 16 };

typedef struct entry {
  int fd;              /* -1: free */
  uint32_t generation; /* events of an earlier user of this entry are recognised by it */
  hk_service_fn fn;
  void *arg;
} entry;

struct hk_service {
  int epoll_fd, wake_fd;
  pid_t pid;
  _Atomic(int) holders;
  pthread_t thread;
  char name[16];
  pthread_mutex_t lock; /* all below */
  pthread_cond_t idle;  /* a callback has ended and a thread waits for that */
  entry *entries;
  uint32_t capacity;
  uint32_t generation; /* never 0 in an entry: 0 is the wake fd */
  int running_fd;      /* of the callback under way; -1: none, or not for a file descriptor */
  const void *running; /* of the callback under way: its work's address, or its timer's */
  unsigned waiters;
  bool stop, self_free;
  hk_service_work *first, *last;
  hk_service_timer *timers; /* that run */
};

/* Under the lock, because the posted work may free the service. */
static void service_wake(hk_service *s) {
  uint64_t one = 1;
  /* It can only fail if the counter is full, and then the thread is awake anyway. */
  if (write(s->wake_fd, &one, sizeof one) < 0) return;
}

bool hk_service_here(const hk_service *s) { return pthread_equal(pthread_self(), s->thread); }

/* Runs a callback outside the lock. */
static void service_run(hk_service *s, const void *what, hk_service_fn fn, void *arg, int fd, uint32_t events) {
  s->running = what;
  s->running_fd = fd;
  pthread_mutex_unlock(&s->lock);
  fn(arg, fd, events);
  pthread_mutex_lock(&s->lock);
  s->running = NULL;
  s->running_fd = -1;
  if (s->waiters) pthread_cond_broadcast(&s->idle);
}

static void service_run_event(hk_service *s, const struct epoll_event *e) {
  uint32_t place = (uint32_t)e->data.u64, generation = (uint32_t)(e->data.u64 >> 32);
  if (!generation) {
    uint64_t count;
    if (read(s->wake_fd, &count, sizeof count) < 0) return; /* the wake-up was already read with the last one */
    return;
  }
  if (place >= s->capacity) return;
  entry *t = &s->entries[place];
  if (t->fd < 0 || t->generation != generation) return; /* removed since epoll reported it */
  service_run(s, NULL, t->fn, t->arg, t->fd, e->events);
}

static void service_run_work(hk_service *s) {
  while (s->first && !s->stop) {
    hk_service_work *w = s->first;
    s->first = w->next;
    if (!s->first) s->last = NULL;
    w->queued = false; /* before it runs: a post from now on requests another run */
    service_run(s, w, w->fn, w->arg, -1, 0);
  }
}

static hk_service_timer *service_first_due(const hk_service *s, uint64_t now) {
  hk_service_timer *t = s->timers;
  while (t && now < t->next_ns) t = t->next;
  return t;
}

static void service_run_timers(hk_service *s) {
  if (!s->timers) return;
  const uint64_t now = hk_now_ns();
  /* Restarts from the first timer after each callback, because callbacks start and stop timers. */
  for (hk_service_timer *t; !s->stop && (t = service_first_due(s, now));) {
    t->next_ns = now + t->period_ns;
    service_run(s, t, t->fn, t->arg, -1, 0);
  }
}

static int service_sleep_ms(const hk_service *s) {
  if (s->first || s->stop) return 0;
  if (!s->timers) return -1;
  uint64_t now = hk_now_ns(), next = UINT64_MAX;
  for (const hk_service_timer *t = s->timers; t; t = t->next)
    if (t->next_ns < next) next = t->next_ns;
  return now >= next ? 0 : (int)((next - now) / 1000000u + 1);
}

static void service_dispose(hk_service *s) {
  if (s->epoll_fd >= 0) close(s->epoll_fd);
  if (s->wake_fd >= 0) close(s->wake_fd);
  pthread_cond_destroy(&s->idle);
  pthread_mutex_destroy(&s->lock);
  free(s->entries);
  free(s);
}

static void *service_main(void *arg) {
  hk_service *s = arg;
  struct epoll_event events[BATCH];
  pthread_setname_np(pthread_self(), s->name);
  pthread_mutex_lock(&s->lock);
  while (!s->stop) {
    int timeout = service_sleep_ms(s);
    pthread_mutex_unlock(&s->lock);
    int n = epoll_wait(s->epoll_fd, events, BATCH, timeout);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n && !s->stop; i++) service_run_event(s, &events[i]);
    service_run_work(s);
    service_run_timers(s);
  }
  bool self_free = s->self_free;
  pthread_mutex_unlock(&s->lock);
  if (self_free) service_dispose(s);
  return NULL;
}

static int service_start_thread(hk_service *s) {
  /* The thread waits at the lock until its id, which hk_service_here compares, is stored. */
  pthread_mutex_lock(&s->lock);
  int error = hk_thread_start(&s->thread, STACK_BYTES, service_main, s);
  pthread_mutex_unlock(&s->lock);
  return error;
}

hk_status hk_service_new(hk_service **out, const char *thread_name) {
  hk_status rc = HK_OK;
  *out = NULL;
  hk_service *s = calloc(1, sizeof *s);
  if (!s) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for a service thread");
  s->epoll_fd = s->wake_fd = s->running_fd = -1;
  s->pid = getpid();
  atomic_init(&s->holders, 1);
  snprintf(s->name, sizeof s->name, "%s", thread_name);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->idle, NULL);
  s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (s->epoll_fd >= 0) s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (s->wake_fd < 0) {
    rc = HK_FAIL_ERRNO("cannot make the service thread's file descriptors; raise the limit of open files (ulimit -n)");
    goto out;
  }
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
  if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &e))
    HK_GIVE_UP(HK_FAIL_ERRNO("cannot watch the service thread's wake-up"), out);
  int error = service_start_thread(s);
  if (error) {
    errno = error;
    rc = HK_FAIL_ERRNO("cannot start the service thread %s; check the limit of threads (ulimit -u)", s->name);
  }
out:
  if (rc != HK_OK)
    service_dispose(s);
  else
    *out = s;
  return rc;
}

hk_service *hk_service_share(hk_service *s) {
  atomic_fetch_add(&s->holders, 1); /* any order would do: the caller has the service from a holder */
  return s;
}

void hk_service_free(hk_service *s) {
  /* acquire and release: the other holders' last uses come before what follows */
  if (!s || atomic_fetch_sub(&s->holders, 1) > 1) return;
  if (s->pid != getpid()) {
    /* The parent's thread does not exist here; its descriptors may have been closed and reused. */
    free(s->entries);
    free(s);
    return;
  }
  bool here = hk_service_here(s);
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  s->self_free = here;
  if (!here) service_wake(s);
  pthread_mutex_unlock(&s->lock);
  if (here) {
    pthread_detach(s->thread);
    return;
  }
  pthread_join(s->thread, NULL);
  service_dispose(s);
}

static entry *service_find(hk_service *s, int fd) {
  for (uint32_t i = 0; i < s->capacity; i++)
    if (s->entries[i].fd == fd) return &s->entries[i];
  return NULL;
}

static entry *service_free_entry(hk_service *s) {
  entry *t = service_find(s, -1);
  if (t) return t;
  uint32_t capacity = s->capacity ? 2 * s->capacity : 8;
  entry *grown = realloc(s->entries, capacity * sizeof *grown);
  if (!grown) return NULL;
  for (uint32_t i = s->capacity; i < capacity; i++) grown[i] = (entry){.fd = -1};
  t = &grown[s->capacity];
  s->entries = grown;
  s->capacity = capacity;
  return t;
}

static struct epoll_event service_event_of(const hk_service *s, const entry *t, uint32_t events) {
  return (struct epoll_event){.events = events, .data.u64 = (uint64_t)t->generation << 32 | (uint32_t)(t - s->entries)};
}

hk_status hk_service_add(hk_service *s, int fd, uint32_t epoll_events, hk_service_fn fn, void *arg) {
  hk_status rc = HK_OK;
  pthread_mutex_lock(&s->lock);
  entry *t = service_find(s, fd) ? NULL : service_free_entry(s);
  if (!t) {
    rc = service_find(s, fd)
             ? HK_FAIL(HK_ERR_INTERNAL, "file descriptor %d is already watched by service %s", fd, s->name)
             : HK_FAIL(HK_ERR_SYSTEM, "out of memory for service %s", s->name);
    goto out;
  }
  if (!++s->generation) s->generation = 1;
  *t = (entry){.fd = fd, .generation = s->generation, .fn = fn, .arg = arg};
  struct epoll_event e = service_event_of(s, t, epoll_events);
  if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
    rc = HK_FAIL_ERRNO("service %s cannot watch file descriptor %d", s->name, fd);
    t->fd = -1;
  }
out:
  pthread_mutex_unlock(&s->lock);
  return rc;
}

hk_status hk_service_modify(hk_service *s, int fd, uint32_t epoll_events) {
  hk_status rc = HK_OK;
  pthread_mutex_lock(&s->lock);
  entry *t = service_find(s, fd);
  struct epoll_event e = t ? service_event_of(s, t, epoll_events) : (struct epoll_event){0};
  if (!t)
    rc = HK_FAIL(HK_ERR_INTERNAL, "file descriptor %d is not watched by service %s", fd, s->name);
  else if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fd, &e))
    rc = HK_FAIL_ERRNO("service %s cannot watch file descriptor %d", s->name, fd);
  pthread_mutex_unlock(&s->lock);
  return rc;
}

/* Waits until the callback for `fd` (or for `what`, if fd is -1) is not running. No deadline, because callbacks do not
 * block. */
static void service_settle(hk_service *s, int fd, const void *what) {
  if (hk_service_here(s)) return; /* inside a callback: it is this one, or none runs */
  s->waiters++;
  while (fd >= 0 ? s->running_fd == fd : s->running == what) pthread_cond_wait(&s->idle, &s->lock);
  s->waiters--;
}

void hk_service_remove(hk_service *s, int fd) {
  pthread_mutex_lock(&s->lock);
  entry *t = fd >= 0 ? service_find(s, fd) : NULL;
  if (t) {
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    t->fd = -1;
  }
  if (fd >= 0) service_settle(s, fd, NULL); /* also if a callback that may still run has removed it */
  pthread_mutex_unlock(&s->lock);
}

void hk_service_tick(hk_service *s, hk_service_timer *t, unsigned period_ms, hk_service_fn fn, void *arg) {
  pthread_mutex_lock(&s->lock);
  hk_service_timer **at = &s->timers;
  while (*at && *at != t) at = &(*at)->next;
  if (!period_ms) {
    if (*at) *at = t->next;
    service_settle(s, -1, t);
  } else if (!*at) {
    const uint64_t period_ns = (uint64_t)period_ms * 1000000u;
    *t = (hk_service_timer){fn, arg, period_ns, hk_now_ns() + period_ns, s->timers};
    s->timers = t;
    service_wake(s);
  }
  pthread_mutex_unlock(&s->lock);
}

void hk_service_post(hk_service *s, hk_service_work *work) {
  pthread_mutex_lock(&s->lock);
  if (!work->queued) {
    work->queued = true;
    work->next = NULL;
    if (s->last)
      s->last->next = work;
    else
      s->first = work;
    s->last = work;
    service_wake(s);
  }
  pthread_mutex_unlock(&s->lock);
}

void hk_service_cancel(hk_service *s, hk_service_work *work) {
  pthread_mutex_lock(&s->lock);
  hk_service_work *before = NULL;
  for (hk_service_work *w = s->first; w; before = w, w = w->next) {
    if (w != work) continue;
    if (before)
      before->next = w->next;
    else
      s->first = w->next;
    if (s->last == w) s->last = before;
    w->queued = false;
    break;
  }
  service_settle(s, -1, work);
  pthread_mutex_unlock(&s->lock);
}
