/* SPDX-License-Identifier: Apache-2.0 */
/* The RAS server (ras.h): its connections, its lines and its thread. All clients that ask while a collection runs get
 * the next one, so a client waits for at most two, whatever the others send. */
#include "ras.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/addr.h"
#include "../base/fork.h"
#include "../base/log.h"
#include "../base/param.h"
#include "../base/thread.h"
#include "../base/wait.h"
#include "../boot/process.h" /* descriptors that a fork closes */
#include "ras_report.h"

enum {
  CLIENTS = 64,       /* with ras_grace_ns: more connections a second than a flood makes */
  LINE = 256,         /* bytes of a line, with its end */
  BACKLOG = 4096,     /* connections that the kernel keeps while a collection runs */
  LATE_MS = 1000,     /* a wait from this length on is reported */
  MOST_UNREAD = 65536 /* bytes of events that a client has not read: then it is dropped */
};
/* A client may wait for one second only, so a collection takes less. */
static const uint64_t ras_process_ns = 150 * 1000000u, ras_others_ns = 650 * 1000000u, ras_rank_ns = 600 * 1000000u;
static const uint64_t ras_idle_ns = 5000000000u;     /* a connection without a command, or that reads nothing */
static const uint64_t ras_grace_ns = 20 * 1000000u;  /* before a new connection gives way to another one */
static const uint64_t ras_monitor_ns = 1000000000u;  /* between collections for events */
static const uint64_t ras_fresh_ns = 200 * 1000000u; /* a report is as good for others that ask within this time */
static const uint64_t ras_pause_ns = 100 * 1000000u; /* after a failed accept */
static const uint64_t ras_day_ns = 86400000000000u;  /* a nap that the next connection ends */

typedef struct ras_client {
  int fd;                     /* -1: unused */
  uint64_t born_ns, since_ns; /* since_ns: of its last command, or of the last bytes that it took */
  hk_ras_format how;
  double timeout_s;
  bool current; /* it monitors, and has got all events so far */
  bool greeted; /* it has sent a valid command */
  bool wants;   /* a report */
  bool over;    /* all is said: it is closed when the client has read it */
  bool ended;   /* the client sends no more */
  size_t have;
  char line[LINE];
  char *out;
  size_t n, sent; /* bytes of `out` */
} ras_client;

typedef struct ras_server {
  int fd;
  pthread_t thread;
  _Atomic(int) stop; /* an hk_status: not 0 ends every wait of the thread */
  ras_client clients[CLIENTS];
  hk_ps seen;       /* the last collection, while there are clients */
  uint64_t seen_ns; /* 0: there is none */
  double seen_s;    /* what it took */
} ras_server;

/* ---- one connection ---- */

static void ras_drop(ras_client *c) {
  hk_boot_close(c->fd);
  free(c->out);
  *c = (ras_client){.fd = -1};
}

static bool ras_is_unread(const ras_client *c) { return c->sent < c->n; }

static void ras_send(ras_client *c) {
  while (ras_is_unread(c)) {
    const ssize_t n = send(c->fd, c->out + c->sent, c->n - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      ras_drop(c);
      return;
    }
    c->sent += (size_t)n;
    c->since_ns = hk_now_ns();
  }
  free(c->out);
  c->out = NULL;
  c->n = c->sent = 0;
  if (!c->over) return;
  if (c->ended)
    ras_drop(c);
  else
    (void)shutdown(c->fd, SHUT_WR); /* closed once the client has read it: data that it sent would reset it */
}

/* Takes the text, which malloc has made. */
static void ras_give(ras_client *c, char *text, size_t bytes) {
  if (!text) {
    ras_drop(c);
    return;
  }
  if (!ras_is_unread(c)) {
    c->since_ns = hk_now_ns();
    free(c->out);
    c->out = text;
    c->n = bytes;
    c->sent = 0;
  } else {
    char *grown = realloc(c->out, c->n + bytes);
    if (grown) {
      memcpy(grown + c->n, text, bytes);
      c->out = grown;
      c->n += bytes;
    }
    free(text);
    if (!grown) {
      ras_drop(c);
      return;
    }
  }
  ras_send(c);
}

