/* SPDX-License-Identifier: Apache-2.0 */
/* The watch of the process's memory, by userfaultfd: see unmap.h. */
#include "unmap.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "fork.h"
#include "thread.h"

/* ---- userfaultfd, as in <linux/userfaultfd.h> of Linux 5.19, which older headers lack ---- */

#ifndef SYS_userfaultfd
#if defined(__x86_64__)
#define SYS_userfaultfd 323
#else
#define SYS_userfaultfd 282
#endif
#endif
enum { USER_MODE_ONLY = 1, API = 0xAA, MODE_WP = 2 };
enum { EVENT_REMAP = 0x14, EVENT_REMOVE = 0x15, EVENT_UNMAP = 0x16 };
/* With the last one, of Linux 5.19, the kernel counts changes under way correctly (5.16), and gives a child of fork
 * copies of pinned pages (5.12). */
#define FEATURES (UINT64_C(1) << 2 | UINT64_C(1) << 3 | UINT64_C(1) << 6)
#define NEW_ENOUGH (UINT64_C(1) << 12)
typedef struct handshake {
  uint64_t api, features, ioctls;
} handshake;
typedef struct span {
  uint64_t at, bytes;
} span;
typedef struct moded_span {
  span span;
  uint64_t mode, ioctls;
} moded_span;
typedef struct protect_span {
  span span;
  uint64_t mode;
} protect_span;
typedef struct report {
  uint8_t event, unused[7];
  uint64_t first, second, third; /* from, to, length; or begin, end */
} report;
_Static_assert(sizeof(report) == 32, "a report has 32 bytes");
#define HANDSHAKE _IOWR(0xAA, 0x3F, handshake)
#define REGISTER _IOWR(0xAA, 0, moded_span)
#define UNREGISTER _IOR(0xAA, 1, span)
#define WRITEPROTECT _IOWR(0xAA, 6, protect_span)

/* ---- the watch ---- */

enum { RANGES = 1024, READ_AT_ONCE = 16, READER_STACK = 128 * 1024 };

typedef struct range {
  uintptr_t begin, end; /* whole pages */
  uint64_t serial;      /* 0: free */
  bool gone, unmapped;  /* unmapped: all of it, so that the kernel watches nothing of it any more */
} range;

