/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder's ring, and when its file is written (flight.h). */
#include "flight.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "../base/fork.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/service.h"
#include "../boot/activity.h"
#include "../program/program.h"
#include "failure.h"
#include "flight_ring.h"

enum { FLIGHT_TICK_MS = 50, FLIGHT_RECORDS = 256 };

/* The recorder, and what decides when its file is written. */
typedef struct recorder {
  hk_flight flight;       /* the first member */
  pthread_mutex_t lock;   /* of the file that a failure causes */
  bool written;           /* it is there, or could not be written */
  pthread_mutex_t timing; /* of the timer's start; held only briefly */
  bool awaited, ended;    /* the timer has been started; it must not be */
  hk_service_timer timer;
  int signal_fd; /* -1: none */
  _Atomic(uint32_t) signals_seen;
} recorder;

static recorder *flight_recorder(ncclComm_t c) { return (recorder *)(void *)c->flight; }

/* ---- the ring ---- */

hk_status hk_flight_new(ncclComm_t c, hk_flight_report *report) {
  const hk_settings *settings = c->settings;
  const bool wanted = (settings->FLIGHT_DIR && *settings->FLIGHT_DIR) || settings->FLIGHT_SIGNAL;
  const uint64_t records = settings->FLIGHT_RECORDS ? (uint64_t)settings->FLIGHT_RECORDS : wanted ? FLIGHT_RECORDS : 0;
  uint64_t capacity = 1;
  if (!records) return HK_OK;
  while (capacity < records) capacity *= 2;
  recorder *r = calloc(1, sizeof *r);
  hk_flight *f = (hk_flight *)r;
  if (r) f->ring = aligned_alloc(sizeof *f->ring, capacity * sizeof *f->ring);
  if (!r || !f->ring) {
    free(r);
    return HK_FAIL_ERRNO("no memory for a flight recorder of %llu operations (HOCKET_FLIGHT_RECORDS)",
                         (unsigned long long)records);
  }
  memset(f->ring, 0, capacity * sizeof *f->ring);
  f->mask = capacity - 1;
  f->records = records;
  f->report = report;
  r->signal_fd = -1;
  f->ticks0 = hk_flight_ticks();
  f->now0 = hk_now_ns();
  pthread_mutex_init(&r->lock, NULL);
  pthread_mutex_init(&r->timing, NULL);
  c->flight = f;
  return HK_OK;
}

void hk_flight_free(ncclComm_t c) {
  recorder *r = flight_recorder(c);
  c->flight = NULL;
  if (!r) return;
  pthread_mutex_destroy(&r->lock);
  pthread_mutex_destroy(&r->timing);
  free(r->flight.ring);
  free(r);
}

uint8_t hk_flight_name(hk_flight *f, const struct hk_program *p) {
  /* relaxed: only this thread writes it */
  const uint32_t n = atomic_load_explicit(&f->nnames, memory_order_relaxed);
  for (uint32_t i = 0; i < n; i++)
    if (!strncmp(f->names[i], p->algorithm, HK_FLIGHT_NAME)) return (uint8_t)(i + 1);
  if (n == HK_FLIGHT_NAMES) return HK_FLIGHT_NAMES + 1; /* no name: more algorithms than anyone uses */
  snprintf(f->names[n], HK_FLIGHT_NAME, "%s", p->algorithm);
  /* release: a reader that sees the number of names sees the names */
  atomic_store_explicit(&f->nnames, n + 1, memory_order_release);
  return (uint8_t)(n + 1);
}

/* A dump that no call asked for. The error is a warning of hk_flight_dump. */
static void flight_dump_aside(ncclComm_t c, const char *why) {
  if (hk_flight_dump(c, NULL) == HK_OK)
    HK_INFO(HK_SUB_COLL, "rank %d of %d: wrote a flight record, because of %s", c->rank, c->nranks, why);
}

/* ---- after a failure ---- */

static bool flight_wanted(ncclComm_t c) {
  if (!c->flight || !c->bootstrap) return false;
  const char *folder = c->settings->FLIGHT_DIR;
  return folder && folder[0];
}

void hk_flight_failed(ncclComm_t c) {
  recorder *r = flight_recorder(c);
  if (!flight_wanted(c)) return;
  char kept[HK_ERROR_TEXT]; /* the thread's error is the failure's */
  snprintf(kept, sizeof kept, "%s", hk_last_error());
  pthread_mutex_lock(&r->lock); /* a second thread waits: it may end the process when it returns */
  if (!r->written) {
    r->written = true;
    flight_dump_aside(c, "a failure");
  }
  pthread_mutex_unlock(&r->lock);
  hk_error_adopt(kept);
}

void hk_flight_aborted(ncclComm_t c) {
  hk_activity a;
  if (!flight_wanted(c)) return;
  c->flight->report(c, &a);
  /* what runs on a GPU is not known here, so its rank writes in any case */
  if (a.phase == HK_PHASE_OPERATION || c->device >= 0) hk_flight_failed(c);
}

/* On the service thread: a rank that is in no call writes its file, too. */
static void flight_tick(void *arg, int fd, uint32_t events) {
  ncclComm_t c = arg;
  (void)fd, (void)events;
  if (hk_failure_settled(c) == HK_OK) return;
  hk_service_tick(c->service, &flight_recorder(c)->timer, 0, NULL, NULL);
  hk_flight_failed(c);
}