__attribute__((format(printf, 2, 3))) static void ras_say(ras_client *c, const char *format, ...) {
  char *text = NULL;
  va_list args;
  va_start(args, format);
  const int n = vasprintf(&text, format, args);
  va_end(args);
  ras_give(c, n < 0 ? NULL : text, n < 0 ? 0 : (size_t)n);
}

/* ---- lines ---- */

/* The rest of the line if it begins with the words; NULL: it does not. */
static const char *ras_after(const char *line, const char *words) {
  const size_t n = strlen(words);
  return strncasecmp(line, words, n) ? NULL : line + n;
}

/* The words of MONITOR; 0: one of them is wrong. */
static unsigned ras_groups(const char *list) {
  unsigned groups = 0;
  for (size_t n; *(list += strspn(list, ", ")); list += n) {
    n = strcspn(list, ", ");
    if (n == 9 && !strncasecmp(list, "lifecycle", n))
      groups |= HK_RAS_LIFECYCLE;
    else if (n == 5 && !strncasecmp(list, "trace", n))
      groups |= HK_RAS_TRACE;
    else if (n == 3 && !strncasecmp(list, "all", n))
      groups |= HK_RAS_LIFECYCLE | HK_RAS_TRACE;
    else
      return 0;
  }
  return groups ? groups : HK_RAS_LIFECYCLE;
}

static bool ras_set_timeout(ras_client *c, const char *text) {
  char *end;
  const double s = strtod(text, &end);
  if (end == text || *end || !isfinite(s) || s < 0) return false;
  c->timeout_s = s;
  return true;
}

static void ras_do(ras_client *c, const char *line) {
  const char *rest;
  bool fine = true;
  if (ras_after(line, "client protocol ")) {
    ras_say(c, "SERVER PROTOCOL 2\n");
  } else if ((rest = ras_after(line, "timeout "))) {
    fine = ras_set_timeout(c, rest);
    ras_say(c, fine ? "OK\n" : "ERROR: the timeout is a number of seconds, 0 or more\n");
  } else if ((rest = ras_after(line, "set format "))) {
    fine = !strcasecmp(rest, "json") || !strcasecmp(rest, "text");
    if (fine) c->how.json = !strcasecmp(rest, "json");
    ras_say(c, fine ? "OK\n" : "ERROR: the format is text or json\n");
  } else if (!strcasecmp(line, "status") || !strcasecmp(line, "verbose status")) {
    c->how.verbose = line[0] == 'v' || line[0] == 'V';
    c->wants = true;
  } else if (!strcasecmp(line, "monitor") || ras_after(line, "monitor ")) {
    const unsigned groups = ras_groups(line + strlen("monitor"));
    fine = groups != 0;
    if (fine) c->how.groups = groups;
    ras_say(c, fine ? "OK\n" : "ERROR: the groups of events are lifecycle, trace and all\n");
  } else {
    fine = false;
    ras_say(c, "ERROR: unknown command; there are STATUS, VERBOSE STATUS, MONITOR, SET FORMAT, TIMEOUT, "
               "CLIENT PROTOCOL\n");
  }
  if (!fine || c->fd < 0) return;
  c->greeted = true;
  c->since_ns = hk_now_ns();
}

static void ras_do_lines(ras_client *c) {
  char *end;
  while (c->fd >= 0 && !c->wants && (end = memchr(c->line, '\n', c->have))) {
    const size_t n = (size_t)(end - c->line) + 1;
    char line[LINE];
    memcpy(line, c->line, n);
    line[n - 1] = 0;
    if (n > 1 && line[n - 2] == '\r') line[n - 2] = 0;
    memmove(c->line, end + 1, c->have - n);
    c->have -= n;
    ras_do(c, line);
  }
  if (c->fd < 0 || c->wants || c->have < sizeof c->line) return;
  c->over = true;
  ras_say(c, "ERROR: a line has at most %d bytes\n", LINE);
}

