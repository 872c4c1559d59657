/* SPDX-License-Identifier: Apache-2.0 */
/* Answers what the ranks of this process do (status.h). Runs on the listener's thread, and never blocks it. */
#include "status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/meter.h"
#include "../base/wait.h"
#include "internal.h"
#include "job.h"
#include "status_wire.h"

enum { CLIENTS = 8 /* answers under way; the oldest gives way to a new one */, BACKLOG = 16 };

typedef struct status_client {
  struct hk_status_server *server;
  int fd; /* -1: unused */
  uint8_t *bytes;
  size_t n, sent;
} status_client;

struct hk_status_server {
  hk_listener *listener;
  hk_service *service;
  int fd;
  char job[HK_JOB_NAMES];
  status_client clients[CLIENTS];
  unsigned next; /* the client that is replaced next */
};

/* The answer has secrets. */
static void status_forget(status_client *c) {
  if (c->bytes) explicit_bzero(c->bytes, c->n);
  free(c->bytes);
}

static void status_drop(status_client *c) {
  if (c->fd < 0) return;
  hk_service_remove(c->server->service, c->fd);
  hk_boot_close(c->fd);
  status_forget(c);
  *c = (status_client){.server = c->server, .fd = -1};
}

static void status_on_writable(void *arg, int fd, uint32_t events) {
  status_client *c = arg;
  (void)events;
  while (c->sent < c->n) {
    const ssize_t n = send(fd, c->bytes + c->sent, c->n - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    c->sent += (size_t)n;
  }
  status_drop(c);
}

/* ---- the answer ---- */

static size_t status_size(const hk_status_server *s) {
  const hk_listener *l = s->listener;
  size_t n = HK_STATUS_HEAD_BYTES + strlen(s->job);
  for (int i = 0; i < HK_MEMBER_BUCKETS; i++)
    for (const hk_bootstrap *b = l->members[i]; b; b = b->member_next)
      n += HK_STATUS_MEMBER_BYTES + (size_t)b->nranks * HK_CONTACT_BYTES +
           (b->o.meter ? (size_t)HK_METER_VALUES * HK_STATUS_COUNTER_BYTES : 0);
  return n;
}

static uint8_t *status_write_counters(uint8_t *to, const hk_meter_value *values, int n) {
  for (const hk_meter_value *v = values; v < values + n; v++, to += HK_STATUS_COUNTER_BYTES) {
    hk_put64(to, (uint64_t)v->kind | (uint64_t)v->size_class << 8);
    hk_put64(to + 8, v->calls);
    hk_put64(to + 16, v->bytes);
    hk_put64(to + 24, v->ns);
  }
  return to;
}

/* Under the listener's lock. Returns the end. */
static uint8_t *status_write_member(uint8_t *to, hk_listener *l, hk_bootstrap *b) {
  static const uint8_t no_nonce[HK_NONCE_BYTES];
  hk_activity a;
  hk_meter_value values[HK_METER_VALUES];
  hk_meter *meter = b->o.meter;
  const int n = meter ? hk_meter_read(meter, values) : 0;
  pthread_mutex_lock(&b->lock);
  const bool known = b->known;
  pthread_mutex_unlock(&b->lock);
  (void)hk_member_activity(l, b->family, b->comm, b->rank, &a);
  hk_put64(to, b->comm);
  hk_put64(to + 8, b->family->key);
  hk_put32(to + 16, (uint32_t)b->rank);
  hk_put32(to + 20, (uint32_t)b->nranks);
  hk_put32(to + 24, known ? (uint32_t)b->nranks : 0);
  hk_put32(to + 28, (uint32_t)n);
  memcpy(to + 32, b->family->secret, HK_SECRET_BYTES);
  to += 32 + HK_SECRET_BYTES;
  memset(to, 0, HK_STATUS_NAME);
  if (b->o.name) snprintf((char *)to, HK_STATUS_NAME, "%s", b->o.name);
  to += HK_STATUS_NAME;
  hk_activity_encode(to, &a, no_nonce, b->family->secret);
  to += HK_ACTIVITY_BYTES;
  hk_put64(to, meter ? hk_meter_idle_ns(meter, hk_now_ns()) : UINT64_MAX);
  hk_put64(to + 8, meter ? atomic_load(&meter->repairs) : 0);
  hk_put64(to + 16, meter ? atomic_load(&meter->failovers) : 0);
  to += 24;
  if (known) {
    memcpy(to, b->contacts, (size_t)b->nranks * HK_CONTACT_BYTES); /* it does not change once it is known */
    to += (size_t)b->nranks * HK_CONTACT_BYTES;
  }
  return status_write_counters(to, values, n);
}

static bool status_write(status_client *c) {
  hk_status_server *s = c->server;
  hk_listener *l = s->listener;
  const size_t job = strlen(s->job);
  uint32_t members = 0;
  hk_listener_lock();
  const size_t capacity = status_size(s);
  uint8_t *to = c->bytes = capacity <= HK_STATUS_MOST ? malloc(capacity) : NULL;
  if (to) {
    memcpy(to + HK_STATUS_HEAD_BYTES, s->job, job);
    to += HK_STATUS_HEAD_BYTES + job;
    for (int i = 0; i < HK_MEMBER_BUCKETS; i++)
      for (hk_bootstrap *b = l->members[i]; b; b = b->member_next, members++) to = status_write_member(to, l, b);
    memcpy(c->bytes, HK_STATUS_MAGIC, 8);
    hk_put32(c->bytes + 8, members);
    hk_put32(c->bytes + 12, (uint32_t)job);
    c->n = (size_t)(to - c->bytes);
  }
  hk_listener_unlock();
  return c->bytes != NULL;
}

/* Root, and the user of this process, who may also attach a debugger to it. */
static bool status_may_ask(int fd) {
  struct ucred who;
  socklen_t n = sizeof who;
  return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) && (who.uid == 0 || who.uid == geteuid());
}