struct hk_unmap {
  int fd, stop;  /* stop: an event ends the reader */
  int users;     /* under `opening` */
  pid_t process; /* a child of fork does not use its parent's */
  pthread_t reader;
  uintptr_t page;
  _Atomic uint64_t marks; /* written under the lock, read without it */
  pthread_mutex_t lock;   /* for what follows */
  uint64_t serial, watched;
  uint32_t most; /* no slot from here on was used */
  range ranges[RANGES];
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(opening);
static hk_unmap *process;

/* Returns true unless it is certain that no change is under way: see unmap.h. */
static bool changes(const hk_unmap *u) {
  protect_span nothing = {{0, 0}, 0};
  return ioctl(u->fd, WRITEPROTECT, &nothing) == 0 || errno != EINVAL;
}

/* ---- the mappings of the process, without allocating ---- */

typedef struct mapping {
  uintptr_t begin, end;
  bool plain; /* private anonymous memory that can be read and written */
} mapping;

/* begin-end rwxp offset major:minor inode  name */
static bool parse(const char *line, mapping *m) {
  char *at;
  m->begin = strtoull(line, &at, 16);
  if (*at++ != '-') return false;
  m->end = strtoull(at, &at, 16);
  if (*at++ != ' ' || strlen(at) < 5) return false;
  m->plain = at[0] == 'r' && at[1] == 'w' && at[3] == 'p';
  at += 4;
  for (int field = 0; field < 2; field++) { /* the offset, the device */
    at += strspn(at, " ");
    at += strcspn(at, " ");
  }
  if (strtoull(at, &at, 10) != 0) m->plain = false;
  at += strspn(at, " ");
  if (*at && strcmp(at, "[heap]") != 0 && strcmp(at, "[stack]") != 0 && strncmp(at, "[anon:", 6) != 0) m->plain = false;
  return true;
}

/* Calls fn for the mappings that overlap [begin, end), in order, while it returns true. Returns false if they cannot be
 * read. */
static bool walk(uintptr_t begin, uintptr_t end, bool (*fn)(void *arg, const mapping *m), void *arg) {
  char text[2048], line[160];
  size_t n = 0;
  ssize_t got;
  bool more = true;
  int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  while (more && (got = read(fd, text, sizeof text)) > 0) {
    for (ssize_t i = 0; i < got && more; i++) {
      mapping m;
      if (text[i] != '\n') {
        if (n < sizeof line - 1) line[n++] = text[i]; /* the rest of a long name makes no difference */
        continue;
      }
      line[n] = '\0';
      n = 0;
      if (!parse(line, &m) || m.end <= begin) continue;
      more = m.begin < end && fn(arg, &m);
    }
  }
  close(fd);
  return true;
}

/* ---- the kernel's watch; all under the lock ---- */

static bool unregister(const hk_unmap *u, uintptr_t begin, uintptr_t end) {
  span s = {begin, end - begin};
  return ioctl(u->fd, UNREGISTER, &s) == 0;
}

typedef struct part {
  const hk_unmap *u;
  uintptr_t begin, end;
} part;
static bool unregister_part(void *arg, const mapping *m) {
  const part *p = arg;
  (void)unregister(p->u, m->begin > p->begin ? m->begin : p->begin, m->end < p->end ? m->end : p->end);
  return true;
}

/* Ends the watch of [begin, end), except where other ranges want it. The kernel refuses if a part of it has memory of
 * another kind by now. */
static void disarm(const hk_unmap *u, uintptr_t begin, uintptr_t end) {
  while (begin < end) {
    uintptr_t stop = end;
    bool shared = false;
    for (uint32_t i = 0; i < u->most && !shared; i++) {
      const range *r = &u->ranges[i];
      if (!r->serial || r->unmapped) continue;
      shared = r->begin <= begin && r->end > begin;
      if (shared) begin = r->end;
      if (!shared && r->begin > begin && r->begin < stop) stop = r->begin;
    }
    if (shared) continue;
    part p = {u, begin, stop};
    if (!unregister(u, begin, stop)) (void)walk(begin, stop, unregister_part, &p);
    begin = stop;
  }
}

static void mark(hk_unmap *u, uintptr_t begin, uintptr_t end, bool unmapped) {
  for (uint32_t i = 0; i < u->most; i++) {
    range *r = &u->ranges[i];
    if (!r->serial || r->begin >= end || r->end <= begin) continue;
    r->gone = true;
    /* relaxed: a reader that must know takes the lock */
    atomic_fetch_add_explicit(&u->marks, 1, memory_order_relaxed);
    r->unmapped = r->unmapped || (unmapped && begin <= r->begin && end >= r->end);
  }
}

static bool find_end(void *arg, const mapping *m) {
  *(uintptr_t *)arg = m->end;
  return false;
}

static void handle(hk_unmap *u, const report *r) {
  uintptr_t end;
  switch (r->event) {
    case EVENT_UNMAP:
    case EVENT_REMOVE: mark(u, r->first, r->second, r->event == EVENT_UNMAP); break;
    case EVENT_REMAP:
      mark(u, r->first, r->first + r->third, false);
      /* The watch has moved with the memory, which may have grown. Nothing of it is wanted: as long as this report is
       * not read, hk_unmap_watch refuses. */
      end = r->second + r->third;
      (void)walk(r->second, r->second + 1, find_end, &end);
      disarm(u, r->second, end);
      break;
    default: break;
  }
}

/* Allocates and logs nothing: see unmap.h. */
static void *read_reports(void *arg) {
  hk_unmap *u = arg;
  report reports[READ_AT_ONCE];
  struct pollfd fds[] = {{.fd = u->fd, .events = POLLIN}, {.fd = u->stop, .events = POLLIN}};
  while (!(fds[1].revents & POLLIN)) {
    if (poll(fds, 2, -1) < 0 || !(fds[0].revents & POLLIN)) continue;
    pthread_mutex_lock(&u->lock);
    ssize_t n = read(u->fd, reports, sizeof reports);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *reports; i++) handle(u, &reports[i]);
    pthread_mutex_unlock(&u->lock);
  }
  return NULL;
}