static void ras_read(ras_client *c) {
  char rest[LINE];
  const bool ignored = c->over || c->wants;
  const ssize_t n =
      recv(c->fd, ignored ? rest : c->line + c->have, ignored ? sizeof rest : sizeof c->line - c->have, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    c->ended = true; /* a client that shuts down its side still gets its answer */
    if (n < 0 || (!c->wants && !ras_is_unread(c)) || c->how.groups) ras_drop(c);
    return;
  }
  if (ignored) return;
  c->have += (size_t)n;
  ras_do_lines(c);
}

/* ---- all connections ---- */

/* Of the connections that may give way to a new one, those with the lowest worth do so, the oldest first. */
static int ras_worth(const ras_client *c) {
  if (c->over && !ras_is_unread(c)) return 0;
  if (!c->greeted) return 1;
  return c->wants || ras_is_unread(c) ? 3 : 2;
}

/* A place for a new connection; NULL: each is too young to give way. */
static ras_client *ras_place(ras_server *s) {
  const uint64_t now = hk_now_ns();
  ras_client *found = NULL;
  for (int i = 0; i < CLIENTS; i++) {
    ras_client *c = &s->clients[i];
    if (c->fd < 0) return c;
    if (ras_worth(c) && hk_ago_ns(now, c->born_ns) < ras_grace_ns) continue;
    if (!found || ras_worth(c) < ras_worth(found) || (ras_worth(c) == ras_worth(found) && c->born_ns < found->born_ns))
      found = c;
  }
  return found;
}

static void ras_accept(ras_server *s, hk_waiter *w) {
  for (ras_client *c; (c = ras_place(s));) {
    const int fd = hk_boot_accept(s->fd);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) {
      if (errno != EAGAIN) (void)hk_wait_nap(w, -1, ras_pause_ns); /* no descriptor: it would not sleep otherwise */
      return;
    }
    if (c->fd >= 0) ras_drop(c);
    *c = (ras_client){.fd = fd, .timeout_s = INFINITY};
    c->born_ns = c->since_ns = hk_now_ns();
    ras_read(c); /* a command that is here already counts, when the next connection needs a place */
  }
}

static void ras_expire(ras_server *s) {
  const uint64_t now = hk_now_ns();
  for (int i = 0; i < CLIENTS; i++) {
    ras_client *c = &s->clients[i];
    if (c->fd < 0 || c->wants || hk_ago_ns(now, c->since_ns) < ras_idle_ns) continue;
    if (!c->how.groups || ras_is_unread(c)) ras_drop(c);
  }
}

/* ---- reports ---- */

static void ras_answer(ras_client *c, const hk_ps *p, double seconds) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  c->wants = false;
  c->over = true;
  if (f) hk_ras_report(f, p, &c->how, seconds);
  if (f && fclose(f)) {
    free(text);
    text = NULL;
  }
  ras_give(c, text, bytes);
}

static void ras_notify(ras_client *c, const hk_ps *before, const hk_ps *now) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  if (!f) return;
  hk_ras_events(f, before, now, &c->how);
  if (fclose(f) || !bytes)
    free(text);
  else if (c->n - c->sent > MOST_UNREAD)
    free(text), ras_drop(c);
  else
    ras_give(c, text, bytes);
}

/* True if a client waits for a collection. *patience_s: the shortest that a client has asked for. */
static bool ras_is_asked(const ras_server *s, double *patience_s) {
  bool wanted = false, monitored = false;
  for (int i = 0; i < CLIENTS; i++) {
    const ras_client *c = &s->clients[i];
    if (c->fd < 0) continue;
    wanted |= c->wants;
    monitored |= c->how.groups && !c->over;
    if (c->wants && c->timeout_s > 0 && c->timeout_s < *patience_s) *patience_s = c->timeout_s;
  }
  return wanted || (monitored && hk_ago_ns(hk_now_ns(), s->seen_ns) >= ras_monitor_ns);
}

/* Gives a client what it waits for. `now`: NULL if the collection failed. */
static void ras_deliver(ras_client *c, const hk_ps *before, const hk_ps *now, double seconds) {
  const hk_ps none = {.ncomms = 0}; /* a client that begins to monitor gets what is wrong already */
  if (c->fd < 0) return;
  if (c->wants && now) {
    ras_answer(c, now, seconds);
  } else if (c->wants) {
    c->wants = false;
    c->over = true;
    ras_say(c, "ERROR: the process that answers cannot ask others: %s\n", hk_last_error());
  }
  if (c->fd < 0 || c->over || !c->how.groups) return;
  if (now) ras_notify(c, c->current ? before : &none, now);
  c->current = true;
}