static void status_on_accept(void *arg, int socket_fd, uint32_t events) {
  hk_status_server *s = arg;
  (void)events;
  const int fd = hk_boot_accept(socket_fd);
  if (fd < 0) return;
  if (!status_may_ask(fd)) { /* a stranger takes no client's place */
    hk_boot_close(fd);
    return;
  }
  status_client *c = &s->clients[s->next++ % CLIENTS];
  status_drop(c);
  *c = (status_client){.server = s, .fd = fd};
  if (status_write(c) && hk_service_add(s->service, fd, EPOLLOUT, status_on_writable, c) == HK_OK) return;
  hk_boot_close(fd);
  status_forget(c);
  *c = (status_client){.server = s, .fd = -1};
}

/* ---- begin and end ---- */

hk_status_server *hk_status_serve(hk_listener *l) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  hk_status_server *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->listener = l;
  s->service = l->service;
  hk_boot_job_names(l->settings, s->job, sizeof s->job);
  for (int i = 0; i < CLIENTS; i++) s->clients[i] = (status_client){.server = s, .fd = -1};
  const int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, HK_STATUS_SOCKET "%d.%llx", (int)getpid(),
                         (unsigned long long)l->contact.process);
  const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->fd >= 0 && !bind(s->fd, (struct sockaddr *)&at, length) && !listen(s->fd, BACKLOG) &&
      hk_service_add(s->service, s->fd, EPOLLIN, status_on_accept, s) == HK_OK) {
    hk_fork_closes(s->fd);
    return s;
  }
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "`hocket ps` will not see this process: no socket for it: %s",
          strerror(errno));
  if (s->fd >= 0) close(s->fd);
  free(s);
  return NULL;
}

void hk_status_free(hk_status_server *s) {
  if (!s) return;
  hk_boot_close(s->fd);
  for (int i = 0; i < CLIENTS; i++) {
    hk_boot_close(s->clients[i].fd);
    status_forget(&s->clients[i]);
  }
  free(s);
}
