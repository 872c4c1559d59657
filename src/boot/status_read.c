/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the processes of this host what their ranks do (status.h). */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/wait.h"
#include "dial.h"
#include "process.h"
#include "status.h"
#include "status_wire.h"

enum { STATUS_RETRY_NS = 200000, LIST_MOST = 8 /* patience with all processes, in patiences with one */ };

/* ---- one process ---- */

/* Copies a text: another user's process must not send control characters to root's terminal, except `allowed`. */
static void status_read_text(char *to, size_t capacity, const uint8_t *from, size_t bytes, char allowed) {
  snprintf(to, capacity, "%.*s", (int)(bytes < capacity ? bytes : capacity - 1), (const char *)from);
  for (char *t = to; *t; t++)
    if (((unsigned char)*t < ' ' || *t == 0x7f) && *t != allowed) *t = '?';
}

/* The members of the answer; false if it is no such answer. */
static bool status_read_members(hk_status_process *p, size_t bytes) {
  const uint8_t *at = p->bytes, *end = at + bytes;
  static const uint8_t no_nonce[HK_NONCE_BYTES];
  if (bytes < HK_STATUS_HEAD_BYTES || memcmp(at, HK_STATUS_MAGIC, 8)) return false;
  const uint32_t n = hk_get32(at + 8);
  const uint32_t job = hk_get32(at + 12);
  if (n > bytes / HK_STATUS_MEMBER_BYTES || job >= HK_JOB_NAMES || job > bytes - HK_STATUS_HEAD_BYTES) return false;
  p->members = calloc((size_t)n + 1, sizeof *p->members);
  if (!p->members) return false;
  at += HK_STATUS_HEAD_BYTES;
  status_read_text(p->job, sizeof p->job, at, job, '\n');
  at += job;
  for (; p->nmembers < (int)n; p->nmembers++) {
    hk_status_member *m = &p->members[p->nmembers];
    if ((size_t)(end - at) < HK_STATUS_MEMBER_BYTES) return false;
    const uint32_t rank = hk_get32(at + 16), nranks = hk_get32(at + 20), contacts = hk_get32(at + 24);
    const uint32_t counters = hk_get32(at + 28);
    *m = (hk_status_member){.comm = hk_get64(at), .key = hk_get64(at + 8), .rank = (int)rank, .nranks = (int)nranks};
    if (rank >= nranks || nranks > INT32_MAX || (contacts && contacts != nranks) || counters > HK_METER_VALUES)
      return false;
    memcpy(m->secret, at + 32, HK_SECRET_BYTES);
    at += 32 + HK_SECRET_BYTES;
    status_read_text(m->name, sizeof m->name, at, HK_STATUS_NAME, 0);
    at += HK_STATUS_NAME;
    if (!hk_activity_decode(&m->activity, at, no_nonce, m->secret)) return false;
    at += HK_ACTIVITY_BYTES;
    m->idle_ns = hk_get64(at);
    m->repairs = hk_get64(at + 8);
    m->failovers = hk_get64(at + 16);
    at += 24;
    if ((size_t)(end - at) < (size_t)contacts * HK_CONTACT_BYTES + (size_t)counters * HK_STATUS_COUNTER_BYTES)
      return false;
    if (contacts) m->contacts = at;
    at += (size_t)contacts * HK_CONTACT_BYTES;
    m->counters = at;
    m->ncounters = counters;
    at += (size_t)counters * HK_STATUS_COUNTER_BYTES;
  }
  return at == end;
}

/* Reads to the end of the connection. Returns the number of bytes; 0: no answer. A missing answer is no error: it
 * checks the deadline itself. */
static size_t status_read_all(hk_status_process *p, int fd, uint64_t deadline_ns, _Atomic(int) *stop) {
  const hk_wait_env env = {.failure = stop};
  hk_waiter w;
  size_t n = 0, capacity = 0;
  hk_wait_begin(&w, &env);
  for (;;) {
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    if (!HK_RESERVE(p->bytes, capacity, n + 4096) || n > HK_STATUS_MOST) return 0;
    const ssize_t got = recv(fd, p->bytes + n, capacity - n, MSG_DONTWAIT);
    if (got == 0) return n;
    if (got > 0)
      n += (size_t)got;
    else if (errno != EINTR &&
             (errno != EAGAIN || hk_now_ns() >= deadline_ns || hk_wait_poll(&w, &readable, 1) != HK_OK))
      return 0;
  }
}

/* A process's socket, and the connection to it. */
typedef struct status_question {
  int fd;
  struct sockaddr_un at;
  socklen_t bytes;
  bool asked; /* the process answers without a word from us */
} status_question;

/* Tries to connect. Its queue may be full, because many others do. */
static bool status_ask(status_question *q) {
  q->asked = q->asked || (q->fd >= 0 && !connect(q->fd, (const struct sockaddr *)&q->at, q->bytes));
  return q->asked || (errno != EAGAIN && errno != EINTR);
}