void hk_flight_await(ncclComm_t c) {
  recorder *r = flight_recorder(c);
  if (!flight_wanted(c) || !c->service) return;
  pthread_mutex_lock(&r->timing);
  if (!r->awaited && !r->ended) hk_service_tick(c->service, &r->timer, FLIGHT_TICK_MS, flight_tick, c);
  r->awaited = true;
  pthread_mutex_unlock(&r->timing);
}

/* ---- on a signal ----
 * The handler counts, and writes to one descriptor of the process, which is never closed. Each communicator's service
 * thread watches a copy of that descriptor. */

static struct {
  pthread_mutex_t lock;
  int number; /* of the signal; 0: no handler yet, -1: there cannot be one */
  int fd;
  _Atomic(uint32_t) count;
} flight_signal = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};
HK_FORK_GUARD(flight_signal.lock);

static void flight_on_signal(int number) {
  const int kept = errno;
  const uint64_t one = 1;
  (void)number;
  atomic_fetch_add(&flight_signal.count, 1); /* any order would do: the write that follows is a system call */
  if (write(flight_signal.fd, &one, sizeof one) < 0) errno = kept; /* its counter is full: all have been woken */
  errno = kept;
}

/* Under the lock: tries once in a process. */
static void flight_install(int number) {
  struct sigaction old, own = {.sa_handler = flight_on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&own.sa_mask);
  flight_signal.number = -1;
  if (number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || sigaction(number, NULL, &old)) {
    HK_WARN("HOCKET_FLIGHT_SIGNAL=%d: no handler can return from this signal: take another one, as %d (SIGUSR2)",
            number, SIGUSR2);
    return;
  }
  if (old.sa_flags & SA_SIGINFO || old.sa_handler != SIG_DFL) {
    HK_INFO(HK_SUB_INIT, "HOCKET_FLIGHT_SIGNAL=%d: the application handles this signal, so it writes no flight record",
            number);
    return;
  }
  flight_signal.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (flight_signal.fd < 0 || sigaction(number, &own, NULL)) {
    HK_WARN("HOCKET_FLIGHT_SIGNAL=%d: cannot handle this signal: %s", number, strerror(errno));
    return;
  }
  flight_signal.number = number;
}

/* On the service thread. */
static void flight_signalled(void *arg, int fd, uint32_t events) {
  ncclComm_t c = arg;
  const uint32_t count = atomic_load(&flight_signal.count);
  (void)fd, (void)events;
  /* relaxed: only this thread uses it. Equal: the signal came before the communicator, or was another process's */
  if (count == atomic_load_explicit(&flight_recorder(c)->signals_seen, memory_order_relaxed)) return;
  atomic_store_explicit(&flight_recorder(c)->signals_seen, count, memory_order_relaxed); /* relaxed: as above */
  flight_dump_aside(c, "a signal");
}

void hk_flight_watch(ncclComm_t c) {
  recorder *r = flight_recorder(c);
  const int number = (int)c->settings->FLIGHT_SIGNAL;
  if (!r) return;
  const char *folder = c->settings->FLIGHT_DIR;
  if (folder && *folder && access(folder, W_OK))
    HK_WARN_ONCE("HOCKET_FLIGHT_DIR: no flight record can be written into the folder %s: %s", folder, strerror(errno));
  if (!number) return;
  pthread_mutex_lock(&flight_signal.lock);
  if (!flight_signal.number) flight_install(number);
  const bool ready = flight_signal.number > 0;
  pthread_mutex_unlock(&flight_signal.lock);
  if (!ready) return;
  /* relaxed: the service thread gets it with hk_service_add */
  atomic_store_explicit(&r->signals_seen, atomic_load(&flight_signal.count), memory_order_relaxed);
  r->signal_fd = fcntl(flight_signal.fd, F_DUPFD_CLOEXEC, 0);
  /* by edges: all services see each write, and none has to read */
  if (r->signal_fd >= 0 && hk_service_add(c->service, r->signal_fd, EPOLLIN | EPOLLET, flight_signalled, c) == HK_OK)
    return;
  HK_WARN_ONCE("rank %d of %d: cannot watch for HOCKET_FLIGHT_SIGNAL, no descriptors left (ulimit -n)", c->rank,
               c->nranks);
  if (r->signal_fd >= 0) close(r->signal_fd);
  r->signal_fd = -1;
}

void hk_flight_end(ncclComm_t c) {
  recorder *r = flight_recorder(c);
  if (!r || !c->service) return;
  if (r->signal_fd >= 0) {
    hk_service_remove(c->service, r->signal_fd);
    close(r->signal_fd);
    r->signal_fd = -1;
  }
  pthread_mutex_lock(&r->timing);
  r->ended = true;
  const bool awaited = r->awaited;
  pthread_mutex_unlock(&r->timing);
  if (awaited && hk_failure_settled(c) != HK_OK) hk_flight_failed(c); /* the timer may come too late */
  hk_service_tick(c->service, &r->timer, 0, NULL, NULL);
}