/* ---- ranges ---- */

static range *slot_of(hk_unmap *u, const hk_unmap_range *r) {
  range *found = &u->ranges[r->slot];
  return r->serial && found->serial == r->serial ? found : NULL;
}

static range *take(hk_unmap *u, uintptr_t begin, uintptr_t end, uint64_t most) {
  uint32_t i = 0;
  if (u->watched + (end - begin) > most) return NULL;
  while (i < u->most && u->ranges[i].serial) i++;
  if (i == RANGES) return NULL;
  if (i == u->most) u->most++;
  u->ranges[i] = (range){.begin = begin, .end = end, .serial = ++u->serial};
  u->watched += end - begin;
  return &u->ranges[i];
}

static void give(hk_unmap *u, range *r) {
  const range was = *r;
  r->serial = 0;
  u->watched -= was.end - was.begin;
  if (!was.unmapped) disarm(u, was.begin, was.end);
}

/* What is left of a range that has to be all plain memory, without gaps. */
typedef struct cover {
  uintptr_t at, end;
} cover;
static bool covers(void *arg, const mapping *m) {
  cover *c = arg;
  if (!m->plain || m->begin > c->at) return false;
  c->at = m->end;
  return c->at < c->end;
}

hk_unmap_result hk_unmap_watch(hk_unmap *u, const void *at, size_t bytes, uint64_t most, hk_unmap_range *out,
                               char why[HK_UNMAP_WHY]) {
  uintptr_t begin = (uintptr_t)at & ~(u->page - 1), end = ((uintptr_t)at + bytes + u->page - 1) & ~(u->page - 1);
  moded_span s = {{begin, end - begin}, MODE_WP, 0};
  int err = 0;
  *out = (hk_unmap_range){0};
  pthread_mutex_lock(&u->lock);
  range *r = take(u, begin, end, most);
  if (r) {
    *out = (hk_unmap_range){(uint32_t)(r - u->ranges), r->serial};
    if (ioctl(u->fd, REGISTER, &s) != 0) err = errno;
    if (!err && changes(u)) err = EAGAIN;
    if (err) give(u, r);
  }
  pthread_mutex_unlock(&u->lock);
  if (!r) return HK_UNMAP_FULL;
  /* After the watch has begun: memory that takes its place from here on is noticed. */
  cover c = {begin, end};
  if (!err && walk(begin, end, covers, &c) && c.at >= end) return HK_UNMAP_WATCHED;
  if (!err) hk_unmap_forget(u, out);
  *out = (hk_unmap_range){0};
  snprintf(why, HK_UNMAP_WHY, "%s",
           err ? strerror(err) : "it is not private anonymous memory, or /proc/self/maps cannot be read");
  return err == EAGAIN ? HK_UNMAP_BUSY : HK_UNMAP_REFUSED;
}

void hk_unmap_forget(hk_unmap *u, hk_unmap_range *r) {
  pthread_mutex_lock(&u->lock);
  range *found = slot_of(u, r);
  if (found) give(u, found);
  pthread_mutex_unlock(&u->lock);
  *r = (hk_unmap_range){0};
}

bool hk_unmap_known_gone(hk_unmap *u, const hk_unmap_range *r) {
  pthread_mutex_lock(&u->lock);
  const range *found = slot_of(u, r);
  bool gone = !found || found->gone;
  pthread_mutex_unlock(&u->lock);
  return gone;
}

uint64_t hk_unmap_marks(const hk_unmap *u) {
  return atomic_load_explicit(&u->marks, memory_order_relaxed); /* relaxed: as where it grows */
}