static void ras_forget(ras_server *s) {
  hk_ps_free(&s->seen); /* it has secrets */
  s->seen = (hk_ps){.ncomms = 0};
  s->seen_ns = 0;
}

static void ras_collect(ras_server *s) {
  double patience_s = 1e-9 * (double)ras_others_ns;
  if (!ras_is_asked(s, &patience_s)) return;
  const uint64_t begin = hk_now_ns();
  if (hk_ago_ns(begin, s->seen_ns) < ras_fresh_ns) { /* no time for a collection for each of many */
    for (int i = 0; i < CLIENTS; i++)
      if (s->clients[i].fd >= 0 && s->clients[i].wants) ras_answer(&s->clients[i], &s->seen, s->seen_s);
    return;
  }
  const hk_ps_patience patience = {.process_ns = ras_process_ns,
                                   .others_ns = (uint64_t)(patience_s * 1e9),
                                   .rank_ns = ras_rank_ns,
                                   .stop = &s->stop};
  hk_ps now;
  const bool known = hk_ps_collect(&now, LATE_MS, &patience) == HK_OK;
  const double seconds = 1e-9 * (double)(hk_now_ns() - begin);
  if (atomic_load(&s->stop)) { /* what it did not ask in time would look like trouble */
    hk_ps_free(&now);
    return;
  }
  for (int i = 0; i < CLIENTS; i++) ras_deliver(&s->clients[i], &s->seen, known ? &now : NULL, seconds);
  if (!known) { /* the next one is compared with the last that succeeded */
    hk_ps_free(&now);
    s->seen_ns = begin > ras_fresh_ns ? begin - ras_fresh_ns : 0;
    return;
  }
  hk_ps_free(&s->seen);
  s->seen = now;
  s->seen_s = seconds;
  s->seen_ns = hk_now_ns();
}

/* ---- the thread ---- */

/* Waits for clients, and reads what they send. */
static hk_status ras_serve(ras_server *s, hk_waiter *w) {
  struct pollfd p[CLIENTS + 1];
  ras_client *of[CLIENTS];
  unsigned n = 0;
  for (int i = 0; i < CLIENTS; i++) {
    ras_client *c = &s->clients[i];
    if (c->fd < 0) continue;
    const short reads = c->ended || (ras_is_unread(c) && !c->over) ? 0 : POLLIN;
    of[n] = c;
    p[n++] = (struct pollfd){.fd = c->fd, .events = (short)(reads | (ras_is_unread(c) ? POLLOUT : 0))};
  }
  if (!n) {
    ras_forget(s);
    return hk_wait_nap(w, s->fd, ras_day_ns);
  }
  p[n] = (struct pollfd){.fd = s->fd, .events = ras_place(s) ? POLLIN : 0};
  HK_OR_RETURN(hk_wait_poll(w, p, n + 1));
  for (unsigned i = 0; i < n; i++) {
    if (of[i]->fd >= 0 && p[i].revents & POLLOUT) ras_send(of[i]);
    if (of[i]->fd >= 0 && p[i].revents & POLLIN) ras_read(of[i]);
    if (of[i]->fd >= 0 && p[i].revents & (POLLERR | POLLHUP | POLLNVAL)) ras_drop(of[i]);
  }
  return HK_OK;
}

static void *ras_main(void *arg) {
  ras_server *s = arg;
  const hk_wait_env env = {.failure = &s->stop};
  hk_waiter w;
  pthread_setname_np(pthread_self(), "hk-ras");
  hk_wait_begin(&w, &env);
  while (ras_serve(s, &w) == HK_OK) {
    ras_accept(s, &w);
    ras_expire(s);
    ras_collect(s);
  }
  return NULL;
}

/* ---- begin and end ---- */