/* `name`: of its socket, after the zero byte. */
static void status_begin(status_question *q, const char *name) {
  *q = (status_question){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  q->at.sun_family = AF_UNIX;
  const int n = snprintf(q->at.sun_path + 1, sizeof q->at.sun_path - 1, "%s", name);
  q->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  (void)status_ask(q);
}

static void status_receive(hk_status_process *p, status_question *q, uint64_t deadline_ns, _Atomic(int) *stop) {
  const hk_wait_env env = {.failure = stop};
  hk_waiter w;
  struct ucred who;
  socklen_t size = sizeof who;
  hk_wait_begin(&w, &env);
  while (!status_ask(q) && hk_now_ns() < deadline_ns && hk_wait_nap(&w, -1, STATUS_RETRY_NS) == HK_OK) continue;
  if (!q->asked) return;
  if (!getsockopt(q->fd, SOL_SOCKET, SO_PEERCRED, &who, &size)) {
    p->pid = who.pid;
    p->refused = geteuid() != 0 && who.uid != geteuid();
  }
  p->stopped = !p->refused && hk_process_stopped(hk_process_state(p->pid)); /* it would not answer */
  if (!p->refused && !p->stopped) p->size = status_read_all(p, q->fd, deadline_ns, stop);
  p->answers = p->size && status_read_members(p, p->size);
  p->strange = p->size && !p->answers;
  if (!p->answers) p->nmembers = 0;
}

/* Asks all before it reads an answer, so that the answers are of one moment, even if one of them does not come. */
hk_status hk_status_list(hk_status_process **out, int *n, uint64_t patience_ns, _Atomic(int) *stop) {
  FILE *f = fopen("/proc/net/unix", "re");
  char line[512];
  status_question *questions = NULL;
  size_t capacity = 0;
  *out = NULL;
  *n = 0;
  if (!f) return HK_FAIL_ERRNO("/proc/net/unix, which lists the processes' sockets, cannot be read");
  while (fgets(line, sizeof line, f)) {
    char *name = strstr(line, "@" HK_STATUS_SOCKET);
    unsigned long flags = 0;
    if (!name || sscanf(line, "%*s %*s %*s %lx", &flags) != 1 || !(flags & 0x10000)) continue; /* it does not listen */
    name[strcspn(name, "\n")] = 0;
    if (!HK_RESERVE(questions, capacity, (size_t)*n + 1) || !HK_RESERVE_NEXT(*out, *n)) break;
    (*out)[*n] = (hk_status_process){.pid = atoi(name + 1 + strlen(HK_STATUS_SOCKET))};
    status_begin(&questions[(*n)++], name + 1);
  }
  fclose(f);
  const uint64_t until = hk_now_ns() + LIST_MOST * patience_ns;
  for (int i = 0; i < *n; i++) {
    const uint64_t now = hk_now_ns(), own = now + patience_ns;
    status_receive(&(*out)[i], &questions[i], own < until ? own : until, stop);
    if (questions[i].fd >= 0) close(questions[i].fd);
  }
  free(questions);
  return HK_OK;
}

bool hk_status_counter(const hk_status_member *m, uint32_t i, hk_meter_value *out) {
  const uint8_t *at = m->counters + (size_t)i * HK_STATUS_COUNTER_BYTES;
  if (i >= m->ncounters) return false;
  *out = (hk_meter_value){.kind = at[0],
                          .size_class = at[1],
                          .calls = hk_get64(at + 8),
                          .bytes = hk_get64(at + 16),
                          .ns = hk_get64(at + 24)};
  return out->kind < HK_METER_KINDS && out->size_class < HK_METER_CLASSES;
}

void hk_status_list_free(hk_status_process *list, int n) {
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < list[i].nmembers; k++) explicit_bzero(list[i].members[k].secret, HK_SECRET_BYTES);
    if (list[i].bytes) explicit_bzero(list[i].bytes, list[i].size);
    free(list[i].bytes);
    free(list[i].members);
  }
  free(list);
}

/* ---- the ranks of other hosts ---- */

hk_presence hk_status_ask(const hk_status_member *m, const struct hk_settings *settings, int rank, uint64_t deadline_ns,
                          _Atomic(int) *stop, hk_activity *out, bool *member) {
  hk_contact c;
  uint8_t bytes[HK_ACTIVITY_BYTES];
  const hk_wait_env env = {.deadline_ns = deadline_ns, .failure = stop};
  hk_ack ack = HK_ACK_UNKNOWN;
  *out = (hk_activity){.waits_for = -1, .device = -1};
  *member = false;
  if (!m->contacts || !hk_contact_decode(&c, m->contacts + (size_t)rank * HK_CONTACT_BYTES)) return HK_PRESENCE_UNKNOWN;
  hk_hello h = {
      .kind = HK_HELLO_ASK, .from = m->rank, .to = rank, .key = m->key, .comm = m->comm, .process = c.process};
  hk_dialing d = {
      .settings = settings, .hello = &h, .secret = m->secret, .whom = "the rank", .advice = "", .wait = &env};
  for (; d.n < c.n; d.n++) d.at[d.n] = c.at[d.n];
  if (hk_random(h.nonce, sizeof h.nonce) != HK_OK) return HK_PRESENCE_UNKNOWN;
  switch (hk_boot_probe(&d, &ack, bytes, sizeof bytes)) {
    case HK_PROBE_ANSWERED:
      if (!hk_activity_decode(out, bytes, h.nonce, m->secret)) return HK_PRESENCE_UNKNOWN;
      *member = ack == HK_ACK_OK;
      return ack == HK_ACK_GONE ? HK_PRESENCE_LEFT : HK_PRESENCE_ANSWERS;
    case HK_PROBE_SILENT: return HK_PRESENCE_STOPPED;
    case HK_PROBE_CLOSED:
    case HK_PROBE_REFUSED: return HK_PRESENCE_GONE;
    case HK_PROBE_UNREACHABLE:
    default: return HK_PRESENCE_UNREACHABLE;
  }
}