hk_unmap_state hk_unmap_look(hk_unmap *u, const hk_unmap_range *r) {
  bool unknown = changes(u); /* before the lock is taken: see unmap.h */
  return hk_unmap_known_gone(u, r) ? HK_UNMAP_GONE : unknown ? HK_UNMAP_UNKNOWN : HK_UNMAP_SAME;
}

/* ---- opening ---- */

static void free_watch(hk_unmap *u, bool reads) {
  uint64_t one = 1;
  if (reads) {
    for (uint32_t i = 0; i < u->most; i++) /* none, unless a user has forgotten to */
      if (u->ranges[i].serial) {
        hk_unmap_range r = {i, u->ranges[i].serial};
        hk_unmap_forget(u, &r);
      }
    if (write(u->stop, &one, sizeof one) == (ssize_t)sizeof one) pthread_join(u->reader, NULL);
  }
  if (u->fd >= 0) close(u->fd);
  if (u->stop >= 0) close(u->stop);
  pthread_mutex_destroy(&u->lock);
  free(u);
}

/* Tries once that an unmapping is noticed in time. */
static bool works(hk_unmap *u, char why[HK_UNMAP_WHY]) {
  hk_unmap_range r;
  char *at = mmap(NULL, u->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return false;
  bool watched = hk_unmap_watch(u, at, u->page, u->page, &r, why) == HK_UNMAP_WATCHED;
  bool same = watched && hk_unmap_look(u, &r) != HK_UNMAP_GONE;
  munmap(at, u->page);
  bool gone = watched && hk_unmap_known_gone(u, &r);
  if (watched) hk_unmap_forget(u, &r);
  if (watched && !(same && gone)) snprintf(why, HK_UNMAP_WHY, "the kernel does not report an unmapping in time");
  return same && gone;
}

static bool start(hk_unmap *u, char why[HK_UNMAP_WHY]) {
  handshake h = {API, FEATURES, 0};
  u->fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
  if (u->fd < 0) {
    snprintf(why, HK_UNMAP_WHY, "userfaultfd: %s%s", strerror(errno),
             errno == EPERM ? " (a container's seccomp profile may forbid it)" : "");
    return false;
  }
  if (ioctl(u->fd, HANDSHAKE, &h) != 0 || !(h.features & NEW_ENOUGH)) {
    snprintf(why, HK_UNMAP_WHY, "userfaultfd is too old, or lacks write protection: Linux 5.19 has it");
    return false;
  }
  u->stop = eventfd(0, EFD_CLOEXEC);
  errno = u->stop < 0 ? errno : hk_thread_start(&u->reader, READER_STACK, read_reports, u);
  if (u->stop < 0 || errno) {
    snprintf(why, HK_UNMAP_WHY, "no descriptor or thread: %s", strerror(errno));
    return false;
  }
  return true;
}

static hk_unmap *make(char why[HK_UNMAP_WHY]) {
  hk_unmap *u = calloc(1, sizeof *u);
  snprintf(why, HK_UNMAP_WHY, "no memory");
  if (!u) return NULL;
  u->fd = u->stop = -1;
  u->process = getpid();
  u->page = (uintptr_t)sysconf(_SC_PAGESIZE);
  pthread_mutex_init(&u->lock, NULL);
  const bool reads = start(u, why);
  if (reads && works(u, why)) return u;
  free_watch(u, reads);
  return NULL;
}

hk_unmap *hk_unmap_open(char why[HK_UNMAP_WHY]) {
  pthread_mutex_lock(&opening);
  if (!process || process->process != getpid()) process = make(why); /* a parent's stays the parent's users' */
  hk_unmap *u = process;
  if (u) u->users++;
  pthread_mutex_unlock(&opening);
  return u;
}

void hk_unmap_close(hk_unmap *u) {
  if (!u) return;
  pthread_mutex_lock(&opening);
  bool last = --u->users == 0;
  if (last && process == u) process = NULL;
  pthread_mutex_unlock(&opening);
  if (last) free_watch(u, u->process == getpid());
}