/* As NCCL reads it, but localhost is 127.0.0.1 without a question to a name server. */
static hk_status ras_address(const hk_settings *settings, hk_addr *a) {
  const char *port = ras_after(settings->RAS_ADDR, "localhost:");
  char text[32];
  if (!port || strlen(port) > 5) return hk_addr_parse(settings, a, settings->RAS_ADDR);
  snprintf(text, sizeof text, "127.0.0.1:%s", port);
  return hk_addr_parse(settings, a, text);
}

/* -1: with errno. */
static int ras_listen(const hk_addr *a) {
  const int one = 1, fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* connections of an ended server keep the port */
  if (!bind(fd, &a->sa, hk_addr_len(a)) && !listen(fd, BACKLOG)) return fd;
  const int why = errno;
  close(fd);
  errno = why;
  return -1;
}

/* `first`: the log says why it cannot. */
static ras_server *ras_begin(const hk_addr *at, bool first) {
  char text[HK_ADDR_TEXT];
  ras_server *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  for (int i = 0; i < CLIENTS; i++) s->clients[i].fd = -1;
  s->fd = ras_listen(at);
  if (s->fd < 0) {
    if (first)
      HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "RAS: this process does not answer ncclras at %s (%s)%s",
              hk_addr_format(at, text), strerror(errno),
              errno == EADDRINUSE ? ": another process does, which is most likely of the same job" : "");
    free(s);
    return NULL;
  }
  hk_fork_closes(s->fd);
  const int why = hk_thread_start(&s->thread, 0, ras_main, s);
  if (why) {
    if (first)
      HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "RAS: this process does not answer ncclras: no thread for it (%s)",
              strerror(why));
    hk_boot_close(s->fd);
    free(s);
    return NULL;
  }
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "RAS: this process answers ncclras at %s", hk_addr_format(at, text));
  return s;
}

static void ras_end(ras_server *s) {
  if (!s) return;
  atomic_store(&s->stop, HK_ERR_REMOTE);
  (void)shutdown(s->fd, SHUT_RDWR); /* ends the thread's nap */
  pthread_join(s->thread, NULL);
  for (int i = 0; i < CLIENTS; i++) ras_drop(&s->clients[i]);
  hk_boot_close(s->fd);
  hk_ps_free(&s->seen);
  free(s);
}

static struct {
  pthread_mutex_t lock;
  unsigned users, forks;
  bool on;            /* this process may serve */
  hk_addr at;         /* if it is on: where */
  ras_server *server; /* NULL: another process has the port, or it is off */
} ras = {.lock = PTHREAD_MUTEX_INITIALIZER};
HK_FORK_GUARD(ras.lock);

/* In a forked child the server is the parent's: its thread does not exist here, and its descriptors are closed. */
static void ras_forget_parent(void) {
  if (ras.forks == hk_forks) return;
  ras.forks = hk_forks;
  ras.users = 0;
  ras.server = NULL;
}

bool hk_ras_hold(const hk_settings *settings) {
  pthread_mutex_lock(&ras.lock);
  ras_forget_parent();
  if (ras.users++ == 0) {
    ras.on = settings->RAS_ENABLE && settings->STATUS && ras_address(settings, &ras.at) == HK_OK;
    if (ras.on) ras.server = ras_begin(&ras.at, true);
  }
  const bool waits = ras.on && !ras.server;
  pthread_mutex_unlock(&ras.lock);
  return waits;
}

bool hk_ras_take_over(void) {
  if (pthread_mutex_trylock(&ras.lock)) return false; /* a thread that begins or ends a server may ask a name server */
  ras_forget_parent();
  if (ras.users && ras.on && !ras.server) ras.server = ras_begin(&ras.at, false);
  const bool serves = ras.server != NULL;
  pthread_mutex_unlock(&ras.lock);
  return serves;
}

void hk_ras_release(void) {
  ras_server *ended = NULL;
  pthread_mutex_lock(&ras.lock);
  ras_forget_parent();
  if (ras.users && --ras.users == 0) {
    ended = ras.server;
    ras.server = NULL;
  }
  pthread_mutex_unlock(&ras.lock);
  ras_end(ended);
}
